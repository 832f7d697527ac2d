/*
 * Calls to a daemon, one after the other: each function runs the session's own uv loop until its
 * call is over, so that a verb reads from top to bottom. One thread.
 *
 * Signals keep the process's defaults until session_catch_signals; from then on SIGINT, SIGTERM and
 * SIGHUP end the call in progress, and every later one, with CANCELLED, and session_signal returns
 * the signal's number.
 */
#ifndef FSDPD_CLIENT_SESSION_H
#define FSDPD_CLIENT_SESSION_H

#include "rpc/client.h"

struct session;

/* `address`: NULL for FSDPD_ADDRESS or the default. `timeout_ms`: for each unary call; 0: none. */
status_t session_new(const char *address, int64_t timeout_ms,
                     struct session **session) FSDPD_MUST_USE;
void session_free(struct session *session); /* accepts NULL */

/* The address that a session with `address` (may be NULL) connects to. Caller frees. */
char *session_address(const char *address);

const char *session_peer(const struct session *session);

void session_catch_signals(struct session *session);
int session_signal(const struct session *session); /* 0: none arrived */

/* Calls `resized` during calls and sleeps when the terminal's size changes. */
void session_on_resize(struct session *session, void (*resized)(void *user), void *user);

/*
 * Makes a unary call. The caller frees the response with protobuf_c_message_free_unpacked(response,
 * NULL). With `wait_for_ready` it waits for a daemon that is not reachable yet. UNAVAILABLE and
 * PERMISSION_DENIED explain the problem with the socket.
 */
status_t session_call(struct session *session, const struct rpc_method *method,
                      const ProtobufCMessage *request, bool wait_for_ready,
                      ProtobufCMessage **response) FSDPD_MUST_USE;

/*
 * Reads a server stream, message by message, until it ends, `take` returns an error (which ends the
 * stream and is returned), or no message arrives for `idle_ms` (0: no limit; DEADLINE_EXCEEDED).
 */
typedef status_t session_take(const ProtobufCMessage *message, void *user);
status_t session_stream(struct session *session, const struct rpc_method *method,
                        const ProtobufCMessage *request, int64_t idle_ms, session_take *take,
                        void *user) FSDPD_MUST_USE;

/* Returns early when a signal arrives. */
void session_sleep(struct session *session, int64_t milliseconds);

#endif
