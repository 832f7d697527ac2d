/* A trace's memory; see trace.h. */
#include "runtime/trace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

status_t trace_new(const struct trace_shape *shape, struct trace **result)
{
    int count = shape->step_count;
    if (count < 1 || count > TRACE_MAX_STEPS)
        return status_new(STATUS_INVALID_ARGUMENT, "steps: expected 1 to %d, found %d",
                          TRACE_MAX_STEPS, count);
    uint64_t batches = shape->batches > 1 ? shape->batches : 1;
    uint64_t each =
        (uint64_t)shape->instruction_count + (batches - 1) * (uint64_t)shape->accumulate_count;
    if (each * (uint64_t)count > TRACE_MAX_STAMPS)
        return status_new(STATUS_RESOURCE_EXHAUSTED,
                          "%d steps of %" PRIu64 " instructions each are more than a trace holds; "
                          "ask for at most %" PRIu64,
                          count, each, TRACE_MAX_STAMPS / each);
    struct trace *trace = mem_alloc(sizeof *trace);
    size_t stamps = (size_t)each * (size_t)count;
    trace->step_count = count;
    trace->instruction_count = shape->instruction_count;
    trace->accumulate_count = shape->accumulate_count;
    trace->first_step = shape->step + 1;
    trace->runs = mem_alloc_array((size_t)count * (size_t)batches, sizeof *trace->runs);
    trace->stamps = mem_alloc_array(stamps + 1, sizeof *trace->stamps);
    /* Touch the memory now, so that no step has to. */
    memset(trace->stamps, 0, (stamps + 1) * sizeof *trace->stamps);
    *result = trace;
    return NULL;
}

struct trace_run *trace_next_run(struct trace *trace, bool accumulate)
{
    struct trace_run *run = &trace->runs[trace->run_count];
    run->step = trace->first_step + (uint64_t)trace->done;
    run->accumulate = accumulate;
    run->stamps = trace->stamps + trace->used;
    return run;
}

void trace_run_done(struct trace *trace, struct trace_stamp whole)
{
    struct trace_run *run = &trace->runs[trace->run_count++];
    run->whole = whole;
    trace->used += (size_t)trace_run_instructions(trace, run);
    if (!run->accumulate) trace->done++;
}

int trace_complete_runs(const struct trace *trace)
{
    int count = trace->run_count;
    while (count > 0 && trace->runs[count - 1].accumulate) count--;
    return count;
}

void trace_free(struct trace *trace)
{
    if (trace == NULL) return;
    free(trace->stamps);
    free(trace->runs);
    free(trace);
}
