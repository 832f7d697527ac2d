/*
 * Attention and its gradient as graphs of cuDNN's operations (dnn_graph.h), in the forms that its
 * fused attention engines recognise: scores by a product, scaled, masked by row and column number
 * if causal, a softmax made of reductions, a product with the values. bf16, without dropout,
 * without a mask of keys: our kernels handle those (attention_cudnn.c).
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
    ATTENTION_LOWEST, /* the masked entries; only if causal */
    ATTENTION_ONE,    /* of the gradient alone */
};

/* `statistics`: also compute the log-sum-exp. The graph keeps errors. */
void attention_graph_forward(struct dnn_graph *graph, const struct attention_shape *shape,
                             bool statistics);
void attention_graph_backward(struct dnn_graph *graph, const struct attention_shape *shape);

#endif
#endif
