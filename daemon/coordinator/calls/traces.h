/*
 * TraceJob: an order to all ranks of a running job; their reports are forwarded to the client as
 * they arrive. One trace per job at a time. The size of a trace bounds what a client that does not
 * read can leave queued here.
 */
#ifndef FSDPD_COORDINATOR_TRACES_H
#define FSDPD_COORDINATOR_TRACES_H

#include "coordinator/jobs/jobs.h"

enum {
    TRACE_STEPS_MAX = 1000,
    TRACE_INSTRUCTIONS_MAX = 4000000, /* of all steps and ranks together */
};

/* The handler of TraceJob; the service is the coordinator. */
void traces_start(struct rpc_call *call, const ProtobufCMessage *request, void *service);

/* Handles a rank's report. */
void traces_report(struct job *job, int rank, const Fsdpd__V1__TraceReport *report);

/* The link to the rank broke: the rest of its trace is lost. */
void traces_rank_away(struct job *job, int rank);

#endif
