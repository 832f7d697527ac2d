/*
 * What a worker that was killed while it wrote or removed a checkpoint leaves behind. The job's
 * next attempt sweeps it away; for a job that is over there is none, so the coordinator does: when
 * the job is over, again when ranks that had to be killed are gone, and at its start. Checkpoints
 * may be large: a thread of libuv's removes them. Problems are logged.
 */
#ifndef FSDPD_COORDINATOR_SWEEPS_H
#define FSDPD_COORDINATOR_SWEEPS_H

#include "coordinator/jobs.h"

struct sweep;

void sweeps_job_over(struct coordinator *c, const job_message *job);
void sweeps_tick(struct coordinator *c, int64_t now);

/* Of all jobs that are over, as far as they have their checkpoints in the state directory. */
void sweeps_recover(struct coordinator *c);

void sweeps_free(struct coordinator *c);

#endif
