/*
 * Resumes reading a stream after the daemon has gone away and come back; used by watch, submit
 * --wait and logs --follow.
 */
#ifndef FSDPD_CLIENT_RECONNECT_H
#define FSDPD_CLIENT_RECONNECT_H

#include <stdbool.h>
#include <stdint.h>

#include "session.h"

/* Opens the stream at the last position and reads it. Returns NULL once everything has been read.
 * Sets *fresh, which is false at first, when a message arrives. */
typedef status_t reconnect_read(void *user, bool *fresh);

/*
 * Reads until the end. When the daemon goes away, it prints a note on stderr and waits for
 * `timeout_ms` (0: no limit) from the last sign of the daemon: a message, or a stream that stayed
 * open, however quiet. Returns all other errors, including that of a signal. Call it only after the
 * daemon has answered once: otherwise it also waits for a daemon that was never there.
 */
status_t reconnect_follow(struct session *session, int64_t timeout_ms, reconnect_read *read,
                          void *user) FSDPD_MUST_USE;

#endif
