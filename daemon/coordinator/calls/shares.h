/*
 * Limits how much of a running job users other than its owner may use: their pulls and traces keep
 * its ranks busy for at most a tenth of the time, one at a time. Operators and the owner are not
 * limited, except in their samples.
 */
#ifndef FSDPD_COORDINATOR_SHARES_H
#define FSDPD_COORDINATOR_SHARES_H

#include "coordinator/jobs/jobs.h"

/* Whether the caller is neither the job's owner nor an operator. */
bool share_is_others(const struct rpc_call *call, const job_message *job);

/* RESOURCE_EXHAUSTED while other users have used up their share; the message states the time
 * left. */
status_t share_check(const struct job *job) FSDPD_MUST_USE;

/* Marks the share as in use, until share_give_back reports how long the ranks were busy with it. */
void share_take(struct job *job);
void share_give_back(struct job *job, int64_t busy_ms);

/* Samples and evaluations of any user take limits.sample_share of a job's time, as a mean: a short
 * burst is free.
 * The ranks were busy with one; how long the next one has to wait, 0: it may begin. */
void share_add_sample(struct job *job, int64_t busy_ms);
int64_t share_sample_left_ms(const struct job *job);

#endif
