/*
 * Whole runs of adapters on the CUDA device, over the stub of the runtime: the frozen parameters,
 * kept in fewer bits, have the bits of the CPU's, in every type, at any world, replayed, offloaded,
 * and in other units; a checkpoint, which lacks them, is resumed. test_cuda_device.c has steps.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../emulation/cuda_stub.h"
#include "base/array.h"
#include "cuda_runs.h"
#include "hf/safetensors.h"
#include "model/lora.h"
#include "tests/testing.h"

/* Two groups of nf4, which ranks cut. */
static const char model[] = "name: Small\n"
                            "input: [1, 28, 28]\n"
                            "classes: 10\n"
                            "modules:\n"
                            "  first: Linear(784, 24)\n"
                            "  second: Linear(24, 10)\n"
                            "forward:\n"
                            "  - x = relu(first(flatten(x, 1)))\n"
                            "  - output = log_softmax(second(x), 1)\n"
                            "loss: nll_loss(output, target, reduction='sum')\n";

static const char *const all[] = {"first", "second"};
static const struct model_lora lora = {.rank = 2, .alpha = 4, .targets = {all, 2}};
static const struct wrap_policy none = {.kind = WRAP_NONE},
                                small = {.kind = WRAP_SIZE, .min_num_params = 1};
/* Every type, alone, of 2 and 3, of 4 in two groups, and through host memory; ops in either type. */
enum { TYPES = BASE_NF4, WAYS = 5 };

static void init(struct group *group, int number)
{
    static const int worlds[WAYS] = {1, 2, 3, 4, 2};
    int way = number / TYPES, world = worlds[way];
    group_init(group, model, group_data, world);
    group->job.base = BASE_BF16 + (enum base_dtype)(number % TYPES);
    group->job.lora = &lora;
    group->job.optimizer = (struct optimizer_step){
        .kind = OPTIMIZER_ADAMW, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-3};
    group->job.batch_size = 6;
    group->job.max_steps = 8;
    group->job.log_interval = 1;
    group->job.evaluate = false;
    group->job.plan.gathered_dtype = (number + way) % 2 ? DTYPE_BF16 : DTYPE_F32;
    if (world == 4) group->job.plan.strategy = STRATEGY_HYBRID_SHARD;
    group->job.shard_size = 2;
    cuda_runs_staged = way == 4;
}

static void expect_losses(const struct group *found, const struct group *expected, int skipped,
                          double bound)
{
    const struct member *a = &found->members[0], *b = &expected->members[0];
    ck_assert_int_eq(a->metric_count + skipped, b->metric_count);
    for (int i = 0; i < a->metric_count; i++) {
        double loss = a->metrics[i].loss, wanted = b->metrics[i + skipped].loss;
        ck_assert_msg(fabs(loss - wanted) <= bound * (1 + fabs(wanted)), "loss %d is %.9g, not %.9g",
                      i, loss, wanted);
    }
}

static const float *find(const struct buf *file, const struct safetensors_header *header,
                         const char *name, size_t *count)
{
    for (int i = 0; i < header->count; i++) {
        const struct safetensors_entry *entry = &header->entries[i];
        if (strcmp(entry->name, name) != 0) continue;
        *count = (size_t)(entry->end - entry->begin) / sizeof(float);
        return (const float *)(const void *)((char *)file->data + header->data_offset +
                                             entry->begin);
    }
    ck_abort_msg("%s is missing", name);
    return NULL;
}

/* The same bits of what is frozen; nearly the same, within `bound`, of an adapter. */
static void expect_files(struct buf found, struct buf expected, float bound)
{
    static const char *const names[] = {"first.weight", "first.bias",
                                        "second.weight", "first.lora_B.weight"};
    struct safetensors_header in_a, in_b;
    uint64_t needed;
    ck_assert_ptr_null(
        safetensors_read_header(found.data, found.length, found.length, &in_a, &needed));
    ck_assert_ptr_null(safetensors_read_header(expected.data, expected.length, expected.length,
                                               &in_b, &needed));
    for (size_t n = 0; n < COUNT_OF(names); n++) {
        size_t count, others;
        const float *a = find(&found, &in_a, names[n], &count);
        const float *b = find(&expected, &in_b, names[n], &others);
        bool adapter = strstr(names[n], "lora") != NULL;
        ck_assert_uint_eq(count, others);
        if (!adapter) ck_assert_mem_eq(a, b, count * sizeof *a);
        for (size_t i = 0; i < count && adapter; i++) ck_assert(fabsf(a[i] - b[i]) <= bound);
    }
    safetensors_header_deinit(&in_a);
    safetensors_header_deinit(&in_b);
    buf_deinit(&found);
    buf_deinit(&expected);
}

/* Also of a change, during which a rank has old and new. */
static void expect_planned_peak(const struct group *group)
{
    for (int rank = 0; rank < group->job.world; rank++) {
        const struct member *member = &group->members[rank];
        uint64_t most = member->memory_planned;
        for (int i = 0; i < 2; i++) {
            ck_assert_ptr_null(member->changes[i].refused);
            ck_assert_uint_eq(member->changes[i].peak_bytes, member->changes[i].planned_bytes);
            if (member->changes[i].planned_bytes > most) most = member->changes[i].planned_bytes;
        }
        ck_assert_uint_eq(member->memory_peak, most);
    }
}

TESTS_BELOW(.timeout = 120, .set_up = cuda_runs_set_up, .tear_down = cuda_runs_tear_down,
            .set_up_once = group_draw_digits, .tear_down_once = group_remove_digits);

LOOP_TEST(runs, 0, TYPES * WAYS)
{
    struct group group, expected, offloaded;
    init(&group, _i);
    group.order_count = 2;
    for (int i = 0; i < 2; i++) group.order_at[i] = 2 + 2 * (uint64_t)i;
    group.wraps[0] = &none;
    group.wraps[1] = &small;
    expected = offloaded = group;
    bool low = group.job.plan.gathered_dtype == DTYPE_BF16;
    group_run_without_error(&expected);
    cuda_runs_move(&group);
    cuda_stub_record(true);
    group_run_without_error(&group);
    ck_assert_int_eq(cuda_stub_count("cudaGraphLaunch") > 0, !cuda_runs_staged);
    expect_losses(&group, &expected, 0, low ? 2e-2 : 1e-4);
    expect_planned_peak(&group);
    expect_files(group_pull_file(&group, -1), group_pull_file(&expected, -1), low ? 0.1f : 1e-3f);

    offloaded.job.plan.cpu_offload = true;
    cuda_runs_move(&offloaded);
    group_run_without_error(&offloaded);
    expect_losses(&offloaded, &group, 0, 0);
    expect_files(group_pull_file(&offloaded, -1), group_pull_file(&group, -1), 0);
    group_reset(&group);
    group_reset(&expected);
    group_reset(&offloaded);
}

/* Every second type: what is frozen is drawn again. */
LOOP_TEST(checkpoints, 0, WAYS)
{
    struct group group, again;
    init(&group, _i * TYPES + 1 + _i % 2);
    group.job.checkpoints = (struct checkpoint_settings){.folder = cuda_runs_folder,
                                                         .run = "digits-1@7",
                                                         .every_steps = 5};
    again = group;
    cuda_runs_move(&group);
    group_run_without_error(&group);
    group_save_without_error(&group, 0, cuda_runs_folder, 1);
    again.job.checkpoints.every_steps = 0;
    again.job.checkpoints.resume = again.job.checkpoints.must_resume = true;
    again.job.checkpoints.attempt = 2;
    cuda_runs_move(&again);
    group_run_without_error(&again);
    ck_assert_uint_eq(again.members[0].resumed_step, 5);
    expect_losses(&again, &group, 5, 0);
    expect_files(group_pull_file(&again, -1), group_pull_file(&group, -1), 0);
    group_reset(&group);
    group_reset(&again);
}
