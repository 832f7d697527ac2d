/* Metrics of tasks from sums, against values computed by hand. */
#include <math.h>
#include <string.h>

#include "tests/testing.h"
#include "train/scores.h"

TESTS_BELOW(.timeout = 20);

static struct score_sums with(enum op_tally kind, int columns, double *sums)
{
    return (struct score_sums){.kind = kind, .columns = columns, .sums = sums};
}

TEST(f1_of_two_classes_is_that_of_class_1)
{
    double sums[] = {50, 20, 70,
                     30, 60, 40}; /* right, selected, wanted: precision 2/3, recall 1/2 */
    const struct score_sums all = with(TALLY_CLASSES, 2, sums);
    struct train_scores scores = score_sums_compute(&all, TARGET_CLASS, 0.5, 70, 100);
    ck_assert_double_eq(scores.accuracy, 0.7);
    ck_assert_double_eq_tol(scores.f1, 2 * (2.0 / 3) * 0.5 / (2.0 / 3 + 0.5), 1e-12);
    ck_assert(isnan(scores.perplexity) && isnan(scores.pearson) && isnan(scores.mse));
}

/* Class 2 is neither in the data nor among the results. */
TEST(f1_of_more_is_the_mean_of_those_that_occur)
{
    double sums[] = {1, 0, 0, 3, 1, 1, 0, 4, 2, 1, 0, 3};
    const struct score_sums all = with(TALLY_CLASSES, 4, sums);
    struct train_scores scores = score_sums_compute(&all, TARGET_TOKEN_CLASS, 0.5, 4, 5);
    ck_assert_double_eq_tol(scores.f1, (2.0 / 3 + 0 + 6.0 / 7) / 3, 1e-12);
}

TEST(labels)
{
    double sums[] = {2, 0, 3, 1, 2, 0}; /* of 4 rows: one decision too many, and one more */
    const struct score_sums all = with(TALLY_LABELS, 2, sums);
    struct train_scores scores = score_sums_compute(&all, TARGET_NUMBERS, 0.5, 0, 8);
    ck_assert_double_eq_tol(scores.f1, (2.0 * 2 / 5 + 0) / 2, 1e-12);
    ck_assert_double_eq_tol(scores.accuracy, 6.0 / 8, 1e-12);
}

TEST(numbers)
{
    static const double x[] = {1, 2, 4, 5.5}, y[] = {0.5, 2.5, 3, 7};
    double sums[TALLY_SUMS] = {4}, mx = 0, my = 0, xy = 0, xx = 0, yy = 0;
    for (int i = 0; i < 4; i++) {
        const double more[] = {
            0, x[i], y[i], x[i] * x[i], y[i] * y[i], x[i] * y[i], (x[i] - y[i]) * (x[i] - y[i])};
        for (int k = 1; k < TALLY_SUMS; k++) sums[k] += more[k];
        mx += x[i] / 4;
        my += y[i] / 4;
    }
    for (int i = 0; i < 4; i++) {
        xy += (x[i] - mx) * (y[i] - my);
        xx += (x[i] - mx) * (x[i] - mx);
        yy += (y[i] - my) * (y[i] - my);
    }
    const struct score_sums all = with(TALLY_NUMBERS, 1, sums);
    struct train_scores scores = score_sums_compute(&all, TARGET_NUMBERS, 0.5, 0, 4);
    ck_assert_double_eq_tol(scores.pearson, xy / sqrt(xx * yy), 1e-12);
    ck_assert_double_eq_tol(scores.mse, (0.25 + 0.25 + 1 + 2.25) / 4, 1e-12);
    ck_assert(isnan(scores.accuracy) && isnan(scores.f1));
    double same[TALLY_SUMS] = {2, 4, 6, 8, 20, 12, 4}; /* x does not vary */
    const struct score_sums flat = with(TALLY_NUMBERS, 1, same);
    ck_assert(isnan(score_sums_compute(&flat, TARGET_NUMBERS, 0.5, 0, 2).pearson));
}

TEST(tokens_have_a_perplexity)
{
    const struct score_sums none = {.columns = 0};
    struct train_scores scores = score_sums_compute(&none, TARGET_TOKEN, 2, 0, 10);
    ck_assert_double_eq_tol(scores.perplexity, exp(2), 1e-12);
    ck_assert(isnan(scores.accuracy) && isnan(scores.f1));
}
