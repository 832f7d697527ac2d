/*
 * SetWrapPolicy: other FSDP units for a running job. The new spec is checked, a worker plans it,
 * then it is an order to all ranks, which rank 0 answers; only then the job's record changes and
 * the call is answered. One change of a job at a time. Refused, the job goes on as it was.
 */
#ifndef FSDPD_COORDINATOR_REWRAP_H
#define FSDPD_COORDINATOR_REWRAP_H

#include "coordinator/jobs.h"

struct rewrap;

void rewrap_start(struct rpc_call *call, const Fsdpd__V1__SetWrapPolicyRequest *request,
                  struct coordinator *c);
void rewrap_closed(struct rpc_call *call);

/* Rank 0 says how it went. */
void rewrap_report(struct job *job, const Fsdpd__V1__WrapReport *report);

/* The job is over: a change that is under way has not come to anything. */
void rewrap_job_over(struct job *job);

#endif
