/*
 * Times the kernels of one MNIST training step (the tutorial's network), op by op: microseconds of
 * the fastest and the median run, and the resulting rates of arithmetic and memory traffic.
 *
 *     bench/kernels [batch [threads [seconds per op]]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kernels/kernels.h"
#include "time_op.h"

enum { MAX_RUNS = 2000 };

static struct op_timer timer = {.seconds = 0.3, .clock = CLOCK_MONOTONIC};
static double total_best, total_median;

static struct tensor_type type_of(enum layout layout, int dim_count, int64_t a, int64_t b,
                                  int64_t c, int64_t d)
{
    struct tensor_type type = tensor_type_make(DTYPE_F32, dim_count, (int64_t[]){a, b, c, d});
    type.layout = layout;
    return type;
}

static struct tensor_type image(int64_t n, int64_t c, int64_t size)
{
    return type_of(LAYOUT_CHANNELS_LAST, 4, n, c, size, size);
}

static struct tensor_type matrix(int64_t rows, int64_t columns)
{
    return type_of(LAYOUT_PLAIN, 2, rows, columns, 0, 0);
}

static struct tensor_type vector(enum dtype dtype, int64_t n)
{
    return tensor_type_make(dtype, 1, &n);
}

static void report(const char *name, struct op_times times, double flops, double bytes)
{
    total_best += times.best_us;
    total_median += times.median_us;
    printf("%-28s %9.1f %9.1f %8.1f %7.1f %9.0f\n", name, times.best_us, times.median_us,
           flops / times.best_us / 1e3, bytes / times.best_us / 1e3,
           (double)times.workspace_bytes / 1024);
    fflush(stdout);
}

static void measure(const char *name, const struct op_desc *desc)
{
    report(name, time_op(&timer, desc), op_desc_flops(desc), (double)op_desc_bytes(desc));
}

static void measure_conv(const char *name, enum op_kind kind, int64_t n, int64_t in, int64_t out,
                         int64_t size)
{
    struct op_desc desc = whole_op(kind);
    struct tensor_type x = image(n, in, size), y = image(n, out, size - 2);
    struct tensor_type weight = type_of(LAYOUT_PLAIN, 4, out, in, 3, 3);
    for (int i = 0; i < 2; i++) desc.attrs.conv.stride[i] = desc.attrs.conv.dilation[i] = 1;
    desc.attrs.conv.groups = 1;
    if (kind == OP_CONV2D) desc.attrs.conv.activation = ACTIVATION_RELU;
    desc.inputs[0] = kind == OP_CONV2D_BACKWARD_DATA ? y : x;
    desc.inputs[1] = kind == OP_CONV2D_BACKWARD_WEIGHTS ? y : weight;
    desc.inputs[2] = desc.outputs[1] = vector(DTYPE_F32, out);
    desc.outputs[0] = kind == OP_CONV2D ? y : kind == OP_CONV2D_BACKWARD_DATA ? x : weight;
    measure(name, &desc);
}

static void measure_linear(const char *name, enum op_kind kind, int64_t n, int64_t in, int64_t out,
                           enum op_activation activation)
{
    struct op_desc desc = whole_op(kind);
    struct tensor_type x = matrix(n, in), y = matrix(n, out), weight = matrix(out, in);
    desc.attrs.linear.activation = activation;
    desc.inputs[0] = kind == OP_LINEAR_BACKWARD_DATA ? y : x;
    desc.inputs[1] = kind == OP_LINEAR_BACKWARD_WEIGHTS ? y : weight;
    desc.inputs[2] = desc.outputs[1] = vector(DTYPE_F32, out);
    desc.outputs[0] = kind == OP_LINEAR ? y : kind == OP_LINEAR_BACKWARD_DATA ? x : weight;
    measure(name, &desc);
}

static void measure_pool(const char *name, enum op_kind kind, int64_t n)
{
    struct op_desc desc = whole_op(kind);
    struct tensor_type x = image(n, 64, 24), y = image(n, 64, 12), indices = y;
    indices.dtype = DTYPE_U8;
    for (int i = 0; i < 2; i++) desc.attrs.pool.kernel[i] = desc.attrs.pool.stride[i] = 2;
    bool forward = kind == OP_MAX_POOL2D;
    desc.inputs[0] = forward ? x : y;
    desc.inputs[1] = desc.outputs[1] = indices;
    desc.outputs[0] = forward ? y : x;
    measure(name, &desc);
}

static void measure_same(const char *name, enum op_kind kind, struct tensor_type type, double p)
{
    struct op_desc desc = whole_op(kind);
    desc.inputs[0] = desc.inputs[1] = desc.outputs[0] = type;
    if (kind == OP_DROPOUT || kind == OP_DROPOUT_BACKWARD) desc.attrs.dropout.p = p;
    measure(name, &desc);
}

static void measure_reshape(const char *name, struct tensor_type from, struct tensor_type to)
{
    struct op_desc desc = whole_op(OP_RESHAPE);
    desc.inputs[0] = from, desc.outputs[0] = to;
    measure(name, &desc);
}

static void measure_loss(const char *name, enum op_kind kind, int64_t n)
{
    struct op_desc desc = whole_op(kind);
    desc.attrs.loss.reduction = REDUCTION_MEAN;
    desc.inputs[0] = desc.outputs[0] = desc.outputs[1] = matrix(n, 10);
    desc.inputs[1] = vector(DTYPE_I32, n);
    if (kind != OP_CROSS_ENTROPY_BACKWARD) desc.outputs[0] = vector(DTYPE_F32, 1);
    measure(name, &desc);
}

static void measure_adadelta(int64_t n)
{
    struct tensor_type type = vector(DTYPE_F32, n);
    float *param = operand_new(&type, 0), *grad = operand_new(&type, 0);
    float *square = operand_new(&type, 0), *delta = operand_new(&type, 0);
    for (int64_t i = 0; i < n; i++) square[i] = delta[i] = 1e-3f;
    struct adadelta_args args = {
        .lr = 1e-3f, .rho = 0.9f, .eps = 1e-6f, .one_minus_rho = (float)(1 - 0.9), .grad_scale = 1};
    static double times[MAX_RUNS];
    int count = 0;
    int64_t end = clock_monotonic_ns() + (int64_t)(timer.seconds * 1e9);
    do {
        int64_t start = clock_monotonic_ns();
        kernel_adadelta((size_t)n, param, grad, square, delta, &args);
        times[count++] = (double)(clock_monotonic_ns() - start) / 1e3;
    } while (count < MAX_RUNS && clock_monotonic_ns() < end);
    report("adadelta", times_of(times, count), 0, 7.0 * 4 * (double)n);
    free(param);
    free(grad);
    free(square);
    free(delta);
}

int main(int argc, char **argv)
{
    int64_t n = argc > 1 ? atoi(argv[1]) : 64;
    int threads = argc > 2 ? atoi(argv[2]) : 1;
    if (argc > 3) timer.seconds = atof(argv[3]);
    if (n < 1 || threads < 1 || !(timer.seconds > 0)) {
        fprintf(stderr, "usage: %s [batch [threads [seconds per op]]]\n", argv[0]);
        return 2;
    }
    kernels_set_threads(threads);
    printf("%-28s %9s %9s %8s %7s %9s\n", "op", "best us", "median us", "GFLOP/s", "GB/s",
           "workspace");
    measure_conv("conv1", OP_CONV2D, n, 1, 32, 28);
    measure_conv("conv2", OP_CONV2D, n, 32, 64, 26);
    measure_pool("max_pool2d", OP_MAX_POOL2D, n);
    measure_same("dropout1", OP_DROPOUT, image(n, 64, 12), 0.25);
    measure_reshape("flatten", image(n, 64, 12), matrix(n, 9216));
    measure_linear("fc1", OP_LINEAR, n, 9216, 128, ACTIVATION_RELU);
    measure_same("dropout2", OP_DROPOUT, matrix(n, 128), 0.5);
    measure_linear("fc2", OP_LINEAR, n, 128, 10, ACTIVATION_NONE);
    measure_loss("cross_entropy", OP_CROSS_ENTROPY, n);
    measure_loss("count_correct", OP_COUNT_CORRECT, n);
    measure_loss("cross_entropy.backward", OP_CROSS_ENTROPY_BACKWARD, n);
    measure_linear("fc2.backward_weights", OP_LINEAR_BACKWARD_WEIGHTS, n, 128, 10, 0);
    measure_linear("fc2.backward_data", OP_LINEAR_BACKWARD_DATA, n, 128, 10, 0);
    measure_same("dropout2.backward", OP_DROPOUT_BACKWARD, matrix(n, 128), 0.5);
    measure_same("fc1.relu_backward", OP_RELU_BACKWARD, matrix(n, 128), 0);
    measure_linear("fc1.backward_weights", OP_LINEAR_BACKWARD_WEIGHTS, n, 9216, 128, 0);
    measure_linear("fc1.backward_data", OP_LINEAR_BACKWARD_DATA, n, 9216, 128, 0);
    measure_reshape("flatten.backward", matrix(n, 9216), image(n, 64, 12));
    measure_same("dropout1.backward", OP_DROPOUT_BACKWARD, image(n, 64, 12), 0.25);
    measure_same("max_pool2d.relu_backward", OP_RELU_BACKWARD, image(n, 64, 12), 0);
    measure_pool("max_pool2d.backward", OP_MAX_POOL2D_BACKWARD, n);
    measure_conv("conv2.backward_weights", OP_CONV2D_BACKWARD_WEIGHTS, n, 32, 64, 26);
    measure_conv("conv2.backward_data", OP_CONV2D_BACKWARD_DATA, n, 32, 64, 26);
    measure_same("conv1.relu_backward", OP_RELU_BACKWARD, image(n, 32, 26), 0);
    measure_conv("conv1.backward_weights", OP_CONV2D_BACKWARD_WEIGHTS, n, 1, 32, 28);
    measure_adadelta(1199882);
    printf("%-28s %9.1f %9.1f\n", "sum", total_best, total_median);
    return 0;
}
