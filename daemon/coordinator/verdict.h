/*
 * What becomes of a job when its attempt has ended: judged by what its ranks said, and by why it
 * was to end, if anybody wanted that.
 */
#ifndef FSDPD_COORDINATOR_VERDICT_H
#define FSDPD_COORDINATOR_VERDICT_H

#include "coordinator/jobs.h"

/* Ends the attempt, or the job, in the name of the user whose wish it is, if it is one's. The job
 * may be freed. */
void verdict_give(struct job *job);

/* Whether the ranks' end was a pause: one that says so knows that the checkpoint is on the disk. */
bool verdict_has_paused(const struct job *job);

#endif
