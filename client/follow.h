/*
 * Following a job to its end: events from WatchJob go to stdout as text, as JSON or not at all, the
 * live bar to stderr. After a restart of the daemon it resumes where it stopped. Shared by watch
 * and submit --wait.
 */
#ifndef FSDPD_CLIENT_FOLLOW_H
#define FSDPD_CLIENT_FOLLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "client.h"
#include "session.h"

enum follow_output {
    FOLLOW_TEXT,  /* states, epochs and, without a terminal, progress */
    FOLLOW_JSON,  /* every event as one line */
    FOLLOW_QUIET, /* nothing: the caller prints its own result */
    FOLLOW_OWN,   /* likewise, and fsdpd cancels the job if this process goes away before its end */
};

/*
 * Follows `job` (from SubmitJob or GetJob) until it is over, a signal detaches, or the daemon stays
 * away for longer than --timeout. Returns the exit code; errors have been printed.
 */
int follow_job(struct client *client, struct session *session, const Fsdpd__V1__Job *job,
               enum follow_output output);

/* ---- reconnect.c ---- */

/*
 * Resumes reading a stream after the daemon has gone away and come back; used by watch, submit
 * --wait and logs --follow.
 */

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
