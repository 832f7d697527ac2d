/*
 * The client side of gRPC on a libuv loop: unary calls and streams over one channel. Channels
 * connect automatically and reconnect after failures. A call to an unreachable server ends with
 * UNAVAILABLE: at once, or with `wait_for_ready` at its deadline. HTTP proxies from the environment
 * are never used.
 */
#ifndef FSDPD_RPC_CLIENT_H
#define FSDPD_RPC_CLIENT_H

#include "rpc/rpc.h"
#include "rpc/tls.h"

struct rpc_channel;
struct rpc_stream;

/* Security of TCP addresses; a Unix socket needs none. */
struct rpc_channel_security {
    struct rpc_tls_files tls;
    bool insecure_tcp; /* allow TCP without TLS if the files are not given */
};

/*
 * `security` is copied; it may be NULL for a Unix socket. PERMISSION_DENIED: a TCP address without
 * TLS and without `insecure`. TLS files are checked here. If they change, they are read again
 * before a call that starts while no other call is open, so a certificate can be renewed while a
 * worker runs.
 */
status_t rpc_channel_new(struct rpc_runtime *runtime, const char *address,
                         const struct rpc_channel_security *security,
                         struct rpc_channel **channel) FSDPD_MUST_USE;

/* Cancels every open call (their callbacks run first, with CANCELLED), then frees the channel and
 * calls `closed` (may be NULL). */
void rpc_channel_close(struct rpc_channel *channel, void (*closed)(void *user), void *user);

/*
 * One request, one response. `done` is called exactly once, never before this function returns:
 * with status NULL and the response (valid during the callback), or with an error that the callback
 * owns. deadline_ms <= 0 means no deadline.
 */
typedef void rpc_unary_done(status_t status, const ProtobufCMessage *response, void *user);
void rpc_channel_call(struct rpc_channel *channel, const struct rpc_method *method,
                      const ProtobufCMessage *request, int64_t deadline_ms, bool wait_for_ready,
                      rpc_unary_done *done, void *user);

/*
 * A stream of any kind but unary. The library owns the stream; the pointer is valid until on_closed
 * returns. No callback runs before rpc_stream_open returns.
 */
struct rpc_stream_callbacks {
    /* A message requested by rpc_stream_read; valid during the callback. Only on_closed signals the
     * end of the stream. */
    void (*on_message)(struct rpc_stream *stream, const ProtobufCMessage *message, void *user);
    /* A message was accepted; rpc_stream_queued has gone down. Not after rpc_stream_finish_sending.
     * May be NULL. */
    void (*on_writable)(struct rpc_stream *stream, void *user);
    /* The call has ended: `status` is NULL for OK, otherwise an error that the callback owns.
     * Called exactly once, last. A server's status follows its messages: it is delivered after all
     * of them have been read. */
    void (*on_closed)(struct rpc_stream *stream, status_t status, void *user);
};

/* For SERVER_STREAM, `request` is sent and the sending side closed; otherwise it may be NULL. */
struct rpc_stream *rpc_stream_open(struct rpc_channel *channel, const struct rpc_method *method,
                                   const ProtobufCMessage *request, int64_t deadline_ms,
                                   bool wait_for_ready,
                                   const struct rpc_stream_callbacks *callbacks, void *user);

void rpc_stream_send(struct rpc_stream *stream, const ProtobufCMessage *message);
int rpc_stream_queued(const struct rpc_stream *stream);

/* No more messages from this side after the queued ones. For CLIENT_STREAM the response then
 * arrives in on_message if rpc_stream_read requested it. */
void rpc_stream_finish_sending(struct rpc_stream *stream);

/* Requests one more message. At most one request is outstanding; a second one has no effect. */
void rpc_stream_read(struct rpc_stream *stream);

/* on_closed follows with CANCELLED. */
void rpc_stream_cancel(struct rpc_stream *stream);

#endif
