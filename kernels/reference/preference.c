/* Reference of the loss of pairs of sequences; see PREFERENCE_LOSS in ops/op.h. */
#include <math.h>

#include "kernels/reference/reference.h"

static double log_sum(const float *x, int64_t classes)
{
    double max = -INFINITY, sum = 0;
    for (int64_t c = 0; c < classes; c++) max = fmax(max, x[c]);
    for (int64_t c = 0; c < classes; c++) sum += exp(x[c] - max);
    return max + log(sum);
}

status_t reference_sequence_log_probs(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct tensor_type *x = &kernel->desc.inputs[0];
    const float *scores = call->inputs[0];
    const int32_t *target = call->inputs[1];
    float *y = call->outputs[0], *counts = call->outputs[1], *lse = call->outputs[2];
    for (int64_t row = 0; row < x->dims[0]; row++) {
        double sum = 0, count = 0;
        for (int64_t at = row * x->dims[1]; at < (row + 1) * x->dims[1]; at++) {
            const float *own = scores + at * x->dims[2];
            double all = log_sum(own, x->dims[2]);
            reference_put(kernel, 2, &lse[at], all);
            if (target[at] < 0) continue;
            sum += own[target[at]] - all;
            count++;
        }
        reference_put(kernel, 0, &y[row], sum);
        reference_put(kernel, 1, &counts[row], count);
    }
    return NULL;
}

status_t reference_sequence_log_probs_backward(const struct kernel *kernel,
                                               const struct kernel_call *call)
{
    const struct tensor_type *x = &kernel->desc.inputs[1];
    const float *dy = call->inputs[0], *scores = call->inputs[1], *lse = call->inputs[3];
    const int32_t *target = call->inputs[2];
    float *dx = call->outputs[0];
    int64_t places = x->dims[0] * x->dims[1], classes = x->dims[2];
    for (int64_t at = 0; at < places; at++)
        for (int64_t c = 0; c < classes; c++) {
            double share = (c == target[at]) - exp(scores[at * classes + c] - (double)lse[at]);
            reference_put(kernel, 0, &dx[at * classes + c],
                          target[at] >= 0 ? share * dy[at / x->dims[1]] : 0);
        }
    return NULL;
}

/* log(1 / (1 + exp(-x))) */
static double log_sigmoid(double x)
{
    return x < 0 ? x - log1p(exp(x)) : -log1p(exp(-x));
}

/* The loss of one pair, and its slope by the difference. */
struct pair_loss {
    double loss, slope;
};

static struct pair_loss loss_of(const union op_attrs *attrs, double difference)
{
    double beta = attrs->preference.beta, rest = attrs->preference.label_smoothing;
    double margin = beta * difference, far = difference - 1 / (2 * beta);
    switch (attrs->preference.kind) {
    case PREFERENCE_IPO: return (struct pair_loss){far * far, 2 * far};
    case PREFERENCE_HINGE:
        return margin >= 1 ? (struct pair_loss){0, 0} : (struct pair_loss){1 - margin, -beta};
    case PREFERENCE_SIGMOID: break;
    }
    double wrong = exp(log_sigmoid(-margin)), right = exp(log_sigmoid(margin));
    return (struct pair_loss){-(1 - rest) * log_sigmoid(margin) - rest * log_sigmoid(-margin),
                              beta * (rest * right - (1 - rest) * wrong)};
}

status_t reference_preference_loss(const struct kernel *kernel, const struct kernel_call *call)
{
    const union op_attrs *attrs = &kernel->desc.attrs;
    const float *own = call->inputs[0], *reference = call->inputs[1], *counts = call->inputs[2];
    float *dx = call->outputs[2], *figures = call->outputs[1];
    int64_t pairs = tensor_element_count(&kernel->desc.inputs[0]) / 2;
    double scale = op_loss_scale(&kernel->desc, pairs), loss = 0, sums[PREFERENCE_SUMS] = {0};
    bool means = attrs->preference.kind == PREFERENCE_IPO;
    for (int64_t i = 0; i < 2 * pairs; i += 2) {
        bool pair = counts[i] > 0 && counts[i + 1] > 0;
        double parts[2] = {pair && means ? 1 / (double)counts[i] : 1,
                           pair && means ? 1 / (double)counts[i + 1] : 1};
        double ratios[2] = {(double)own[i], (double)own[i + 1]};
        for (int k = 0; k < 2 && reference != NULL; k++) ratios[k] -= reference[i + k];
        struct pair_loss of = loss_of(attrs, ratios[0] * parts[0] - ratios[1] * parts[1]);
        reference_put(kernel, 2, &dx[i], pair ? of.slope * parts[0] * scale : 0);
        reference_put(kernel, 2, &dx[i + 1], pair ? -of.slope * parts[1] * scale : 0);
        if (!pair) continue;
        loss += of.loss;
        for (int k = 0; k < 2; k++) {
            sums[PREFERENCE_LOGPS_CHOSEN + k] += own[i + k];
            sums[PREFERENCE_REWARDS_CHOSEN + k] += attrs->preference.beta * ratios[k];
        }
        sums[PREFERENCE_ACCURACIES] += ratios[0] > ratios[1];
    }
    reference_put(kernel, 0, call->outputs[0], loss * scale);
    for (int k = 0; k < PREFERENCE_SUMS; k++) reference_put(kernel, 1, &figures[k], sums[k]);
    return NULL;
}
