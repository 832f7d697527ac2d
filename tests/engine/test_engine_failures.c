/*
 * The executor's end of a step that cannot continue: an abort, a peer that never comes, one that
 * dies, a plan that frees too early; and a check that a step allocates nothing.
 */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "config.h"
#include "engine.h"
#include "kernels/kernels.h"
#include "tests/testing.h"

static const char small_net[] =
    "name: T\ninput: [20]\nclasses: 4\n"
    "modules: {a: 'Linear(20, 30)', b: 'Linear(30, 30)', c: 'Linear(30, 4)'}\n"
    "forward: ['x = relu(a(x))', 'x = relu(b(x))', 'output = c(x)']\n"
    "loss: cross_entropy(output, target)\n";

static struct engine_job small_job(void)
{
    return (struct engine_job){.model = small_net,
                               .policy = {.kind = WRAP_SIZE, .min_num_params = 500},
                               .prefetch = PREFETCH_PRE,
                               .optimizer = {.kind = OPTIMIZER_SGD, .lr = 0.01},
                               .global_batch = 12,
                               .steps = 6};
}

static void run(const struct engine_job *job, enum group_kind kind, int world, int64_t timeout_ms,
                struct group_result results[static GROUP_MAX])
{
    struct engine_run what = {job, engine_outcome_new(job)};
    group_run(kind, world, timeout_ms, engine_rank, &what, results);
    engine_outcome_free(what.outcome);
}

static void *abort_soon(void *executor)
{
    clock_sleep_ms(100);
    executor_abort(executor, "the job was cancelled");
    return NULL;
}

static pthread_t aborter;
static atomic_bool *over; /* shared: rank 0 has ended */

static void stay_away(struct executor *executor, struct comm *comm, int step)
{
    if (step != 2) return;
    if (comm_rank(comm) == 0) pthread_create(&aborter, NULL, abort_soon, executor);
    else group_wait_flag(over);
}

static void join_aborter(struct comm *comm)
{
    if (comm_rank(comm) != 0) return;
    pthread_join(aborter, NULL);
    if (over != NULL) atomic_store(over, true);
}

TESTS_BELOW(.timeout = 60);

LOOP_TEST(abort, 0, 2)
{
    struct engine_job job = small_job();
    struct group_result results[GROUP_MAX];
    job.before_step = stay_away;
    job.finished = join_aborter;
    over = group_shared(sizeof *over);
    run(&job, _i == 0 ? GROUP_LOCAL : GROUP_GLOO, 2, GROUP_NEVER_MS, results);
    ck_assert_msg(results[0].code == STATUS_ABORTED, "%s", results[0].message);
    ck_assert_msg(strstr(results[0].message, "the job was cancelled"), "%s", results[0].message);
    ck_assert_msg(results[1].code == STATUS_UNAVAILABLE, "%s", results[1].message);
    ck_assert_msg(strstr(results[1].message, "rank 0"), "%s", results[1].message);
}

static void abort_before(struct executor *executor, struct comm *comm, int step)
{
    (void)comm;
    if (step == 3) executor_abort(executor, "enough");
}

/* Works without peers, too; and the abort is permanent. */
TEST(abort_alone)
{
    struct engine_job job = small_job();
    struct group_result results[GROUP_MAX];
    job.before_step = abort_before;
    run(&job, GROUP_LOCAL, 1, 20000, results);
    ck_assert_msg(results[0].code == STATUS_ABORTED, "%s", results[0].message);
    ck_assert_msg(strstr(results[0].message, "enough"), "%s", results[0].message);
}

static void be_late(struct executor *executor, struct comm *comm, int step)
{
    (void)executor;
    if (step == 2 && comm_rank(comm) == 1) group_wait_flag(over);
}

static void say_over(struct comm *comm)
{
    if (comm_rank(comm) == 0) atomic_store(over, true);
}

LOOP_TEST(deadline, 0, 2)
{
    struct engine_job job = small_job();
    struct group_result results[GROUP_MAX];
    job.before_step = be_late;
    job.finished = say_over;
    over = group_shared(sizeof *over);
    run(&job, _i == 0 ? GROUP_LOCAL : GROUP_GLOO, 2, GROUP_SOON_MS, results);
    ck_assert_msg(results[0].code == STATUS_DEADLINE_EXCEEDED, "%s", results[0].message);
    ck_assert_msg(strstr(results[0].message, "training step, instruction "), "%s",
                  results[0].message);
    ck_assert_msg(strstr(results[0].message, "all_gather of unit "), "%s", results[0].message);
    ck_assert_msg(strstr(results[0].message, "rank 1"), "%s", results[0].message);
    ck_assert_int_ne(results[1].code, STATUS_OK);
}

static void die(struct executor *executor, struct comm *comm, int step)
{
    (void)executor;
    if (step == 3 && comm_rank(comm) == 1) raise(SIGKILL);
}

TEST(killed_peer)
{
    struct engine_job job = small_job();
    struct group_result results[GROUP_MAX];
    job.before_step = die;
    run(&job, GROUP_GLOO, 2, GROUP_NEVER_MS, results);
    ck_assert(results[1].killed);
    ck_assert_msg(results[0].code == STATUS_UNAVAILABLE, "%s", results[0].message);
    ck_assert_msg(strstr(results[0].message, "rank 1"), "%s", results[0].message);
    ck_assert_msg(strstr(results[0].message, "training step, instruction "), "%s",
                  results[0].message);
}

/* Makes a plan omit a unit's second gather, for the backward pass: poison must detect it. */
static void skip_last_gather(struct plan *plan)
{
    struct plan_program *train = &plan->train;
    for (int i = train->instruction_count - 1; i >= 0; i--) {
        struct plan_instruction *instruction = &train->instructions[i];
        if (instruction->kind != INSTRUCTION_ALL_GATHER) continue;
        ck_assert(instruction->backward);
        instruction->kind = INSTRUCTION_FREE;
        instruction->source = instruction->target;
        return;
    }
    ck_abort_msg("nothing is gathered");
}

LOOP_TEST(poison, 0, 2)
{
    struct engine_job job = small_job();
    struct group_result results[GROUP_MAX];
    struct engine_run what = {&job, engine_outcome_new(&job)};
    job.poison = true;
    job.policy.min_num_params = 1;
    job.prefetch = PREFETCH_NONE;
    job.tamper = _i == 0 ? NULL : skip_last_gather;
    group_run(GROUP_LOCAL, 2, 20000, engine_rank, &what, results);
    ck_assert_msg(results[0].code == STATUS_OK, "%s", results[0].message);
    bool poisoned = false;
    for (int64_t i = 0; i < what.outcome->parameter_elements; i++)
        poisoned = poisoned || isnan(what.outcome->parameters[i]);
    ck_assert_int_eq(poisoned, _i == 1);
    engine_outcome_free(what.outcome);
}

static atomic_bool counting;
static atomic_long kernels_run;
static atomic_int kernels_take_ms, slow_kernels;
static _Thread_local bool in_kernel;

/* The linker (--wrap) replaces kernel_run by this. */
status_t __real_kernel_run(struct kernel *kernel, const struct kernel_call *call);
status_t __wrap_kernel_run(struct kernel *kernel, const struct kernel_call *call);
status_t __wrap_kernel_run(struct kernel *kernel, const struct kernel_call *call)
{
    if (atomic_load(&kernels_take_ms) > 0) {
        atomic_fetch_add(&slow_kernels, 1);
        clock_sleep_ms(atomic_load(&kernels_take_ms));
    }
    in_kernel = true;
    status_t status = __real_kernel_run(kernel, call);
    in_kernel = false;
    if (atomic_load(&counting)) atomic_fetch_add(&kernels_run, 1);
    return status;
}

static void become_slow(struct executor *executor, struct comm *comm, int step)
{
    (void)executor;
    (void)comm;
    atomic_store(&kernels_take_ms, step == 2 ? 60 : 0);
}

/* A step that takes longer than the interval between checks for an abort. */
TEST(slow_step)
{
    struct engine_job job = small_job();
    struct group_result results[GROUP_MAX];
    job.before_step = become_slow;
    run(&job, GROUP_LOCAL, 1, 20000, results);
    ck_assert_msg(results[0].code == STATUS_OK, "%s", results[0].message);
    ck_assert_int_gt(atomic_load(&slow_kernels), 10);
    ck_assert_double_ge(results[0].seconds, 10 * 0.06);
}

static void abort_slow_step(struct executor *executor, struct comm *comm, int step)
{
    (void)comm;
    atomic_store(&kernels_take_ms, step == 2 ? 600 : 0);
    if (step == 2) pthread_create(&aborter, NULL, abort_soon, executor);
}

/* An abort does not wait for the rest of such a step, which has more than ten kernels. */
TEST(abort_of_slow_step)
{
    struct engine_job job = small_job();
    struct group_result results[GROUP_MAX];
    job.before_step = abort_slow_step;
    job.finished = join_aborter;
    run(&job, GROUP_LOCAL, 1, 20000, results);
    ck_assert_msg(results[0].code == STATUS_ABORTED, "%s", results[0].message);
    ck_assert_msg(strstr(results[0].message, "the job was cancelled"), "%s", results[0].message);
    ck_assert_int_le(atomic_load(&slow_kernels), 5);
}

#if !defined(FSDPD_SANITIZERS) && !defined(__SANITIZE_THREAD__)
/*
 * Every allocation of this process passes through here and is counted while `counting`, except
 * those inside a kernel: oneDNN keeps a few lists on the heap for as long as a primitive runs.
 */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
static atomic_long allocations;

static void count(void)
{
    if (atomic_load(&counting) && !in_kernel) atomic_fetch_add(&allocations, 1);
}

void *malloc(size_t size)
{
    count();
    return __libc_malloc(size);
}

void *calloc(size_t number, size_t size)
{
    count();
    return __libc_calloc(number, size);
}

void *realloc(void *memory, size_t size)
{
    count();
    return __libc_realloc(memory, size);
}

static bool tracing;
static _Thread_local struct trace *rank_trace;

static void count_in_the_middle(struct executor *executor, struct comm *comm, int step)
{
    (void)comm;
    if (tracing && step == 3) {
        status_t status =
            trace_new(&(struct trace_shape){.instruction_count =
                                                executor_plan(executor)->train.instruction_count,
                                            .step_count = 6,
                                            .step = 3},
                      &rank_trace);
        ck_assert_ptr_null(status);
        executor_set_trace(executor, rank_trace);
    }
    if (tracing && step == 9) {
        ck_assert(trace_is_full(rank_trace));
        trace_free(rank_trace);
    }
    /* Steps of two ranks overlap by less than one. */
    if (step == 4) atomic_store(&counting, true);
    if (step == 8) atomic_store(&counting, false);
}

/* Once the first steps have created what later ones reuse, a step allocates nothing, on no device
 * and no heap, even while it is traced. */
LOOP_TEST(steps_allocate_nothing, 0, 3)
{
    struct engine_job job = {.model = _i == 0 ? small_net : engine_mnist(),
                             .policy = {.kind = WRAP_SIZE, .min_num_params = 500},
                             .prefetch = PREFETCH_PRE,
                             .optimizer = {.kind = OPTIMIZER_ADADELTA, .lr = 1, .rho = 0.9},
                             .global_batch = 4,
                             .steps = 10,
                             .before_step = count_in_the_middle};
    tracing = _i == 2;
    engine_outcome_free(engine_train(&job, GROUP_LOCAL, 2));
    ck_assert_int_gt(atomic_load(&kernels_run), 50);
    ck_assert_int_eq(atomic_load(&allocations), 0);
}
#endif
