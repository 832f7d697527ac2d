/* Verbs that change jobs: one, several by name, or all with a label. */
#ifndef FSDPD_CLIENT_JOBS_H
#define FSDPD_CLIENT_JOBS_H

#include "client.h"

struct jobs_call {
    struct session *session;
    const struct client *client;
    const struct rpc_method *method;
    const char *id;
    ProtobufCMessage *response;
    bool usage; /* the error is in the command line */
};

/* Makes the call for one job, and sets its response. */
typedef status_t jobs_caller(struct jobs_call *call);

/*
 * Calls `method` for each job that the arguments name, or that --label selects among those in
 * `states` ("active", "queued,paused"), and prints each result: in JSON an array, unless the
 * arguments are one job. After a failure it continues with the next job. `caller` is NULL if the
 * request is only the job's id. `unless_over` (may be NULL) is the note for a single job that is
 * not over. Returns the exit code of the first failure.
 */
int jobs_change(struct client *client, const char *states, const struct rpc_method *method,
                jobs_caller *caller, const char *unless_over);

#endif
