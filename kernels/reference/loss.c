/* Reference losses over rows of scores (n, c). Rows with a negative target do not count. */
#include <math.h>

#include "kernels/reference/reference.h"

/* max + log(sum(exp(x - max))) */
static double log_sum_exp(const float *x, int64_t classes)
{
    double max = x[0], sum = 0;
    for (int64_t i = 1; i < classes; i++)
        if (x[i] > max) max = x[i];
    for (int64_t i = 0; i < classes; i++) sum += exp(x[i] - max);
    return max + log(sum);
}

status_t reference_log_softmax(const struct kernel *kernel, const struct kernel_call *call)
{
    int64_t rows = kernel_rows(&kernel->desc.inputs[0]),
            classes = kernel_columns(&kernel->desc.inputs[0]);
    const float *x = call->inputs[0];
    float *y = call->outputs[0];
    for (int64_t r = 0; r < rows; r++) {
        double total = log_sum_exp(x + r * classes, classes);
        for (int64_t i = 0; i < classes; i++)
            reference_put(kernel, 0, &y[r * classes + i], x[r * classes + i] - total);
    }
    return NULL;
}

status_t reference_log_softmax_backward(const struct kernel *kernel, const struct kernel_call *call)
{
    int64_t rows = kernel_rows(&kernel->desc.inputs[0]),
            classes = kernel_columns(&kernel->desc.inputs[0]);
    const float *dy = call->inputs[0], *y = call->inputs[1];
    float *dx = call->outputs[0];
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0;
        for (int64_t i = 0; i < classes; i++) sum += dy[r * classes + i];
        for (int64_t i = 0; i < classes; i++)
            reference_put(kernel, 0, &dx[r * classes + i],
                          dy[r * classes + i] - exp(y[r * classes + i]) * sum);
    }
    return NULL;
}

status_t reference_nll_loss(const struct kernel *kernel, const struct kernel_call *call)
{
    int64_t rows = kernel_rows(&kernel->desc.inputs[0]),
            classes = kernel_columns(&kernel->desc.inputs[0]);
    const float *y = call->inputs[0];
    const int32_t *target = call->inputs[1];
    double sum = 0;
    for (int64_t r = 0; r < rows; r++)
        if (target[r] >= 0)
            sum -= op_weight(&kernel->desc.attrs.loss.weights, target[r]) *
                   (double)y[r * classes + target[r]];
    reference_put(kernel, 0, call->outputs[0], sum * op_loss_scale(&kernel->desc, rows));
    return NULL;
}

status_t reference_nll_loss_backward(const struct kernel *kernel, const struct kernel_call *call)
{
    int64_t rows = kernel_rows(&kernel->desc.outputs[0]),
            classes = kernel_columns(&kernel->desc.outputs[0]);
    const int32_t *target = call->inputs[0];
    float *dy = call->outputs[0];
    double scale = op_loss_scale(&kernel->desc, rows);
    const struct op_weights *weights = &kernel->desc.attrs.loss.weights;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < classes; i++)
            reference_put(kernel, 0, &dy[r * classes + i],
                          i == target[r] ? -scale * op_weight(weights, i) : 0);
    return NULL;
}

/* The factor of the loss of a row whose target has the probability p, or of its gradient. */
static double focus(const struct kernel *kernel, double p, bool slope)
{
    double gamma = kernel->desc.attrs.loss.gamma;
    if (gamma == 0 || p == 1) return gamma == 0;
    return pow(1 - p, gamma) - (slope ? gamma * p * pow(1 - p, gamma - 1) * log(p) : 0);
}

status_t reference_cross_entropy(const struct kernel *kernel, const struct kernel_call *call)
{
    int64_t rows = kernel_rows(&kernel->desc.inputs[0]),
            classes = kernel_columns(&kernel->desc.inputs[0]);
    const float *x = call->inputs[0];
    const int32_t *target = call->inputs[1];
    float *y = call->outputs[1];
    double sum = 0, smoothing = kernel->desc.attrs.loss.label_smoothing;
    const struct op_weights *weights = &kernel->desc.attrs.loss.weights;
    for (int64_t r = 0; r < rows; r++) {
        const float *row = x + r * classes;
        double total = log_sum_exp(row, classes), mean = 0;
        for (int64_t i = 0; i < classes; i++)
            reference_put(kernel, 1, &y[r * classes + i], row[i] - total);
        if (target[r] < 0) continue;
        for (int64_t i = 0; i < classes && smoothing > 0; i++)
            mean += op_weight(weights, i) * (total - row[i]) / (double)classes;
        sum += (1 - smoothing) * op_weight(weights, target[r]) * (total - row[target[r]]) *
                   focus(kernel, exp(row[target[r]] - total), false) +
               smoothing * mean;
    }
    reference_put(kernel, 0, call->outputs[0], sum * op_loss_scale(&kernel->desc, rows));
    return NULL;
}

status_t reference_cross_entropy_backward(const struct kernel *kernel,
                                          const struct kernel_call *call)
{
    int64_t rows = kernel_rows(&kernel->desc.inputs[0]),
            classes = kernel_columns(&kernel->desc.inputs[0]);
    const float *y = call->inputs[0];
    const int32_t *target = call->inputs[1];
    float *dx = call->outputs[0];
    double scale = op_loss_scale(&kernel->desc, rows);
    double smoothing = kernel->desc.attrs.loss.label_smoothing, mean = 0;
    const struct op_weights *weights = &kernel->desc.attrs.loss.weights;
    for (int64_t i = 0; i < classes; i++) mean += op_weight(weights, i) / (double)classes;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < classes; i++) {
            double own = target[r] >= 0 ? (1 - smoothing) * op_weight(weights, target[r]) *
                                              focus(kernel, exp(y[r * classes + target[r]]), true)
                                        : 0;
            double wanted =
                (i == target[r]) * own + smoothing * op_weight(weights, i) / (double)classes;
            double gradient = exp(y[r * classes + i]) * (own + smoothing * mean) - wanted;
            reference_put(kernel, 0, &dx[r * classes + i], target[r] >= 0 ? gradient * scale : 0);
        }
    return NULL;
}

status_t reference_count_correct(const struct kernel *kernel, const struct kernel_call *call)
{
    int64_t rows = kernel_rows(&kernel->desc.inputs[0]),
            classes = kernel_columns(&kernel->desc.inputs[0]);
    const float *y = call->inputs[0];
    const int32_t *target = call->inputs[1];
    int64_t correct = 0;
    for (int64_t r = 0; r < rows; r++) {
        const float *row = y + r * classes;
        int64_t best = 0;
        for (int64_t i = 1; i < classes; i++)
            if (!isnan(row[best]) && (row[i] > row[best] || isnan(row[i]))) best = i;
        correct += best == target[r];
    }
    reference_put(kernel, 0, call->outputs[0], (double)correct);
    return NULL;
}
