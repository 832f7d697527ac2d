/*
 * Training runs on the CUDA device, over the stub of the runtime (tests/emulation/cuda_stub.cc),
 * whose memory the host cannot touch. They match the CPU: the ranks' agreements, changes of the
 * wrap policy, pulls, checkpoints and resumed runs, and evaluation; a job is planned with the
 * device; units are offloaded to the host and return.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../emulation/cuda_stub.h"
#include "base/mem.h"
#include "base/tree.h"
#include "cuda_runs.h"
#include "fsdpd/v1/control.pb-c.h"
#include "hf/safetensors.h"
#include "planning/planning.h"
#include "planning/profile.h"
#include "runtime/cuda/device_cuda.h"
#include "setup/session_state.h"
#include "tests/testing.h"

static const char model[] = "name: Small\n"
                            "input: [1, 28, 28]\n"
                            "classes: 10\n"
                            "modules:\n"
                            "  first: Linear(784, 12)\n"
                            "  second: Linear(12, 10)\n"
                            "forward:\n"
                            "  - x = relu(first(flatten(x, 1)))\n"
                            "  - output = log_softmax(second(x), 1)\n"
                            "loss: nll_loss(output, target, reduction='sum')\n";

static const char attentive[] = "name: Attentive\n"
                                "input: tokens\n"
                                "vocabulary: 37\n"
                                "context: 16\n"
                                "modules:\n"
                                "  wte: Embedding(37, 24)\n"
                                "  qkv: Linear(24, 72)\n"
                                "  head: Linear(24, 37)\n"
                                "forward:\n"
                                "  - y = attention(qkv(wte(x)), num_heads=3, is_causal=True)\n"
                                "  - output = head(y)\n"
                                "loss: cross_entropy(output, target)\n";

static const char normed[] = "name: Normed\n"
                             "input: [1, 28, 28]\n"
                             "classes: 10\n"
                             "modules:\n"
                             "  pool: AvgPool2d(4)\n"
                             "  norm: SyncBatchNorm(1, momentum=0.2)\n"
                             "  first: Linear(49, 40)\n"
                             "  second: Linear(40, 10)\n"
                             "forward:\n"
                             "  - x = relu(first(flatten(norm(pool(x)), 1)))\n"
                             "  - output = second(x)\n"
                             "loss: cross_entropy(output, target)\n";

static void init(struct group *group, int world)
{
    group_init(group, model, group_data, world);
    group->job.optimizer = (struct optimizer_step){.kind = OPTIMIZER_ADAMW,
                                                   .lr = 0.01,
                                                   .beta1 = 0.9,
                                                   .beta2 = 0.999,
                                                   .eps = 1e-3,
                                                   .weight_decay = 0.1};
    group->job.batch_size = 6;
    group->job.max_steps = 8;
    group->job.log_interval = 1;
    group->job.evaluate = false;
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-4 * (1 + fabs(b));
}

static void expect_near_losses(const struct group *found, const struct group *expected)
{
    const struct member *a = &found->members[0], *b = &expected->members[0];
    ck_assert_int_eq(a->metric_count, b->metric_count);
    ck_assert_int_gt(a->metric_count, 2);
    for (int i = 0; i < a->metric_count; i++)
        ck_assert_msg(near(a->metrics[i].loss, b->metrics[i].loss), "step %llu: %.9g, not %.9g",
                      (unsigned long long)a->metrics[i].step, a->metrics[i].loss,
                      b->metrics[i].loss);
}

/* Expects the same tensors, of nearly the same values; with `bits`, of identical ones. Frees
 * both. */
static void expect_files(struct buf a, struct buf b, bool bits)
{
    struct safetensors_header in_a, in_b;
    uint64_t needed;
    ck_assert_ptr_null(safetensors_read_header(a.data, a.length, a.length, &in_a, &needed));
    ck_assert_ptr_null(safetensors_read_header(b.data, b.length, b.length, &in_b, &needed));
    ck_assert_int_eq(in_a.count, in_b.count);
    ck_assert_int_eq(in_a.count, 4);
    for (int i = 0; i < in_a.count; i++) {
        const struct safetensors_entry *x = &in_a.entries[i], *y = in_b.entries;
        while (y < in_b.entries + in_b.count && strcmp(x->name, y->name) != 0) y++;
        ck_assert_msg(y < in_b.entries + in_b.count, "%s is missing", x->name);
        ck_assert_uint_eq(x->end - x->begin, y->end - y->begin);
        for (uint64_t at = 0; at < x->end - x->begin; at += sizeof(float)) {
            float p, q;
            memcpy(&p, (char *)a.data + in_a.data_offset + x->begin + at, sizeof p);
            memcpy(&q, (char *)b.data + in_b.data_offset + y->begin + at, sizeof q);
            ck_assert_msg(bits ? memcmp(&p, &q, sizeof p) == 0 : near((double)p, (double)q),
                          "%s: %.9g, not %.9g", x->name, (double)p, (double)q);
        }
    }
    safetensors_header_deinit(&in_a);
    safetensors_header_deinit(&in_b);
    buf_deinit(&a);
    buf_deinit(&b);
}

static void expect_near_files(struct buf a, struct buf b)
{
    expect_files(a, b, false);
}

/* To the byte: that of the first plan, of one that replaced it, or of a change between them, during
 * which a rank has the old state beside the new arenas. */
static void expect_planned_peak(const struct group *group, int changes)
{
    for (int rank = 0; rank < group->job.world; rank++) {
        const struct member *member = &group->members[rank];
        uint64_t most = member->memory_planned;
        for (int i = 0; i < changes; i++) {
            ck_assert_uint_eq(member->changes[i].peak_bytes, member->changes[i].planned_bytes);
            if (member->changes[i].planned_bytes > most) most = member->changes[i].planned_bytes;
        }
        ck_assert_uint_eq(member->memory_peak, most);
    }
}

/* Worlds of 1 to 4, the last in two groups of two; then through host memory, of 2 to 4. */
enum { WORLDS = 7 };

static void choose_world(struct group *group, int number)
{
    static const int worlds[WORLDS] = {1, 2, 3, 4, 2, 3, 4};
    init(group, worlds[number]);
    cuda_runs_staged = number > 3;
    if (worlds[number] == 4) group->job.plan.strategy = STRATEGY_HYBRID_SHARD;
    group->job.shard_size = 2;
}

static const char *const nowhere[] = {"thrid"};
static const struct wrap_unit_spec wrong[] = {{.modules = nowhere, .module_count = 1}};
static const struct wrap_policy none = {.kind = WRAP_NONE},
                                small = {.kind = WRAP_SIZE, .min_num_params = 1},
                                unknown = {.kind = WRAP_UNITS, .units = wrong, .unit_count = 1};

enum { REPLAYS = 3 }; /* of the eight steps of the next test */

TESTS_BELOW(.timeout = 120, .set_up = cuda_runs_set_up, .tear_down = cuda_runs_tear_down,
            .set_up_once = group_draw_digits, .tear_down_once = group_remove_digits);

/* One unit per module, one unit in all, an invalid policy: refused, and training continues. */
LOOP_TEST(changes_of_the_policy, 0, WORLDS)
{
    struct group group, expected;
    choose_world(&group, _i);
    group.order_count = 4;
    for (int i = 0; i < 4; i++) group.order_at[i] = 2 + (uint64_t)i;
    group.wraps[0] = &small;
    group.wraps[1] = &none;
    group.wraps[2] = &unknown; /* order 4 only pulls */
    expected = group;
    cuda_runs_move(&group);
    group_run_without_error(&expected);
    cuda_stub_record(true);
    group_run_without_error(&group);
    /* Under every policy the first step is enqueued call by call, and the second is captured. */
    int replays = cuda_runs_staged ? 0 : group.job.world * REPLAYS;
    ck_assert_int_eq(cuda_stub_count("cudaGraphLaunch"), replays);
    ck_assert_int_ge(cuda_stub_count("overlap"), cuda_runs_staged ? 0 : group.job.world);
    expect_near_losses(&group, &expected);
    for (int rank = 0; rank < group.job.world; rank++) {
        ck_assert_ptr_null(group.members[rank].changes[0].refused);
        ck_assert_ptr_null(group.members[rank].changes[1].refused);
        ck_assert_int_eq(status_code(group.members[rank].changes[2].refused),
                         STATUS_INVALID_ARGUMENT);
        ck_assert_uint_eq(group.members[rank].last_step, 8);
    }
    ck_assert_uint_gt(group.members[0].changes[0].peak_bytes, 0);
    for (int i = -1; i < 4; i++)
        expect_near_files(group_pull_file(&group, i), group_pull_file(&expected, i));
    group_reset(&group);
    group_reset(&expected);
}

/* A checkpoint of this device, and one of the cpu's, resumed on this one. */
LOOP_TEST(checkpoints, 0, WORLDS)
{
    for (int taken_on_cuda = 0; taken_on_cuda < 2; taken_on_cuda++) {
        struct group group, again;
        choose_world(&group, _i);
        group.job.checkpoints = (struct checkpoint_settings){.folder = cuda_runs_folder,
                                                             .run = "digits-1@7",
                                                             .every_steps = 5};
        again = group;
        if (taken_on_cuda) cuda_runs_move(&group);
        group_run_without_error(&group);
        ck_assert_int_eq(group.members[0].captured_count, 1);
        group_save_without_error(&group, 0, cuda_runs_folder, 1);
        again.job.checkpoints.every_steps = 0;
        again.job.checkpoints.resume = again.job.checkpoints.must_resume = true;
        again.job.checkpoints.attempt = 2;
        cuda_runs_move(&again);
        group_run_without_error(&again);
        for (int rank = 0; rank < again.job.world; rank++)
            ck_assert_uint_eq(again.members[rank].resumed_step, 5);
        ck_assert_int_eq(again.members[0].metric_count, 3);
        ck_assert(near(again.members[0].metrics[2].loss, group.members[0].metrics[7].loss));
        expect_near_files(group_pull_file(&again, -1), group_pull_file(&group, -1));
        group_reset(&group);
        group_reset(&again);
        ck_assert_ptr_null(tree_remove(cuda_runs_folder));
    }
}

/* Evaluation, and the memory figures. */
LOOP_TEST(evaluation, 0, 2)
{
    struct group group, expected;
    init(&group, 2);
    cuda_runs_staged = _i == 1;
    group.job.batch_size = 51;
    group.job.evaluate = true;
    expected = group;
    cuda_runs_move(&group);
    group_run_without_error(&expected);
    group_run_without_error(&group);
    ck_assert_int_eq(group.members[0].epoch_count, 1);
    ck_assert(near(group.members[0].epochs[0].test_loss, expected.members[0].epochs[0].test_loss));
    ck_assert_uint_eq(group.members[0].epochs[0].test_samples, GROUP_TEST);
    const struct train_metrics *last = &group.members[0].metrics[group.members[0].metric_count - 1];
    ck_assert_uint_gt(last->memory_bytes, 0);
    ck_assert_uint_ge(last->memory_peak_bytes, last->memory_bytes);
    ck_assert_uint_le(group.members[0].memory_peak, group.members[0].memory_planned);
    group_reset(&group);
    group_reset(&expected);
}

/* Ranks tell each other of their batches on the device, too, or through host memory. */
LOOP_TEST(norm_over_all_ranks, 0, WORLDS)
{
    struct group group, expected;
    choose_world(&group, _i);
    group.job.model_text = normed;
    group.job.model_length = sizeof normed - 1;
    group.job.evaluate = true;
    expected = group;
    cuda_runs_move(&group);
    group_run_without_error(&expected);
    group_run_without_error(&group);
    expect_near_losses(&group, &expected);
    ck_assert_int_eq(group.members[0].epoch_count, expected.members[0].epoch_count);
    for (int i = 0; i < group.members[0].epoch_count; i++)
        ck_assert(
            near(group.members[0].epochs[i].test_loss, expected.members[0].epochs[i].test_loss));
    ck_assert_uint_le(group.members[0].memory_peak, group.members[0].memory_planned);
    group_reset(&group);
    group_reset(&expected);
}

static void learn_otherwise(struct train_job *job, int rank)
{
    if (rank == 1) job->optimizer.lr = 0.5;
}

/* The ranks' first agreement uses host memory. */
LOOP_TEST(ranks_that_differ, 0, 2)
{
    struct group group;
    init(&group, 2);
    cuda_runs_staged = _i == 1;
    group.tweak = learn_otherwise;
    cuda_runs_move(&group);
    group_run(&group);
    const struct member *other = &group.members[1];
    ck_assert_int_eq(status_code(other->status), STATUS_FAILED_PRECONDITION);
    ck_assert_ptr_nonnull(strstr(status_message(other->status), "data or settings of rank"));
    group_reset(&group);
}

/* ---- planning ---- */

static status_t plan_on(const char *device, const struct train_job *job, uint64_t memory,
                        Fsdpd__V1__Plan **plan)
{
    const struct planning_options options = {.device = device, .memory_bytes = memory};
    return planning_make(job, &options, plan);
}

/* The ranks of a run pin what their plans state; a graph's arguments come in addition. */
LOOP_TEST(pinned_memory, 0, 4)
{
    struct group group;
    Fsdpd__V1__Plan *plan = NULL;
    init(&group, 2);
    cuda_runs_staged = _i % 2 == 1;
    group.job.plan.cpu_offload = _i >= 2;
    const struct planning_options options = {.device = "cuda:0", .staged = cuda_runs_staged};
    ck_assert_ptr_null(planning_make(&group.job, &options, &plan));
    ck_assert_int_eq(plan->host_bytes > 0, _i >= 2);
    setenv("FSDPD_CUDA_GRAPHS", "off", 1);
    cuda_stub_reset(3);
    cuda_runs_move(&group);
    group_run_without_error(&group);
    unsetenv("FSDPD_CUDA_GRAPHS");
    /* The workspace of reductions is the host's own. */
    uint64_t planned =
        plan->host_bytes + plan->staging_bytes - (cuda_runs_staged ? comm_workspace_bytes(2) : 0);
    ck_assert_uint_eq(cuda_stub_pinned_peak(), 2 * planned);
    fsdpd__v1__plan__free_unpacked(plan, NULL);
    group_reset(&group);
}

/* Bytes of a device of this size that no plan may have: for CUDA's, NCCL's and cuDNN's own. */
#define RESERVE (UINT64_C(512) << 20)

/* A job that is planned to the last byte runs, also as the second of its process, in which the first
 * one's kernels are still loaded; one byte less, and it is refused. */
LOOP_TEST(planned_to_the_byte, 1, 3)
{
    struct group group;
    Fsdpd__V1__Plan *plan = NULL;
    init(&group, _i);
    ck_assert_ptr_null(plan_on("cuda:0", &group.job, 0, &plan));
    uint64_t peak = plan->peak_bytes;
    fsdpd__v1__plan__free_unpacked(plan, NULL);
    cuda_stub_memory((uint64_t)_i * peak + RESERVE);
    for (int run = 0; run < 2; run++) {
        ck_assert_ptr_null(plan_on("cuda:0", &group.job, 0, &plan));
        ck_assert_uint_eq(plan->device_memory_bytes, (uint64_t)_i * peak);
        fsdpd__v1__plan__free_unpacked(plan, NULL);
        cuda_runs_move(&group);
        group_run_without_error(&group);
        group_reset(&group);
    }
    cuda_stub_memory(peak + RESERVE - 1);
    status_t status = plan_on("cuda:0", &group.job, 0, &plan);
    ck_assert_int_eq(status_code(status), STATUS_RESOURCE_EXHAUSTED);
    status_free(status);
}

TEST(planning)
{
    struct group group;
    Fsdpd__V1__Plan *plan = NULL;
    init(&group, 2);
    status_t status = plan_on("cuda:0", &group.job, 0, &plan);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_str_eq(plan->device, "a100"); /* which is the stub's name */
    ck_assert_uint_eq(plan->device_memory_bytes, (UINT64_C(1) << 34) - RESERVE);
    for (size_t i = 0; i < plan->n_notes; i++)
        ck_assert_ptr_null(strstr(plan->notes[i], "scratch memory"));
    ck_assert_str_eq(plan->communicator, "nccl");
    ck_assert_uint_eq(plan->staging_bytes, 4 * (UINT64_C(12) * (1 << 20) + 64));
    fsdpd__v1__plan__free_unpacked(plan, NULL);

    /* Workers that share a device. */
    const struct planning_options shared = {.device = "cuda:0", .staged = true};
    ck_assert_ptr_null(planning_make(&group.job, &shared, &plan));
    ck_assert_str_eq(plan->communicator, "gloo through host memory");
    ck_assert_uint_eq(plan->staging_bytes,
                      4 * (UINT64_C(12) * (1 << 20) + 64) + (4 << 20) + comm_workspace_bytes(2));
    bool noted = false;
    for (size_t i = 0; i < plan->n_notes; i++)
        noted = noted || strstr(plan->notes[i], "workers share a device") != NULL;
    ck_assert(noted);
    fsdpd__v1__plan__free_unpacked(plan, NULL);

    status = plan_on("cuda:0", &group.job, 20000, &plan);
    ck_assert_int_eq(status_code(status), STATUS_RESOURCE_EXHAUSTED);
    status_free(status);
    status = plan_on("cuda:1", &group.job, 0, &plan);
    ck_assert_int_eq(status_code(status), STATUS_NOT_FOUND);
    status_free(status);
}

#ifdef FSDPD_HAVE_CUDNN
#define BY_CUDNN " of 3 heads of 8 is computed by cuDNN (engine 6)"
#else
#define BY_CUDNN " is computed by fsdpd's own kernel: this backend was built without cuDNN"
#endif

static bool is_noted(const Fsdpd__V1__Plan *plan, const char *text)
{
    bool noted = false;
    for (size_t i = 0; i < plan->n_notes; i++)
        noted = noted || strncmp(plan->notes[i], text, strlen(text)) == 0;
    return noted;
}

/* The plan states what computes attention, and why; once for each way, however many ops. */
LOOP_TEST(plan_names_the_library, 0, 2)
{
    struct group group;
    Fsdpd__V1__Plan *plan = NULL;
    init(&group, 2);
    struct train_job *job = &group.job;
    job->model_text = attentive, job->model_length = sizeof attentive - 1;
    job->data_format = DATA_TOKENS, job->data_dir = NULL;
    job->plan.gathered_dtype = _i ? DTYPE_F32 : DTYPE_BF16;
    status_t status = plan_on("cuda:0", job, 0, &plan);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    const char *forward = _i ? "attention is computed by fsdpd's own kernel" : "attention" BY_CUDNN;
    const char *backward =
        _i ? "attention_backward is computed by fsdpd's own kernel" : "attention_backward" BY_CUDNN;
    ck_assert(is_noted(plan, forward));
    ck_assert(is_noted(plan, backward));
    fsdpd__v1__plan__free_unpacked(plan, NULL);
}

/* MFU's denominator: the peak of the device itself, whatever its name. */
TEST(profile)
{
    static const struct {
        const char *device, *profile, *model;
    } cases[] = {{"cuda:0", "a100", "NVIDIA A100-SXM4-80GB"}, {"cpu", "cpu", ""}};
    struct device *device = NULL;
    struct profile profile;
    char found[128];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        ck_assert_ptr_null(device_open(cases[i].device, 1, &device));
        ck_assert_ptr_null(profile_of_device(device, &profile, found, sizeof found));
        ck_assert_str_eq(profile.name, cases[i].profile);
        ck_assert_str_eq(found, cases[i].model);
        ck_assert_double_gt(profile.peak_flops_f32, 0);
        device_close(device);
    }
    cuda_stub_model("NVIDIA Unheard-of 9000");
    ck_assert_ptr_null(device_open("cuda:0", 1, &device));
    status_t status = profile_of_device(device, &profile, found, sizeof found);
    ck_assert_int_eq(status_code(status), STATUS_NOT_FOUND);
    ck_assert_str_eq(status_message(status),
                     "there is no profile of cuda:0 (NVIDIA Unheard-of 9000)");
    status_free(status);
    device_close(device);
}

/* ---- CPU offload ---- */

static const char *const second[] = {"second"};
static const struct wrap_unit_spec some[] = {
    {.modules = second, .module_count = 1, .cpu_offload = true}};
static const struct wrap_policy offloads_some = {.kind = WRAP_UNITS,
                                                 .units = some,
                                                 .unit_count = 1};

/* Units that are offloaded, all or one, by changes of the policy: the same bits as without, in
 * losses and in pulls. */
LOOP_TEST(offload, 0, 2 * WORLDS)
{
    struct group group, expected;
    choose_world(&group, _i % WORLDS);
    group.job.plan.cpu_offload = _i >= WORLDS;
    group.order_count = 4;
    for (int i = 0; i < 4; i++) group.order_at[i] = 2 + (uint64_t)i;
    group.wraps[0] = &offloads_some;
    group.wraps[1] = &small;
    group.wraps[2] = &offloads_some; /* order 4 only pulls */
    expected = group;
    expected.job.plan.cpu_offload = false;
    expected.order_count = 0;
    cuda_runs_move(&expected);
    group_run_without_error(&expected);
    cuda_runs_move(&group);
    group_run_without_error(&group);
    ck_assert_int_eq(group.members[0].metric_count, 8);
    for (int i = 0; i < 8; i++)
        ck_assert(group.members[0].metrics[i].loss == expected.members[0].metrics[i].loss);
    for (int rank = 0; rank < group.job.world; rank++)
        for (int i = 0; i < 3; i++) ck_assert_ptr_null(group.members[rank].changes[i].refused);
    expect_files(group_pull_file(&group, -1), group_pull_file(&expected, -1), true);
    group_reset(&group);
    group_reset(&expected);
}

/* The device's optimizer has the host's bits, also of averages in 8 bits, and in bf16, and of
 * parameters in bf16. */
LOOP_TEST(state_in_fewer_bits, 0, 6)
{
    static const enum state_dtype states[] = {STATE_INT8, STATE_BF16, STATE_BF16};
    struct group group, expected;
    group_init(&group, group_sum_model, group_data, 1 + _i % 2);
    group.job.plan.rounded = _i > 3;
    if (_i > 3) group.job.plan.gathered_dtype = DTYPE_BF16;
    group.job.optimizer = (struct optimizer_step){.kind = OPTIMIZER_ADAMW,
                                                  .state = states[_i / 2],
                                                  .lr = 0.01,
                                                  .beta1 = 0.9,
                                                  .beta2 = 0.99,
                                                  .eps = 1e-8,
                                                  .weight_decay = 0.1};
    group.job.batch_size = 6;
    group.job.max_steps = 4;
    group.job.log_interval = 1;
    group.job.evaluate = false;
    expected = group;
    expected.job.plan.cpu_offload = true;
    cuda_runs_move(&expected);
    group_run_without_error(&expected);
    cuda_runs_move(&group);
    group_run_without_error(&group);
    AUTO(buf_deinit) struct buf a = group_pull_file(&group, -1);
    AUTO(buf_deinit) struct buf b = group_pull_file(&expected, -1);
    ck_assert_uint_eq(a.length, b.length);
    ck_assert_mem_eq(a.data, b.data, a.length);
    group_reset(&group);
    group_reset(&expected);
}

/* Muon's momentum stays where its elements are when units change, and Adafactor's sums stay those
 * of their matrices, by NCCL and through host memory. */
LOOP_TEST(muon_and_adafactor, 0, 4)
{
    static const struct optimizer_step others = {
        .kind = OPTIMIZER_ADAMW, .lr = 0.5, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-3};
    struct group group, expected;
    choose_world(&group, _i % 2 == 0 ? 2 : 4);
    group.job.optimizer = (struct optimizer_step){
        .kind = OPTIMIZER_MUON, .lr = 0.02, .momentum = 0.9, .ns_steps = 5, .others = &others};
    if (_i > 1) group.job.optimizer = group_adafactor;
    group.order_count = 2;
    for (int i = 0; i < 2; i++) group.order_at[i] = 2 + (uint64_t)i;
    group.wraps[0] = &small;
    group.wraps[1] = &none;
    expected = group;
    cuda_runs_move(&group);
    group_run_without_error(&expected);
    group_run_without_error(&group);
    expect_near_losses(&group, &expected);
    expect_near_files(group_pull_file(&group, -1), group_pull_file(&expected, -1));
    expect_planned_peak(&group, 2);
    group_reset(&group);
    group_reset(&expected);
}

static struct group_saving in_place; /* of offloaded state, which is not copied */
static struct comm *comms[GROUP_MAX_WORLD];
static void save_in_place(struct member *member)
{
    int rank = member->rank;
    group_save_rank(member->group, &in_place, comms[rank], rank);
    ck_assert_ptr_null(in_place.statuses[rank]);
    ck_assert_uint_eq(in_place.results[rank].copied, 0);
    free(in_place.results[rank].path);
    free(in_place.results[rank].removed);
}

/* Its checkpoints are like any job's: resumed with offloading, and without; saved at once, or after
 * the run. */
LOOP_TEST(offloaded_checkpoints, 0, WORLDS)
{
    for (int way = 0; way < 3; way++) {
        struct group group, again;
        choose_world(&group, _i);
        group.job.checkpoints = (struct checkpoint_settings){.folder = cuda_runs_folder,
                                                             .run = "digits-1@7",
                                                             .every_steps = 5};
        again = group;
        group.job.plan.cpu_offload = way != 1;
        again.job.plan.cpu_offload = way == 1;
        cuda_runs_move(&group);
        in_place = (struct group_saving){.folder = cuda_runs_folder};
        if (way == 2 && group.job.world > 1)
            ck_assert_ptr_null(comm_local_new(group.job.world, group.timeout_ms, comms));
        if (way == 2) group.captured = save_in_place;
        group_run_without_error(&group);
        if (way != 2) group_save_without_error(&group, 0, cuda_runs_folder, 1);
        again.job.checkpoints.every_steps = 0;
        again.job.checkpoints.resume = again.job.checkpoints.must_resume = true;
        again.job.checkpoints.attempt = 2;
        cuda_runs_move(&again);
        group_run_without_error(&again);
        ck_assert_uint_eq(again.members[0].resumed_step, 5);
        ck_assert_int_eq(again.members[0].metric_count, 3);
        ck_assert(again.members[0].metrics[2].loss == group.members[0].metrics[7].loss);
        expect_files(group_pull_file(&again, -1), group_pull_file(&group, -1), true);
        group_reset(&group);
        group_reset(&again);
        ck_assert_ptr_null(tree_remove(cuda_runs_folder));
    }
}

static uint64_t limit;

static uint64_t limited(int rank)
{
    (void)rank;
    return limit;
}

/* A device too small for the job, but large enough with offloading. */
LOOP_TEST(offload_of_what_does_not_fit, 0, 2)
{
    struct group group;
    Fsdpd__V1__Plan *whole = NULL, *offloaded = NULL;
    init(&group, 1 + _i);
    group.job.wrap = small;
    ck_assert_ptr_null(plan_on("cuda:0", &group.job, 0, &whole));
    group.job.plan.cpu_offload = true;
    ck_assert_ptr_null(plan_on("cuda:0", &group.job, 0, &offloaded));
    ck_assert_uint_eq(whole->host_bytes, 0);
    /* values, gradients and Adam's two, of this rank's part of some 9,500 parameters */
    ck_assert_uint_ge(offloaded->host_bytes, (uint64_t)4 * 4 * 9500 / (1 + (uint64_t)_i));
    ck_assert_uint_lt(offloaded->peak_bytes, whole->peak_bytes);
    bool noted = false;
    for (size_t i = 0; i < offloaded->n_notes; i++)
        noted = noted || strstr(offloaded->notes[i], "of pinned host memory per rank") != NULL;
    ck_assert(noted);
    limit = (whole->peak_bytes + offloaded->peak_bytes) / 2;
    group.memory = limited;
    cuda_runs_move(&group);
    group_run_without_error(&group);
    ck_assert_uint_eq(group.members[0].memory_peak, offloaded->peak_bytes);
    group_reset(&group);
    group.job.plan.cpu_offload = false;
    cuda_runs_move(&group);
    group_run(&group);
    ck_assert_int_eq(status_code(group.members[0].status), STATUS_RESOURCE_EXHAUSTED);
    group_reset(&group);
    fsdpd__v1__plan__free_unpacked(whole, NULL);
    fsdpd__v1__plan__free_unpacked(offloaded, NULL);
}

/* ---- the host's memory ---- */

static void limit_host(uint64_t bytes)
{
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)bytes);
    setenv("FSDPD_CUDA_HOST_MEMORY", text, 1);
}

static void expect_no_host_memory(status_t status, const char *words)
{
    ck_assert_int_eq(status_code(status), STATUS_RESOURCE_EXHAUSTED);
    ck_assert_msg(strstr(status_message(status), words) != NULL, "%s", status_message(status));
    status_free(status);
}

/* All memory that a job's ranks on a host pin, with their copies, must fit it: checked at submit,
 * to the byte. */
LOOP_TEST(planning_for_a_host, 0, 2)
{
    struct group group;
    Fsdpd__V1__Plan *plan = NULL;
    struct planning_options options = {.device = "cuda:0", .staged = _i == 1, .host_workers = 8};
    init(&group, 2);
    group.job.plan.cpu_offload = true;
    ck_assert_ptr_null(planning_make(&group.job, &options, &plan));
    ck_assert_uint_gt(plan->host_memory_bytes, 0);
    ck_assert_uint_eq(plan->host_ranks, 2); /* there are no more */
    uint64_t rank = plan->host_bytes + plan->staging_bytes;
    fsdpd__v1__plan__free_unpacked(plan, NULL);
    limit_host(2 * rank);
    ck_assert_ptr_null(planning_make(&group.job, &options, &plan));
    ck_assert_uint_eq(plan->host_memory_bytes, 2 * rank);
    fsdpd__v1__plan__free_unpacked(plan, NULL);
    limit_host(2 * rank - 1);
    expect_no_host_memory(planning_make(&group.job, &options, &plan),
                          " for the 2 ranks of a host, but ");
    /* with a host each, they fit; also if a running job will release memory */
    options.host_workers = 1;
    ck_assert_ptr_null(planning_make(&group.job, &options, &plan));
    ck_assert_uint_eq(plan->host_ranks, 1);
    fsdpd__v1__plan__free_unpacked(plan, NULL);
    options.host_workers = 2;
    options.host_memory_bytes = 2 * rank;
    ck_assert_ptr_null(planning_make(&group.job, &options, &plan));
    fsdpd__v1__plan__free_unpacked(plan, NULL);
    unsetenv("FSDPD_CUDA_HOST_MEMORY");
}

/* Offloading is no advice if the host cannot hold it, either. */
TEST(offload_is_not_advised)
{
    struct group group;
    Fsdpd__V1__Plan *plan = NULL;
    init(&group, 1);
    group.job.wrap = small;
    ck_assert_ptr_null(plan_on("cuda:0", &group.job, 0, &plan));
    uint64_t memory = plan->peak_bytes - 1, copies = plan->staging_bytes;
    fsdpd__v1__plan__free_unpacked(plan, NULL);
    for (int small_host = 0; small_host < 2; small_host++) {
        if (small_host) limit_host(copies);
        status_t status = plan_on("cuda:0", &group.job, memory, &plan);
        ck_assert_int_eq(status_code(status), STATUS_RESOURCE_EXHAUSTED);
        bool advised = strstr(status_message(status), "fsdp.cpu_offload=true") != NULL;
        ck_assert_msg(advised == !small_host, "%s", status_message(status));
        status_free(status);
    }
    unsetenv("FSDPD_CUDA_HOST_MEMORY");
}

/* A rank checks before it allocates anything, and so before another policy takes over. */
LOOP_TEST(running_on_a_host, 0, 2)
{
    struct group group;
    Fsdpd__V1__Plan *plan = NULL;
    init(&group, 2);
    cuda_runs_staged = group.job.staged = _i == 1;
    const struct planning_options options = {.device = "cuda:0", .staged = cuda_runs_staged};
    group.job.wrap = offloads_some;
    group.host_ranks = 2;
    ck_assert_ptr_null(planning_make(&group.job, &options, &plan));
    uint64_t units = plan->host_bytes, copies = plan->staging_bytes;
    fsdpd__v1__plan__free_unpacked(plan, NULL);
    limit_host(2 * (units + copies) - 1);
    cuda_runs_move(&group);
    cuda_stub_reset(7);
    group_run(&group);
    for (int rank = 0; rank < 2; rank++) {
        const struct member *member = &group.members[rank];
        ck_assert_int_eq(status_code(member->status), STATUS_RESOURCE_EXHAUSTED);
        ck_assert_msg(strstr(status_message(member->status), " for the 2 ranks of a host, but ") !=
                          NULL,
                      "%s", status_message(member->status));
    }
    group_reset(&group);
    limit_host(2 * (units + copies));
    cuda_runs_move(&group);
    group_run_without_error(&group);
    group_reset(&group);

    /* Offloading needs the new executor's lanes and the units in addition; collectives through host
     * memory need more than that from the start. */
    group.job.wrap = small;
    group.order_count = 1;
    group.order_at[0] = 2;
    group.wraps[0] = &offloads_some;
    for (int enough = cuda_runs_staged; enough < 2; enough++) {
        limit_host(cuda_runs_staged ? 2 * (units + copies)
                                    : 2 * (units + 4 * LANE_HOST_BYTES) - !enough);
        cuda_runs_move(&group);
        group_run_without_error(&group);
        status_t refused = group.members[0].changes[0].refused;
        ck_assert_int_eq(status_code(refused), enough ? STATUS_OK : STATUS_RESOURCE_EXHAUSTED);
        if (!enough) ck_assert_ptr_nonnull(strstr(status_message(refused), "offloaded units need"));
        group_reset(&group);
    }
    unsetenv("FSDPD_CUDA_HOST_MEMORY");
}

/* A cpu's state is in host memory anyway. */
TEST(offload_without_effect)
{
    struct group group;
    Fsdpd__V1__Plan *plan = NULL;
    init(&group, 2);
    group.job.plan.cpu_offload = true;
    ck_assert_ptr_null(plan_on("cpu", &group.job, 0, &plan));
    ck_assert_uint_eq(plan->host_bytes, 0);
    fsdpd__v1__plan__free_unpacked(plan, NULL);
}
