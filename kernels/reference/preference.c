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

/* The place of the first token of the row, or of the document, that has the one at `at`. */
static int64_t first_of(const struct tensor_type *x, const int32_t *starts, int64_t at)
{
    int64_t row = at / x->dims[1] * x->dims[1];
    return row + (starts != NULL ? starts[at] : 0);
}

status_t reference_sequence_log_probs(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct tensor_type *x = &kernel->desc.inputs[0];
    const float *scores = call->inputs[0];
    const int32_t *target = call->inputs[1];
    float *y = call->outputs[0], *counts = call->outputs[1], *lse = call->outputs[2];
    const int32_t *starts = kernel->desc.input_present[2] ? call->inputs[2] : NULL;
    int64_t places = x->dims[0] * x->dims[1];
    double sum = 0, count = 0;
    for (int64_t at = 0; at < places; at++) {
        const float *own = scores + at * x->dims[2];
        double all = log_sum(own, x->dims[2]);
        reference_put(kernel, 2, &lse[at], all);
        if (target[at] >= 0) sum += own[target[at]] - all, count++;
        int64_t first = first_of(x, starts, at), made = starts != NULL ? first : at / x->dims[1];
        if (starts != NULL && first != at) {
            reference_put(kernel, 0, &y[at], 0);
            reference_put(kernel, 1, &counts[at], 0);
        }
        if (at + 1 < places && first_of(x, starts, at + 1) == first) continue;
        reference_put(kernel, 0, &y[made], sum);
        reference_put(kernel, 1, &counts[made], count);
        sum = count = 0;
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
    const int32_t *starts = kernel->desc.input_present[4] ? call->inputs[4] : NULL;
    for (int64_t at = 0; at < places; at++)
        for (int64_t c = 0; c < classes; c++) {
            int64_t made = starts != NULL ? first_of(x, starts, at) : at / x->dims[1];
            double share = (c == target[at]) - exp(scores[at * classes + c] - (double)lse[at]);
            reference_put(kernel, 0, &dx[at * classes + c], target[at] >= 0 ? share * dy[made] : 0);
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

/* The places of a pair: those of its texts' numbers. */
struct pair_walk {
    const struct tensor_type *x;
    const int32_t *starts; /* NULL: neighbours */
    int64_t next;          /* place */
};

/* The place of the first document that begins at `at` or behind it in the same row, or the end of
 * the row. */
static int64_t next_document(const struct pair_walk *walk, int64_t at)
{
    int64_t time = walk->x->dims[1], end = (at - 1) / time * time + time;
    while (at < end && walk->starts[at] != at % time) at++;
    return at;
}

static bool next_pair(struct pair_walk *walk, int64_t places[2])
{
    int64_t all = tensor_element_count(walk->x);
    if (walk->starts == NULL) {
        places[0] = walk->next;
        places[1] = walk->next + 1;
        walk->next += 2;
        return places[1] < all;
    }
    while (walk->next < all) {
        places[0] = walk->next;
        places[1] = next_document(walk, walk->next + 1);
        bool alone = places[1] % walk->x->dims[1] == 0; /* the last document of its row */
        walk->next = alone ? places[1] : next_document(walk, places[1] + 1);
        if (!alone) return true;
    }
    return false;
}

/* The places of a pair's numbers: of documents those that count, of which each has one. */
static bool find_numbers(const struct pair_walk *walk, const float *counts, int64_t places[2])
{
    const int64_t ends[2] = {walk->starts != NULL ? places[1] : places[0] + 1,
                             walk->starts != NULL ? walk->next : places[1] + 1};
    for (int k = 0; k < 2; k++) {
        while (places[k] < ends[k] && !(counts[places[k]] > 0)) places[k]++;
        if (places[k] == ends[k]) return false;
    }
    return true;
}

status_t reference_preference_loss(const struct kernel *kernel, const struct kernel_call *call)
{
    const union op_attrs *attrs = &kernel->desc.attrs;
    const float *own = call->inputs[0], *reference = call->inputs[1], *counts = call->inputs[2];
    float *dx = call->outputs[2], *figures = call->outputs[1];
    const struct tensor_type *x = &kernel->desc.inputs[0];
    struct pair_walk walk = {x, kernel->desc.input_present[3] ? call->inputs[3] : NULL, 0};
    int64_t all = tensor_element_count(x), places[2];
    double scale = op_loss_scale(&kernel->desc, walk.starts != NULL ? x->dims[0] : all / 2);
    double loss = 0, sums[PREFERENCE_SUMS] = {0};
    bool means = attrs->preference.kind == PREFERENCE_IPO;
    for (int64_t i = 0; i < all; i++) reference_put(kernel, 2, &dx[i], 0);
    while (next_pair(&walk, places)) {
        if (!find_numbers(&walk, counts, places)) continue;
        int64_t i = places[0], j = places[1];
        double parts[2] = {means ? 1 / (double)counts[i] : 1, means ? 1 / (double)counts[j] : 1};
        double ratios[2] = {(double)own[i], (double)own[j]};
        for (int k = 0; k < 2 && reference != NULL; k++) ratios[k] -= reference[places[k]];
        struct pair_loss of = loss_of(attrs, ratios[0] * parts[0] - ratios[1] * parts[1]);
        reference_put(kernel, 2, &dx[i], of.slope * parts[0] * scale);
        reference_put(kernel, 2, &dx[j], -of.slope * parts[1] * scale);
        loss += of.loss;
        for (int k = 0; k < 2; k++) {
            sums[PREFERENCE_LOGPS_CHOSEN + k] += own[places[k]];
            sums[PREFERENCE_REWARDS_CHOSEN + k] += attrs->preference.beta * ratios[k];
        }
        sums[PREFERENCE_ACCURACIES] += ratios[0] > ratios[1];
    }
    reference_put(kernel, 0, call->outputs[0], loss * scale);
    for (int k = 0; k < PREFERENCE_SUMS; k++) reference_put(kernel, 1, &figures[k], sums[k]);
    return NULL;
}
