/*
 * Gradients of the reference library's losses of elements and ops on images against central
 * differences of its own forward pass: for a random weighting r of the output, d(sum(r * y)) / dx
 * must equal the backward op's result for r. A loss is weighted with 1.
 */
#include "kernel_fixture.h"
#include "tests/testing.h"

enum { MOST = 2048 };

static struct random rng;

static struct op_desc desc; /* forward */
static float inputs[OP_MAX_INPUTS][MOST], outputs[OP_MAX_OUTPUTS][MOST], weighting[MOST];
static int32_t targets[MOST];
static uint8_t mask[MOST];

static const void *input_memory(int i)
{
    if (desc.inputs[i].dtype == DTYPE_U8) return mask;
    return desc.inputs[i].dtype == DTYPE_I32 ? (const void *)targets : (const void *)inputs[i];
}

static double weighted_output(void)
{
    struct kernel_call call = {0};
    for (int i = 0; i < OP_MAX_INPUTS; i++) call.inputs[i] = input_memory(i);
    for (int i = 0; i < OP_MAX_OUTPUTS; i++) call.outputs[i] = outputs[i];
    run_once(KERNELS_REFERENCE, &desc, call);
    double sum = 0;
    int64_t count = tensor_element_count(&desc.outputs[0]);
    for (int64_t i = 0; i < count; i++) sum += (double)weighting[i] * outputs[0][i];
    return sum;
}

static void check_gradient(int varied, const float *gradient, const char *what)
{
    int64_t count = tensor_element_count(&desc.inputs[varied]);
    double largest = 1;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs((double)gradient[i]));
    for (int64_t i = 0; i < count; i++) {
        float *value = &inputs[varied][i], kept = *value;
        *value = kept + 0.01f;
        double above = weighted_output(), width = *value;
        *value = kept - 0.01f;
        width -= *value;
        double slope = (above - weighted_output()) / width;
        *value = kept;
        ck_assert_msg(fabs(slope - gradient[i]) <= 3e-4 * largest,
                      "%s, %s: the gradient of %s at %lld is %g, the slope %g",
                      op_info_get(desc.kind)->name, what,
                      op_info_get(desc.kind)->inputs[varied].name, (long long)i,
                      (double)gradient[i], slope);
    }
    weighted_output(); /* the outputs of the point itself */
}

static void start(enum op_kind kind)
{
    desc = desc_of(kind);
    for (int i = 0; i < OP_MAX_INPUTS; i++) fill_random(&rng, inputs[i], MOST);
    fill_random(&rng, weighting, MOST);
}

TESTS_BELOW(.timeout = 120);

LOOP_TEST(element_losses, DIFFERENCE_SQUARED, DIFFERENCE_DIVERGENCE + 1)
{
    static float gradient[MOST];
    start(OP_ELEMENT_LOSS);
    desc.attrs.element_loss.difference = (enum op_difference)_i;
    desc.attrs.element_loss.reduction = REDUCTION_MEAN;
    desc.attrs.element_loss.delta = 0.4;
    desc.attrs.element_loss.alpha = 0.3;
    desc.attrs.element_loss.weight = 0.5;
    desc.attrs.element_loss.share = 0.75;
    static const float positive[7] = {0, 0.5f, 3, 1, 2, 1, 4};
    if (_i == DIFFERENCE_BINARY_CROSS_ENTROPY)
        desc.attrs.element_loss.positive = (struct op_weights){positive, 7};
    desc.inputs[0] = desc.inputs[1] = type_of(DTYPE_F32, 2, 5, 7, 0, 0);
    desc.inputs[2] = type_of(DTYPE_I32, 1, 5, 0, 0, 0);
    desc.outputs[0] = type_of(DTYPE_F32, 1, 1, 0, 0, 0);
    weighting[0] = 1;
    targets[0] = targets[2] = targets[3] = 1;
    targets[1] = targets[4] = -1;
    for (int i = 0; i < 35 && _i == DIFFERENCE_FOCAL; i++) inputs[1][i] = fabsf(inputs[1][i]);
    inputs[1][16] = NAN;
    /* Far enough from the corners of the losses. */
    for (int i = 0; i < 35; i++)
        for (int k = 0; k < 9; k++) {
            float away = fabsf(inputs[0][i] - inputs[1][i]);
            if (away < 0.02f || fabsf(away - 0.4f) < 0.02f) inputs[0][i] += 0.05f;
        }
    weighted_output();
    struct op_desc backward = desc_of(OP_ELEMENT_LOSS_BACKWARD);
    backward.attrs = desc.attrs;
    memcpy(backward.inputs, desc.inputs, sizeof backward.inputs);
    backward.outputs[0] = desc.inputs[0];
    run_once(KERNELS_REFERENCE, &backward,
             (struct kernel_call){.inputs = {inputs[0], inputs[1], targets},
                                  .outputs = {gradient}});
    check_gradient(0, gradient, "by element");
    for (int i = 7; i < 14; i++) ck_assert_float_eq(gradient[i], 0);
    ck_assert_float_eq(gradient[16], 0);
    backward.attrs.element_loss.computed = true; /* and not given without some */
    run_once(KERNELS_REFERENCE, &backward,
             (struct kernel_call){.inputs = {inputs[0], inputs[1], targets},
                                  .outputs = {gradient}});
    for (int i = 0; i < 35; i++) ck_assert(!isnan(gradient[i]) == (i != 16));
}

LOOP_TEST(smoothed_and_focal_cross_entropy, 0, 4)
{
    static float gradient[MOST];
    static const float weights[6] = {0.5f, 0, 2, 1, 0.25f, 3};
    start(OP_CROSS_ENTROPY);
    desc.attrs.loss.reduction = REDUCTION_MEAN;
    if (_i < 2) desc.attrs.loss.label_smoothing = 0.3;
    else desc.attrs.loss.gamma = 1.5;
    if (_i % 2 == 1) desc.attrs.loss.weights = (struct op_weights){weights, 6};
    desc.inputs[0] = desc.outputs[1] = type_of(DTYPE_F32, 2, 4, 6, 0, 0);
    desc.inputs[1] = type_of(DTYPE_I32, 1, 4, 0, 0, 0);
    desc.outputs[0] = type_of(DTYPE_F32, 1, 1, 0, 0, 0);
    weighting[0] = 1;
    for (int i = 0; i < 4; i++) targets[i] = i == 2 ? -100 : i;
    weighted_output();
    struct op_desc backward = desc_of(OP_CROSS_ENTROPY_BACKWARD);
    backward.attrs = desc.attrs;
    backward.inputs[0] = backward.outputs[0] = desc.inputs[0];
    backward.inputs[1] = desc.inputs[1];
    run_once(KERNELS_REFERENCE, &backward,
             (struct kernel_call){.inputs = {outputs[1], targets}, .outputs = {gradient}});
    check_gradient(0, gradient, "smoothed");
}

/* Runs the backward op for the weighting of the forward op's output. */
static void run_backward(enum op_kind kind, float *gradient)
{
    struct op_desc backward = desc_of(kind);
    weighted_output();
    backward.attrs = desc.attrs;
    backward.inputs[0] = desc.outputs[0];
    backward.outputs[0] = desc.inputs[0];
    backward.inputs[1] = desc.inputs[1];
    backward.input_present[1] = desc.input_present[1];
    run_once(KERNELS_REFERENCE, &backward,
             (struct kernel_call){.inputs = {weighting, mask}, .outputs = {gradient}});
}

LOOP_TEST(moves, 0, 4)
{
    static const enum op_kind kinds[][2] = {{OP_TRANSPOSE, OP_TRANSPOSE},
                                            {OP_SLICE, OP_SLICE_BACKWARD},
                                            {OP_MEAN, OP_MEAN_BACKWARD},
                                            {OP_MEAN, OP_MEAN_BACKWARD}};
    static float gradient[MOST];
    start(kinds[_i][0]);
    desc.inputs[0] = type_of(DTYPE_F32, 4, 2, 5, 3, 7);
    if (_i == 0) {
        desc.attrs.transpose.dims[0] = 1;
        desc.attrs.transpose.dims[1] = 3;
        desc.outputs[0] = type_of(DTYPE_F32, 4, 2, 7, 3, 5);
    } else if (_i == 1) {
        desc.attrs.slice.dim = 1;
        desc.attrs.slice.start = 2;
        desc.outputs[0] = type_of(DTYPE_F32, 4, 2, 3, 3, 7);
    } else {
        desc.attrs.mean.dim = 2;
        desc.attrs.mean.sum = _i == 3;
        desc.input_present[1] = false;
        desc.outputs[0] = type_of(DTYPE_F32, 3, 2, 5, 7, 0);
    }
    run_backward(kinds[_i][1], gradient);
    check_gradient(0, gradient, "moved");
}

/* A mean over the places of a mask, and the last of them; the second window has none. */
LOOP_TEST(masked_means, 0, 2)
{
    static float gradient[MOST];
    start(OP_MEAN);
    desc.inputs[0] = type_of(DTYPE_F32, 3, 3, 5, 4, 0);
    desc.inputs[1] = type_of(DTYPE_U8, 2, 3, 5, 0, 0);
    desc.outputs[0] = type_of(DTYPE_F32, 2, 3, 4, 0, 0);
    desc.attrs.mean.dim = 1;
    desc.attrs.mean.last = _i == 1;
    for (int i = 0; i < 15; i++) mask[i] = (i < 5 && i % 2 == 0 && i < 4) || i > 11;
    run_backward(OP_MEAN_BACKWARD, gradient);
    check_gradient(0, gradient, "masked");
    const float *x = inputs[0], *y = outputs[0];
    float first = _i == 0 ? (x[0] + x[2 * 4]) / 2 : x[2 * 4], none = _i == 0 ? 0 : x[20];
    ck_assert_float_eq_tol(y[0], first, 1e-6F);
    ck_assert_float_eq_tol(y[4], none, 1e-6F);
    memset(mask, 0, sizeof mask);
}

LOOP_TEST(averages, 0, 3)
{
    static float gradient[MOST];
    start(OP_AVG_POOL2D);
    desc.inputs[0] = type_of(DTYPE_F32, 4, 2, 3, 7, 6);
    desc.attrs.avg_pool.adaptive = _i == 0;
    desc.attrs.avg_pool.count_include_pad = _i == 1;
    for (int i = 0; i < 2 && _i > 0; i++) {
        desc.attrs.avg_pool.kernel[i] = 3;
        desc.attrs.avg_pool.stride[i] = 2;
        desc.attrs.avg_pool.padding[i] = 1;
    }
    desc.outputs[0] =
        _i == 0 ? type_of(DTYPE_F32, 4, 2, 3, 4, 5) : type_of(DTYPE_F32, 4, 2, 3, 4, 3);
    run_backward(OP_AVG_POOL2D_BACKWARD, gradient);
    check_gradient(0, gradient, "averaged");
}

/* The second row does not count. */
TEST(batch_norm)
{
    static float gradients[3][MOST];
    start(OP_BATCH_NORM);
    desc.attrs.batch_norm.eps = 0.1;
    desc.inputs[0] = desc.outputs[0] = type_of(DTYPE_F32, 4, 4, 3, 5, 2);
    for (int i = 1; i < 3; i++)
        desc.inputs[i] = desc.outputs[i] = type_of(DTYPE_F32, 1, 3, 0, 0, 0);
    desc.inputs[3] = type_of(DTYPE_I32, 1, 4, 0, 0, 0);
    for (int i = 3; i < 6; i++) desc.output_present[i] = false;
    for (int i = 0; i < 4; i++) targets[i] = i == 1 ? -1 : i;
    for (int i = 30; i < 60; i++) weighting[i] = 0;
    weighted_output();
    struct op_desc backward = desc_of(OP_BATCH_NORM_BACKWARD);
    backward.attrs = desc.attrs;
    backward.inputs[0] = backward.inputs[1] = backward.outputs[0] = desc.inputs[0];
    for (int i = 1; i < 3; i++) backward.outputs[i] = desc.inputs[1];
    for (int i = 2; i < 5; i++) backward.inputs[i] = desc.inputs[1];
    backward.inputs[5] = desc.inputs[3];
    run_once(KERNELS_REFERENCE, &backward,
             (struct kernel_call){.inputs = {weighting, inputs[0], inputs[1], outputs[1],
                                             outputs[2], targets},
                                  .outputs = {gradients[0], gradients[1], gradients[2]}});
    for (int i = 0; i < 3; i++) check_gradient(i, gradients[i], "normalised");
}

TEST(group_norm)
{
    static float gradients[3][MOST];
    start(OP_GROUP_NORM);
    desc.attrs.group_norm.groups = 2;
    desc.attrs.group_norm.eps = 0.1;
    desc.inputs[0] = desc.outputs[0] = type_of(DTYPE_F32, 3, 3, 6, 5, 0);
    desc.inputs[1] = desc.inputs[2] = type_of(DTYPE_F32, 1, 6, 0, 0, 0);
    desc.outputs[1] = desc.outputs[2] = type_of(DTYPE_F32, 2, 3, 2, 0, 0);
    weighted_output();
    struct op_desc backward = desc_of(OP_GROUP_NORM_BACKWARD);
    backward.attrs = desc.attrs;
    backward.inputs[0] = backward.inputs[1] = backward.outputs[0] = desc.inputs[0];
    backward.inputs[2] = backward.outputs[1] = backward.outputs[2] = desc.inputs[1];
    backward.inputs[3] = backward.inputs[4] = desc.outputs[1];
    run_once(KERNELS_REFERENCE, &backward,
             (struct kernel_call){.inputs = {weighting, inputs[0], inputs[1], outputs[1],
                                             outputs[2]},
                                  .outputs = {gradients[0], gradients[1], gradients[2]}});
    for (int i = 0; i < 3; i++) check_gradient(i, gradients[i], "normalised");
}
