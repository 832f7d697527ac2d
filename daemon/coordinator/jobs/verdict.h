/*
 * Decides what follows the end of a job's attempt, from what its ranks reported and from why it was
 * ordered to end, if it was.
 */
#ifndef FSDPD_COORDINATOR_VERDICT_H
#define FSDPD_COORDINATOR_VERDICT_H

#include "coordinator/jobs/jobs.h"

/* Ends the attempt or the job, on behalf of the user who requested that, if one did. */
void verdict_give(struct job *job);

/* Whether the ranks ended for a pause: a rank that reports this knows that the checkpoint is on
 * disk. */
bool verdict_has_paused(const struct job *job);

#endif
