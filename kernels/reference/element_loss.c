/* Reference losses of every element by itself; see ELEMENT_LOSS in ops/op.h. */
#include <math.h>

#include "kernels/reference/reference.h"

static bool counts(const struct kernel *kernel, const struct kernel_call *call, int64_t i)
{
    const int32_t *target = call->inputs[2];
    int64_t count = tensor_element_count(&kernel->desc.inputs[0]);
    int64_t rows = tensor_element_count(&kernel->desc.inputs[2]);
    if (kernel->desc.input_present[2] && target[i / (count / rows)] < 0) return false;
    return kernel->desc.attrs.element_loss.computed || !isnan(((const float *)call->inputs[1])[i]);
}

static double positive_of(const struct kernel *kernel, int64_t i)
{
    return op_weight(&kernel->desc.attrs.element_loss.positive,
                     i % kernel_columns(&kernel->desc.inputs[0]));
}

/* The factor of every element. */
static double scale_of(const struct op_desc *desc)
{
    return desc->attrs.element_loss.weight *
           op_loss_scale(desc, tensor_element_count(&desc->inputs[desc->input_present[2] ? 2 : 0]));
}

/* The loss, or its slope, with p the probability of 1 and `miss` that of the label's opposite. */
static double focal(const union op_attrs *attrs, double x, double r, bool slope)
{
    double p = 1 / (1 + exp(-x)), q = 1 / (1 + exp(x)), miss = p * (1 - r) + q * r;
    double gamma = attrs->element_loss.delta, alpha = attrs->element_loss.alpha;
    double cross_entropy = (1 - r) * x + log1p(exp(-fabs(x))) + (x < 0 ? -x : 0);
    double weight = (alpha < 0 ? 1 : alpha * r + (1 - alpha) * (1 - r)) * pow(miss, gamma);
    if (!slope) return weight * cross_entropy;
    return miss == 0 ? 0 : weight * (p - r + gamma * (1 - 2 * r) * p * q * cross_entropy / miss);
}

/* `positive`: the weight of the part of a label that is wanted. */
static double loss_of(const union op_attrs *attrs, double x, double reference, double positive)
{
    double away = x - reference, delta = attrs->element_loss.delta;
    switch (attrs->element_loss.difference) {
    case DIFFERENCE_SQUARED: return away * away;
    case DIFFERENCE_ABSOLUTE: return fabs(away);
    case DIFFERENCE_HUBER:
        return fabs(away) <= delta ? 0.5 * away * away : delta * (fabs(away) - 0.5 * delta);
    case DIFFERENCE_BINARY_CROSS_ENTROPY:
        return (1 - reference) * x +
               (1 + (positive - 1) * reference) * (log1p(exp(-fabs(x))) + (x < 0 ? -x : 0));
    case DIFFERENCE_FOCAL: return focal(attrs, x, reference, false);
    case DIFFERENCE_DIVERGENCE: return exp(reference) == 0 ? 0 : -exp(reference) * away;
    }
    return NAN;
}

static double slope_of(const union op_attrs *attrs, double x, double reference, double positive)
{
    double away = x - reference, delta = attrs->element_loss.delta;
    switch (attrs->element_loss.difference) {
    case DIFFERENCE_SQUARED: return 2 * away;
    case DIFFERENCE_ABSOLUTE: return away > 0 ? 1 : away < 0 ? -1 : away;
    case DIFFERENCE_HUBER: return away > delta ? delta : away < -delta ? -delta : away;
    case DIFFERENCE_BINARY_CROSS_ENTROPY:
        return (1 - reference) / (1 + exp(-x)) - positive * reference / (1 + exp(x));
    case DIFFERENCE_FOCAL: return focal(attrs, x, reference, true);
    case DIFFERENCE_DIVERGENCE: return -exp(reference);
    }
    return NAN;
}

status_t reference_element_loss(const struct kernel *kernel, const struct kernel_call *call)
{
    const float *x = call->inputs[0], *reference = call->inputs[1];
    int64_t count = tensor_element_count(&kernel->desc.inputs[0]);
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        if (counts(kernel, call, i))
            sum += loss_of(&kernel->desc.attrs, x[i], reference[i], positive_of(kernel, i));
    reference_put(kernel, 0, call->outputs[0], sum * scale_of(&kernel->desc));
    return NULL;
}

status_t reference_element_loss_backward(const struct kernel *kernel,
                                         const struct kernel_call *call)
{
    const float *x = call->inputs[0], *reference = call->inputs[1];
    float *dx = call->outputs[0];
    int64_t count = tensor_element_count(&kernel->desc.inputs[0]);
    double scale = scale_of(&kernel->desc);
    for (int64_t i = 0; i < count; i++) {
        bool counted = counts(kernel, call, i);
        double slope =
            counted ? slope_of(&kernel->desc.attrs, x[i], reference[i], positive_of(kernel, i)) : 0;
        reference_put(kernel, 0, &dx[i], slope * scale);
    }
    return NULL;
}
