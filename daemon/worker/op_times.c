/* The times of a step's ops, now and then; see op_times.h. */
#include "worker/op_times.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "runtime/trace.h"

static const char *kind_of(const struct plan_program *program, int instruction)
{
    const struct plan_instruction *it = &program->instructions[instruction];
    return it->op >= 0 ? op_info_get(program->graph->ops[it->op].kind)->name
                       : plan_instruction_name(it->kind);
}

static void add(struct op_times *times, const char *kind, double seconds)
{
    int i = 0;
    while (i < times->count && strcmp(times->times[i].kind, kind) != 0) i++;
    if (i == OP_TIMES_MAX) return; /* there are not that many kinds */
    if (i == times->count) times->times[times->count++] = (struct op_time){.kind = kind};
    times->times[i].seconds += seconds;
}

static int by_time(const void *a, const void *b)
{
    const struct op_time *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds < y->seconds ? 1 : -1;
    return strcmp(x->kind, y->kind);
}

static void add_up(struct op_times *times, const struct plan *plan)
{
    const struct trace *trace = times->trace;
    times->count = 0;
    for (int r = 0; r < trace_complete_runs(trace); r++) {
        const struct trace_run *run = &trace->runs[r];
        const struct plan_program *program = run->accumulate ? &plan->accumulate : &plan->train;
        for (int i = 0; i < trace_run_instructions(trace, run); i++)
            add(times, kind_of(program, i),
                (double)(run->stamps[i].end_ns - run->stamps[i].begin_ns) * 1e-9);
        times->step = run->step;
    }
    qsort(times->times, (size_t)times->count, sizeof *times->times, by_time);
}

void op_times_end(struct op_times *times)
{
    trace_free(times->trace);
    times->trace = NULL;
}

static void begin(struct op_times *times, struct executor *executor, uint64_t step)
{
    const struct plan *plan = executor_plan(executor);
    const struct trace_shape shape = {.instruction_count = plan->train.instruction_count,
                                      .accumulate_count = plan->accumulate.instruction_count,
                                      .batches = plan->options.micro_steps,
                                      .step_count = 1,
                                      .step = step};
    status_t status = trace_new(&shape, &times->trace);
    if (status != NULL) {
        log_status(LOG_WARNING, "op_times_failed", status);
        times->interval = 0; /* the next step is no smaller; so on every rank */
        return;
    }
    executor_set_trace(executor, times->trace);
}

void op_times_step(struct op_times *times, struct executor *executor, uint64_t step)
{
    if (times->trace != NULL && !executor_is_tracing(executor, times->trace)) {
        if (times->adds_up && trace_is_full(times->trace)) add_up(times, executor_plan(executor));
        op_times_end(times);
    }
    if (times->interval == 0 || (step + 1) % times->interval != 0) return;
    if (!executor_has_trace(executor)) begin(times, executor, step);
}
