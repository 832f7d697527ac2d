/*
 * Internals of the reference library: one function per op, plain loops in the order of the formula,
 * sums in double. Any layout: elements are addressed through strides.
 */
#ifndef FSDPD_KERNELS_REFERENCE_H
#define FSDPD_KERNELS_REFERENCE_H

#include "kernels/kernel.h"

typedef status_t reference_function(const struct kernel *kernel, const struct kernel_call *call);

/* ROW(KIND, name): reference_NAME runs the op KIND. */
#define REFERENCE_FUNCTIONS(ROW)                                                                   \
    ROW(CONV2D, conv2d)                                                                            \
    ROW(CONV2D_BACKWARD_DATA, conv2d_backward_data)                                                \
    ROW(CONV2D_BACKWARD_WEIGHTS, conv2d_backward_weights)                                          \
    ROW(LINEAR, linear)                                                                            \
    ROW(LINEAR_BACKWARD_DATA, linear_backward_data)                                                \
    ROW(LINEAR_BACKWARD_WEIGHTS, linear_backward_weights)                                          \
    ROW(RELU, relu)                                                                                \
    ROW(RELU_BACKWARD, relu_backward)                                                              \
    ROW(MAX_POOL2D, max_pool2d)                                                                    \
    ROW(MAX_POOL2D_BACKWARD, max_pool2d_backward)                                                  \
    ROW(DROPOUT, dropout)                                                                          \
    ROW(DROPOUT_BACKWARD, dropout_backward)                                                        \
    ROW(RESHAPE, reshape)                                                                          \
    ROW(ADD, add)                                                                                  \
    ROW(LOG_SOFTMAX, log_softmax)                                                                  \
    ROW(LOG_SOFTMAX_BACKWARD, log_softmax_backward)                                                \
    ROW(NLL_LOSS, nll_loss)                                                                        \
    ROW(NLL_LOSS_BACKWARD, nll_loss_backward)                                                      \
    ROW(CROSS_ENTROPY, cross_entropy)                                                              \
    ROW(CROSS_ENTROPY_BACKWARD, cross_entropy_backward)                                            \
    ROW(AVG_POOL2D, avg_pool2d)                                                                    \
    ROW(AVG_POOL2D_BACKWARD, avg_pool2d_backward)                                                  \
    ROW(GROUP_NORM, group_norm)                                                                    \
    ROW(GROUP_NORM_BACKWARD, group_norm_backward)                                                  \
    ROW(BATCH_NORM, batch_norm)                                                                    \
    ROW(BATCH_NORM_BACKWARD, batch_norm_backward)                                                  \
    ROW(BATCH_NORM_RUNNING, batch_norm_running)                                                    \
    ROW(BATCH_MOMENTS, batch_moments)                                                              \
    ROW(BATCH_NORM_SUMS, batch_norm_sums)                                                          \
    ROW(TRANSPOSE, transpose)                                                                      \
    ROW(SLICE, slice)                                                                              \
    ROW(SLICE_BACKWARD, slice_backward)                                                            \
    ROW(CONCAT, concat)                                                                            \
    ROW(MEAN, mean)                                                                                \
    ROW(MEAN_BACKWARD, mean_backward)                                                              \
    ROW(COUNTED, counted)                                                                          \
    ROW(CONTRASTIVE_LOSS, contrastive_loss)                                                        \
    ROW(CONTRASTIVE_LOSS_BACKWARD, contrastive_loss_backward)                                      \
    ROW(CONTRASTIVE_LOSS_BACKWARD_OTHERS, contrastive_loss_backward_others)                        \
    ROW(SEQUENCE_LOG_PROBS, sequence_log_probs)                                                    \
    ROW(SEQUENCE_LOG_PROBS_BACKWARD, sequence_log_probs_backward)                                  \
    ROW(PREFERENCE_LOSS, preference_loss)                                                          \
    ROW(TALLY, tally)                                                                              \
    ROW(ELEMENT_LOSS, element_loss)                                                                \
    ROW(ELEMENT_LOSS_BACKWARD, element_loss_backward)                                              \
    ROW(RECURRENT, recurrent)                                                                      \
    ROW(RECURRENT_BACKWARD, recurrent_backward)                                                    \
    ROW(COUNT_CORRECT, count_correct)                                                              \
    ROW(CAST, cast)                                                                                \
    ROW(SUM_LEADING, sum_leading)                                                                  \
    ROW(MUL, mul)                                                                                  \
    ROW(GELU, gelu)                                                                                \
    ROW(GELU_BACKWARD, gelu_backward)                                                              \
    ROW(TANH, tanh)                                                                                \
    ROW(TANH_BACKWARD, tanh_backward)                                                              \
    ROW(SILU, silu)                                                                                \
    ROW(SILU_BACKWARD, silu_backward)                                                              \
    ROW(SILU_MUL, silu_mul)                                                                        \
    ROW(SILU_MUL_BACKWARD, silu_mul_backward)                                                      \
    ROW(GELU_MUL, gelu_mul)                                                                        \
    ROW(GELU_MUL_BACKWARD, gelu_mul_backward)                                                      \
    ROW(SOFTMAX, softmax)                                                                          \
    ROW(SOFTMAX_BACKWARD, softmax_backward)                                                        \
    ROW(EMBEDDING, embedding)                                                                      \
    ROW(EMBEDDING_BACKWARD, embedding_backward)                                                    \
    ROW(ARANGE, arange)                                                                            \
    ROW(PADDING_MASK, padding_mask)                                                                \
    ROW(TOKEN_POSITIONS, token_positions)                                                          \
    ROW(TOKENS, tokens)                                                                            \
    ROW(DISTANCE_BUCKETS, distance_buckets)                                                        \
    ROW(LAYER_NORM, layer_norm)                                                                    \
    ROW(LAYER_NORM_BACKWARD, layer_norm_backward)                                                  \
    ROW(RMS_NORM, rms_norm)                                                                        \
    ROW(RMS_NORM_BACKWARD, rms_norm_backward)                                                      \
    ROW(ROPE, rope)                                                                                \
    ROW(ROPE_BACKWARD, rope)                                                                       \
    ROW(ATTENTION, attention)                                                                      \
    ROW(ATTENTION_BACKWARD, attention_backward)                                                    \
    ROW(LINEAR_CROSS_ENTROPY, linear_cross_entropy)                                                \
    ROW(LINEAR_CROSS_ENTROPY_BACKWARD, linear_cross_entropy_backward)                              \
    ROW(SCALE, scale)                                                                              \
    ROW(RECIPROCAL, reciprocal)                                                                    \
    ROW(DIV, div)                                                                                  \
    ROW(DIV_BACKWARD, div_backward)                                                                \
    ROW(SIGMOID, sigmoid)                                                                          \
    ROW(SIGMOID_BACKWARD, sigmoid_backward)                                                        \
    ROW(SQUARED_RELU, squared_relu)                                                                \
    ROW(SQUARED_RELU_BACKWARD, squared_relu_backward)                                              \
    ROW(FUNCTION, element)                                                                         \
    ROW(FUNCTION_BACKWARD, element_backward)                                                       \
    ROW(MATMUL, matmul)

#define DECLARATION(KIND, name) reference_function reference_##name;
REFERENCE_FUNCTIONS(DECLARATION)
#undef DECLARATION

/* For one element: GELU, and its derivative; `approximate` uses tanh. */
double reference_gelu_value(double x, bool approximate);
double reference_gelu_slope(double x, bool approximate);

/* Bytes of workspace that attention and the head need. */
uint64_t reference_attention_workspace(const struct op_desc *desc);
uint64_t reference_head_workspace(const struct op_desc *desc);
uint64_t reference_recurrent_workspace(const struct op_desc *desc);

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
