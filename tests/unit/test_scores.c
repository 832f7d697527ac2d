/* Metrics of tasks from sums, against values computed by hand. */
#include <math.h>
#include <string.h>

#include "kernels/kernels.h"
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

/* The moments of `count` rows, as an op leaves them. */
static void moments_of(const float *x, const float *y, int count, float moments[TALLY_MOMENTS])
{
    struct op_desc desc = {.kind = OP_TALLY,
                           .attrs.tally = {TALLY_NUMBERS, 1},
                           .input_count = 3,
                           .output_count = 1,
                           .input_present = {true, false, true},
                           .output_present = {true}};
    desc.inputs[0] = desc.inputs[2] = tensor_type_make(DTYPE_F32, 2, (int64_t[]){count, 1});
    desc.outputs[0] = tensor_type_make(DTYPE_F32, 2, (int64_t[]){TALLY_MOMENTS, 1});
    struct kernel *kernel;
    ck_assert_ptr_null(kernel_new(KERNELS_CPU, &desc, &kernel));
    const struct kernel_call call = {.inputs = {x, NULL, y}, .outputs = {moments}};
    ck_assert_ptr_null(kernel_run(kernel, &call));
    kernel_free(kernel);
}

/* Numbers whose mean is far above what varies, as ranks and batches have them. */
LOOP_TEST(numbers, 0, 3)
{
    static const double means[] = {0, 1e6, -3e5};
    enum { COUNT = 1000, RANKS = 3 };
    static float x[COUNT], y[COUNT];
    double mx = 0, my = 0, xy = 0, xx = 0, yy = 0, squares = 0;
    for (int i = 0; i < COUNT; i++) {
        double both = sin(1.3 * i);
        x[i] = (float)(means[_i] + 4 * both + sin(7.7 * i));
        y[i] = (float)(means[_i] + 3 * both + 7);
        mx += (double)x[i] / COUNT;
        my += (double)y[i] / COUNT;
    }
    for (int i = 0; i < COUNT; i++) {
        xy += (x[i] - mx) * (y[i] - my);
        xx += (x[i] - mx) * (x[i] - mx);
        yy += (y[i] - my) * (y[i] - my);
        squares += ((double)x[i] - y[i]) * ((double)x[i] - y[i]) / COUNT;
    }
    double sums[7] = {0};
    struct score_sums all = with(TALLY_NUMBERS, 1, sums);
    all.ranks = RANKS;
    for (int at = 0; at < COUNT;) { /* the last rank has nothing at times */
        float moments[RANKS * TALLY_MOMENTS] = {0};
        for (int rank = 0; rank < RANKS && at < COUNT; rank++) {
            int count = COUNT - at < 37 ? COUNT - at : 37;
            moments_of(x + at, y + at, count, moments + rank * TALLY_MOMENTS);
            at += count;
        }
        score_sums_add(&all, moments);
    }
    struct train_scores scores = score_sums_compute(&all, TARGET_NUMBERS, 0.5, 0, COUNT);
    ck_assert_double_eq_tol(scores.pearson, xy / sqrt(xx * yy), 1e-6);
    ck_assert_double_eq_tol(scores.mse, squares, 1e-5 * squares);
    ck_assert(isnan(scores.accuracy) && isnan(scores.f1));
}

TEST(numbers_that_do_not_vary_have_no_correlation)
{
    static const float x[] = {3, 3}, y[] = {1, 2};
    double sums[7] = {0};
    struct score_sums flat = with(TALLY_NUMBERS, 1, sums);
    flat.ranks = 1;
    float moments[TALLY_MOMENTS];
    moments_of(x, y, 2, moments);
    score_sums_add(&flat, moments);
    struct train_scores scores = score_sums_compute(&flat, TARGET_NUMBERS, 0.5, 0, 2);
    ck_assert(isnan(scores.pearson));
    ck_assert_double_eq(scores.mse, 2.5);
}

TEST(tokens_have_a_perplexity)
{
    const struct score_sums none = {.columns = 0};
    struct train_scores scores = score_sums_compute(&none, TARGET_TOKEN, 2, 0, 10);
    ck_assert_double_eq_tol(scores.perplexity, exp(2), 1e-12);
    ck_assert(isnan(scores.accuracy) && isnan(scores.f1));
}
