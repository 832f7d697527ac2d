/*
 * Winograd's convolutions against the reference: odd sizes, paddings, tiles that extend over the
 * edge, sums, threads; the loops on every level of instructions; the shapes that use it; and that a
 * value that is not finite cannot get lost.
 */
#include "kernel_fixture.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/winograd.h"
#include "tests/testing.h"

enum { RUNS = 40 };

struct operands {
    struct area inputs[OP_MAX_INPUTS], outputs[OP_MAX_OUTPUTS];
    struct kernel_call call;
};

static struct op_desc conv_of(enum op_kind kind, int64_t batch, int64_t in, int64_t out,
                              int64_t height, int64_t width, int64_t padding_h, int64_t padding_w)
{
    struct op_desc desc = desc_of(kind);
    for (int i = 0; i < 2; i++) desc.attrs.conv.stride[i] = desc.attrs.conv.dilation[i] = 1;
    desc.attrs.conv.padding[0] = padding_h;
    desc.attrs.conv.padding[1] = padding_w;
    desc.attrs.conv.groups = 1;
    struct tensor_type x = image_of(batch, in, height, width, LAYOUT_CHANNELS_LAST);
    struct tensor_type y = image_of(batch, out, height + 2 * padding_h - 2,
                                    width + 2 * padding_w - 2, LAYOUT_CHANNELS_LAST);
    struct tensor_type weight = type_of(DTYPE_F32, 4, out, in, 3, 3);
    desc.inputs[0] = kind == OP_CONV2D_BACKWARD_DATA ? y : x;
    desc.inputs[1] = kind == OP_CONV2D_BACKWARD_WEIGHTS ? y : weight;
    desc.inputs[2] = desc.outputs[1] = type_of(DTYPE_F32, 1, out, 0, 0, 0);
    desc.outputs[0] = kind == OP_CONV2D ? y : kind == OP_CONV2D_BACKWARD_DATA ? x : weight;
    return desc;
}

static struct op_desc random_conv(struct random *random, enum op_kind kind)
{
    static const int64_t channels[] = {16, 32, 48, 64, 80};
    for (;;) {
        int64_t batch = random_between(random, 1, 4);
        int64_t in = random_of(random, channels, 5), out = random_of(random, channels, 5);
        int64_t height = random_between(random, 1, 14), width = random_between(random, 1, 14);
        int64_t padding_h = random_between(random, 0, 2), padding_w = random_between(random, 0, 3);
        struct op_desc desc = conv_of(kind, batch, in, out, height, width, padding_h, padding_w);
        if (kind == OP_CONV2D && random_bool(random)) desc.attrs.conv.activation = ACTIVATION_RELU;
        if (kind == OP_CONV2D) desc.input_present[2] = random_bool(random);
        if (kind == OP_CONV2D_BACKWARD_WEIGHTS) desc.output_present[1] = random_bool(random);
        for (int i = 0; i < desc.output_count; i++) desc.accumulate[i] = random_bool(random);
        status_t status = op_desc_check(&desc);
        bool valid = status == NULL;
        status_free(status);
        if (valid && winograd_fits(&desc)) return desc;
    }
}

static void operands_init(struct operands *operands, struct random *random,
                          const struct op_desc *desc)
{
    *operands = (struct operands){0};
    for (int i = 0; i < desc->input_count; i++) {
        if (!desc->input_present[i]) continue;
        operands->inputs[i] =
            area_new(tensor_bytes(&desc->inputs[i]), 4 * (size_t)random_between(random, 0, 1));
        operands->call.inputs[i] = operands->inputs[i].memory;
        fill_random(random, (float *)operands->inputs[i].memory,
                    tensor_element_count(&desc->inputs[i]));
    }
    for (int i = 0; i < desc->output_count; i++) {
        if (!desc->output_present[i]) continue;
        operands->outputs[i] =
            area_new(tensor_bytes(&desc->outputs[i]), 4 * (size_t)random_between(random, 0, 1));
    }
}

static void operands_deinit(struct operands *operands)
{
    for (int i = 0; i < OP_MAX_INPUTS; i++) area_free(&operands->inputs[i]);
    for (int i = 0; i < OP_MAX_OUTPUTS; i++) area_free(&operands->outputs[i]);
}

/* Runs it into outputs with the same values before every run: NaN if the run must overwrite
 * them. */
static struct area run(struct operands *operands, enum kernel_library library,
                       const struct op_desc *desc, int output)
{
    struct kernel_call call = operands->call;
    for (int i = 0; i < desc->output_count; i++) {
        if (!desc->output_present[i]) continue;
        struct random random = {(uint64_t)i};
        struct area *area = &operands->outputs[i];
        if (desc->accumulate[i])
            fill_random(&random, (float *)area->memory, tensor_element_count(&desc->outputs[i]));
        else memset(area->memory, 0xff, area->bytes);
        call.outputs[i] = area->memory;
    }
    run_once(library, desc, call);
    for (int i = 0; i < desc->output_count; i++)
        if (desc->output_present[i]) ck_assert(area_edges_whole(&operands->outputs[i]));
    struct area copy = area_new(operands->outputs[output].bytes, 0);
    memcpy(copy.memory, operands->outputs[output].memory, copy.bytes);
    return copy;
}

/*
 * The algorithm's allowed error, for operands in [-1, 1): winograd.c's bound, which grows with the
 * square of the terms and is never reached, and the practical one, a few roundings of the largest
 * result.
 */
static void assert_close(const struct op_desc *desc, const struct area *found_area,
                         const struct area *expected_area, int output)
{
    const float *found = (const float *)found_area->memory;
    const float *expected = (const float *)expected_area->memory;
    int64_t count = tensor_element_count(&desc->outputs[output]);
    double largest = 1;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(expected[i]));
    double n = (double)desc->inputs[0].dims[1], bound = (n + 10) * 0x1p-24 * 81 * n + 0x1p-22;
    for (int64_t i = 0; i < count; i++) {
        double error = fabs(found[i] - expected[i]);
        if (!(error <= 1e-6 * largest) || (desc->kind == OP_CONV2D && !(error <= bound)))
            ck_abort_msg("%s: output %d at %lld is %.9g, the reference has %.9g (largest %g)",
                         op_info_get(desc->kind)->name, output, (long long)i, found[i], expected[i],
                         largest);
    }
}

TESTS_BELOW(.timeout = 240);

LOOP_TEST(is_reference, OP_CONV2D, OP_CONV2D_BACKWARD_WEIGHTS + 1)
{
    struct random random = {(uint64_t)_i};
    for (int number = 0; number < RUNS; number++) {
        struct op_desc desc = random_conv(&random, (enum op_kind)_i);
        struct operands operands;
        operands_init(&operands, &random, &desc);
        kernels_set_threads((int)random_between(&random, 1, 3));
        for (int i = 0; i < desc.output_count; i++) {
            if (!desc.output_present[i]) continue;
            struct area expected = run(&operands, KERNELS_REFERENCE, &desc, i);
            struct area found = run(&operands, KERNELS_CPU, &desc, i);
            struct area again = run(&operands, KERNELS_CPU, &desc, i);
            assert_close(&desc, &found, &expected, i);
            ck_assert_mem_eq(found.memory, again.memory, found.bytes);
            area_free(&expected);
            area_free(&found);
            area_free(&again);
        }
        operands_deinit(&operands);
    }
}

/* Threads divide tiles or images among them: each result comes from one thread. */
TEST(threads_change_nothing)
{
    struct random random = {11};
    for (int kind = OP_CONV2D; kind <= OP_CONV2D_BACKWARD_DATA; kind++) {
        struct op_desc desc = conv_of((enum op_kind)kind, 5, 32, 48, 13, 11, 1, 0);
        ck_assert(winograd_fits(&desc));
        struct operands operands;
        operands_init(&operands, &random, &desc);
        kernels_set_threads(1);
        struct area expected = run(&operands, KERNELS_CPU, &desc, 0);
        for (int threads = 2; threads <= 7; threads++) {
            kernels_set_threads(threads);
            struct area found = run(&operands, KERNELS_CPU, &desc, 0);
            ck_assert_mem_eq(found.memory, expected.memory, found.bytes);
            area_free(&found);
        }
        area_free(&expected);
        operands_deinit(&operands);
    }
}

/* Wherever the direct algorithm gives a value that is not finite, this gives it too. */
TEST(not_finite_stays)
{
    static const float values[] = {NAN, INFINITY, -INFINITY};
    struct random random = {5};
    kernels_set_threads(1);
    for (int kind = OP_CONV2D; kind <= OP_CONV2D_BACKWARD_WEIGHTS; kind++)
        for (int number = 0; number < 60; number++) {
            struct op_desc desc = conv_of((enum op_kind)kind, 2, 32, 32, 9, 10, 1, 0);
            if (number % 2 == 1) desc.attrs.conv.activation = ACTIVATION_RELU;
            if (kind != OP_CONV2D) desc.attrs.conv.activation = ACTIVATION_NONE;
            ck_assert(winograd_fits(&desc));
            struct operands operands;
            operands_init(&operands, &random, &desc);
            int input = (int)random_between(&random, 0, 1);
            int64_t count = tensor_element_count(&desc.inputs[input]);
            int64_t at = random_between(&random, 0, count - 1);
            ((float *)operands.inputs[input].memory)[at] = values[number % 3];
            struct area expected = run(&operands, KERNELS_REFERENCE, &desc, 0);
            struct area found = run(&operands, KERNELS_CPU, &desc, 0);
            const float *wanted = (const float *)expected.memory;
            int64_t results = tensor_element_count(&desc.outputs[0]), lost = 0, met = 0;
            for (int64_t i = 0; i < results; i++) {
                if (isfinite(wanted[i])) continue;
                met++;
                if (isfinite(((const float *)found.memory)[i])) lost++;
            }
            ck_assert_int_eq(lost, 0);
            ck_assert(met > 0 || number % 3 != 0);
            area_free(&expected);
            area_free(&found);
            operands_deinit(&operands);
        }
}

/* Loops. */

enum { CHANNELS = 48, STRIDE = CHANNELS + 16, PIXELS = 16 };

/* All transforms, one after another, into one array. */
static void transform_all(const struct cpu_loops *loops, const float *values, float *results)
{
    float pixels[PIXELS][CHANNELS], *at[PIXELS];
    for (int i = 0; i < PIXELS; i++) {
        at[i] = pixels[i];
        memcpy(pixels[i], values + i * STRIDE, sizeof pixels[i]);
    }
    loops->winograd_input(CHANNELS, results, STRIDE, at);
    results += PIXELS * STRIDE;
    loops->winograd_output_backward(CHANNELS, results, STRIDE, at);
    results += PIXELS * STRIDE;
    loops->winograd_weights(CHANNELS, results, STRIDE, values, CHANNELS);
    results += PIXELS * STRIDE;
    loops->winograd_weights_backward(CHANNELS, results, CHANNELS, values, STRIDE);
    results += PIXELS * STRIDE;
    loops->winograd_input_backward(CHANNELS, at, values, STRIDE);
    memcpy(results, pixels, sizeof pixels);
    results += PIXELS * STRIDE;
    for (int options = 0; options < 8; options++)
        loops->winograd_output(CHANNELS, at + options % 4 * 4, values, STRIDE,
                               options & 1 ? values : NULL, options & 2, options & 4);
    memcpy(results, pixels, sizeof pixels);
}

TEST(levels_give_the_same_bits)
{
    enum { RESULTS = 6 * PIXELS * STRIDE };
    static float values[PIXELS * STRIDE], expected[RESULTS], found[RESULTS];
    struct random random = {3};
    fill_random(&random, values, PIXELS * STRIDE);
    transform_all(cpu_loops_at(CPU_LEVEL_BASE), values, expected);
    for (int level = CPU_LEVEL_AVX2; level < CPU_LEVEL_COUNT; level++) {
        const struct cpu_loops *loops = cpu_loops_at((enum cpu_level)level);
        if (loops == NULL) continue;
        transform_all(loops, values, found);
        ck_assert_mem_eq(found, expected, sizeof found);
    }
}

/* The products between the transforms, in both orientations. */
TEST(products_give_the_same_bits)
{
    enum { ROWS = 29, DEPTH = 23, COLUMNS = 112 };
    static float a[ROWS * DEPTH], b[DEPTH * COLUMNS], c[ROWS * COLUMNS], other[ROWS * COLUMNS];
    struct random random = {4};
    fill_random(&random, a, ROWS * DEPTH);
    fill_random(&random, b, DEPTH * COLUMNS);
    for (int level = CPU_LEVEL_AVX2; level < CPU_LEVEL_COUNT; level++) {
        const struct cpu_loops *loops = cpu_loops_at((enum cpu_level)level);
        if (loops == NULL) continue;
        for (size_t rows = 1; rows <= ROWS; rows++)
            for (size_t columns = 16; columns <= COLUMNS; columns += 16)
                for (int turned = 0; turned < 2; turned++) {
                    struct cpu_product product = {.rows = rows, .columns = columns, .depth = DEPTH};
                    product.a = a, product.b = b, product.c = c;
                    product.a_row = turned ? 1 : DEPTH, product.a_depth = turned ? ROWS : 1;
                    product.b_depth = product.c_row = COLUMNS;
                    product.add = turned;
                    fill_random(&random, c, ROWS * COLUMNS);
                    memcpy(other, c, sizeof other);
                    loops->product(&product);
                    product.c = other;
                    cpu_loops_at(CPU_LEVEL_BASE)->product(&product);
                    ck_assert_mem_eq(other, c, sizeof other);
                }
    }
}

TEST(choice)
{
    if (cpu_loops_get() == cpu_loops_base) return;
    for (int kind = OP_CONV2D; kind <= OP_CONV2D_BACKWARD_WEIGHTS; kind++) {
        enum op_kind k = (enum op_kind)kind;
        struct op_desc desc = conv_of(k, 64, 32, 64, 26, 26, 0, 0); /* MNIST's second */
        ck_assert(winograd_fits(&desc));
        struct op_desc other = desc;
        other.attrs.conv.stride[1] = 2;
        ck_assert(!winograd_fits(&other));
        other = desc;
        other.attrs.conv.dilation[0] = 2;
        ck_assert(!winograd_fits(&other));
        other = desc;
        other.attrs.conv.groups = 2;
        ck_assert(!winograd_fits(&other));
        for (int i = 0; i < 2; i++) {
            struct tensor_type *sides[2][2] = {{&other.inputs[0], &other.outputs[0]},
                                               {&other.inputs[0], &other.inputs[1]}};
            other = desc;
            sides[kind == OP_CONV2D_BACKWARD_WEIGHTS][i]->layout = LAYOUT_PLAIN;
            ck_assert(!winograd_fits(&other));
            other = desc;
            sides[kind == OP_CONV2D_BACKWARD_WEIGHTS][i]->dtype = DTYPE_BF16;
            ck_assert(!winograd_fits(&other));
        }
        other = conv_of(k, 64, 1, 32, 28, 28, 0, 0); /* MNIST's first */
        ck_assert(!winograd_fits(&other));
        other = conv_of(k, 64, 32, 40, 26, 26, 0, 0);
        ck_assert(!winograd_fits(&other));
        other = conv_of(k, 64, 16, 32, 26, 26, 0, 0); /* too few channels */
        ck_assert(!winograd_fits(&other));
        other = conv_of(k, 64, 512, 512, 9, 9, 0, 0); /* too many */
        ck_assert(!winograd_fits(&other));
        other = conv_of(k, 1, 64, 64, 8, 8, 1, 1); /* too few tiles */
        ck_assert(!winograd_fits(&other));
        other = conv_of(k, 64, 64, 64, 5, 5, 0, 0); /* nearly half of them outside */
        ck_assert(!winograd_fits(&other));
        other = conv_of(k, 64, 64, 64, 7, 7, 1, 1);
        ck_assert(winograd_fits(&other));
    }
}
