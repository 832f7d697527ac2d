/*
 * SetWrapPolicy: changes the FSDP units of a running job. The coordinator checks the new spec, a
 * worker plans it, and then an order goes to all ranks, which rank 0 answers. Only then does the
 * job's record change, and the client gets its answer. One change per job at a time. After a
 * refusal, the job continues unchanged.
 */
#ifndef FSDPD_COORDINATOR_REWRAP_H
#define FSDPD_COORDINATOR_REWRAP_H

#include "coordinator/jobs/jobs.h"

/* The handler of SetWrapPolicy; the service is the coordinator. */
void rewrap_start(struct rpc_call *call, const ProtobufCMessage *request, void *service);

/* Handles rank 0's report on the change. */
void rewrap_report(struct job *job, const Fsdpd__V1__WrapReport *report);

#endif
