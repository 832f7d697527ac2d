/*
 * Attention and its gradient as graphs of cuDNN's operations (dnn_graph.h), in the forms that its
 * fused attention engines know: scores by a product, scaled, masked by the numbers of row and
 * column if causal, a softmax of reductions, a product with the values. bf16, without dropout,
 * without a mask of keys: those are our kernels' (attention_cudnn.c).
 */
#ifndef FSDPD_RUNTIME_CUDA_ATTENTION_GRAPH_H
#define FSDPD_RUNTIME_CUDA_ATTENTION_GRAPH_H

#include "kernels/attention.h"
#include "runtime/cuda/dnn_graph.h"

#ifdef FSDPD_HAVE_DNN_GRAPHS

/* Ids of operands and values. */
enum attention_operand {
    ATTENTION_Q = 1,
    ATTENTION_K,
    ATTENTION_V,
    ATTENTION_Y,
    ATTENTION_LSE,
    ATTENTION_DY,
    ATTENTION_DQ,
    ATTENTION_DK,
    ATTENTION_DV,
    ATTENTION_SCALE,  /* of the scores */
    ATTENTION_LOWEST, /* what is not seen; only if causal */
    ATTENTION_ONE,    /* of the gradient alone */
};

/* `statistics`: the log-sum-exp is wanted. Errors are kept in the graph. */
void attention_graph_forward(struct dnn_graph *graph, const struct attention_shape *shape,
                             bool statistics);
void attention_graph_backward(struct dnn_graph *graph, const struct attention_shape *shape);

#endif
#endif
