/* The parts of layers.c's tables that concern sequences of tokens; private to layers.c. */
#ifndef FSDPD_MODEL_LAYERS_SEQUENCE_H
#define FSDPD_MODEL_LAYERS_SEQUENCE_H

#include "model/layer.h"

layer_parameters_function embedding_parameters, conv1d_parameters, layer_norm_parameters,
    rms_norm_parameters, gemma_norm_parameters;
layer_print_function embedding_print, conv1d_print, norm_print, layer_norm_print, gemma_norm_print,
    gelu_print, silu_print, nothing_print, softmax_print;
layer_make_function make_embedding, make_conv1d, make_layer_norm, make_rms_norm, make_gemma_norm,
    make_gelu, make_dim, make_attention, make_rope, make_positions, make_padding_mask,
    make_distance_buckets;

/* Appends "name=value", after ", " unless `text` is empty. */
void print_argument(const struct bound *bound, const char *name, struct buf *text);

#endif
