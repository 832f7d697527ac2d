/*
 * The CPU library against the reference, op by op, over random shapes, attributes and layouts.
 * Every run is also checked for stray writes, for unwritten results, and for the same bits a second
 * time.
 */
#include <pthread.h>
#include <signal.h>

#include "kernel_fixture.h"
#include "kernels/cpu/winograd.h"
#include "tests/testing.h"

enum { RUNS = RACES ? 2 : ON_CUDA ? 12 : 60, MAX_OPERANDS = OP_MAX_INPUTS + OP_MAX_OUTPUTS };

static enum layout random_layout(struct random *random)
{
    return random_bool(random) && !ON_CUDA ? LAYOUT_CHANNELS_LAST : LAYOUT_PLAIN;
}

static struct tensor_type random_image(struct random *random)
{
    static const int64_t channels[] = {1, 2, 3, 5, 8, 16, 17, 32, 64, 67, 130};
    return image_of(random_between(random, 1, 3), random_of(random, channels, 11),
                    random_between(random, 1, 13), random_between(random, 1, 13),
                    random_layout(random));
}

static struct op_desc random_conv(struct random *random, enum op_kind kind)
{
    static const int64_t channels[] = {1, 2, 3, 4, 7, 8, 16, 19, 32, 33};
    struct op_desc desc = desc_of(kind);
    int64_t groups = random_of(random, (int64_t[]){1, 1, 1, 2, 3}, 5);
    int64_t in = random_of(random, channels, 10), out = random_of(random, channels, 10);
    if (random_between(random, 0, 7) == 0) groups = 8, in = out = 1; /* depthwise */
    struct tensor_type x =
        image_of(random_between(random, 1, 3), groups * in, random_between(random, 1, 12),
                 random_between(random, 1, 12), random_layout(random));
    struct tensor_type weight = type_of(DTYPE_F32, 4, groups * out, in,
                                        random_between(random, 1, 4), random_between(random, 1, 4));
    int64_t output[2];
    for (int i = 0; i < 2; i++) {
        desc.attrs.conv.stride[i] = random_between(random, 1, 3);
        desc.attrs.conv.padding[i] = random_between(random, 0, 2);
        desc.attrs.conv.dilation[i] = random_of(random, (int64_t[]){1, 1, 2}, 3);
        output[i] = op_window_output(x.dims[2 + i], weight.dims[2 + i], desc.attrs.conv.stride[i],
                                     desc.attrs.conv.padding[i], desc.attrs.conv.dilation[i]);
    }
    desc.attrs.conv.groups = groups;
    struct tensor_type bias = type_of(DTYPE_F32, 1, groups * out, 0, 0, 0);
    struct tensor_type y =
        image_of(x.dims[0], groups * out, output[0], output[1], random_layout(random));
    bool has_bias = random_bool(random);
    if (kind == OP_CONV2D) {
        desc.inputs[0] = x, desc.inputs[1] = weight, desc.inputs[2] = bias, desc.outputs[0] = y;
        desc.input_present[2] = has_bias;
        if (random_bool(random)) desc.attrs.conv.activation = ACTIVATION_RELU;
    } else if (kind == OP_CONV2D_BACKWARD_DATA) {
        desc.inputs[0] = y, desc.inputs[1] = weight, desc.outputs[0] = x;
    } else {
        desc.inputs[0] = x, desc.inputs[1] = y, desc.outputs[0] = weight, desc.outputs[1] = bias;
        desc.output_present[1] = has_bias;
    }
    return desc;
}

static struct op_desc random_linear(struct random *random, enum op_kind kind)
{
    static const int64_t sizes[] = {1, 2, 3, 10, 15, 16, 17, 31, 64, 65, 100, 257};
    struct op_desc desc = desc_of(kind);
    int64_t in = random_of(random, sizes, 12), out = random_of(random, sizes, 12);
    int64_t rows = random_of(random, sizes, 12), more = random_between(random, 1, 3);
    int dim_count = (int)random_between(random, 1, 3);
    struct tensor_type x = dim_count == 3   ? type_of(DTYPE_F32, 3, more, rows, in, 0)
                           : dim_count == 2 ? type_of(DTYPE_F32, 2, rows, in, 0, 0)
                                            : type_of(DTYPE_F32, 1, in, 0, 0, 0);
    struct tensor_type y = x;
    y.dims[dim_count - 1] = out;
    bool transposed = desc.attrs.linear.transposed = random_bool(random);
    struct tensor_type weight =
        type_of(DTYPE_F32, 2, transposed ? in : out, transposed ? out : in, 0, 0);
    struct tensor_type bias = type_of(DTYPE_F32, 1, out, 0, 0, 0);
    bool has_bias = random_bool(random);
    if (kind == OP_LINEAR) {
        desc.inputs[0] = x, desc.inputs[1] = weight, desc.inputs[2] = bias, desc.outputs[0] = y;
        desc.input_present[2] = has_bias;
        int64_t activation = random_between(random, 0, 2);
        if (activation == 1) desc.attrs.linear.activation = ACTIVATION_RELU;
        if (activation == 2) desc = with_gelu(desc);
        if (activation == 2 && random_bool(random)) desc.output_present[1] = false;
        desc.attrs.linear.rows_apart = random_bool(random);
    } else if (kind == OP_LINEAR_BACKWARD_DATA) {
        desc.inputs[0] = y, desc.inputs[1] = weight, desc.outputs[0] = x;
        if (random_bool(random)) desc = with_gelu(desc);
    } else {
        desc.inputs[0] = x, desc.inputs[1] = y, desc.outputs[0] = weight, desc.outputs[1] = bias;
        desc.output_present[1] = has_bias;
    }
    return desc;
}

static struct op_desc random_pool(struct random *random, enum op_kind kind)
{
    struct op_desc desc = desc_of(kind);
    struct tensor_type x = random_image(random);
    bool simple = random_bool(random); /* 2 x 2, the common case */
    int64_t output[2];
    for (int i = 0; i < 2; i++) {
        desc.attrs.pool.kernel[i] = simple ? 2 : random_between(random, 1, 4);
        desc.attrs.pool.stride[i] = simple ? 2 : random_between(random, 1, 4);
        desc.attrs.pool.padding[i] =
            simple ? 0 : random_between(random, 0, desc.attrs.pool.kernel[i] / 2);
        output[i] = op_window_output(x.dims[2 + i], desc.attrs.pool.kernel[i],
                                     desc.attrs.pool.stride[i], desc.attrs.pool.padding[i], 1);
    }
    struct tensor_type y = image_of(x.dims[0], x.dims[1], output[0], output[1], x.layout);
    if (random_between(random, 0, 9) == 0) y.layout = random_layout(random);
    struct tensor_type indices = y;
    indices.dtype = DTYPE_U8;
    if (kind == OP_MAX_POOL2D) {
        desc.inputs[0] = x, desc.outputs[0] = y, desc.outputs[1] = indices;
        desc.output_present[1] = random_bool(random);
    } else {
        desc.inputs[0] = y, desc.inputs[1] = indices, desc.outputs[0] = x;
    }
    return desc;
}

static struct op_desc random_element_wise(struct random *random, enum op_kind kind)
{
    struct op_desc desc = desc_of(kind);
    struct tensor_type type = random_image(random);
    if (random_between(random, 0, 5) == 0) /* many elements: several chunks and threads */
        type = type_of(DTYPE_F32, 2, random_between(random, 1, 60),
                       random_between(random, 500, 1500), 0, 0);
    if (random_between(random, 0, 5) == 0) /* many pixels */
        type = image_of(1, random_between(random, 1, 5), random_between(random, 30, 60),
                        random_between(random, 30, 60), LAYOUT_CHANNELS_LAST);
    desc.inputs[0] = desc.inputs[1] = desc.outputs[0] = type;
    if (type.dim_count == 4 && random_between(random, 0, 9) == 0)
        desc.outputs[0].layout = random_layout(random);
    if (kind == OP_DROPOUT || kind == OP_DROPOUT_BACKWARD) {
        desc.attrs.dropout.p = (double[]){0, 0.25, 0.5, 0.9999999999}[random_between(random, 0, 3)];
        desc.attrs.dropout.stream = (uint32_t)random_bits(random);
        desc.attrs.dropout.normal = kind == OP_DROPOUT && random_between(random, 0, 2) == 0;
    }
    return desc;
}

static struct op_desc random_reshape(struct random *random)
{
    struct op_desc desc = desc_of(OP_RESHAPE);
    struct tensor_type image = random_image(random), flat;
    int64_t count = tensor_element_count(&image);
    flat = type_of(DTYPE_F32, 2, image.dims[0], count / image.dims[0], 0, 0);
    switch (random_between(random, 0, 3)) {
    case 0: desc.inputs[0] = image, desc.outputs[0] = flat; break;
    case 1: desc.inputs[0] = flat, desc.outputs[0] = image; break;
    case 2: desc.inputs[0] = desc.outputs[0] = image; break;
    default: /* another image of as many elements */
        desc.inputs[0] = image;
        desc.outputs[0] = image_of(image.dims[1], image.dims[0], image.dims[3], image.dims[2],
                                   random_layout(random));
    }
    return desc;
}

static struct op_desc random_rows(struct random *random, enum op_kind kind)
{
    struct op_desc desc = desc_of(kind);
    int64_t rows = random_between(random, 1, 70);
    int64_t classes = random_of(random, (int64_t[]){1, 2, 10, 16, 33, 100, 1000}, 7);
    struct tensor_type scores = type_of(DTYPE_F32, 2, rows, classes, 0, 0);
    struct tensor_type target = type_of(DTYPE_I32, 1, rows, 0, 0, 0);
    struct tensor_type single = type_of(DTYPE_F32, 1, 1, 0, 0, 0);
    desc.inputs[0] = desc.inputs[1] = desc.outputs[0] = desc.outputs[1] = scores;
    if (kind == OP_LOG_SOFTMAX || kind == OP_LOG_SOFTMAX_BACKWARD) return desc;
    desc.inputs[kind == OP_NLL_LOSS_BACKWARD ? 0 : 1] = target;
    if (kind == OP_NLL_LOSS || kind == OP_CROSS_ENTROPY || kind == OP_COUNT_CORRECT)
        desc.outputs[0] = single;
    desc.attrs.loss.reduction = random_bool(random) ? REDUCTION_MEAN : REDUCTION_SUM;
    static float weights[OP_MAX_WEIGHTS];
    for (int i = 0; i < OP_MAX_WEIGHTS; i++) weights[i] = (float)((i + 1) % 4) * 0.75f;
    if (kind != OP_COUNT_CORRECT && random_bool(random))
        desc.attrs.loss.weights = (struct op_weights){weights, classes};
    return desc;
}

static struct op_desc random_desc(struct random *random, enum op_kind kind)
{
    struct op_desc desc;
    for (;;) { /* until the windows fit */
        if (kind <= OP_CONV2D_BACKWARD_WEIGHTS) desc = random_conv(random, kind);
        else if (kind <= OP_LINEAR_BACKWARD_WEIGHTS) desc = random_linear(random, kind);
        else if (kind == OP_MAX_POOL2D || kind == OP_MAX_POOL2D_BACKWARD)
            desc = random_pool(random, kind);
        else if (kind == OP_RESHAPE) desc = random_reshape(random);
        else if (kind >= OP_LOG_SOFTMAX) desc = random_rows(random, kind);
        else desc = random_element_wise(random, kind);
        status_t status = op_desc_check(&desc);
        if (status == NULL) break;
        status_free(status);
    }
    bool linear = kind == OP_LINEAR || kind == OP_LINEAR_BACKWARD_DATA;
    if (linear && desc.attrs.linear.activation == ACTIVATION_GELU_TANH) return desc;
    for (int i = 0; i < desc.output_count; i++)
        if (desc.outputs[i].dtype == DTYPE_F32 && random_between(random, 0, 2) == 0)
            desc.accumulate[i] = true;
    return desc;
}

/* Operands. */

/* Valid indices come from a forward pass over random input. */
static void fill_indices(struct random *random, const struct op_desc *backward, uint8_t *indices)
{
    struct op_desc desc = desc_of(OP_MAX_POOL2D);
    desc.attrs.pool = backward->attrs.pool;
    desc.inputs[0] = backward->outputs[0];
    desc.outputs[0] = backward->inputs[0];
    desc.outputs[1] = backward->inputs[1];
    struct area x = area_new(tensor_bytes(&desc.inputs[0]), 0);
    struct area y = area_new(tensor_bytes(&desc.outputs[0]), 0);
    fill_random(random, (float *)x.memory, tensor_element_count(&desc.inputs[0]));
    struct kernel_call call = {.inputs = {x.memory}, .outputs = {y.memory, indices}};
    run_once(KERNELS_REFERENCE, &desc, call);
    area_free(&x);
    area_free(&y);
}

static void fill_input(struct random *random, const struct op_desc *desc, int input, void *memory)
{
    const struct tensor_type *type = &desc->inputs[input];
    int64_t count = tensor_element_count(type);
    if (type->dtype == DTYPE_U8) {
        fill_indices(random, desc, memory);
    } else if (type->dtype == DTYPE_I32) {
        const struct tensor_type *scores =
            desc->kind == OP_NLL_LOSS_BACKWARD ? &desc->outputs[0] : &desc->inputs[0];
        bool all_ignored = random_between(random, 0, 9) == 0;
        for (int64_t i = 0; i < count; i++)
            ((int32_t *)memory)[i] =
                (int32_t)(all_ignored ? -1 : random_between(random, -1, scores->dims[1] - 1));
    } else {
        fill_random(random, memory, count);
        /* Equal values, to produce ties. */
        if (desc->kind == OP_MAX_POOL2D || desc->kind == OP_COUNT_CORRECT)
            for (int64_t i = 0; i < count; i++)
                ((float *)memory)[i] = floorf(((float *)memory)[i] * 3);
        /* Log-probabilities. */
        if ((desc->kind == OP_LOG_SOFTMAX_BACKWARD && input == 1) ||
            desc->kind == OP_CROSS_ENTROPY_BACKWARD)
            for (int64_t i = 0; i < count; i++)
                ((float *)memory)[i] = -5 - 5 * ((float *)memory)[i];
    }
}

static void fill_operand(struct random *random, const struct op_desc *desc,
                         const struct tensor_type *type, void *memory)
{
    bool output = type >= desc->outputs && type < desc->outputs + OP_MAX_OUTPUTS;
    if (output) fill_random(random, memory, tensor_element_count(type));
    else fill_input(random, desc, (int)(type - desc->inputs), memory);
}

static void expect_close(const struct op_desc *desc, int output, const void *found_memory,
                         const void *expected_memory)
{
    const struct tensor_type *type = &desc->outputs[output];
    const char *name = op_info_get(desc->kind)->name;
    int64_t count = tensor_element_count(type);
    if (type->dtype == DTYPE_U8) {
        ck_assert_msg(memcmp(found_memory, expected_memory, (size_t)count) == 0,
                      "%s: indices differ", name);
        return;
    }
    const float *found = found_memory, *expected = expected_memory;
    double largest = 1, tolerance = tolerance_of(desc->kind, 4e-6);
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(expected[i]));
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(found[i] - expected[i]) <= tolerance * largest)) /* also fails for NaN */
            ck_abort_msg("%s: output %d at %lld is %.9g, the reference has %.9g", name, output,
                         (long long)i, found[i], expected[i]);
}

static void compare(struct random *random, const struct op_desc *desc)
{
    static const struct comparison comparison = {fill_operand, expect_close};
    struct kernel_call call = {.seed = random_bits(random), .step = random_bits(random) >> 20};
    call.rank = (uint32_t)random_between(random, 0, 7);
    call.first_sample = random_bits(random) >> 44;
    call.sample_elements = (uint64_t)random_between(random, 0, 5);
    compare_libraries(random, desc, &comparison, call);
}

TESTS_BELOW(.timeout = 240);

LOOP_TEST(cpu_is_reference, 0, OP_CAST + 1)
{
    for (int threads = 1; threads <= 2 && is_tested((enum op_kind)_i); threads++) {
        kernels_set_threads(threads);
        struct random random = {(uint64_t)_i * 1000 + (uint64_t)threads};
        for (int run = 0; run < RUNS; run++) {
            struct op_desc desc = random_desc(&random, (enum op_kind)_i);
            compare(&random, &desc);
        }
    }
}

TESTS_BELOW(.timeout = 120);

/* The shapes of the MNIST network, at a small batch. */
TEST(mnist_shapes, .unless = ON_CUDA)
{
    struct random random = {7};
    static const int64_t convs[2][5] = {{1, 32, 28, 26, 0}, {32, 64, 26, 24, 0}};
    for (int c = 0; c < 2; c++)
        for (int kind = OP_CONV2D; kind <= OP_CONV2D_BACKWARD_WEIGHTS; kind++) {
            struct op_desc desc = desc_of((enum op_kind)kind);
            const int64_t *conv = convs[c];
            struct tensor_type x = image_of(4, conv[0], conv[2], conv[2], LAYOUT_CHANNELS_LAST);
            struct tensor_type y = image_of(4, conv[1], conv[3], conv[3], LAYOUT_CHANNELS_LAST);
            struct tensor_type weight = type_of(DTYPE_F32, 4, conv[1], conv[0], 3, 3);
            struct tensor_type bias = type_of(DTYPE_F32, 1, conv[1], 0, 0, 0);
            for (int i = 0; i < 2; i++) desc.attrs.conv.stride[i] = desc.attrs.conv.dilation[i] = 1;
            desc.attrs.conv.groups = 1;
            desc.inputs[0] = kind == OP_CONV2D_BACKWARD_DATA ? y : x;
            desc.inputs[1] = kind == OP_CONV2D_BACKWARD_WEIGHTS ? y : weight;
            desc.inputs[2] = bias;
            desc.outputs[0] = kind == OP_CONV2D ? y : kind == OP_CONV2D_BACKWARD_DATA ? x : weight;
            desc.outputs[1] = bias;
            compare(&random, &desc);
        }
}

/* Weights' gradients of small images as a product of columns: edges, strides, dilation, one pixel,
 * and batches of several slices. */
TEST(small_images_and_many_channels, .unless = ON_CUDA)
{
    struct random random = {9};
    static const struct {
        int64_t batch, in, out, height, width, kernel, stride, padding, dilation;
    } cases[] = {
        {5, 64, 80, 3, 3, 3, 1, 1, 1},   {3, 80, 64, 5, 4, 3, 2, 1, 1},
        {7, 64, 64, 6, 7, 3, 2, 0, 1},   {4, 96, 64, 5, 5, 3, 1, 1, 2},
        {6, 64, 72, 5, 5, 1, 2, 0, 1},   {2, 70, 64, 1, 1, 1, 1, 0, 1},
        {64, 256, 64, 3, 3, 3, 1, 1, 1}, {62, 200, 64, 4, 3, 3, 1, 1, 1},
    };
    size_t fits = 0;
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        struct op_desc desc = desc_of(OP_CONV2D_BACKWARD_WEIGHTS);
        int64_t out[2];
        desc.attrs.conv.groups = 1;
        for (int i = 0; i < 2; i++) {
            desc.attrs.conv.stride[i] = cases[c].stride;
            desc.attrs.conv.padding[i] = cases[c].padding;
            desc.attrs.conv.dilation[i] = cases[c].dilation;
            out[i] = op_window_output(i == 0 ? cases[c].height : cases[c].width, cases[c].kernel,
                                      cases[c].stride, cases[c].padding, cases[c].dilation);
        }
        desc.inputs[0] = image_of(cases[c].batch, cases[c].in, cases[c].height, cases[c].width,
                                  LAYOUT_CHANNELS_LAST);
        desc.inputs[1] =
            image_of(cases[c].batch, cases[c].out, out[0], out[1], LAYOUT_CHANNELS_LAST);
        desc.outputs[0] =
            type_of(DTYPE_F32, 4, cases[c].out, cases[c].in, cases[c].kernel, cases[c].kernel);
        desc.output_present[1] = false;
        desc.accumulate[0] = c % 2 == 1;
        fits += conv_columns_fit(&desc);
        compare(&random, &desc);
    }
    ck_assert(fits == 0 || fits == COUNT_OF(cases)); /* 0: not on this processor */
}

/* As where ResNets halve an image: the library's own scratch memory is what may be too small, of
 * channels that fill no vector (kernels/cpu/conv.c). */
LOOP_TEST(points_of_few_channels, OP_CONV2D, OP_CONV2D_BACKWARD_WEIGHTS + 1, .unless = ON_CUDA)
{
    static const int64_t channels[] = {1, 3, 4, 7, 8, 12, 16, 20, 24, 33};
    struct random random = {10};
    for (size_t c = 0; c < COUNT_OF(channels); c++)
        for (int side = 5; side <= 20; side += 5) {
            struct op_desc desc = desc_of((enum op_kind)_i);
            int64_t in = channels[c], out = channels[(c + 4) % COUNT_OF(channels)];
            struct tensor_type x = image_of(16, in, side, side, LAYOUT_CHANNELS_LAST);
            struct tensor_type y =
                image_of(16, out, (side + 1) / 2, (side + 1) / 2, LAYOUT_CHANNELS_LAST);
            struct tensor_type weight = type_of(DTYPE_F32, 4, out, in, 1, 1);
            desc.attrs.conv.groups = 1;
            for (int i = 0; i < 2; i++) desc.attrs.conv.stride[i] = 2;
            for (int i = 0; i < 2; i++) desc.attrs.conv.dilation[i] = 1;
            desc.inputs[0] = _i == OP_CONV2D_BACKWARD_DATA ? y : x;
            desc.inputs[1] = _i == OP_CONV2D_BACKWARD_WEIGHTS ? y : weight;
            desc.input_present[2] = desc.output_present[1] = false;
            desc.outputs[0] = _i == OP_CONV2D                 ? y
                              : _i == OP_CONV2D_BACKWARD_DATA ? x
                                                              : weight;
            compare(&random, &desc);
        }
}

/* Between images of both layouts, flat tensors and images of as many elements: one channel or one
 * pixel is in both orders at once. */
TEST(reshapes_of_few_channels, .unless = ON_CUDA)
{
    static const int64_t sizes[] = {1, 2, 9};
    struct random random = {8};
    enum { FORMS = 5, CASES = 81 * 2 * FORMS * 2 };
    for (int i = 0; i < CASES; i++) {
        int64_t size[4];
        int rest = i;
        for (int d = 0; d < 4; d++, rest /= 3) size[d] = sizes[rest % 3];
        int64_t n = size[0], c = size[1], h = size[2], w = size[3];
        int form = rest / 2 % FORMS;
        struct tensor_type image = image_of(n, c, h, w, (enum layout)(rest % 2));
        struct tensor_type other = form < 2   ? image_of(n, c, h, w, (enum layout)form)
                                   : form < 4 ? image_of(c, n, w, h, (enum layout)(form - 2))
                                              : type_of(DTYPE_F32, 2, n, c * h * w, 0, 0);
        bool back = rest / 2 / FORMS == 1;
        struct op_desc desc = desc_of(OP_RESHAPE);
        desc.inputs[0] = back ? other : image;
        desc.outputs[0] = back ? image : other;
        desc.accumulate[0] = i % 7 == 0;
        compare(&random, &desc);
    }
}

/* NaN must reach the loss, where it is visible, through every op. */
TEST(nan_passes, .unless = ON_CUDA)
{
    enum { N = 40 };
    float x[N], dy[N], y[N], weight[4] = {1, 0, 0, 1}, out[N];
    uint8_t indices[N];
    for (int library = KERNELS_REFERENCE; library <= KERNELS_CPU; library++)
        for (int at = 0; at < 4; at++) {
            for (int i = 0; i < N; i++) x[i] = dy[i] = y[i] = -1;
            x[at] = y[at] = NAN;
            struct op_desc desc = desc_of(OP_RELU);
            desc.inputs[0] = desc.outputs[0] = type_of(DTYPE_F32, 1, N, 0, 0, 0);
            run_once(library, &desc, (struct kernel_call){.inputs = {x}, .outputs = {out}});
            for (int i = 0; i < N; i++) ck_assert(i == at ? isnan(out[i]) : out[i] == 0);

            desc = desc_of(OP_MAX_POOL2D);
            desc.inputs[0] = image_of(1, 1, 2, 2, LAYOUT_PLAIN);
            desc.outputs[0] = image_of(1, 1, 1, 1, LAYOUT_PLAIN);
            desc.outputs[1] = type_of(DTYPE_U8, 4, 1, 1, 1, 1);
            for (int i = 0; i < 2; i++) desc.attrs.pool.kernel[i] = desc.attrs.pool.stride[i] = 2;
            run_once(library, &desc,
                     (struct kernel_call){.inputs = {x}, .outputs = {out, indices}});
            ck_assert(isnan(out[0]));
            ck_assert_int_eq(indices[0], at);

            desc = desc_of(OP_LINEAR);
            desc.attrs.linear.activation = ACTIVATION_RELU;
            desc.input_present[2] = false;
            desc.inputs[0] = desc.outputs[0] = type_of(DTYPE_F32, 2, 20, 2, 0, 0);
            desc.inputs[1] = type_of(DTYPE_F32, 2, 2, 2, 0, 0);
            run_once(library, &desc, (struct kernel_call){.inputs = {x, weight}, .outputs = {out}});
            ck_assert(isnan(out[at]));

            desc = desc_of(OP_CONV2D);
            desc.attrs.conv.activation = ACTIVATION_RELU;
            desc.input_present[2] = false;
            desc.inputs[0] = desc.outputs[0] = image_of(1, 2, 4, 5, LAYOUT_CHANNELS_LAST);
            desc.inputs[1] = type_of(DTYPE_F32, 4, 2, 2, 1, 1);
            for (int i = 0; i < 2; i++) desc.attrs.conv.stride[i] = desc.attrs.conv.dilation[i] = 1;
            desc.attrs.conv.groups = 1;
            run_once(library, &desc, (struct kernel_call){.inputs = {x, weight}, .outputs = {out}});
            ck_assert(isnan(out[at]));

            desc = desc_of(OP_LOG_SOFTMAX);
            desc.inputs[0] = desc.outputs[0] = type_of(DTYPE_F32, 2, 4, 10, 0, 0);
            run_once(library, &desc, (struct kernel_call){.inputs = {x}, .outputs = {out}});
            ck_assert(isnan(out[0]) && isnan(out[9]) && !isnan(out[10]));
        }
}

static void fill_in(struct random *random, enum dtype dtype, float *values, int64_t count)
{
    fill_random(random, values, count);
    for (int64_t i = 0; dtype == DTYPE_BF16 && i < count; i++) {
        uint16_t half = rounded_to_bf16(values[i]);
        memcpy((char *)values + 2 * i, &half, sizeof half);
    }
}

/* With rows_apart, a row has the bits that it has alone, beside any number of others, on any number
 * of threads, in f32 and in bf16. */
LOOP_TEST(rows_apart, 0, 2)
{
    enum { ROWS = ON_CUDA ? 19 : 110, MOST = 304, WIDE = 4200 };
    const int tries = !ON_CUDA ? 40 : RACES ? 2 : 8;
    static const int64_t sizes[] = {1, 15, 16, 63, 128, 257, MOST};
    static float x[ROWS * MOST], weight[MOST * MOST], bias[WIDE], together[ROWS * WIDE],
        alone[WIDE];
    const enum dtype dtype = _i == 0 ? DTYPE_F32 : DTYPE_BF16;
    const size_t size = dtype_size(dtype);
    struct random random = {1};
    fill_in(&random, dtype, x, ROWS * MOST);
    fill_in(&random, dtype, weight, MOST * MOST);
    fill_in(&random, dtype, bias, WIDE);
    for (int run = 0; run < tries; run++) {
        struct op_desc desc = desc_of(OP_LINEAR);
        int64_t in = random_of(&random, sizes, 7), out = random_of(&random, sizes, 7);
        if (!ON_CUDA && run % 4 == 0) {
            in = 15;
            out = random_between(&random, MOST, WIDE);
        }
        int64_t rows = random_between(&random, run % 3 == 0 ? 1 + ROWS / 2 : 1,
                                      random_bool(&random) && run % 3 > 0 ? 8 : ROWS);
        bool transposed = desc.attrs.linear.transposed = random_bool(&random);
        desc.attrs.linear.rows_apart = true;
        desc.attrs.linear.activation = (enum op_activation)random_between(&random, 0, 2);
        desc.input_present[2] = random_bool(&random);
        desc.inputs[0] = type_of(dtype, 2, rows, in, 0, 0);
        desc.inputs[1] = type_of(dtype, 2, transposed ? in : out, transposed ? out : in, 0, 0);
        desc.inputs[2] = type_of(dtype, 1, out, 0, 0, 0);
        desc.outputs[0] = type_of(dtype, 2, rows, out, 0, 0);
        struct kernel_call call = {.inputs = {x, weight, bias}, .outputs = {together}};
        run_once(KERNELS_CPU, &desc, call);
        desc.inputs[0].dims[0] = desc.outputs[0].dims[0] = 1;
        for (int64_t row = 0; row < rows; row++) {
            call.inputs[0] = (char *)x + (size_t)(row * in) * size;
            call.outputs[0] = alone;
            run_once(KERNELS_CPU, &desc, call);
            ck_assert_mem_eq(alone, (char *)together + (size_t)(row * out) * size,
                             (size_t)out * size);
        }
    }
}

/* A weight of bf16 is not copied to f32 whole, even if the processor has no products of bf16. */
TEST(rows_of_bf16_are_read_in_place)
{
    struct op_desc desc = desc_of(OP_LINEAR);
    struct kernel *kernel;
    if (ON_CUDA) return;
    desc.attrs.linear.rows_apart = true;
    desc.input_present[2] = false;
    desc.inputs[0] = type_of(DTYPE_BF16, 2, 1, 768, 0, 0);
    desc.inputs[1] = type_of(DTYPE_BF16, 2, 3072, 768, 0, 0);
    desc.outputs[0] = type_of(DTYPE_BF16, 2, 1, 3072, 0, 0);
    ck_assert_ptr_null(kernel_new(KERNELS_CPU, &desc, &kernel));
    ck_assert_uint_lt(kernel_workspace_bytes(kernel), 768 * 3072 / 8);
    kernel_free(kernel);
}

/* A signal must not use the stack of a thread that runs kernels; see stack_for_signals. */
static void *run_and_look(void *argument)
{
    stack_t *stack = argument;
    float x[1] = {-1}, y[1];
    struct op_desc desc = desc_of(OP_RELU);
    desc.inputs[0] = desc.outputs[0] = type_of(DTYPE_F32, 1, 1, 0, 0, 0);
    run_once(KERNELS_CPU, &desc, (struct kernel_call){.inputs = {x}, .outputs = {y}});
    ck_assert_int_eq(sigaltstack(NULL, stack), 0);
    return NULL;
}

TEST(signals_have_a_stack)
{
    stack_t stack = {.ss_flags = SS_DISABLE};
    pthread_t thread;
    if (ON_CUDA) return;
    ck_assert_int_eq(pthread_create(&thread, NULL, run_and_look, &stack), 0);
    pthread_join(thread, NULL);
    ck_assert_int_eq(stack.ss_flags & SS_DISABLE, 0);
}

/* Products that would read a matrix of contiguous rows in place are those of the library's gemm,
 * which alone needs no scratch memory of ours; see program_matmul. */
TEST(products_in_panels)
{
    static const struct {
        enum op_kind kind;
        bool transposed;
    } cases[] = {{OP_LINEAR, true},
                 {OP_LINEAR_BACKWARD_DATA, false},
                 {OP_LINEAR_BACKWARD_WEIGHTS, false},
                 {OP_LINEAR_BACKWARD_WEIGHTS, true}};
    const int64_t rows = 512, in = 3072, out = 3072;
    if (ON_CUDA) return; /* where it says nothing */
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct op_desc desc = desc_of(cases[i].kind);
        struct kernel *kernel = NULL;
        desc.attrs.linear.transposed = cases[i].transposed;
        desc.inputs[0] = desc.inputs[1] = desc.outputs[0] = type_of(DTYPE_F32, 2, rows, in, 0, 0);
        if (cases[i].kind == OP_LINEAR_BACKWARD_WEIGHTS)
            desc.outputs[0] = type_of(DTYPE_F32, 2, out, in, 0, 0);
        else desc.inputs[1] = type_of(DTYPE_F32, 2, out, in, 0, 0);
        desc.inputs[2] = desc.outputs[1] = type_of(DTYPE_F32, 1, out, 0, 0, 0);
        ck_assert_ptr_null(kernel_new(KERNELS_CPU, &desc, &kernel));
        ck_assert_uint_eq(kernel_workspace_bytes(kernel), 0);
        kernel_free(kernel);
    }
}

/* Ties go to the first; in windows of negative values the padding must not win. */
TEST(pool_ties_and_negatives)
{
    float x[16], y[9];
    uint8_t indices[9];
    for (int library = KERNELS_REFERENCE; library <= KERNELS_CPU; library++) {
        struct op_desc desc = desc_of(OP_MAX_POOL2D);
        desc.inputs[0] = image_of(1, 1, 4, 4, LAYOUT_PLAIN);
        desc.outputs[0] = image_of(1, 1, 3, 3, LAYOUT_PLAIN);
        desc.outputs[1] = type_of(DTYPE_U8, 4, 1, 1, 3, 3);
        for (int i = 0; i < 2; i++) {
            desc.attrs.pool.kernel[i] = desc.attrs.pool.stride[i] = 2;
            desc.attrs.pool.padding[i] = 1;
        }
        for (int i = 0; i < 16; i++) x[i] = -3;
        run_once(library, &desc, (struct kernel_call){.inputs = {x}, .outputs = {y, indices}});
        for (int i = 0; i < 9; i++) ck_assert_float_eq(y[i], -3);
        /* The first position inside the image: of the corner window, the last of four. */
        static const uint8_t first[9] = {3, 2, 2, 1, 0, 0, 1, 0, 0};
        for (int i = 0; i < 9; i++) ck_assert_int_eq(indices[i], first[i]);
    }
}

/* Rows without a target count nowhere; scores so large that a careless softmax overflows. */
TEST(losses)
{
    float x[6] = {1000, 0, -1000, 0, 0, 0}, y[6], loss = 0, dx[6], correct = 0;
    int32_t target[2] = {0, -1}, none[2] = {-1, -1};
    for (int library = KERNELS_REFERENCE; library <= KERNELS_CPU; library++) {
        struct op_desc desc = desc_of(OP_CROSS_ENTROPY);
        desc.attrs.loss.reduction = REDUCTION_MEAN;
        desc.inputs[0] = desc.outputs[1] = type_of(DTYPE_F32, 2, 2, 3, 0, 0);
        desc.inputs[1] = type_of(DTYPE_I32, 1, 2, 0, 0, 0);
        desc.outputs[0] = type_of(DTYPE_F32, 1, 1, 0, 0, 0);
        struct kernel_call call = {.inputs = {x, target}, .outputs = {&loss, y}};
        run_once(library, &desc, call);
        ck_assert_float_eq(loss, 0);
        ck_assert_float_eq(y[1], -1000);
        ck_assert_float_eq_tol(y[3], -1.0986123f, 1e-6f);
        target[0] = 2;
        run_once(library, &desc, call);
        ck_assert_float_eq(loss, 1000); /* one of two rows counts */
        desc.attrs.loss.reduction = REDUCTION_SUM;
        desc.accumulate[0] = true;
        run_once(library, &desc, call);
        ck_assert_float_eq(loss, 3000);
        desc.accumulate[0] = false;
        desc.attrs.loss.reduction = REDUCTION_MEAN;
        call.inputs[1] = none;
        run_once(library, &desc, call);
        ck_assert_float_eq(loss, 0);

        struct op_desc backward = desc_of(OP_CROSS_ENTROPY_BACKWARD);
        backward.attrs.loss.reduction = REDUCTION_MEAN;
        backward.inputs[0] = backward.outputs[0] = desc.inputs[0];
        backward.inputs[1] = desc.inputs[1];
        run_once(library, &backward, (struct kernel_call){.inputs = {y, target}, .outputs = {dx}});
        static const float expected[6] = {0.5f, 0, -0.5f, 0, 0, 0};
        for (int i = 0; i < 6; i++) ck_assert_float_eq(dx[i], expected[i]);

        struct op_desc count = desc_of(OP_COUNT_CORRECT);
        count.inputs[0] = desc.inputs[0];
        count.inputs[1] = desc.inputs[1];
        count.outputs[0] = desc.outputs[0];
        static const int32_t targets[][2] = {{0, 0}, {0, 1}, {1, 2}, {-1, -1}, {-1, 0}};
        static const float counts[] = {2, 1, 0, 0, 1};
        for (int i = 0; i < 5; i++) {
            run_once(library, &count,
                     (struct kernel_call){.inputs = {x, targets[i]}, .outputs = {&correct}});
            ck_assert_float_eq(correct, counts[i]);
        }
        target[0] = 0;
    }
}

TEST(refusals, .unless = ON_CUDA)
{
    struct kernel *kernel = NULL;
    for (int library = KERNELS_REFERENCE; library <= KERNELS_CPU; library++) {
        struct op_desc desc = desc_of(OP_RELU);
        desc.inputs[0] = desc.outputs[0] = type_of(DTYPE_F32, 2, 3, 4, 0, 0);
        desc.outputs[0].dims[1] = 5;
        status_t status = kernel_new(library, &desc, &kernel);
        ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
        ck_assert_ptr_nonnull(strstr(status_message(status), "(3, 4)"));
        status_free(status);
        desc.outputs[0] = desc.inputs[0];
        desc.inputs[0].layout = LAYOUT_CHANNELS_LAST; /* of two dimensions */
        status = kernel_new(library, &desc, &kernel);
        ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
        status_free(status);
        ck_assert_ptr_null(kernel);
    }
    kernel_free(NULL);
}
