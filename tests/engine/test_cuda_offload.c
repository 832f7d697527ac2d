/*
 * Offloaded units on the CUDA device, over the stub of the runtime (tests/emulation/cuda_stub.cc),
 * whose memory the host cannot touch and which captures only copies of pinned memory: the same bits
 * as without offloading, in any order of streams, threads and the host's lane; failures are
 * reported. test_cuda_session.c has whole runs.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/mempolicy.h>

#include <cuda_runtime_api.h>

#include "../emulation/cuda_stub.h"
#include "base/file.h"
#include "base/mem.h"
#include "cuda_fixture.h"
#include "kernels/kernel.h"
#include "runtime/backend.h"
#include "tests/testing.h"

static struct engine_outcome *train(struct engine_job *job, int world, uint64_t seed)
{
    cuda_fixture_tear_down(); /* a new group */
    cuda_fixture_set_up();
    cuda_stub_reset(seed);
    return engine_train(job, GROUP_LOCAL, world);
}

/* In two orders of the streams. */
static void compare(struct engine_job job, int world)
{
    job.device = "cuda:0";
    if (world > 1) job.join = cuda_fixture_join;
    struct engine_outcome *expected = train(&job, world, 1);
    ck_assert_uint_eq(expected->planned_host[0], 0);
    job.cpu_offload = job.host_apart = true;
    for (uint64_t seed = 2; seed < 4; seed++) {
        struct engine_outcome *found = train(&job, world, seed);
        ck_assert_uint_gt(found->planned_host[0], 0);
        ck_assert_uint_lt(found->planned_peak[0], expected->planned_peak[0]);
        ck_assert_mem_eq(found->loss, expected->loss, sizeof found->loss);
        ck_assert_mem_eq(found->norm, expected->norm, sizeof found->norm);
        ck_assert_mem_eq(found->evaluated, expected->evaluated, sizeof found->evaluated);
        ck_assert_int_eq(found->parameter_elements, expected->parameter_elements);
        ck_assert_mem_eq(found->parameters, expected->parameters,
                         (size_t)found->parameter_elements * sizeof(float));
        engine_outcome_free(found);
    }
    engine_outcome_free(expected);
}

TESTS_BELOW(.timeout = 240, .set_up = cuda_fixture_set_up, .tear_down = cuda_fixture_tear_down);

LOOP_TEST(models, 0, 3 * TINY_COUNT)
{
    compare(cuda_fixture_job(_i % TINY_COUNT), 1 + _i / TINY_COUNT);
}

static const char *no_nodes(void)
{
    unsigned long node_0 = 1;
    if (access("/sys/bus/pci/devices/.", R_OK) != 0) return "/sys has no PCI bus";
    if (syscall(SYS_set_mempolicy, MPOL_PREFERRED, &node_0, 64) != 0) return "no NUMA policies";
    syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0);
    return NULL;
}

TESTS_BELOW(.timeout = 60, .set_up = cuda_fixture_set_up, .tear_down = cuda_fixture_tear_down,
            .skip = no_nodes);

/* Pinned memory lies on the node of the device, as the kernel reports it; not if none is known, or if
 * the process has a policy of its own. The thread's policy is as before. */
LOOP_TEST(pages_on_the_node, 0, 3)
{
    static const char *const nodes[] = {"0\n", "-1\n", "0\n"};
    struct device *device = NULL;
    void *memory = NULL;
    unsigned long node_0 = 1;
    int policy = -1, expected = _i == 2 ? MPOL_INTERLEAVE : MPOL_DEFAULT;
    char *directory = mem_printf("/tmp/fsdpd-test-node-%d", (int)getpid());
    char *file = mem_printf("%s/numa_node", directory);
    char *bus = mem_printf("../../../..%s", directory);
    ck_assert_int_eq(mkdir(directory, 0700), 0);
    ck_assert_ptr_null(file_write_atomic(file, nodes[_i], strlen(nodes[_i]), 0600));
    setenv("FSDPD_STUB_BUS", bus, 1);
    if (_i == 2) ck_assert_int_eq(syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, &node_0, 64), 0);
    cuda_fixture_begin(1);
    ck_assert_ptr_null(device_open("cuda:0", 1, &device));
    ck_assert_ptr_null(device_allocate_host(device, 4096, &memory));
    ck_assert_int_eq(cuda_stub_count("pages_on_node_0"), _i == 0);
    ck_assert_int_eq(syscall(SYS_get_mempolicy, &policy, NULL, 0, NULL, 0), 0);
    ck_assert_int_eq(policy, expected);
    device_release(device, memory);
    device_close(device);
    remove(file);
    remove(directory);
    free(bus);
    free(file);
    free(directory);
}

TESTS_BELOW(.timeout = 240, .set_up = cuda_fixture_set_up, .tear_down = cuda_fixture_tear_down);

/* The host's optimizers give the device's bits, and run before backward is over unless a norm
 * delays them. */
LOOP_TEST(optimizers, 0, 7)
{
    static const struct optimizer_step optimizers[] = {
        {.kind = OPTIMIZER_SGD, .lr = 0.05},
        {.kind = OPTIMIZER_SGD, .lr = 0.02, .momentum = 0.9, .nesterov = true},
        {.kind = OPTIMIZER_ADADELTA, .lr = 1, .rho = 0.9, .eps = 1e-6},
        {.kind = OPTIMIZER_ADAM, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-3},
        {.kind = OPTIMIZER_LION, .lr = 0.001, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1},
        {.kind = OPTIMIZER_ADAGRAD, .lr = 0.01, .lr_decay = 0.1, .eps = 1e-3},
        {.kind = OPTIMIZER_RADAM, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.9, .eps = 1e-3},
    };
    struct engine_job job = cuda_fixture_job(TINY_GPT2);
    job.optimizer = optimizers[_i];
    job.norm = NORM_NONE;
    job.max_norm = 0;
    job.steps = 3;
    compare(job, 2);
}

/* State in bf16, and parameters: either device rounds by the same draws. */
LOOP_TEST(halves, 0, 6)
{
    static const struct optimizer_step optimizers[] = {
        {.kind = OPTIMIZER_SGD, .lr = 0.02, .momentum = 0.9, .nesterov = true},
        {.kind = OPTIMIZER_ADADELTA, .lr = 1, .rho = 0.9, .eps = 1e-6},
        {.kind = OPTIMIZER_LION, .lr = 0.001, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1},
        {.kind = OPTIMIZER_ADAGRAD, .lr = 0.01, .lr_decay = 0.1, .eps = 1e-3},
    };
    struct engine_job job = cuda_fixture_job(TINY_GPT2); /* whose optimizer is AdamW */
    if (_i < 4) job.optimizer = optimizers[_i];
    else job.optimizer.state = STATE_BF16;
    job.rounded = _i < 5;
    if (job.rounded) job.param_dtype = DTYPE_BF16;
    job.steps = 3;
    compare(job, 1 + (_i + 1) % 3);
}

/* Frozen units travel as they are kept. */
LOOP_TEST(frozen, 0, 8)
{
    enum dtype param_dtype = _i % 2 ? DTYPE_BF16 : DTYPE_F32;
    for (int world = 1; world <= 3; world++)
        compare(cuda_fixture_frozen(BASE_BF16 + (enum base_dtype)(_i / 2), param_dtype), world);
}

/* Strategies, accumulation with and without communication, bf16 on the wire. */
LOOP_TEST(ways, 0, 11)
{
    struct engine_job job = cuda_fixture_job(TINY_LLAMA);
    int world = 2;
    switch (_i) {
    case 0: job.strategy = STRATEGY_SHARD_GRAD_OP; break;
    case 1: job.strategy = STRATEGY_NO_SHARD; break;
    case 2:
        job.strategy = STRATEGY_HYBRID_SHARD;
        job.shard_size = 2;
        job.global_batch = 4;
        world = 4;
        break;
    case 3:
        job.reshard = RESHARD_GROUP;
        job.reshard_ranks = 2;
        job.global_batch = 4;
        world = 4;
        break;
    case 4: job.micro_steps = 2; break;
    case 5:
        job.micro_steps = 2;
        job.no_sync = true;
        break;
    case 6: job.param_dtype = job.reduce_dtype = DTYPE_BF16; break;
    case 9:
    case 10: /* ops read copies in bf16, which the host's optimizers write */
        job.strategy = STRATEGY_NO_SHARD;
        job.param_dtype = DTYPE_BF16;
        world = _i - 8;
        break;
    default: job.prefetch = _i == 7 ? PREFETCH_POST : PREFETCH_NONE; break;
    }
    compare(job, world);
}

/* The host's optimizers use the worker's threads. */
TEST(threads)
{
    struct device *device = NULL;
    struct lane_queue *lane = NULL;
    ck_assert_ptr_null(device_open("cuda:0", 3, &device));
    ck_assert_int_ne(kernels_threads(), 3);
    ck_assert_ptr_null(lane_open(device, LANE_HOST, &lane));
    ck_assert_int_eq(kernels_threads(), 3);
    lane_close(lane);
    device_close(device);
}

/* ---- what fails ---- */

static int fail_number, fail_error = cudaErrorLaunchFailure;
static const char *fail_call;

static void fail_in_step(struct executor *executor, struct comm *comm, int step)
{
    (void)executor, (void)comm;
    if (step == 1) cuda_stub_fail(fail_call, fail_number, fail_error);
}

/* The message of the job's end; NULL if it succeeded. Caller frees. */
static char *run_failing(struct engine_job *job, enum status_code *code)
{
    struct group_result results[GROUP_MAX];
    struct engine_run what = {job, engine_outcome_new(job)};
    group_run(GROUP_LOCAL, 1, 60000, engine_rank, &what, results);
    *code = results[0].code;
    char *message = results[0].code == STATUS_OK ? NULL : mem_strdup(results[0].message);
    engine_outcome_free(what.outcome);
    return message;
}

static struct engine_job offloaded_job(void)
{
    struct engine_job job = cuda_fixture_job(TINY_GPT2);
    job.device = "cuda:0";
    job.poison = false;
    job.cpu_offload = job.host_apart = true;
    return job;
}

/* Each of a step's copies fails in turn: errors of uploads and downloads name their units. */
TEST(copies_fail)
{
    int uploads = 0, downloads = 0;
    fail_call = "copy";
    for (fail_number = 1;; fail_number++) {
        cuda_stub_reset(5);
        struct engine_job job = offloaded_job();
        enum status_code code;
        job.before_step = fail_in_step;
        char *message = run_failing(&job, &code);
        if (message == NULL) break;
        ck_assert_msg(strstr(message, "unspecified launch failure") != NULL, "%s", message);
        uploads += strstr(message, ", upload of unit ") != NULL;
        downloads += strstr(message, ", download of unit ") != NULL;
        free(message);
    }
    ck_assert_int_ge(uploads, 4);
    ck_assert_int_ge(downloads, 2);
}

/* The host's lane waits for the device's; a failure of that wait is reported. */
TEST(waiting_fails)
{
    struct engine_job job = offloaded_job();
    enum status_code code;
    fail_call = "cudaEventQuery", fail_number = 1;
    fail_error = cudaErrorInvalidValue; /* not of the device: the other lanes would report that */
    job.before_step = fail_in_step;
    char *message = run_failing(&job, &code);
    ck_assert_ptr_nonnull(message);
    ck_assert_msg(strstr(message, "cudaEventQuery: another error") != NULL, "%s",
                  message);
    free(message);
}

TEST(no_host_memory)
{
    struct engine_job job = offloaded_job();
    enum status_code code;
    const struct backend_table *table = NULL;
    ck_assert_ptr_null(backend_load(&table)); /* which resets the stub when it is first opened */
    cuda_stub_fail("cudaHostAlloc", 1, cudaErrorMemoryAllocation);
    char *message = run_failing(&job, &code);
    ck_assert_int_eq(code, STATUS_RESOURCE_EXHAUSTED);
    ck_assert_msg(strstr(message, "of pinned host memory; the host has ") != NULL, "%s", message);
    free(message);
}
