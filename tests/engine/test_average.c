/*
 * The average of the parameters over steps (train.ema): the numbers of torch.optim.swa_utils'
 * AveragedModel with get_ema_multi_avg_fn, whatever the layout; in checkpoints, which may gain or
 * lose it; and in evaluations.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/tree.h"
#include "session_group.h"
#include "tests/testing.h"

enum { STEPS = 5 };
#define DECAY 0.9

static char folder[96];

static void make_folder(void)
{
    snprintf(folder, sizeof folder, "%s/averages", group_data);
}

static void remove_folder(void)
{
    ck_assert_ptr_null(tree_remove(folder));
}

TESTS_BELOW(.timeout = 120, .set_up = make_folder, .tear_down = remove_folder,
            .set_up_once = group_draw_digits, .tear_down_once = group_remove_digits);

static void init(struct group *group, int world, double decay)
{
    group_init(group, group_mean_model, group_data, world);
    group->job.max_steps = STEPS;
    group->job.batch_size = (uint32_t)(12 / world);
    group->job.dropout = group->job.evaluate = false;
    group->job.optimizer = (struct optimizer_step){.kind = OPTIMIZER_ADAMW,
                                                   .lr = 0.01,
                                                   .beta1 = 0.9,
                                                   .beta2 = 0.99,
                                                   .eps = 1e-8,
                                                   .ema_decay = decay};
}

/* The values of the final state_dict. */
static float *run_to(struct group *group, uint64_t steps, bool average, size_t *count)
{
    group->job.max_steps = steps;
    group->average = average;
    group_run(group);
    group_expect_success(group);
    struct buf file = group_pull_file(group, -1);
    uint64_t header;
    memcpy(&header, file.data, sizeof header);
    size_t start = sizeof header + (size_t)header;
    *count = (file.length - start) / sizeof(float);
    float *values = mem_alloc_array(*count, sizeof *values);
    memcpy(values, file.data + start, *count * sizeof *values);
    buf_deinit(&file);
    return values;
}

/* By AveragedModel.update_parameters: a copy at first, then lerp(average, weights, 1 - decay). */
static float *expected_average(int world, enum strategy strategy, size_t *count)
{
    float *expected = NULL;
    for (uint64_t step = 1; step <= STEPS; step++) {
        struct group group;
        init(&group, world, 0);
        group.job.plan.strategy = strategy;
        float *weights = run_to(&group, step, false, count);
        for (size_t i = 0; i < *count && step > 1; i++)
            expected[i] += (float)(1 - DECAY) * (weights[i] - expected[i]);
        if (step == 1) expected = weights;
        else free(weights);
        group_reset(&group);
    }
    return expected;
}

static void expect_near(const float *found, const float *expected, size_t count)
{
    for (size_t i = 0; i < count; i++)
        ck_assert_msg(fabsf(found[i] - expected[i]) <= 2e-7f * (1 + fabsf(expected[i])),
                      "value %zu is %.9g, not %.9g", i, (double)found[i], (double)expected[i]);
}

static const struct {
    int world;
    enum strategy strategy;
} layouts[] = {{1, STRATEGY_FULL_SHARD},
               {2, STRATEGY_FULL_SHARD},
               {3, STRATEGY_FULL_SHARD},
               {2, STRATEGY_NO_SHARD},
               {4, STRATEGY_HYBRID_SHARD}};

LOOP_TEST(is_that_of_averaged_model, 0, COUNT_OF(layouts))
{
    size_t count, other;
    AUTO_FREE float *expected = expected_average(layouts[_i].world, layouts[_i].strategy, &count);
    struct group group;
    init(&group, layouts[_i].world, DECAY);
    group.job.plan.strategy = layouts[_i].strategy;
    AUTO_FREE float *average = run_to(&group, STEPS, true, &other);
    ck_assert_uint_eq(count, other);
    expect_near(average, expected, count);
    ck_assert_uint_eq(group.members[0].memory_peak, group.members[0].memory_planned);
    group_reset(&group);
    AUTO_FREE float *weights = run_to(&group, STEPS, false, &other);
    ck_assert_mem_ne(average, weights, count * sizeof *weights);
    group_reset(&group);
    init(&group, layouts[_i].world, 0);
    group.job.plan.strategy = layouts[_i].strategy;
    AUTO_FREE float *without = run_to(&group, STEPS, false, &other);
    ck_assert_mem_eq(without, weights, count * sizeof *weights);
    group_reset(&group);
}

/* Also from the middle of a run, in another layout and with other units from step 2 on. */
TEST(moves_with_layouts)
{
    size_t count, other;
    AUTO_FREE float *expected = expected_average(2, STRATEGY_FULL_SHARD, &count);
    static const struct wrap_policy small = {.kind = WRAP_SIZE, .min_num_params = 100};
    struct group group, again;
    init(&group, 2, DECAY);
    group.order_at[0] = 2;
    group.wraps[0] = &small;
    group.order_count = 1;
    group.job.checkpoints =
        (struct checkpoint_settings){.folder = folder, .run = "digits-1@7", .every_steps = 3};
    AUTO_FREE float *rewrapped = run_to(&group, STEPS, true, &other);
    ck_assert_ptr_null(group.members[0].changes[0].refused);
    ck_assert_uint_gt(group.members[0].changes[0].peak_bytes, 0);
    expect_near(rewrapped, expected, count);
    group_save_without_error(&group, 0, folder, 0);
    init(&again, 1, DECAY);
    again.job.checkpoints = group.job.checkpoints;
    again.job.checkpoints.resume = again.job.checkpoints.must_resume = true;
    again.job.checkpoints.attempt = 2;
    AUTO_FREE float *resumed = run_to(&again, STEPS, true, &other);
    ck_assert_uint_eq(again.members[0].resumed_step, 3);
    ck_assert_str_eq(again.members[0].note, "");
    for (size_t i = 0; i < count; i++) /* another world: other rounding of gradients */
        ck_assert(fabsf(resumed[i] - expected[i]) < 1e-4f);
    group_reset(&again);
    group_reset(&group);
}

/* A job that keeps none any more, and one that begins to. */
LOOP_TEST(is_lost_or_begun_by_a_resume, 0, 2)
{
    bool begins = _i == 1;
    size_t count;
    struct group group, again;
    init(&group, 2, begins ? 0 : DECAY);
    group.job.checkpoints =
        (struct checkpoint_settings){.folder = folder, .run = "digits-1@7", .every_steps = 3};
    AUTO_FREE float *whole = run_to(&group, STEPS, false, &count);
    group_save_without_error(&group, 0, folder, 0);
    for (uint64_t steps = 3; steps <= STEPS; steps += 2) {
        init(&again, 2, begins ? DECAY : 0);
        again.job.checkpoints = group.job.checkpoints;
        again.job.checkpoints.resume = again.job.checkpoints.must_resume = true;
        AUTO_FREE float *weights = run_to(&again, steps, false, &count);
        const char *note = again.members[1].note;
        ck_assert_msg(strstr(note, begins ? "it has no average of the weights, which begins with "
                                            "its weights (train.ema)"
                                          : "its average of the weights was left out") != NULL,
                      "%s", note);
        group_reset(&again);
        if (steps == STEPS) ck_assert_mem_eq(weights, whole, count * sizeof *whole);
        if (!begins) continue;
        AUTO_FREE float *average = run_to(&again, steps, true, &count);
        bool same = memcmp(average, weights, count * sizeof *weights) == 0;
        ck_assert_int_eq(same, steps == 3);
        group_reset(&again);
    }
    group_reset(&group);
}

/* An evaluation of the average is that of a job whose weights are the average; training continues
 * with the weights. */
LOOP_TEST(is_evaluated_on_request, 0, 2)
{
    int world = _i == 0 ? 1 : 3;
    size_t count;
    double losses[2];
    for (int averaged = 0; averaged < 2; averaged++) {
        struct group group;
        init(&group, world, DECAY);
        group.job.evaluate = true;
        group.job.evaluate_average = averaged;
        AUTO_FREE float *average = run_to(&group, STEPS, true, &count);
        losses[averaged] = group.members[0].epochs[0].test_loss;
        ck_assert_uint_eq(group.members[0].memory_peak, group.members[0].memory_planned);
        group_reset(&group);
        init(&group, world, DECAY);
        AUTO_FREE float *plain = run_to(&group, STEPS, true, &count);
        ck_assert_mem_eq(plain, average, count * sizeof *plain);
        group_reset(&group);
    }
    ck_assert(losses[0] != losses[1] && isfinite(losses[1]));
}
