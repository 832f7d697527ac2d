/* Which of our kernels runs each op, and what it needs; see cuda.h. */
#include "kernels/cuda/generation.h"
#include "kernels/linear_rows.h"
#include "kernels/rope.h"

struct entry {
    cuda_run *run;
    uint64_t (*workspace)(const struct op_desc *desc); /* NULL: none */
};

static const struct entry entries[OP_KIND_COUNT] = {
    [OP_CONV2D] = {cuda_run_conv, NULL},
    [OP_CONV2D_BACKWARD_DATA] = {cuda_run_conv, NULL},
    [OP_CONV2D_BACKWARD_WEIGHTS] = {cuda_run_conv, NULL},
    [OP_LINEAR] = {cuda_run_linear_rows, NULL},
    [OP_RELU] = {cuda_run_element, NULL},
    [OP_RELU_BACKWARD] = {cuda_run_element, NULL},
    [OP_MAX_POOL2D] = {cuda_run_pool, NULL},
    [OP_MAX_POOL2D_BACKWARD] = {cuda_run_pool, NULL},
    [OP_DROPOUT] = {cuda_run_dropout, NULL},
    [OP_DROPOUT_BACKWARD] = {cuda_run_dropout, NULL},
    [OP_RESHAPE] = {cuda_run_element, NULL},
    [OP_ADD] = {cuda_run_element, NULL},
    [OP_LOG_SOFTMAX] = {cuda_run_softmax, NULL},
    [OP_LOG_SOFTMAX_BACKWARD] = {cuda_run_softmax_backward, NULL},
    [OP_NLL_LOSS] = {cuda_run_nll_loss, cuda_row_bytes},
    [OP_NLL_LOSS_BACKWARD] = {cuda_run_nll_loss_backward, NULL},
    [OP_CROSS_ENTROPY] = {cuda_run_cross_entropy, cuda_row_bytes},
    [OP_CROSS_ENTROPY_BACKWARD] = {cuda_run_cross_entropy_backward, NULL},
    [OP_AVG_POOL2D] = {cuda_run_avg_pool, NULL},
    [OP_AVG_POOL2D_BACKWARD] = {cuda_run_avg_pool, NULL},
    [OP_GROUP_NORM] = {cuda_run_group_norm, NULL},
    [OP_GROUP_NORM_BACKWARD] = {cuda_run_group_norm, NULL},
    [OP_BATCH_NORM] = {cuda_run_batch_norm, cuda_batch_norm_bytes},
    [OP_BATCH_NORM_BACKWARD] = {cuda_run_batch_norm, NULL},
    [OP_BATCH_NORM_RUNNING] = {cuda_run_batch_norm, NULL},
    [OP_BATCH_MOMENTS] = {cuda_run_batch_norm, NULL},
    [OP_BATCH_NORM_SUMS] = {cuda_run_batch_norm, NULL},
    [OP_TRANSPOSE] = {cuda_run_shape, NULL},
    [OP_SLICE] = {cuda_run_shape, NULL},
    [OP_SLICE_BACKWARD] = {cuda_run_shape, NULL},
    [OP_CONCAT] = {cuda_run_shape, NULL},
    [OP_MEAN] = {cuda_run_shape, NULL},
    [OP_MEAN_BACKWARD] = {cuda_run_shape, NULL},
    [OP_COUNTED] = {cuda_run_counted, NULL},
    [OP_CONTRASTIVE_LOSS] = {cuda_run_contrast, cuda_row_bytes},
    [OP_CONTRASTIVE_LOSS_BACKWARD] = {cuda_run_contrast_backward, NULL},
    [OP_CONTRASTIVE_LOSS_BACKWARD_OTHERS] = {cuda_run_contrast_backward, NULL},
    [OP_SEQUENCE_LOG_PROBS] = {cuda_run_sequence_log_probs, cuda_row_bytes},
    [OP_SEQUENCE_LOG_PROBS_BACKWARD] = {cuda_run_sequence_log_probs_backward, NULL},
    [OP_PREFERENCE_LOSS] = {cuda_run_preference_loss, NULL},
    [OP_TALLY] = {cuda_run_tally, cuda_row_bytes},
    [OP_ELEMENT_LOSS] = {cuda_run_element_loss, cuda_element_loss_bytes},
    [OP_ELEMENT_LOSS_BACKWARD] = {cuda_run_element_loss_backward, NULL},
    [OP_COUNT_CORRECT] = {cuda_run_count_correct, cuda_row_bytes},
    [OP_CAST] = {cuda_run_cast, NULL},
    [OP_SUM_LEADING] = {cuda_run_sum_leading, cuda_sum_leading_bytes},
    [OP_MUL] = {cuda_run_element, NULL},
    [OP_GELU] = {cuda_run_element, NULL},
    [OP_GELU_BACKWARD] = {cuda_run_element, NULL},
    [OP_TANH] = {cuda_run_element, NULL},
    [OP_TANH_BACKWARD] = {cuda_run_element, NULL},
    [OP_SCALE] = {cuda_run_element, NULL},
    [OP_RECIPROCAL] = {cuda_run_element, NULL},
    [OP_DIV] = {cuda_run_element, NULL},
    [OP_DIV_BACKWARD] = {cuda_run_element, NULL},
    [OP_SIGMOID] = {cuda_run_element, NULL},
    [OP_SIGMOID_BACKWARD] = {cuda_run_element, NULL},
    [OP_SQUARED_RELU] = {cuda_run_element, NULL},
    [OP_SQUARED_RELU_BACKWARD] = {cuda_run_element, NULL},
    [OP_FUNCTION] = {cuda_run_element, NULL},
    [OP_FUNCTION_BACKWARD] = {cuda_run_element, NULL},
    [OP_RECURRENT] = {cuda_run_recurrent, cuda_recurrent_bytes},
    [OP_RECURRENT_BACKWARD] = {cuda_run_recurrent_backward, cuda_recurrent_bytes},
    [OP_SILU] = {cuda_run_element, NULL},
    [OP_SILU_BACKWARD] = {cuda_run_element, NULL},
    [OP_SILU_MUL] = {cuda_run_element, NULL},
    [OP_SILU_MUL_BACKWARD] = {cuda_run_element, NULL},
    [OP_GELU_MUL] = {cuda_run_element, NULL},
    [OP_GELU_MUL_BACKWARD] = {cuda_run_element, NULL},
    [OP_SOFTMAX] = {cuda_run_softmax, NULL},
    [OP_SOFTMAX_BACKWARD] = {cuda_run_softmax_backward, NULL},
    [OP_EMBEDDING] = {cuda_run_embedding, NULL},
    [OP_EMBEDDING_BACKWARD] = {cuda_run_embedding_backward, cuda_embedding_backward_bytes},
    [OP_ARANGE] = {cuda_run_tokens, NULL},
    [OP_PADDING_MASK] = {cuda_run_tokens, NULL},
    [OP_TOKEN_POSITIONS] = {cuda_run_tokens, NULL},
    [OP_DISTANCE_BUCKETS] = {cuda_run_tokens, NULL},
    [OP_TOKENS] = {cuda_run_tokens, NULL},
    [OP_LAYER_NORM] = {cuda_run_norm, NULL},
    [OP_LAYER_NORM_BACKWARD] = {cuda_run_norm_backward, cuda_norm_backward_bytes},
    [OP_RMS_NORM] = {cuda_run_norm, NULL},
    [OP_RMS_NORM_BACKWARD] = {cuda_run_norm_backward, cuda_norm_backward_bytes},
    [OP_ROPE] = {cuda_run_rope, NULL},
    [OP_ROPE_BACKWARD] = {cuda_run_rope, NULL},
    [OP_ATTENTION] = {cuda_run_attention, NULL},
    [OP_ATTENTION_BACKWARD] = {cuda_run_attention_backward, cuda_attention_bytes},
};

enum { HEAD_DIM_MAX = 256 };

static bool is_plain(const struct tensor_type *type)
{
    return type->layout == LAYOUT_PLAIN;
}

static status_t check_layouts(const struct op_desc *desc)
{
    bool plain = true;
    for (int i = 0; i < desc->input_count; i++)
        plain = plain && (!desc->input_present[i] || is_plain(&desc->inputs[i]));
    for (int i = 0; i < desc->output_count; i++)
        plain = plain && (!desc->output_present[i] || is_plain(&desc->outputs[i]));
    if (plain) return NULL;
    return status_new(STATUS_UNIMPLEMENTED, "cuda: op %s has no kernel for tensors channels last",
                      op_info_get(desc->kind)->name);
}

/* Checks the sizes against the limits of kernels' grids, tables and tiles. */
static status_t check_sizes(const struct op_desc *desc)
{
    const char *name = op_info_get(desc->kind)->name;
    if (desc->kind == OP_ROPE || desc->kind == OP_ROPE_BACKWARD) {
        int64_t pairs = desc->attrs.rope.head_dim / 2;
        if (pairs > CUDA_ROPE_PAIRS_MAX)
            return status_new(STATUS_UNIMPLEMENTED,
                              "cuda: op %s has no kernel for %lld columns to a head; at most %d",
                              name, (long long)(2 * pairs), 2 * CUDA_ROPE_PAIRS_MAX);
    }
    if (desc->kind == OP_ATTENTION || desc->kind == OP_ATTENTION_BACKWARD) {
        const struct tensor_type *y =
            desc->kind == OP_ATTENTION ? &desc->outputs[0] : &desc->inputs[0];
        int64_t head_dim = y->dims[2] / desc->attrs.attention.heads;
        if (desc->attrs.attention.alibi > 0)
            return status_new(STATUS_UNIMPLEMENTED, "cuda: op %s has no kernel with alibi", name);
        if (head_dim > HEAD_DIM_MAX)
            return status_new(STATUS_UNIMPLEMENTED,
                              "cuda: op %s has no kernel for %lld columns to a head; at most %d",
                              name, (long long)head_dim, HEAD_DIM_MAX);
        int64_t biases = 2 * y->dims[1] * desc->attrs.attention.heads; /* indices are 32 bits */
        if (biases > INT32_MAX)
            return status_new(STATUS_UNIMPLEMENTED,
                              "cuda: op %s has no kernel for %lld tokens and %lld heads", name,
                              (long long)y->dims[1], (long long)desc->attrs.attention.heads);
    }
    bool gradient = desc->kind == OP_BATCH_NORM_BACKWARD || desc->kind == OP_BATCH_NORM_SUMS;
    if (gradient || desc->kind == OP_BATCH_NORM || desc->kind == OP_BATCH_NORM_RUNNING ||
        desc->kind == OP_BATCH_MOMENTS) {
        const struct tensor_type *x = &desc->inputs[gradient];
        int64_t elements = tensor_element_count(x) / x->dims[1];
        if (elements > INT32_MAX / 2 || x->dims[1] > INT32_MAX)
            return status_new(STATUS_UNIMPLEMENTED,
                              "cuda: op %s has no kernel for %lld elements to a channel", name,
                              (long long)elements);
    }
    if (desc->kind == OP_EMBEDDING_BACKWARD &&
        tensor_element_count(&desc->inputs[0]) > INT32_MAX / 16)
        return status_new(STATUS_UNIMPLEMENTED, "cuda: op %s has no kernel for %lld tokens", name,
                          (long long)tensor_element_count(&desc->inputs[0]));
    return NULL;
}

status_t cuda_op_prepare(const struct op_desc *desc, struct cuda_op *op)
{
    const struct entry *entry = &entries[desc->kind];
    const bool cached = desc->kind == OP_ATTENTION && desc->output_present[2];
    if (entry->run == NULL || (desc->kind == OP_LINEAR && !linear_keeps_rows_apart(desc)))
        return status_new(STATUS_UNIMPLEMENTED, "cuda: op %s has no kernel",
                          op_info_get(desc->kind)->name);
    TRY(check_layouts(desc));
    TRY(check_sizes(desc));
    *op = (struct cuda_op){.desc = *desc, .run = cached ? cuda_run_attention_cached : entry->run};
    if (entry->workspace != NULL) op->workspace_bytes = entry->workspace(desc);
    if (desc->kind == OP_ROPE || desc->kind == OP_ROPE_BACKWARD)
        rope_frequencies(desc, op->frequencies);
    return NULL;
}
