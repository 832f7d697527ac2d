/* What losses do; the tables of layers.c have their signatures. Pure. */
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "model/layers_internal.h"

#include "base/mem.h"
#include "yaml/yaml.h"

bool layer_is_loss(enum op_kind kind)
{
    return kind == OP_NLL_LOSS || kind == OP_CROSS_ENTROPY || kind == OP_ELEMENT_LOSS ||
           kind == OP_CONTRASTIVE_LOSS || kind == OP_PREFERENCE_LOSS ||
           kind == OP_LINEAR_CROSS_ENTROPY || kind == OP_LINEAR_CROSS_ENTROPY_BACKWARD;
}

static enum op_reduction reduction_of(const struct bound *bound)
{
    bool sum = strcmp(bound_get(bound, "reduction")->text, "sum") == 0;
    return sum ? REDUCTION_SUM : REDUCTION_MEAN;
}

status_t make_cross_entropy(const struct bound *bound, struct layer *layer)
{
    if (bound_integer(bound, "ignore_index") >= 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s(): ignore_index=%lld: only negative ones are supported; every "
                          "negative target is ignored",
                          bound->signature->name, (long long)bound_integer(bound, "ignore_index"));
    layer->attrs.loss.reduction = reduction_of(bound);
    return NULL;
}

status_t make_smooth_cross_entropy(const struct bound *bound, struct layer *layer)
{
    layer->attrs.loss.label_smoothing = bound_real(bound, "label_smoothing");
    return make_cross_entropy(bound, layer);
}

static status_t make_element_loss(const struct bound *bound, enum op_difference difference,
                                  struct layer *layer)
{
    layer->attrs.element_loss.reduction = reduction_of(bound);
    layer->attrs.element_loss.difference = difference;
    layer->attrs.element_loss.weight = 1;
    return NULL;
}

status_t make_mse_loss(const struct bound *bound, struct layer *layer)
{
    return make_element_loss(bound, DIFFERENCE_SQUARED, layer);
}

status_t make_l1_loss(const struct bound *bound, struct layer *layer)
{
    return make_element_loss(bound, DIFFERENCE_ABSOLUTE, layer);
}

status_t make_huber_loss(const struct bound *bound, struct layer *layer)
{
    layer->attrs.element_loss.delta = bound_real(bound, "delta");
    return make_element_loss(bound, DIFFERENCE_HUBER, layer);
}

/* That of Huber over its delta. */
status_t make_smooth_l1_loss(const struct bound *bound, struct layer *layer)
{
    double beta = bound_real(bound, "beta");
    TRY(make_element_loss(bound, DIFFERENCE_HUBER, layer));
    layer->attrs.element_loss.delta = beta;
    layer->attrs.element_loss.weight = 1 / beta;
    return NULL;
}

status_t make_binary_cross_entropy(const struct bound *bound, struct layer *layer)
{
    return make_element_loss(bound, DIFFERENCE_BINARY_CROSS_ENTROPY, layer);
}

status_t make_divergence(const struct bound *bound, struct layer *layer)
{
    layer->whole_rows = strcmp(bound_get(bound, "reduction")->text, "batchmean") == 0;
    layer->probabilities = !bound_boolean(bound, "log_target");
    return make_element_loss(bound, DIFFERENCE_DIVERGENCE, layer);
}

/* torchvision's; alpha below 0: none. */
status_t make_sigmoid_focal_loss(const struct bound *bound, struct layer *layer)
{
    layer->attrs.element_loss.delta = bound_real(bound, "gamma");
    layer->attrs.element_loss.alpha = bound_real(bound, "alpha");
    return make_element_loss(bound, DIFFERENCE_FOCAL, layer);
}

status_t make_focal_loss(const struct bound *bound, struct layer *layer)
{
    layer->attrs.loss.gamma = bound_real(bound, "gamma");
    return make_cross_entropy(bound, layer);
}

status_t make_triplet_loss(const struct bound *bound, struct layer *layer)
{
    layer->margin = bound_real(bound, "margin");
    layer->eps = bound_real(bound, "eps");
    layer->swap = bound_boolean(bound, "swap");
    layer->attrs.contrast.reduction = reduction_of(bound);
    if (bound_real(bound, "p") == 2) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "triplet_margin_loss(): only p=2 is supported");
}

status_t make_contrastive_loss(const struct bound *bound, struct layer *layer)
{
    layer->attrs.contrast.reduction = REDUCTION_MEAN;
    layer->attrs.contrast.factor = bound_real(bound, "scale");
    return NULL;
}

/* Its scale may be a tensor: see trace.c. */
status_t make_clip_loss(const struct bound *bound, struct layer *layer)
{
    (void)bound;
    layer->both = true;
    layer->attrs.contrast.reduction = REDUCTION_MEAN;
    layer->attrs.contrast.factor = 1;
    return NULL;
}

static status_t read_weight(const char *call, const char *argument, const struct constant *value,
                            float *weight)
{
    double real = value->kind == CONSTANT_INTEGER ? (double)value->integer : value->real;
    bool number = value->kind == CONSTANT_INTEGER || value->kind == CONSTANT_REAL;
    *weight = (float)real;
    if (number && *weight >= 0 && *weight <= FLT_MAX) return NULL;
    char found[64], excerpt[72];
    constant_format(value, found);
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s(): argument '%s': expected numbers of at least 0, found %s", call,
                      argument, yamldoc_excerpt(found, excerpt));
}

status_t layer_evaluate_numbers(const struct expression *given,
                                const struct environment *environment, const char *call,
                                const char *argument, struct op_weights *numbers, float **owned)
{
    bool literal = given->kind == EXPRESSION_LIST;
    struct constant list = {.kind = CONSTANT_LIST, .integer = given->item_count};
    if (!literal)
        TRY(status_wrap(constant_evaluate(given, environment, &list), "%s(): argument '%s'", call,
                        argument));
    if (list.kind == CONSTANT_NONE) return NULL;
    if (list.kind != CONSTANT_LIST || list.integer < 1 || list.integer > OP_MAX_WEIGHTS)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s(): argument '%s': expected a list of 1 to %d numbers, or None", call,
                          argument, OP_MAX_WEIGHTS);
    float *values = mem_alloc_array((size_t)list.integer, sizeof *values);
    status_t status = NULL;
    for (int64_t i = 0; i < list.integer && status == NULL; i++) {
        struct constant value = {.kind = CONSTANT_NONE};
        if (literal) status = constant_evaluate(given->items[i], environment, &value);
        else value = list.items[i];
        if (status == NULL) status = read_weight(call, argument, &value, &values[i]);
    }
    if (status != NULL) {
        free(values);
        return status;
    }
    *owned = values;
    *numbers = (struct op_weights){values, list.integer};
    return NULL;
}

status_t layer_set_weights(const struct bound *bound, const struct environment *environment,
                           struct layer *layer, float **owned)
{
    *owned = NULL;
    bool elements = layer->kind == OP_ELEMENT_LOSS;
    const struct signature *signature = bound->signature;
    for (int i = 0; i < signature->count; i++) {
        const char *name = signature->arguments[i].name;
        if (strcmp(name, elements ? "pos_weight" : "weight") != 0 || bound->tensors[i] == NULL)
            continue;
        return layer_evaluate_numbers(bound->tensors[i], environment, signature->name, name,
                                      elements ? &layer->attrs.element_loss.positive
                                               : &layer->attrs.loss.weights,
                                      owned);
    }
    return NULL;
}
