/* Reference loss of pairs against all others; see CONTRASTIVE_LOSS in ops/op.h. */
#include <math.h>

#include "kernels/reference/reference.h"

status_t reference_counted(const struct kernel *kernel, const struct kernel_call *call)
{
    const int32_t *target = call->inputs[0];
    float *y = call->outputs[0];
    int64_t count = tensor_element_count(&kernel->desc.inputs[0]);
    for (int64_t i = 0; i < count; i++) reference_put(kernel, 0, &y[i], target[i] >= 0);
    return NULL;
}

/* One anchor's row, and where its positive is. */
struct contrast_row {
    const float *x, *counted;
    int64_t columns, candidates, positive;
    double factor;
};

/* The logarithm of the sum of exponentials over the candidates that count. */
static double log_sum(const struct contrast_row *row)
{
    double max = -INFINITY, sum = 0;
    for (int64_t c = 0; c < row->columns; c++)
        if (row->counted[c / row->candidates] != 0) max = fmax(max, row->factor * row->x[c]);
    for (int64_t c = 0; c < row->columns; c++)
        if (row->counted[c / row->candidates] != 0) sum += exp(row->factor * row->x[c] - max);
    return max + log(sum);
}

/* NaN is the largest. */
static double largest_other(const struct contrast_row *row)
{
    double max = -INFINITY;
    for (int64_t c = 0; c < row->columns; c++) {
        if (c == row->positive || row->counted[c / row->candidates] == 0) continue;
        double score = row->factor * row->x[c];
        if (score > max || isnan(score)) max = score;
        if (isnan(max)) break;
    }
    return max;
}

static struct contrast_row row_of(const struct kernel *kernel, const struct kernel_call *call,
                                  int counted, int64_t i)
{
    const struct tensor_type *x = &kernel->desc.inputs[0];
    int64_t columns = x->dims[1];
    int64_t candidates = columns / tensor_element_count(&kernel->desc.inputs[counted]);
    int64_t pair = (int64_t)call->rank * x->dims[0] + i;
    return (struct contrast_row){.x = (const float *)call->inputs[0] + i * columns,
                                 .counted = call->inputs[counted],
                                 .columns = columns,
                                 .candidates = candidates,
                                 .positive = pair * candidates,
                                 .factor = kernel->desc.attrs.contrast.factor};
}

status_t reference_contrastive_loss(const struct kernel *kernel, const struct kernel_call *call)
{
    const int32_t *target = call->inputs[2];
    float *scores = call->outputs[1], *lse = call->outputs[2];
    int64_t rows = kernel->desc.inputs[0].dims[0];
    double loss = 0;
    for (int64_t i = 0; i < rows; i++) {
        struct contrast_row row = row_of(kernel, call, 1, i);
        double own = row.factor * row.x[row.positive];
        double sum = target[i] >= 0 ? log_sum(&row) : INFINITY;
        if (target[i] >= 0) loss += sum - own;
        reference_put(kernel, 1, &scores[2 * i], own);
        reference_put(kernel, 1, &scores[2 * i + 1], largest_other(&row));
        reference_put(kernel, 2, &lse[i], sum);
    }
    reference_put(kernel, 0, call->outputs[0], loss * op_loss_scale(&kernel->desc, rows));
    return NULL;
}

status_t reference_contrastive_loss_backward(const struct kernel *kernel,
                                             const struct kernel_call *call)
{
    const float *lse = call->inputs[1];
    float *dx = call->outputs[0];
    int64_t rows = kernel->desc.inputs[0].dims[0];
    double scale = kernel->desc.attrs.contrast.factor * op_loss_scale(&kernel->desc, rows);
    for (int64_t i = 0; i < rows; i++) {
        struct contrast_row row = row_of(kernel, call, 2, i);
        for (int64_t c = 0; c < row.columns; c++) {
            bool counts = row.counted[c / row.candidates] != 0 && !isinf(lse[i]);
            double share = exp(row.factor * row.x[c] - lse[i]) - (c == row.positive);
            reference_put(kernel, 0, &dx[i * row.columns + c], counts ? share * scale : 0);
        }
    }
    return NULL;
}

status_t reference_contrastive_loss_backward_others(const struct kernel *kernel,
                                                    const struct kernel_call *call)
{
    const float *x = call->inputs[0], *lse = call->inputs[1];
    float *dx = call->outputs[0];
    const struct tensor_type *type = &kernel->desc.inputs[0], *all = &kernel->desc.inputs[1];
    int64_t columns = type->dims[1], own = all->dims[all->dim_count - 1];
    int64_t candidates = type->dims[0] / own, first = (int64_t)call->rank * own;
    double factor = kernel->desc.attrs.contrast.factor;
    double scale = factor * op_loss_scale(&kernel->desc, own);
    for (int64_t r = 0; r < type->dims[0]; r++) {
        int64_t pair = first + r / candidates;
        for (int64_t c = 0; c < columns; c++) {
            bool counts = !isinf(lse[pair]) && !isinf(lse[c]);
            bool positive = r % candidates == 0 && c == pair;
            double share = exp(factor * x[r * columns + c] - lse[c]) - positive;
            reference_put(kernel, 0, &dx[r * columns + c], counts ? share * scale : 0);
        }
    }
    return NULL;
}
