/*
 * Answers trace orders: arms the executor at the step boundary that all ranks agree on, and sends
 * the times to the coordinator when the steps are done. Training thread only; messages are made
 * between steps.
 */
#ifndef FSDPD_WORKER_TRACE_H
#define FSDPD_WORKER_TRACE_H

#include "runtime/executor.h"
#include "worker/link.h"

struct tracer {
    struct link *link;
    const char *job;
    uint32_t attempt;
    int rank;
    uint64_t number; /* of the order; 0: none */
    struct trace *trace;
    Fsdpd__V1__TraceChunk *first; /* what the steps are made of; rank 0 only */
};

/* Traces the `steps` steps after step `step`, in the place of an earlier order that is not done. */
void tracer_begin(struct tracer *tracer, struct executor *executor, uint64_t number, uint32_t steps,
                  uint64_t step);

/* A step is done: sends everything if it was the last one asked for, or the last one of its
 * executor. */
void tracer_step(struct tracer *tracer, const struct executor *executor);

/* No step will follow under this executor: sends the times of the recorded steps. The executor has
 * been freed, or has no trace any more. */
void tracer_end(struct tracer *tracer);

#endif
