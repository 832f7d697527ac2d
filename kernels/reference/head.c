/*
 * Reference of a linear layer fused with the cross-entropy of its output: computes the scores of
 * one row, or of one class, at a time.
 */
#include <math.h>

#include "kernels/reference/reference.h"

struct head {
    const struct kernel *kernel;
    int64_t rows, columns, classes;
    const float *x, *weight, *bias;
    const int32_t *target;
};

static struct head head_of(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct tensor_type *weight = &kernel->desc.inputs[1];
    return (struct head){.kernel = kernel,
                         .rows = tensor_element_count(&kernel->desc.inputs[3]),
                         .columns = weight->dims[1],
                         .classes = weight->dims[0],
                         .x = call->inputs[0],
                         .weight = call->inputs[1],
                         .bias = kernel->desc.input_present[2] ? call->inputs[2] : NULL,
                         .target = call->inputs[3]};
}

static double score(const struct head *head, int64_t row, int64_t class)
{
    double sum = head->bias != NULL ? head->bias[class] : 0;
    for (int64_t i = 0; i < head->columns; i++)
        sum += (double)head->x[row * head->columns + i] * head->weight[class * head->columns + i];
    return sum;
}

/* Writes the scores of a row; returns the log of the sum of their exponentials. */
static double row_of_scores(const struct head *head, int64_t row, double *scores)
{
    double max = 0, sum = 0;
    for (int64_t v = 0; v < head->classes; v++) {
        scores[v] = score(head, row, v);
        if (v == 0 || scores[v] > max) max = scores[v];
    }
    for (int64_t v = 0; v < head->classes; v++) sum += exp(scores[v] - max);
    return max + log(sum);
}

/* Whether the target is the first maximum; NaN counts as the largest. */
static bool is_correct(const struct head *head, const double *scores, int32_t target)
{
    int64_t best = 0;
    for (int64_t v = 1; v < head->classes; v++)
        if (!isnan(scores[best]) && (scores[v] > scores[best] || isnan(scores[v]))) best = v;
    return best == target;
}

status_t reference_linear_cross_entropy(const struct kernel *kernel, const struct kernel_call *call)
{
    struct head head = head_of(kernel, call);
    double *scores = call->workspace, loss = 0;
    int64_t correct = 0;
    for (int64_t r = 0; r < head.rows; r++) {
        if (head.target[r] < 0) continue;
        loss += row_of_scores(&head, r, scores);
        loss -= scores[head.target[r]];
        correct += is_correct(&head, scores, head.target[r]);
    }
    reference_put(kernel, 0, call->outputs[0], loss * op_loss_scale(&kernel->desc, head.rows));
    if (kernel->desc.output_present[1]) reference_put(kernel, 1, call->outputs[1], (double)correct);
    return NULL;
}

/* Makes dweight and dbias of one class; `gradients` holds a column. */
static void class_gradient(const struct head *head, int64_t class, const double *log_sums,
                           double scale, double *gradients, const struct kernel_call *call)
{
    const struct kernel *kernel = head->kernel;
    double total = 0;
    for (int64_t r = 0; r < head->rows; r++) {
        double p = head->target[r] >= 0 ? exp(score(head, r, class) - log_sums[r]) : 0;
        gradients[r] = scale * (p - (class == head->target[r]));
        total += gradients[r];
    }
    if (kernel->desc.output_present[3])
        reference_put(kernel, 3, (float *)call->outputs[3] + class, total);
    if (!kernel->desc.output_present[2]) return;
    for (int64_t i = 0; i < head->columns; i++) {
        double sum = 0;
        for (int64_t r = 0; r < head->rows; r++)
            if (head->target[r] >= 0) sum += gradients[r] * head->x[r * head->columns + i];
        reference_put(kernel, 2, (float *)call->outputs[2] + class * head->columns + i, sum);
    }
}

status_t reference_linear_cross_entropy_backward(const struct kernel *kernel,
                                                 const struct kernel_call *call)
{
    struct head head = head_of(kernel, call);
    double *log_sums = call->workspace, *scores = log_sums + head.rows;
    double loss = 0, scale = op_loss_scale(&kernel->desc, head.rows);
    for (int64_t r = 0; r < head.rows; r++) {
        bool counts = head.target[r] >= 0;
        if (counts) {
            log_sums[r] = row_of_scores(&head, r, scores);
            loss += log_sums[r] - scores[head.target[r]];
        }
        if (!kernel->desc.output_present[1]) continue;
        for (int64_t v = 0; counts && v < head.classes; v++)
            scores[v] = scale * (exp(scores[v] - log_sums[r]) - (v == head.target[r]));
        for (int64_t i = 0; i < head.columns; i++) {
            double sum = 0;
            for (int64_t v = 0; counts && v < head.classes; v++)
                sum += scores[v] * head.weight[v * head.columns + i];
            reference_put(kernel, 1, (float *)call->outputs[1] + r * head.columns + i, sum);
        }
    }
    reference_put(kernel, 0, call->outputs[0], loss * scale);
    if (!kernel->desc.output_present[2] && !kernel->desc.output_present[3]) return NULL;
    for (int64_t v = 0; v < head.classes; v++)
        class_gradient(&head, v, log_sums, scale, scores, call);
    return NULL;
}

uint64_t reference_head_workspace(const struct op_desc *desc)
{
    int64_t classes = desc->inputs[1].dims[0], rows = tensor_element_count(&desc->inputs[3]);
    int64_t count = classes;
    if (desc->kind == OP_LINEAR_CROSS_ENTROPY_BACKWARD)
        count = rows + (rows > classes ? rows : classes);
    return (uint64_t)count * sizeof(double);
}
