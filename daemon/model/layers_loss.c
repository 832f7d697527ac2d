/* What losses do; the tables of layers.c have their signatures. Pure. */
#include <string.h>

#include "model/layers_loss.h"

bool layer_is_loss(enum op_kind kind)
{
    return kind == OP_NLL_LOSS || kind == OP_CROSS_ENTROPY || kind == OP_ELEMENT_LOSS;
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

status_t make_binary_cross_entropy(const struct bound *bound, struct layer *layer)
{
    return make_element_loss(bound, DIFFERENCE_BINARY_CROSS_ENTROPY, layer);
}
