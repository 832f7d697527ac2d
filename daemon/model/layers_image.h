/* The layers for images of layers.c's tables; private to layers.c. */
#ifndef FSDPD_MODEL_LAYERS_IMAGE_H
#define FSDPD_MODEL_LAYERS_IMAGE_H

#include "model/layer.h"

layer_parameters_function group_norm_parameters, batch_norm_parameters;
layer_print_function avg_pool2d_print, adaptive_avg_pool2d_print, group_norm_print,
    batch_norm_print;
layer_make_function make_avg_pool2d, make_adaptive_avg_pool2d, make_group_norm, make_batch_norm,
    make_sync_batch_norm;

#endif
