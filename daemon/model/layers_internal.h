/* What the tables of layers.c are made of; private to libmodel, but for layer_is_loss. */
#ifndef FSDPD_MODEL_LAYERS_INTERNAL_H
#define FSDPD_MODEL_LAYERS_INTERNAL_H

#include "model/layer.h"

/* ---- losses ---- */

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
    make_huber_loss, make_smooth_l1_loss, make_binary_cross_entropy, make_contrastive_loss,
    make_sigmoid_focal_loss, make_focal_loss, make_triplet_loss, make_clip_loss, make_divergence;

/* ---- shapes, and the functions on them ---- */

layer_make_function make_flatten, make_unflatten, make_unsqueeze, make_reshape, make_transpose,
    make_narrow, make_select, make_chunk, make_last, make_sum, make_max;

/* The type of the result for these inputs (`b` only of CONCAT), and, in `attrs`, the dimensions as
 * ops count them. INVALID_ARGUMENT for a dimension that there is not, or that is the batch's. */
status_t layer_shape(const struct layer *layer, const struct tensor_type *a,
                     const struct tensor_type *b, union op_attrs *attrs,
                     struct tensor_type *y) FSDPD_MUST_USE;

/* Whether layer_shape has the layer. */
bool layer_has_shape(const struct layer *layer);

/* Counts the dimensions of the attributes without the batch's. */
void layer_leave_out_batch(enum op_kind kind, union op_attrs *attrs);

/* ---- sequences of tokens ---- */

layer_parameters_function embedding_parameters, conv1d_parameters, layer_norm_parameters,
    rms_norm_parameters, gemma_norm_parameters;
layer_print_function embedding_print, conv1d_print, norm_print, layer_norm_print, gemma_norm_print,
    gelu_print, silu_print, nothing_print, softmax_print;
layer_make_function make_embedding, make_conv1d, make_layer_norm, make_rms_norm, make_gemma_norm,
    make_gelu, make_dim, make_attention, make_rope, make_positions, make_padding_mask,
    make_distance_buckets;

/* ---- modules of several calls: LSTM, GRU, MultiheadAttention ---- */

layer_parameters_function recurrent_parameters, multihead_parameters;
layer_print_function recurrent_print, multihead_print;
layer_make_function make_lstm, make_gru, make_multihead;

/* ---- functions of single elements ---- */

layer_print_function leaky_relu_print, elu_print;
layer_make_function make_leaky_relu, make_elu, make_relu6, make_hardswish, make_hardsigmoid,
    make_exp, make_log, make_sqrt, make_abs, make_pow, make_identity;

/* Appends "name=value", after ", " unless `text` is empty. */
void print_argument(const struct bound *bound, const char *name, struct buf *text);

/* ---- images ---- */

/* The range of a weight that reads `fan_in` numbers. */
double weight_bound(int64_t fan_in);

/* PyTorch's values for a layer with `weight`; returns the number of parameters. */
int weight_and_bias(const struct tensor_type *weight, bool bias,
                    struct layer_parameter parameters[LAYER_MAX_PARAMETERS]);

layer_parameters_function group_norm_parameters, batch_norm_parameters, conv_line_parameters;
layer_print_function avg_pool2d_print, adaptive_avg_pool2d_print, group_norm_print,
    batch_norm_print, conv_line_print, avg_pool_line_print;
layer_make_function make_conv2d, make_max_pool2d, make_conv_line, make_max_pool_line,
    make_avg_pool_line, make_adaptive_avg_pool_line, make_batch_norm_line, make_avg_pool2d,
    make_adaptive_avg_pool2d, make_group_norm, make_batch_norm, make_sync_batch_norm;

#endif
