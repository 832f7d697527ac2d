/*
 * Steps captured as CUDA graphs, under a stub of the runtime (tests/emulation): replayed, they have
 * the bits of steps that are enqueued call by call, though rates, steps, dropout and batches
 * change; a step that cannot be captured is captured on no rank, with a note; a failure in a
 * replay, such as a lost peer, ends the step. A replay is enqueued behind the running one; whatever
 * else happens between two steps waits for that one.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "../emulation/cuda_stub.h"
#include "base/clock.h"
#include "base/mem.h"
#include "cuda_fixture.h"
#include "tests/testing.h"

enum { STEPS = 5, REPLAYS = STEPS - 2 }; /* the first warms up, the second is captured */

static struct engine_job job_of(int model)
{
    return cuda_fixture_run(model, STEPS);
}

/* ---- the same bits ---- */

static void expect_same(const struct engine_outcome *a, const struct engine_outcome *b)
{
    ck_assert_int_eq(a->parameter_elements, b->parameter_elements);
    for (int64_t i = 0; i < a->parameter_elements; i++)
        ck_assert_msg(memcmp(&a->parameters[i], &b->parameters[i], sizeof(float)) == 0,
                      "parameter %lld is %.9g, not %.9g", (long long)i, (double)a->parameters[i],
                      (double)b->parameters[i]);
    ck_assert_mem_eq(a->loss, b->loss, sizeof a->loss);
    ck_assert_mem_eq(a->norm, b->norm, sizeof a->norm);
    ck_assert_mem_eq(a->evaluated, b->evaluated, sizeof a->evaluated);
    ck_assert_str_eq(a->collectives, b->collectives);
    ck_assert_mem_eq(a->sent_bytes, b->sent_bytes, sizeof a->sent_bytes);
}

static struct engine_outcome *run_plainly(const struct engine_job *job, int world)
{
    cuda_fixture_begin(11);
    setenv("FSDPD_CUDA_GRAPHS", "off", 1);
    struct engine_outcome *outcome = engine_train(job, GROUP_LOCAL, world);
    ck_assert_int_eq(cuda_stub_count("cudaStreamBeginCapture"), 0);
    return outcome;
}

/* The second seed holds back what follows a step's statistics, without the poison, which waits for
 * every step. */
static void compare(struct engine_job *job, int world)
{
    int batches = job->micro_steps > 1 ? job->micro_steps : 1;
    int programs = batches > 1 ? 2 : 1;
    /* of every batch except a step's last: that program is ready sooner */
    int replays = REPLAYS + (batches > 1 ? (batches - 1) * STEPS - 2 : 0);
    struct engine_outcome *expected = run_plainly(job, world);
    for (uint64_t seed = 21; seed <= 22; seed++) {
        cuda_fixture_begin(seed);
        if (seed == 22) cuda_stub_hold(STUB_HOLD_SHORTLY);
        if (seed == 22) job->poison = false;
        struct engine_outcome *found = engine_train(job, GROUP_LOCAL, world);
        ck_assert_int_eq(cuda_stub_count("cudaStreamBeginCapture"), world * programs);
        ck_assert_int_eq(cuda_stub_count("cudaGraphLaunch"), world * replays);
        ck_assert_int_eq(cuda_stub_count("upload"), 0);
        ck_assert_int_eq(cuda_stub_count("cudaGraphExecDestroy"), world * programs);
        expect_same(found, expected);
        ck_assert_int_gt(found->last.compute_ns, 0);
        if (world > 1) ck_assert_int_gt(found->last.comm_ns, 0);
        engine_outcome_free(found);
    }
    engine_outcome_free(expected);
}

/* Recorded products that ran beside a lane. */
static int count_beside(void)
{
    char *text = cuda_stub_text();
    int count = 0;
    for (const char *at = text; (at = strstr(at, "matmul side ")) != NULL; at++) count++;
    free(text);
    return count;
}

TESTS_BELOW(.timeout = 240, .set_up = cuda_fixture_set_up, .tear_down = cuda_fixture_tear_down);

LOOP_TEST(models, 0, 2 * TINY_COUNT)
{
    struct engine_job job = job_of(_i % TINY_COUNT);
    compare(&job, 1 + _i / TINY_COUNT);
}

LOOP_TEST(bf16, 0, 2)
{
    struct engine_job job = job_of(TINY_GPT2);
    job.param_dtype = DTYPE_BF16;
    job.reduce_dtype = _i ? DTYPE_BF16 : DTYPE_F32;
    compare(&job, 2 + _i);
}

/* The gradients of weights beside those of data: the same bits in any order, on memory that the plan
 * keeps apart, in graphs and enqueued call by call. */
LOOP_TEST(branches, 0, 8)
{
    struct engine_job job = job_of(_i % 4 == 3 ? TINY_GPT2 : _i % 4);
    if (_i % 4 == 3) job.param_dtype = DTYPE_BF16;
    /* units whose gradients are those of one product, so that something follows it at once */
    static const char *const linear[] = {"Linear"};
    if (_i % 4 == TINY_LLAMA) job.policy.types.items = linear;
    const int world = 1 + _i / 4;
    struct engine_outcome *expected = run_plainly(&job, world);
    ck_assert_int_eq(count_beside(), 0);
    for (uint64_t seed = 31; seed <= 34; seed++) {
        cuda_fixture_begin(seed);
        setenv("FSDPD_CUDA_BRANCHES", "on", 1);
        if (seed == 34) setenv("FSDPD_CUDA_GRAPHS", "off", 1);
        struct engine_outcome *found = engine_train(&job, GROUP_LOCAL, world);
        ck_assert_int_gt(count_beside(), 0);
        expect_same(found, expected);
        engine_outcome_free(found);
    }
    engine_outcome_free(expected);
}

/* Attention by cuDNN, with our own kernels for dropout and a mask of keys around it. */
LOOP_TEST(bf16_attention, 0, 2)
{
    struct engine_job job = job_of(TINY_GPT2);
    job.model = cuda_fixture_attentive(true);
    job.policy = (struct wrap_policy){.kind = WRAP_AUTO};
    job.param_dtype = DTYPE_BF16;
    compare(&job, 1 + _i);
    ck_assert_int_gt(cuda_stub_count("cudnnBackendExecute"), 0);
}

/* Two communicators' collectives in a graph. */
TEST(hybrid)
{
    struct engine_job job = job_of(TINY_LLAMA);
    job.strategy = STRATEGY_HYBRID_SHARD;
    job.shard_size = 2;
    job.global_batch = 4;
    compare(&job, 4);
}

/* Another program for the batches before a step's last, with and without collectives. */
LOOP_TEST(accumulation, 0, 3)
{
    struct engine_job job = job_of(TINY_GPT2);
    job.micro_steps = 3;
    job.no_sync = _i % 2;
    compare(&job, 1 + _i);
}

/* Arguments of the other optimizers; a momentum's first step differs from later ones, and draws do
 * in every step. */
LOOP_TEST(optimizers, 0, 3)
{
    static const struct optimizer_step optimizers[] = {
        {.kind = OPTIMIZER_SGD, .lr = 0.05, .momentum = 0.9, .weight_decay = 0.01},
        {.kind = OPTIMIZER_ADADELTA, .lr = 1, .rho = 0.9, .eps = 1e-6},
        {.kind = OPTIMIZER_ADAM,
         .state = STATE_BF16,
         .lr = 0.01,
         .beta1 = 0.9,
         .beta2 = 0.99,
         .eps = 1e-3},
    };
    struct engine_job job = job_of(TINY_BERT);
    job.optimizer = optimizers[_i];
    job.max_norm = _i ? 0.01 : 0; /* clips every step, or none */
    if (_i == 0) job.norm = NORM_NONE;
    if (_i == 2) job.rounded = true, job.param_dtype = DTYPE_BF16;
    compare(&job, 1 + _i);
}

/* The rate and the gradient's scale of Muon's matrices, and their exchange; Adafactor's weights and
 * rates. */
LOOP_TEST(muon_and_adafactor, 0, 4)
{
    struct engine_job job = _i < 2 ? cuda_fixture_muon() : cuda_fixture_adafactor();
    _i %= 2;
    job.device = "cuda:0";
    job.join = cuda_fixture_join;
    job.steps = STEPS;
    job.lr_decay = 0.7;
    if (_i == 0) job.norm = NORM_NONE, job.max_norm = 0;
    compare(&job, 1 + 2 * _i);
}

TEST(mnist)
{
    struct engine_job job = job_of(TINY_GPT2);
    job.model = engine_mnist();
    job.policy = (struct wrap_policy){.kind = WRAP_SIZE, .min_num_params = 20000};
    job.global_batch = 2;
    job.steps = 3;
    job.poison = false;
    struct engine_outcome *expected = run_plainly(&job, 1);
    cuda_fixture_begin(23);
    struct engine_outcome *found = engine_train(&job, GROUP_LOCAL, 1);
    ck_assert_int_eq(cuda_stub_count("cudaGraphLaunch"), 1);
    expect_same(found, expected);
    engine_outcome_free(found);
    engine_outcome_free(expected);
}

/* ---- one replay behind another ---- */

static _Thread_local struct device *own_device;

static status_t join_and_keep(struct device *device, int rank, int world, struct comm **comm)
{
    own_device = device;
    return cuda_fixture_join(device, rank, world, comm);
}

/* What a rank reads between its steps; the sum of a shard's bits. */
static uint64_t read_sums[GROUP_MAX][STEPS];

static void read_state(struct executor *executor, struct comm *comm, int step)
{
    size_t count = executor_shard_elements(executor, 0);
    uint32_t *bits = mem_alloc_array(count, sizeof *bits);
    uint64_t *sum = &read_sums[comm_rank(comm)][step];
    ck_assert_ptr_null(engine_read_shard(executor, 0, (float *)(void *)bits));
    *sum = 0;
    for (size_t i = 0; i < count; i++) *sum = *sum * 31 + bits[i];
    free(bits);
}

enum { AHEADS = 8 };

/* Without a norm most of a step follows its statistics, with one the optimizers do. */
static struct engine_job ahead_job(int i)
{
    struct engine_job job = job_of(i & 1 ? TINY_GPT2 : TINY_LLAMA);
    if (i & 1) job.norm = NORM_NONE;
    job.micro_steps = i & 4 ? 3 : 1;
    job.poison = false;
    return job;
}

/* It is enqueued while the other one runs; never with the switch. */
LOOP_TEST(ahead, 0, AHEADS)
{
    struct engine_job job = ahead_job(_i);
    const int world = _i & 2 ? 2 : 1;
    /* Two runs of each program are not replayed, and no replay runs when the one after them is
     * enqueued. */
    const int overlaps = job.micro_steps == 1 ? STEPS - 3 : job.micro_steps * STEPS - 6;
    struct engine_outcome *expected = run_plainly(&job, world);
    for (int on = 0; on < 2; on++) {
        cuda_fixture_begin(81);
        cuda_stub_hold(STUB_HOLD_SHORTLY);
        if (!on) setenv("FSDPD_CUDA_AHEAD", "off", 1);
        struct engine_outcome *found = engine_train(&job, GROUP_LOCAL, world);
        ck_assert_int_eq(cuda_stub_count("overlap"), on ? world * overlaps : 0);
        expect_same(found, expected);
        ck_assert_int_gt(found->last.compute_ns, 0);
        engine_outcome_free(found);
    }
    engine_outcome_free(expected);
}

/* A step has ended when its state is read. */
LOOP_TEST(state_between_steps, 0, AHEADS)
{
    struct engine_job job = ahead_job(_i);
    const int world = _i & 2 ? 2 : 1;
    uint64_t expected_sums[GROUP_MAX][STEPS];
    job.before_step = read_state;
    struct engine_outcome *expected = run_plainly(&job, world);
    memcpy(expected_sums, read_sums, sizeof read_sums);
    cuda_fixture_begin(82);
    cuda_stub_hold(STUB_HOLD_SHORTLY);
    struct engine_outcome *found = engine_train(&job, GROUP_LOCAL, world);
    expect_same(found, expected);
    ck_assert_mem_eq(read_sums, expected_sums, sizeof read_sums);
    engine_outcome_free(found);
    engine_outcome_free(expected);
}

static void meet(struct executor *executor, struct comm *comm, int step)
{
    static const char *const refusal = "while a replay may use the group";
    struct lane_queue *lane = NULL;
    if (step < STEPS - 2) return;
    const bool settles = step == STEPS - 2;
    if (settles) ck_assert_ptr_null(executor_settle(executor));
    ck_assert_ptr_null(lane_open(own_device, LANE_COMM, &lane));
    status_t status = comm_barrier(comm, lane);
    if (status == NULL) status = lane_wait(lane, 60000);
    ck_assert_int_eq(status_code(status), settles ? STATUS_OK : STATUS_INTERNAL);
    if (!settles) ck_assert_ptr_nonnull(strstr(status_message(status), refusal));
    status_free(status);
    lane_close(lane);
}

/* A collective of the group on another lane, in time and too early: that ends the group. */
TEST(collective_too_early)
{
    struct group_result results[GROUP_MAX];
    struct engine_job job = ahead_job(1);
    job.join = join_and_keep;
    job.before_step = meet;
    cuda_fixture_begin(83);
    cuda_stub_hold(STUB_HOLD_SHORTLY);
    struct engine_run what = {&job, engine_outcome_new(&job)};
    group_run(GROUP_LOCAL, 2, 60000, engine_rank, &what, results);
    for (int r = 0; r < 2; r++) ck_assert_int_eq(results[r].code, STATUS_INTERNAL);
    engine_outcome_free(what.outcome);
}

enum { TAIL_MS = 30, REPLAYED = 4 };

static void CUDART_CB take_time(void *argument)
{
    (void)argument;
    clock_sleep_ms(TAIL_MS);
}

struct alone {
    struct device *device;
    struct lane_queue *lane;
    void *memory;
    float arrived;
};

/* A delivery, and then work that takes its time. */
static status_t walk_alone(struct alone *alone, float value)
{
    struct cuda_lane *lane = cuda_lane(alone->lane);
    TRY(lane_copy(alone->lane, alone->memory, &value, sizeof value));
    TRY(lane_deliver(alone->lane, &alone->arrived, alone->memory, sizeof alone->arrived));
    if (!cuda_does_enqueue(lane)) return NULL;
    TRY_CUDA(cudaLaunchHostFunc(lane->stream, take_time, NULL));
    return NULL;
}

static status_t pass_alone(struct recording *recording, enum recording_pass pass,
                           struct alone *alone, float value)
{
    TRY(recording_begin(recording, pass));
    return recording_end(recording, walk_alone(alone, value));
}

/* The lane's times, its values, and what it refuses while a replay runs. */
TEST(tails)
{
    struct alone alone = {.arrived = -1};
    struct recording *recording = NULL;
    cuda_fixture_begin(84);
    ck_assert_ptr_null(device_open("cuda:0", 1, &alone.device));
    ck_assert_ptr_null(lane_open(alone.device, LANE_COMPUTE, &alone.lane));
    ck_assert_ptr_null(device_allocate(alone.device, 256, &alone.memory));
    ck_assert_ptr_null(recording_new(alone.device, &alone.lane, 1, &recording));
    ck_assert_ptr_null(pass_alone(recording, RECORDING_MEASURE, &alone, 0));
    ck_assert_ptr_null(pass_alone(recording, RECORDING_CAPTURE, &alone, 0));
    ck_assert(recording_delivers(recording));
    const int64_t tail_ns = TAIL_MS * INT64_C(1000000), begun = clock_monotonic_ns();
    for (int i = 0; i < REPLAYED; i++) {
        bool delivered = false;
        ck_assert_ptr_null(pass_alone(recording, RECORDING_REPLAY, &alone, (float)i));
        while (!delivered) ck_assert_ptr_null(recording_wait(recording, 10, &delivered));
        ck_assert_float_eq(alone.arrived, (float)i);
        int64_t passed = clock_monotonic_ns() - begun, busy = lane_busy_ns(alone.lane);
        ck_assert_int_ge(busy, i * tail_ns);
        ck_assert_int_le(busy, passed);
        if (i == 0) ck_assert_int_eq(busy, 0);
    }
    status_t refused = lane_zero(alone.lane, alone.memory, 4);
    ck_assert_int_eq(status_code(refused), STATUS_INTERNAL);
    status_free(refused);
    refused = recording_begin(recording, RECORDING_CAPTURE);
    ck_assert_int_eq(status_code(refused), STATUS_INTERNAL);
    status_free(refused);
    ck_assert_ptr_null(lane_wait(alone.lane, 60000));
    ck_assert_int_ge(lane_busy_ns(alone.lane), REPLAYED * tail_ns);
    ck_assert_int_le(lane_busy_ns(alone.lane), clock_monotonic_ns() - begun);
    ck_assert_ptr_null(lane_zero(alone.lane, alone.memory, 4));
    ck_assert_ptr_null(lane_wait(alone.lane, 60000));
    lane_close(alone.lane);
    recording_free(recording);
    device_release(alone.device, alone.memory);
    device_close(alone.device);
}

/* ---- steps that are not replayed ---- */

static struct {
    char *notes[GROUP_MAX];
    const char *call;
    int number, error;
} asked;

static void fail_and_note(struct executor *executor, struct comm *comm, int step)
{
    int rank = comm_rank(comm);
    if (step == 1 && rank == 0 && asked.call != NULL)
        cuda_stub_fail_here(asked.call, asked.number, asked.error);
    if (step == STEPS - 1) asked.notes[rank] = executor_take_note(executor);
}

static void forget_notes(void)
{
    for (int r = 0; r < GROUP_MAX; r++) {
        free(asked.notes[r]);
        asked.notes[r] = NULL;
    }
}

static bool is_noted(const char *what, int world)
{
    bool found = false;
    for (int r = 0; r < world; r++)
        found = found || (asked.notes[r] != NULL && strstr(asked.notes[r], what) != NULL);
    return found;
}

/* One call of a capture fails on one rank: no rank replays, all note why, nothing else changes. */
LOOP_TEST(capture_fails, 0, 11)
{
    static const struct {
        const char *call, *noted;
        int number, error;
    } cases[] = {
        {"cudaStreamBeginCapture", "cudaStreamBeginCapture: ", 1, cudaErrorUnknown},
        {"launch", "instruction ", 4, cudaErrorStreamCaptureUnsupported},
        {"matmul", "cublasLtMatmul: ", 3, CUBLAS_STATUS_EXECUTION_FAILED},
        {"copy", "cudaMemcpyAsync: ", 2, cudaErrorStreamCaptureInvalidated},
        {"memset", "cudaMemsetAsync: ", 1, cudaErrorStreamCaptureUnsupported},
        {"wait", "cudaStreamWaitEvent: ", 7, cudaErrorStreamCaptureIsolation},
        {"record", "cudaEventRecord", 2, cudaErrorStreamCaptureUnsupported},
        {"ncclAllGather", "ncclAllGather: ", 2, ncclUnhandledCudaError},
        {"cudaStreamEndCapture", "cudaStreamEndCapture: ", 1, cudaErrorUnknown},
        {"cudaGraphInstantiateWithParams", "nodes, an operation of it is not supported: ", 1,
         cudaErrorNotSupported},
        {"cudaMallocHost", "cudaMallocHost: ", 1, cudaErrorMemoryAllocation},
    };
    struct engine_job job = job_of(TINY_GPT2);
    job.before_step = fail_and_note;
    job.poison = false;
    asked.call = NULL;
    struct engine_outcome *expected = run_plainly(&job, 2);
    ck_assert(is_noted("turned off by FSDPD_CUDA_GRAPHS", 1));
    forget_notes();
    cuda_fixture_begin(31);
    asked.call = cases[_i].call, asked.number = cases[_i].number, asked.error = cases[_i].error;
    struct engine_outcome *found = engine_train(&job, GROUP_LOCAL, 2);
    ck_assert_int_eq(cuda_stub_count("cudaGraphLaunch"), 0);
    expect_same(found, expected);
    ck_assert_msg(is_noted(cases[_i].noted, 2), "%s; %s", asked.notes[0], asked.notes[1]);
    ck_assert_msg(is_noted("another rank cannot record", 2), "%s; %s", asked.notes[0],
                  asked.notes[1]);
    forget_notes();
    engine_outcome_free(found);
    engine_outcome_free(expected);
}

/* A group with parts, which are made again with it; and a program that was recorded before the one
 * whose capture fails, which is recorded again, in the new group. */
LOOP_TEST(group_after_failed_capture, 0, 2)
{
    struct engine_job job = job_of(TINY_LLAMA);
    const int world = _i ? 2 : 4;
    if (_i) job.micro_steps = 3;
    else job.strategy = STRATEGY_HYBRID_SHARD, job.shard_size = 2, job.global_batch = 4;
    job.before_step = fail_and_note;
    job.poison = false;
    asked.call = NULL;
    struct engine_outcome *expected = run_plainly(&job, world);
    forget_notes();
    cuda_fixture_begin(37);
    asked.call = "cudaStreamEndCapture", asked.number = 1, asked.error = cudaErrorUnknown;
    struct engine_outcome *found = engine_train(&job, GROUP_LOCAL, world);
    ck_assert_int_eq(cuda_stub_count("ncclCommInitRankConfig"), 2 * world);
    ck_assert_int_eq(cuda_stub_count("cudaGraphLaunch") > 0, _i);
    ck_assert(is_noted("cudaStreamEndCapture: ", 1));
    expect_same(found, expected);
    forget_notes();
    engine_outcome_free(found);
    engine_outcome_free(expected);
}

/* FSDPD_CUDA_GRAPHS=alone: collectives are not captured; a job of one rank has none. */
LOOP_TEST(graphs_without_collectives, 1, 3)
{
    struct engine_job job = job_of(TINY_GPT2);
    job.before_step = fail_and_note;
    asked.call = NULL;
    cuda_fixture_begin(35);
    setenv("FSDPD_CUDA_GRAPHS", "alone", 1);
    struct engine_outcome *found = engine_train(&job, GROUP_LOCAL, _i);
    ck_assert_int_eq(cuda_stub_count("cudaGraphLaunch") > 0, _i == 1);
    ck_assert_int_eq(is_noted("FSDPD_CUDA_GRAPHS is \"alone\"", _i), _i == 2);
    forget_notes();
    engine_outcome_free(found);
}

/* On one rank, once or twice. */
static int disturbances;

static void disturb(struct executor *executor, struct comm *comm, int step)
{
    if (comm_rank(comm) == 0 && step >= 1 && step <= disturbances)
        cuda_stub_fail_here("cudaStreamEndCapture", 1, cudaErrorStreamCaptureInvalidated);
    if (step == STEPS - 1) asked.notes[comm_rank(comm)] = executor_take_note(executor);
}

/* A capture that another thread's call invalidated is repeated once, by all ranks. */
LOOP_TEST(disturbed_capture, 1, 3)
{
    struct engine_job job = job_of(TINY_GPT2);
    job.before_step = disturb;
    disturbances = 0;
    struct engine_outcome *expected = run_plainly(&job, 2);
    forget_notes();
    cuda_fixture_begin(33);
    disturbances = _i;
    struct engine_outcome *found = engine_train(&job, GROUP_LOCAL, 2);
    ck_assert_int_eq(cuda_stub_count("cudaStreamBeginCapture"), 2 * 2);
    ck_assert_int_eq(cuda_stub_count("cudaGraphLaunch"), _i == 1 ? 2 * (REPLAYS - 1) : 0);
    ck_assert(is_noted("cudaStreamEndCapture: ", 1) == (_i == 2));
    ck_assert((asked.notes[1] != NULL) == (_i == 2));
    expect_same(found, expected);
    forget_notes();
    engine_outcome_free(found);
    engine_outcome_free(expected);
}

/* Opens and closes the device, as plans do, while another thread captures. */
static void *keep_planning(void *argument)
{
    atomic_int *planned = argument;
    while (atomic_load(planned) >= 0) {
        struct device *device;
        void *memory;
        ck_assert_ptr_null(device_open("cuda:0", 1, &device));
        ck_assert_ptr_null(device_allocate(device, 256, &memory));
        device_release(device, memory);
        device_close(device);
        int before = atomic_load(planned);
        while (before >= 0 && !atomic_compare_exchange_weak(planned, &before, before + 1)) continue;
    }
    return NULL;
}

TEST(planning_beside_captures)
{
    struct alone alone = {.arrived = -1};
    struct recording *recording = NULL;
    atomic_int planned = 0;
    pthread_t thread;
    cuda_fixture_begin(85);
    ck_assert_ptr_null(device_open("cuda:0", 1, &alone.device));
    ck_assert_ptr_null(lane_open(alone.device, LANE_COMPUTE, &alone.lane));
    ck_assert_ptr_null(device_allocate(alone.device, 256, &alone.memory));
    ck_assert_int_eq(pthread_create(&thread, NULL, keep_planning, &planned), 0);
    for (int captures = 0; captures < 200 || atomic_load(&planned) < 200; captures++) {
        ck_assert_ptr_null(recording_new(alone.device, &alone.lane, 1, &recording));
        ck_assert_ptr_null(pass_alone(recording, RECORDING_MEASURE, &alone, 0));
        status_t status = pass_alone(recording, RECORDING_CAPTURE, &alone, 0);
        ck_assert_msg(status == NULL, "capture %d: %s", captures, status_message(status));
        recording_free(recording);
    }
    atomic_store(&planned, -1);
    pthread_join(thread, NULL);
    lane_close(alone.lane);
    device_release(alone.device, alone.memory);
    device_close(alone.device);
}

/* Nor does a plan wait in the driver while graphs with collectives run. */
TEST(planning_beside_replays)
{
    struct engine_job job = job_of(TINY_GPT2);
    atomic_int planned = 0;
    pthread_t thread;
    cuda_fixture_begin(87);
    ck_assert_int_eq(pthread_create(&thread, NULL, keep_planning, &planned), 0);
    struct engine_outcome *found = engine_train(&job, GROUP_LOCAL, 2);
    ck_assert_int_gt(atomic_exchange(&planned, -1), 0);
    pthread_join(thread, NULL);
    ck_assert_int_gt(cuda_stub_count("cudaGraphLaunch"), 0);
    engine_outcome_free(found);
}

TEST(sync_is_plain)
{
    struct engine_job job = job_of(TINY_LLAMA);
    job.before_step = fail_and_note;
    asked.call = NULL;
    struct engine_outcome *expected = run_plainly(&job, 1);
    forget_notes();
    cuda_fixture_begin(41);
    setenv("FSDPD_CUDA_SYNC", "1", 1);
    struct engine_outcome *found = engine_train(&job, GROUP_LOCAL, 1);
    ck_assert_int_eq(cuda_stub_count("cudaStreamBeginCapture"), 0);
    ck_assert(is_noted("FSDPD_CUDA_SYNC", 1));
    expect_same(found, expected);
    forget_notes();
    engine_outcome_free(found);
    engine_outcome_free(expected);
}

/* A step whose instructions are timed is enqueued call by call, between two replays. */
static _Thread_local struct trace *trace;

/* Instructions of a lane do not overlap; one that waits for another begins at its end. */
static void check_times(const struct plan *plan, const struct trace_run *run)
{
    int64_t ended[LANE_COUNT] = {0};
    for (int i = 0; i < plan->train.instruction_count; i++) {
        const struct plan_instruction *instruction = &plan->train.instructions[i];
        const struct trace_stamp *stamp = &run->stamps[i];
        ck_assert_int_ge(stamp->begin_ns, run->whole.begin_ns);
        ck_assert_int_ge(stamp->begin_ns, ended[instruction->lane]);
        for (int w = 0; w < instruction->wait_count; w++)
            ck_assert_int_ge(stamp->begin_ns, run->stamps[instruction->waits[w]].end_ns);
        ck_assert_int_ge(stamp->end_ns, stamp->begin_ns);
        ck_assert_int_le(stamp->end_ns, run->whole.end_ns);
        ended[instruction->lane] = stamp->end_ns;
    }
}

static void trace_a_step(struct executor *executor, struct comm *comm, int step)
{
    const struct plan *plan = executor_plan(executor);
    (void)comm;
    if (step == 3) {
        const struct trace_shape shape = {.instruction_count = plan->train.instruction_count,
                                          .batches = 1,
                                          .step_count = 1,
                                          .step = 3};
        ck_assert_ptr_null(trace_new(&shape, &trace));
        executor_set_trace(executor, trace);
    }
    if (step != 4) return;
    ck_assert(trace_is_full(trace));
    check_times(plan, &trace->runs[0]);
    trace_free(trace);
}

TEST(traced_step)
{
    struct engine_job job = job_of(TINY_GPT2);
    struct engine_outcome *expected = run_plainly(&job, 2);
    job.before_step = trace_a_step;
    cuda_fixture_begin(51);
    struct engine_outcome *found = engine_train(&job, GROUP_LOCAL, 2);
    ck_assert_int_eq(cuda_stub_count("cudaGraphLaunch"), 2 * (REPLAYS - 1));
    ck_assert_int_eq(cuda_stub_count("host"), 0); /* functions that streams stop for */
    expect_same(found, expected);
    engine_outcome_free(found);
    engine_outcome_free(expected);
}

/* ---- replays that fail ---- */

static int64_t failed_ns;

static void fail_in_replay(struct executor *executor, struct comm *comm, int step)
{
    (void)executor;
    if (step != STEPS - 2 || comm_rank(comm) != 0) return;
    failed_ns = clock_monotonic_ns();
    cuda_stub_fail_here(asked.call, asked.number, asked.error);
}

static void run_failing(struct engine_job *job, int world, struct group_result *results)
{
    job->before_step = fail_in_replay;
    struct engine_run what = {job, engine_outcome_new(job)};
    group_run(GROUP_LOCAL, world, 60000, engine_rank, &what, results);
    engine_outcome_free(what.outcome);
}

TEST(launch_fails)
{
    struct group_result results[GROUP_MAX];
    struct engine_job job = job_of(TINY_GPT2);
    cuda_fixture_begin(61);
    asked.call = "cudaGraphLaunch", asked.number = 1, asked.error = cudaErrorLaunchFailure;
    run_failing(&job, 1, results);
    ck_assert_int_eq(results[0].code, STATUS_UNAVAILABLE); /* the device is lost */
    static const char expected[] = "a recorded training step: cudaGraphLaunch: unspecified launch "
                                   "failure (cudaErrorLaunchFailure); this process has lost";
    ck_assert_msg(strncmp(results[0].message, expected, strlen(expected)) == 0, "%s",
                  results[0].message);
}

/* The communicators, one or three, are aborted while a graph that uses them runs. */
LOOP_TEST(peer_is_lost, 0, 2)
{
    struct group_result results[GROUP_MAX];
    struct engine_job job = job_of(TINY_LLAMA);
    int world = _i ? 4 : 2;
    if (_i) {
        job.strategy = STRATEGY_HYBRID_SHARD;
        job.shard_size = 2;
        job.global_batch = 4;
    }
    job.poison = false; /* whose many copies wait for each other without a check for errors */
    cuda_fixture_begin(71);
    cuda_fixture_timeout_ms = 3000;
    asked.call = "ncclCommGetAsyncError", asked.number = 1, asked.error = ncclRemoteError;
    run_failing(&job, world, results);
    bool reported = false;
    for (int r = 0; r < world; r++) {
        ck_assert_int_ne(results[r].code, STATUS_OK);
        reported = reported || (results[r].code == STATUS_UNAVAILABLE &&
                                strstr(results[r].message, "remote process exited") != NULL);
    }
    ck_assert_msg(reported, "%s; %s", results[0].message, results[1].message);
    ck_assert_double_lt((double)(clock_monotonic_ns() - failed_ns) / 1e9, 30);
    ck_assert_int_ge(cuda_stub_count("ncclCommAbort"), world);
}

/* A device error in a step that has returned. */
static void fail_in_tail(struct executor *executor, struct comm *comm, int step)
{
    (void)comm;
    if (step != STEPS - 1) return;
    cuda_stub_fail_here("cudaStreamQuery", 1, cudaErrorLaunchFailure);
    if (asked.number == 0) return;
    status_t status = executor_settle(executor);
    ck_assert_ptr_nonnull(strstr(status_message(status), "unspecified launch failure"));
    status_free(status);
    ck_assert_ptr_null(executor_settle(executor)); /* nothing runs any more */
}

/* Found by the next step, or by what comes before it. */
LOOP_TEST(tail_fails, 0, 2)
{
    struct group_result results[GROUP_MAX];
    struct engine_job job = ahead_job(1);
    cuda_fixture_begin(72);
    cuda_stub_hold(STUB_HOLD_SHORTLY);
    asked.number = _i;
    job.before_step = fail_in_tail;
    struct engine_run what = {&job, engine_outcome_new(&job)};
    group_run(GROUP_LOCAL, 1, 60000, engine_rank, &what, results);
    ck_assert_int_eq(results[0].code, STATUS_UNAVAILABLE); /* the device is lost */
    ck_assert_ptr_nonnull(strstr(results[0].message, "unspecified launch failure"));
    engine_outcome_free(what.outcome);
}

static pthread_t aborter;

static void *abort_soon(void *executor)
{
    clock_sleep_ms(100);
    executor_abort(executor, "the job was cancelled");
    return NULL;
}

/* Rank 0 is aborted while its last replay is enqueued behind one that does not end; or before, and
 * nothing waits. */
static void abort_tail(struct executor *executor, struct comm *comm, int step)
{
    if (step == STEPS - 2) cuda_stub_hold(STUB_HOLD);
    if (step != STEPS - 1 || comm_rank(comm) != 0) return;
    if (asked.number == 0)
        ck_assert_int_eq(pthread_create(&aborter, NULL, abort_soon, executor), 0);
    else executor_abort(executor, "the job was cancelled");
}

static void end_abort(struct comm *comm)
{
    if (comm_rank(comm) == 0 && asked.number == 0) pthread_join(aborter, NULL);
    if (comm_rank(comm) == 0) cuda_stub_release();
}

LOOP_TEST(abort_in_tail, 0, 8)
{
    struct group_result results[GROUP_MAX];
    struct engine_job job = ahead_job(_i & 3);
    const int world = _i & 2 ? 2 : 1;
    cuda_fixture_begin(73);
    cuda_fixture_timeout_ms = 2000;
    asked.number = _i & 4;
    job.before_step = abort_tail;
    job.finished = end_abort;
    struct engine_run what = {&job, engine_outcome_new(&job)};
    group_run(GROUP_LOCAL, world, 60000, engine_rank, &what, results);
    ck_assert_int_eq(results[0].code, STATUS_ABORTED);
    ck_assert_msg(strstr(results[0].message, "the job was cancelled") != NULL, "%s",
                  results[0].message);
    if (world > 1) ck_assert_int_ne(results[1].code, STATUS_OK);
    if (asked.number == 0) ck_assert_int_gt(cuda_stub_count("overlap"), 0);
    ck_assert_int_eq(nccl_stub_unfreed(), 0);
    engine_outcome_free(what.outcome);
}
