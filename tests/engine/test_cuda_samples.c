/*
 * Runs on the emulated CUDA device that are sampled between two steps: the tokens and the training
 * of the CPU; and memory that sample.reserve plans, of the device and pinned, and on the CPU whether
 * it holds units that are gathered once for a call.
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

#define MODEL(BLOCKS)                                                                             \
    "name: Tiny\n"                                                                                \
    "input: tokens\n"                                                                             \
    "vocabulary: 37\n"                                                                            \
    "context: 16\n"                                                                               \
    "blocks:\n"                                                                                   \
    "  Block:\n"                                                                                  \
    "    inputs: [x]\n"                                                                           \
    "    modules:\n"                                                                              \
    "      norm: RMSNorm(24)\n"                                                                   \
    "      qkv: Linear(24, 40)\n"                                                                 \
    "      out: Linear(24, 24)\n"                                                                 \
    "    forward:\n"                                                                              \
    "      - x += out(attention(qkv(norm(x)), num_heads=3, num_kv_heads=1, is_causal=True, "      \
    "window=4, softcap=20))\n"                                                                    \
    "      - output = x\n"                                                                        \
    "modules:\n"                                                                                  \
    "  wte: Embedding(37, 24)\n"                                                                  \
    "  wpe: Embedding(16, 24)\n"                                                                  \
    "  h: " BLOCKS " * Block()\n"                                                                 \
    "  head: Linear(24, 37)\n"                                                                    \
    "forward:\n"                                                                                  \
    "  - y = wte(x) + wpe(positions(x))\n"                                                        \
    "  - for block in h: y = block(y)\n"                                                          \
    "  - output = head(y)\n"                                                                      \
    "loss: cross_entropy(output, target)\n"                                                       \
    "init: [{match: \"*.bias\", zeros: true}, {match: \"*\", normal: 0.4}]\n"
static const char model[] = MODEL("2"), deep_model[] = MODEL("8");

enum { TOKENS = 2000, STEPS = 4, SEQUENCES = 2, MADE = 8 };
/* Bytes of a device that no plan may have; see test_cuda_session.c. */
#define RESERVE (UINT64_C(512) << 20)

static char path[64];
static int32_t drawn[SEQUENCES][MADE];
static char refusal[512];
static struct decoder_bytes used[GROUP_MAX_WORLD]; /* by rank */

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
    used[member->rank] = sampled.bytes;
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
    memset(used, 0xff, sizeof used);
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

static uint64_t row_of(const Fsdpd__V1__Plan *plan, const char *name)
{
    for (size_t i = 0; i < plan->n_outside; i++)
        if (strcmp(plan->outside[i]->name, name) == 0) return plan->outside[i]->bytes;
    return 0;
}

static bool has_note(const Fsdpd__V1__Plan *plan, const char *words)
{
    for (size_t i = 0; i < plan->n_notes; i++)
        if (strstr(plan->notes[i], words) != NULL) return true;
    return false;
}

/* On the CPU, and with more units than a step gathers at once. */
static void init_deep(struct group *group, int world)
{
    init(group, world, false);
    group->job.model_text = deep_model;
    group->job.model_length = strlen(deep_model);
    reserve(group);
}

/* Of a job on the CPU that reserves memory, and a device of that size; 0: this host. */
static Fsdpd__V1__Plan *plan_within(const struct group *group, uint64_t bytes)
{
    const struct planning_options options = {.device = "cpu", .memory_bytes = bytes};
    Fsdpd__V1__Plan *plan = NULL;
    status_t status = planning_make(&group->job, &options, &plan);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    return plan;
}

/* What a rank needs: to train, and beside that for a call, with units that it holds, or without. */
static struct needs {
    uint64_t peak, held, each;
} needs_of(const struct group *group)
{
    Fsdpd__V1__Plan *plan = plan_within(group, 0);
    struct needs needs = {.peak = plan->peak_bytes,
                          .held = row_of(plan, "samples") + row_of(plan, "weights of samples")};
    uint64_t all = plan->resident_bytes;
    fsdpd__v1__plan__free_unpacked(plan, NULL);
    plan = plan_within(group, all - 1);
    needs.each = row_of(plan, "samples");
    fsdpd__v1__plan__free_unpacked(plan, NULL);
    return needs;
}

/* To the byte; and a rank that is alone has nothing to gather. */
LOOP_TEST(a_plan_holds_units_where_they_fit, 1, 4)
{
    static struct group group;
    init_deep(&group, _i);
    Fsdpd__V1__Plan *plan = plan_within(&group, 0);
    uint64_t all = plan->resident_bytes, held = row_of(plan, "weights of samples");
    ck_assert_uint_gt(row_of(plan, "samples"), 0);
    if (_i == 1) ck_assert_uint_eq(held, 0);
    else ck_assert_uint_ge(held, plan->parameters * sizeof(float));
    ck_assert_int_eq(has_note(plan, "gather all units once for a call"), _i > 1);
    ck_assert(!has_note(plan, "gather units one by one"));
    fsdpd__v1__plan__free_unpacked(plan, NULL);
    if (_i == 1) return;
    plan = plan_within(&group, all);
    ck_assert_uint_eq(row_of(plan, "weights of samples"), held);
    fsdpd__v1__plan__free_unpacked(plan, NULL);
    plan = plan_within(&group, all - 1);
    ck_assert_uint_eq(row_of(plan, "weights of samples"), 0);
    ck_assert_uint_gt(row_of(plan, "samples"), 0);
    ck_assert(has_note(plan, "gather units one by one, for every token"));
    ck_assert_uint_lt(plan->resident_bytes, all);
    fsdpd__v1__plan__free_unpacked(plan, NULL);
}

static uint64_t budgets[GROUP_MAX_WORLD]; /* by rank; 0: this host's */

static uint64_t memory_of(int rank)
{
    return budgets[rank];
}

static void expect_used(int world, uint64_t bytes, bool held)
{
    for (int rank = 0; rank < world; rank++) {
        ck_assert_uint_eq(used[rank].all, bytes);
        ck_assert_int_eq(used[rank].held > 0, held);
    }
}

/* A rank that cannot hold the units makes all of them gather unit by unit, with the same tokens; a
 * byte less, and the call is refused; and the run continues. */
LOOP_TEST(a_rank_without_room_decides_for_all, 2, 4)
{
    static struct group group;
    int32_t expected[SEQUENCES][MADE];
    init_deep(&group, _i);
    const struct needs needs = needs_of(&group);
    run(&group);
    ck_assert_str_eq(refusal, "");
    expect_used(_i, needs.held, true);
    memcpy(expected, drawn, sizeof drawn);
    group_reset(&group);
    group.memory = memory_of;
    for (int rank = 0; rank < _i; rank++)
        for (int reserved = 0; reserved < 2; reserved++) {
            if (reserved) reserve(&group);
            else group.job.reserve.context = 0;
            memset(budgets, 0, sizeof budgets);
            budgets[rank] = needs.peak + needs.each;
            run(&group);
            ck_assert_str_eq(refusal, "");
            ck_assert_mem_eq(drawn, expected, sizeof drawn);
            expect_used(_i, needs.each, false);
            group_reset(&group);
            if (reserved) continue;
            budgets[rank] = needs.peak + needs.held;
            run(&group);
            expect_used(_i, needs.held, true);
            group_reset(&group);
            budgets[rank] = needs.peak + needs.each - 1;
            run(&group);
            ck_assert_msg(strstr(refusal, "are keys and values, but training leaves") != NULL,
                          "%s", refusal);
            group_reset(&group);
        }
}

static uint64_t planned_of_change(const struct group *group)
{
    ck_assert_ptr_null(group->members[0].changes[0].refused);
    return group->members[0].changes[0].planned_bytes;
}

/* A change of units that fits only without them takes the memory that the plan had for held units. */
TEST(units_may_change_instead_of_being_held)
{
    static struct group group;
    init_deep(&group, 2);
    const struct needs needs = needs_of(&group);
    run(&group);
    const uint64_t change = planned_of_change(&group);
    group_reset(&group);
    group.job.memory_bytes = UINT64_C(1) << 40; /* that the plan was made for */
    group.memory = memory_of;
    for (int rank = 0; rank < 2; rank++) {
        budgets[rank] = change + needs.each;
        if (budgets[rank] < needs.peak + needs.held) budgets[rank] = needs.peak + needs.held;
        ck_assert_uint_lt(budgets[rank], change + needs.held);
    }
    run(&group);
    ck_assert_ptr_null(group.members[0].changes[0].refused);
    group_reset(&group);
}
