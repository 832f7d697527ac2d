/*
 * Jobs that are SAVING: their ranks have completed every step, but the coordinator's or a worker's
 * host had no room (or no descriptor) for the final files. This is not a failure of the job. The
 * ranks keep their data and retry the write, with pauses of up to some seconds, until it is on the
 * disk or a user cancels the job. The job stays RUNNING, with the reason SAVING.
 */
#ifndef FSDPD_COORDINATOR_SAVING_H
#define FSDPD_COORDINATOR_SAVING_H

#include "coordinator/jobs/jobs.h"

/* The data that could not be written; bits of the attempt's `saving`. */
enum saving {
    SAVING_STATE_DICT = 1, /* the final state_dict; waiting pulls take rank 0's uploads */
    SAVING_CHECKPOINT = 2, /* the last step's checkpoint */
};

/* The write failed, and the ranks will retry it. `why` is for people. */
void saving_failed(struct job *job, enum saving what, const char *why);

/* The write succeeded. */
void saving_done(struct job *job, enum saving what);

/* FAILED_PRECONDITION if the job is SAVING: its ranks take no more steps, so they take no
 * orders. */
status_t saving_refuse(const struct job *job) FSDPD_MUST_USE;

#endif
