/*
 * The CUDA kernels of the fused head's blocks of logits, and kernels whose arrays have more than
 * 2^31 elements, under their emulation.
 */
#include "kernel_fixture.h"
#include "kernels/bfloat16.h"
#include "tests/testing.h"

#include <sys/mman.h>

void emulation_only_last(bool on);

static struct cuda_launch launch = {.processors = 2};

TESTS_BELOW(.timeout = 120);

/* Rows of logits in f32 or bf16: losses, hits and gradients, also in place of the logits, dense or
 * with gaps, which long rows need for packs. */
TEST(head_block)
{
    enum { ROWS = 5, LONGEST = 9001 };
    static const struct {
        int64_t classes, stride;
    } sizes[] = {{1, 1},       {2, 2},       {33, 33},           {33, 64},     {300, 300},
                 {1500, 1500}, {1500, 1536}, {LONGEST, LONGEST}, {9001, 9024}, {8200, 8200}};
    static float logits[ROWS * 9024], bias[LONGEST], whole[ROWS * LONGEST];
    static uint16_t gradient[ROWS * 9024];
    struct random random = {13};
    for (size_t c = RACES ? COUNT_OF(sizes) - 2 : 0; c < COUNT_OF(sizes); c++)
        for (int way = 0; way < 3; way++) { /* f32; bf16 from f32, and in place */
            bool low = way > 0;
            int64_t n = sizes[c].classes, stride = sizes[c].stride;
            int32_t target[ROWS];
            float losses[ROWS], correct[ROWS], scale = 0.2f;
            fill_random(&random, logits, ROWS * stride);
            fill_random(&random, bias, n);
            for (int64_t i = 0; i < ROWS * stride && way == 2; i++) {
                gradient[i] = bfloat16_from_f32(logits[i]);
                logits[i] = bfloat16_to_f32(gradient[i]);
            }
            for (int r = 0; r < ROWS; r++) target[r] = (int32_t)random_between(&random, 0, n - 1);
            target[1] = -100;
            for (int64_t i = 0; i < ROWS * n; i++)
                whole[i] = logits[i / n * stride + i % n] + bias[i % n];
            const struct cuda_logits block = {.logits = way == 2 ? (void *)gradient : logits,
                                              .logits_dtype = way == 2 ? DTYPE_BF16 : DTYPE_F32,
                                              .rows = ROWS,
                                              .classes = n,
                                              .stride = stride,
                                              .bias = bias,
                                              .bias_dtype = DTYPE_F32,
                                              .target = target,
                                              .scale = scale,
                                              .dtype = low ? DTYPE_BF16 : DTYPE_F32,
                                              .gradient = low ? (void *)gradient : logits,
                                              .gradient_stride = stride,
                                              .losses = losses,
                                              .correct = correct};
            ck_assert_int_eq(cuda_cross_entropy_block(&launch, &block), 0);
            for (int r = 0; r < ROWS; r++) {
                const float *row = whole + r * n;
                double sum = 0;
                int64_t best = 0;
                for (int64_t i = 0; i < n; i++) {
                    sum += exp((double)row[i]);
                    if (row[i] > row[best]) best = i;
                }
                bool counts = target[r] >= 0;
                double loss = counts ? log(sum) - (double)row[target[r]] : 0;
                ck_assert_double_eq_tol(losses[r], loss, 3e-6);
                ck_assert_float_eq(correct[r], best == target[r]);
                for (int64_t i = 0; i < n; i++) {
                    double p = exp((double)row[i]) / sum - (i == target[r]);
                    int64_t at = r * stride + i;
                    double found = low ? bfloat16_to_f32(gradient[at]) : logits[at];
                    double expected = counts ? 0.2 * p : 0;
                    ck_assert_double_eq_tol(found, expected,
                                            1e-7 + (low ? 0x1p-8 * fabs(expected) : 0));
                }
            }
        }
}

/* Logits that are not finite, and ties: by the row's first 3 logits, all others being 0. */
TEST(head_extremes)
{
    enum { CASES = 8, STRIDE = 9024 };
    static const int64_t classes[] = {3, 40, 9001};
    static const float inf = INFINITY;
    static const struct {
        float first[3];
        double loss; /* of target 1, if there are no others */
        int best;
    } cases[CASES] = {{{-inf, 0, -inf}, 0, 1},    {{-inf, 5, 5}, 0.69314718, 1},
                      {{5, 5, 5}, 1.09861229, 0}, {{3e38f, -3e38f, 0}, inf, 0},
                      {{inf, 1, 2}, NAN, 0},      {{1, NAN, inf}, NAN, 1},
                      {{NAN, 7, NAN}, NAN, 0},    {{-inf, -inf, -inf}, NAN, 0}};
    static float logits[CASES * STRIDE];
    for (int c = 0; c < 3; c++) {
        int32_t target[CASES];
        float losses[CASES], correct[CASES], scale = 1;
        for (int hit = 0; hit < 2; hit++) {
            memset(logits, 0, sizeof logits);
            for (int r = 0; r < CASES; r++) {
                memcpy(logits + r * STRIDE, cases[r].first, sizeof cases[r].first);
                target[r] = hit ? cases[r].best : 1;
            }
            const struct cuda_logits block = {.logits = logits,
                                              .logits_dtype = DTYPE_F32,
                                              .rows = CASES,
                                              .classes = classes[c],
                                              .stride = STRIDE,
                                              .target = target,
                                              .scale = scale,
                                              .dtype = DTYPE_F32,
                                              .gradient = logits,
                                              .gradient_stride = STRIDE,
                                              .losses = losses,
                                              .correct = correct};
            ck_assert_int_eq(cuda_cross_entropy_block(&launch, &block), 0);
            for (int r = 0; r < CASES; r++) {
                bool nan = isnan(cases[r].loss);
                bool lost = r == CASES - 1 && classes[c] > 3; /* others are larger, and finite */
                if (hit) ck_assert_float_eq(correct[r], !lost);
                if (hit) continue;
                if (nan && !lost) ck_assert(isnan(losses[r]) && isnan(logits[r * STRIDE]));
                else if (classes[c] == 3 && isinf(cases[r].loss)) ck_assert(losses[r] > 1e38f);
                else if (classes[c] == 3) ck_assert_double_eq_tol(losses[r], cases[r].loss, 1e-6);
            }
        }
    }
}

/* ---- more than 2^31 elements ---- */

/* Address space of which the last block of a launch touches some pages. */
static void *far_new(uint64_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert(memory != MAP_FAILED);
    return memory;
}

/* As many that the last block of a grid has the last ones, in packs of 1 and of 4. */
enum { FAR_PROCESSORS = 4096, FAR_STRIDE = FAR_PROCESSORS * 8 * 256 * 4 };
static const size_t far_count = (UINT64_C(1) << 31) + FAR_STRIDE;
static const struct cuda_launch far_launch = {.processors = FAR_PROCESSORS};

TEST(far_values)
{
    float *to = far_new(far_count * 4), *from = far_new(far_count * 4);
    float *second = far_new(far_count * 4);
    uint16_t *rounded = far_new(far_count * 2);
    const size_t last = far_count - 1;
    to[last] = 1.5f, from[last] = 2.25f, to[last - 4] = from[last - 4] = 1;
    emulation_only_last(true);
    ck_assert_int_eq(cuda_add(&far_launch, far_count, to, from), 0);
    ck_assert_float_eq(to[last], 3.75f);
    ck_assert_float_eq(to[last - 4], 2);
    ck_assert_int_eq(cuda_f32_to_bf16(&far_launch, far_count, rounded, to), 0);
    ck_assert_uint_eq(rounded[last], 0x4070);
    ck_assert_uint_eq(rounded[last - 4], 0x4000);
    float skipped = 0, scale = 1, param = 1, grad = 2.25f, average = 0, square = 0;
    const struct cuda_gate_in gate = {.skipped = &skipped, .scale = &scale};
    const struct adam_args args = {0.9f, 0.1f, 0.99f, 0.01f, 1e-8f, 0, 0.99f, 0.1f, 1, 1};
    to[last] = param;
    float *averages = far_new(far_count * 4);
    kernel_adam(1, &param, &grad, &average, &square, &args);
    ck_assert_int_eq(cuda_adam(&far_launch, far_count, to, NULL, from, averages, second, &args,
                               &gate),
                     0);
    emulation_only_last(false);
    ck_assert_float_eq(to[last], param);
    ck_assert_float_eq(averages[last], average);
    munmap(to, far_count * 4), munmap(from, far_count * 4), munmap(second, far_count * 4);
    munmap(averages, far_count * 4), munmap(rounded, far_count * 2);
}

static void run_far(const struct op_desc *desc, const struct kernel_call *call)
{
    struct cuda_op op;
    ck_assert_status_ok(cuda_op_prepare(desc, &op));
    emulation_only_last(true);
    ck_assert_int_eq(op.run(&op, call, &far_launch), 0);
    emulation_only_last(false);
}

static struct tensor_type far_type(int64_t rows, int64_t columns)
{
    return (struct tensor_type){.dtype = DTYPE_F32, .dim_count = 2, .dims = {rows, columns}};
}

/* Rows that begin beyond 2^31 elements. */
TEST(far_rows)
{
    enum { COLUMNS = 128 };
    const int64_t rows = (int64_t)far_count / COLUMNS, last = (int64_t)far_count - COLUMNS;
    float *x = far_new(far_count * 4), *y = far_new(far_count * 4);
    const struct op_desc softmax = {.kind = OP_LOG_SOFTMAX,
                                    .inputs = {far_type(rows, COLUMNS)},
                                    .outputs = {far_type(rows, COLUMNS)},
                                    .input_present = {true},
                                    .output_present = {true}};
    x[last + 3] = 100, x[last + COLUMNS - 1] = 7;
    run_far(&softmax, &(struct kernel_call){.inputs = {x}, .outputs = {y}});
    ck_assert_float_eq(y[last + 3], 0);
    ck_assert_float_eq(y[last + COLUMNS - 1], -93);
    const int32_t token = (int32_t)(rows - 1);
    struct op_desc embedding = {.kind = OP_EMBEDDING,
                                .inputs = {{.dtype = DTYPE_I32, .dim_count = 1, .dims = {1}},
                                           far_type(rows, COLUMNS)},
                                .outputs = {far_type(1, COLUMNS)},
                                .input_present = {true, true},
                                .output_present = {true}};
    static float row[COLUMNS];
    run_far(&embedding, &(struct kernel_call){.inputs = {&token, x}, .outputs = {row}});
    ck_assert_float_eq(row[COLUMNS - 1], 7);
    munmap(x, far_count * 4), munmap(y, far_count * 4);
}
