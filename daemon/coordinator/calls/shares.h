/*
 * Limits how much of a running job users other than its owner may use: their pulls and traces keep
 * its ranks busy for at most a tenth of the time, one at a time. Operators and the owner are not
 * limited.
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

#endif
