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

/* What one run of a graph computes: some samples, or of one sample some of the heads of k, with
 * those of q that share them. Both divide the whole. */
struct attention_part {
    int64_t samples, kv_heads;
};

/* Limits: for scores in bf16, rounded up to whole tiles; and for an engine's scratch memory. */
#define ATTENTION_SCORES_BYTES ((int64_t)512 << 20)
#define ATTENTION_MOST_WORKSPACE ((int64_t)1 << 30)

/* The largest part whose scores fit; the smallest if none fits. Only gradients keep scores. */
struct attention_part attention_part_of(const struct attention_shape *shape, int64_t scores_bytes);

/* The scratch memory that an engine may ask for: the smallest part may have what it needs, as our
 * own kernels take many times longer. */
int64_t attention_most_workspace(const struct attention_shape *shape, struct attention_part part);

/* `shape` is the whole's. `statistics`: also compute the log-sum-exp. The graph keeps errors. */
void attention_graph_forward(struct dnn_graph *graph, const struct attention_shape *shape,
                             struct attention_part part, bool statistics);
void attention_graph_backward(struct dnn_graph *graph, const struct attention_shape *shape,
                              struct attention_part part);

#endif
#endif
