/*
 * When the instructions of a few training steps began and ended on their lanes: memory allocated
 * before the first of these steps and filled in by the lanes of an executor. The caller owns it;
 * see executor_set_trace.
 */
#ifndef FSDPD_RUNTIME_TRACE_H
#define FSDPD_RUNTIME_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { TRACE_MAX_STEPS = 1000, TRACE_MAX_STAMPS = 4000000 };

/* Nanoseconds of CLOCK_MONOTONIC. A lane that waits for another has not begun. */
struct trace_stamp {
    int64_t begin_ns, end_ns;
};

/* One run of a program: a step, or with accumulation one batch of a step. */
struct trace_run {
    uint64_t step;   /* number of steps completed after it, or after the step that it belongs to */
    bool accumulate; /* a batch before the step's last */
    struct trace_stamp whole;
    struct trace_stamp *stamps; /* by instruction of its program */
};

struct trace {
    struct trace_run *runs;
    int run_count;  /* that have been recorded */
    int step_count; /* that there is room for */
    int done;       /* of these, complete */
    int instruction_count, accumulate_count;
    uint64_t first_step;
    struct trace_stamp *stamps;
    size_t used; /* stamps */
};

/* The extent of a trace: `step_count` steps of up to `batches` batches; `step` steps are already
 * done. */
struct trace_shape {
    int instruction_count; /* of the training program */
    int accumulate_count;  /* of the program of earlier batches */
    uint32_t batches;      /* 1 without accumulation */
    int step_count;
    uint64_t step;
};

/* RESOURCE_EXHAUSTED above TRACE_MAX_STAMPS; INVALID_ARGUMENT unless 1 to TRACE_MAX_STEPS. */
status_t trace_new(const struct trace_shape *shape, struct trace **trace) FSDPD_MUST_USE;
void trace_free(struct trace *trace); /* accepts NULL */

/* The run to fill in next. */
struct trace_run *trace_next_run(struct trace *trace, bool accumulate);
/* Marks it filled in. */
void trace_run_done(struct trace *trace, struct trace_stamp whole);

/* Runs of complete steps. */
int trace_complete_runs(const struct trace *trace);

static inline int trace_run_instructions(const struct trace *trace, const struct trace_run *run)
{
    return run->accumulate ? trace->accumulate_count : trace->instruction_count;
}

static inline bool trace_is_full(const struct trace *trace)
{
    return trace->done == trace->step_count;
}

#endif
