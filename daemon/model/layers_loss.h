/* The losses of layers.c's tables. Others need only layer_is_loss. */
#ifndef FSDPD_MODEL_LAYERS_LOSS_H
#define FSDPD_MODEL_LAYERS_LOSS_H

#include "model/layer.h"

/* The one list of losses: what belongs under the key 'loss', and what a graph makes of that with a
 * head. */
bool layer_is_loss(enum op_kind kind);

/*
 * The weights that a call gives its loss, in `owned` (the caller frees; NULL: none) and the layer.
 * They are a list of numbers: in the call, or an argument of the model.
 */
status_t layer_set_weights(const struct bound *bound, const struct environment *environment,
                           struct layer *layer, float **owned) FSDPD_MUST_USE;

/*
 * The elements of a list of the call, or of the list that `given` is, in `owned` (the caller frees;
 * NULL: it is None): numbers of at least 0. `call` and `argument` are for messages.
 */
status_t layer_evaluate_numbers(const struct expression *given,
                                const struct environment *environment, const char *call,
                                const char *argument, struct op_weights *numbers,
                                float **owned) FSDPD_MUST_USE;

layer_make_function make_cross_entropy, make_smooth_cross_entropy, make_mse_loss, make_l1_loss,
    make_huber_loss, make_binary_cross_entropy, make_contrastive_loss;

#endif
