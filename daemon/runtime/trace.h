/*
 * When the instructions of a few training steps began and ended on their lanes: memory that is
 * ready before the first of these steps, filled in by the lanes of an executor. The caller owns it;
 * see executor_set_trace.
 */
#ifndef FSDPD_RUNTIME_TRACE_H
#define FSDPD_RUNTIME_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { TRACE_MAX_STEPS = 1000, TRACE_MAX_STAMPS = 4000000 };

/* Nanoseconds of CLOCK_MONOTONIC. A lane that waits for another has not begun. */
struct trace_stamp {
    int64_t begin_ns, end_ns;
};

struct trace_step {
    uint64_t step; /* steps done after it */
    struct trace_stamp whole;
    struct trace_stamp *stamps; /* by instruction of the training program */
};

struct trace {
    struct trace_step *steps;
    int step_count; /* that there is room for */
    int done;       /* of these, complete */
    int instruction_count;
    struct trace_stamp *stamps;
};

/* RESOURCE_EXHAUSTED above TRACE_MAX_STAMPS; INVALID_ARGUMENT unless 1 to TRACE_MAX_STEPS. */
/* `step` training steps are done already. */
status_t trace_new(int instruction_count, int step_count, uint64_t step,
                   struct trace **trace) FSDPD_MUST_USE;
void trace_free(struct trace *trace); /* accepts NULL */

static inline bool trace_is_full(const struct trace *trace)
{
    return trace->done == trace->step_count;
}

#endif
