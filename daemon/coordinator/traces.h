/*
 * TraceJob: an order to all ranks of a running job, whose reports are handed on to the client as
 * they come. One trace of a job at a time. How much a client that does not read can make wait here
 * is bounded by the size of a trace.
 */
#ifndef FSDPD_COORDINATOR_TRACES_H
#define FSDPD_COORDINATOR_TRACES_H

#include "coordinator/jobs.h"

enum {
    TRACE_STEPS_MAX = 1000,
    TRACE_INSTRUCTIONS_MAX = 4000000, /* of all steps and ranks together */
};

struct trace_call;

void traces_start(struct rpc_call *call, const Fsdpd__V1__TraceJobRequest *request,
                  struct coordinator *c);
void traces_closed(struct coordinator *c, struct rpc_call *call);

/* A rank's report. */
void traces_report(struct job *job, int rank, const Fsdpd__V1__TraceReport *report);

/* The job is over: what is not complete by now fails. */
void traces_job_over(struct job *job);

/* What the rank had to tell is lost. */
void traces_rank_away(struct job *job, int rank);

/* Tells clients that wait how far the job is. */
void traces_tick(struct coordinator *c);
void traces_close(struct coordinator *c);

#endif
