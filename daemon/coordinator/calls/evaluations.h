/*
 * EvaluateJob: an order to all ranks of a running job, which evaluate some data between two steps.
 * Rank 0's report is the answer. One evaluation per job at a time; if its client leaves, the ranks
 * are ordered to stop it.
 */
#ifndef FSDPD_COORDINATOR_EVALUATIONS_H
#define FSDPD_COORDINATOR_EVALUATIONS_H

#include "coordinator/calls/job_call.h"

/* The handler of EvaluateJob; the service is the coordinator. */
void evaluations_start(struct rpc_call *call, const ProtobufCMessage *request, void *service);

/* The handler of SampleJob: the same with sequences that the ranks continue. Tokens that rank 0
 * reports before its end go to the client at once. */
void evaluations_sample(struct rpc_call *call, const ProtobufCMessage *request, void *service);

/*
 * The same without streaming for a caller that is not a client of gRPC: *call waits for the answer, unless this is
 * refused, and belongs to the caller, who leaves it with job_call_leave.
 */
status_t evaluations_sample_for(struct coordinator *c, const struct rpc_peer *peer,
                                const Fsdpd__V1__SampleJobRequest *request,
                                const struct job_caller *caller,
                                struct job_call **call) FSDPD_MUST_USE;

/* The link to a rank has broken: calls that wait for the job end. */
void evaluations_rank_away(struct job *job, int rank);

/* Handles rank 0's report. */
void evaluations_report(struct job *job, const Fsdpd__V1__EvaluateReport *report);

#endif
