/* Reference norms and softmax, over rows: a row is the last dimension. */
#include <math.h>

#include "kernels/reference/reference.h"

/* Writes an output that may be absent. */
static void put_optional(const struct kernel *kernel, const struct kernel_call *call, int output,
                         int64_t index, double value)
{
    if (!kernel->desc.output_present[output]) return;
    reference_put(kernel, output, (float *)call->outputs[output] + index, value);
}

static double optional(const struct kernel *kernel, const struct kernel_call *call, int input,
                       int64_t index, double otherwise)
{
    if (!kernel->desc.input_present[input]) return otherwise;
    return ((const float *)call->inputs[input])[index];
}

static double weight_of(const struct kernel *kernel, const struct kernel_call *call, int input,
                        int64_t index)
{
    bool plus = kernel->desc.attrs.norm.one_plus && kernel->desc.input_present[input];
    return optional(kernel, call, input, index, 1) + (plus ? 1 : 0);
}

static int64_t columns_of(const struct tensor_type *type)
{
    return type->dims[type->dim_count - 1];
}

status_t reference_softmax(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct tensor_type *type = &kernel->desc.inputs[0];
    int64_t columns = columns_of(type), count = tensor_element_count(type);
    for (int64_t at = 0; at < count; at += columns) {
        const float *x = (const float *)call->inputs[0] + at;
        double max = x[0], sum = 0;
        for (int64_t i = 1; i < columns; i++)
            if (x[i] > max) max = x[i];
        for (int64_t i = 0; i < columns; i++) sum += exp(x[i] - max);
        for (int64_t i = 0; i < columns; i++)
            reference_put(kernel, 0, (float *)call->outputs[0] + at + i, exp(x[i] - max) / sum);
    }
    return NULL;
}

status_t reference_softmax_backward(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct tensor_type *type = &kernel->desc.inputs[0];
    int64_t columns = columns_of(type), count = tensor_element_count(type);
    for (int64_t at = 0; at < count; at += columns) {
        const float *dy = (const float *)call->inputs[0] + at;
        const float *y = (const float *)call->inputs[1] + at;
        double sum = 0;
        for (int64_t i = 0; i < columns; i++) sum += (double)dy[i] * y[i];
        for (int64_t i = 0; i < columns; i++)
            reference_put(kernel, 0, (float *)call->outputs[0] + at + i, y[i] * (dy[i] - sum));
    }
    return NULL;
}

/* Runs both norms. RMS_NORM has the outputs of LAYER_NORM except the mean, and its inputs except
 * the bias. */
static void run_norm(const struct kernel *kernel, const struct kernel_call *call, bool centered)
{
    const struct tensor_type *type = &kernel->desc.inputs[0];
    int64_t columns = columns_of(type), rows = tensor_element_count(type) / columns;
    int residual = centered ? 3 : 2, rstd = centered ? 2 : 1, sum = centered ? 3 : 2;
    const float *x = call->inputs[0];
    for (int64_t row = 0; row < rows; row++) {
        int64_t at = row * columns;
        double mean = 0, square = 0;
        for (int64_t i = at; i < at + columns; i++) {
            double value = x[i] + optional(kernel, call, residual, i, 0);
            mean += centered ? value / (double)columns : 0;
        }
        for (int64_t i = at; i < at + columns; i++) {
            double value = x[i] + optional(kernel, call, residual, i, 0) - mean;
            square += value * value;
        }
        double factor = 1 / sqrt(square / (double)columns + kernel->desc.attrs.norm.eps);
        for (int64_t i = 0; i < columns; i++) {
            double value = x[at + i] + optional(kernel, call, residual, at + i, 0);
            put_optional(kernel, call, sum, at + i, value);
            value = (value - mean) * factor * weight_of(kernel, call, 1, i);
            if (centered) value += optional(kernel, call, 2, i, 0);
            put_optional(kernel, call, 0, at + i, value);
        }
        if (centered) put_optional(kernel, call, 1, row, mean);
        put_optional(kernel, call, rstd, row, factor);
    }
}

/* With n = (x - mean) * rstd and g = dy * weight:
 * dx = rstd * (g - mean(g) - n * mean(g * n)) + other; an RMS norm has neither mean nor mean(g). */
static void run_norm_backward(const struct kernel *kernel, const struct kernel_call *call,
                              bool centered)
{
    const struct tensor_type *type = &kernel->desc.inputs[0];
    int64_t columns = columns_of(type), rows = tensor_element_count(type) / columns;
    int rstd = centered ? 4 : 3, other = centered ? 5 : 4;
    const float *dy = call->inputs[0], *x = call->inputs[1];
    for (int64_t row = 0; row < rows; row++) {
        int64_t at = row * columns;
        double mean = centered ? optional(kernel, call, 3, row, 0) : 0;
        double factor = optional(kernel, call, rstd, row, 0), sum = 0, product = 0;
        for (int64_t i = 0; i < columns; i++) {
            double g = dy[at + i] * weight_of(kernel, call, 2, i);
            sum += centered ? g / (double)columns : 0;
            product += g * (x[at + i] - mean) * factor / (double)columns;
        }
        for (int64_t i = 0; i < columns; i++) {
            double g = dy[at + i] * weight_of(kernel, call, 2, i);
            double n = (x[at + i] - mean) * factor;
            put_optional(kernel, call, 0, at + i,
                         factor * (g - sum - n * product) +
                             optional(kernel, call, other, at + i, 0));
        }
    }
    for (int64_t i = 0; i < columns; i++) {
        double weight = 0, bias = 0;
        for (int64_t row = 0; row < rows; row++) {
            double mean = centered ? optional(kernel, call, 3, row, 0) : 0;
            double n = (x[row * columns + i] - mean) * optional(kernel, call, rstd, row, 0);
            weight += dy[row * columns + i] * n;
            bias += dy[row * columns + i];
        }
        put_optional(kernel, call, 1, i, weight);
        if (centered) put_optional(kernel, call, 2, i, bias);
    }
}

status_t reference_layer_norm(const struct kernel *kernel, const struct kernel_call *call)
{
    run_norm(kernel, call, true);
    return NULL;
}

status_t reference_layer_norm_backward(const struct kernel *kernel, const struct kernel_call *call)
{
    run_norm_backward(kernel, call, true);
    return NULL;
}

status_t reference_rms_norm(const struct kernel *kernel, const struct kernel_call *call)
{
    run_norm(kernel, call, false);
    return NULL;
}

status_t reference_rms_norm_backward(const struct kernel *kernel, const struct kernel_call *call)
{
    run_norm_backward(kernel, call, false);
    return NULL;
}
