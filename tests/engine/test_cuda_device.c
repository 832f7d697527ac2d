/*
 * The CUDA device under a stub of the runtime (tests/emulation/cuda_stub.cc): whole training steps
 * match the CPU in any order of streams and threads; the enqueued work is the plan, with its
 * events. test_cuda_failures.c tests failures.
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "../emulation/cuda_stub.h"
#include "base/mem.h"
#include "cuda_fixture.h"
#include "runtime/backend.h"
#include "tests/testing.h"

/* ---- results ---- */

static void compare(const struct engine_job *given, int world, double bound)
{
    struct engine_job job = *given;
    struct engine_outcome *expected = engine_train(&job, GROUP_LOCAL, world);
    job.device = "cuda:0";
    job.join = cuda_fixture_join;
    for (uint64_t seed = 1; seed <= 2; seed++) {
        cuda_stub_reset(seed * 1000);
        struct engine_outcome *found = engine_train(&job, GROUP_LOCAL, world);
        for (int s = 0; s < job.steps; s++) {
            double e = expected->loss[s], f = found->loss[s];
            ck_assert_msg(fabs(e - f) <= bound * (1 + fabs(e)), "loss %d is %.9g, the cpu's %.9g",
                          s, f, e);
        }
        for (int64_t i = 0; i < expected->parameter_elements; i++) {
            double e = expected->parameters[i], f = found->parameters[i];
            ck_assert_msg(fabs(e - f) <= 10 * bound * (1 + fabs(e)),
                          "parameter %lld is %.9g, the cpu's %.9g", (long long)i, f, e);
        }
        for (int i = 0; i < PLAN_STATS_COUNT; i++)
            ck_assert_double_eq_tol(found->evaluated[i], expected->evaluated[i],
                                    bound * (1 + fabs((double)expected->evaluated[i])));
        ck_assert_str_eq(found->collectives, expected->collectives);
        engine_outcome_free(found);
        if (world > 1) { /* a new group */
            cuda_fixture_tear_down();
            cuda_fixture_set_up();
        }
    }
    engine_outcome_free(expected);
}

TESTS_BELOW(.timeout = 240, .set_up = cuda_fixture_set_up, .tear_down = cuda_fixture_tear_down);

LOOP_TEST(transformers, 0, TINY_COUNT)
{
    struct engine_job job = cuda_fixture_job(_i % TINY_COUNT);
    compare(&job, 1, 2e-5);
}

LOOP_TEST(transformers_sharded, 0, 2 * TINY_COUNT)
{
    struct engine_job job = cuda_fixture_job(_i % TINY_COUNT);
    compare(&job, 2 + _i / TINY_COUNT, 2e-5);
}

LOOP_TEST(bf16, 0, 2)
{
    struct engine_job job = cuda_fixture_job(TINY_GPT2);
    job.param_dtype = DTYPE_BF16;
    job.reduce_dtype = _i ? DTYPE_BF16 : DTYPE_F32;
    job.optimizer = (struct optimizer_step){.kind = OPTIMIZER_SGD, .lr = 0.05};
    compare(&job, 2, 5e-3);
}

/* By the second step: the calls of both blocks' forward and backward ops. */
static int attended;

static void count_attention(struct executor *executor, struct comm *comm, int step)
{
    (void)executor, (void)comm;
    cuda_stub_record(step == 1);
    if (step != 2) return;
    char *text = cuda_stub_text();
    int count = 0;
    for (const char *at = text; (at = strstr(at, "cudnnBackendExecute compute")) != NULL; at++)
        count++;
    if (count > attended) attended = count;
    free(text);
}

/* By cuDNN, or the stub of its backend; plain, or with a mask of keys and dropout. */
LOOP_TEST(bf16_attention, 0, 4)
{
    struct engine_job job = cuda_fixture_job(TINY_GPT2);
    job.model = cuda_fixture_attentive(_i > 1);
    job.policy = (struct wrap_policy){.kind = WRAP_AUTO};
    job.param_dtype = DTYPE_BF16;
    job.optimizer = (struct optimizer_step){.kind = OPTIMIZER_SGD, .lr = 0.05};
    job.before_step = count_attention;
    job.steps = 3; /* the third one begins at the second one's end */
    compare(&job, 1 + _i % 2, 5e-3);
#ifdef FSDPD_HAVE_CUDNN
    ck_assert_int_ge(attended, 4);
#else
    ck_assert_int_eq(attended, 0);
#endif
}

/* Matrices are cut by shards anywhere, and some ranks have no part of one. Muon's iterations
 * magnify rounding; Adafactor's sums are doubles. */
LOOP_TEST(muon_and_adafactor, 0, 6)
{
    struct engine_job job = _i < 3 ? cuda_fixture_muon() : cuda_fixture_adafactor();
    static const int worlds[] = {3, 2, 4};
    _i %= 3;
    if (_i == 1) job.strategy = STRATEGY_NO_SHARD, job.norm = NORM_NONE, job.max_norm = 0;
    if (_i == 2) job.strategy = STRATEGY_HYBRID_SHARD, job.shard_size = 2, job.global_batch = 4;
    if (_i == 0) job.optimizer.adjust_lr = ADJUST_LR_MATCH_RMS_ADAMW;
    if (_i == 0) job.optimizer.ns_steps = 2, job.policy = (struct wrap_policy){.kind = WRAP_NONE};
    compare(&job, worlds[_i], 2e-5);
}

/* Frozen parameters of each type, which become what ops read whenever their unit is fetched. */
LOOP_TEST(frozen, 0, 8)
{
    enum dtype param_dtype = _i % 2 ? DTYPE_BF16 : DTYPE_F32;
    struct engine_job job = cuda_fixture_frozen(BASE_BF16 + (enum base_dtype)(_i / 2), param_dtype);
    for (int world = 1; world <= 3; world++) {
        compare(&job, world, _i % 2 ? 5e-3 : 2e-5);
        if (world == 1) continue;
        cuda_fixture_tear_down();
        cuda_fixture_set_up();
    }
}

TEST(hybrid)
{
    struct engine_job job = cuda_fixture_job(TINY_LLAMA);
    job.strategy = STRATEGY_HYBRID_SHARD;
    job.shard_size = 2;
    job.global_batch = 4;
    nccl_stub_owners();
    compare(&job, 4, 2e-5);
    ck_assert_int_eq(nccl_stub_owners(), 2 * 4); /* one per rank of two runs, whatever its parts */
}

/* Adafactor's convolutions are stacks of matrices. */
LOOP_TEST(mnist, 0, 2)
{
    struct engine_job job = {
        .model = engine_mnist(),
        .policy = {.kind = WRAP_SIZE, .min_num_params = 20000},
        .strategy = STRATEGY_FULL_SHARD,
        .prefetch = PREFETCH_PRE,
        .optimizer = {.kind = OPTIMIZER_ADADELTA, .lr = 1, .rho = 0.9, .eps = 1e-6},
        .global_batch = 2,
        .steps = 1,
        .dropout = true,
        .poison = true};
    if (_i == 1) job.optimizer = cuda_fixture_adafactor().optimizer;
    compare(&job, 1 + _i, 1e-4);
}

/* ---- the order of enqueued work ---- */

static char *recorded;

static void record_step(struct executor *executor, struct comm *comm, int step)
{
    (void)executor;
    (void)comm;
    cuda_stub_record(step == 1); /* the second step */
}

static const struct plan *planned;

static void keep_plan(struct executor *executor, struct comm *comm, int step)
{
    record_step(executor, comm, step);
    planned = executor_plan(executor);
}

/* Reads the record's lines on events and work, in order, from the second step on. */
struct reader {
    const char *at;
    char line[128];
};

static bool next_line(struct reader *reader)
{
    for (;;) {
        if (*reader->at == '\0') return false;
        size_t length = strcspn(reader->at, "\n");
        snprintf(reader->line, sizeof reader->line, "%.*s", (int)length, reader->at);
        reader->at += length + (reader->at[length] == '\n');
        /* the lane's own clocks, staging and queries */
        if (strstr(reader->line, "clock") != NULL) continue;
        if (strncmp(reader->line, "cudaStreamQuery", 15) == 0) continue;
        if (strncmp(reader->line, "cudaEventQuery", 14) == 0) continue; /* the host's lane */
        return true;
    }
}

static const char *const lane_names[LANE_COUNT] = {"compute", "comm", "copy", "download", "host"};

/* Whether the line is work, or a staging part's event, of that lane. */
static bool is_work(const char *line, const char *lane)
{
    char what[32], where[32];
    if (sscanf(line, "%31s %31s", what, where) != 2) return false;
    return strcmp(what, "wait") != 0 && strcmp(what, "record") != 0 && strcmp(where, lane) == 0;
}

static bool is_silent(const struct plan_program *program,
                      const struct plan_instruction *instruction)
{
    if (instruction->kind == INSTRUCTION_FREE) return true;
    if (instruction->kind != INSTRUCTION_COMPUTE) return false;
    const struct graph_op *op = &program->graph->ops[instruction->op];
    return op->kind == OP_RESHAPE && !op->accumulate[0]; /* a view */
}

static bool order_was_checked;

static void check_order(struct executor *executor, struct comm *comm, int step)
{
    keep_plan(executor, comm, step);
    if (step != 2) return;
    order_was_checked = true;
    recorded = cuda_stub_text();
    const struct plan_program *program = &planned->train;
    struct reader reader = {.at = recorded};
    char **events = mem_alloc_array((size_t)program->instruction_count, sizeof *events);
    bool more = next_line(&reader);
    int works = 0;
    /* Instructions of one lane with no event between them: the record cannot separate their
     * work. */
    int run_lane = LANE_COUNT, run_works = 0, run_due = 0;
    for (int i = 0; i < program->instruction_count; i++) {
        const struct plan_instruction *instruction = &program->instructions[i];
        const char *lane = lane_names[instruction->lane];
        if (instruction->lane == LANE_HOST) continue; /* CUDA never sees it */
        bool awaited = false;
        for (int j = i + 1; j < program->instruction_count; j++)
            for (int w = 0; w < program->instructions[j].wait_count; w++)
                awaited = awaited || program->instructions[j].waits[w] == i;
        bool silent = is_silent(program, instruction);
        if (instruction->wait_count > 0 || (int)instruction->lane != run_lane) {
            if (silent && instruction->wait_count == 0 && !awaited) continue;
            run_lane = (int)instruction->lane, run_works = run_due = 0;
        }
        for (int w = 0; w < instruction->wait_count; w++) {
            char *expected = mem_printf("wait %s %s", lane, events[instruction->waits[w]]);
            ck_assert_msg(more && strcmp(reader.line, expected) == 0,
                          "instruction %d: found \"%s\", expected \"%s\"", i, reader.line,
                          expected);
            free(expected);
            more = next_line(&reader);
        }
        int found = 0;
        while (more && is_work(reader.line, lane)) {
            found++;
            more = next_line(&reader);
            /* a copy from the host marks its part of the staging memory */
            while (more && instruction->kind == INSTRUCTION_COPY_BATCH &&
                   strncmp(reader.line, "record copy", 11) == 0 && found < 3)
                more = next_line(&reader);
            if (instruction->kind == INSTRUCTION_COPY_BATCH && found == 3) {
                more = more && next_line(&reader); /* of the last one */
                break;
            }
        }
        run_works += found, run_due += !silent;
        ck_assert_msg(run_works >= run_due, "instruction %d: nothing was enqueued before \"%s\"", i,
                      reader.line);
        works += found;
        if (!awaited) continue;
        run_lane = LANE_COUNT;
        char where[32], name[32];
        ck_assert_msg(more && sscanf(reader.line, "record %31s %31s", where, name) == 2 &&
                          strcmp(where, lane) == 0,
                      "instruction %d: found \"%s\", expected a record of %s", i, reader.line,
                      lane);
        events[i] = mem_strdup(name);
        more = next_line(&reader);
    }
    ck_assert_int_gt(works, program->instruction_count / 2);
    for (int i = 0; i < program->instruction_count; i++) free(events[i]);
    free(events);
    free(recorded);
}

LOOP_TEST(order, 0, 2)
{
    struct engine_job job = cuda_fixture_job(TINY_GPT2);
    setenv("FSDPD_CUDA_GRAPHS", "off", 1); /* call by call */
    job.device = "cuda:0";
    job.join = cuda_fixture_join;
    job.poison = false;
    job.before_step = check_order;
    job.steps = 3; /* the third one begins at the second one's end */
    job.cpu_offload = job.host_apart = _i == 1;
    const struct backend_table *table = NULL;
    ck_assert_ptr_null(backend_load(&table)); /* which resets the stub when it is first opened */
    if (_i == 1) cuda_stub_offloads();
    engine_outcome_free(engine_train(&job, GROUP_LOCAL, 1));
    ck_assert(order_was_checked);
}

/* ---- environment variables ---- */

/* FSDPD_CUDA_SYNC waits after every call. */
TEST(sync)
{
    setenv("FSDPD_CUDA_SYNC", "1", 1);
    struct engine_job job = cuda_fixture_job(TINY_GPT2);
    compare(&job, 2, 2e-5);
}

static int count_of(const char *text, const char *what)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at++) count++;
    return count;
}

static void keep_products(struct executor *executor, struct comm *comm, int step)
{
    (void)executor;
    (void)comm;
    if (step == 1) cuda_stub_record(true);
    if (step == 2) recorded = cuda_stub_text();
}

/* FSDPD_CUDA_TF32: products of f32 may round their operands, only on request. */
TEST(tf32)
{
    struct engine_job job = cuda_fixture_job(TINY_GPT2);
    job.device = "cuda:0";
    job.steps = 3;
    job.before_step = keep_products;
    int products[2];
    for (int allowed = 0; allowed < 2; allowed++) {
        if (allowed) setenv("FSDPD_CUDA_TF32", "1", 1);
        cuda_stub_reset(7);
        engine_outcome_free(engine_train(&job, GROUP_LOCAL, 1));
        products[allowed] =
            count_of(recorded, allowed ? "matmul compute tf32" : "matmul compute f32");
        ck_assert_int_eq(products[allowed], count_of(recorded, "matmul "));
        free(recorded);
    }
    ck_assert_int_gt(products[0], 0);
    ck_assert_int_eq(products[0], products[1]);
}

/* ---- opening ---- */

/* device_open reports why a device is unavailable. If an error of the first query is gone when the
 * function looks for the reason, it opens the device. */
TEST(opening)
{
    struct device *device = NULL;
    cuda_stub_fail("cudaGetDeviceCount", 1, cudaErrorInitializationError);
    ck_assert_ptr_null(device_open("cuda:0", 1, &device));
    ck_assert_ptr_nonnull(device);
    device_close(device);
    cuda_stub_capability(7);
    status_t status = device_open("cuda:0", 1, &device);
    ck_assert_int_eq(status_code(status), STATUS_UNIMPLEMENTED);
    ck_assert_msg(strstr(status_message(status), "compute capability 8.0 or later") != NULL, "%s",
                  status_message(status));
    status_free(status);
}

/* ---- memory ---- */

TEST(memory)
{
    struct device *device = NULL;
    struct lane_queue *lane = NULL;
    void *memory = NULL;
    char found[1000];
    memset(found, 1, sizeof found);
    ck_assert_ptr_null(device_open("cuda:0", 1, &device));
    ck_assert_str_eq(device_name(device), "cuda:0");
    ck_assert_ptr_null(device_allocate(device, 1000, &memory));
    ck_assert_ptr_null(lane_open(device, LANE_COPY, &lane));
    ck_assert_ptr_null(lane_copy(lane, found, memory, sizeof found));
    ck_assert_ptr_null(lane_wait(lane, 10000));
    lane_close(lane);
    for (int i = 0; i < 1000; i++) ck_assert_int_eq(found[i], 0);
    ck_assert_uint_eq(device_peak_bytes(device), 1000);
    cuda_stub_fail("cudaMalloc", 1, cudaErrorMemoryAllocation);
    void *more = NULL;
    status_t status = device_allocate(device, 1 << 20, &more);
    ck_assert_int_eq(status_code(status), STATUS_RESOURCE_EXHAUSTED);
    ck_assert_str_eq(status_message(status),
                     "device cuda:0: cannot allocate 1.05 MB; the device has 17.2 GB available");
    status_free(status);
    device_release(device, memory);
    device_close(device);
    status = device_open("cuda:1", 1, &device);
    ck_assert_int_eq(status_code(status), STATUS_NOT_FOUND);
    status_free(status);
}

/* Without this protection, no test here would notice a host that reads the device's memory. */
LOOP_TEST(memory_is_not_the_hosts, 0, 2, .signal = SIGSEGV)
{
    struct device *device = NULL;
    void *memory = NULL;
    ck_assert_ptr_null(device_open("cuda:0", 1, &device));
    ck_assert_ptr_null(device_allocate(device, 1000, &memory));
    signal(SIGSEGV, SIG_DFL); /* sanitizers install a handler that exits */
    printf("%d\n", ((volatile char *)memory)[_i == 0 ? 0 : 999]);
}

/* ---- collectives of host memory ---- */

enum { MANY = (1 << 18) + 77 }; /* floats: more than passes through the device at once */

static status_t share(struct comm *comm, void *argument)
{
    struct device *device = NULL;
    struct lane_queue *lane = NULL;
    struct comm *group = NULL;
    const int rank = comm_rank(comm), world = comm_world(comm);
    float *own = mem_alloc_array(MANY, sizeof *own);
    float *all = mem_alloc_array((size_t)world * MANY, sizeof *all);
    for (int i = 0; i < MANY; i++) own[i] = (float)(rank * MANY + i);
    (void)argument;
    TRY(device_open("cuda:0", 1, &device));
    TRY(cuda_fixture_join(device, rank, world, &group));
    TRY(lane_open(device, LANE_COMM, &lane));
    const size_t counts[] = {1, 8, MANY};
    for (int c = 0; c < 3; c++) {
        TRY(comm_all_gather(group, lane, own, all, counts[c]));
        TRY(lane_wait(lane, 20000));
        for (int r = 0; r < world; r++)
            for (size_t i = 0; i < counts[c]; i++)
                if (all[(size_t)r * counts[c] + i] != (float)(r * MANY) + (float)i)
                    return status_new(STATUS_INTERNAL, "element %zu of rank %d of %zu", i, r,
                                      counts[c]);
        TRY(comm_broadcast(group, lane, own, counts[c] * sizeof *own, 1));
        TRY(lane_wait(lane, 20000));
        for (size_t i = 0; i < counts[c]; i++) {
            if (own[i] != (float)(MANY + (int)i))
                return status_new(STATUS_INTERNAL, "byte %zu of %zu", i, counts[c]);
            own[i] = (float)(rank * MANY + (int)i);
        }
    }
    status_t scaled = comm_all_reduce(group, lane, own, 8, 0.5f, NULL);
    if (status_code(scaled) != STATUS_INTERNAL ||
        strstr(status_message(scaled), "all_reduce times 0.5: sums by nccl") == NULL)
        return status_new(STATUS_INTERNAL, "scaled");
    status_free(scaled);
    /* An all_reduce of host memory, which no caller needs, is refused instead of read through a
     * pointer that is none of the device's. */
    status_t refused = comm_all_reduce(group, lane, own, 8, 1, NULL);
    if (status_code(refused) != STATUS_UNIMPLEMENTED ||
        strstr(status_message(refused), "host memory") == NULL)
        return status_new(STATUS_INTERNAL, "not refused");
    status_free(refused);
    lane_close(lane);
    comm_free(group);
    device_close(device);
    free(own);
    free(all);
    return NULL;
}

LOOP_TEST(collectives_of_host_memory, 0, 2)
{
    struct group_result results[GROUP_MAX];
    group_run(GROUP_LOCAL, 2 + _i, 60000, share, NULL, results);
    for (int r = 0; r < 2 + _i; r++)
        ck_assert_msg(results[r].code == STATUS_OK, "rank %d: %s", r, results[r].message);
}

/* Faults of the versions that are present, and of no others. */
LOOP_TEST(known_faults, 0, 3)
{
    static const struct {
        int version, faults;
    } cases[] = {{22809, 2}, {22705, 1}, {23102, 0}};
    static struct backend_report report;
    const struct backend_table *backend = NULL;
    ck_assert_ptr_null(backend_load(&backend));
    nccl_stub_version(cases[_i].version);
    backend->versions(&report);
    int found = 0;
    for (int i = 0; i < report.fault_count; i++) found += strncmp(report.faults[i], "NCCL ", 5) == 0;
    ck_assert_int_eq(found, cases[_i].faults);
    if (found > 0)
        ck_assert_ptr_nonnull(strstr(report.faults[report.fault_count - 1],
                                     _i == 0 ? "NCCL 2.28.9: ranks that share"
                                             : "NCCL 2.27.5: ranks that share"));
    nccl_stub_version(0);
}

/* It says which driver to install. */
TEST(old_driver)
{
    static struct backend_report report;
    const struct backend_table *backend = NULL;
    ck_assert_ptr_null(backend_load(&backend));
    cuda_stub_fail("cudaGetDeviceCount", 1, cudaErrorInsufficientDriver);
    status_t status = backend->report(&report);
    ck_assert_int_eq(status_code(status), STATUS_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(status_message(status), CUDART_VERSION >= 13000
                                                             ? "which needs driver 580 or later"
                                                             : "which needs driver 525 or later"));
    status_free(status);
}

/* More than the staging memory holds, there and back, in odd pieces. */
TEST(copies)
{
    enum { COUNT = 5 * 1024 * 1024 + 13 };
    struct device *device = NULL;
    struct lane_queue *lane = NULL;
    ck_assert_ptr_null(device_open("cuda:0", 1, &device));
    ck_assert_ptr_null(lane_open(device, LANE_COPY, &lane));
    char *from = malloc(COUNT), *to = malloc(COUNT), *memory = NULL;
    for (int i = 0; i < COUNT; i++) from[i] = (char)(i * 7 + i / 1000);
    ck_assert_ptr_null(device_allocate(device, COUNT, (void **)&memory));
    ck_assert_ptr_null(lane_copy(lane, memory, from, COUNT));
    for (int i = 0; i < 40; i++) /* more than arrive at once */
        ck_assert_ptr_null(lane_copy(lane, to + i, memory + i, 1));
    ck_assert_ptr_null(lane_copy(lane, to + 40, memory + 40, COUNT - 40));
    memset(from, 0, 100); /* the caller owns it again */
    ck_assert_ptr_null(lane_wait(lane, 10000));
    for (int i = 0; i < COUNT; i++) ck_assert_int_eq(to[i], (char)(i * 7 + i / 1000));
    lane_close(lane);
    device_release(device, memory);
    device_close(device);
    free(from);
    free(to);
}
