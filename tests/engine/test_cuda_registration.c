/*
 * Arenas registered with NCCL's communicators, over the stubs of the runtime and of NCCL
 * (tests/emulation/nccl_memory_stub.cc), which end the test on a breach of NCCL's rules: the same
 * bits as without, in steps of all kinds, captured or not; every collective of a step works on
 * registered memory, and ranks that need each other to capture do so together or not at all;
 * failures are reported and everything is released. test_cuda_registered_runs.c has whole runs.
 */
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "../emulation/cuda_stub.h"
#include "base/mem.h"
#include "cuda_fixture.h"
#include "tests/testing.h"

/* The first warms up, the second is measured, the third captured. */
enum { STEPS = 5, REPLAYS = STEPS - 3 };

static struct engine_job job_of(int model)
{
    return cuda_fixture_run(model, STEPS);
}

/* ---- the same bits ---- */

static void expect_same(const struct engine_outcome *a, const struct engine_outcome *b)
{
    ck_assert_mem_eq(a->loss, b->loss, sizeof a->loss);
    ck_assert_mem_eq(a->norm, b->norm, sizeof a->norm);
    ck_assert_mem_eq(a->evaluated, b->evaluated, sizeof a->evaluated);
    ck_assert_int_eq(a->parameter_elements, b->parameter_elements);
    ck_assert_mem_eq(a->parameters, b->parameters, (size_t)a->parameter_elements * sizeof(float));
    ck_assert_str_eq(a->collectives, b->collectives);
    ck_assert_mem_eq(a->sent_bytes, b->sent_bytes, sizeof a->sent_bytes);
    ck_assert_mem_eq(a->measured_peak, b->measured_peak, sizeof a->measured_peak);
}

static struct engine_outcome *run_without(struct engine_job *job, int world)
{
    cuda_fixture_begin(11);
    job->register_buffers = false;
    struct engine_outcome *outcome = engine_train(job, GROUP_LOCAL, world);
    ck_assert_int_eq(cuda_stub_count("ncclMemAlloc"), 0);
    ck_assert_int_eq(cuda_stub_count("ncclCommRegister"), 0);
    job->register_buffers = true;
    return outcome;
}

/* `groups`: the number of groups of more than one rank that each rank belongs to. */
static void compare(struct engine_job job, int world, int groups)
{
    struct engine_outcome *expected = run_without(&job, world);
    cuda_fixture_begin(21);
    struct engine_outcome *found = engine_train(&job, GROUP_LOCAL, world);
    expect_same(found, expected);
    ck_assert_uint_ne(found->hash[0], expected->hash[0]);
    ck_assert_int_eq(cuda_stub_count("ncclMemAlloc"), 2 * world);
    ck_assert_int_eq(cuda_stub_count("ncclMemFree"), 2 * world);
    ck_assert_int_eq(cuda_stub_count("ncclCommRegister"), 2 * world * groups);
    ck_assert_int_eq(cuda_stub_count("ncclCommDeregister"), 2 * world * groups);
    ck_assert_int_gt(cuda_stub_count("registered"), 0);
    ck_assert_int_eq(cuda_stub_count("unregistered"), 0);
    ck_assert_uint_eq(nccl_stub_taken(), 0);
    if (job.micro_steps < 2) {
        bool records = !job.cpu_offload;
        ck_assert_int_eq(cuda_stub_count("cudaStreamBeginCapture"), records ? world : 0);
        ck_assert_int_eq(cuda_stub_count("cudaGraphLaunch"), records ? world * REPLAYS : 0);
    } else {
        ck_assert_int_gt(cuda_stub_count("cudaGraphLaunch"), 0);
    }
    engine_outcome_free(found);
    engine_outcome_free(expected);
}

TESTS_BELOW(.timeout = 240, .set_up = cuda_fixture_set_up, .tear_down = cuda_fixture_tear_down);

LOOP_TEST(models, 0, 2 * TINY_COUNT)
{
    compare(job_of(_i % TINY_COUNT), 2 + _i / TINY_COUNT, 1);
}

LOOP_TEST(ways, 0, 7)
{
    struct engine_job job = job_of(TINY_GPT2);
    int world = 2, groups = 1;
    switch (_i) {
    case 0:
        job.strategy = STRATEGY_HYBRID_SHARD;
        job.shard_size = 2;
        break;
    case 1:
        job.reshard = RESHARD_GROUP;
        job.reshard_ranks = 2;
        break;
    case 2: job.strategy = STRATEGY_NO_SHARD; break;
    case 3: job.param_dtype = job.reduce_dtype = DTYPE_BF16; break;
    case 4: job.micro_steps = 2; break;
    case 5:
        job.micro_steps = 2;
        job.no_sync = true;
        break;
    default: job.cpu_offload = job.host_apart = true;
    }
    if (_i < 2) {
        world = 4, groups = 3; /* all, and the parts that shard and that replicate */
        job.global_batch = 4;
    }
    compare(job, world, groups);
}

/* With one rank, or where another communicator moves host memory, the step is the one without. */
LOOP_TEST(no_effect, 0, 2)
{
    struct engine_job job = job_of(TINY_LLAMA);
    int world = 1 + _i;
    if (world > 1) job.join = cuda_fixture_join_staged;
    struct engine_outcome *expected = run_without(&job, world);
    cuda_fixture_begin(31);
    struct engine_outcome *found = engine_train(&job, GROUP_LOCAL, world);
    expect_same(found, expected);
    ck_assert_int_eq(cuda_stub_count("ncclMemAlloc"), 0);
    ck_assert_int_eq(cuda_stub_count("ncclCommRegister"), 0);
    engine_outcome_free(found);
    engine_outcome_free(expected);
}

/* ---- what fails ---- */

static int fail_step;
static struct {
    const char *call;
    int number, error;
} asked;
static char *notes[GROUP_MAX];

static void fail_and_note(struct executor *executor, struct comm *comm, int step)
{
    if (step == fail_step && comm_rank(comm) == 0)
        cuda_stub_fail_here(asked.call, asked.number, asked.error);
    if (step == STEPS - 1) notes[comm_rank(comm)] = executor_take_note(executor);
}

static bool is_noted(const char *what, int world)
{
    bool found = false;
    for (int r = 0; r < world; r++)
        found = found || (notes[r] != NULL && strstr(notes[r], what) != NULL);
    return found;
}

static void forget_notes(void)
{
    for (int r = 0; r < GROUP_MAX; r++) {
        free(notes[r]);
        notes[r] = NULL;
    }
}

/* Whether a rank reports `what`; all fail, and none of their memory is left. */
static void expect_failure(struct engine_job *job, int world, enum status_code code,
                           const char *what)
{
    struct group_result results[GROUP_MAX];
    struct engine_run run = {job, engine_outcome_new(job)};
    bool reported = false;
    group_run(GROUP_LOCAL, world, 60000, engine_rank, &run, results);
    for (int r = 0; r < world; r++) {
        ck_assert_int_ne(results[r].code, STATUS_OK);
        reported =
            reported || (results[r].code == code && strstr(results[r].message, what) != NULL);
    }
    ck_assert_msg(reported, "%s; %s", results[0].message, results[1].message);
    ck_assert_uint_eq(nccl_stub_taken(), 0);
    engine_outcome_free(run.outcome);
}

LOOP_TEST(memory_fails, 0, 2)
{
    static const struct {
        const char *call;
        int number;
        const char *what;
    } cases[] = {
        {"ncclMemAlloc", 1, "device cuda:0: cannot allocate "},
        {"ncclMemAlloc", 4, " available: ncclMemAlloc: unhandled error"},
    };
    struct engine_job job = job_of(TINY_GPT2);
    job.register_buffers = true;
    cuda_fixture_begin(41);
    cuda_stub_fail(cases[_i].call, cases[_i].number, ncclUnhandledCudaError);
    expect_failure(&job, 2, STATUS_INTERNAL, cases[_i].what);
}

/* Of the first arena or the second, with the group or with a part of it, on one rank. All ranks
 * continue without, with the bits of a run that registers nothing. */
LOOP_TEST(registration_fails, 0, 4)
{
    static const struct {
        int number, world;
    } cases[] = {{1, 2}, {4, 2}, {1, 4}, {24, 4}};
    struct engine_job job = job_of(TINY_GPT2);
    const int world = cases[_i].world;
    if (world == 4) {
        job.strategy = STRATEGY_HYBRID_SHARD;
        job.shard_size = 2;
        job.global_batch = 4;
    }
    struct engine_outcome *expected = run_without(&job, world);
    cuda_fixture_begin(43);
    cuda_stub_fail("ncclCommRegister", cases[_i].number, ncclSystemError);
    struct engine_outcome *found = engine_train(&job, GROUP_LOCAL, world);
    expect_same(found, expected);
    ck_assert_int_eq(cuda_stub_count("ncclCommInitRankConfig"), 2 * world);
    ck_assert_int_eq(cuda_stub_count("registered"), 0);
    ck_assert_int_gt(cuda_stub_count("cudaGraphLaunch"), 0);
    ck_assert_uint_eq(nccl_stub_taken(), 0);
    engine_outcome_free(found);
    engine_outcome_free(expected);
}

/* A peer that is lost while ranks wait for each other to enqueue, or in a replay. */
LOOP_TEST(peer_is_lost, 0, 4)
{
    struct engine_job job = job_of(TINY_LLAMA);
    int world = _i % 2 ? 4 : 2;
    if (world == 4) {
        job.strategy = STRATEGY_HYBRID_SHARD;
        job.shard_size = 2;
        job.global_batch = 4;
    }
    job.register_buffers = true;
    job.before_step = fail_and_note;
    cuda_fixture_begin(51);
    fail_step = _i < 2 ? 1 : STEPS - 1;
    asked.call = "ncclCommGetAsyncError", asked.number = 1, asked.error = ncclRemoteError;
    expect_failure(&job, world, STATUS_UNAVAILABLE, "remote process exited");
    ck_assert_int_ge(cuda_stub_count("ncclCommAbort"), world);
    forget_notes();
}

/* An error that one rank finds before a capture, or after all its calls, lets all ranks
 * continue. */
LOOP_TEST(no_rank_captures, 0, 2)
{
    static const struct {
        const char *call, *noted;
        int step, error, captures;
    } cases[] = {
        {"cudaMallocHost", "cudaMallocHost: ", 1, cudaErrorMemoryAllocation, 0},
        {"cudaGraphInstantiateWithParams", "an operation of it is not supported", 2,
         cudaErrorNotSupported, 2},
    };
    struct engine_job job = job_of(TINY_GPT2);
    struct engine_outcome *expected = run_without(&job, 2);
    cuda_fixture_begin(61);
    job.before_step = fail_and_note;
    fail_step = cases[_i].step;
    asked.call = cases[_i].call, asked.number = 1, asked.error = cases[_i].error;
    struct engine_outcome *found = engine_train(&job, GROUP_LOCAL, 2);
    expect_same(found, expected);
    ck_assert_int_eq(cuda_stub_count("cudaStreamBeginCapture"), cases[_i].captures);
    ck_assert_int_eq(cuda_stub_count("cudaGraphLaunch"), 0);
    ck_assert_msg(is_noted(cases[_i].noted, 2), "%s; %s", notes[0], notes[1]);
    ck_assert_msg(is_noted("another rank cannot record", 2), "%s; %s", notes[0], notes[1]);
    forget_notes();
    engine_outcome_free(found);
    engine_outcome_free(expected);
}

/* A failure in the middle of a capture leaves peers waiting: the step ends, with the reason. */
LOOP_TEST(capture_fails, 0, 3)
{
    static const struct {
        const char *call;
        int number, error;
    } cases[] = {
        {"cudaStreamBeginCapture", 1, cudaErrorUnknown},
        {"launch", 4, cudaErrorStreamCaptureUnsupported},
        {"ncclReduceScatter", 1, ncclUnhandledCudaError},
    };
    struct engine_job job = job_of(TINY_GPT2);
    job.register_buffers = true;
    job.poison = false; /* whose copies are launches, too */
    job.before_step = fail_and_note;
    cuda_fixture_begin(71);
    fail_step = 2;
    asked.call = cases[_i].call, asked.number = cases[_i].number, asked.error = cases[_i].error;
    expect_failure(&job, 2, STATUS_INTERNAL, "recording a step of registered buffers: ");
    forget_notes();
}

/* ---- the device's part ---- */

TEST(memory)
{
    struct device *device = NULL;
    void *memory = NULL;
    cuda_fixture_begin(81);
    ck_assert_ptr_null(device_open("cuda:0", 1, &device));
    ck_assert_ptr_null(device_check_registrable(device));
    int notes_before = 0;
    while (device_note(device, notes_before) != NULL) notes_before++;
    ck_assert_ptr_null(device_allocate_registrable(device, 1000, &memory));
    ck_assert_uint_eq(device_allocated_bytes(device), 1000); /* the requested size */
    ck_assert_uint_eq(nccl_stub_taken(), 2 << 20);
    ck_assert_str_eq(device_note(device, notes_before),
                     "registered buffers: NCCL took 2.10 MB of the device's memory for 1.00 kB");
    device_release(device, memory);
    ck_assert_uint_eq(nccl_stub_taken(), 0);
    ck_assert_uint_eq(device_allocated_bytes(device), 0);
    device_close(device);
}

/* Refused by name; the cpu has no such feature, and ignores the key. */
LOOP_TEST(old_library, 0, 2)
{
    static const struct {
        int version;
        const char *name;
    } cases[] = {{21805, "2.18.5"}, {2708, "2.7.8"}};
    struct device *device = NULL;
    void *memory = NULL;
    cuda_fixture_begin(91);
    nccl_stub_version(cases[_i].version);
    ck_assert_ptr_null(device_open("cuda:0", 1, &device));
    status_t status = device_allocate_registrable(device, 1000, &memory);
    char *expected = mem_printf("device cuda:0: registered buffers need NCCL 2.19 or later; this "
                                "is NCCL %s",
                                cases[_i].name);
    ck_assert_int_eq(status_code(status), STATUS_UNIMPLEMENTED);
    ck_assert_str_eq(status_message(status), expected);
    status_free(status);
    device_close(device);
    struct engine_job job = job_of(TINY_GPT2);
    job.register_buffers = true;
    expect_failure(&job, 2, STATUS_UNIMPLEMENTED, expected);
    nccl_stub_version(0);
    free(expected);
    ck_assert_ptr_null(device_open("cpu", 1, &device));
    ck_assert_ptr_null(device_allocate_registrable(device, 1000, &memory));
    device_release(device, memory);
    device_close(device);
}

/* A group whose memory is registered before and after a split. */
static status_t split_and_register(struct comm *comm, void *argument)
{
    struct device *device = NULL;
    struct comm *group = NULL, *part = NULL, *later = NULL;
    struct lane_queue *lane = NULL;
    void *memory[2] = {NULL, NULL};
    const int ranks[] = {0, 1};
    (void)argument;
    TRY(device_open("cuda:0", 1, &device));
    TRY(cuda_fixture_join(device, comm_rank(comm), 2, &group));
    TRY(comm_split(group, ranks, 2, &part));
    ck_assert(comm_registers(group) && !comm_enqueue_needs_peers(group));
    for (int i = 0; i < 2; i++) {
        TRY(device_allocate_registrable(device, 4096, &memory[i]));
        TRY(comm_register(group, memory[i], 4096));
    }
    TRY(comm_split(group, ranks, 2, &later));
    ck_assert(comm_enqueue_needs_peers(group) && comm_enqueue_needs_peers(part) &&
              comm_enqueue_needs_peers(later));
    TRY(lane_open(device, LANE_COMM, &lane));
    struct comm *const all[] = {group, part, later};
    for (int i = 0; i < 3; i++) {
        TRY(comm_all_gather(all[i], lane, memory[0], memory[1], 16));
        TRY(comm_all_reduce(all[i], lane, memory[1], 32, 1, NULL));
        TRY(comm_barrier(all[i], lane)); /* on memory that no rank has registered */
    }
    TRY(lane_wait(lane, 60000));
    comm_deregister(group, memory[0]);
    device_release(device, memory[0]);
    comm_deregister(group, &device); /* which is not registered */
    ck_assert(comm_enqueue_needs_peers(later));
    lane_close(lane);
    comm_free(later); /* while the other one remains */
    comm_free(part);
    comm_free(group);
    device_release(device, memory[1]);
    device_close(device);
    return NULL;
}

TEST(parts)
{
    struct group_result results[GROUP_MAX];
    cuda_fixture_begin(101);
    group_run(GROUP_LOCAL, 2, 60000, split_and_register, NULL, results);
    for (int r = 0; r < 2; r++)
        ck_assert_msg(results[r].code == STATUS_OK, "rank %d: %s", r, results[r].message);
    ck_assert_int_eq(cuda_stub_count("ncclCommRegister"), 2 * 2 * 3);
    ck_assert_int_eq(cuda_stub_count("ncclCommDeregister"), 2 * 2 * 3);
    ck_assert_uint_eq(nccl_stub_taken(), 0);
}

/* From NCCL 2.31.2 on every arena is one window. */
TEST(windows)
{
    struct engine_job job = job_of(TINY_GPT2);
    struct engine_outcome *expected = run_without(&job, 2);
    cuda_fixture_begin(111);
    nccl_stub_version(23102);
    job.register_buffers = true;
    struct engine_outcome *found = engine_train(&job, GROUP_LOCAL, 2);
    expect_same(found, expected);
    ck_assert_int_eq(cuda_stub_count("ncclCommWindowRegister"), 2 * 2);
    ck_assert_int_eq(cuda_stub_count("ncclCommRegister"), 0);
    ck_assert_uint_eq(nccl_stub_taken(), 0);
    nccl_stub_version(0);
    engine_outcome_free(found);
    engine_outcome_free(expected);
}

/* NCCL waits in a registration that nothing ends: the deadline is the group's, and the process has
 * to end. */
TEST(registration_hangs)
{
    struct engine_job job = job_of(TINY_GPT2);
    job.register_buffers = true;
    cuda_fixture_begin(121);
    cuda_fixture_timeout_ms = 300;
    nccl_stub_hang_registering();
    struct group_result results[GROUP_MAX];
    struct engine_run what = {&job, engine_outcome_new(&job)};
    group_run(GROUP_LOCAL, 2, 60000, engine_rank, &what, results);
    for (int r = 0; r < 2; r++)
        ck_assert_msg(results[r].code == STATUS_DEADLINE_EXCEEDED &&
                          strstr(results[r].message, "ncclCommRegister was not done within 300 ms; "
                                                     "NCCL cannot end it, so this process has lost "
                                                     "its device") != NULL,
                      "rank %d: %s", r, results[r].message);
    engine_outcome_free(what.outcome);
    ck_assert(device_is_lost());
}
