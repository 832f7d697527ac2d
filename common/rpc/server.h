/*
 * The server side of gRPC on a libuv loop. Every server also serves health (grpc.health.v1) and
 * reflection (v1alpha and v1).
 *
 * The library owns calls. A handler receives one in `on_start` and may use it until `on_closed`,
 * which is called exactly once for every call, last, also for an answered unary call. After
 * rpc_call_finish the handler may send nothing more, but the pointer stays valid until on_closed.
 *
 * Flow control. Incoming: on client streams each rpc_call_read delivers one message. Outgoing:
 * messages queue in the call with one send in flight; rpc_call_queued returns the number queued
 * (including the one in flight), and on_writable follows each accepted message. A handler that may
 * produce faster than the peer reads must check it and drop or stop.
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
     * A call has arrived. For UNARY and SERVER_STREAM `request` is its message (valid only during
     * this callback); for the other kinds it is NULL and the handler calls rpc_call_read.
     */
    void (*on_start)(struct rpc_call *call, const ProtobufCMessage *request, void *service);
    /* One message requested by rpc_call_read, valid during this callback; NULL: the client sends no
     * more. If a client cancels or vanishes, on_closed is called instead. Streaming kinds only. */
    void (*on_message)(struct rpc_call *call, const ProtobufCMessage *message, void *service);
    /* A message was accepted; rpc_call_queued has gone down. Not after rpc_call_finish. May be
     * NULL. */
    void (*on_writable)(struct rpc_call *call, void *service);
    /* The call has ended (answered, cancelled, or the client vanished); `call` is invalid
     * afterwards. May be NULL. */
    void (*on_closed)(struct rpc_call *call, bool cancelled, void *service);
    /* Roles that may call the method (enum rpc_role); 0: the service's. One of them is enough.
     * Other callers get PERMISSION_DENIED without reaching the handler. */
    unsigned roles;
    /* The largest message accepted, in bytes; 0: the service's. */
    size_t message_max;
};

/* A service: its full name (for health and reflection), its handlers and their user pointer. */
struct rpc_service {
    const char *name; /* "fsdpd.v1.Control" */
    const struct rpc_handler *handlers;
    int handler_count;
    void *user;
    unsigned roles;     /* roles that may call its methods, except methods with their own; not 0 */
    size_t message_max; /* the largest message that its methods accept; 0: RPC_MESSAGE_MAX */
};

/*
 * Makes a server for `services` (a shallow copy: names and handlers must outlive it). It does not
 * listen yet. `descriptor_set` is a serialised FileDescriptorSet with imports, for reflection.
 */
status_t rpc_server_new(struct rpc_runtime *runtime, const struct rpc_service *services,
                        int service_count, const uint8_t *descriptor_set,
                        size_t descriptor_set_size, struct rpc_server **server) FSDPD_MUST_USE;

/*
 * Adds a listening address; call it before rpc_server_start. A Unix socket gets mode `mode` (0 for
 * 0660) and replaces a stale socket file, so the caller must hold a lock file that proves it is
 * stale; it is removed when the server closes. TCP is plaintext here (its peers are
 * RPC_PEER_INSECURE and may do everything), without SO_REUSEPORT; port 0 picks a port and returns
 * it in *port (may be NULL). UNAVAILABLE names the address that could not be bound.
 */
status_t rpc_server_listen(struct rpc_server *server, const char *address, int mode,
                           int *port) FSDPD_MUST_USE;

/*
 * The server's certificate and the authorities trusted to sign its peers', which it takes. Call it
 * before rpc_server_listen_tls, and later to renew: peers that connect from then on see the new
 * certificate.
 */
void rpc_server_set_tls(struct rpc_server *server, struct rpc_pems *pems);

/* Like rpc_server_listen, for a TCP address with TLS: peers must present a certificate signed by a
 * trusted authority, which identifies them (rpc/peer.h). */
status_t rpc_server_listen_tls(struct rpc_server *server, const char *address,
                               int *port) FSDPD_MUST_USE;

/*
 * The same for a stream socket that is already bound and listening, e.g. from a service manager.
 * The server closes it, but leaves a Unix socket's file in place. On failure the caller keeps the
 * descriptor.
 */
status_t rpc_server_listen_fd(struct rpc_server *server, int fd) FSDPD_MUST_USE;

/* Applies to later connections. */
void rpc_server_set_operators(struct rpc_server *server, const struct rpc_operators *operators);

/*
 * Limits on clients. Connections beyond them are closed at once; calls beyond them end with
 * RESOURCE_EXHAUSTED. Root and the server's own user count as workers: they have no limit per user,
 * and `connections_reserved` extra connections.
 */
struct rpc_limits {
    int connections;             /* 4096: of all clients, after their first bytes */
    int connections_waiting;     /* 64: further ones, before their first bytes */
    int connections_reserved;    /* 64: further ones, for workers of this host */
    int connections_per_user;    /* 256: per Unix user */
    int connections_per_address; /* 1024: over TCP */
    int calls_per_user;          /* 1024 */
    int users;                   /* 1024: Unix users connected at a time */
};
void rpc_server_set_limits(struct rpc_server *server, const struct rpc_limits *limits);

status_t rpc_server_start(struct rpc_server *server) FSDPD_MUST_USE;

/* Health of one service, or of all and the overall "" with NULL. Serving from rpc_server_start on.
 */
void rpc_server_set_serving(struct rpc_server *server, const char *service, bool serving);

/*
 * Reports not serving in health, accepts no new calls and gives calls in progress `grace_ms`; then
 * they end with UNAVAILABLE, which handlers see as a cancellation. Unix socket files are removed.
 * Calls `closed` (may be NULL) when the server is freed.
 */
void rpc_server_close(struct rpc_server *server, int grace_ms, void (*closed)(void *user),
                      void *user);

/* Queues a message, of the method's type (rpc/rpc.h); one of another type ends the call with
 * INTERNAL. Packs it before returning. Ignored after the call has ended. */
void rpc_call_send(struct rpc_call *call, const ProtobufCMessage *message);
int rpc_call_queued(const struct rpc_call *call);

/* Requests one more message of a client stream. At most one request is outstanding; a second one,
 * or one after the end, has no effect. A message that does not decode ends the call with
 * INVALID_ARGUMENT. */
void rpc_call_read(struct rpc_call *call);

/* Each message requested with rpc_call_read from now on must arrive within `ms`; 0: no limit. */
void rpc_call_expect(struct rpc_call *call, int ms);

/* Ends calls whose message did not arrive in time with UNAVAILABLE, and logs them. Call it
 * periodically. */
void rpc_server_end_silent(struct rpc_server *server);

/* Ends the call after the queued messages: with OK if `status` is NULL, otherwise with its code and
 * message. Takes ownership of `status`. */
void rpc_call_finish(struct rpc_call *call, status_t status);

/* Sends `message` and finishes with OK. */
void rpc_call_reply(struct rpc_call *call, const ProtobufCMessage *message);

/*
 * A call that does not come over gRPC but, for instance, over HTTP: the method's handler serves it
 * as any other. It checks no roles: the one who begins the call has.
 */
struct rpc_receiver {
    /* What the handler sends, of the type that rpc_call_send takes; valid during the call. */
    void (*message)(void *user, const ProtobufCMessage *message);
    /* The call has ended: no message follows. It owns `status`; NULL: OK. At most once. */
    void (*finished)(void *user, status_t status);
    void *user;
};

/*
 * Begins one, of a method with one request. `receiver` is copied, and may be called before this
 * returns; what `peer` points to must outlive the call. INTERNAL, to the receiver, if the service
 * has no such method.
 */
struct rpc_call *rpc_call_begin(const struct rpc_service *service, const struct rpc_method *method,
                                const struct rpc_peer *peer, const ProtobufCMessage *request,
                                const struct rpc_receiver *receiver);

/* The receiver has no message left that it has not passed on: none is queued. */
void rpc_call_drained(struct rpc_call *call);

/* The receiver leaves, whether the call has ended or not: the call is closed and freed. Not from a
 * function of the receiver. */
void rpc_call_leave(struct rpc_call *call);

/* The handler's own pointer. */
void rpc_call_set_user(struct rpc_call *call, void *user);
void *rpc_call_user(const struct rpc_call *call);

/* The caller's identity; valid as long as the call. */
const struct rpc_peer *rpc_call_peer(const struct rpc_call *call);

#endif
