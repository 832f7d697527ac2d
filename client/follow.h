/*
 * Following a job to its end: events from WatchJob as text, JSON or nothing on stdout, the live bar
 * on stderr, and going on where it stopped when the daemon restarts. Shared by watch and
 * submit --wait.
 */
#ifndef FSDPD_CLIENT_FOLLOW_H
#define FSDPD_CLIENT_FOLLOW_H

#include "client.h"

enum follow_output {
    FOLLOW_TEXT,  /* states, epochs and, without a terminal, progress */
    FOLLOW_JSON,  /* every event as one line */
    FOLLOW_QUIET, /* nothing: the caller prints a result of its own */
};

/*
 * Follows `job` (as submitted or got) until it is over, a signal detaches, or the daemon stays away
 * for longer than --timeout. Returns the exit code; errors have been told.
 */
int follow_job(struct client *client, struct session *session, const Fsdpd__V1__Job *job,
               enum follow_output output);

#endif
