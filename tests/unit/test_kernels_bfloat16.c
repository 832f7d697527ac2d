/*
 * Ops on bf16: the reference library against itself in f32 with rounding by hand (exactly), the CPU
 * library against the reference (exactly where nothing is summed; within a step of bf16 where sums
 * of f32 have another order), and the loops of every level on all kinds of numbers.
 */
#include "kernel_fixture.h"
#include "kernels/cpu/loops.h"
#include "tests/testing.h"

enum { RUNS = RACES ? 2 : ON_CUDA ? 8 : 25, OPERANDS_MAX = OP_MAX_INPUTS + OP_MAX_OUTPUTS };

/* The definition: the nearer of the two neighbours, at a tie the even one; by the value, not by bit
 * operations. */
static uint16_t round_by_hand(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t low = (uint16_t)(bits >> 16);
    if (isnan(value)) return low | 0x40;
    if ((bits & 0xffff) == 0) return low;
    uint32_t rest = bits & 0xffff;
    if (rest > 0x8000 || (rest == 0x8000 && low % 2 == 1)) return (uint16_t)(low + 1);
    return low;
}

static float widen(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

static struct op_desc random_desc(struct random *random, enum op_kind kind)
{
    struct op_desc desc = desc_of(kind);
    enum layout layout = random_bool(random) && !ON_CUDA ? LAYOUT_CHANNELS_LAST : LAYOUT_PLAIN;
    int64_t n = random_between(random, 1, 4), c = random_of(random, (int64_t[]){1, 3, 8, 32}, 4);
    int64_t h = random_between(random, 4, 12), w = random_between(random, 4, 12);
    int64_t out = random_of(random, (int64_t[]){1, 5, 16, 33}, 4);
    struct tensor_type x = image_of(n, c, h, w, layout);
    switch (kind) {
    case OP_CONV2D:
    case OP_CONV2D_BACKWARD_DATA:
    case OP_CONV2D_BACKWARD_WEIGHTS: {
        int64_t k = random_between(random, 1, 3), pad = random_between(random, 0, 1);
        int64_t stride = random_between(random, 1, 2);
        for (int i = 0; i < 2; i++) {
            desc.attrs.conv.stride[i] = stride;
            desc.attrs.conv.padding[i] = pad;
            desc.attrs.conv.dilation[i] = 1;
        }
        desc.attrs.conv.groups = 1;
        struct tensor_type weight = type_of(DTYPE_F32, 4, out, c, k, k);
        struct tensor_type bias = type_of(DTYPE_F32, 1, out, 0, 0, 0);
        struct tensor_type y = image_of(n, out, op_window_output(h, k, stride, pad, 1),
                                        op_window_output(w, k, stride, pad, 1), layout);
        bool has_bias = random_bool(random);
        if (kind == OP_CONV2D) {
            desc.inputs[0] = x, desc.inputs[1] = weight, desc.inputs[2] = bias, desc.outputs[0] = y;
            desc.input_present[2] = has_bias;
            if (random_bool(random)) desc.attrs.conv.activation = ACTIVATION_RELU;
        } else if (kind == OP_CONV2D_BACKWARD_DATA) {
            desc.inputs[0] = y, desc.inputs[1] = weight, desc.outputs[0] = x;
        } else {
            desc.inputs[0] = x, desc.inputs[1] = y;
            desc.outputs[0] = weight, desc.outputs[1] = bias;
            desc.output_present[1] = has_bias;
        }
        break;
    }
    case OP_LINEAR:
    case OP_LINEAR_BACKWARD_DATA:
    case OP_LINEAR_BACKWARD_WEIGHTS: {
        int64_t rows = random_of(random, (int64_t[]){1, 7, 64, 300}, 4);
        int64_t in = random_of(random, (int64_t[]){1, 10, 64, 257}, 4);
        struct tensor_type a = type_of(DTYPE_F32, 2, rows, in, 0, 0);
        struct tensor_type b = type_of(DTYPE_F32, 2, rows, out, 0, 0);
        struct tensor_type weight = type_of(DTYPE_F32, 2, out, in, 0, 0);
        struct tensor_type bias = type_of(DTYPE_F32, 1, out, 0, 0, 0);
        bool has_bias = random_bool(random);
        if (kind == OP_LINEAR) {
            desc.inputs[0] = a, desc.inputs[1] = weight, desc.inputs[2] = bias, desc.outputs[0] = b;
            desc.input_present[2] = has_bias;
            int64_t activation = random_between(random, 0, 2);
            if (activation == 1) desc.attrs.linear.activation = ACTIVATION_RELU;
            if (activation == 2) desc = with_gelu(desc);
            desc.attrs.linear.rows_apart = random_bool(random);
            if (!random_bool(random)) break;
            desc.attrs.linear.transposed = true;
            desc.inputs[1] = type_of(DTYPE_F32, 2, in, out, 0, 0);
        } else if (kind == OP_LINEAR_BACKWARD_DATA) {
            desc.inputs[0] = b, desc.inputs[1] = weight, desc.outputs[0] = a;
            if (random_bool(random)) desc = with_gelu(desc);
        } else {
            desc.inputs[0] = a, desc.inputs[1] = b;
            desc.outputs[0] = weight, desc.outputs[1] = bias;
            desc.output_present[1] = has_bias;
        }
        break;
    }
    case OP_MAX_POOL2D:
    case OP_MAX_POOL2D_BACKWARD: {
        for (int i = 0; i < 2; i++) {
            desc.attrs.pool.kernel[i] = random_between(random, 2, 3);
            desc.attrs.pool.stride[i] = random_between(random, 1, 2);
        }
        struct tensor_type y = image_of(
            n, c, op_window_output(h, desc.attrs.pool.kernel[0], desc.attrs.pool.stride[0], 0, 1),
            op_window_output(w, desc.attrs.pool.kernel[1], desc.attrs.pool.stride[1], 0, 1),
            layout);
        struct tensor_type indices = y;
        indices.dtype = DTYPE_U8;
        if (kind == OP_MAX_POOL2D)
            desc.inputs[0] = x, desc.outputs[0] = y, desc.outputs[1] = indices;
        else desc.inputs[0] = y, desc.inputs[1] = indices, desc.outputs[0] = x;
        break;
    }
    case OP_RESHAPE:
        desc.inputs[0] = x;
        desc.outputs[0] = type_of(DTYPE_F32, 2, n, c * h * w, 0, 0);
        break;
    default:
        if (random_bool(random)) /* several slices */
            x = type_of(DTYPE_F32, 2, random_between(random, 1, 60),
                        random_between(random, 500, 1500), 0, 0);
        desc.inputs[0] = desc.inputs[1] = desc.outputs[0] = x;
        desc.attrs.dropout.p = kind == OP_DROPOUT || kind == OP_DROPOUT_BACKWARD ? 0.25 : 0;
        desc.attrs.dropout.stream = 7;
    }
    return desc;
}

static struct op_desc lowered(struct op_desc desc)
{
    bool weights =
        desc.kind == OP_CONV2D_BACKWARD_WEIGHTS || desc.kind == OP_LINEAR_BACKWARD_WEIGHTS;
    for (int i = 0; i < desc.input_count; i++)
        if (desc.inputs[i].dtype == DTYPE_F32) desc.inputs[i].dtype = DTYPE_BF16;
    for (int i = 0; i < desc.output_count && !weights; i++)
        if (desc.outputs[i].dtype == DTYPE_F32) desc.outputs[i].dtype = DTYPE_BF16;
    return desc;
}

/* Memory for every operand: the inputs given, the outputs unwritten. */
struct operands {
    struct area areas[OPERANDS_MAX];
    struct kernel_call call;
};

static void operands_init(struct operands *all, const struct op_desc *desc,
                          float *const values[OP_MAX_INPUTS], const uint8_t *indices)
{
    *all = (struct operands){
        .call = {.seed = 5, .step = 2, .rank = 1, .first_sample = 3, .sample_elements = 7}};
    for (int i = 0; i < desc->input_count; i++) {
        if (!desc->input_present[i]) continue;
        const struct tensor_type *type = &desc->inputs[i];
        int64_t count = tensor_element_count(type);
        all->areas[i] = area_new(tensor_bytes(type), type->dtype == DTYPE_BF16 ? 2 : 4);
        all->call.inputs[i] = all->areas[i].memory;
        for (int64_t e = 0; e < count; e++) {
            if (type->dtype == DTYPE_U8) all->areas[i].memory[e] = indices[e];
            else if (type->dtype == DTYPE_BF16)
                ((uint16_t *)(void *)all->areas[i].memory)[e] = round_by_hand(values[i][e]);
            else memcpy(all->areas[i].memory + e * 4, &values[i][e], 4);
        }
    }
    for (int i = 0; i < desc->output_count; i++) {
        if (!desc->output_present[i]) continue;
        struct area *area = &all->areas[OP_MAX_INPUTS + i];
        *area =
            area_new(tensor_bytes(&desc->outputs[i]), desc->outputs[i].dtype == DTYPE_BF16 ? 2 : 4);
        if (desc->accumulate[i]) memset(area->memory, 0, area->bytes);
        all->call.outputs[i] = area->memory;
    }
}

static void operands_deinit(struct operands *all)
{
    for (int i = 0; i < OPERANDS_MAX; i++) {
        if (all->areas[i].base == NULL) continue;
        ck_assert(area_edges_whole(&all->areas[i]));
        area_free(&all->areas[i]);
    }
}

static float output_at(const struct operands *all, const struct op_desc *desc, int output,
                       int64_t e)
{
    const unsigned char *memory = all->areas[OP_MAX_INPUTS + output].memory;
    if (desc->outputs[output].dtype == DTYPE_U8) return memory[e];
    if (desc->outputs[output].dtype == DTYPE_BF16) {
        uint16_t value;
        memcpy(&value, memory + e * 2, 2);
        return widen(value);
    }
    float value;
    memcpy(&value, memory + e * 4, 4);
    return value;
}

static bool sums(enum op_kind kind)
{
    return kind <= OP_LINEAR_BACKWARD_WEIGHTS;
}

static bool has_gelu(const struct op_desc *desc)
{
    return (desc->kind == OP_LINEAR || desc->kind == OP_LINEAR_BACKWARD_DATA) &&
           desc->attrs.linear.activation == ACTIVATION_GELU_TANH;
}

/* The effect on an output of rounding the product before it, by up to 2^-9 of itself: the slope of
 * GELU is below 2. Its gradient is a product with that slope, which is close to 0 where a tanh by
 * the device's own instruction is not: relative to `largest` of the tensor. */
static double rounded_before(const struct operands *exact, const struct op_desc *full, int64_t e,
                             double largest)
{
    if (full->kind == OP_LINEAR) return fabs((double)output_at(exact, full, 1, e)) * 0x1p-8;
    return largest * 0x1p-8;
}

static double largest_of(const struct operands *exact, const struct op_desc *full)
{
    int64_t count = tensor_element_count(&full->outputs[0]);
    double largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)output_at(exact, full, 0, i)));
    return largest;
}

/* Compares the library with the reference, on operands of bf16 values. */
static void compare_low(struct random *random, struct op_desc full)
{
    struct op_desc low = lowered(full);
    enum op_kind kind = full.kind;
    bool weights = full.outputs[0].dtype == low.outputs[0].dtype;
    if (weights) low.accumulate[0] = full.accumulate[0] = random_bool(random);
    float *values[OP_MAX_INPUTS] = {NULL};
    uint8_t *indices = NULL;
    for (int i = 0; i < full.input_count; i++) {
        int64_t count = full.input_present[i] ? tensor_element_count(&full.inputs[i]) : 0;
        values[i] = mem_alloc_array((size_t)count + 1, sizeof(float));
        fill_random(random, values[i], count);
        for (int64_t e = 0; e < count; e++) values[i][e] = widen(round_by_hand(values[i][e]));
        if (full.inputs[i].dtype != DTYPE_U8) continue;
        int64_t most = full.attrs.pool.kernel[0] * full.attrs.pool.kernel[1] - 1;
        indices = mem_alloc((size_t)count);
        for (int64_t e = 0; e < count; e++) indices[e] = (uint8_t)random_between(random, 0, most);
    }
    struct operands exact, reference, cpu, again;
    operands_init(&exact, &full, values, indices);
    operands_init(&reference, &low, values, indices);
    operands_init(&cpu, &low, values, indices);
    operands_init(&again, &low, values, indices);
    run_once(KERNELS_REFERENCE, &full, exact.call);
    run_once(KERNELS_REFERENCE, &low, reference.call);
    run_once(KERNELS_CPU, &low, cpu.call);
    run_once(KERNELS_CPU, &low, again.call);
    double largest = has_gelu(&low) ? largest_of(&exact, &full) : 0;
    for (int i = 0; i < low.output_count; i++) {
        int64_t count = low.output_present[i] ? tensor_element_count(&low.outputs[i]) : 0;
        for (int64_t e = 0; e < count; e++) {
            float whole = output_at(&exact, &full, i, e);
            float expected = output_at(&reference, &low, i, e);
            float found = output_at(&cpu, &low, i, e);
            bool rounds = low.outputs[i].dtype == DTYPE_BF16;
            if (rounds) whole = widen(round_by_hand(whole));
            float once_more = output_at(&again, &low, i, e);
            /* a step of bf16 is up to 2^-7 of a value; sums here have at most 1,000 terms of at
             * most 1, each f32 rounding is up to 2^-24 of the sum */
            double bound =
                !sums(kind) ? 0 : 1e-4 + fabs((double)expected) * (rounds ? 0x1p-7 : 1e-5);
            if (has_gelu(&low)) bound += rounded_before(&exact, &full, e, largest);
            /* an assertion writes to a file, even if it holds */
            if (expected == whole && found == once_more &&
                fabs((double)found - (double)expected) <= bound)
                continue;
            ck_assert_float_eq(expected, whole);
            ck_assert_float_eq(found, once_more);
            ck_assert_msg(fabs((double)found - (double)expected) <= bound,
                          "%s: element %lld is %g, not %g", op_info_get(kind)->name, (long long)e,
                          (double)found, (double)expected);
        }
    }
    operands_deinit(&exact);
    operands_deinit(&reference);
    operands_deinit(&cpu);
    operands_deinit(&again);
    for (int i = 0; i < OP_MAX_INPUTS; i++) free(values[i]);
    free(indices);
}

TESTS_BELOW(.timeout = 120);

LOOP_TEST(ops_on_bf16, OP_CONV2D, OP_ADD + 1)
{
    enum op_kind kind = (enum op_kind)_i;
    struct random random = {.state = 1000 + (uint64_t)_i};
    for (int run = 0; run < RUNS && is_tested(kind); run++)
        compare_low(&random, random_desc(&random, kind));
}

/* Weights' gradients of small and of strided images, as a product of columns. */
TEST(images_of_many_channels, .unless = ON_CUDA)
{
    static const struct {
        int64_t batch, in, out, side, kernel, stride, padding;
    } cases[] = {{9, 64, 80, 3, 3, 1, 1},
                 {4, 72, 64, 13, 3, 2, 1},
                 {5, 64, 64, 12, 1, 2, 0},
                 {100, 256, 64, 3, 3, 1, 1}};
    struct random random = {.state = 11};
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        struct op_desc desc = desc_of(OP_CONV2D_BACKWARD_WEIGHTS);
        int64_t side =
            op_window_output(cases[c].side, cases[c].kernel, cases[c].stride, cases[c].padding, 1);
        for (int i = 0; i < 2; i++) {
            desc.attrs.conv.stride[i] = cases[c].stride;
            desc.attrs.conv.padding[i] = cases[c].padding;
            desc.attrs.conv.dilation[i] = 1;
        }
        desc.attrs.conv.groups = 1;
        desc.inputs[0] = image_of(cases[c].batch, cases[c].in, cases[c].side, cases[c].side,
                                  LAYOUT_CHANNELS_LAST);
        desc.inputs[1] = image_of(cases[c].batch, cases[c].out, side, side, LAYOUT_CHANNELS_LAST);
        desc.outputs[0] =
            type_of(DTYPE_F32, 4, cases[c].out, cases[c].in, cases[c].kernel, cases[c].kernel);
        desc.output_present[1] = false;
        compare_low(&random, desc);
    }
}

TEST(casts)
{
    struct random random = {.state = 3};
    for (int run = 0; run < RUNS; run++) {
        struct op_desc desc = random_desc(&random, OP_CAST);
        float *values[OP_MAX_INPUTS] = {NULL};
        int64_t count = tensor_element_count(&desc.inputs[0]);
        values[0] = mem_alloc_array((size_t)count, sizeof(float));
        fill_random(&random, values[0], count);
        bool down = run % 2 == 0;
        desc.inputs[0].dtype = down ? DTYPE_F32 : DTYPE_BF16;
        desc.outputs[0].dtype = down ? DTYPE_BF16 : DTYPE_F32;
        for (int library = 0; library < 2; library++) {
            struct operands all;
            operands_init(&all, &desc, values, NULL);
            run_once(library ? KERNELS_CPU : KERNELS_REFERENCE, &desc, all.call);
            for (int64_t e = 0; e < count; e++) {
                float found = output_at(&all, &desc, 0, e);
                float expected = widen(round_by_hand(values[0][e]));
                if (found != expected)
                    ck_abort_msg("element %lld is %g, not %g", (long long)e, (double)found,
                                 (double)expected);
            }
            operands_deinit(&all);
        }
        free(values[0]);
    }
}

/* Types that must not be mixed. */
TEST(refusals, .unless = ON_CUDA)
{
    struct random random = {.state = 4};
    struct kernel *kernel = NULL;
    struct op_desc desc = lowered(random_desc(&random, OP_LINEAR));
    desc.inputs[1].dtype = DTYPE_F32;
    status_t status = kernel_new(KERNELS_CPU, &desc, &kernel);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(status_message(status), "is of type f32, expected bf16"));
    status_free(status);
    desc = random_desc(&random, OP_CONV2D_BACKWARD_WEIGHTS);
    desc = lowered(desc);
    desc.outputs[0].dtype = DTYPE_BF16;
    status = kernel_new(KERNELS_CPU, &desc, &kernel);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    status_free(status);
    desc = desc_of(OP_LOG_SOFTMAX);
    desc.inputs[0] = desc.outputs[0] = type_of(DTYPE_BF16, 2, 3, 4, 0, 0);
    status = kernel_new(KERNELS_CPU, &desc, &kernel);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    status_free(status);
    desc = desc_of(OP_CAST);
    desc.inputs[0] = type_of(DTYPE_I32, 1, 3, 0, 0, 0);
    desc.outputs[0] = type_of(DTYPE_BF16, 1, 3, 0, 0, 0);
    status = kernel_new(KERNELS_CPU, &desc, &kernel);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    status_free(status);
    ck_assert_ptr_null(kernel);
}

/* Every pattern of the upper half, with lower halves around the tie. */
LOOP_TEST(loops_of_every_level, 0, CPU_LEVEL_COUNT, .unless = ON_CUDA)
{
    const struct cpu_loops *loops = cpu_loops_at((enum cpu_level)_i);
    if (loops == NULL) return;
    enum { COUNT = 65536 };
    static const uint32_t rests[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    float *wide = mem_alloc_array(COUNT, sizeof *wide);
    uint16_t *low = mem_alloc_array(COUNT, sizeof *low),
             *other = mem_alloc_array(COUNT, sizeof *other);
    for (size_t rest = 0; rest < COUNT_OF(rests); rest++) {
        for (uint32_t i = 0; i < COUNT; i++) {
            uint32_t bits = i << 16 | rests[rest];
            memcpy(&wide[i], &bits, sizeof bits);
        }
        loops->f32_to_bf16(COUNT, low, wide);
        for (uint32_t i = 0; i < COUNT; i++)
            ck_assert_msg(low[i] == round_by_hand(wide[i]), "%s: %a", loops->name, (double)wide[i]);
    }
    for (uint32_t i = 0; i < COUNT; i++) low[i] = (uint16_t)i;
    loops->bf16_to_f32(COUNT, wide, low);
    loops->relu_bf16(COUNT, other, low);
    for (uint32_t i = 0; i < COUNT; i++) {
        float value = widen((uint16_t)i);
        ck_assert_mem_eq(&wide[i], &value, sizeof value);
        ck_assert_uint_eq(other[i], value <= 0 ? 0 : i);
    }
    /* 1,000 columns: more than a block of them */
    float sums[1000], ordered[1000];
    struct random random = {.state = 5};
    for (uint32_t i = 0; i < 5000; i++) low[i] = round_by_hand(random_float(&random));
    loops->sum_rows_bf16(5, 1000, sums, low, false);
    const uint16_t *parts[5];
    for (int p = 0; p < 5; p++) parts[p] = low + p * 1000;
    loops->sum_ordered_bf16(1000, ordered, parts, 5, 0.25f);
    for (int i = 0; i < 1000; i++) {
        float sum = 0;
        for (int p = 0; p < 5; p++) sum += widen(parts[p][i]);
        ck_assert_float_eq(sums[i], sum);
        ck_assert_float_eq(ordered[i], sum * 0.25f);
    }
    free(wide);
    free(low);
    free(other);
}
