/* Exit codes: what a script may rely on. */
#ifndef FSDPD_CLIENT_EXIT_H
#define FSDPD_CLIENT_EXIT_H

#include "base/status.h"
#include "fsdpd/v1/control.pb-c.h"

enum exit_code {
    EXIT_DONE = 0,
    EXIT_FAILED = 1, /* also: the daemon found the model, the policy or the data wrong */
    EXIT_USAGE = 2,  /* the command line or a key of the job file is wrong */
    EXIT_UNREACHABLE = 3,
    EXIT_NOT_PERMITTED = 4,
    EXIT_NOT_FOUND = 5,
    EXIT_CONFLICT = 6, /* an id in use, or a job in another state */
    EXIT_DEADLINE = 7,
    EXIT_JOB_FAILED = 8,    /* submit --wait, watch */
    EXIT_JOB_CANCELLED = 9, /* submit --wait, watch */
    EXIT_DOES_NOT_FIT = 10,
    EXIT_SIGNAL = 128, /* plus the signal's number */
};

/* For an error that the daemon, or the way to it, answered with; 0 for NULL. What is wrong on this
 * side is EXIT_USAGE. */
int exit_from_status(status_t status);

/* For a file of this machine that cannot be written: EXIT_USAGE if its name makes no sense. */
int exit_from_file(status_t status);

/* For a job that is over. */
int exit_from_state(Fsdpd__V1__JobState state);

#endif
