/*
 * The vectorised loops: every level that this processor can run gives the bits of the scalar
 * formula (sums, dropout masks; optimizers: test_optimizer_loops.c) or of the base level. Also the
 * generator's published vectors and the statistics and layouts of dropout.
 */
#include "kernels/philox.h"
#include "loops_fixture.h"
#include "tests/testing.h"

static void random_values(float *values, size_t count)
{
    fill_random(&rng, values, (int64_t)count);
}

TESTS_BELOW(.timeout = 120);

TEST(levels)
{
    ck_assert_ptr_nonnull(cpu_loops_at(CPU_LEVEL_BASE));
    const struct cpu_loops *best = NULL;
    for (int level = 0; level < CPU_LEVEL_COUNT; level++)
        if (cpu_loops_at((enum cpu_level)level) != NULL) best = cpu_loops_at((enum cpu_level)level);
    ck_assert_ptr_eq(cpu_loops_get(), best);
}

/* The vectors published with the generator. */
TEST(philox)
{
    static const uint32_t vectors[][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t words[4];
        philox_block(vectors[i], vectors[i] + 4, words);
        for (int j = 0; j < 4; j++) ck_assert_uint_eq(words[j], vectors[i][6 + j]);
    }
    ck_assert_uint_eq(philox_threshold(0), 0);
    ck_assert_uint_eq(philox_threshold(0.25), 1u << 30);
    ck_assert_uint_eq(philox_threshold(0x1p-33), 1);
    ck_assert_uint_eq(philox_threshold(1 - 0x1p-40), (uint64_t)1 << 32);
}

TEST(keep_bits)
{
    static const uint64_t thresholds[] = {0, 1, 1u << 30, 1u << 31, 0xffffffff, (uint64_t)1 << 32};
    uint64_t words[9];
    for (int level = 0; level < CPU_LEVEL_COUNT; level++) {
        const struct cpu_loops *loops = cpu_loops_at((enum cpu_level)level);
        if (loops == NULL) continue;
        for (int run = 0; run < 60; run++) {
            struct dropout_mask mask = {.seed = random_bits(&rng),
                                        .stream = (uint32_t)random_bits(&rng),
                                        .step = (uint32_t)random_bits(&rng),
                                        .rank = (uint32_t)random_bits(&rng),
                                        .threshold = thresholds[run % 6]};
            uint64_t block = run % 2 ? random_bits(&rng) % 1000 : 0xffffff00u + (unsigned)run;
            size_t count = (size_t)random_between(&rng, 1, 8);
            words[count] = 0x1234;
            loops->keep_bits(count, words, block, &mask);
            ck_assert_uint_eq(words[count], 0x1234);
            uint32_t key[2] = {(uint32_t)mask.seed, (uint32_t)(mask.seed >> 32)};
            for (size_t i = 0; i < count * 64; i++) {
                uint32_t counter[4] = {(uint32_t)(block + i / 4), mask.stream, mask.step,
                                       mask.rank};
                uint32_t random[4];
                philox_block(counter, key, random);
                ck_assert_msg((words[i / 64] >> (i % 64) & 1) == (random[i % 4] >= mask.threshold),
                              "%s: bit %zu", loops->name, i);
            }
        }
    }
}

static struct op_desc dropout_desc(enum op_kind kind, struct tensor_type type, double p)
{
    struct op_desc desc = desc_of(kind);
    desc.inputs[0] = desc.outputs[0] = type;
    desc.attrs.dropout.p = p;
    desc.attrs.dropout.stream = 5;
    return desc;
}

/* A call whose elements are numbered from another first has the bits of a part of a larger call. */
TEST(dropout_counts_from_first)
{
    enum { ALL = 9000, PART = 4100 };
    static float x[ALL], all[ALL], part[ALL];
    for (int i = 0; i < ALL; i++) x[i] = 1;
    for (int i = 0; i < 4; i++) {
        enum kernel_library library = i < 2 ? KERNELS_REFERENCE : KERNELS_CPU;
        struct op_desc desc = dropout_desc(OP_DROPOUT, type_of(DTYPE_F32, 1, ALL, 0, 0, 0), 0.4);
        desc.attrs.dropout.normal = i % 2 == 1;
        run_once(library, &desc,
                 (struct kernel_call){.inputs = {x}, .outputs = {all}, .seed = 9, .step = 4});
        desc.inputs[0] = desc.outputs[0] = type_of(DTYPE_F32, 1, PART, 0, 0, 0);
        for (uint64_t first = 0; first < 70; first++) {
            run_once(library, &desc,
                     (struct kernel_call){.inputs = {x},
                                          .outputs = {part},
                                          .seed = 9,
                                          .step = 4,
                                          .first_sample = first,
                                          .sample_elements = 1});
            ck_assert_mem_eq(part, all + first, PART * sizeof *part);
        }
    }
}

/* The counter is (element / 4, stream, step, rank), the key the seed. */
TEST(dropout_counter)
{
    float x[64], y[64];
    for (int i = 0; i < 64; i++) x[i] = (float)i + 1;
    for (int library = KERNELS_REFERENCE; library <= KERNELS_CPU; library++) {
        /* The zero vector's words, as fractions: 0.399, 0.881, 0.736, 0.605. */
        struct op_desc desc = dropout_desc(OP_DROPOUT, type_of(DTYPE_F32, 1, 64, 0, 0, 0), 0.7);
        desc.attrs.dropout.stream = 0;
        run_once(library, &desc, (struct kernel_call){.inputs = {x}, .outputs = {y}});
        ck_assert_float_eq(y[0], 0);
        ck_assert_float_eq_tol(y[1], 2 / 0.3f, 1e-5f);
        ck_assert_float_eq_tol(y[2], 3 / 0.3f, 1e-5f);
        ck_assert_float_eq(y[3], 0);
        desc.attrs.dropout.stream = 11;
        desc.attrs.dropout.p = 0.5;
        run_once(library, &desc,
                 (struct kernel_call){.inputs = {x},
                                      .outputs = {y},
                                      .seed = 0x0123456789abcdef,
                                      .step = 0x500000007,
                                      .rank = 3});
        for (uint32_t i = 0; i < 64; i++) {
            uint32_t words[4];
            philox_block((uint32_t[]){i / 4, 11, 7, 3}, (uint32_t[]){0x89abcdef, 0x01234567},
                         words);
            ck_assert_float_eq(y[i], words[i % 4] >= 1u << 31 ? x[i] * 2 : 0);
        }
    }
}

/* Mean, variance, and how often a draw is far away; those of a radius are apart from each other. */
TEST(normal_draws)
{
    enum { N = 400000 };
    static float y[N];
    double sum = 0, squares = 0, pairs = 0;
    int far = 0;
    struct op_desc desc = dropout_desc(OP_DROPOUT, type_of(DTYPE_F32, 1, N, 0, 0, 0), 0);
    desc.attrs.dropout.normal = true;
    run_once(KERNELS_CPU, &desc,
             (struct kernel_call){.inputs = {y}, .outputs = {y}, .seed = 42, .step = 1});
    for (int i = 0; i < N; i++) {
        sum += y[i];
        squares += (double)y[i] * y[i];
        pairs += i % 16 < 8 ? (double)y[i] * y[i + 8] : 0;
        far += fabsf(y[i]) > 1.959964f;
    }
    ck_assert_double_lt(fabs(sum / N), 4 / sqrt(N));
    ck_assert_double_lt(fabs(squares / N - 1), 4 * sqrt(2.0 / N));
    ck_assert_double_lt(fabs(pairs / N * 2), 4 * sqrt(2.0 / N));
    ck_assert_double_lt(fabs(far / (double)N - 0.05), 4 * sqrt(0.05 / N));
}

TEST(dropout_statistics)
{
    enum { N = 400000 };
    static float x[N], y[N];
    for (int i = 0; i < N; i++) x[i] = 1;
    static const double rates[] = {0, 0.1, 0.25, 0.5, 0.9};
    for (int r = 0; r < 5; r++) {
        double p = rates[r];
        struct op_desc desc = dropout_desc(OP_DROPOUT, type_of(DTYPE_F32, 1, N, 0, 0, 0), p);
        double means[2], both = 0;
        static float first[N];
        for (int step = 0; step < 2; step++) {
            run_once(KERNELS_CPU, &desc,
                     (struct kernel_call){
                         .inputs = {x}, .outputs = {y}, .seed = 42, .step = (uint64_t)step});
            double kept = 0;
            int others = 0;
            for (int i = 0; i < N; i++) {
                others += y[i] != 0 && y[i] != (float)(1 / (1 - p));
                kept += y[i] != 0;
                if (step == 1) both += y[i] != 0 && first[i] != 0;
            }
            ck_assert_int_eq(others, 0);
            means[step] = kept / N;
            memcpy(first, y, sizeof y);
        }
        double sigma = sqrt(p * (1 - p) / N);
        ck_assert_double_le(fabs(means[0] - (1 - p)), 4.5 * sigma);
        ck_assert_double_le(fabs(means[1] - (1 - p)), 4.5 * sigma);
        /* Two steps are independent of each other. */
        double q = (1 - p) * (1 - p);
        ck_assert_double_le(fabs(both / N - q), 4.5 * sqrt(q * (1 - q) / N));
    }
}

/* The layout does not change which element is kept, and backward uses forward's mask. */
TEST(dropout_layouts)
{
    static const int64_t shapes[][4] = {{2, 64, 12, 12}, {3, 5, 7, 3},    {1, 130, 3, 5},
                                        {2, 3, 40, 41},  {1, 65, 33, 32}, {4, 1, 9, 9}};
    for (int s = 0; s < 6; s++)
        for (int threads = 1; threads <= 2; threads++) {
            kernels_set_threads(threads);
            const int64_t *d = shapes[s];
            struct tensor_type plain = image_of(d[0], d[1], d[2], d[3], LAYOUT_PLAIN);
            struct tensor_type last = image_of(d[0], d[1], d[2], d[3], LAYOUT_CHANNELS_LAST);
            int64_t count = tensor_element_count(&plain);
            size_t bytes = (size_t)count * sizeof(float);
            float *x = mem_alloc(bytes), *y = mem_alloc(bytes), *z = mem_alloc(bytes);
            for (int64_t i = 0; i < count; i++) x[i] = 1;
            struct kernel_call call = {.inputs = {x}, .outputs = {y}, .seed = 8, .step = 5};
            struct op_desc desc = dropout_desc(OP_DROPOUT, plain, 0.3);
            run_once(KERNELS_CPU, &desc, call);
            call.outputs[0] = z;
            desc = dropout_desc(OP_DROPOUT_BACKWARD, last, 0.3);
            run_once(KERNELS_CPU, &desc, call);
            for (int64_t i = 0; i < count; i++) ck_assert_float_eq(y[i], z[place_of(&last, i)]);
            free(x);
            free(y);
            free(z);
        }
}

TEST(sum_ordered)
{
    static float parts[5][MOST], out[MOST], expected[MOST];
    for (int level = 0; level < CPU_LEVEL_COUNT; level++) {
        const struct cpu_loops *loops = cpu_loops_at((enum cpu_level)level);
        if (loops == NULL) continue;
        for (int s = 0; s < SIZE_COUNT; s++)
            for (int count = 1; count <= 5; count++) {
                const float *pointers[5];
                size_t n = sizes[s];
                float scale = count == 2 ? 0.5f : 1 / 3.0f;
                for (int p = 0; p < 5; p++) {
                    random_state(parts[p], n, false);
                    pointers[p] = parts[p];
                }
                for (size_t i = 0; i < n; i++) {
                    float sum = parts[0][i];
                    for (int p = 1; p < count; p++) sum += parts[p][i];
                    expected[i] = sum * scale;
                }
                loops->sum_ordered(n, out, pointers, count, scale);
                assert_same_bits(out, expected, n, "sum", loops->name);
                kernel_sum_ordered(n, parts[0], pointers, count, scale); /* in place */
                assert_same_bits(parts[0], expected, n, "sum in place", loops->name);
            }
    }
}

/* test_train_numbers has PyTorch's own numbers. Uniform values are multiples of 2^-24. */
TEST(random)
{
    static float values[MOST], found[MOST], expected[MOST];
    for (int level = 0; level < CPU_LEVEL_COUNT; level++) {
        const struct cpu_loops *loops = cpu_loops_at((enum cpu_level)level);
        if (loops == NULL) continue;
        for (int s = 0; s < SIZE_COUNT; s++) {
            size_t n = sizes[s], blocks = n / 16;
            for (size_t i = 0; i < n; i++)
                values[i] = (float)random_between(&rng, 0, (1 << 24) - 1) * 0x1p-24f;
            if (n > 8) values[0] = 0, values[8] = 0, values[1] = 1 - 0x1p-24f;
            for (size_t i = 0; i < n; i++) expected[i] = fmaf(values[i], 0.7f, -0.3f);
            memcpy(found, values, n * sizeof *found);
            loops->fused(n, found, 0.7f, -0.3f);
            assert_same_bits(found, expected, n, "fused", loops->name);
            memcpy(found, values, n * sizeof *found);
            memcpy(expected, values, n * sizeof *found);
            loops->box_muller(blocks, found, 0.5f, 2);
            cpu_loops_base->box_muller(blocks, expected, 0.5f, 2);
            assert_same_bits(found, expected, n, "box_muller", loops->name);
            for (size_t i = 0; i < blocks * 16; i++) {
                const float *block = values + i / 16 * 16;
                double radius = sqrt(-2 * log(1 - (double)block[i % 8]));
                double angle = 2 * M_PI * (double)block[i % 8 + 8];
                double value = 0.5 + 2 * radius * (i % 16 < 8 ? cos(angle) : sin(angle));
                ck_assert_msg(fabs(value - (double)found[i]) < 1e-5, "%.9g, not %.9g",
                              (double)found[i], value);
            }
        }
    }
}

/* Everything else: each level against the base level. */

TEST(levels_agree)
{
    static float x[MOST], z[MOST], found[MOST], expected[MOST];
    static uint8_t indices[2][MOST];
    const struct cpu_loops *base = cpu_loops_at(CPU_LEVEL_BASE);
    for (int level = 1; level < CPU_LEVEL_COUNT; level++) {
        const struct cpu_loops *loops = cpu_loops_at((enum cpu_level)level);
        if (loops == NULL) continue;
#define AGREE(function, ...)                                                                       \
    do {                                                                                           \
        random_values(found, MOST);                                                                \
        memcpy(expected, found, sizeof found);                                                     \
        float *y = found;                                                                          \
        loops->function(__VA_ARGS__);                                                              \
        y = expected;                                                                              \
        base->function(__VA_ARGS__);                                                               \
        assert_same_bits(found, expected, MOST, #function, loops->name);                           \
    } while (0)
        for (int s = 1; s < SIZE_COUNT; s++)
            for (int add = 0; add < 2; add++) {
                size_t n = sizes[s];
                random_values(x, MOST);
                random_values(z, MOST);
                AGREE(relu, n, y, x, add);
                AGREE(relu_backward, n, y, x, z, add);
                AGREE(add, n, y, x, z, add);
                AGREE(copy_add, n, y, x);
                AGREE(log_softmax, n, y, x, add);
                AGREE(log_softmax_backward, n, y, x, z, add);
                AGREE(exp_scaled, n, y, x, 0.3f, add);
                const struct dropout_mask mask = {.seed = 1ull << 40 | 9, .stream = 5, .step = 7};
                AGREE(draw_fractions, n / 32, y, UINT32_MAX - n / 16, &mask);
                for (int kind = DIFFERENCE_SQUARED; kind <= DIFFERENCE_DIVERGENCE; kind++) {
                    AGREE(add_differences, n, y, x, z, kind, 0.3f, add);
                    AGREE(put_differences, n, y, x, z, kind, 0.3f, 0.7f, false, add);
                }
                size_t rows = (size_t)random_between(&rng, 1, 40);
                size_t columns = (size_t)random_between(&rng, 1, 40);
                AGREE(transpose, rows, columns, y, x, add);
                AGREE(sum_rows, rows, columns, y, x, add);
                uint64_t words[MOST / 64 + 2];
                for (size_t i = 0; i < COUNT_OF(words); i++) words[i] = random_bits(&rng);
                AGREE(apply_bits, n, y, x, words, 1.25f, add);
                size_t channels = (size_t)random_between(&rng, 1, 64);
                size_t stride = channels + (size_t)random_between(&rng, 0, 9), pixels = MOST / 73;
                uint32_t offsets[64];
                for (size_t c = 0; c < channels; c++)
                    offsets[c] = (uint32_t)random_between(&rng, 0, MOST - 64 * 2);
                AGREE(apply_bits_transposed, channels, pixels, stride, y, x, words, offsets, 2.0f,
                      add);
                const float *candidates[9];
                uint8_t numbers[9];
                size_t step = 1 + n % 2, places = n < 1000 ? n : 1000;
                int count = (int)random_between(&rng, 1, 9);
                for (int k = 0; k < count; k++) {
                    candidates[k] = x + random_between(&rng, 0, 2000);
                    numbers[k] = (uint8_t)(count == 4 ? k : 2 * k);
                }
                x[random_between(&rng, 0, 3000)] = NAN;
                random_values(found, MOST);
                memcpy(expected, found, sizeof found);
                loops->max_of(places, step, count, candidates, numbers, found, indices[0], add);
                base->max_of(places, step, count, candidates, numbers, expected, indices[1], add);
                assert_same_bits(found, expected, MOST, "max_of", loops->name);
                ck_assert_mem_eq(indices[0], indices[1], places);
            }
    }
}

/* What works on rows: activations, norms, softmax, sums of columns. */
TEST(sequence_levels)
{
    static const size_t widths[] = {1,  2,  3,  15, 16,  17,  31,  48,
                                    63, 64, 65, 80, 127, 200, 768, 1030};
    static float x[MOST], z[MOST], w[MOST], found[MOST], expected[MOST];
    static uint16_t low[MOST];
    const struct cpu_loops *base = cpu_loops_at(CPU_LEVEL_BASE);
    for (int level = 1; level < CPU_LEVEL_COUNT; level++) {
        const struct cpu_loops *loops = cpu_loops_at((enum cpu_level)level);
        if (loops == NULL) continue;
        for (size_t run = 0; run < 2 * COUNT_OF(widths); run++) {
            size_t n = widths[run / 2];
            bool add = run % 2;
            fill_random(&rng, x, MOST);
            fill_random(&rng, z, MOST);
            fill_random(&rng, w, MOST);
            for (int i = 0; i < MOST; i++) x[i] *= 9;
            for (int i = 0; i < MOST; i++) low[i] = (uint16_t)(0x3e00 + random_bits(&rng) % 0x1ff);
            for (int tanh = 0; tanh < 2; tanh++) {
                AGREE(gelu, n, y, x, tanh, add);
                AGREE(gelu_mul, n, y, x, z, tanh, add);
                AGREE(gelu_mul_backward, n, y, y + MOST / 2, z, x, w, tanh, add, run % 3);
                AGREE(gelu_backward, n, y, z, x, tanh, add);
            }
            AGREE(tanh, n, y, x, add);
            AGREE(tanh_backward, n, y, z, x, add);
            AGREE(sigmoid, n, y, x, add);
            AGREE(sigmoid_backward, n, y, z, x, add);
            for (int kind = 0; kind <= FUNCTION_AT_LEAST; kind++) {
                AGREE(function, n, y, x, kind, 2, add);
                AGREE(function_backward, n, y, z, x, kind, 2, add);
            }
            AGREE(squared_relu, n, y, x, add);
            AGREE(squared_relu_backward, n, y, z, x, add);
            AGREE(affine, n, y, x, 1.7f, -0.3f, add);
            AGREE(reciprocal, n, y, x, 1.7f, add);
            AGREE(div, n, y, z, x, add);
            AGREE(div_backward, n, y, z, x, z, add);
            AGREE(silu, n, y, x, add);
            AGREE(silu_backward, n, y, z, x, add);
            AGREE(silu_mul, n, y, x, z, add);
            AGREE(silu_mul_backward, n, y, y + MOST / 2, z, x, w, add, run % 3);
            AGREE(mul, n, y, x, z, add);
            AGREE(softmax, n, y, x, add);
            AGREE(softmax_backward, n, y, x, z, add);
            AGREE(copy_add_bf16, n, y, low);
            for (int parts = 0; parts < 8; parts++) {
                const float *weight = parts & 1 ? z : NULL, *more = parts & 2 ? w : NULL;
                AGREE(norm, n, y, x, weight, more, parts & 4, 1e-5, y + MOST - 1, y + MOST - 2,
                      add);
                AGREE(norm_backward, n, y, z, x, weight, more, parts & 4, 0.3f, 1.7f, add);
            }
            AGREE(norm_backward_weights, n, y, y + MOST / 2, z, x, 0.3f, 1.7f);
            AGREE(norm_backward_weights, n, y, NULL, z, x, 0.3f, 1.7f);
            AGREE(norm_backward_weights, n, NULL, y, z, x, 0.3f, 1.7f);
            size_t stride = (size_t)random_between(&rng, 1, 20), rows = MOST / stride;
            size_t columns = (size_t)random_between(&rng, 1, (int64_t)stride);
            AGREE(sum_columns, rows, columns, stride, y, x, add);
            AGREE(sum_columns_bf16, rows, columns, stride, y, low, add);
        }
    }
}

/* Products: a chain of fused multiply-adds for each element, and no writes beside them. */

static void plain_product(const struct cpu_product *p, float *c)
{
    for (size_t r = 0; r < p->rows; r++)
        for (size_t n = 0; n < p->columns; n++) {
            if (p->part == PRODUCT_COLUMNS_FROM_ROW && n < r / 16 * 16) continue;
            float sum = 0, *to = &c[r * p->c_row + n];
            for (size_t k = 0; k < p->depth; k++) {
                if (p->part == PRODUCT_DEPTH_FROM_ROW && k < r) continue;
                if (p->part == PRODUCT_DEPTH_TO_ROW && k > r) continue;
                sum = fmaf(p->a[r * p->a_row + k * p->a_depth], p->b[k * p->b_depth + n], sum);
            }
            *to = p->add ? fmaf(*to, p->factors != NULL ? p->factors[r] : 1, sum) : sum;
        }
}

static void plain_dots(const struct cpu_product *p, float *c)
{
    for (size_t r = 0; r < p->rows; r++)
        for (size_t n = 0; n < p->columns; n++) {
            float sums[8] = {0};
            for (size_t k = 0; k < p->depth; k++)
                sums[k % 8] = fmaf(p->a[r * p->a_row + k], p->b[n * p->b_depth + k], sums[k % 8]);
            for (int half = 4; half > 0; half /= 2)
                for (int i = 0; i < half; i++) sums[i] += sums[i + half];
            c[r * p->c_row + n] = sums[0];
        }
}

TEST(product)
{
    enum { BIG = 64 * 200 };
    static float a[BIG], b[BIG], factors[BIG], found[BIG], expected[BIG];
    for (int run = 0; run < 400; run++) {
        struct cpu_product p = {.rows = (size_t)random_between(&rng, 1, 64),
                                .columns = (size_t)random_between(&rng, 1, 150),
                                .depth = (size_t)random_between(&rng, 1, 64),
                                .a = a,
                                .b = b,
                                .part = (enum product_part)random_between(&rng, 0, 3),
                                .add = random_bool(&rng)};
        bool known = random_bool(&rng), across = random_bool(&rng);
        p.a_row = across ? 1 : known ? 64 : p.depth + (size_t)random_between(&rng, 0, 9);
        p.a_depth = across ? 64 : 1;
        p.b_depth = p.columns + (size_t)random_between(&rng, 0, 9);
        p.c_row = p.columns + (size_t)random_between(&rng, 0, 9);
        if (p.add && random_bool(&rng)) p.factors = factors;
        random_values(a, BIG);
        random_values(b, BIG);
        random_values(factors, BIG);
        /* Elements that a part omits are 0, wherever a level reads them. */
        for (size_t r = 0; r < p.rows; r++)
            for (size_t k = 0; k < p.depth; k++)
                if ((p.part == PRODUCT_DEPTH_FROM_ROW && k < r) ||
                    (p.part == PRODUCT_DEPTH_TO_ROW && k > r))
                    a[r * p.a_row + k * p.a_depth] = 0;
        for (int level = 0; level < CPU_LEVEL_COUNT; level++) {
            const struct cpu_loops *loops = cpu_loops_at((enum cpu_level)level);
            if (loops == NULL) continue;
            random_values(found, BIG);
            memcpy(expected, found, sizeof found);
            p.c = found;
            loops->product(&p);
            plain_product(&p, expected);
            assert_same_bits(found, expected, BIG, "product", loops->name);
        }
    }
}

/* The same for a few rows of many columns, which streams b; and columns along the depth, whose
 * elements have 8 chains. */
TEST(product_of_few_rows)
{
    enum { ROWS = 8, WIDE = 1100, DEPTH = 70 };
    static float a[ROWS * WIDE], b[WIDE * DEPTH], found[ROWS * WIDE], expected[ROWS * WIDE];
    random_values(a, ROWS * WIDE);
    random_values(b, WIDE * DEPTH);
    for (int run = 0; run < 60; run++) {
        bool deep = run % 3 == 0;
        struct cpu_product p = {.rows = (size_t)random_between(&rng, 1, ROWS),
                                .columns = (size_t)random_between(&rng, 1, deep ? DEPTH : WIDE),
                                .depth = (size_t)random_between(&rng, 1, deep ? WIDE : DEPTH),
                                .a = a,
                                .b = b,
                                .a_depth = 1,
                                .a_row = deep ? WIDE : DEPTH,
                                .c_row = WIDE};
        size_t row = deep ? DEPTH : p.columns <= 1024 && random_bool(&rng) ? 1024 : WIDE;
        for (int level = 0; level < CPU_LEVEL_COUNT; level++) {
            const struct cpu_loops *loops = cpu_loops_at((enum cpu_level)level);
            if (loops == NULL) continue;
            random_values(found, ROWS * WIDE);
            memcpy(expected, found, sizeof found);
            p.c = found;
            p.b_depth = row;
            loops->product(&p);
            plain_product(&p, expected);
            assert_same_bits(found, expected, ROWS * WIDE, "product", loops->name);
            p.b_depth = p.a_row;
            loops->dots(&p);
            plain_dots(&p, expected);
            assert_same_bits(found, expected, ROWS * WIDE, "dots", loops->name);
        }
    }
}

/* Attention's operations on its blocks, and rotary positions: each level against the base level. */
TEST(attention_levels)
{
    enum { SIZE = ATTENTION_BLOCK * ATTENTION_BLOCK, B = ATTENTION_BLOCK };
    static float x[SIZE], p[SIZE], kept[SIZE], found[2 * SIZE], expected[2 * SIZE];
    static uint8_t seen[ATTENTION_BLOCK];
    const struct cpu_loops *base = cpu_loops_base;
    for (int level = 1; level < CPU_LEVEL_COUNT; level++) {
        const struct cpu_loops *loops = cpu_loops_at((enum cpu_level)level);
        if (loops == NULL) continue;
        for (int run = 0; run < 60; run++) {
            struct attention_block block = {.queries = 16 * (size_t)random_between(&rng, 1, 4),
                                            .diagonal = random_bool(&rng),
                                            .seen = random_bool(&rng) ? seen : NULL,
                                            .scale = 3};
            block.keys = block.diagonal ? block.queries - (size_t)random_between(&rng, 0, 15)
                                        : (size_t)random_between(&rng, 1, B);
            for (int i = 0; i < B; i++) seen[i] = random_between(&rng, 0, 2) > 0;
            random_values(x, SIZE);
            random_values(p, SIZE);
            random_values(kept, SIZE);
            float *states[] = {found, expected};
            for (int i = 0; i < 2; i++) {
                const struct cpu_loops *used = i == 0 ? loops : base;
                float *state = states[i];
                memcpy(state, x, SIZE * sizeof *x);
                for (int j = 0; j < B; j++) {
                    state[SIZE + j] = run % 4 == 0 ? -INFINITY : p[j]; /* largest so far */
                    state[SIZE + B + j] = fabsf(p[j + B]);             /* sums so far */
                    state[SIZE + 2 * B + j] = 7;
                }
                used->attention_softmax(&block, state, state + SIZE, state + SIZE + B,
                                        state + SIZE + 2 * B);
            }
            assert_same_bits(found, expected, SIZE + 3 * B, "attention_softmax", loops->name);
            for (size_t key = 0; key < block.keys; key++) /* every query sees exactly its keys */
                for (size_t i = 0; i < block.queries; i++) {
                    bool sees = (!block.diagonal || key <= i) && (block.seen == NULL || seen[key]);
                    ck_assert(sees ? found[key * B + i] > 0 && found[key * B + i] <= 1.00001f
                                   : found[key * B + i] == 0);
                }
            for (int i = 0; i < 2; i++) {
                memcpy(states[i], x, SIZE * sizeof *x);
                (i == 0 ? loops : base)->attention_probabilities(&block, states[i], p);
            }
            assert_same_bits(found, expected, SIZE, "attention_probabilities", loops->name);
            for (int i = 0; i < 2; i++) {
                memcpy(states[i], x, SIZE * sizeof *x);
                (i == 0 ? loops : base)->attention_gradients(&block, states[i], p, kept, x);
            }
            assert_same_bits(found, expected, SIZE, "attention_gradients", loops->name);
            size_t rows = (size_t)random_between(&rng, 1, B), stride = 64;
            size_t columns = (size_t)random_between(&rng, 1, 64), half = columns / 2;
            for (int i = 0; i < 2; i++) {
                const struct cpu_loops *used = i == 0 ? loops : base;
                memset(states[i], 0, sizeof found);
                used->pack_lanes(rows, columns, states[i], x, stride);
                used->dot_rows(rows, columns, states[i] + SIZE, x, stride, p, stride);
                used->scale_rows(rows, columns, states[i], stride, x, stride, p, run % 2);
                double sum = used->softmax_scaled(columns * rows, states[i], 0.25f, true);
                memcpy(states[i] + SIZE + B, &sum, sizeof sum);
                float largest = run % 2 ? -INFINITY : 0.5f;
                sum = used->exp_block(columns, states[i], &largest);
                memcpy(states[i] + SIZE + B + 2, &sum, sizeof sum);
                states[i][SIZE + B + 4] = largest;
                if (half > 0)
                    used->rotate(2, 2 * half + run % 3, half, run % 8 > 3, states[i] + SIZE + 2 * B,
                                 x, p, kept, run % 4 > 1, run % 2);
            }
            assert_same_bits(found, expected, 2 * SIZE, "packing, dots or turns", loops->name);
        }
    }
}

TEST(exponential)
{
    static float x[MOST], y[MOST];
    for (int level = 0; level < CPU_LEVEL_COUNT; level++) {
        const struct cpu_loops *loops = cpu_loops_at((enum cpu_level)level);
        if (loops == NULL) continue;
        for (int i = 0; i < MOST; i++) x[i] = -90 + (float)i * (0.5f + 90) / MOST;
        x[0] = -INFINITY;
        x[1] = NAN;
        loops->exp_scaled(MOST, y, x, 1, false);
        ck_assert_float_eq(y[0], 0);
        ck_assert(isnan(y[1]));
        for (int i = 2; i < MOST; i++) {
            double exact = exp((double)x[i]);
            if (x[i] < -87) ck_assert_double_le(y[i], 1.2e-38);
            else ck_assert_double_le(fabs(y[i] - exact), 2.4e-7 * exact);
        }
    }
}
