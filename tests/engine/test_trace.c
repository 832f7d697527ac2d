/*
 * Tracing on 1, 2 and 3 ranks: the trace fills in the steps with times that respect the plan's
 * order and the lanes' own, training has the same bits with and without it, and bounds are
 * enforced.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "tests/testing.h"

enum { STEPS = 5, FIRST = 1, TRACED = 3 };

static const int worlds[] = {1, 2, 3};

static struct engine_job job_of(void)
{
    return (struct engine_job){
        .model = engine_mnist(),
        .policy = {.kind = WRAP_SIZE, .min_num_params = 1000},
        .strategy = STRATEGY_FULL_SHARD,
        .prefetch = PREFETCH_PRE,
        .optimizer = {.kind = OPTIMIZER_ADADELTA, .lr = 1, .rho = 0.9, .eps = 1e-6},
        .global_batch = 6,
        .steps = STEPS,
        .dropout = true};
}

/* Ranks are threads, so each has its own trace. */
static _Thread_local struct trace *trace;
static atomic_int checked;

static void check_run(const struct plan_program *program, const struct trace_run *step)
{
    int64_t last[LANE_COUNT] = {step->whole.begin_ns, step->whole.begin_ns, step->whole.begin_ns};
    for (int i = 0; i < program->instruction_count; i++) {
        const struct plan_instruction *instruction = &program->instructions[i];
        const struct trace_stamp *stamp = &step->stamps[i];
        ck_assert_int_ge(stamp->begin_ns, last[instruction->lane]);
        ck_assert_int_ge(stamp->end_ns, stamp->begin_ns);
        last[instruction->lane] = stamp->end_ns;
        for (int w = 0; w < instruction->wait_count; w++)
            ck_assert_int_ge(stamp->begin_ns, step->stamps[instruction->waits[w]].end_ns);
    }
    for (int lane = 0; lane < LANE_COUNT; lane++) ck_assert_int_le(last[lane], step->whole.end_ns);
}

static void arm_and_check(struct executor *executor, struct comm *comm, int step)
{
    (void)comm;
    const struct plan *plan = executor_plan(executor);
    int batches = plan->options.micro_steps > 1 ? (int)plan->options.micro_steps : 1;
    if (step == FIRST) {
        const struct trace_shape shape = {.instruction_count = plan->train.instruction_count,
                                          .accumulate_count = plan->accumulate.instruction_count,
                                          .batches = plan->options.micro_steps,
                                          .step_count = TRACED,
                                          .step = FIRST};
        status_t status = trace_new(&shape, &trace);
        ck_assert_ptr_null(status);
        executor_set_trace(executor, trace);
    }
    if (step == FIRST + TRACED - 1) {
        ck_assert(!trace_is_full(trace));
        ck_assert_int_eq(trace->done, TRACED - 1);
    }
    if (step != FIRST + TRACED) return;
    ck_assert(trace_is_full(trace));
    ck_assert_int_eq(trace->run_count, TRACED * batches);
    ck_assert_int_eq(trace_complete_runs(trace), trace->run_count);
    for (int i = 0; i < trace->run_count; i++) {
        const struct trace_run *run = &trace->runs[i];
        ck_assert_uint_eq(run->step, (uint64_t)(FIRST + i / batches + 1));
        ck_assert(run->accumulate == (i % batches < batches - 1));
        check_run(run->accumulate ? &plan->accumulate : &plan->train, run);
        if (i > 0) ck_assert_int_ge(run->whole.begin_ns, run[-1].whole.end_ns);
    }
    trace_free(trace);
    trace = NULL;
    atomic_fetch_add(&checked, 1);
}

TESTS_BELOW(.timeout = 120);

LOOP_TEST(same_bits, 0, 6)
{
    struct engine_job job = job_of();
    int world = worlds[_i % 3];
    if (_i >= 3) job.micro_steps = 3;
    struct engine_outcome *plain = engine_train(&job, GROUP_LOCAL, world);
    job.before_step = arm_and_check;
    struct engine_outcome *traced = engine_train(&job, GROUP_LOCAL, world);
    ck_assert_int_eq(atomic_load(&checked), world);
    ck_assert_mem_eq(plain->parameters, traced->parameters,
                     (size_t)plain->parameter_elements * sizeof(float));
    ck_assert_mem_eq(plain->loss, traced->loss, sizeof plain->loss);
    ck_assert_mem_eq(plain->evaluated, traced->evaluated, sizeof plain->evaluated);
    engine_outcome_free(plain);
    engine_outcome_free(traced);
}

/* The memory that the plan reports alive at each instruction: never more than its peak, and the
 * peak once. */
static void check_live(struct plan *plan)
{
    const struct plan_program *programs[] = {&plan->train, &plan->evaluate};
    for (int k = 0; k < 2; k++) {
        uint64_t most = 0;
        for (int i = 0; i < programs[k]->instruction_count; i++) {
            ck_assert_uint_ge(programs[k]->live_bytes[i], plan->state_bytes / 2);
            if (programs[k]->live_bytes[i] > most) most = programs[k]->live_bytes[i];
        }
        ck_assert_uint_eq(most, programs[k]->live_peak);
        ck_assert_uint_eq(programs[k]->live_bytes[programs[k]->peak_instruction], most);
    }
    atomic_fetch_add(&checked, 1);
}

LOOP_TEST(live_bytes, 0, 3)
{
    struct engine_job job = job_of();
    job.only_plan = true;
    job.tamper = check_live;
    engine_outcome_free(engine_train(&job, GROUP_LOCAL, worlds[_i]));
    ck_assert_int_eq(atomic_load(&checked), worlds[_i]);
}

TEST(bounds)
{
    struct trace *none = NULL;
    static const struct {
        int instructions, accumulate, batches, steps;
        enum status_code code;
        const char *message;
    } cases[] = {
        {10, 0, 0, 0, STATUS_INVALID_ARGUMENT, "steps: expected 1 to 1000, found 0"},
        {10, 0, 0, 1001, STATUS_INVALID_ARGUMENT, "steps: expected 1 to 1000, found 1001"},
        {100000, 0, 1, 41, STATUS_RESOURCE_EXHAUSTED, "ask for at most 40"},
        {20000, 10000, 9, 41, STATUS_RESOURCE_EXHAUSTED, "ask for at most 40"},
        {10, 10, 1000000, 1, STATUS_RESOURCE_EXHAUSTED, "ask for at most 0"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const struct trace_shape shape = {.instruction_count = cases[i].instructions,
                                          .accumulate_count = cases[i].accumulate,
                                          .batches = (uint32_t)cases[i].batches,
                                          .step_count = cases[i].steps};
        status_t status = trace_new(&shape, &none);
        ck_assert_int_eq(status_code(status), cases[i].code);
        ck_assert_ptr_nonnull(strstr(status_message(status), cases[i].message));
        ck_assert_ptr_null(none);
        status_free(status);
    }
}
