/*
 * The job whose weights a submission means (model.job): who may use them, and which they are.
 */
#ifndef FSDPD_COORDINATOR_SOURCES_H
#define FSDPD_COORDINATOR_SOURCES_H

#include "coordinator/jobs/jobs.h"

/*
 * Fills in model.checkpoint, so that every attempt gets the same weights, if the client has left it
 * out. NOT_FOUND: there is no such job; PERMISSION_DENIED: it is another user's;
 * FAILED_PRECONDITION: it has no such weights. Does nothing without model.job.
 */
status_t sources_settle(struct coordinator *c, const struct rpc_call *call,
                        job_spec *spec) FSDPD_MUST_USE;

#endif
