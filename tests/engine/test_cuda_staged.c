/*
 * Devices that communicate through host memory (daemon/runtime/cuda/comm_staged.c), over the stub
 * of the runtime and the real Gloo: every collective has the bits of the CPU's, steps have those of
 * NCCL's stub, enqueueing never waits, and a lost, late or aborted peer ends the waits for it.
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "../emulation/cuda_stub.h"
#include "base/clock.h"
#include "base/mem.h"
#include "cuda_fixture.h"
#include "runtime/comm_table.h"
#include "tests/testing.h"

/* ---- one collective ---- */

/* A rank of a group, on the device or on the CPU, with memory there. */
struct member {
    struct device *device;
    struct lane_queue *lane;
    struct comm *group;
    char *in, *out, *workspace;
};

static status_t enter(struct member *member, const char *device, struct comm *group, size_t bytes)
{
    int world = comm_world(group);
    TRY(device_open(device, 1, &member->device));
    if (strcmp(device, "cpu") != 0)
        TRY(cuda_fixture_join_staged(member->device, comm_rank(group), world, &member->group));
    TRY(lane_open(member->device, LANE_COMM, &member->lane));
    TRY(device_allocate(member->device, bytes, (void **)&member->in));
    TRY(device_allocate(member->device, bytes, (void **)&member->out));
    return device_allocate(member->device, comm_workspace_bytes(world),
                           (void **)&member->workspace);
}

static void leave(struct member *member)
{
    lane_close(member->lane);
    comm_free(member->group);
    if (member->device != NULL) {
        device_release(member->device, member->in);
        device_release(member->device, member->out);
        device_release(member->device, member->workspace);
    }
    device_close(member->device);
    *member = (struct member){NULL, NULL, NULL, NULL, NULL, NULL};
}

enum what {
    GATHER_ALL,
    GATHER_ALL_IN_PLACE,
    GATHER_ALL_BF16,
    GATHER_ALL_ROUNDED,
    REDUCE_SCATTER,
    REDUCE_SCATTER_IN_PLACE,
    REDUCE_SCATTER_BF16,
    REDUCE_ALL,
    REDUCE_ALL_BF16,
    BROADCAST,
    GATHER,
    EXCHANGE,
    BARRIER,
    WHATS,
};

/* Every rank's `in` goes to all, a part each, a piece at a time. */
static status_t exchange(struct member *m, struct comm *comm, size_t count)
{
    static _Thread_local struct comm_piece pieces[GROUP_MAX * GROUP_MAX]; /* until it is done */
    const int world = comm_world(comm);
    for (int i = 0; i < world * world; i++)
        pieces[i] = (struct comm_piece){.from = i / world,
                                        .to = i % world,
                                        .source = i % world * (int64_t)count,
                                        .target = i / world * (int64_t)count,
                                        .count = (int64_t)count};
    return comm_exchange(comm, m->lane, pieces, world * world, (float *)(void *)m->in,
                         (float *)(void *)m->out);
}

/* On the CPU by `comm`, which is not the member's. */
static status_t do_one(struct member *m, struct comm *comm, enum what what, size_t count)
{
    const int rank = comm_rank(comm), root = comm_world(comm) - 1;
    float *in = (float *)(void *)m->in, *out = (float *)(void *)m->out;
    uint16_t *low = (uint16_t *)(void *)m->out;
    switch (what) {
    case GATHER_ALL: return comm_all_gather(comm, m->lane, in, out, count);
    case GATHER_ALL_IN_PLACE:
        return comm_all_gather(comm, m->lane, in + (size_t)rank * count, in, count);
    case GATHER_ALL_BF16: return comm_all_gather_bf16(comm, m->lane, in, low, count);
    case GATHER_ALL_ROUNDED:
        return comm_all_gather_rounded(comm, m->lane, (uint16_t *)(void *)in, low, count);
    case REDUCE_SCATTER:
        return comm_reduce_scatter(comm, m->lane, in, out, count, 1, m->workspace);
    case REDUCE_SCATTER_IN_PLACE:
        return comm_reduce_scatter(comm, m->lane, in, in + (size_t)rank * count, count, 1,
                                   m->workspace);
    case REDUCE_SCATTER_BF16:
        return comm_reduce_scatter_bf16(comm, m->lane, in, out, count, 1, m->workspace);
    case REDUCE_ALL: return comm_all_reduce(comm, m->lane, in, count, 1, m->workspace);
    case REDUCE_ALL_BF16:
        return comm_all_reduce_bf16(comm, m->lane, in, count, 1, m->workspace);
    case BROADCAST: return comm_broadcast(comm, m->lane, in, count * sizeof *in, root);
    case GATHER: return comm_gather(comm, m->lane, in, rank == root ? out : NULL, count, root);
    case EXCHANGE: return exchange(m, comm, count);
    case BARRIER: return comm_barrier(comm, m->lane);
    case WHATS: break;
    }
    return NULL;
}

/* The collective's result memory, and its size in bytes. */
static char *result_of(struct member *m, struct comm *comm, enum what what, size_t count,
                       size_t *bytes)
{
    const size_t rank = (size_t)comm_rank(comm), world = (size_t)comm_world(comm);
    const bool at_root = rank == world - 1;
    switch (what) {
    case EXCHANGE:
    case GATHER_ALL: *bytes = world * count * sizeof(float); return m->out;
    case GATHER_ALL_IN_PLACE: *bytes = world * count * sizeof(float); return m->in;
    case GATHER_ALL_BF16:
    case GATHER_ALL_ROUNDED: *bytes = world * count * sizeof(uint16_t); return m->out;
    case REDUCE_SCATTER:
    case REDUCE_SCATTER_BF16: *bytes = count * sizeof(float); return m->out;
    case REDUCE_SCATTER_IN_PLACE:
        *bytes = count * sizeof(float);
        return m->in + rank * count * sizeof(float);
    case REDUCE_ALL:
    case REDUCE_ALL_BF16:
    case BROADCAST: *bytes = count * sizeof(float); return m->in;
    case GATHER: *bytes = at_root ? world * count * sizeof(float) : 0; return m->out;
    case BARRIER:
    case WHATS: break;
    }
    *bytes = 0;
    return m->in;
}

/* Fills with very different magnitudes, so that the order of a sum shows. */
static void fill(float *values, size_t count, int rank, enum what what)
{
    uint64_t x = (uint64_t)rank * 77777 + (uint64_t)what * 991 + count;
    for (size_t i = 0; i < count; i++) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        values[i] = ldexpf((float)(int32_t)(x >> 33) - 0x1p30f, (int)(x >> 20 & 15) - 38);
    }
}

/* Runs it on memory with these contents, and puts the result into `found`. */
static status_t run_one(struct member *m, struct comm *comm, enum what what, size_t count,
                        const float *contents, size_t all, char *found, size_t *bytes)
{
    char *nothing = mem_alloc(all * sizeof(float));
    status_t status = lane_copy(m->lane, m->in, contents, all * sizeof(float));
    if (status == NULL) status = lane_copy(m->lane, m->out, nothing, all * sizeof(float));
    if (status == NULL) status = do_one(m, comm, what, count);
    const char *result = result_of(m, comm, what, count, bytes);
    if (status == NULL) status = lane_copy(m->lane, found, result, *bytes);
    status = status_first(status, lane_wait(m->lane, 20000));
    free(nothing);
    return status;
}

enum { COUNTS = 4 };

/* The last one exceeds the staging memory: all together on one rank and two, each rank's part on
 * more. */
static size_t nth_count(int n, int world)
{
    static const size_t counts[] = {2, 130, 5000, COMM_STAGING_BYTES / sizeof(float)};
    return n < COUNTS - 1 ? counts[n] : counts[n] / (world > 2 ? 4 : 1) + 46; /* even */
}

static status_t compare(struct comm *comm, struct member *cpu, struct member *gpu, enum what what,
                        size_t count)
{
    const size_t all = (size_t)comm_world(comm) * count;
    float *contents = mem_alloc_array(all, sizeof *contents);
    char *expected = mem_alloc(all * sizeof(float)), *found = mem_alloc(all * sizeof(float));
    size_t bytes = 0, others = 0;
    fill(contents, all, comm_rank(comm), what);
    status_t status = run_one(cpu, comm, what, count, contents, all, expected, &bytes);
    if (status == NULL)
        status = run_one(gpu, gpu->group, what, count, contents, all, found, &others);
    for (size_t i = 0; i < bytes && status == NULL; i++)
        if (expected[i] != found[i])
            status = status_new(STATUS_INTERNAL, "collective %d of %zu: byte %zu is %d, not %d",
                                (int)what, count, i, found[i], expected[i]);
    free(contents);
    free(expected);
    free(found);
    return status;
}

static status_t compare_all(struct comm *comm, void *argument)
{
    struct member cpu = {0}, gpu = {0};
    const int world = comm_world(comm);
    const size_t bytes = (size_t)world * nth_count(COUNTS - 1, world) * sizeof(float);
    (void)argument;
    status_t status = enter(&cpu, "cpu", comm, bytes);
    if (status == NULL) status = enter(&gpu, "cuda:0", comm, bytes);
    for (int what = 0; what < WHATS && status == NULL; what++)
        for (int n = 0; n < COUNTS && status == NULL; n++)
            status = compare(comm, &cpu, &gpu, (enum what)what, nth_count(n, world));
    if (status == NULL && comm_is_repeatable(gpu.group))
        status = status_new(STATUS_INTERNAL, "the host has a part in it");
    /* The group leaves together: a rank that leaves first is lost to those that still
     * communicate. */
    if (status == NULL) status = comm_barrier(gpu.group, gpu.lane);
    if (status == NULL) status = lane_wait(gpu.lane, 20000);
    leave(&cpu);
    leave(&gpu);
    return status;
}

static void expect_success(const struct group_result *results, int world)
{
    for (int r = 0; r < world; r++)
        ck_assert_msg(results[r].code == STATUS_OK, "rank %d: %s", r, results[r].message);
}

TESTS_BELOW(.timeout = 240, .set_up = cuda_fixture_set_up, .tear_down = cuda_fixture_tear_down);

LOOP_TEST(bits_of_collectives, 0, 4)
{
    struct group_result results[GROUP_MAX];
    cuda_fixture_timeout_ms = 30000;
    group_run(GROUP_LOCAL, 1 + _i, 60000, compare_all, NULL, results);
    expect_success(results, 1 + _i);
}

/* The ranks' agreements lie in host memory and travel directly, never half of one. */
static status_t share_host_memory(struct comm *comm, void *argument)
{
    enum { COUNT = 100 };
    struct member gpu = {0};
    const int rank = comm_rank(comm), world = comm_world(comm);
    float own[COUNT], *all = mem_alloc_array((size_t)world * COUNT, sizeof *all);
    (void)argument;
    for (int i = 0; i < COUNT; i++) own[i] = (float)(rank * COUNT + i);
    status_t status = enter(&gpu, "cuda:0", comm, 1000);
    if (status == NULL) status = comm_all_gather(gpu.group, gpu.lane, own, all, COUNT);
    if (status == NULL) status = lane_wait(gpu.lane, 20000);
    for (int i = 0; i < world * COUNT && status == NULL; i++)
        if (all[i] != (float)i) status = status_new(STATUS_INTERNAL, "element %d", i);
    if (status == NULL) status = comm_all_reduce(gpu.group, gpu.lane, own, COUNT, 1, NULL);
    if (status == NULL) status = comm_broadcast(gpu.group, gpu.lane, all, 4, world - 1);
    if (status == NULL) status = lane_wait(gpu.lane, 20000);
    float sum = (float)(world * (world - 1) / 2 * COUNT);
    for (int i = 0; i < COUNT && status == NULL; i++)
        if (own[i] != sum + (float)(world * i))
            status = status_new(STATUS_INTERNAL, "the sum of element %d is %g", i, (double)own[i]);
    status_t refused = comm_all_gather(gpu.group, gpu.lane, own, (float *)(void *)gpu.out, COUNT);
    if (status == NULL && (status_code(refused) != STATUS_INTERNAL ||
                           strstr(status_message(refused), "all_gather: one side") == NULL))
        status = status_new(STATUS_INTERNAL, "not refused: %s", status_message(refused));
    status_free(refused);
    leave(&gpu);
    free(all);
    return status;
}

TEST(host_memory)
{
    struct group_result results[GROUP_MAX];
    group_run(GROUP_LOCAL, 3, 60000, share_host_memory, NULL, results);
    expect_success(results, 3);
}

/* ---- steps ---- */

static void new_group(void)
{
    int64_t timeout_ms = cuda_fixture_timeout_ms;
    cuda_fixture_tear_down();
    cuda_fixture_set_up();
    cuda_fixture_timeout_ms = timeout_ms;
}

/* NCCL's stub adds in the order of the ranks, too: only the transport differs. */
static void compare_steps(struct engine_job job, int world)
{
    job.device = "cuda:0";
    job.join = cuda_fixture_join;
    struct engine_outcome *expected = engine_train(&job, GROUP_LOCAL, world);
    new_group();
    job.join = cuda_fixture_join_staged;
    struct engine_outcome *found = engine_train(&job, GROUP_LOCAL, world);
    for (int s = 0; s < job.steps; s++)
        ck_assert_msg(memcmp(&found->loss[s], &expected->loss[s], sizeof found->loss[s]) == 0,
                      "loss %d is %.9g, not %.9g", s, (double)found->loss[s],
                      (double)expected->loss[s]);
    for (int64_t i = 0; i < expected->parameter_elements; i++)
        ck_assert_msg(memcmp(&found->parameters[i], &expected->parameters[i], sizeof(float)) == 0,
                      "parameter %lld is %.9g, not %.9g", (long long)i,
                      (double)found->parameters[i], (double)expected->parameters[i]);
    ck_assert_mem_eq(found->evaluated, expected->evaluated, sizeof found->evaluated);
    ck_assert_str_eq(found->collectives, expected->collectives);
    ck_assert_uint_gt(found->sent_bytes[0], 0);
    engine_outcome_free(expected);
    engine_outcome_free(found);
}

LOOP_TEST(steps, 0, TINY_COUNT)
{
    struct engine_job job = cuda_fixture_job(_i);
    int world = 2 + _i;
    if (world == 4) job.global_batch = 4;
    compare_steps(job, world);
}

TEST(steps_with_muon)
{
    compare_steps(cuda_fixture_muon(), 3);
}

TEST(steps_with_adafactor)
{
    compare_steps(cuda_fixture_adafactor(), 3);
}

LOOP_TEST(steps_in_bf16, 0, 2)
{
    struct engine_job job = cuda_fixture_job(TINY_GPT2);
    job.param_dtype = DTYPE_BF16;
    job.reduce_dtype = _i ? DTYPE_BF16 : DTYPE_F32;
    compare_steps(job, 2);
}

/* Groups of two, whose parts reduce gradients in two ways. */
LOOP_TEST(steps_of_groups, 0, 2)
{
    struct engine_job job = cuda_fixture_job(TINY_LLAMA);
    job.strategy = STRATEGY_HYBRID_SHARD;
    job.shard_size = 2;
    job.global_batch = 4;
    job.reduce_dtype = _i ? DTYPE_BF16 : DTYPE_F32;
    compare_steps(job, 4);
}

LOOP_TEST(steps_without_shards, 0, 2)
{
    struct engine_job job = cuda_fixture_job(TINY_BERT);
    job.strategy = STRATEGY_NO_SHARD;
    job.micro_steps = 2;
    job.no_sync = _i == 1;
    compare_steps(job, 3);
}

/* ---- enqueueing never waits ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open;
} gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};

static void gate_set(bool open)
{
    pthread_mutex_lock(&gate.lock);
    gate.open = open;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.lock);
}

static void gate_pass(void)
{
    pthread_mutex_lock(&gate.lock);
    while (!gate.open) pthread_cond_wait(&gate.changed, &gate.lock);
    pthread_mutex_unlock(&gate.lock);
}

/* Rank 0 has enqueued all of it before rank 1 begins. */
static status_t enqueue_first(struct comm *comm, void *argument)
{
    enum { COUNT = 3 << 18 };
    struct member gpu = {0};
    (void)argument;
    status_t status = enter(&gpu, "cuda:0", comm, 2 * COUNT * sizeof(float));
    if (comm_rank(comm) == 1) gate_pass();
    for (int i = 0; i < 20 && status == NULL; i++)
        status = comm_all_gather(gpu.group, gpu.lane, (float *)(void *)gpu.in,
                                 (float *)(void *)gpu.out, i == 19 ? COUNT : 100);
    gate_set(true);
    status = status_first(status, lane_wait(gpu.lane, 20000));
    leave(&gpu);
    return status;
}

TEST(enqueueing_does_not_wait)
{
    struct group_result results[GROUP_MAX];
    gate_set(false);
    group_run(GROUP_LOCAL, 2, 60000, enqueue_first, NULL, results);
    expect_success(results, 2);
}

/* ---- failures ---- */

/* Rank 1 leaves instead of joining, or stays without joining. */
static status_t stay_away(struct comm *comm, void *argument)
{
    struct member gpu = {0};
    const bool *leaves = argument;
    status_t status = enter(&gpu, "cuda:0", comm, 1 << 20);
    if (status == NULL && comm_rank(comm) == 0) {
        lane_label(gpu.lane, "the step's gather");
        status = comm_all_gather(gpu.group, gpu.lane, (float *)(void *)gpu.in,
                                 (float *)(void *)gpu.out, 100);
        /* All later work fails as well, at once. */
        if (status == NULL) status = comm_barrier(gpu.group, gpu.lane);
        status = status_first(status, lane_wait(gpu.lane, 20000));
        gate_set(true);
        lane_label(gpu.lane, NULL);
        status_t next = comm_barrier(gpu.group, gpu.lane);
        next = status_first(next, lane_wait(gpu.lane, 20000));
        if (next == NULL) status = status_first(NULL, status_new(STATUS_INTERNAL, "it continued"));
        status_free(next);
    } else if (!*leaves) {
        gate_pass();
    }
    leave(&gpu);
    return status;
}

LOOP_TEST(peers, 0, 2)
{
    struct group_result results[GROUP_MAX];
    bool leaves = _i == 0;
    cuda_fixture_timeout_ms = leaves ? 60000 : 600;
    gate_set(false);
    group_run(GROUP_LOCAL, 2, 60000, stay_away, &leaves, results);
    ck_assert_int_eq(results[0].code, leaves ? STATUS_UNAVAILABLE : STATUS_DEADLINE_EXCEEDED);
    ck_assert_ptr_nonnull(strstr(results[0].message, "the step's gather: all_gather number 1 "
                                                     "(100 elements) on rank 0 of 2: "));
    ck_assert_msg(strstr(results[0].message, "rank 1") != NULL, "%s", results[0].message);
    ck_assert_int_eq(results[1].code, STATUS_OK);
    ck_assert_double_lt(results[0].seconds, 30);
}

static void *abort_soon(void *group)
{
    clock_sleep_ms(50);
    comm_abort(group, "a caller requested it");
    return NULL;
}

static status_t wait_for_abort(struct comm *comm, void *argument)
{
    struct member gpu = {0};
    pthread_t thread;
    (void)argument;
    status_t status = enter(&gpu, "cuda:0", comm, 1000);
    if (status == NULL && comm_rank(comm) == 0) {
        ck_assert_int_eq(pthread_create(&thread, NULL, abort_soon, gpu.group), 0);
        status = comm_barrier(gpu.group, gpu.lane);
        status = status_first(status, lane_wait(gpu.lane, 20000));
        pthread_join(thread, NULL);
        gate_set(true);
    } else {
        gate_pass();
    }
    leave(&gpu);
    return status;
}

TEST(abort)
{
    struct group_result results[GROUP_MAX];
    gate_set(false);
    group_run(GROUP_LOCAL, 2, 60000, wait_for_abort, NULL, results);
    ck_assert_int_eq(results[0].code, STATUS_ABORTED);
    ck_assert_ptr_nonnull(strstr(results[0].message, "a caller requested it"));
    ck_assert_double_lt(results[0].seconds, 30);
}

/* A rank whose call fails in the step leaves; its peer learns which rank it lost. Not an error of the
 * device, which both ranks would meet: they share the process. */
static const char *fail_call;

static void fail_in_step(struct executor *executor, struct comm *comm, int step)
{
    (void)executor;
    if (step == 1 && comm_rank(comm) == 0)
        cuda_stub_fail_here(fail_call, 3, cudaErrorInvalidValue);
}

LOOP_TEST(step_fails, 0, 3)
{
    static const char *const calls[] = {"host", "copy", "launch"};
    struct engine_job job = cuda_fixture_job(TINY_GPT2);
    struct group_result results[GROUP_MAX];
    job.device = "cuda:0";
    job.join = cuda_fixture_join_staged;
    job.poison = false;
    job.before_step = fail_in_step;
    fail_call = calls[_i];
    struct engine_run what = {&job, engine_outcome_new(&job)};
    group_run(GROUP_LOCAL, 2, 60000, engine_rank, &what, results);
    int reported = 0, lost = 0;
    for (int r = 0; r < 2; r++) {
        ck_assert_int_ne(results[r].code, STATUS_OK);
        ck_assert_double_lt(results[r].seconds, 30);
        reported += strstr(results[r].message, "another error") != NULL;
        lost += results[r].code == STATUS_UNAVAILABLE && strstr(results[r].message, "lost rank");
    }
    ck_assert_msg(reported == 1 && lost == 1, "%s; %s", results[0].message, results[1].message);
    engine_outcome_free(what.outcome);
}

static status_t join_without_memory(struct comm *comm, void *argument)
{
    struct member gpu = {0};
    (void)argument;
    status_t status = enter(&gpu, "cuda:0", comm, 1000);
    leave(&gpu);
    return status;
}

TEST(no_host_memory)
{
    struct group_result results[GROUP_MAX];
    struct device *device = NULL;
    ck_assert_ptr_null(device_open("cuda:0", 1, &device)); /* the first one resets the stub */
    device_close(device);
    cuda_stub_fail("cudaMallocHost", 1, cudaErrorMemoryAllocation);
    group_run(GROUP_LOCAL, 1, 60000, join_without_memory, NULL, results);
    ck_assert_int_eq(results[0].code, STATUS_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(results[0].message, "host memory of a group"));
}
