/* A trace's memory; see trace.h. */
#include "runtime/trace.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

status_t trace_new(int instruction_count, int step_count, uint64_t step, struct trace **result)
{
    if (step_count < 1 || step_count > TRACE_MAX_STEPS)
        return status_new(STATUS_INVALID_ARGUMENT, "steps: expected 1 to %d, found %d",
                          TRACE_MAX_STEPS, step_count);
    if ((int64_t)instruction_count * step_count > TRACE_MAX_STAMPS)
        return status_new(STATUS_RESOURCE_EXHAUSTED,
                          "%d steps of %d instructions each are more than a trace holds; ask for "
                          "at most %d",
                          step_count, instruction_count, TRACE_MAX_STAMPS / instruction_count);
    struct trace *trace = mem_alloc(sizeof *trace);
    size_t stamps = (size_t)instruction_count * (size_t)step_count;
    trace->step_count = step_count;
    trace->instruction_count = instruction_count;
    trace->steps = mem_alloc_array((size_t)step_count, sizeof *trace->steps);
    trace->stamps = mem_alloc_array(stamps + 1, sizeof *trace->stamps);
    /* Touched now, so that no step has to. */
    memset(trace->stamps, 0, (stamps + 1) * sizeof *trace->stamps);
    for (int i = 0; i < step_count; i++) {
        trace->steps[i].step = step + (uint64_t)i + 1;
        trace->steps[i].stamps = trace->stamps + (size_t)i * (size_t)instruction_count;
    }
    *result = trace;
    return STATUS_OKAY;
}

void trace_free(struct trace *trace)
{
    if (trace == NULL) return;
    free(trace->stamps);
    free(trace->steps);
    free(trace);
}
