/*
 * Attention and its gradient as graphs of cuDNN's operations (dnn_graph.h), in the forms that its
 * fused attention engines recognise: scores by a product, scaled, masked by row and column number
 * if causal, a softmax made of reductions, a product with the values. In bf16.
 *
 * A mask of keys is an operand that is added to the scores of all rows and heads of a sample: 0, or
 * -2^100 for a hidden key, whose probability is then exactly 0. cuDNN also takes the number of keys
 * of each sample, and skips the tiles behind them. But our op hides any keys, in front and in
 * between as well, as PyTorch's does, and how many there are is known only on the device. The
 * operand is finite because a tile whose scores are all -infinity is NaN in some of cuDNN's
 * kernels. A row that sees no key would thus give a mean of hidden values: our own kernel writes
 * its output 0 and its log-sum-exp infinity afterwards, and exp(score - infinity) is 0 in the
 * gradient. The engines are those without a mask (tests/golden/cudnn-plans.txt). The operand has 2
 * bytes per key; our kernel writes it before each run.
 *
 * Dropout multiplies by an operand that our own kernel writes before each run, 0 or 1 of every
 * probability (exact in bf16), and by 1 / (1 - p) in f32. cuDNN has random numbers of its own,
 * which cost no memory, but they are other numbers than the CPU's, and depend on a sample's place
 * in the batch: the curve would depend on the device and on the number of workers. The operand
 * costs 2 bytes of scratch memory per probability of a part, written once and read once, in the
 * forward pass and in the gradient each. The engines are those without dropout, and so is the order
 * of additions in the gradient (tests/golden/cudnn-plans.txt).
 */
#ifndef FSDPD_RUNTIME_CUDA_ATTENTION_GRAPH_H
#define FSDPD_RUNTIME_CUDA_ATTENTION_GRAPH_H

#include "kernels/attention.h"
#include "runtime/cuda/dnn_graph.h"

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
    ATTENTION_LOWEST, /* the score of later keys; only if causal */
    ATTENTION_HIDING, /* (batch, 1, 1, time), 0 or -2^100; only with a mask of keys */
    ATTENTION_KEPT,   /* (batch, heads, time, time), 0 or 1; only with dropout, as the next */
    ATTENTION_FACTOR, /* of what is kept: 1 / (1 - p) */
    ATTENTION_ONE,    /* of the gradient alone; with dropout 1 - p */
};

/* Elements of that operand from one sample to the next: whole vectors of 16 bytes. */
static inline int64_t attention_hiding_row(const struct attention_shape *shape)
{
    return (shape->time + 7) / 8 * 8;
}

/* What one run of a graph computes: some samples, or of one sample some of the heads of k, with
 * those of q that share them. Both divide the whole. */
struct attention_part {
    int64_t samples, kv_heads;
};

/* Limits: for scores in bf16, rounded up to whole tiles, of the engine and of dropout's operand;
 * and for an engine's scratch memory. */
#define ATTENTION_SCORES_BYTES ((int64_t)512 << 20)
#define ATTENTION_MOST_WORKSPACE ((int64_t)1 << 30)

/* The largest part whose scores fit; the smallest if none fits. Gradients keep scores, and dropout
 * has as many. */
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
