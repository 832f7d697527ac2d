/*
 * Runs on the emulated CUDA device that are sampled between two steps: the tokens and the training
 * of the CPU; and memory that sample.reserve plans, of the device and pinned.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../emulation/cuda_stub.h"
#include "fsdpd/v1/control.pb-c.h"
#include "memory_store.h"
#include "planning/planning.h"
#include "runtime/backend.h"
#include "runtime/cuda/device_cuda.h"
#include "session_group.h"
#include "setup/session_state.h"
#include "tests/testing.h"

static const char model[] =
    "name: Tiny\n"
    "input: tokens\n"
    "vocabulary: 37\n"
    "context: 16\n"
    "blocks:\n"
    "  Block:\n"
    "    inputs: [x]\n"
    "    modules:\n"
    "      norm: RMSNorm(24)\n"
    "      qkv: Linear(24, 40)\n"
    "      out: Linear(24, 24)\n"
    "    forward:\n"
    "      - x += out(attention(qkv(norm(x)), num_heads=3, num_kv_heads=1, is_causal=True, "
    "window=4, softcap=20))\n"
    "      - output = x\n"
    "modules:\n"
    "  wte: Embedding(37, 24)\n"
    "  wpe: Embedding(16, 24)\n"
    "  h: 2 * Block()\n"
    "  head: Linear(24, 37)\n"
    "forward:\n"
    "  - y = wte(x) + wpe(positions(x))\n"
    "  - for block in h: y = block(y)\n"
    "  - output = head(y)\n"
    "loss: cross_entropy(output, target)\n"
    "init: [{match: \"*.bias\", zeros: true}, {match: \"*\", normal: 0.4}]\n";

enum { TOKENS = 2000, STEPS = 4, SEQUENCES = 2, MADE = 8 };
/* Bytes of a device that no plan may have; see test_cuda_session.c. */
#define RESERVE (UINT64_C(512) << 20)

static char path[64];
static int32_t drawn[SEQUENCES][MADE];
static char refusal[512];

static void set_up(void)
{
    const struct backend_table *table = NULL;
    uint16_t ids[TOKENS];
    for (int i = 0; i < TOKENS; i++) ids[i] = (uint16_t)(i * i % 37);
    strcpy(path, "/tmp/fsdpd-test-samples-XXXXXX");
    int fd = mkstemp(path);
    ck_assert_int_eq(write(fd, ids, sizeof ids), sizeof ids);
    close(fd);
    ck_assert_ptr_null(backend_load(&table)); /* which resets the stub when it is first opened */
    cuda_stub_reset(7);
    cuda_stub_record(true);
}

static void tear_down(void)
{
    memory_store_reset();
    unlink(path);
}

TESTS_BELOW(.timeout = 120, .set_up = set_up, .tear_down = tear_down);

static status_t join(struct device *device, int rank, int world, struct comm **comm)
{
    const struct rendezvous rendezvous = memory_store();
    return backend_join(device, rank, world, "127.0.0.1", "train", &rendezvous, 20000, false, true,
                        NULL, comm);
}

/* On every rank, before the units change. */
static status_t draw(struct member *member, int order, const struct wrap_policy **policy)
{
    static const int32_t first[] = {5, 28, 32}, second[] = {1};
    static const struct decoder_prompt prompts[SEQUENCES] = {{first, 3}, {second, 1}};
    const struct train_sample wanted = {.prompts = prompts,
                                        .count = SEQUENCES,
                                        .max_tokens = MADE,
                                        .draw = {.top_p = 1, .repetition_penalty = 1}};
    struct train_sampled sampled;
    status_t refused = NULL;
    status_t status = train_session_sample(member->session, &wanted, &sampled, &refused);
    (void)order;
    (void)policy;
    for (int s = 0; member->rank == 0 && refused == NULL && status == NULL && s < SEQUENCES; s++)
        memcpy(drawn[s], sampled.tokens[s], sizeof drawn[s]);
    if (member->rank == 0)
        snprintf(refusal, sizeof refusal, "%s", refused != NULL ? status_message(refused) : "");
    status_free(refused);
    train_sampled_deinit(&sampled);
    return status;
}

static void init(struct group *group, int world, bool on_cuda)
{
    static const struct wrap_policy none = {.kind = WRAP_NONE};
    group_init(group, model, NULL, world);
    struct train_job *job = &group->job;
    job->optimizer = (struct optimizer_step){.kind = OPTIMIZER_SGD, .lr = 0.05};
    job->batch_size = (uint32_t)(4 / world);
    job->data_format = DATA_TOKENS;
    job->data_path = path;
    job->max_steps = STEPS;
    job->evaluate = false;
    job->wrap = (struct wrap_policy){.kind = WRAP_AUTO};
    group->wraps[0] = &none;
    group->order_at[0] = STEPS / 2;
    group->order_count = 1;
    group->instead = draw;
    if (!on_cuda) return;
    memory_store_reset();
    group->device = "cuda:0";
    group->join = join;
}

/* The caller resets the group. */
static void run(struct group *group)
{
    memset(drawn, 0xff, sizeof drawn);
    group_run(group);
    group_expect_success(group);
}

LOOP_TEST(as_on_the_cpu, 1, 3)
{
    static struct group group;
    int32_t expected[SEQUENCES][MADE];
    init(&group, 1, false);
    run(&group);
    memcpy(expected, drawn, sizeof drawn);
    group_reset(&group);
    init(&group, _i, true);
    run(&group);
    ck_assert_str_eq(refusal, "");
    ck_assert_mem_eq(drawn, expected, sizeof drawn);
    ck_assert_int_ge(drawn[0][0], 0);
    ck_assert_int_gt(cuda_stub_count("cudaGraphLaunch"), _i * (MADE - 3));
    group_reset(&group);
}

/* Bytes that the job needs, and those that a sample needs beside it. */
struct sizes {
    uint64_t peak, samples;
};

static void reserve(struct group *group)
{
    group->job.reserve.context = MADE + 3;
    group->job.reserve.sequences = SEQUENCES;
}

/* The reserve is in a plan, and changes nothing else of it but pinned memory. */
static struct sizes plan_both(struct group *group)
{
    const struct planning_options options = {.device = "cuda:0"};
    Fsdpd__V1__Plan *plan = NULL;
    struct sizes sizes;
    ck_assert_ptr_null(planning_make(&group->job, &options, &plan));
    ck_assert_uint_eq(plan->n_outside, 0);
    const uint64_t staging = plan->staging_bytes;
    sizes.peak = plan->peak_bytes;
    fsdpd__v1__plan__free_unpacked(plan, NULL);
    reserve(group);
    ck_assert_ptr_null(planning_make(&group->job, &options, &plan));
    ck_assert_uint_eq(plan->n_outside, 1);
    ck_assert_str_eq(plan->outside[0]->name, "samples");
    ck_assert_uint_eq(plan->resident_bytes, 0);
    ck_assert_uint_eq(plan->peak_bytes, sizes.peak);
    ck_assert_uint_eq(plan->staging_bytes, staging + 6 * (UINT64_C(12) * (1 << 20) + 64));
    sizes.samples = plan->outside[0]->bytes;
    fsdpd__v1__plan__free_unpacked(plan, NULL);
    return sizes;
}

/* A device of that size to the byte runs the job and its sample; a byte less, and it is refused. */
TEST(a_reserve_is_planned)
{
    static struct group group;
    const struct planning_options options = {.device = "cuda:0"};
    Fsdpd__V1__Plan *plan = NULL;
    init(&group, 1, true);
    const struct sizes sizes = plan_both(&group);
    cuda_stub_memory(sizes.peak + sizes.samples + RESERVE);
    run(&group);
    ck_assert_str_eq(refusal, "");
    group_reset(&group);
    cuda_stub_memory(sizes.peak + sizes.samples + RESERVE - 1);
    status_t status = planning_make(&group.job, &options, &plan);
    ck_assert_int_eq(status_code(status), STATUS_RESOURCE_EXHAUSTED);
    status_free(status);
}

TEST(without_a_reserve_a_sample_may_not_fit)
{
    static struct group group;
    init(&group, 1, true);
    const struct sizes sizes = plan_both(&group);
    cuda_stub_memory(sizes.peak + sizes.samples + RESERVE - 1);
    group.job.reserve.context = 0;
    run(&group);
    ck_assert_msg(strstr(refusal, "are keys and values") != NULL, "%s", refusal);
    group_reset(&group);
}
