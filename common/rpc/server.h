/*
 * The server side of gRPC on a libuv loop. Health (grpc.health.v1) and reflection (v1alpha and v1)
 * are served by every server without being asked for.
 *
 * A call belongs to the library. A handler gets it in `on_start` and may use it until `on_closed`,
 * which comes exactly once for every call, last, also for a unary call that was answered. After
 * rpc_call_finish the handler may send nothing more, but the pointer stays valid until on_closed.
 *
 * Flow control. Incoming: for client streams one message is delivered per rpc_call_read. Outgoing:
 * messages queue in the call, one send in flight; rpc_call_queued says how many wait (including the
 * one in flight), and on_writable comes each time that one was accepted. Whoever produces faster
 * than a peer reads must look at it and drop or stop.
 */
#ifndef FSDPD_RPC_SERVER_H
#define FSDPD_RPC_SERVER_H

#include "rpc/peer.h"
#include "rpc/rpc.h"
#include "rpc/tls.h"

struct rpc_server;
struct rpc_call;

struct rpc_handler {
    const struct rpc_method *method;
    /*
     * A call has arrived. For UNARY and SERVER_STREAM `request` is its message (valid during this
     * callback only); for the streaming kinds it is NULL and the handler calls rpc_call_read.
     */
    void (*on_start)(struct rpc_call *call, const ProtobufCMessage *request, void *service);
    /* One message that rpc_call_read asked for, valid during this callback; NULL: the client will
     * send no more. A client that cancels or vanishes never looks like that: only on_closed comes.
     * Streaming kinds only. */
    void (*on_message)(struct rpc_call *call, const ProtobufCMessage *message, void *service);
    /* A message was accepted; rpc_call_queued has gone down. Not after rpc_call_finish. May be
     * NULL. */
    void (*on_writable)(struct rpc_call *call, void *service);
    /* The call is over (answered, cancelled, or its client vanished); `call` is invalid afterwards.
     * May be NULL. */
    void (*on_closed)(struct rpc_call *call, bool cancelled, void *service);
    /* Who may call it, enum rpc_role; 0: who may call its service. One of them is enough. Others
     * get PERMISSION_DENIED before the handler hears of them. */
    unsigned roles;
    /* The largest message that it takes, in bytes; 0: its service's. */
    size_t message_max;
};

/* A service: its full name (for health and reflection), handlers and the user pointer they get. */
struct rpc_service {
    const char *name; /* "fsdpd.v1.Control" */
    const struct rpc_handler *handlers;
    int handler_count;
    void *user;
    unsigned roles;     /* who may call its methods, but for those that say otherwise; not 0 */
    size_t message_max; /* the largest message that they take; 0: RPC_MESSAGE_MAX */
};

/*
 * Makes a server for `services` (copied shallowly; names and handlers must outlive it). Does not
 * listen yet. `descriptor_set` is a serialised FileDescriptorSet with imports, for reflection.
 */
status_t rpc_server_new(struct rpc_runtime *runtime, const struct rpc_service *services,
                        int service_count, const uint8_t *descriptor_set,
                        size_t descriptor_set_size, struct rpc_server **server) FSDPD_MUST_USE;

/*
 * Adds a listening address; before rpc_server_start. A Unix socket is made with mode `mode` (0 for
 * 0660), replacing a stale socket file; the caller holds a lock file that makes sure it is stale.
 * It is removed in the end. TCP is plaintext here (its peers are RPC_PEER_INSECURE and may do
 * everything), without SO_REUSEPORT; port 0 picks one, told in *port (may be NULL).
 * UNAVAILABLE names the address that could not be bound.
 */
status_t rpc_server_listen(struct rpc_server *server, const char *address, int mode,
                           int *port) FSDPD_MUST_USE;

/*
 * The server's certificate and the authorities that vouch for its peers. Read and checked here;
 * what is wrong changes nothing. Before rpc_server_listen_tls, and at any time
 * later: it counts for peers that connect from then on.
 */
status_t rpc_server_set_tls(struct rpc_server *server,
                            const struct rpc_tls_files *files) FSDPD_MUST_USE;

/* As rpc_server_listen, for a TCP address: peers must show a certificate of an authority that
 * vouches for them, and are who it says (rpc/peer.h). */
status_t rpc_server_listen_tls(struct rpc_server *server, const char *address,
                               int *port) FSDPD_MUST_USE;

/*
 * The same for a stream socket that is bound and listens already, of a service manager for
 * instance. The server closes it in the end, but leaves the file of a Unix socket where it is. On
 * failure the descriptor stays the caller's.
 */
status_t rpc_server_listen_fd(struct rpc_server *server, int fd) FSDPD_MUST_USE;

/* The Unix group whose members have the role operator; `known` is false if there is none. Counts
 * for connections from then on. */
struct rpc_operators {
    gid_t group;
    bool known;
};
void rpc_server_set_operators(struct rpc_server *server, const struct rpc_operators *operators);

/*
 * What one peer may hold at a time; workers are not counted. Further connections are closed at
 * once, further calls end with RESOURCE_EXHAUSTED. Connections are counted of Unix peers alone.
 */
struct rpc_limits {
    int connections_per_user; /* 256 */
    int calls_per_user;       /* 1024 */
    int users;                /* 1024: Unix users that are connected at a time */
};
void rpc_server_set_limits(struct rpc_server *server, const struct rpc_limits *limits);

status_t rpc_server_start(struct rpc_server *server) FSDPD_MUST_USE;

/* Health of one service, or of all and the overall "" with NULL. Serving from rpc_server_start on.
 */
void rpc_server_set_serving(struct rpc_server *server, const char *service, bool serving);

/*
 * Health goes to not serving, no new calls are taken, calls in progress get `grace_ms`; then they
 * end with UNAVAILABLE, which counts as cancelled for their handlers. Unix socket files are
 * removed. `closed` (may be NULL) comes when all is over and the server is gone.
 */
void rpc_server_close(struct rpc_server *server, int grace_ms, void (*closed)(void *user),
                      void *user);

/* Queues a message; packed before this returns. Ignored after the call has ended. */
void rpc_call_send(struct rpc_call *call, const ProtobufCMessage *message);
int rpc_call_queued(const struct rpc_call *call);

/* Asks for one more message of a client stream. At most one request is outstanding; a second one,
 * or one after the end, does nothing. A message that does not decode ends the call with
 * INVALID_ARGUMENT. */
void rpc_call_read(struct rpc_call *call);

/* Ends the call after what is queued: with OK if `status` is NULL, else with its code and message.
 * Takes ownership of `status`. */
void rpc_call_finish(struct rpc_call *call, status_t status);

/* Sends `message` and finishes with OK. */
void rpc_call_reply(struct rpc_call *call, const ProtobufCMessage *message);

/* One pointer of the handler's own. */
void rpc_call_set_user(struct rpc_call *call, void *user);
void *rpc_call_user(const struct rpc_call *call);

/* Who calls; valid as long as the call. */
const struct rpc_peer *rpc_call_peer(const struct rpc_call *call);

#endif
