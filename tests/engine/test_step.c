/*
 * The parts of a step, with ranks as threads on generated digits: micro-steps that add up,
 * clipping, skipped steps, parameter groups.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "hf/safetensors.h"
#include "kernels/kernels.h"
#include "session_group.h"
#include "tests/testing.h"

/* The final parameters of a run, and its last metrics. */
struct outcome {
    struct buf file;
    struct safetensors_header header;
    float *values; /* one tensor after another, as in the header */
    size_t count;
    struct train_metrics last;
};

static struct outcome train(struct group *group)
{
    struct outcome outcome = {0};
    uint64_t needed;
    group_run(group);
    group_expect_success(group);
    outcome.file = group_pull_file(group, -1);
    status_t status = safetensors_read_header(outcome.file.data, outcome.file.length,
                                              outcome.file.length, &outcome.header, &needed);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    size_t bytes = outcome.file.length - outcome.header.data_offset;
    outcome.values = mem_dup(outcome.file.data + outcome.header.data_offset, bytes);
    outcome.count = bytes / sizeof(float);
    const struct member *member = &group->members[0];
    outcome.last = member->metrics[member->metric_count - 1];
    group_reset(group);
    return outcome;
}

static void forget(struct outcome *outcome)
{
    free(outcome->values);
    safetensors_header_deinit(&outcome->header);
    buf_deinit(&outcome->file);
}

/* |a - b| / |b| */
static double distance(const struct outcome *a, const struct outcome *b)
{
    double apart = 0, size = 0;
    ck_assert_uint_eq(a->count, b->count);
    for (size_t i = 0; i < a->count; i++) {
        apart += ((double)a->values[i] - b->values[i]) * ((double)a->values[i] - b->values[i]);
        size += (double)b->values[i] * b->values[i];
    }
    return sqrt(apart / size);
}

static const float *find(const struct outcome *outcome, const char *name)
{
    for (int i = 0; i < outcome->header.count; i++)
        if (strcmp(outcome->header.entries[i].name, name) == 0)
            return outcome->values + outcome->header.entries[i].begin / sizeof(float);
    ck_abort_msg("%s is not in the file", name);
}

/* To the bit, wherever the units put them in the files. */
static void expect_same(const struct outcome *a, const struct outcome *b)
{
    ck_assert_uint_eq(a->count, b->count);
    for (int i = 0; i < a->header.count; i++) {
        const struct safetensors_entry *entry = &a->header.entries[i];
        ck_assert_msg(memcmp(find(a, entry->name), find(b, entry->name),
                             entry->end - entry->begin) == 0,
                      "%s differs", entry->name);
    }
}

static void prepare(struct group *group, const char *model, int world, enum strategy strategy)
{
    group_init(group, model, group_data, world);
    group->job.plan.strategy = strategy;
    group->job.dropout = group->job.evaluate = false;
    group->job.log_interval = 1;
    group->job.max_steps = 3;
    group->job.schedule.kind = SCHEDULE_CONSTANT;
    group->job.optimizer = (struct optimizer_step){.kind = OPTIMIZER_SGD, .lr = 0.002};
}

TESTS_BELOW(.timeout = 120, .set_up_once = group_draw_digits,
            .tear_down_once = group_remove_digits);

/* Four batches of five equal one of twenty, however their gradients are reduced. */
LOOP_TEST(accumulation, 0, GROUP_WORLDS)
{
    for (int mean = 0; mean < 2; mean++) {
        struct group group;
        struct outcome outcomes[3];
        const char *model = mean ? group_mean_model : group_sum_model;
        int world = group_worlds[_i].world;
        for (int k = 0; k < 3; k++) {
            prepare(&group, model, world, group_worlds[_i].strategy);
            if (mean) group.job.optimizer.lr = 0.1;
            group.job.optimizer.momentum = 0.9;
            if (k > 0) {
                group.job.batch_size = 5;
                group.job.accumulation_steps = 4;
                group.job.no_sync = k == 2;
            }
            outcomes[k] = train(&group);
            ck_assert_uint_eq(outcomes[k].last.step, 3);
        }
        for (int k = 1; k < 3; k++) {
            double apart = distance(&outcomes[k], &outcomes[0]);
            ck_assert_msg(apart < 2e-6, "world %d, mean %d, kind %d: %g", world, mean, k, apart);
            ck_assert(fabs(outcomes[k].last.loss / outcomes[0].last.loss - 1) < 1e-5);
        }
        ck_assert(world == 1 ||
                  outcomes[1].last.communicated_bytes > outcomes[2].last.communicated_bytes);
        for (int k = 0; k < 3; k++) forget(&outcomes[k]);
    }
}

/* An epoch of seven batches per rank is two steps of three and one of one. */
TEST(short_last_step)
{
    struct group group;
    prepare(&group, group_mean_model, 2, STRATEGY_FULL_SHARD);
    group.job.batch_size = 47; /* 301 samples per rank */
    group.job.accumulation_steps = 3;
    group.job.epochs = 2;
    group.job.max_steps = 0;
    group.job.optimizer.lr = 0.05;
    struct outcome outcome = train(&group);
    ck_assert_uint_eq(outcome.last.step, 6);
    ck_assert(outcome.last.epoch == 2);
    forget(&outcome);
}

/* An epoch of 601 samples ends with one step of 25: a batch of 16 and one of 9. */
TEST(uneven_batches)
{
    struct outcome outcomes[3];
    for (int k = 0; k < 3; k++) {
        struct group group;
        prepare(&group, group_mean_model, 1, STRATEGY_FULL_SHARD);
        group.job.batch_size = k > 0 ? 16 : 48;
        group.job.accumulation_steps = k > 0 ? 3 : 1;
        group.job.plan.norm = k > 1 ? NORM_2 : NORM_NONE;
        group.job.max_norm = k > 1 ? 1e9 : 0;
        group.job.max_steps = 13;
        group.job.optimizer.lr = 0.1;
        outcomes[k] = train(&group);
        ck_assert_uint_eq(outcomes[k].last.step, 13);
    }
    for (int k = 1; k < 3; k++) {
        double apart = distance(&outcomes[k], &outcomes[0]);
        ck_assert_msg(apart < 2e-6, "kind %d: %g", k, apart);
        ck_assert(fabs(outcomes[k].last.loss / outcomes[0].last.loss - 1) < 1e-6);
    }
    for (int k = 0; k < 3; k++) forget(&outcomes[k]);
}

/* Clipping gives the first step exactly the length of the bound, whatever each rank holds. */
LOOP_TEST(clipping, 0, GROUP_WORLDS)
{
    int world = group_worlds[_i].world;
    struct group group;
    for (int norm = NORM_2; norm <= NORM_INF; norm++) {
        prepare(&group, group_sum_model, world, group_worlds[_i].strategy);
        group.job.max_steps = 1;
        group.job.optimizer.lr = 0;
        struct outcome before = train(&group);
        ck_assert(isnan(before.last.gradient_norm));
        group.job.optimizer.lr = 1;
        struct outcome whole = train(&group); /* the gradient itself moved it */
        group.job.plan.norm = (enum norm_kind)norm;
        group.job.max_norm = 0.01;
        struct outcome clipped = train(&group);
        group.job.max_norm = 1e9;
        struct outcome measured = train(&group);
        double lengths[2] = {0};
        for (size_t i = 0; i < before.count; i++)
            for (int k = 0; k < 2; k++) {
                double step = (double)(k ? whole : clipped).values[i] - before.values[i];
                if (norm == NORM_2) lengths[k] += step * step;
                else lengths[k] = fmax(lengths[k], fabs(step));
            }
        for (int k = 0; k < 2 && norm == NORM_2; k++) lengths[k] = sqrt(lengths[k]);
        ck_assert(clipped.last.gradient_norm > 0.01);
        ck_assert(fabs(lengths[1] / clipped.last.gradient_norm - 1) < 1e-4);
        ck_assert_msg(fabs(lengths[0] / 0.01 - 1) < 1e-4, "%g", lengths[0]);
        ck_assert(clipped.last.gradient_norm == measured.last.gradient_norm);
        expect_same(&measured, &whole);
        ck_assert_uint_eq(clipped.last.skipped_steps, 0);
        forget(&before);
        forget(&whole);
        forget(&clipped);
        forget(&measured);
    }
}

/* State in 8 bits is cut between blocks, and that in bf16 is rounded by draws of each element, so
 * it is the same however a world shares it. (Hybrid shards add gradients in another order: there in
 * other units.) */
LOOP_TEST(state_in_fewer_bits, 0, 15)
{
    int shape = _i % 5;
    enum state_dtype state = _i < 5 ? STATE_INT8 : STATE_BF16;
    bool rounds = _i >= 10; /* the parameters, too */
    static const int worlds[] = {1, 2, 3, 5, 4};
    struct outcome outcomes[3];
    for (int k = 0; k < 3; k++) {
        struct group group;
        enum strategy sharded = shape == 4 ? STRATEGY_HYBRID_SHARD : STRATEGY_FULL_SHARD;
        prepare(&group, group_sum_model, worlds[shape],
                k == 1 && shape < 4 ? STRATEGY_NO_SHARD : sharded);
        if (k == 1 && shape == 4) group.job.wrap = (struct wrap_policy){.kind = WRAP_NONE};
        group.job.optimizer = (struct optimizer_step){.kind = OPTIMIZER_ADAMW,
                                                      .state = k < 2 ? state : STATE_F32,
                                                      .lr = 0.01,
                                                      .weight_decay = 0.1,
                                                      .beta1 = 0.9,
                                                      .beta2 = 0.99,
                                                      .eps = 1e-8};
        if (rounds) group.job.plan.gathered_dtype = DTYPE_BF16;
        group.job.plan.rounded = rounds && k < 2;
        group.job.max_steps = 5;
        outcomes[k] = train(&group);
    }
    expect_same(&outcomes[0], &outcomes[1]);
    double apart = distance(&outcomes[0], &outcomes[2]);
    ck_assert_msg(apart > 1e-6 && apart < 0.1, "%g from f32", apart);
    for (int k = 0; k < 3; k++) forget(&outcomes[k]);
}

/* With gradients that are summed over micro-steps, and clipped or not reduced before the last one. */
static struct outcome train_matrices(struct group *group, enum wrap_kind wrap, bool no_sync)
{
    group->job.wrap.kind = wrap;
    group->job.global_batch = 30;
    group->job.batch_size = 5;
    group->job.no_sync = no_sync;
    group->job.max_norm = no_sync ? 0 : 1;
    group->job.plan.norm = no_sync ? NORM_NONE : NORM_2;
    group->job.max_steps = 5;
    return train(group);
}

static struct outcome train_muon(int world, enum strategy strategy, enum wrap_kind wrap,
                                 bool no_sync)
{
    static const struct optimizer_group groups[] = {{.match = "out.*",
                                                     .ndim = 2,
                                                     .use = USE_MAIN,
                                                     .lr_scale = 0.5,
                                                     .weight_decay = 0.2,
                                                     .own_decay = true}};
    static const struct optimizer_step others = {
        .kind = OPTIMIZER_ADAMW, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
    struct group group;
    prepare(&group, group_sum_model, world, strategy);
    group.job.optimizer = (struct optimizer_step){.kind = OPTIMIZER_MUON,
                                                  .lr = 0.02,
                                                  .weight_decay = 0.1,
                                                  .momentum = 0.95,
                                                  .nesterov = true,
                                                  .ns_steps = 5,
                                                  .ema_decay = 0.5,
                                                  .others = &others,
                                                  .groups = groups,
                                                  .group_count = 1};
    return train_matrices(&group, wrap, no_sync);
}

/* Whole matrices, wherever shards and micro-steps cut them: in every world as on one rank. */
LOOP_TEST(muon, 0, 6)
{
    static const struct {
        int world;
        enum strategy strategy;
        enum wrap_kind wrap;
    } cases[] = {{2, STRATEGY_FULL_SHARD, WRAP_AUTO},   {3, STRATEGY_FULL_SHARD, WRAP_NONE},
                 {5, STRATEGY_FULL_SHARD, WRAP_NONE},   {3, STRATEGY_NO_SHARD, WRAP_AUTO},
                 {4, STRATEGY_HYBRID_SHARD, WRAP_NONE}, {2, STRATEGY_SHARD_GRAD_OP, WRAP_AUTO}};
    for (int no_sync = 0; no_sync < 2; no_sync++) {
        struct outcome alone = train_muon(1, STRATEGY_FULL_SHARD, WRAP_NONE, no_sync);
        struct outcome shared =
            train_muon(cases[_i].world, cases[_i].strategy, cases[_i].wrap, no_sync);
        double apart = distance(&shared, &alone);
        ck_assert_msg(apart < 1e-5, "%g from one rank", apart);
        forget(&alone);
        forget(&shared);
    }
}

static struct outcome train_adafactor(int world, enum strategy strategy, enum wrap_kind wrap,
                                      bool no_sync)
{
    static const struct optimizer_group groups[] = {
        {.match = "out.*", .lr_scale = 0.5, .weight_decay = 0.2, .own_decay = true}};
    struct group group;
    prepare(&group, group_sum_model, world, strategy);
    group.job.optimizer = group_adafactor;
    group.job.optimizer.ema_decay = 0.5;
    group.job.optimizer.groups = groups;
    group.job.optimizer.group_count = 1;
    return train_matrices(&group, wrap, no_sync);
}

/* Sums over rows and columns, wherever shards cut them; convolutions are stacks of matrices. The
 * gradients of a world differ from one rank's in their rounding. */
LOOP_TEST(adafactor, 0, 5)
{
    static const struct {
        int world;
        enum strategy strategy;
        enum wrap_kind wrap;
    } cases[] = {{2, STRATEGY_FULL_SHARD, WRAP_AUTO},
                 {3, STRATEGY_FULL_SHARD, WRAP_NONE},
                 {5, STRATEGY_FULL_SHARD, WRAP_NONE},
                 {3, STRATEGY_NO_SHARD, WRAP_AUTO},
                 {4, STRATEGY_HYBRID_SHARD, WRAP_NONE}};
    for (int no_sync = 0; no_sync < 2; no_sync++) {
        struct outcome alone = train_adafactor(1, STRATEGY_FULL_SHARD, WRAP_NONE, no_sync);
        struct outcome shared =
            train_adafactor(cases[_i].world, cases[_i].strategy, cases[_i].wrap, no_sync);
        double apart = distance(&shared, &alone);
        ck_assert_msg(apart < 1e-5, "%g from one rank", apart);
        forget(&alone);
        forget(&shared);
    }
}

TEST(muon_needs_matrices)
{
    static const struct optimizer_group groups[] = {
        {.match = "*.bias", .lr_scale = 1, .use = USE_MAIN},
        {.match = "*", .lr_scale = 1, .use = USE_OTHERS}};
    static const struct optimizer_step others = {.kind = OPTIMIZER_LION, .lr = 1};
    for (int k = 0; k < 2; k++) {
        struct group group;
        prepare(&group, group_sum_model, 1, STRATEGY_FULL_SHARD);
        group.job.optimizer =
            (struct optimizer_step){.kind = OPTIMIZER_MUON, .ns_steps = 5, .others = &others};
        group.job.optimizer.groups = &groups[k];
        group.job.optimizer.group_count = 1;
        group_run(&group);
        ck_assert_ptr_nonnull(strstr(status_message(group.members[0].status),
                                     k ? "muon updates matrices, but the model trains none"
                                       : "bias has 1 dimensions, but muon updates matrices"));
        group_reset(&group);
    }
}

/* Without weight decay for biases, unless their group has a value: as with groups that say so. */
TEST(excluded_from_weight_decay)
{
    static const struct optimizer_group
        excluding[] = {{.match = "out.*", .weight_decay = 0.5, .lr_scale = 2, .own_decay = true},
                       {.match = "hidden.*", .weight_decay = 0.1, .lr_scale = 0.5},
                       {.lr_scale = 1},
                       {.lr_scale = 2},
                       {.lr_scale = 0.5}},
        listed[] = {{.match = "out.*", .weight_decay = 0.5, .lr_scale = 2},
                    {.match = "hidden.bias", .lr_scale = 0.5},
                    {.match = "hidden.*", .weight_decay = 0.1, .lr_scale = 0.5},
                    {.match = "*.bias", .lr_scale = 1}};
    static const struct {
        const struct optimizer_group *groups;
        int count;
    } cases[] = {{excluding, 5}, {listed, 4}, {excluding, 2}};
    struct outcome outcomes[3];
    for (int k = 0; k < 3; k++) {
        struct group group;
        prepare(&group, group_sum_model, 2, STRATEGY_FULL_SHARD);
        group.job.optimizer.weight_decay = 0.1;
        group.job.optimizer.groups = cases[k].groups;
        group.job.optimizer.group_count = cases[k].count;
        outcomes[k] = train(&group);
    }
    expect_same(&outcomes[0], &outcomes[1]);
    ck_assert(distance(&outcomes[0], &outcomes[2]) > 1e-9); /* the biases decay */
    for (int k = 0; k < 3; k++) forget(&outcomes[k]);
}

/* The same norm and the same steps, with the gradient in shards and as a whole. */
TEST(clipping_over_strategies)
{
    struct group group;
    struct outcome outcomes[2];
    for (int k = 0; k < 2; k++) {
        prepare(&group, group_sum_model, 3, k ? STRATEGY_NO_SHARD : STRATEGY_FULL_SHARD);
        group.job.optimizer = (struct optimizer_step){.kind = OPTIMIZER_ADAMW,
                                                      .lr = 0.01,
                                                      .weight_decay = 0.1,
                                                      .beta1 = 0.9,
                                                      .beta2 = 0.99,
                                                      .eps = 1e-8};
        group.job.plan.norm = NORM_2;
        group.job.max_norm = 1;
        outcomes[k] = train(&group);
    }
    ck_assert(outcomes[0].last.gradient_norm == outcomes[1].last.gradient_norm);
    expect_same(&outcomes[0], &outcomes[1]);
    forget(&outcomes[0]);
    forget(&outcomes[1]);
}

/* The first step is not finite; if no later one is, it stays the last. */
LOOP_TEST(skipping, 0, GROUP_WORLDS)
{
    struct group group;
    for (int accumulate = 0; accumulate < 3; accumulate++) {
        prepare(&group, group_sum_model, group_worlds[_i].world, group_worlds[_i].strategy);
        group.job.optimizer.lr = 1e30;
        group.job.plan.norm = NORM_2;
        group.job.skip_non_finite = true;
        if (accumulate > 0) group.job.batch_size = 10;
        group.job.accumulation_steps = accumulate > 0 ? 2 : 1;
        group.job.no_sync = accumulate == 2;
        group.job.max_steps = 1;
        struct outcome first = train(&group);
        ck_assert_uint_eq(first.last.skipped_steps, 0);
        ck_assert(first.last.gradient_norm > 0);
        group.job.max_steps = 4;
        struct outcome last = train(&group);
        ck_assert_uint_eq(last.last.step, 4);
        ck_assert_uint_eq(last.last.skipped_steps, 3);
        ck_assert(last.last.gradient_norm == 0 && !isfinite(last.last.loss));
        expect_same(&first, &last);
        forget(&first);
        forget(&last);
    }
}

/* Without the policy, a norm that is not finite ends the run on every rank with the same
 * message. */
TEST(failing)
{
    struct group group;
    prepare(&group, group_sum_model, 2, STRATEGY_FULL_SHARD);
    group.job.optimizer.lr = 1e30;
    group.job.plan.norm = NORM_INF;
    group.job.max_norm = 1e30;
    group_run(&group);
    for (int rank = 0; rank < 2; rank++) {
        ck_assert_int_eq(status_code(group.members[rank].status), STATUS_FAILED_PRECONDITION);
        ck_assert_str_eq(status_message(group.members[rank].status),
                         status_message(group.members[0].status));
        ck_assert_ptr_nonnull(strstr(status_message(group.members[rank].status), "at step 2"));
    }
    group_reset(&group);
}

/* A zero rate leaves biases unchanged; their own decay does not touch weights. */
LOOP_TEST(groups, 0, GROUP_WORLDS)
{
    static const struct optimizer_group groups[] = {
        {.match = "*.bias", .weight_decay = 0.5, .lr_scale = 0},
        {.match = "out.*", .weight_decay = 0, .lr_scale = 2}};
    struct group group;
    struct outcome outcomes[4];
    for (int k = 0; k < 4; k++) {
        prepare(&group, group_sum_model, group_worlds[_i].world, group_worlds[_i].strategy);
        if (k == 3) group.job.optimizer.lr *= 2;
        if (k == 2) group.job.optimizer.lr = 0;
        if (k < 2) group.job.optimizer.groups = groups;
        group.job.optimizer.group_count = k < 2 ? 2 : 0;
        if (k == 1) group.job.wrap = (struct wrap_policy){.kind = WRAP_NONE};
        group.job.max_steps = 1;
        outcomes[k] = train(&group);
    }
    expect_same(&outcomes[0], &outcomes[1]);
    for (int i = 0; i < outcomes[0].header.count; i++) {
        const struct safetensors_entry *entry = &outcomes[0].header.entries[i];
        const float *found = find(&outcomes[0], entry->name);
        const float *initial = find(&outcomes[2], entry->name);
        const float *doubled = find(&outcomes[3], entry->name);
        size_t bytes = entry->end - entry->begin;
        bool bias = strstr(entry->name, ".bias") != NULL;
        bool out = strcmp(entry->name, "out.weight") == 0;
        ck_assert_msg((memcmp(found, initial, bytes) == 0) == bias, "%s", entry->name);
        ck_assert_msg((memcmp(found, doubled, bytes) == 0) == out, "%s", entry->name);
    }
    for (int k = 0; k < 4; k++) forget(&outcomes[k]);
}

TEST(groups_that_match_nothing)
{
    static const struct optimizer_group groups[] = {{.match = "out.*"}, {.match = "out.bias"}};
    static const struct optimizer_group other[] = {{.match = "outt.*"}};
    struct group group;
    for (int k = 0; k < 2; k++) {
        prepare(&group, group_sum_model, 1, STRATEGY_FULL_SHARD);
        group.job.optimizer.groups = k ? other : groups;
        group.job.optimizer.group_count = k ? 1 : 2;
        group_run(&group);
        ck_assert_str_eq(status_message(group.members[0].status),
                         k ? "optimizer.groups: 'outt.*' matches no parameter of the model"
                           : "optimizer.groups: 'out.bias' matches only parameters that an earlier "
                             "group has taken");
        group_reset(&group);
    }
}

/* The counters of random masks, from the first op of each batch. */
enum { COUNTERS_MAX = 256 };
static uint64_t counters[COUNTERS_MAX];
static int counter_count, first_op;

/* The linker (--wrap) replaces lane_launch by this. */
status_t __real_lane_launch(struct lane_queue *lane, struct device_graph *graph, int op,
                            const struct kernel_call *call);
status_t __wrap_lane_launch(struct lane_queue *lane, struct device_graph *graph, int op,
                            const struct kernel_call *call);
status_t __wrap_lane_launch(struct lane_queue *lane, struct device_graph *graph, int op,
                            const struct kernel_call *call)
{
    if (counter_count == 0) first_op = op;
    if (op == first_op && counter_count < COUNTERS_MAX) counters[counter_count++] = call->step;
    return __real_lane_launch(lane, graph, op, call);
}

/* 31 batches of 20 for 601 samples, in threes: the last one is a step of its own. */
TEST(masks_do_not_repeat)
{
    struct group group;
    group_init(&group, group_mean_model, group_data, 1);
    group.job.evaluate = false;
    group.job.epochs = 3;
    group.job.accumulation_steps = 3;
    counter_count = 0;
    group_run(&group);
    group_expect_success(&group);
    ck_assert_uint_eq(group.members[0].last_step, 3 * 11);
    ck_assert_int_eq(counter_count, 3 * 31);
    for (int i = 0; i < counter_count; i++) {
        ck_assert_uint_eq(counters[i], (uint64_t)(i / 31 * 33 + i % 31));
        for (int j = 0; j < i; j++) ck_assert_uint_ne(counters[i], counters[j]);
    }
    group_reset(&group);
}
