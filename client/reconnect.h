/*
 * Reading a stream of the daemon's on when the daemon goes away and comes back: watch, submit
 * --wait and logs --follow.
 */
#ifndef FSDPD_CLIENT_RECONNECT_H
#define FSDPD_CLIENT_RECONNECT_H

#include <stdbool.h>
#include <stdint.h>

#include "session.h"

/* Opens the stream where it was left, and reads it. NULL: all has been told. *fresh, which is false
 * at first: something came. */
typedef status_t reconnect_read(void *user, bool *fresh);

/*
 * Reads until all has been told. A daemon that goes away is waited for, with a note on stderr, for
 * `timeout_ms` (0: as long as it takes) from its last sign: something that came, or a stream that
 * held, however quiet. Other errors are returned, and that of a signal. Begin when the daemon has
 * answered: one that is not there from the start would be waited for, too.
 */
status_t reconnect_follow(struct session *session, int64_t timeout_ms, reconnect_read *read,
                          void *user) FSDPD_MUST_USE;

#endif
