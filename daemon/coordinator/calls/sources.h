/*
 * The jobs whose weights a submission means (model.job, model.weights.job, model.adapter.job): who
 * may use them, and which they are. And the files that a job's own model has beside its weights.
 */
#ifndef FSDPD_COORDINATOR_SOURCES_H
#define FSDPD_COORDINATOR_SOURCES_H

#include "coordinator/jobs/jobs.h"

/*
 * Fills in what the daemon fills in of them, so that every attempt gets the same weights and they
 * can be compared with the model; a job that is not over is added to `after`. NOT_FOUND: there is
 * no such job; PERMISSION_DENIED: it is another user's; FAILED_PRECONDITION: it has no such
 * weights. Does nothing without such a job.
 */
status_t sources_settle(struct coordinator *c, const struct rpc_call *call,
                        job_spec *spec) FSDPD_MUST_USE;

/* The handler of GetModelFile; the service is the coordinator. */
void sources_get_file(struct rpc_call *call, const ProtobufCMessage *message, void *service);

/* WorkerLink.PullSource: for a worker that runs a job which names these weights. */
void sources_pull(struct rpc_call *call, const ProtobufCMessage *message, void *service);

#endif
