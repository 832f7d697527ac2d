/*
 * Gradients of the reference library against central differences of its own forward pass: for a
 * random weighting r of the outputs, d(sum(r * y)) / dx must equal the backward op's result for r.
 */
#include "kernel_fixture.h"
#include "tests/testing.h"

enum { MOST = 4096 };

static struct random rng;

/* A forward op whose operand `varied` is differentiated. */
struct forward {
    struct op_desc desc;
    int varied;
    float inputs[OP_MAX_INPUTS][MOST];
    int32_t target[MOST];
    uint8_t indices[MOST];
    float weighting[MOST]; /* r */
    uint64_t seed;
};

static double weighted_output(struct forward *f)
{
    static float y[MOST], more[MOST];
    struct kernel_call call = {.outputs = {y, more}, .seed = f->seed, .step = 3, .rank = 1};
    for (int i = 0; i < OP_MAX_INPUTS; i++) call.inputs[i] = f->inputs[i];
    if (f->desc.input_count > 1 && f->desc.inputs[1].dtype == DTYPE_I32) call.inputs[1] = f->target;
    if (f->desc.kind == OP_MAX_POOL2D) call.outputs[1] = f->indices;
    run_once(KERNELS_REFERENCE, &f->desc, call);
    double sum = 0;
    int64_t count = tensor_element_count(&f->desc.outputs[0]);
    for (int64_t i = 0; i < count; i++) sum += (double)f->weighting[i] * y[i];
    return sum;
}

static void check_gradient(struct forward *f, const float *gradient, float step, double tolerance)
{
    int64_t count = tensor_element_count(&f->desc.inputs[f->varied]);
    double largest = 1;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(gradient[i]));
    for (int64_t i = 0; i < count; i++) {
        float *value = &f->inputs[f->varied][i], kept = *value;
        *value = kept + step;
        double above = weighted_output(f), width = *value;
        *value = kept - step;
        width -= *value;
        double slope = (above - weighted_output(f)) / width;
        *value = kept;
        ck_assert_msg(fabs(slope - gradient[i]) <= tolerance * largest,
                      "%s: the gradient of %s at %lld is %g, the slope %g",
                      op_info_get(f->desc.kind)->name,
                      op_info_get(f->desc.kind)->inputs[f->varied].name, (long long)i, gradient[i],
                      slope);
    }
}

static void fill_all(struct forward *f)
{
    for (int i = 0; i < OP_MAX_INPUTS; i++) fill_random(&rng, f->inputs[i], MOST);
    fill_random(&rng, f->weighting, MOST);
}

/* Layers: the three gradients of a convolution or a linear layer. */
static void check_layer(struct forward *f, enum op_kind data, enum op_kind weights)
{
    static float dx[MOST], dweight[MOST], dbias[MOST];
    struct op_desc *desc = &f->desc;
    fill_all(f);
    struct op_desc backward = desc_of(data);
    backward.attrs = desc->attrs;
    backward.inputs[0] = desc->outputs[0];
    backward.inputs[1] = desc->inputs[1];
    backward.outputs[0] = desc->inputs[0];
    run_once(KERNELS_REFERENCE, &backward,
             (struct kernel_call){.inputs = {f->weighting, f->inputs[1]}, .outputs = {dx}});
    backward = desc_of(weights);
    backward.attrs = desc->attrs;
    backward.inputs[0] = desc->inputs[0];
    backward.inputs[1] = desc->outputs[0];
    backward.outputs[0] = desc->inputs[1];
    backward.outputs[1] = desc->inputs[2];
    run_once(KERNELS_REFERENCE, &backward,
             (struct kernel_call){.inputs = {f->inputs[0], f->weighting},
                                  .outputs = {dweight, dbias}});
    /* Linear in each operand: a large step has no error except rounding. */
    const float *gradients[] = {dx, dweight, dbias};
    for (f->varied = 0; f->varied < 3; f->varied++)
        check_gradient(f, gradients[f->varied], 0.5f, 2e-5);
}

TESTS_BELOW(.timeout = 120);

LOOP_TEST(conv, 0, 5)
{
    static const int64_t cases[][10] = {
        /* groups, in, out, height, width, kernel, stride, padding, dilation, layout */
        {1, 1, 2, 6, 5, 3, 1, 0, 1, 0}, {1, 3, 4, 5, 7, 2, 2, 1, 1, 1},
        {2, 4, 6, 6, 4, 3, 1, 1, 1, 1}, {3, 3, 3, 7, 7, 3, 3, 2, 2, 0},
        {1, 2, 3, 4, 4, 1, 1, 0, 1, 1},
    };
    rng.state = (uint64_t)_i;
    static struct forward f;
    const int64_t *c = cases[_i];
    f.desc = desc_of(OP_CONV2D);
    int64_t output[2];
    for (int i = 0; i < 2; i++) {
        f.desc.attrs.conv.stride[i] = c[6];
        f.desc.attrs.conv.padding[i] = c[7];
        f.desc.attrs.conv.dilation[i] = c[8];
        output[i] = op_window_output(c[3 + i], c[5], c[6], c[7], c[8]);
    }
    f.desc.attrs.conv.groups = c[0];
    f.desc.inputs[0] = image_of(2, c[1], c[3], c[4], (enum layout)c[9]);
    f.desc.inputs[1] = type_of(DTYPE_F32, 4, c[2], c[1] / c[0], c[5], c[5]);
    f.desc.inputs[2] = type_of(DTYPE_F32, 1, c[2], 0, 0, 0);
    f.desc.outputs[0] = image_of(2, c[2], output[0], output[1], (enum layout)c[9]);
    check_layer(&f, OP_CONV2D_BACKWARD_DATA, OP_CONV2D_BACKWARD_WEIGHTS);
}

LOOP_TEST(linear, 0, 2)
{
    static struct forward f;
    f.desc = desc_of(OP_LINEAR);
    f.desc.attrs.linear.transposed = _i == 1;
    f.desc.inputs[0] = type_of(DTYPE_F32, 3, 2, 3, 7, 0);
    f.desc.inputs[1] = type_of(DTYPE_F32, 2, _i == 1 ? 7 : 5, _i == 1 ? 5 : 7, 0, 0);
    f.desc.inputs[2] = type_of(DTYPE_F32, 1, 5, 0, 0, 0);
    f.desc.outputs[0] = type_of(DTYPE_F32, 3, 2, 3, 5, 0);
    check_layer(&f, OP_LINEAR_BACKWARD_DATA, OP_LINEAR_BACKWARD_WEIGHTS);
}

/* A layer and the next one's gradient, with GELU in between, equal the separate ops. */
TEST(linear_gelu)
{
    static float y[MOST], before[MOST], product[MOST], single[MOST];
    struct op_desc layer = desc_of(OP_LINEAR), gelu = desc_of(OP_GELU);
    struct tensor_type wide = type_of(DTYPE_F32, 3, 2, 3, 16, 0);
    layer.inputs[0] = type_of(DTYPE_F32, 3, 2, 3, 7, 0);
    layer.inputs[1] = type_of(DTYPE_F32, 2, 16, 7, 0, 0);
    layer.inputs[2] = type_of(DTYPE_F32, 1, 16, 0, 0, 0);
    layer.outputs[0] = gelu.inputs[0] = gelu.outputs[0] = wide;
    gelu.attrs.gelu.tanh = true;
    static struct forward f;
    fill_all(&f);
    struct kernel_call call = {.inputs = {f.inputs[0], f.inputs[1], f.inputs[2]},
                               .outputs = {y, before}};
    struct op_desc fused = with_gelu(layer);
    run_once(KERNELS_REFERENCE, &fused, call);
    call.outputs[0] = product;
    run_once(KERNELS_REFERENCE, &layer, call);
    run_once(KERNELS_REFERENCE, &gelu,
             (struct kernel_call){.inputs = {product}, .outputs = {single}});
    for (int i = 0; i < 96; i++) ck_assert_float_eq(before[i], product[i]);
    for (int i = 0; i < 96; i++) ck_assert_float_eq_tol(y[i], single[i], 1e-6);

    struct op_desc data = desc_of(OP_LINEAR_BACKWARD_DATA), slope = desc_of(OP_GELU_BACKWARD);
    data.inputs[0] = type_of(DTYPE_F32, 3, 2, 3, 7, 0);
    data.inputs[1] = type_of(DTYPE_F32, 2, 7, 16, 0, 0);
    data.outputs[0] = slope.inputs[0] = slope.inputs[1] = slope.outputs[0] = wide;
    slope.attrs.gelu.tanh = true;
    call = (struct kernel_call){.inputs = {f.weighting, f.inputs[3], before}, .outputs = {y}};
    fused = with_gelu(data);
    run_once(KERNELS_REFERENCE, &fused, call);
    call.outputs[0] = product;
    run_once(KERNELS_REFERENCE, &data, call);
    run_once(KERNELS_REFERENCE, &slope,
             (struct kernel_call){.inputs = {product, before}, .outputs = {single}});
    for (int i = 0; i < 96; i++) ck_assert_float_eq_tol(y[i], single[i], 1e-5);
}

TEST(relu)
{
    static struct forward f;
    static float y[MOST], dx[MOST];
    f.desc = desc_of(OP_RELU);
    f.desc.inputs[0] = f.desc.outputs[0] = image_of(2, 3, 4, 5, LAYOUT_CHANNELS_LAST);
    fill_all(&f);
    for (int i = 0; i < MOST; i++) /* keeps away from the kink */
        f.inputs[0][i] += f.inputs[0][i] < 0 ? -0.1f : 0.1f;
    run_once(KERNELS_REFERENCE, &f.desc,
             (struct kernel_call){.inputs = {f.inputs[0]}, .outputs = {y}});
    struct op_desc backward = desc_of(OP_RELU_BACKWARD);
    backward.inputs[0] = backward.inputs[1] = backward.outputs[0] = f.desc.inputs[0];
    run_once(KERNELS_REFERENCE, &backward,
             (struct kernel_call){.inputs = {f.weighting, y}, .outputs = {dx}});
    check_gradient(&f, dx, 0.05f, 1e-5);
}

LOOP_TEST(pool, 0, 4)
{
    static const int64_t cases[][4] = {{2, 2, 0, 0}, {3, 2, 1, 1}, {3, 1, 1, 0}, {2, 3, 1, 1}};
    static struct forward f;
    static float y[MOST], dx[MOST];
    const int64_t *c = cases[_i];
    f.desc = desc_of(OP_MAX_POOL2D);
    int64_t output[2];
    for (int i = 0; i < 2; i++) {
        f.desc.attrs.pool.kernel[i] = c[0];
        f.desc.attrs.pool.stride[i] = c[1];
        f.desc.attrs.pool.padding[i] = c[2];
        output[i] = op_window_output(6 + i, c[0], c[1], c[2], 1);
    }
    f.desc.inputs[0] = image_of(2, 3, 6, 7, (enum layout)c[3]);
    f.desc.outputs[0] = image_of(2, 3, output[0], output[1], (enum layout)c[3]);
    f.desc.outputs[1] = f.desc.outputs[0];
    f.desc.outputs[1].dtype = DTYPE_U8;
    fill_all(&f);
    int64_t count = tensor_element_count(&f.desc.inputs[0]);
    /* All different, by more than a step. */
    for (int64_t i = 0; i < count; i++) f.inputs[0][i] = (float)(i * 101 % count) * 0.125f - 9;
    run_once(KERNELS_REFERENCE, &f.desc,
             (struct kernel_call){.inputs = {f.inputs[0]}, .outputs = {y, f.indices}});
    struct op_desc backward = desc_of(OP_MAX_POOL2D_BACKWARD);
    backward.attrs = f.desc.attrs;
    backward.inputs[0] = f.desc.outputs[0];
    backward.inputs[1] = f.desc.outputs[1];
    backward.outputs[0] = f.desc.inputs[0];
    run_once(KERNELS_REFERENCE, &backward,
             (struct kernel_call){.inputs = {f.weighting, f.indices}, .outputs = {dx}});
    check_gradient(&f, dx, 0.03125f, 1e-5);
}

/* Dropout, reshape and add are linear, and each has its own kind of gradient, or none at all. */
TEST(dropout)
{
    static struct forward f;
    static float dx[MOST];
    f.desc = desc_of(OP_DROPOUT);
    f.desc.attrs.dropout.p = 0.4;
    f.desc.attrs.dropout.stream = 2;
    f.desc.inputs[0] = f.desc.outputs[0] = image_of(2, 3, 4, 5, LAYOUT_CHANNELS_LAST);
    fill_all(&f);
    f.seed = 99;
    struct op_desc backward = f.desc;
    backward.kind = OP_DROPOUT_BACKWARD;
    run_once(KERNELS_REFERENCE, &backward,
             (struct kernel_call){
                 .inputs = {f.weighting}, .outputs = {dx}, .seed = 99, .step = 3, .rank = 1});
    check_gradient(&f, dx, 0.5f, 1e-5);
}

TEST(log_softmax)
{
    static struct forward f;
    static float y[MOST], dx[MOST];
    f.desc = desc_of(OP_LOG_SOFTMAX);
    f.desc.inputs[0] = f.desc.outputs[0] = type_of(DTYPE_F32, 2, 5, 7, 0, 0);
    fill_all(&f);
    run_once(KERNELS_REFERENCE, &f.desc,
             (struct kernel_call){.inputs = {f.inputs[0]}, .outputs = {y}});
    struct op_desc backward = desc_of(OP_LOG_SOFTMAX_BACKWARD);
    backward.inputs[0] = backward.inputs[1] = backward.outputs[0] = f.desc.inputs[0];
    run_once(KERNELS_REFERENCE, &backward,
             (struct kernel_call){.inputs = {f.weighting, y}, .outputs = {dx}});
    check_gradient(&f, dx, 0.01f, 2e-4);
}

/* Both losses, summed and averaged, with rows that do not count. */
LOOP_TEST(losses, 0, 4)
{
    static struct forward f;
    static float y[MOST], dx[MOST], unused;
    bool fused = _i % 2;
    enum op_reduction reduction = _i / 2 ? REDUCTION_MEAN : REDUCTION_SUM;
    struct tensor_type scores = type_of(DTYPE_F32, 2, 6, 5, 0, 0);
    struct tensor_type target = type_of(DTYPE_I32, 1, 6, 0, 0, 0);
    f.desc = desc_of(fused ? OP_CROSS_ENTROPY : OP_NLL_LOSS);
    f.desc.attrs.loss.reduction = reduction;
    f.desc.inputs[0] = f.desc.outputs[1] = scores;
    f.desc.inputs[1] = target;
    f.desc.outputs[0] = type_of(DTYPE_F32, 1, 1, 0, 0, 0);
    fill_all(&f);
    f.weighting[0] = 1;
    for (int i = 0; i < 6; i++) f.target[i] = i == 2 ? -1 : i % 5;
    if (fused) {
        run_once(KERNELS_REFERENCE, &f.desc,
                 (struct kernel_call){.inputs = {f.inputs[0], f.target}, .outputs = {&unused, y}});
        struct op_desc backward = desc_of(OP_CROSS_ENTROPY_BACKWARD);
        backward.attrs = f.desc.attrs;
        backward.inputs[0] = backward.outputs[0] = scores;
        backward.inputs[1] = target;
        run_once(KERNELS_REFERENCE, &backward,
                 (struct kernel_call){.inputs = {y, f.target}, .outputs = {dx}});
    } else {
        struct op_desc backward = desc_of(OP_NLL_LOSS_BACKWARD);
        backward.attrs = f.desc.attrs;
        backward.inputs[0] = target;
        backward.outputs[0] = scores;
        run_once(KERNELS_REFERENCE, &backward,
                 (struct kernel_call){.inputs = {f.target}, .outputs = {dx}});
    }
    check_gradient(&f, dx, 0.01f, 2e-4);
}
