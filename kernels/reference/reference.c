/* The reference library: which function runs each op, and how elements are addressed. */
#include "kernels/reference/reference.h"

static reference_function *const functions[OP_KIND_COUNT] = {
    [OP_CONV2D] = reference_conv2d,
    [OP_CONV2D_BACKWARD_DATA] = reference_conv2d_backward_data,
    [OP_CONV2D_BACKWARD_WEIGHTS] = reference_conv2d_backward_weights,
    [OP_LINEAR] = reference_linear,
    [OP_LINEAR_BACKWARD_DATA] = reference_linear_backward_data,
    [OP_LINEAR_BACKWARD_WEIGHTS] = reference_linear_backward_weights,
    [OP_RELU] = reference_relu,
    [OP_RELU_BACKWARD] = reference_relu_backward,
    [OP_MAX_POOL2D] = reference_max_pool2d,
    [OP_MAX_POOL2D_BACKWARD] = reference_max_pool2d_backward,
    [OP_DROPOUT] = reference_dropout,
    [OP_DROPOUT_BACKWARD] = reference_dropout_backward,
    [OP_RESHAPE] = reference_reshape,
    [OP_ADD] = reference_add,
    [OP_LOG_SOFTMAX] = reference_log_softmax,
    [OP_LOG_SOFTMAX_BACKWARD] = reference_log_softmax_backward,
    [OP_NLL_LOSS] = reference_nll_loss,
    [OP_NLL_LOSS_BACKWARD] = reference_nll_loss_backward,
    [OP_CROSS_ENTROPY] = reference_cross_entropy,
    [OP_CROSS_ENTROPY_BACKWARD] = reference_cross_entropy_backward,
    [OP_AVG_POOL2D] = reference_avg_pool2d,
    [OP_AVG_POOL2D_BACKWARD] = reference_avg_pool2d_backward,
    [OP_GROUP_NORM] = reference_group_norm,
    [OP_GROUP_NORM_BACKWARD] = reference_group_norm_backward,
    [OP_BATCH_NORM] = reference_batch_norm,
    [OP_BATCH_NORM_BACKWARD] = reference_batch_norm_backward,
    [OP_BATCH_NORM_RUNNING] = reference_batch_norm_running,
    [OP_BATCH_MOMENTS] = reference_batch_moments,
    [OP_BATCH_NORM_SUMS] = reference_batch_norm_sums,
    [OP_TRANSPOSE] = reference_transpose,
    [OP_SLICE] = reference_slice,
    [OP_SLICE_BACKWARD] = reference_slice_backward,
    [OP_CONCAT] = reference_concat,
    [OP_MEAN] = reference_mean,
    [OP_MEAN_BACKWARD] = reference_mean_backward,
    [OP_COUNTED] = reference_counted,
    [OP_CONTRASTIVE_LOSS] = reference_contrastive_loss,
    [OP_CONTRASTIVE_LOSS_BACKWARD] = reference_contrastive_loss_backward,
    [OP_CONTRASTIVE_LOSS_BACKWARD_OTHERS] = reference_contrastive_loss_backward_others,
    [OP_TALLY] = reference_tally,
    [OP_ELEMENT_LOSS] = reference_element_loss,
    [OP_ELEMENT_LOSS_BACKWARD] = reference_element_loss_backward,
    [OP_COUNT_CORRECT] = reference_count_correct,
    [OP_CAST] = reference_cast,
    [OP_SUM_LEADING] = reference_sum_leading,
    [OP_MUL] = reference_mul,
    [OP_GELU] = reference_gelu,
    [OP_GELU_BACKWARD] = reference_gelu_backward,
    [OP_TANH] = reference_tanh,
    [OP_TANH_BACKWARD] = reference_tanh_backward,
    [OP_SILU] = reference_silu,
    [OP_SILU_BACKWARD] = reference_silu_backward,
    [OP_SILU_MUL] = reference_silu_mul,
    [OP_SILU_MUL_BACKWARD] = reference_silu_mul_backward,
    [OP_GELU_MUL] = reference_gelu_mul,
    [OP_GELU_MUL_BACKWARD] = reference_gelu_mul_backward,
    [OP_SOFTMAX] = reference_softmax,
    [OP_SOFTMAX_BACKWARD] = reference_softmax_backward,
    [OP_EMBEDDING] = reference_embedding,
    [OP_EMBEDDING_BACKWARD] = reference_embedding_backward,
    [OP_ARANGE] = reference_arange,
    [OP_PADDING_MASK] = reference_padding_mask,
    [OP_TOKEN_POSITIONS] = reference_token_positions,
    [OP_DISTANCE_BUCKETS] = reference_distance_buckets,
    [OP_LAYER_NORM] = reference_layer_norm,
    [OP_LAYER_NORM_BACKWARD] = reference_layer_norm_backward,
    [OP_RMS_NORM] = reference_rms_norm,
    [OP_RMS_NORM_BACKWARD] = reference_rms_norm_backward,
    [OP_ROPE] = reference_rope,
    [OP_ROPE_BACKWARD] = reference_rope,
    [OP_ATTENTION] = reference_attention,
    [OP_ATTENTION_BACKWARD] = reference_attention_backward,
    [OP_LINEAR_CROSS_ENTROPY] = reference_linear_cross_entropy,
    [OP_LINEAR_CROSS_ENTROPY_BACKWARD] = reference_linear_cross_entropy_backward,
    [OP_SCALE] = reference_scale,
    [OP_RECIPROCAL] = reference_reciprocal,
    [OP_DIV] = reference_div,
    [OP_DIV_BACKWARD] = reference_div_backward,
    [OP_SIGMOID] = reference_sigmoid,
    [OP_SIGMOID_BACKWARD] = reference_sigmoid_backward,
    [OP_SQUARED_RELU] = reference_squared_relu,
    [OP_SQUARED_RELU_BACKWARD] = reference_squared_relu_backward,
};

static uint64_t workspace_of(const struct op_desc *desc)
{
    switch (desc->kind) {
    case OP_ROPE:
    case OP_ROPE_BACKWARD: return (uint64_t)desc->attrs.rope.head_dim / 2 * sizeof(float);
    case OP_ATTENTION:
    case OP_ATTENTION_BACKWARD: return reference_attention_workspace(desc);
    case OP_LINEAR_CROSS_ENTROPY:
    case OP_LINEAR_CROSS_ENTROPY_BACKWARD: return reference_head_workspace(desc);
    default: return 0;
    }
}

status_t reference_prepare(struct kernel *kernel)
{
    kernel->workspace_bytes = workspace_of(&kernel->desc);
    kernel->run = functions[kernel->desc.kind];
    if (kernel->run == NULL)
        return status_new(STATUS_UNIMPLEMENTED, "%s: there is no kernel yet", kernel_name(kernel));
    return NULL;
}

struct strides reference_strides(const struct tensor_type *type)
{
    int64_t c = type->dims[1], h = type->dims[2], w = type->dims[3];
    if (type->layout == LAYOUT_CHANNELS_LAST)
        return (struct strides){.n = c * h * w, .c = 1, .h = w * c, .w = c};
    return (struct strides){.n = c * h * w, .c = h * w, .h = w, .w = 1};
}

int64_t reference_offset(const struct tensor_type *type, int64_t index)
{
    if (type->layout == LAYOUT_PLAIN) return index;
    struct strides s = reference_strides(type);
    int64_t w = index % type->dims[3], h = index / type->dims[3] % type->dims[2];
    int64_t plane = index / (type->dims[3] * type->dims[2]);
    return plane / type->dims[1] * s.n + plane % type->dims[1] * s.c + h * s.h + w * s.w;
}
