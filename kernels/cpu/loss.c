/*
 * Softmax, losses and the count of correct rows, row by row. Losses are summed in double from the
 * first row to the last.
 */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

struct rows_job {
    const struct kernel *kernel;
    const struct kernel_call *call;
    size_t classes;
    float scale;
};

static void rows_and_columns(const struct tensor_type *type, int64_t dims[2])
{
    dims[0] = kernel_rows(type);
    dims[1] = kernel_columns(type);
}

static void put(float *to, float value, bool add)
{
    *to = add ? *to + value : value;
}

static size_t rows_grain(size_t classes)
{
    return classes < CPU_GRAIN ? (size_t)CPU_GRAIN / classes : 1;
}

static void log_softmax_part(const void *argument, size_t begin, size_t end)
{
    const struct rows_job *job = argument;
    size_t n = job->classes;
    int output = job->kernel->desc.kind == OP_CROSS_ENTROPY ? 1 : 0;
    bool add = job->kernel->desc.accumulate[output];
    const float *x = job->call->inputs[0];
    float *y = job->call->outputs[output];
    for (size_t r = begin; r < end; r++) cpu_loops_get()->log_softmax(n, y + r * n, x + r * n, add);
}

static void log_softmax_backward_part(const void *argument, size_t begin, size_t end)
{
    const struct rows_job *job = argument;
    size_t n = job->classes;
    const float *dy = job->call->inputs[0], *y = job->call->inputs[1];
    float *dx = job->call->outputs[0];
    for (size_t r = begin; r < end; r++)
        cpu_loops_get()->log_softmax_backward(n, dx + r * n, dy + r * n, y + r * n,
                                              job->kernel->desc.accumulate[0]);
}

static status_t run_log_softmax(const struct kernel *kernel, const struct kernel_call *call)
{
    int64_t dims[2];
    rows_and_columns(&kernel->desc.inputs[0], dims);
    struct rows_job job = {kernel, call, (size_t)dims[1], 1};
    bool forward = kernel->desc.kind == OP_LOG_SOFTMAX;
    cpu_parallel(kernel->threads, (size_t)dims[0], rows_grain(job.classes),
                 forward ? log_softmax_part : log_softmax_backward_part, &job);
    return NULL;
}

/* The factor of a row whose target has the log-probability y, or that of the row's gradient. */
static double focus(const struct kernel *kernel, double y, bool slope)
{
    double gamma = kernel->desc.attrs.loss.gamma, rest = -expm1(y);
    if (gamma == 0) return 1;
    if (rest == 0) return 0;
    return pow(rest, gamma) * (slope ? 1 - gamma * exp(y) * y / rest : 1);
}

static void sum_losses(const struct kernel *kernel, const float *y, const int32_t *target,
                       size_t rows, size_t classes, float *loss)
{
    double sum = 0, smoothing = kernel->desc.attrs.loss.label_smoothing;
    const struct op_weights *weights = &kernel->desc.attrs.loss.weights;
    for (size_t r = 0; r < rows; r++) {
        if (target[r] < 0) continue;
        double mean = 0;
        for (size_t i = 0; i < classes && smoothing > 0; i++)
            mean += op_weight(weights, (int64_t)i) * y[r * classes + i];
        double own = y[r * classes + (size_t)target[r]];
        sum -= (1 - smoothing) * op_weight(weights, target[r]) * own * focus(kernel, own, false) +
               smoothing * mean / (double)classes;
    }
    put(loss, (float)(sum * op_loss_scale(&kernel->desc, (int64_t)rows)),
        kernel->desc.accumulate[0]);
}

static status_t run_nll_loss(const struct kernel *kernel, const struct kernel_call *call)
{
    int64_t dims[2];
    rows_and_columns(&kernel->desc.inputs[0], dims);
    sum_losses(kernel, call->inputs[0], call->inputs[1], (size_t)dims[0], (size_t)dims[1],
               call->outputs[0]);
    return NULL;
}

static status_t run_nll_loss_backward(const struct kernel *kernel, const struct kernel_call *call)
{
    int64_t dims[2];
    rows_and_columns(&kernel->desc.outputs[0], dims);
    size_t rows = (size_t)dims[0], classes = (size_t)dims[1];
    const int32_t *target = call->inputs[0];
    float *dy = call->outputs[0];
    float scale = (float)op_loss_scale(&kernel->desc, (int64_t)rows);
    if (!kernel->desc.accumulate[0])
        for (size_t i = 0; i < rows * classes; i++) dy[i] = 0;
    for (size_t r = 0; r < rows; r++)
        if (target[r] >= 0)
            dy[r * classes + (size_t)target[r]] -=
                scale * op_weight(&kernel->desc.attrs.loss.weights, target[r]);
    return NULL;
}

static status_t run_cross_entropy(const struct kernel *kernel, const struct kernel_call *call)
{
    int64_t dims[2];
    rows_and_columns(&kernel->desc.inputs[0], dims);
    struct rows_job job = {kernel, call, (size_t)dims[1], 1};
    cpu_parallel(kernel->threads, (size_t)dims[0], rows_grain(job.classes), log_softmax_part, &job);
    sum_losses(kernel, call->outputs[1], call->inputs[1], (size_t)dims[0], job.classes,
               call->outputs[0]);
    return NULL;
}

static void cross_entropy_backward_part(const void *argument, size_t begin, size_t end)
{
    const struct rows_job *job = argument;
    size_t n = job->classes;
    const float *y = job->call->inputs[0];
    const int32_t *target = job->call->inputs[1];
    float *dx = job->call->outputs[0];
    bool add = job->kernel->desc.accumulate[0];
    const struct op_weights *weights = &job->kernel->desc.attrs.loss.weights;
    double smoothing = job->kernel->desc.attrs.loss.label_smoothing, mean = 0;
    for (size_t i = 0; i < n && smoothing > 0; i++) mean += op_weight(weights, (int64_t)i);
    mean /= (double)n;
    float shared = (float)(smoothing * job->scale / (double)n);
    for (size_t r = begin; r < end; r++) {
        float *row = dx + r * n;
        if (target[r] >= 0) {
            double own = (1 - smoothing) * op_weight(weights, target[r]) * job->scale *
                         focus(job->kernel, y[r * n + (size_t)target[r]], true);
            float all = (float)(own + smoothing * mean * job->scale);
            cpu_loops_get()->exp_scaled(n, row, y + r * n, all, add);
            row[target[r]] -= (float)own;
            for (size_t i = 0; i < n && smoothing > 0; i++)
                row[i] -= shared * op_weight(weights, (int64_t)i);
        } else if (!add) {
            for (size_t i = 0; i < n; i++) row[i] = 0;
        }
    }
}

static status_t run_cross_entropy_backward(const struct kernel *kernel,
                                           const struct kernel_call *call)
{
    int64_t dims[2];
    rows_and_columns(&kernel->desc.inputs[0], dims);
    double scale = op_loss_scale(&kernel->desc, dims[0]);
    struct rows_job job = {kernel, call, (size_t)dims[1], (float)scale};
    cpu_parallel(kernel->threads, (size_t)dims[0], rows_grain(job.classes),
                 cross_entropy_backward_part, &job);
    return NULL;
}

static status_t run_count_correct(const struct kernel *kernel, const struct kernel_call *call)
{
    int64_t dims[2];
    rows_and_columns(&kernel->desc.inputs[0], dims);
    const float *y = call->inputs[0];
    const int32_t *target = call->inputs[1];
    int64_t correct = 0;
    for (int64_t r = 0; r < dims[0]; r++) {
        if (target[r] < 0) continue;
        const float *row = y + r * dims[1];
        float score = row[target[r]];
        /* Correct if no earlier score is as large and no later one is larger; NaN is larger than
         * any number. */
        bool right = true;
        for (int64_t i = 0; i < target[r] && right; i++)
            right = isnan(score) ? !isnan(row[i]) : row[i] < score;
        for (int64_t i = target[r] + 1; i < dims[1] && right && !isnan(score); i++)
            right = row[i] <= score;
        correct += right;
    }
    put(call->outputs[0], (float)correct, kernel->desc.accumulate[0]);
    return NULL;
}

status_t cpu_prepare_loss(struct kernel *kernel)
{
    switch (kernel->desc.kind) {
    case OP_NLL_LOSS: kernel->run = run_nll_loss; break;
    case OP_NLL_LOSS_BACKWARD: kernel->run = run_nll_loss_backward; break;
    case OP_CROSS_ENTROPY:
        /* The loss is read from the log-probabilities, so this output must not accumulate. */
        if (kernel->desc.accumulate[1]) return reference_prepare(kernel);
        kernel->run = run_cross_entropy;
        break;
    case OP_CROSS_ENTROPY_BACKWARD: kernel->run = run_cross_entropy_backward; break;
    case OP_COUNT_CORRECT: kernel->run = run_count_correct; break;
    default: kernel->run = run_log_softmax; break;
    }
    return NULL;
}
