/* Reference norms over a batch. */
#include <math.h>
#include <string.h>

#include "kernels/batch_norm.h"
#include "kernels/reference/reference.h"

static const void *optional(const struct kernel *kernel, const struct kernel_call *call, int input)
{
    return kernel->desc.input_present[input] ? call->inputs[input] : NULL;
}

static void move_state(const struct kernel *kernel, const struct kernel_call *call, int64_t c,
                       double mean, double unbiased)
{
    double momentum = kernel->desc.attrs.batch_norm.momentum;
    float *means = call->outputs[3], *variances = call->outputs[4];
    if (kernel->desc.output_present[3]) means[c] = batch_moved(momentum, means[c], mean);
    if (kernel->desc.output_present[4])
        variances[c] = batch_moved(momentum, variances[c], unbiased);
}

static void count_batch(const struct kernel *kernel, const struct kernel_call *call)
{
    int64_t batches;
    if (!kernel->desc.output_present[5]) return;
    memcpy(&batches, call->outputs[5], sizeof batches);
    batches++;
    memcpy(call->outputs[5], &batches, sizeof batches);
}

static void apply(const struct kernel *kernel, const struct kernel_call *call,
                  const struct batch_shape *s, int64_t c, double mean, double rstd)
{
    const float *x = call->inputs[0], *weight = optional(kernel, call, 1);
    const float *bias = optional(kernel, call, 2);
    struct batch_shape y = batch_shape_of(&kernel->desc.outputs[0]);
    for (int64_t n = 0; n < s->n; n++)
        for (int64_t i = 0; i < s->area; i++) {
            double value = (x[batch_place(s, n, c, i)] - mean) * rstd * (weight ? weight[c] : 1) +
                           (bias ? bias[c] : 0);
            reference_put(kernel, 0, (float *)call->outputs[0] + batch_place(&y, n, c, i), value);
        }
}

/* A channel's mean, and the sum of squared distances from it, of the rows that count. */
static void find_moments(const struct batch_shape *s, const float *x, const int32_t *target,
                         int64_t c, double *mean, double *squares)
{
    int64_t count = batch_count(s, target);
    double size = count > 0 ? (double)count : 1;
    *mean = *squares = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t n = 0; n < s->n; n++)
            for (int64_t i = 0; i < s->area && (!target || target[n] >= 0); i++) {
                double value = x[batch_place(s, n, c, i)];
                if (pass == 0) *mean += value / size;
                else *squares += (value - *mean) * (value - *mean);
            }
}

status_t reference_batch_moments(const struct kernel *kernel, const struct kernel_call *call)
{
    struct batch_shape s = batch_shape_of(&kernel->desc.inputs[0]);
    const int32_t *target = optional(kernel, call, 1);
    int64_t count = batch_count(&s, target);
    float *moments = call->outputs[0];
    reference_put(kernel, 0, &moments[0], (double)(count / s.area));
    for (int64_t c = 0; c < s.channels; c++) {
        double mean, squares;
        find_moments(&s, call->inputs[0], target, c, &mean, &squares);
        reference_put(kernel, 0, &moments[1 + c], mean);
        reference_put(kernel, 0, &moments[1 + s.channels + c],
                      squares / (double)(count > 0 ? count : 1));
    }
    return NULL;
}

status_t reference_batch_norm(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    struct batch_shape s = batch_shape_of(&desc->inputs[0]);
    const int32_t *target = optional(kernel, call, 3);
    struct batch_totals all = batch_totals_of(desc, call, 4, s.channels);
    int64_t count =
        all.ranks > 0 ? (int64_t)batch_total(&all, 0) * s.area : batch_count(&s, target);
    double size = count > 0 ? (double)count : 1;
    for (int64_t c = 0; c < s.channels; c++) {
        double mean, variance, squares;
        if (all.ranks > 0) {
            batch_merge(&all, c, &mean, &variance);
            squares = variance * size;
        } else {
            find_moments(&s, call->inputs[0], target, c, &mean, &squares);
        }
        double rstd = 1 / sqrt(squares / size + desc->attrs.batch_norm.eps);
        apply(kernel, call, &s, c, mean, rstd);
        if (desc->output_present[1]) reference_put(kernel, 1, (float *)call->outputs[1] + c, mean);
        if (desc->output_present[2]) reference_put(kernel, 2, (float *)call->outputs[2] + c, rstd);
        if (count > 0) move_state(kernel, call, c, mean, batch_unbiased(squares, count));
    }
    if (count > 0) count_batch(kernel, call);
    return NULL;
}

struct batch_sums {
    double slope, product; /* of dy, and of dy and the normalised x */
};

static struct batch_sums find_sums(const struct kernel *kernel, const struct kernel_call *call,
                                   const int32_t *target, int64_t c, double mean, double rstd)
{
    struct batch_shape dy = batch_shape_of(&kernel->desc.inputs[0]);
    struct batch_shape x = batch_shape_of(&kernel->desc.inputs[1]);
    struct batch_sums sums = {0};
    for (int64_t n = 0; n < x.n; n++)
        for (int64_t i = 0; i < x.area && (!target || target[n] >= 0); i++) {
            double slope = ((const float *)call->inputs[0])[batch_place(&dy, n, c, i)];
            double value = ((const float *)call->inputs[1])[batch_place(&x, n, c, i)];
            sums.slope += slope;
            sums.product += slope * ((value - mean) * rstd);
        }
    return sums;
}

status_t reference_batch_norm_sums(const struct kernel *kernel, const struct kernel_call *call)
{
    struct batch_shape s = batch_shape_of(&kernel->desc.inputs[1]);
    const int32_t *target = optional(kernel, call, 4);
    const float *mean = call->inputs[2], *rstd = call->inputs[3];
    float *totals = call->outputs[0];
    reference_put(kernel, 0, &totals[0], (double)(batch_count(&s, target) / s.area));
    for (int64_t c = 0; c < s.channels; c++) {
        struct batch_sums sums = find_sums(kernel, call, target, c, mean[c], rstd[c]);
        reference_put(kernel, 0, &totals[1 + c], sums.slope);
        reference_put(kernel, 0, &totals[1 + s.channels + c], sums.product);
    }
    return NULL;
}

status_t reference_batch_norm_backward(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    struct batch_shape s = batch_shape_of(&desc->inputs[1]);
    struct batch_shape of_dy = batch_shape_of(&desc->inputs[0]);
    struct batch_shape of_dx = batch_shape_of(&desc->outputs[0]);
    const float *dy = call->inputs[0], *x = call->inputs[1], *weight = optional(kernel, call, 2);
    const int32_t *target = optional(kernel, call, 5);
    struct batch_totals all = batch_totals_of(desc, call, 6, s.channels);
    double count =
        all.ranks > 0 ? batch_total(&all, 0) * (double)s.area : (double)batch_count(&s, target);
    for (int64_t c = 0; c < s.channels; c++) {
        double mean = ((const float *)call->inputs[3])[c];
        double rstd = ((const float *)call->inputs[4])[c];
        struct batch_sums own = find_sums(kernel, call, target, c, mean, rstd), sums = own;
        if (all.ranks > 0)
            sums = (struct batch_sums){batch_total(&all, 1 + c),
                                       batch_total(&all, 1 + s.channels + c)};
        for (int64_t n = 0; n < s.n && desc->output_present[0]; n++)
            for (int64_t i = 0; i < s.area; i++) {
                double normed = (x[batch_place(&s, n, c, i)] - mean) * rstd;
                double slope =
                    dy[batch_place(&of_dy, n, c, i)] - (sums.slope + normed * sums.product) / count;
                bool counts = !target || target[n] >= 0;
                reference_put(kernel, 0, (float *)call->outputs[0] + batch_place(&of_dx, n, c, i),
                              counts ? slope * rstd * (weight ? weight[c] : 1) : 0);
            }
        if (desc->output_present[1])
            reference_put(kernel, 1, (float *)call->outputs[1] + c, own.product);
        if (desc->output_present[2])
            reference_put(kernel, 2, (float *)call->outputs[2] + c, own.slope);
    }
    return NULL;
}

status_t reference_batch_norm_running(const struct kernel *kernel, const struct kernel_call *call)
{
    struct batch_shape s = batch_shape_of(&kernel->desc.inputs[0]);
    for (int64_t c = 0; c < s.channels; c++) {
        double variance = ((const float *)call->inputs[4])[c];
        apply(kernel, call, &s, c, ((const float *)call->inputs[3])[c],
              1 / sqrt(variance + kernel->desc.attrs.batch_norm.eps));
    }
    return NULL;
}
