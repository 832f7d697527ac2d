/*
 * Internals of the reference library: one function per op, plain loops in the order of the formula,
 * sums in double. Any layout: elements are addressed through strides.
 */
#ifndef FSDPD_KERNELS_REFERENCE_H
#define FSDPD_KERNELS_REFERENCE_H

#include "kernels/kernel.h"

typedef status_t reference_function(const struct kernel *kernel, const struct kernel_call *call);

reference_function reference_conv2d;
reference_function reference_conv2d_backward_data;
reference_function reference_conv2d_backward_weights;
reference_function reference_linear;
reference_function reference_linear_backward_data;
reference_function reference_linear_backward_weights;
reference_function reference_relu;
reference_function reference_relu_backward;
reference_function reference_max_pool2d;
reference_function reference_max_pool2d_backward;
reference_function reference_dropout;
reference_function reference_dropout_backward;
reference_function reference_reshape;
reference_function reference_add;
reference_function reference_log_softmax;
reference_function reference_log_softmax_backward;
reference_function reference_nll_loss;
reference_function reference_nll_loss_backward;
reference_function reference_cross_entropy;
reference_function reference_cross_entropy_backward;
reference_function reference_avg_pool2d;
reference_function reference_avg_pool2d_backward;
reference_function reference_group_norm;
reference_function reference_group_norm_backward;
reference_function reference_batch_norm;
reference_function reference_batch_norm_backward;
reference_function reference_batch_norm_running;
reference_function reference_batch_moments;
reference_function reference_batch_norm_sums;
reference_function reference_transpose;
reference_function reference_slice;
reference_function reference_slice_backward;
reference_function reference_concat;
reference_function reference_mean;
reference_function reference_mean_backward;
reference_function reference_tally;
reference_function reference_counted, reference_contrastive_loss,
    reference_contrastive_loss_backward, reference_contrastive_loss_backward_others;
reference_function reference_element_loss;
reference_function reference_element_loss_backward;
reference_function reference_count_correct;
reference_function reference_cast;
reference_function reference_sum_leading;
reference_function reference_mul;
reference_function reference_gelu;
/* For one element: GELU, and its derivative; `approximate` uses tanh. */
double reference_gelu_value(double x, bool approximate);
double reference_gelu_slope(double x, bool approximate);
reference_function reference_gelu_backward;
reference_function reference_scale;
reference_function reference_reciprocal;
reference_function reference_div;
reference_function reference_div_backward;
reference_function reference_sigmoid;
reference_function reference_sigmoid_backward;
reference_function reference_squared_relu;
reference_function reference_squared_relu_backward;
reference_function reference_silu;
reference_function reference_tanh;
reference_function reference_tanh_backward;
reference_function reference_silu_backward;
reference_function reference_silu_mul;
reference_function reference_silu_mul_backward;
reference_function reference_gelu_mul;
reference_function reference_gelu_mul_backward;
reference_function reference_softmax;
reference_function reference_softmax_backward;
reference_function reference_embedding;
reference_function reference_embedding_backward;
reference_function reference_arange;
reference_function reference_padding_mask;
reference_function reference_token_positions, reference_distance_buckets;
reference_function reference_layer_norm;
reference_function reference_layer_norm_backward;
reference_function reference_rms_norm;
reference_function reference_rms_norm_backward;
reference_function reference_rope; /* serves backward too */
reference_function reference_attention;
reference_function reference_attention_backward;
reference_function reference_linear_cross_entropy;
reference_function reference_linear_cross_entropy_backward;

/* Bytes of workspace that attention and the head need. */
uint64_t reference_attention_workspace(const struct op_desc *desc);
uint64_t reference_head_workspace(const struct op_desc *desc);

/* Distances in elements between neighbours along each of four dimensions. */
struct strides {
    int64_t n, c, h, w;
};
struct strides reference_strides(const struct tensor_type *type);

/* The offset in memory of the element with this index in plain order. */
int64_t reference_offset(const struct tensor_type *type, int64_t index);

/* Writes an element of an output, or adds to it, as the op requires. */
static inline void reference_put(const struct kernel *kernel, int output, float *to, double value)
{
    *to = (float)(kernel->desc.accumulate[output] ? *to + value : value);
}

#endif
