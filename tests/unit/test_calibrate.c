/* Calibration: what it measures on the cpu, how it ends early, and what it refuses. */
#include "planning/calibrate.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "planning/calibrate_models.h"
#include "tests/testing.h"

static void expect(status_t status)
{
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

static const struct plan_table *table(const struct profile *profile, const char *name, int half)
{
    int row = plan_row_find(name);
    ck_assert_int_ge(row, 0);
    return &profile->tables->rows[row][half];
}

static void expect_ranks(const struct plan_table *table, double ranks)
{
    for (int i = 0; i < table->count; i++)
        if (table->samples[i].ranks == ranks) return;
    ck_abort_msg("no sample of %g ranks", ranks);
}

/* The rates of the link are those of the smallest and of the largest of its samples. */
static void expect_link(const struct plan_table *table, const struct plan_link *link)
{
    const struct plan_sample *small = &table->samples[0], *large = small;
    for (int i = 0; i < table->count; i++) {
        if (table->samples[i].bytes < small->bytes) small = &table->samples[i];
        if (table->samples[i].bytes > large->bytes) large = &table->samples[i];
    }
    ck_assert_double_eq(link->latency, small->seconds);
    ck_assert_double_eq_tol(link->bandwidth * large->seconds, large->bytes, large->bytes / 1e6);
}

TEST(a_profile_of_the_cpu_is_complete)
{
    const struct calibrate_options options = {.device = "cpu",
                                              .workers = 2,
                                              .threads = 1,
                                              .seconds = 1};
    static const char *const ops[] = {"linear", "linear_backward_weights", "conv2d", "step"};
    static const char *const links[] = {"all_gather", "reduce_scatter", "all_reduce"};
    struct profile profile, again;
    struct buf text = {0};
    expect(calibrate(&options, &profile));
    for (int i = 0; i < 4; i++) expect_ranks(table(&profile, ops[i], 0), 1);
    for (int i = 0; i < 3; i++)
        for (int half = 0; half < 2; half++) expect_ranks(table(&profile, links[i], half), 2);
    ck_assert_int_gt(table(&profile, "linear", 1)->count, 0);
    ck_assert_double_gt(profile.rates.flops_f32, 1e8);
    ck_assert_double_gt(profile.rates.memory_bandwidth, 1e6);
    expect_link(table(&profile, "all_gather", 0), &profile.rates.inside);
    profile_print(&profile, &text);
    ck_assert_uint_lt(text.length, PROFILE_FILE_MAX);
    expect(profile_parse(buf_text(&text), text.length, "printed.yaml", &again));
    ck_assert(again.here);
    ck_assert_int_eq(again.tables->rows[OP_LINEAR][0].count,
                     profile.tables->rows[OP_LINEAR][0].count);
    buf_deinit(&text);
    profile_deinit(&again);
    profile_deinit(&profile);
}

static bool stop_at_the_third(void *user)
{
    return atomic_fetch_add((atomic_int *)user, 1) >= 2;
}

TEST(it_ends_when_it_is_asked_to)
{
    atomic_int asked = 0;
    const struct calibrate_options options = {.device = "cpu",
                                              .workers = 2,
                                              .threads = 1,
                                              .seconds = 3600,
                                              .stops = stop_at_the_third,
                                              .user = &asked};
    struct profile profile;
    status_t status = calibrate(&options, &profile);
    ck_assert_msg(status_code(status) == STATUS_CANCELLED, "%s", status_message(status));
    status_free(status);
}

TEST(a_device_that_is_not_there_is_refused)
{
    const struct calibrate_options options = {.device = "abacus",
                                              .workers = 1,
                                              .threads = 1,
                                              .seconds = 1};
    struct profile profile;
    status_t status = calibrate(&options, &profile);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(status_message(status), "abacus"));
    status_free(status);
}
