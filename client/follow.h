/*
 * Following a job to its end: events from WatchJob go to stdout as text, as JSON or not at all, the
 * live bar to stderr. After a restart of the daemon it resumes where it stopped. Shared by watch
 * and submit --wait.
 */
#ifndef FSDPD_CLIENT_FOLLOW_H
#define FSDPD_CLIENT_FOLLOW_H

#include "client.h"

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

#endif
