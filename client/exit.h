/* Exit codes, which scripts may rely on. */
#ifndef FSDPD_CLIENT_EXIT_H
#define FSDPD_CLIENT_EXIT_H

#include "base/status.h"
#include "fsdpd/v1/control.pb-c.h"

enum exit_code {
    EXIT_DONE = 0,
    EXIT_FAILED = 1,      /* also: the daemon rejected the model, the policy or the data */
    EXIT_USAGE = 2,       /* the command line or a key of the job file is invalid */
    EXIT_UNREACHABLE = 3, /* fsdpd did not answer, or is shutting down */
    EXIT_NOT_PERMITTED = 4,
    EXIT_NOT_FOUND = 5,
    EXIT_CONFLICT = 6, /* an id in use, or a job in another state */
    EXIT_DEADLINE = 7,
    EXIT_JOB_FAILED = 8,    /* submit --wait, watch */
    EXIT_JOB_CANCELLED = 9, /* submit --wait, watch */
    EXIT_DOES_NOT_FIT = 10,
    EXIT_SIGNAL = 128, /* plus the signal's number */
};

/* The exit code for an error from the daemon or from the connection to it; 0 for NULL. Errors on
 * the client's side are EXIT_USAGE. */
int exit_from_status(status_t status);

/* The exit code for a local file that cannot be written: EXIT_USAGE if its name is invalid. */
int exit_from_file(status_t status);

/* The exit code for a job that is over. */
int exit_from_state(Fsdpd__V1__JobState state);

#endif
