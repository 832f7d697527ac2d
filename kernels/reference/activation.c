/* Reference activations of transformers, and sums over leading dimensions; tensors in plain
 * order. */
#include <math.h>

#include "kernels/reference/reference.h"

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double silu_slope(double x)
{
    double s = sigmoid(x);
    return s * (1 + x * (1 - s));
}

/* sqrt(2 / pi), and the coefficient of the cube in GELU's approximation by tanh. */
static const double root = 0.79788456080286535588, cube = 0.044715;

double reference_gelu_value(double x, bool approximate)
{
    if (approximate) return 0.5 * x * (1 + tanh(root * (x + cube * x * x * x)));
    return 0.5 * x * erfc(-x * M_SQRT1_2);
}

double reference_gelu_slope(double x, bool approximate)
{
    if (approximate) {
        double t = tanh(root * (x + cube * x * x * x));
        return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * cube * x * x);
    }
    return 0.5 * erfc(-x * M_SQRT1_2) + x * exp(-0.5 * x * x) * (0.5 * root);
}

/* y = value, an expression of x[i]. */
#define FUNCTION(name, value)                                                                      \
    status_t reference_##name(const struct kernel *kernel, const struct kernel_call *call)         \
    {                                                                                              \
        const float *x = call->inputs[0];                                                          \
        float *y = call->outputs[0];                                                               \
        int64_t count = tensor_element_count(&kernel->desc.inputs[0]);                             \
        for (int64_t i = 0; i < count; i++) reference_put(kernel, 0, &y[i], value);                \
        return NULL;                                                                               \
    }

/* dx = value, an expression of dy[i] and of the other input: x[i] or y[i]. */
#define GRADIENT(name, input, value)                                                               \
    status_t reference_##name(const struct kernel *kernel, const struct kernel_call *call)         \
    {                                                                                              \
        const float *dy = call->inputs[0], *input = call->inputs[1];                               \
        float *dx = call->outputs[0];                                                              \
        int64_t count = tensor_element_count(&kernel->desc.inputs[0]);                             \
        for (int64_t i = 0; i < count; i++) reference_put(kernel, 0, &dx[i], value);               \
        return NULL;                                                                               \
    }

FUNCTION(gelu, reference_gelu_value(x[i], kernel->desc.attrs.gelu.tanh))
GRADIENT(gelu_backward, x, dy[i] * reference_gelu_slope(x[i], kernel->desc.attrs.gelu.tanh))
FUNCTION(tanh, tanh(x[i]))
GRADIENT(tanh_backward, y, dy[i] * (1 - (double)y[i] * y[i]))
FUNCTION(sigmoid, sigmoid(x[i]))
GRADIENT(sigmoid_backward, y, dy[i] * (y[i] * (1 - (double)y[i])))
FUNCTION(squared_relu, x[i] <= 0 ? 0 : (double)x[i] * x[i])
GRADIENT(squared_relu_backward, x, x[i] <= 0 ? 0 : 2 * (double)x[i] * dy[i])
FUNCTION(silu, x[i] * sigmoid(x[i]))
GRADIENT(silu_backward, x, dy[i] * silu_slope(x[i]))

static double function_value(const struct op_desc *desc, double x)
{
    double parameter = desc->attrs.function.parameter;
    switch (desc->attrs.function.kind) {
    case FUNCTION_LEAKY_RELU: return x > 0 ? x : parameter * x;
    case FUNCTION_ELU: return x > 0 ? x : parameter * expm1(x);
    case FUNCTION_RELU6: return x < 0 ? 0 : x > 6 ? 6 : x;
    case FUNCTION_HARDSWISH: return x <= -3 ? 0 : x >= 3 ? x : x * (x + 3) / 6;
    case FUNCTION_HARDSIGMOID: return x <= -3 ? 0 : x >= 3 ? 1 : (x + 3) / 6;
    case FUNCTION_EXP: return exp(x);
    case FUNCTION_LOG: return log(x);
    case FUNCTION_SQRT: return sqrt(x);
    case FUNCTION_POW: return pow(x, parameter);
    case FUNCTION_ABS: return fabs(x);
    case FUNCTION_ABOVE: return x > parameter;
    case FUNCTION_AT_LEAST: return x >= parameter;
    }
    return NAN;
}

static double function_slope(const struct op_desc *desc, double x)
{
    double parameter = desc->attrs.function.parameter;
    switch (desc->attrs.function.kind) {
    case FUNCTION_LEAKY_RELU: return x > 0 ? 1 : parameter;
    case FUNCTION_ELU: return x > 0 ? 1 : parameter * exp(x);
    case FUNCTION_RELU6: return x > 0 && x < 6;
    case FUNCTION_HARDSWISH: return x < -3 ? 0 : x > 3 ? 1 : x / 3 + 0.5;
    case FUNCTION_HARDSIGMOID: return x > -3 && x < 3 ? 1 / 6.0 : 0;
    case FUNCTION_EXP: return exp(x);
    case FUNCTION_LOG: return 1 / x;
    case FUNCTION_SQRT: return 0.5 / sqrt(x);
    case FUNCTION_POW: return parameter == 0 ? 0 : parameter * pow(x, parameter - 1);
    case FUNCTION_ABS: return (x > 0) - (x < 0);
    case FUNCTION_ABOVE:
    case FUNCTION_AT_LEAST: return 0;
    }
    return NAN;
}

FUNCTION(element, function_value(&kernel->desc, x[i]))
GRADIENT(element_backward, x, dy[i] * function_slope(&kernel->desc, x[i]))

status_t reference_silu_mul(const struct kernel *kernel, const struct kernel_call *call)
{
    const float *gate = call->inputs[0], *x = call->inputs[1];
    float *y = call->outputs[0];
    int64_t count = tensor_element_count(&kernel->desc.inputs[0]);
    for (int64_t i = 0; i < count; i++)
        reference_put(kernel, 0, &y[i], gate[i] * sigmoid(gate[i]) * x[i]);
    return NULL;
}

status_t reference_silu_mul_backward(const struct kernel *kernel, const struct kernel_call *call)
{
    const float *dy = call->inputs[0], *gate = call->inputs[1], *x = call->inputs[2];
    float *dgate = call->outputs[0], *dx = call->outputs[1];
    int64_t count = tensor_element_count(&kernel->desc.inputs[0]);
    for (int64_t i = 0; i < count; i++) {
        reference_put(kernel, 0, &dgate[i], (double)dy[i] * x[i] * silu_slope(gate[i]));
        reference_put(kernel, 1, &dx[i], dy[i] * (gate[i] * sigmoid(gate[i])));
    }
    return NULL;
}

status_t reference_gelu_mul(const struct kernel *kernel, const struct kernel_call *call)
{
    bool approximate = kernel->desc.attrs.gelu.tanh;
    const float *gate = call->inputs[0], *x = call->inputs[1];
    float *y = call->outputs[0];
    int64_t count = tensor_element_count(&kernel->desc.inputs[0]);
    for (int64_t i = 0; i < count; i++)
        reference_put(kernel, 0, &y[i], reference_gelu_value(gate[i], approximate) * x[i]);
    return NULL;
}

status_t reference_gelu_mul_backward(const struct kernel *kernel, const struct kernel_call *call)
{
    bool approximate = kernel->desc.attrs.gelu.tanh;
    const float *dy = call->inputs[0], *gate = call->inputs[1], *x = call->inputs[2];
    float *dgate = call->outputs[0], *dx = call->outputs[1];
    int64_t count = tensor_element_count(&kernel->desc.inputs[0]);
    for (int64_t i = 0; i < count; i++) {
        double slope = reference_gelu_slope(gate[i], approximate);
        reference_put(kernel, 0, &dgate[i], (double)dy[i] * x[i] * slope);
        reference_put(kernel, 1, &dx[i], dy[i] * reference_gelu_value(gate[i], approximate));
    }
    return NULL;
}

status_t reference_sum_leading(const struct kernel *kernel, const struct kernel_call *call)
{
    const float *dy = call->inputs[0];
    float *db = call->outputs[0];
    int64_t columns = tensor_element_count(&kernel->desc.outputs[0]);
    int64_t rows = tensor_element_count(&kernel->desc.inputs[0]) / columns;
    for (int64_t i = 0; i < columns; i++) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++) sum += dy[r * columns + i];
        reference_put(kernel, 0, &db[i], sum);
    }
    return NULL;
}
