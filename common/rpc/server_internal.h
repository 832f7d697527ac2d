/*
 * Inside rpc/: the structs of servers and of what they consist of. Everything belongs to the loop's
 * thread.
 */
#ifndef FSDPD_RPC_SERVER_INTERNAL_H
#define FSDPD_RPC_SERVER_INTERNAL_H

#include <grpc/grpc.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "rpc/lobby.h"
#include "rpc/peer.h"
#include "rpc/runtime.h"
#include "rpc/server.h"
#include "rpc/tls_internal.h"

/* ---- server.c, server_call.c ---- */

/* One registered method. */
struct rpc_slot {
    const struct rpc_handler *handler;
    void *service;      /* user pointer of the handler */
    unsigned roles;     /* roles that may call it; one of them is enough */
    size_t message_max; /* 0: RPC_MESSAGE_MAX */
    bool own;           /* health or reflection: the server itself ends the call when it closes */
};

struct rpc_server {
    struct rpc_runtime *runtime;
    struct rpc_slot *slots;
    int slot_count;
    struct rpc_health *health;
    struct rpc_reflection *reflection;
    struct rpc_peer_server *peer_servers;
    int counted_servers;            /* number of Unix users with a per-peer server, without root,
                                     * our own user and servers shutting down */
    struct rpc_acceptor *acceptors; /* all listening sockets */
    struct rpc_lobby *lobby;        /* accepted connections wait here; NULL once it is gone */
    int connection_count;           /* connections of all per-peer servers, as of the last check */
    uint64_t refused_at;            /* when a refused connection was last logged */
    struct rpc_operators operators;
    struct rpc_limits limits;
    struct rpc_server_tls *tls; /* NULL: no TLS */
    struct rpc_call *calls;     /* every call that has arrived and has not ended */
    int armed;                  /* armed requests for calls that have not completed */
    int servers_open;           /* per-peer servers that have not shut down */
    bool started, closing, timer_closing;
    uv_timer_t grace; /* first for calls to end, then for the last statuses to be sent; exists from
                       * rpc_server_close on */
    void (*closed)(void *user);
    void *closed_user;
};

/* Requests the next call of a method from gRPC, or of any unknown method if `slot` is NULL. */
void rpc_call_arm(struct rpc_peer_server *peer_server, const struct rpc_slot *slot);

/* Ends the calls of the server's own services, or all calls (which count as cancelled), because the
 * server is shutting down. */
void rpc_call_finish_all(struct rpc_server *server, bool own_only);

/* Frees the server if nothing is left of it: called when a request completes or a call ends. */
void rpc_server_maybe_free(struct rpc_server *server);

/* ---- peer_server.c ---- */

/*
 * gRPC does not tell over which connection a call arrived, so what is known about a connection
 * cannot be looked up per call. Therefore every identity has a gRPC server of its own, its per-peer
 * server: every call that arrives there comes from that peer, without any lookup that could go
 * wrong. All TLS peers share one, because a certificate accompanies every call.
 */
struct rpc_peer_server {
    struct rpc_server *server;
    struct rpc_peer_server *next;
    grpc_server *grpc;
    void **registered;    /* gRPC's handles, by slot */
    struct rpc_peer peer; /* for TLS: only the kind is known */
    char *name;           /* storage of peer.name, if it is ours */
    void *external;       /* for TLS: the object that takes connections; see external.h */
    int armed;            /* armed requests for calls that have not completed */
    int calls;            /* calls that have arrived and have not ended */
    bool retiring, shut_down;
    struct rpc_tag shutdown_tag;
    struct rpc_connection *connections;
    int connection_count, connection_capacity;
    int unproven;      /* among these, TLS connections that may still be in their handshake */
    uint64_t swept_at; /* when the connections were last checked; ms of the loop */
};

/*
 * The per-peer server of that peer, created if needed; copies the name. At the maximum number, an
 * unused one is shut down first; NULL if all are in use, or if the peer cannot be identified now.
 */
struct rpc_peer_server *rpc_peer_server_open(struct rpc_server *server,
                                             const struct rpc_peer *peer);

/* Starts taking calls, once the server has been started. */
void rpc_peer_server_start(struct rpc_peer_server *peer_server);

/* Gives the per-peer server of TLS its port, taking ownership of the credentials. False: gRPC
 * refused them. */
bool rpc_peer_server_use_tls(struct rpc_peer_server *peer_server,
                             grpc_server_credentials *credentials);

/* Whether another connection of this peer may begin its handshake. */
bool rpc_peer_server_has_room(struct rpc_peer_server *peer_server, const struct rpc_origin *origin);

/* Hands over an accepted connection, or closes it if there are too many. */
void rpc_peer_server_connect(struct rpc_peer_server *peer_server, int fd,
                             const struct rpc_origin *origin);

/* A call has arrived at the per-peer server of TLS: its connection has completed the handshake. */
void rpc_peer_server_prove(struct rpc_peer_server *peer_server, grpc_call *call);

void rpc_peer_server_shutdown(struct rpc_peer_server *peer_server);

/* Frees the per-peer server if nothing is left of it: called when a request completes or a call
 * ends. */
void rpc_peer_server_maybe_free(struct rpc_peer_server *peer_server);
void rpc_peer_server_free(struct rpc_peer_server *peer_server);

/* ---- acceptor.c ---- */

/* Deadline for a connection's first bytes, and then for its handshake. */
enum { RPC_HANDSHAKE_MS = 10 * 1000 };

/* Binds, listens and accepts on a Unix socket's path, which must be free. */
status_t rpc_acceptor_bind(struct rpc_server *server, const char *path, int mode) FSDPD_MUST_USE;

/* The same for a TCP address. `peer_server`: the one of TLS; NULL: plaintext. */
status_t rpc_acceptor_bind_tcp(struct rpc_server *server, const char *normal,
                               struct rpc_peer_server *peer_server, int *port) FSDPD_MUST_USE;

/* The lobby's callbacks; see rpc/lobby.h. */
bool rpc_acceptor_has_room(void *entrance, const struct rpc_origin *origin);
void rpc_acceptor_admit(void *entrance, int fd, const struct rpc_origin *origin);

/* Ends with rpc_server_maybe_free, once the lobby is gone. */
void rpc_acceptors_close(struct rpc_server *server);
void rpc_acceptors_free(struct rpc_server *server);

/* ---- health.c ---- */

struct rpc_health *rpc_health_new(const struct rpc_service *services, int count);
void rpc_health_free(struct rpc_health *health);
void rpc_health_set(struct rpc_health *health, const char *service, bool serving);
/* Nothing serves any more: notifies every watcher, even those with unread states. */
void rpc_health_end(struct rpc_health *health);
extern const struct rpc_handler rpc_health_handlers[];
extern const int rpc_health_handler_count;

/* ---- reflection.c, descriptors.c ---- */

/* `services` are the ones that list_services returns, if the descriptor set has them. */
status_t rpc_reflection_new(const char *const *services, int count, const uint8_t *descriptor_set,
                            size_t size, struct rpc_reflection **reflection) FSDPD_MUST_USE;
void rpc_reflection_free(struct rpc_reflection *reflection);
extern const struct rpc_handler rpc_reflection_handlers[];
extern const int rpc_reflection_handler_count;

/*
 * details.c: the google.rpc.Status of an error whose message is cut to `text` bytes: a slice that
 * the caller unrefs. False if it takes more than `room` bytes of metadata.
 */
bool rpc_details_pack(status_t status, size_t text, size_t room, grpc_slice *out);

#endif
