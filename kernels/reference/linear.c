/* Reference linear layers: x (rows, in), weight (out, in) or (in, out), y (rows, out); and products of
 * two values. */
#include "kernels/reference/reference.h"

/* A weight's sizes, and the distances between its elements. */
struct weight {
    int64_t out, in, out_stride, in_stride;
};

static struct weight weight_of(const struct op_desc *desc, const struct tensor_type *type)
{
    int64_t rows = type->dims[0], columns = type->dims[1];
    if (desc->attrs.linear.transposed)
        return (struct weight){.out = columns, .in = rows, .out_stride = 1, .in_stride = columns};
    return (struct weight){.out = rows, .in = columns, .out_stride = columns, .in_stride = 1};
}

static int64_t rows_of(const struct tensor_type *type)
{
    return tensor_element_count(type) / type->dims[type->dim_count - 1];
}

static double activate(const struct op_desc *desc, double x)
{
    switch (desc->attrs.linear.activation) {
    case ACTIVATION_NONE: break;
    case ACTIVATION_RELU: return x <= 0 ? 0 : x;
    case ACTIVATION_GELU_TANH: return reference_gelu_value(x, true);
    }
    return x;
}

status_t reference_linear(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    int64_t rows = rows_of(&desc->inputs[0]);
    struct weight w = weight_of(desc, &desc->inputs[1]);
    int64_t out = w.out, in = w.in;
    const float *x = call->inputs[0], *weight = call->inputs[1], *bias = call->inputs[2];
    float *y = call->outputs[0], *preactivation = call->outputs[1];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < out; o++) {
            double sum = desc->input_present[2] ? bias[o] : 0;
            for (int64_t i = 0; i < in; i++)
                sum += (double)x[r * in + i] * weight[o * w.out_stride + i * w.in_stride];
            if (desc->output_present[1]) reference_put(kernel, 1, &preactivation[r * out + o], sum);
            reference_put(kernel, 0, &y[r * out + o], activate(desc, sum));
        }
    return NULL;
}

status_t reference_linear_backward_data(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    int64_t rows = rows_of(&desc->inputs[0]);
    struct weight w = weight_of(desc, &desc->inputs[1]);
    int64_t out = w.out, in = w.in;
    const float *dy = call->inputs[0], *weight = call->inputs[1], *before = call->inputs[2];
    float *dx = call->outputs[0];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < in; i++) {
            double sum = 0;
            for (int64_t o = 0; o < out; o++)
                sum += (double)dy[r * out + o] * weight[o * w.out_stride + i * w.in_stride];
            if (desc->input_present[2]) sum *= reference_gelu_slope(before[r * in + i], true);
            reference_put(kernel, 0, &dx[r * in + i], sum);
        }
    return NULL;
}

status_t reference_linear_backward_weights(const struct kernel *kernel,
                                           const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    int64_t rows = rows_of(&desc->inputs[0]);
    struct weight w = weight_of(desc, &desc->outputs[0]);
    int64_t out = w.out, in = w.in;
    const float *x = call->inputs[0], *dy = call->inputs[1];
    float *dweight = call->outputs[0], *dbias = call->outputs[1];
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++) {
            double sum = 0;
            for (int64_t r = 0; r < rows; r++) sum += (double)dy[r * out + o] * x[r * in + i];
            reference_put(kernel, 0, &dweight[o * w.out_stride + i * w.in_stride], sum);
        }
    if (!desc->output_present[1]) return NULL;
    for (int64_t o = 0; o < out; o++) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++) sum += dy[r * out + o];
        reference_put(kernel, 1, &dbias[o], sum);
    }
    return NULL;
}

/* One after the other; an operand of two dimensions is in each of them. Tensors in plain order. */
status_t reference_matmul(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    const struct tensor_type *a_type = &desc->inputs[0], *y_type = &desc->outputs[0];
    bool first = desc->attrs.matmul.first, second = desc->attrs.matmul.second;
    int64_t m = y_type->dims[y_type->dim_count - 2], n = y_type->dims[y_type->dim_count - 1];
    int64_t k = a_type->dims[a_type->dim_count - (first ? 2 : 1)];
    int64_t count = tensor_element_count(y_type) / (m * n);
    for (int64_t at = 0; at < count * m * n; at++) {
        int64_t matrix = at / (m * n), row = at / n % m, column = at % n;
        const float *a = call->inputs[0], *b = call->inputs[1];
        if (a_type->dim_count > 2) a += matrix * m * k;
        if (desc->inputs[1].dim_count > 2) b += matrix * k * n;
        double sum = 0;
        for (int64_t i = 0; i < k; i++)
            sum += (double)a[first ? i * m + row : row * k + i] *
                   b[second ? column * k + i : i * n + column];
        reference_put(kernel, 0, (float *)call->outputs[0] + at, sum);
    }
    return NULL;
}
