/*
 * Embeddings, norms, activations, softmax and broadcast sums: the CPU library against the reference
 * over odd random shapes, in f32 and bf16. Every run is also checked for stray writes, unwritten
 * results, and the same bits a second time and in place. And the guarantees of each: accuracy of
 * the activations, tables that change only where tokens are, results that do not depend on the data
 * beside a row.
 */
#include "base/clock.h"
#include "kernel_fixture.h"
#include "tests/testing.h"

enum { RUNS = RACES ? 2 : ON_CUDA ? 8 : 50 };

static struct random rng;

static const enum op_kind kinds[] = {OP_ADD,
                                     OP_SUM_LEADING,
                                     OP_MUL,
                                     OP_GELU,
                                     OP_SILU,
                                     OP_SILU_MUL,
                                     OP_GELU_MUL,
                                     OP_GELU_MUL_BACKWARD,
                                     OP_TANH,
                                     OP_SOFTMAX,
                                     OP_EMBEDDING,
                                     OP_LAYER_NORM,
                                     OP_RMS_NORM,
                                     OP_ARANGE,
                                     OP_PADDING_MASK,
                                     OP_TOKEN_POSITIONS,
                                     OP_DISTANCE_BUCKETS,
                                     OP_TOKENS,
                                     OP_GELU_BACKWARD,
                                     OP_SILU_BACKWARD,
                                     OP_TANH_BACKWARD,
                                     OP_SILU_MUL_BACKWARD,
                                     OP_SOFTMAX_BACKWARD,
                                     OP_EMBEDDING_BACKWARD,
                                     OP_LAYER_NORM_BACKWARD,
                                     OP_RMS_NORM_BACKWARD,
                                     OP_SLICE,
                                     OP_SLICE_BACKWARD,
                                     OP_SCALE,
                                     OP_RECIPROCAL,
                                     OP_DIV,
                                     OP_DIV_BACKWARD,
                                     OP_SIGMOID,
                                     OP_SIGMOID_BACKWARD,
                                     OP_SQUARED_RELU,
                                     OP_SQUARED_RELU_BACKWARD,
                                     OP_FUNCTION,
                                     OP_FUNCTION_BACKWARD};
enum { KIND_COUNT = COUNT_OF(kinds) };

static const int64_t widths[] = {1, 2, 3, 15, 16, 17, 31, 48, 63, 64, 65, 80, 127, 200, 768, 1030};
enum { WIDTH_COUNT = COUNT_OF(widths) };

/* Rows of some width: few, or enough for several threads. */
static struct tensor_type random_type(void)
{
    int64_t width = random_of(&rng, widths, WIDTH_COUNT);
    int64_t most = width > 100 ? 70 : 1500;
    int64_t rows = random_between(&rng, 1, random_bool(&rng) ? 5 : most);
    if (random_between(&rng, 0, 5) == 0) return type_of(DTYPE_F32, 1, width, 0, 0, 0);
    if (random_bool(&rng)) return type_of(DTYPE_F32, 2, rows, width, 0, 0);
    return type_of(DTYPE_F32, 3, random_between(&rng, 1, 3), rows, width, 0);
}

static struct tensor_type last_of(const struct tensor_type *type, int dim_count)
{
    struct tensor_type last = *type;
    last.dim_count = dim_count;
    for (int i = 0; i < dim_count; i++) last.dims[i] = type->dims[type->dim_count - dim_count + i];
    return last;
}

static struct tensor_type first_of(const struct tensor_type *type)
{
    struct tensor_type rows = *type;
    rows.dim_count--;
    return rows;
}

static void random_norm(struct op_desc *desc)
{
    struct tensor_type x = desc->inputs[0], row = last_of(&x, 1), rows = first_of(&x);
    bool centered = desc->kind == OP_LAYER_NORM || desc->kind == OP_LAYER_NORM_BACKWARD;
    bool other = random_bool(&rng);
    desc->attrs.norm.eps = (double[]){0.5, 1e-5, 0.01}[random_between(&rng, 0, 2)];
    desc->attrs.norm.one_plus = random_bool(&rng);
    /* A few values may be so close to each other that their norm is mostly rounding error. */
    if (row.dims[0] < 8) desc->attrs.norm.eps = 0.5;
    if (desc->kind == OP_LAYER_NORM || desc->kind == OP_RMS_NORM) {
        int shift = centered ? 1 : 0;
        desc->inputs[1] = row;
        desc->input_present[1] = random_between(&rng, 0, 3) > 0;
        if (centered) {
            desc->inputs[2] = row;
            desc->input_present[2] = random_between(&rng, 0, 3) > 0;
            desc->output_present[1] = random_bool(&rng);
        }
        desc->outputs[1] = desc->outputs[1 + shift] = rows;
        desc->output_present[1 + shift] = random_bool(&rng);
        desc->input_present[2 + shift] = desc->output_present[2 + shift] = other;
        return;
    }
    int at = 2;
    desc->input_present[at] = random_between(&rng, 0, 3) > 0;
    desc->inputs[at++] = row;
    if (centered) desc->inputs[at++] = rows;
    desc->inputs[at++] = rows;
    desc->input_present[at] = other;
    desc->outputs[1] = desc->outputs[2] = row;
    desc->output_present[0] = other || random_between(&rng, 0, 3) > 0;
    desc->output_present[1] = random_between(&rng, 0, 3) > 0;
    if (centered) desc->output_present[2] = random_between(&rng, 0, 3) > 0;
}

static void random_columns(struct op_desc *desc)
{
    bool forward = desc->kind == OP_SLICE;
    struct tensor_type *part = forward ? &desc->outputs[0] : &desc->inputs[0];
    int64_t *columns = &part->dims[part->dim_count - 1], whole = *columns;
    *columns = random_between(&rng, 1, whole);
    desc->attrs.slice.dim = part->dim_count - 1;
    desc->attrs.slice.start = random_between(&rng, 0, whole - *columns);
    if (!forward) desc->input_present[1] = random_bool(&rng);
}

static struct op_desc random_desc_of(enum op_kind kind, struct tensor_type type)
{
    struct op_desc desc = desc_of(kind);
    for (int i = 0; i < OP_MAX_INPUTS; i++) desc.inputs[i] = type;
    for (int i = 0; i < OP_MAX_OUTPUTS; i++) desc.outputs[i] = type;
    struct tensor_type table = type_of(DTYPE_F32, 2, random_of(&rng, widths, WIDTH_COUNT),
                                       last_of(&type, 1).dims[0], 0, 0);
    switch (kind) {
    case OP_FUNCTION:
    case OP_FUNCTION_BACKWARD:
        desc.attrs.function.kind = (enum op_function)random_between(&rng, 0, FUNCTION_AT_LEAST);
        desc.attrs.function.parameter = 2; /* of numbers below 0, too, a power is one */
        if (desc.attrs.function.kind == FUNCTION_LOG || desc.attrs.function.kind == FUNCTION_SQRT)
            desc.attrs.function.kind = FUNCTION_EXP; /* see test_functions_of_positive_numbers */
        break;
    case OP_SLICE:
    case OP_SLICE_BACKWARD: random_columns(&desc); break;
    case OP_SCALE: desc.attrs.scale.offset = random_float(&rng); /* fall through */
    case OP_RECIPROCAL: desc.attrs.scale.factor = 1.7 * random_float(&rng); break;
    case OP_DIV_BACKWARD:
        desc.inputs[2] = last_of(&type, (int)random_between(&rng, 0, type.dim_count));
        break;
    case OP_MUL:
    case OP_DIV:
    case OP_ADD:
        desc.inputs[1] = last_of(&type, (int)random_between(&rng, 0, type.dim_count));
        break;
    case OP_SUM_LEADING:
        desc.outputs[0] = last_of(&type, (int)random_between(&rng, 0, type.dim_count));
        break;
    case OP_GELU_MUL:
    case OP_GELU_MUL_BACKWARD:
    case OP_GELU:
    case OP_GELU_BACKWARD: desc.attrs.gelu.tanh = random_bool(&rng); break;
    case OP_EMBEDDING:
        desc.inputs[0] = first_of(&type);
        desc.inputs[1] = table;
        break;
    case OP_EMBEDDING_BACKWARD:
        desc.inputs[0] = first_of(&type);
        desc.outputs[0] = table;
        break;
    case OP_ARANGE:
        desc.input_present[1] = type.dim_count == 2 && random_bool(&rng);
        desc.outputs[0] = desc.input_present[1] ? type : last_of(&type, 1);
        desc.attrs.arange.start = (int32_t)random_between(&rng, -5, 5);
        desc.attrs.arange.step = (int32_t)random_between(&rng, -2, 2);
        break;
    case OP_TOKEN_POSITIONS:
        desc.inputs[0] = desc.outputs[0] =
            type_of(DTYPE_I32, 2, random_between(&rng, 1, 9), random_between(&rng, 1, 300), 0, 0);
        desc.attrs.padding_mask.id = (int32_t)random_between(&rng, 0, 2);
        break;
    case OP_DISTANCE_BUCKETS:
        desc.inputs[0] =
            type_of(DTYPE_I32, 2, random_between(&rng, 1, 9), random_between(&rng, 1, 300), 0, 0);
        desc.outputs[0] = type_of(DTYPE_I32, 1, 2 * desc.inputs[0].dims[1] - 1, 0, 0, 0);
        desc.attrs.buckets.count = 2 * (int32_t)random_between(&rng, 2, 40);
        desc.attrs.buckets.max_distance =
            desc.attrs.buckets.count / 4 + 1 + (int32_t)random_between(&rng, 0, 200);
        break;
    case OP_TOKENS: /* of random numbers, of which some are no ids */
        desc.inputs[0] =
            type_of(DTYPE_F32, 2, random_between(&rng, 1, 9), random_between(&rng, 1, 300), 0, 0);
        desc.outputs[0] = desc.inputs[0];
        desc.outputs[0].dims[1] = random_between(&rng, 1, desc.inputs[0].dims[1]);
        desc.attrs.tokens.start =
            random_between(&rng, 0, desc.inputs[0].dims[1] - desc.outputs[0].dims[1]);
        desc.attrs.tokens.count = (int32_t)random_between(&rng, 1, 4);
        break;
    case OP_PADDING_MASK: desc.attrs.padding_mask.id = (int32_t)random_between(&rng, 0, 1); break;
    case OP_LAYER_NORM:
    case OP_LAYER_NORM_BACKWARD:
    case OP_RMS_NORM:
    case OP_RMS_NORM_BACKWARD: random_norm(&desc); break;
    default: break;
    }
    const struct op_info *info = op_info_get(kind);
    bool wide = random_between(&rng, 0, 2) > 0;
    for (int i = 0; i < desc.input_count; i++) {
        if (info->inputs[i].type == OPERAND_REAL && !wide) desc.inputs[i].dtype = DTYPE_BF16;
        if (info->inputs[i].type == OPERAND_I32) desc.inputs[i].dtype = DTYPE_I32;
    }
    for (int i = 0; i < desc.output_count; i++) {
        if (info->outputs[i].type == OPERAND_REAL && !wide) desc.outputs[i].dtype = DTYPE_BF16;
        if (info->outputs[i].type == OPERAND_I32) desc.outputs[i].dtype = DTYPE_I32;
        if (info->outputs[i].type == OPERAND_U8) desc.outputs[i].dtype = DTYPE_U8;
        desc.accumulate[i] = desc.outputs[i].dtype == DTYPE_F32 && random_between(&rng, 0, 2) == 0;
    }
    if (kind == OP_EMBEDDING || kind == OP_EMBEDDING_BACKWARD)
        desc.attrs.embedding.padding_index =
            random_bool(&rng) ? -1 : random_between(&rng, 0, table.dims[0] - 1);
    return desc;
}

static struct op_desc random_desc(enum op_kind kind)
{
    return random_desc_of(kind, random_type());
}

static float widen(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

static float read_real(const struct tensor_type *type, const void *memory, int64_t i)
{
    return type->dtype == DTYPE_BF16 ? widen(((const uint16_t *)memory)[i])
                                     : ((const float *)memory)[i];
}

static void write_real(const struct tensor_type *type, void *memory, int64_t i, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (type->dtype == DTYPE_BF16) ((uint16_t *)memory)[i] = (uint16_t)(bits >> 16);
    else ((float *)memory)[i] = value;
}

static void fill_operand(struct random *random, const struct op_desc *desc,
                         const struct tensor_type *type, void *memory)
{
    int64_t count = tensor_element_count(type);
    int64_t rows = desc->kind == OP_EMBEDDING            ? desc->inputs[1].dims[0]
                   : desc->kind == OP_EMBEDDING_BACKWARD ? desc->outputs[0].dims[0]
                                                         : 3;
    float scale = random_bool(random) ? 1 : 6, shift = random_bool(random) ? 0 : 2;
    bool divides =
        desc->kind == OP_DIV || desc->kind == OP_DIV_BACKWARD || desc->kind == OP_RECIPROCAL;
    for (int64_t i = 0; i < count; i++) {
        if (type->dtype == DTYPE_I32) {
            ((int32_t *)memory)[i] = (int32_t)random_between(random, 0, rows - 1);
            continue;
        }
        float value = random_float(random) * scale + shift;
        write_real(type, memory, i, divides && fabsf(value) < 0.25f ? value + 0.5f : value);
    }
}

/* The largest number of products of operand-sized numbers added to one element, in addition to
 * those of a row: sums of thousands of numbers that cancel each other out are less exact. */
static double sum_length(const struct op_desc *desc, int output)
{
    double rows = (double)tensor_element_count(&desc->inputs[0]);
    if (desc->kind == OP_SUM_LEADING) return rows / (double)tensor_element_count(&desc->outputs[0]);
    if (desc->kind == OP_EMBEDDING_BACKWARD) return rows;
    bool backward = desc->kind == OP_LAYER_NORM_BACKWARD || desc->kind == OP_RMS_NORM_BACKWARD;
    if (backward && output > 0) return 10 * rows / (double)last_of(&desc->inputs[0], 1).dims[0];
    return 0;
}

/* Errors relative to the largest value; those of bf16 to each value, whose rounding may differ if
 * the f32 results do. */
static void expect_close(const struct op_desc *desc, int output, const void *found,
                         const void *expected)
{
    const struct tensor_type *type = &desc->outputs[output];
    int64_t count = tensor_element_count(type);
    const char *name = op_info_get(desc->kind)->name;
    if (type->dtype == DTYPE_I32 || type->dtype == DTYPE_U8) {
        ck_assert_msg(memcmp(found, expected, (size_t)tensor_bytes(type)) == 0, "%s", name);
        return;
    }
    double absolute = 4e-8 * sum_length(desc, output), relative = tolerance_of(desc->kind, 2e-6);
    double largest = 1, step = type->dtype == DTYPE_BF16 ? 0x1p-7 : 0;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(read_real(type, expected, i)));
    for (int64_t i = 0; i < count; i++) {
        double f = read_real(type, found, i), e = read_real(type, expected, i);
        if (!(fabs(f - e) <=
              relative * largest + absolute + step * fabs(e))) /* also fails for NaN */
            ck_abort_msg("%s: output %d at %lld of %lld is %.9g, the reference has %.9g", name,
                         output, (long long)i, (long long)count, f, e);
    }
}

static const struct comparison comparison = {fill_operand, expect_close};

TESTS_BELOW(.timeout = 240);

LOOP_TEST(cpu_is_reference, 0, KIND_COUNT)
{
    for (int threads = 1; threads <= 3; threads++) {
        kernels_set_threads(threads);
        rng.state = (uint64_t)_i * 1000 + (uint64_t)threads;
        for (int run = 0; run < RUNS; run++) {
            struct op_desc desc = random_desc(kinds[_i]);
            compare_libraries(&rng, &desc, &comparison, (struct kernel_call){0});
        }
    }
}

/* Activations. */

enum { POINTS = 40000 };

static double normal_below(double x)
{
    return 0.5 * erfc(-x * M_SQRT1_2);
}

static double exact(int which, double x)
{
    double sigmoid = 1 / (1 + exp(-x));
    double z = 2 * 0.79788456080286535588 * (x + 0.044715 * x * x * x);
    switch (which) {
    case 0: return x * normal_below(x);
    case 1: return x / (1 + exp(-z));
    case 2: return x * sigmoid;
    case 5: return tanh(x);
    case 6: return sigmoid;
    case 3: return normal_below(x) + x * exp(-0.5 * x * x) * 0.39894228040143267794;
    default: return sigmoid * (1 + x * (1 - sigmoid));
    }
}

TESTS_BELOW(.timeout = 120);

/* Relative errors of the functions themselves, far into their tails; the slopes pass through 0. */
LOOP_TEST(activation_accuracy, 0, 7)
{
    static float x[POINTS], y[POINTS], ones[POINTS];
    static const enum op_kind activations[] = {OP_GELU,          OP_GELU,          OP_SILU,
                                               OP_GELU_BACKWARD, OP_SILU_BACKWARD, OP_TANH,
                                               OP_SIGMOID};
    for (int i = 0; i < POINTS; i++) {
        x[i] = ((float)i - POINTS / 2 + 0.37f) * (9.0f / (POINTS / 2));
        ones[i] = 1;
    }
    bool backward = _i == 3 || _i == 4;
    struct op_desc desc = desc_of(activations[_i]);
    desc.attrs.gelu.tanh = _i == 1;
    desc.inputs[0] = desc.inputs[1] = desc.outputs[0] = type_of(DTYPE_F32, 1, POINTS, 0, 0, 0);
    struct kernel_call call = {.inputs = {backward ? ones : x, x}, .outputs = {y}};
    run_once(KERNELS_CPU, &desc, call);
    for (int i = 0; i < POINTS; i++) {
        double e = exact(_i, x[i]), size = backward ? fmax(fabs(e), 0.5) : fabs(e);
        double bound = tolerance_of(activations[_i], 4e-7);
        /* The exponent of the approximation by tanh is rounded before its use. */
        if (_i == 1) bound += 1.6e-7 * fabs(1.6 * x[i] + 0.072 * pow(x[i], 3));
        if (size < 1e-30) continue;
        ck_assert_msg(fabs(y[i] - e) <= bound * size, "%d: of %.9g it is %.9g, not %.9g", _i, x[i],
                      y[i], e);
    }
}

/* Large values, infinities and NaN. */
TEST(activation_ends)
{
    static const float x[] = {NAN, INFINITY, 1e30f, 100, -100, -1e30f, 0, -0.0f};
    static const float ones[] = {1, 1, 1, 1, 1, 1, 1, 1};
    float y[8];
    static const enum op_kind activations[] = {OP_GELU,          OP_GELU,
                                               OP_SILU,          OP_GELU_BACKWARD,
                                               OP_GELU_BACKWARD, OP_SILU_BACKWARD};
    for (int library = KERNELS_REFERENCE; library <= KERNELS_CPU; library++)
        for (int i = 0; i < 6; i++) {
            bool backward = i >= 3;
            if (library == KERNELS_REFERENCE && backward) continue;
            struct op_desc desc = desc_of(activations[i]);
            desc.attrs.gelu.tanh = i == 1 || i == 4;
            desc.inputs[0] = desc.inputs[1] = desc.outputs[0] = type_of(DTYPE_F32, 1, 8, 0, 0, 0);
            struct kernel_call call = {.inputs = {backward ? ones : x, x}, .outputs = {y}};
            run_once(library, &desc, call);
            ck_assert(isnan(y[0]));
            if (backward && activations[i] != OP_SILU_BACKWARD) ck_assert_float_eq(y[1], 1);
            for (int at = backward ? 2 : 1; at < 4; at++)
                ck_assert_float_eq(y[at], backward ? 1 : x[at]);
            for (int at = 4; at < 6; at++) ck_assert_float_lt(fabsf(y[at]), 1e-35f);
            for (int at = 6; at < 8; at++) ck_assert_float_eq(y[at], backward ? 0.5f : 0);
        }
}

TEST(tanh_ends)
{
    static const float x[] = {NAN, INFINITY, -INFINITY, 1e30f, -100, 20, 0, -0.0f, 1e-30f};
    static const float expected[] = {NAN, 1, -1, 1, -1, 1, 0, -0.0f, 1e-30f};
    enum { N = COUNT_OF(x) };
    float y[N];
    for (int library = KERNELS_REFERENCE; library <= KERNELS_CPU; library++) {
        struct op_desc desc = desc_of(OP_TANH);
        desc.inputs[0] = desc.outputs[0] = type_of(DTYPE_F32, 1, N, 0, 0, 0);
        run_once(library, &desc, (struct kernel_call){.inputs = {x}, .outputs = {y}});
        ck_assert(isnan(y[0]));
        for (int i = 1; i < N; i++) {
            ck_assert_float_eq(y[i], expected[i]);
            ck_assert_int_eq(signbit(y[i]), signbit(expected[i]));
        }
    }
}

/* Of each operand as it is and transposed, with and without first dimensions. */
LOOP_TEST(products_of_matrices, 0, 16)
{
    enum { M = 5, K = 7, N = 4, COUNT = 3, MOST = COUNT * K * K };
    if (!is_tested(OP_MATMUL)) return;
    static float a[MOST], b[MOST], y[2][MOST];
    bool first = _i & 1, second = _i & 2, many_a = _i & 4 || !(_i & 8), many_b = _i & 8;
    struct op_desc desc = desc_of(OP_MATMUL);
    desc.attrs.matmul.first = first;
    desc.attrs.matmul.second = second;
    desc.inputs[0] = type_of(DTYPE_F32, 3, COUNT, first ? K : M, first ? M : K, 0);
    desc.inputs[1] = type_of(DTYPE_F32, 3, COUNT, second ? N : K, second ? K : N, 0);
    if (!many_a) desc.inputs[0] = last_of(&desc.inputs[0], 2);
    if (!many_b) desc.inputs[1] = last_of(&desc.inputs[1], 2);
    desc.outputs[0] = type_of(DTYPE_F32, 3, COUNT, M, N, 0);
    fill_random(&rng, a, MOST);
    fill_random(&rng, b, MOST);
    for (int library = KERNELS_REFERENCE; library <= KERNELS_CPU; library++)
        run_once(library, &desc, (struct kernel_call){.inputs = {a, b}, .outputs = {y[library]}});
    for (int i = 0; i < COUNT * M * N; i++) ck_assert_float_eq_tol(y[0][i], y[1][i], 1e-5f);
    const float *at = b + (many_b ? K * N : 0);
    double sum = 0; /* of the second product's first row and column */
    for (int k = 0; k < K; k++)
        sum += (double)a[(many_a ? M * K : 0) + (first ? k * M : k)] * at[second ? k : k * N];
    ck_assert_double_eq_tol(y[0][M * N], sum, 1e-5);
}

TEST(functions_end_as_pytorchs)
{
    static const float x[] = {NAN, INFINITY, -INFINITY, 100, -100, 0, 1e-6f};
    static const float expected[][7] = {
        [FUNCTION_LEAKY_RELU] = {NAN, INFINITY, -INFINITY, 100, -200, 0, 1e-6f},
        [FUNCTION_ELU] = {NAN, INFINITY, -2, 100, -2, 0, 1e-6f},
        [FUNCTION_RELU6] = {NAN, 6, 0, 6, 0, 0, 1e-6f},
        [FUNCTION_HARDSWISH] = {NAN, INFINITY, 0, 100, 0, 0, 5e-7f},
        [FUNCTION_HARDSIGMOID] = {NAN, 1, 0, 1, 0, 0.5f, 0.5f},
        [FUNCTION_EXP] = {NAN, INFINITY, 0, INFINITY, 0, 1, 1},
        [FUNCTION_LOG] = {NAN, INFINITY, NAN, 4.60517019f, NAN, -INFINITY, -13.8155106f},
        [FUNCTION_SQRT] = {NAN, INFINITY, NAN, 10, NAN, 0, 1e-3f},
        [FUNCTION_POW] = {NAN, INFINITY, INFINITY, 1e4f, 1e4f, 0, 1e-12f},
        [FUNCTION_ABS] = {NAN, INFINITY, INFINITY, 100, 100, 0, 1e-6f},
        [FUNCTION_ABOVE] = {0, 1, 0, 1, 0, 0, 0},
        [FUNCTION_AT_LEAST] = {0, 1, 0, 1, 0, 0, 0},
    };
    float y[7];
    for (int library = KERNELS_REFERENCE; library <= KERNELS_CPU; library++)
        for (int kind = 0; kind < (int)COUNT_OF(expected); kind++) {
            struct op_desc desc = desc_of(OP_FUNCTION);
            desc.attrs.function.kind = (enum op_function)kind;
            desc.attrs.function.parameter = 2;
            desc.inputs[0] = desc.outputs[0] = type_of(DTYPE_F32, 1, 7, 0, 0, 0);
            run_once(library, &desc, (struct kernel_call){.inputs = {x}, .outputs = {y}});
            for (int i = 0; i < 7; i++) {
                float wanted = expected[kind][i], most = 1e-6f * fabsf(wanted) + 1e-37f;
                bool same =
                    isnan(wanted) ? isnan(y[i]) : y[i] == wanted || fabsf(y[i] - wanted) <= most;
                ck_assert_msg(same, "function %d of %g is %g, expected %g", kind, (double)x[i],
                              (double)y[i], (double)wanted);
            }
        }
}

/* What a mask leaves out is 0, whatever it was. */
TEST(masks_let_nothing_else_through)
{
    static const float x[] = {NAN, INFINITY, -INFINITY, NAN, INFINITY, 3, 3, -3};
    static const float mask[] = {0, 0, 0, 1, 1, 1, 0, 1};
    static const float numbers[] = {2, 1.9999999f, 2.0000002f, -2, -INFINITY, INFINITY, NAN, 0};
    static const float at_least[] = {1, 0, 1, 0, 0, 1, 0, 0};
    float y[8];
    struct op_desc taken = desc_of(OP_RELU_BACKWARD), compared = desc_of(OP_FUNCTION);
    taken.inputs[0] = taken.inputs[1] = taken.outputs[0] = type_of(DTYPE_F32, 1, 8, 0, 0, 0);
    compared.inputs[0] = compared.outputs[0] = taken.inputs[0];
    compared.attrs.function.parameter = 2;
    for (int library = KERNELS_REFERENCE; library <= KERNELS_CPU; library++) {
        run_once(library, &taken, (struct kernel_call){.inputs = {x, mask}, .outputs = {y}});
        ck_assert(isnan(y[3]));
        for (int i = 0; i < 8; i++)
            if (i != 3) ck_assert_float_eq(y[i], mask[i] > 0 ? x[i] : 0);
        for (int kind = FUNCTION_ABOVE; kind <= FUNCTION_AT_LEAST; kind++) {
            compared.attrs.function.kind = (enum op_function)kind;
            run_once(library, &compared, (struct kernel_call){.inputs = {numbers}, .outputs = {y}});
            for (int i = 0; i < 8; i++)
                ck_assert_float_eq(y[i], i == 0 ? kind == FUNCTION_AT_LEAST : at_least[i]);
        }
    }
}

TEST(sigmoid_and_squared_relu_ends)
{
    static const float x[] = {NAN, INFINITY, -INFINITY, 1e30f, -100, 100, 0, -0.0f};
    static const float expected[2][8] = {{NAN, 1, 0, 1, 0, 1, 0.5f, 0.5f},
                                         {NAN, INFINITY, 0, INFINITY, 0, 10000, 0, 0}};
    float y[8];
    for (int library = KERNELS_REFERENCE; library <= KERNELS_CPU; library++)
        for (int which = 0; which < 2; which++) {
            struct op_desc desc = desc_of(which == 0 ? OP_SIGMOID : OP_SQUARED_RELU);
            desc.inputs[0] = desc.outputs[0] = type_of(DTYPE_F32, 1, 8, 0, 0, 0);
            run_once(library, &desc, (struct kernel_call){.inputs = {x}, .outputs = {y}});
            ck_assert(isnan(y[0]));
            for (int i = 1; i < 8; i++)
                ck_assert_msg(y[i] == expected[which][i] ||
                                  fabsf(y[i] - expected[which][i]) < 1e-35f,
                              "%d: of %g it is %g", which, (double)x[i], (double)y[i]);
        }
}

/* Norms. */

/* Rows that a warp holds, or a block, or neither. */
LOOP_TEST(norms_of_long_rows, 0, 4)
{
    static const enum op_kind norms[] = {OP_LAYER_NORM, OP_RMS_NORM, OP_LAYER_NORM_BACKWARD,
                                         OP_RMS_NORM_BACKWARD};
    static const int64_t columns[] = {256, 512, 1024, 1536, 2048, 4096, 6144, 8192, 8200};
    rng.state = (uint64_t)_i + 1;
    for (size_t c = 0; c < COUNT_OF(columns); c++)
        for (int run = 0; run < 4; run++) {
            int64_t rows = random_between(&rng, 1, run == 0 ? 40 : 9);
            struct tensor_type type = type_of(DTYPE_F32, 2, rows, columns[c], 0, 0);
            struct op_desc desc = random_desc_of(norms[_i], type);
            compare_libraries(&rng, &desc, &comparison, (struct kernel_call){0});
        }
}

/* A large mean loses nothing, and rows do not affect each other. */
TEST(norm_far_from_zero)
{
    enum { ROWS = 3, COLUMNS = 768 };
    static float x[ROWS * COLUMNS], y[ROWS * COLUMNS], mean[ROWS], rstd[ROWS];
    for (int i = 0; i < ROWS * COLUMNS; i++)
        x[i] = (i / COLUMNS == 1 ? NAN : 4096) + (i % 2 == 0 ? 0.25f : -0.25f);
    struct op_desc desc = desc_of(OP_LAYER_NORM);
    desc.inputs[0] = desc.outputs[0] = type_of(DTYPE_F32, 2, ROWS, COLUMNS, 0, 0);
    desc.outputs[1] = desc.outputs[2] = type_of(DTYPE_F32, 1, ROWS, 0, 0, 0);
    for (int i = 1; i < 4; i++) desc.input_present[i] = false;
    desc.output_present[3] = false;
    for (int library = KERNELS_REFERENCE; library <= KERNELS_CPU; library++) {
        run_once(library, &desc, (struct kernel_call){.inputs = {x}, .outputs = {y, mean, rstd}});
        for (int row = 0; row < ROWS; row += 2) {
            ck_assert_float_eq(mean[row], 4096);
            ck_assert_float_eq(rstd[row], 4);
            for (int i = 0; i < COLUMNS; i++)
                ck_assert_float_eq(y[row * COLUMNS + i], i % 2 == 0 ? 1 : -1);
        }
        ck_assert(isnan(mean[1]) && isnan(y[COLUMNS]));
    }
}

/* The sum x + residual that the norm outputs is exact. */
TEST(norm_sum)
{
    float x[] = {1, 2, 3, 4}, residual[] = {10, 20, 30, 41}, y[4], sum[4];
    struct op_desc desc = desc_of(OP_RMS_NORM);
    desc.inputs[0] = desc.inputs[2] = desc.outputs[0] = desc.outputs[2] =
        type_of(DTYPE_F32, 2, 1, 4, 0, 0);
    desc.input_present[1] = desc.output_present[1] = false;
    for (int library = KERNELS_REFERENCE; library <= KERNELS_CPU; library++) {
        struct kernel_call call = {.inputs = {x, NULL, residual}, .outputs = {y, NULL, sum}};
        run_once(library, &desc, call);
        double root = sqrt((11. * 11 + 22. * 22 + 33. * 33 + 45. * 45) / 4);
        for (int i = 0; i < 4; i++) {
            ck_assert_float_eq(sum[i], x[i] + residual[i]);
            ck_assert_float_eq_tol(y[i], (float)(sum[i] / root), 1e-6f);
        }
    }
}

/* Embeddings. */

TEST(token_positions_skip_padding)
{
    static const int32_t tokens[] = {5, 1, 1, 7, 9, 1, 2, 2, 2, 2};
    static const int32_t expected[] = {2, 1, 1, 3, 4, 1, 2, 3, 4, 5};
    struct op_desc desc = desc_of(OP_TOKEN_POSITIONS);
    desc.inputs[0] = desc.outputs[0] = type_of(DTYPE_I32, 2, 2, 5, 0, 0);
    desc.attrs.padding_mask.id = 1;
    int32_t y[10];
    for (int library = KERNELS_REFERENCE; library <= KERNELS_CPU; library++) {
        run_once(library, &desc, (struct kernel_call){.inputs = {tokens}, .outputs = {y}});
        ck_assert_mem_eq(y, expected, sizeof y);
    }
}

TEST(tokens_are_cut_out_of_rows)
{
    enum { LARGEST = OP_MAX_TOKENS - 1 };
    static const float rows[] = {0.5f, 3, LARGEST, 7, 9, 0.5f, OP_MAX_TOKENS, -1, NAN, 9};
    static const int32_t expected[] = {3, LARGEST, 7, 0, 0, 0};
    struct op_desc desc = desc_of(OP_TOKENS);
    desc.inputs[0] = type_of(DTYPE_F32, 2, 2, 5, 0, 0);
    desc.outputs[0] = type_of(DTYPE_I32, 2, 2, 3, 0, 0);
    desc.attrs.tokens.start = 1;
    desc.attrs.tokens.count = OP_MAX_TOKENS;
    int32_t y[6];
    for (int library = KERNELS_REFERENCE; library <= KERNELS_CPU; library++) {
        run_once(library, &desc, (struct kernel_call){.inputs = {rows}, .outputs = {y}});
        ck_assert_mem_eq(y, expected, sizeof y);
    }
}

/* As MPNet of transformers computes them, in f32, with 32 buckets up to a distance of 128. */
TEST(buckets_are_those_of_transformers)
{
    static const struct {
        int32_t distance, bucket;
    } expected[] = {{0, 0},    {-1, 1},    {-7, 7},    {-8, 8},   {-11, 8},  {-12, 9},
                    {-16, 10}, {-22, 10},  {-23, 11},  {-32, 12}, {-64, 14}, {-90, 14},
                    {-91, 15}, {-128, 15}, {-250, 15}, {1, 17},   {7, 23},   {8, 24},
                    {16, 26},  {64, 30},   {91, 31},   {250, 31}};
    enum { TIME = 251 };
    static int32_t tokens[TIME], y[2 * TIME - 1];
    struct op_desc desc = desc_of(OP_DISTANCE_BUCKETS);
    desc.inputs[0] = type_of(DTYPE_I32, 2, 1, TIME, 0, 0);
    desc.outputs[0] = type_of(DTYPE_I32, 1, 2 * TIME - 1, 0, 0, 0);
    desc.attrs.buckets.count = 32;
    desc.attrs.buckets.max_distance = 128;
    for (int library = KERNELS_REFERENCE; library <= KERNELS_CPU; library++) {
        run_once(library, &desc, (struct kernel_call){.inputs = {tokens}, .outputs = {y}});
        for (size_t i = 0; i < COUNT_OF(expected); i++)
            ck_assert_int_eq(y[TIME - 1 + expected[i].distance], expected[i].bucket);
    }
}

/* Adding to a table's gradient leaves rows that no token names unchanged, even NaN. */
TEST(embedding_touches_tokens_only)
{
    enum { ROWS = 40, COLUMNS = 33, TOKENS = 7 };
    static float dweight[ROWS * COLUMNS], dy[TOKENS * COLUMNS];
    static const int32_t tokens[TOKENS] = {3, 39, 3, 5, 0, 3, 5};
    for (int i = 0; i < TOKENS * COLUMNS; i++) dy[i] = (float)(1 + i / COLUMNS);
    struct op_desc desc = desc_of(OP_EMBEDDING_BACKWARD);
    desc.inputs[0] = type_of(DTYPE_I32, 1, TOKENS, 0, 0, 0);
    desc.inputs[1] = type_of(DTYPE_F32, 2, TOKENS, COLUMNS, 0, 0);
    desc.outputs[0] = type_of(DTYPE_F32, 2, ROWS, COLUMNS, 0, 0);
    desc.attrs.embedding.padding_index = 5;
    struct kernel_call call = {.inputs = {tokens, dy}, .outputs = {dweight}};
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        desc.accumulate[0] = accumulate;
        memset(dweight, 0xff, sizeof dweight);
        for (int i = 0; accumulate && i < COLUMNS; i++)
            dweight[i] = dweight[3 * COLUMNS + i] = dweight[39 * COLUMNS + i] = 100;
        run_once(KERNELS_CPU, &desc, call);
        for (int i = 0; i < ROWS * COLUMNS; i++) {
            int row = i / COLUMNS;
            float sum = row == 3 ? 1 + 3 + 6 : row == 39 ? 2 : row == 0 ? 5 : 0;
            uint32_t bits;
            memcpy(&bits, &dweight[i], sizeof bits);
            if (sum == 0) ck_assert_uint_eq(bits, accumulate ? 0xffffffff : 0);
            else ck_assert_float_eq(dweight[i], sum + (accumulate ? 100 : 0));
        }
    }
}

/* The gradient of a table of many rows from few tokens costs at most its zeroing, and almost
 * nothing when it is added to: measured against plain zeroing, with a large margin. */
TEST(embedding_cost, .unless = ON_CUDA)
{
    enum { ROWS = 40000, COLUMNS = 128, TOKENS = 64 };
    struct op_desc desc = desc_of(OP_EMBEDDING_BACKWARD);
    desc.inputs[0] = type_of(DTYPE_I32, 1, TOKENS, 0, 0, 0);
    desc.inputs[1] = type_of(DTYPE_F32, 2, TOKENS, COLUMNS, 0, 0);
    desc.outputs[0] = type_of(DTYPE_F32, 2, ROWS, COLUMNS, 0, 0);
    desc.attrs.embedding.padding_index = -1;
    struct area dy = area_new(tensor_bytes(&desc.inputs[1]), 0);
    struct area dweight = area_new(tensor_bytes(&desc.outputs[0]), 0);
    fill_random(&rng, (float *)dy.memory, TOKENS * COLUMNS);
    int32_t tokens[TOKENS];
    for (int i = 0; i < TOKENS; i++) tokens[i] = i * 600;
    struct kernel_call call = {.inputs = {tokens, dy.memory}, .outputs = {dweight.memory}};
    int64_t best[3] = {INT64_MAX, INT64_MAX, INT64_MAX};
    for (int run = 0; run < 30; run++) {
        int64_t begin = clock_monotonic_ns();
        memset(dweight.memory, 0, dweight.bytes);
        int64_t times[3] = {clock_monotonic_ns() - begin};
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            desc.accumulate[0] = accumulate;
            begin = clock_monotonic_ns();
            run_once(KERNELS_CPU, &desc, call);
            times[1 + accumulate] = clock_monotonic_ns() - begin;
        }
        for (int i = 0; i < 3; i++)
            if (times[i] < best[i]) best[i] = times[i];
    }
    ck_assert_msg(best[1] < 3 * best[0] + 200000, "%lld ns, zeroing %lld", (long long)best[1],
                  (long long)best[0]);
    ck_assert_msg(best[2] < best[0] / 3 + 200000, "added to: %lld ns, zeroing %lld",
                  (long long)best[2], (long long)best[0]);
    area_free(&dy);
    area_free(&dweight);
}

/* Softmax of scores far apart, and of rows with NaN. */
TEST(softmax_ends)
{
    float x[] = {1000, 0, -1000, -INFINITY, 2, 2, 2, 2, NAN, 1, 2, 3}, y[12];
    struct op_desc desc = desc_of(OP_SOFTMAX);
    desc.inputs[0] = desc.outputs[0] = type_of(DTYPE_F32, 2, 3, 4, 0, 0);
    for (int library = KERNELS_REFERENCE; library <= KERNELS_CPU; library++) {
        run_once(library, &desc, (struct kernel_call){.inputs = {x}, .outputs = {y}});
        for (int i = 0; i < 4; i++) ck_assert_float_eq(y[i], i == 0);
        for (int i = 4; i < 8; i++) ck_assert_float_eq(y[i], 0.25f);
        for (int i = 8; i < 12; i++) ck_assert(isnan(y[i]));
    }
}

static const int norm_widths[] = {7, 64, 768, 2304};

/* A norm of a rounded sum has the bits of an addition and a norm, in f32 and bf16. */
LOOP_TEST(norm_of_sum_is_add_then_norm, 0, 4 * COUNT_OF(norm_widths))
{
    enum { ROWS = 37, MOST = ROWS * 2304 };
    static uint32_t x[2][MOST], sums[2][MOST], y[2][MOST], weight[2304];
    enum dtype dtype = _i & 1 ? DTYPE_BF16 : DTYPE_F32;
    enum op_kind kind = _i & 2 ? OP_LAYER_NORM : OP_RMS_NORM;
    int columns = norm_widths[_i / 4], last = kind == OP_LAYER_NORM ? 3 : 2;
    struct tensor_type type = type_of(dtype, 2, ROWS, columns, 0, 0), row = last_of(&type, 1);
    struct op_desc add = desc_of(OP_ADD), norm = desc_of(kind), fused;
    add.inputs[0] = add.inputs[1] = add.outputs[0] = norm.inputs[0] = norm.outputs[0] = type;
    norm.inputs[1] = norm.inputs[2] = row; /* an RMS norm's residual comes second */
    norm.inputs[last] = norm.outputs[last] = type;
    for (int k = 1; k < OP_MAX_OUTPUTS; k++) norm.output_present[k] = false;
    norm.attrs.norm.eps = 1e-5;
    fused = norm;
    fused.attrs.norm.rounded = fused.output_present[last] = true;
    norm.input_present[last] = false;
    fill_operand(&rng, &norm, &type, x[0]);
    fill_operand(&rng, &norm, &type, x[1]);
    fill_operand(&rng, &norm, &row, weight);
    kernels_set_threads(2);
    run_once(KERNELS_CPU, &add, (struct kernel_call){.inputs = {x[0], x[1]}, .outputs = {sums[0]}});
    run_once(KERNELS_CPU, &norm,
             (struct kernel_call){.inputs = {sums[0], weight, weight}, .outputs = {y[0]}});
    struct kernel_call call = {.inputs = {x[0], weight, weight}, .outputs = {y[1]}};
    call.inputs[last] = x[1];
    call.outputs[last] = sums[1];
    run_once(KERNELS_CPU, &fused, call);
    ck_assert_mem_eq(sums[0], sums[1], (size_t)tensor_bytes(&type));
    ck_assert_mem_eq(y[0], y[1], (size_t)tensor_bytes(&type));
}

/* One row of ones in bf16, so that errors in strides and in the division among threads show. */
TEST(sum_leading_counts)
{
    static uint16_t dy[300 * 257], db[257];
    kernels_set_threads(2);
    for (int i = 0; i < 300 * 257; i++) dy[i] = 0x3f80; /* 1 */
    struct op_desc desc = desc_of(OP_SUM_LEADING);
    desc.inputs[0] = type_of(DTYPE_BF16, 3, 30, 10, 257, 0);
    desc.outputs[0] = type_of(DTYPE_BF16, 1, 257, 0, 0, 0);
    run_once(KERNELS_CPU, &desc, (struct kernel_call){.inputs = {dy}, .outputs = {db}});
    for (int i = 0; i < 257; i++) ck_assert_float_eq(widen(db[i]), 300);
}
