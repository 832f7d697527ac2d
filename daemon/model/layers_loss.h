/* The losses of layers.c's tables; private to layers.c. */
#ifndef FSDPD_MODEL_LAYERS_LOSS_H
#define FSDPD_MODEL_LAYERS_LOSS_H

#include "model/layer.h"

/* Whether it belongs under the key 'loss'. */
bool layer_is_loss(enum op_kind kind);

layer_make_function make_cross_entropy, make_smooth_cross_entropy, make_mse_loss, make_l1_loss,
    make_huber_loss, make_binary_cross_entropy;

#endif
