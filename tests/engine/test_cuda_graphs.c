/*
 * Steps captured as CUDA graphs, under a stub of the runtime (tests/emulation): replayed, they have
 * the bits of steps that are enqueued call by call, though rates, steps, dropout and batches
 * change; a step that cannot be captured is captured on no rank, with a note; a failure in a
 * replay, such as a lost peer, ends the step.
 */
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

static void compare(const struct engine_job *job, int world)
{
    int batches = job->micro_steps > 1 ? job->micro_steps : 1;
    int programs = batches > 1 ? 2 : 1;
    /* of every batch except a step's last: that program is ready sooner */
    int replays = REPLAYS + (batches > 1 ? (batches - 1) * STEPS - 2 : 0);
    struct engine_outcome *expected = run_plainly(job, world);
    for (uint64_t seed = 21; seed <= (world == 1 ? 22 : 21); seed++) {
        cuda_fixture_begin(seed);
        struct engine_outcome *found = engine_train(job, GROUP_LOCAL, world);
        ck_assert_int_eq(cuda_stub_count("cudaStreamBeginCapture"), world * programs);
        ck_assert_int_eq(cuda_stub_count("cudaGraphLaunch"), world * replays);
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

/* Arguments of the other optimizers; a momentum's first step differs from later ones. */
LOOP_TEST(optimizers, 0, 2)
{
    static const struct optimizer_step optimizers[] = {
        {.kind = OPTIMIZER_SGD, .lr = 0.05, .momentum = 0.9, .weight_decay = 0.01},
        {.kind = OPTIMIZER_ADADELTA, .lr = 1, .rho = 0.9, .eps = 1e-6},
    };
    struct engine_job job = job_of(TINY_BERT);
    job.optimizer = optimizers[_i];
    job.max_norm = _i ? 0.01 : 0; /* clips every step, or none */
    if (_i == 0) job.norm = NORM_NONE;
    compare(&job, 1 + _i);
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
        {"record", "cudaEventRecord", 5, cudaErrorStreamCaptureUnsupported},
        {"ncclAllGather", "ncclAllGather: ", 2, ncclUnhandledCudaError},
        {"cudaStreamEndCapture", "cudaStreamEndCapture: ", 1, cudaErrorStreamCaptureInvalidated},
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
    for (int i = 0; i < plan->train.instruction_count; i++)
        ck_assert_int_gt(trace->runs[0].stamps[i].end_ns, 0);
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
    expect_same(found, expected);
    engine_outcome_free(found);
    engine_outcome_free(expected);
}

/* ---- replays that fail ---- */

static int64_t failed_ns;

static void fail_in_replay(struct executor *executor, struct comm *comm, int step)
{
    (void)executor;
    if (step != STEPS - 1 || comm_rank(comm) != 0) return;
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
    ck_assert_int_eq(results[0].code, STATUS_INTERNAL);
    ck_assert_str_eq(results[0].message, "a recorded training step: cudaGraphLaunch: unspecified "
                                         "launch failure (cudaErrorLaunchFailure)");
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

/* ---- the stub enforces CUDA's rules ---- */

struct streams {
    cudaStream_t first, second;
    cudaEvent_t fork, join, outside;
    float *memory;
};

static void set_up_streams(struct streams *s)
{
    ck_assert_int_eq(cudaStreamCreateWithPriority(&s->first, cudaStreamNonBlocking, 0), 0);
    ck_assert_int_eq(cudaStreamCreateWithPriority(&s->second, cudaStreamNonBlocking, 0), 0);
    ck_assert_int_eq(cudaEventCreateWithFlags(&s->fork, cudaEventDisableTiming), 0);
    ck_assert_int_eq(cudaEventCreateWithFlags(&s->join, cudaEventDisableTiming), 0);
    ck_assert_int_eq(cudaEventCreateWithFlags(&s->outside, cudaEventDisableTiming), 0);
    ck_assert_int_eq(cudaMalloc((void **)&s->memory, 64), 0);
    ck_assert_int_eq(cudaEventRecord(s->outside, s->second), 0);
    ck_assert_int_eq(cudaStreamBeginCapture(s->first, cudaStreamCaptureModeThreadLocal), 0);
    ck_assert_int_eq(cudaEventRecord(s->fork, s->first), 0);
    ck_assert_int_eq(cudaStreamWaitEvent(s->second, s->fork, 0), 0);
    ck_assert_int_eq(cudaMemsetAsync(s->memory, 0, 64, s->second), 0);
}

static void tear_down_streams(struct streams *s)
{
    cudaStreamDestroy(s->first);
    cudaStreamDestroy(s->second);
    cudaEventDestroy(s->fork);
    cudaEventDestroy(s->join);
    cudaEventDestroy(s->outside);
    cudaFree(s->memory);
}

LOOP_TEST(rules_of_captures, 0, 7)
{
    enum { UNJOINED, WAITS, TAKES_MEMORY, ASKS_EVENT, FROM_OUTSIDE, PAGEABLE, JOINED };
    struct streams s;
    cudaGraph_t graph = NULL;
    void *more = NULL;
    float here[16] = {0};
    int wanted = cudaErrorStreamCaptureInvalidated;
    set_up_streams(&s);
    switch (_i) {
    case UNJOINED: wanted = cudaErrorStreamCaptureUnjoined; break;
    case WAITS:
        ck_assert_int_eq(cudaStreamSynchronize(s.second), cudaErrorStreamCaptureUnsupported);
        break;
    case TAKES_MEMORY:
        ck_assert_int_eq(cudaMalloc(&more, 64), cudaErrorStreamCaptureUnsupported);
        break;
    case ASKS_EVENT: ck_assert_int_eq(cudaEventSynchronize(s.fork), cudaErrorCapturedEvent); break;
    case FROM_OUTSIDE:
        ck_assert_int_eq(cudaStreamWaitEvent(s.first, s.outside, 0),
                         cudaErrorStreamCaptureIsolation);
        break;
    case PAGEABLE:
        ck_assert_int_eq(cudaMemcpyAsync(s.memory, here, sizeof here, cudaMemcpyHostToDevice,
                                         s.first),
                         cudaErrorStreamCaptureUnsupported);
        wanted = cudaErrorStreamCaptureUnjoined;
        break;
    case JOINED: wanted = cudaSuccess; break;
    }
    if (_i != UNJOINED && wanted != cudaErrorStreamCaptureUnjoined) {
        cudaEventRecord(s.join, s.second);
        cudaStreamWaitEvent(s.first, s.join, 0);
    }
    ck_assert_int_eq(cudaStreamEndCapture(s.first, &graph), wanted);
    ck_assert((graph != NULL) == (wanted == cudaSuccess));
    ck_assert_int_eq(cudaMemsetAsync(s.memory, 0, 64, s.second), 0); /* as before */
    ck_assert_int_eq(cudaStreamSynchronize(s.second), 0);
    if (graph != NULL) cudaGraphDestroy(graph);
    tear_down_streams(&s);
}
