/* Reference norms over groups of channels. */
#include <math.h>

#include "kernels/reference/reference.h"

/* x as (n, groups, channels of a group, area). */
struct grouping {
    int64_t n, groups, channels, area;
};

static struct grouping grouping_of(const struct op_desc *desc, const struct tensor_type *x)
{
    int64_t groups = desc->attrs.group_norm.groups;
    return (struct grouping){x->dims[0], groups, x->dims[1] / groups,
                             tensor_element_count(x) / (x->dims[0] * x->dims[1])};
}

status_t reference_group_norm(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    struct grouping g = grouping_of(desc, &desc->inputs[0]);
    const float *weight = desc->input_present[1] ? call->inputs[1] : NULL;
    const float *bias = desc->input_present[2] ? call->inputs[2] : NULL;
    int64_t size = g.channels * g.area;
    for (int64_t row = 0; row < g.n * g.groups; row++) {
        const float *x = (const float *)call->inputs[0] + row * size;
        double mean = 0, variance = 0;
        for (int64_t i = 0; i < size; i++) mean += x[i] / (double)size;
        for (int64_t i = 0; i < size; i++) variance += (x[i] - mean) * (x[i] - mean) / (double)size;
        double rstd = 1 / sqrt(variance + desc->attrs.group_norm.eps);
        for (int64_t i = 0; i < size; i++) {
            int64_t c = row % g.groups * g.channels + i / g.area;
            double value = (x[i] - mean) * rstd * (weight ? weight[c] : 1) + (bias ? bias[c] : 0);
            reference_put(kernel, 0, (float *)call->outputs[0] + row * size + i, value);
        }
        if (desc->output_present[1])
            reference_put(kernel, 1, (float *)call->outputs[1] + row, mean);
        if (desc->output_present[2])
            reference_put(kernel, 2, (float *)call->outputs[2] + row, rstd);
    }
    return NULL;
}

static void group_norm_parameters(const struct kernel *kernel, const struct kernel_call *call,
                                  const struct grouping *g)
{
    const float *dy = call->inputs[0], *x = call->inputs[1];
    const float *mean = call->inputs[3], *rstd = call->inputs[4];
    int64_t channels = g->groups * g->channels;
    for (int64_t c = 0; c < channels; c++) {
        double dweight = 0, dbias = 0;
        for (int64_t n = 0; n < g->n; n++)
            for (int64_t i = 0; i < g->area; i++) {
                int64_t at = (n * channels + c) * g->area + i,
                        row = n * g->groups + c / g->channels;
                dweight += dy[at] * ((double)x[at] - mean[row]) * rstd[row];
                dbias += dy[at];
            }
        if (kernel->desc.output_present[1])
            reference_put(kernel, 1, (float *)call->outputs[1] + c, dweight);
        if (kernel->desc.output_present[2])
            reference_put(kernel, 2, (float *)call->outputs[2] + c, dbias);
    }
}

status_t reference_group_norm_backward(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    struct grouping g = grouping_of(desc, &desc->inputs[1]);
    const float *weight = desc->input_present[2] ? call->inputs[2] : NULL;
    int64_t size = g.channels * g.area;
    for (int64_t row = 0; row < g.n * g.groups && desc->output_present[0]; row++) {
        const float *dy = (const float *)call->inputs[0] + row * size;
        const float *x = (const float *)call->inputs[1] + row * size;
        double mean = ((const float *)call->inputs[3])[row], sum = 0, product = 0;
        double rstd = ((const float *)call->inputs[4])[row];
        for (int pass = 0; pass < 2; pass++)
            for (int64_t i = 0; i < size; i++) {
                int64_t c = row % g.groups * g.channels + i / g.area;
                double slope = dy[i] * (weight ? weight[c] : 1.0), normed = (x[i] - mean) * rstd;
                if (pass == 0) {
                    sum += slope / (double)size;
                    product += slope * normed / (double)size;
                } else {
                    reference_put(kernel, 0, (float *)call->outputs[0] + row * size + i,
                                  rstd * (slope - sum - normed * product));
                }
            }
    }
    group_norm_parameters(kernel, call, &g);
    return NULL;
}
