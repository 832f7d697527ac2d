/*
 * Removes the files that a worker leaves when it is killed while it writes or removes a checkpoint.
 * The job's next attempt sweeps them; a job that is over has no next attempt, so the coordinator
 * does it: when the job is over, again when ranks that had to be killed are gone, and at its start.
 * Checkpoints may be large: a libuv thread removes them. Problems are logged.
 */
#ifndef FSDPD_COORDINATOR_SWEEPS_H
#define FSDPD_COORDINATOR_SWEEPS_H

#include "coordinator/jobs/jobs.h"

struct sweep;

void sweeps_job_over(struct coordinator *c, const job_message *job);
void sweeps_tick(struct coordinator *c, int64_t now);

/* Sweeps all jobs that are over and keep their checkpoints in the state directory. */
void sweeps_recover(struct coordinator *c);

void sweeps_free(struct coordinator *c);

#endif
