/*
 * Changes of the number of workers by order without a checkpoint on the disk, of jobs with
 * redundancy in memory. The order to end names the ranks that leave. At their step boundary the
 * ranks keep the state in memory such that those that stay have all of it, and rank 0 asks whether
 * that may count: a key in the attempt's store says so, until this coordinator shuts down or is
 * replaced. Otherwise they take a checkpoint. The next attempt has all ranks that stay.
 */
#ifndef FSDPD_COORDINATOR_HANDOVER_H
#define FSDPD_COORDINATOR_HANDOVER_H

#include "coordinator/jobs/jobs.h"

/* Before the order with this number: sets its `memory` and `leaving`, which the caller frees; they
 * stay empty if the job can only use the disk. */
void handover_begin(struct job *job, Fsdpd__V1__CheckpointOrder *order);
/* fsdpd stops: what is in memory will not be there any more. */
void handover_withdraw(struct job *job);

/* The attempt is over, before its verdict: by that change, or by something else. */
void handover_end(struct job *job, bool by_change);

/* Ranks of the last attempt that must be in the next one together; 0: any may be. */
int handover_staying(const struct job *job);
/* Whether that rank left; what it has is in the memory of those that stay, too, taken together. */
bool handover_has_left(const struct job *job, int rank);

#endif
