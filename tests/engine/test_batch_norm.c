/*
 * BatchNorm with ranks as threads: its running statistics are state. A resumed run, other units, an
 * evaluation in between and activation checkpointing leave all bits; every batch of a step counts
 * once; another number of ranks continues from rank 0's values. SyncBatchNorm has the curve and the
 * statistics of one rank that has the whole batch. test_batch_norm.py has PyTorch's numbers.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/tree.h"
#include "hf/safetensors.h"
#include "session_group.h"
#include "tests/testing.h"

#define MODEL(NORM)                                                                                \
    "name: Normed\n"                                                                               \
    "input: [1, 28, 28]\n"                                                                         \
    "classes: 10\n"                                                                                \
    "blocks:\n"                                                                                    \
    "  Stage(before, after):\n"                                                                    \
    "    modules:\n"                                                                               \
    "      conv: Conv2d(before, after, 3, 2, bias=False)\n"                                        \
    "      norm: " NORM "(after, momentum=0.2)\n"                                                  \
    "    forward:\n"                                                                               \
    "      - output = relu(norm(conv(x)))\n"                                                       \
    "modules:\n"                                                                                   \
    "  first: Stage(1, 6)\n"                                                                       \
    "  second: Stage(6, 10)\n"                                                                     \
    "  out: Linear(360, 10)\n"                                                                     \
    "forward:\n"                                                                                   \
    "  - output = out(flatten(second(first(x)), 1))\n"                                             \
    "loss: cross_entropy(output, target)\n"

static const char plain_model[] = MODEL("BatchNorm2d"), sync_model[] = MODEL("SyncBatchNorm");

static char folder[96];

static void make_folder(void)
{
    snprintf(folder, sizeof folder, "%s/checkpoints", group_data);
}

static void remove_folder(void)
{
    ck_assert_ptr_null(tree_remove(folder));
}

/* What the tests loop over. 601 digits: the last step of an epoch is short on every world. */
static const struct setting {
    int world;
    enum strategy strategy;
    uint32_t accumulate;
    bool low, repeated, sync; /* in bf16; with activation checkpointing; SyncBatchNorm */
} settings[] = {
    {.world = 1, STRATEGY_FULL_SHARD, 1},
    {.world = 2, STRATEGY_FULL_SHARD, 3},
    {.world = 3, STRATEGY_FULL_SHARD, 1, .repeated = true},
    {.world = 2, STRATEGY_NO_SHARD, 2, .repeated = true},
    {.world = 2, STRATEGY_SHARD_GRAD_OP, 1},
    {.world = 4, STRATEGY_HYBRID_SHARD, 1},
    {.world = 1, STRATEGY_FULL_SHARD, 2, .low = true, .repeated = true},
    {.world = 3, STRATEGY_FULL_SHARD, 2, .low = true},
    {.world = 1, STRATEGY_FULL_SHARD, 1, .sync = true},
    {.world = 2, STRATEGY_FULL_SHARD, 3, .sync = true},
    {.world = 3, STRATEGY_FULL_SHARD, 1, .repeated = true, .sync = true},
    {.world = 2, STRATEGY_NO_SHARD, 2, .low = true, .repeated = true, .sync = true},
    {.world = 4, STRATEGY_HYBRID_SHARD, 1, .sync = true},
};

static const char *const stages[] = {"first", "second"};

static void init(struct group *group, const struct setting *setting)
{
    group_init(group, setting->sync ? sync_model : plain_model, group_data, setting->world);
    struct train_job *job = &group->job;
    job->epochs = 2;
    job->log_interval = 3;
    job->plan.strategy = setting->strategy;
    job->accumulation_steps = setting->accumulate;
    job->wrap = (struct wrap_policy){.kind = WRAP_SIZE, .min_num_params = 50};
    if (setting->low) job->plan.gathered_dtype = job->plan.reduce_dtype = DTYPE_BF16;
    if (setting->repeated) job->checkpoint = stages, job->checkpoint_count = COUNT_OF(stages);
    job->checkpoints = (struct checkpoint_settings){.folder = folder, .run = "digits-1@7"};
}

static void train(struct group *group)
{
    group_run(group);
    group_expect_success(group);
}

static void resume(struct group *group)
{
    group->job.checkpoints.resume = group->job.checkpoints.must_resume = true;
    group->job.checkpoints.attempt = 2;
    train(group);
}

/* Another run's last losses and evaluations, of as many as this one has. */
static void expect_same_figures(const struct group *group, const struct group *other)
{
    const struct member *a = &group->members[0], *b = &other->members[0];
    ck_assert_int_gt(a->metric_count, 0);
    for (int i = 1; i <= a->metric_count; i++)
        ck_assert(a->metrics[a->metric_count - i].loss == b->metrics[b->metric_count - i].loss);
    ck_assert_int_gt(a->epoch_count, 0);
    for (int i = 1; i <= a->epoch_count; i++) {
        const struct train_epoch *one = &a->epochs[a->epoch_count - i];
        const struct train_epoch *another = &b->epochs[b->epoch_count - i];
        ck_assert(one->train_loss == another->train_loss && one->test_loss == another->test_loss);
        ck_assert_uint_eq(one->correct, another->correct);
    }
}

static void expect_same_state(struct group *group, struct group *other)
{
    struct buf a = group_pull_file(group, -1), b = group_pull_file(other, -1);
    group_expect_same_file(&a, &b);
}

/* Copies a tensor of the final state; returns its size. */
static size_t read_tensor(struct group *group, const char *name, const char *dtype, void *to,
                          size_t most)
{
    struct buf file = group_pull_file(group, -1);
    struct safetensors_header header;
    uint64_t needed;
    size_t size = 0;
    ck_assert_ptr_null(
        safetensors_read_header(file.data, file.length, file.length, &header, &needed));
    for (int i = 0; i < header.count; i++) {
        const struct safetensors_entry *it = &header.entries[i];
        if (strcmp(it->name, name) != 0) continue;
        ck_assert_str_eq(it->dtype, dtype);
        size = it->end - it->begin;
        ck_assert_uint_le(size, most);
        memcpy(to, (char *)file.data + header.data_offset + it->begin, size);
    }
    ck_assert_msg(size > 0, "no %s", name);
    safetensors_header_deinit(&header);
    buf_deinit(&file);
    return size;
}

static int64_t batches_seen(struct group *group)
{
    int64_t batches;
    read_tensor(group, "second.norm.num_batches_tracked", "I64", &batches, sizeof batches);
    return batches;
}

TESTS_BELOW(.timeout = 120, .set_up = make_folder, .tear_down = remove_folder,
            .set_up_once = group_draw_digits, .tear_down_once = group_remove_digits);

LOOP_TEST(resumed_is_undisturbed, 0, COUNT_OF(settings), .sanitized_every = 3)
{
    static struct group group, again;
    init(&group, &settings[_i]);
    again = group;
    group.job.checkpoints.every_steps = 7;
    train(&group);
    group_save_without_error(&group, 0, folder, 0);
    resume(&again);
    for (int rank = 0; rank < again.job.world; rank++)
        ck_assert_uint_eq(again.members[rank].resumed_step, 7);
    expect_same_figures(&again, &group);
    expect_same_state(&again, &group);
    group_reset(&again);
    group_reset(&group);
}

/* Units change during the run, and so does the place of the statistics. */
LOOP_TEST(other_units_keep_the_bits, 0, COUNT_OF(settings), .sanitized_every = 3)
{
    static const struct wrap_policy none = {.kind = WRAP_NONE},
                                    large = {.kind = WRAP_SIZE, .min_num_params = 500};
    static struct group plain, group;
    init(&plain, &settings[_i]);
    plain.order_count = 2;
    plain.order_at[0] = 2;
    plain.order_at[1] = 5;
    group = plain;
    group.wraps[0] = &none;
    group.wraps[1] = &large;
    train(&plain);
    train(&group);
    for (int rank = 0; rank < group.job.world; rank++)
        for (int i = 0; i < 2; i++) {
            ck_assert_ptr_null(group.members[rank].changes[i].refused);
            ck_assert_uint_gt(group.members[rank].changes[i].peak_bytes, 0);
        }
    expect_same_figures(&group, &plain);
    expect_same_state(&group, &plain);
    group_reset(&plain);
    group_reset(&group);
}

/* An evaluation gives all ranks rank 0's statistics, and moves none. */
LOOP_TEST(evaluations_change_nothing, 0, COUNT_OF(settings), .sanitized_every = 3)
{
    static struct group without, group;
    init(&group, &settings[_i]);
    without = group;
    without.job.evaluate = false;
    train(&without);
    train(&group);
    ck_assert_int_eq(group.members[0].epoch_count, 2);
    for (int i = 0; i < group.members[0].metric_count; i++)
        ck_assert(group.members[0].metrics[i].loss == without.members[0].metrics[i].loss);
    expect_same_state(&group, &without);
    group_reset(&without);
    group_reset(&group);
}

/* Activation checkpointing normalises a second time, and does not count the batch again. */
LOOP_TEST(repeated_batches_count_once, 0, COUNT_OF(settings), .sanitized_every = 3)
{
    static struct group plain, group;
    struct setting setting = settings[_i];
    setting.repeated = false;
    init(&plain, &setting);
    setting.repeated = true;
    init(&group, &setting);
    train(&plain);
    train(&group);
    int64_t steps = (int64_t)plain.members[0].last_step;
    ck_assert_int_ge(batches_seen(&group), steps);
    ck_assert_int_le(batches_seen(&group), steps * setting.accumulate);
    expect_same_figures(&group, &plain);
    expect_same_state(&group, &plain);
    group_reset(&plain);
    group_reset(&group);
}

/* Batches of a step move the statistics one after the other, as the same batches of several steps
 * that learn nothing do. */
LOOP_TEST(every_batch_of_a_step_counts, 1, 4)
{
    static struct group together, apart;
    const struct setting setting = {.world = _i, STRATEGY_FULL_SHARD, 3};
    init(&together, &setting);
    group_freeze(&together);
    together.job.max_steps = 3;
    apart = together;
    apart.job.accumulation_steps = 1;
    apart.job.max_steps = 9;
    train(&together);
    train(&apart);
    ck_assert_int_eq(batches_seen(&together), 9);
    expect_same_state(&together, &apart);
    group_reset(&together);
    group_reset(&apart);
}

/* All ranks of another world begin with the statistics of the checkpoint, and move them on. */
LOOP_TEST(another_world_continues, 1, 4)
{
    static struct group group, again;
    struct setting setting = {.world = 3, STRATEGY_FULL_SHARD, 1};
    init(&group, &setting);
    group.job.batch_size = 12 / 3;
    group.job.max_steps = 8;
    group.job.checkpoints.every_steps = 8;
    train(&group);
    group_save_without_error(&group, 0, folder, 0);
    setting.world = _i;
    init(&again, &setting);
    again.job.batch_size = 12 / (uint32_t)_i;
    again.job.max_steps = 8;
    resume(&again);
    expect_same_state(&again, &group); /* no step is left, only the evaluation */
    ck_assert_int_eq(again.members[0].epoch_count, group.members[0].epoch_count);
    for (int i = 0; i < again.members[0].epoch_count; i++)
        ck_assert(fabs(again.members[0].epochs[i].test_loss / group.members[0].epochs[i].test_loss -
                       1) <= 1e-6);
    group_reset(&again);
    again.job.max_steps = 11;
    resume(&again);
    ck_assert_int_eq(batches_seen(&again), 11);
    float before[10], after[10];
    ck_assert_uint_eq(read_tensor(&group, "second.norm.running_mean", "F32", before, sizeof before),
                      sizeof before);
    read_tensor(&again, "second.norm.running_mean", "F32", after, sizeof after);
    for (int c = 0; c < 10; c++) /* three batches: 0.8^3 of what was there is left */
        ck_assert(after[c] != before[c] && fabsf(after[c] - before[c]) < fabsf(before[c]) + 1);
    group_reset(&again);
    group_reset(&group);
}

static void expect_close_tensor(struct group *group, struct group *other, const char *name)
{
    float a[3600], b[3600], largest = 1;
    size_t size = read_tensor(group, name, "F32", a, sizeof a);
    ck_assert_uint_eq(read_tensor(other, name, "F32", b, sizeof b), size);
    for (size_t i = 0; i < size / sizeof *a; i++) largest = fmaxf(largest, fabsf(b[i]));
    for (size_t i = 0; i < size / sizeof *a; i++)
        ck_assert_msg(fabsf(a[i] - b[i]) <= 1e-5f * largest, "%s[%zu] is %.9g, not %.9g", name, i,
                      (double)a[i], (double)b[i]);
}

/* Ranks have unequal shares of a step's samples, in one batch each; the last steps of an epoch
 * leave some with little or nothing. BatchNorm on one rank that has all is the same network. */
LOOP_TEST(sync_is_one_batch, 2, 9, .sanitized_every = 3)
{
    static struct group one, group;
    const struct setting setting = {.world = _i,
                                    _i % 2 == 0 ? STRATEGY_FULL_SHARD : STRATEGY_NO_SHARD,
                                    1,
                                    .repeated = _i == 3,
                                    .sync = true};
    const struct setting alone = {.world = 1, STRATEGY_FULL_SHARD, 1};
    init(&one, &alone);
    one.job.global_batch = 25; /* 601 samples: the last step has one */
    one.job.batch_size = 25;
    one.job.log_interval = 1;
    one.job.epochs = 1;
    one.job.max_steps = 25;
    one.job.optimizer = (struct optimizer_step){.kind = OPTIMIZER_SGD, .lr = 0.02, .momentum = 0.9};
    init(&group, &setting);
    const struct train_job same = one.job;
    group.job.global_batch = same.global_batch;
    group.job.batch_size = same.batch_size;
    group.job.log_interval = same.log_interval;
    group.job.epochs = same.epochs;
    group.job.max_steps = same.max_steps;
    group.job.optimizer = same.optimizer;
    train(&one);
    train(&group);
    ck_assert_int_eq(group.members[0].metric_count, 25);
    for (int i = 0; i < 25; i++) {
        double found = group.members[0].metrics[i].loss, wanted = one.members[0].metrics[i].loss;
        ck_assert_msg(fabs(found / wanted - 1) <= 1e-5, "step %d: %.9g, not %.9g", i + 1, found,
                      wanted);
    }
    static const char *const names[] = {"first.norm.running_mean",
                                        "first.norm.running_var",
                                        "second.norm.running_mean",
                                        "second.norm.running_var",
                                        "second.norm.weight",
                                        "first.conv.weight",
                                        "out.weight"};
    for (size_t i = 0; i < COUNT_OF(names); i++) expect_close_tensor(&group, &one, names[i]);
    ck_assert_int_eq(batches_seen(&group), batches_seen(&one));
    group_reset(&one);
    group_reset(&group);
}
