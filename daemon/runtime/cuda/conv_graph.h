/*
 * Convolutions as graphs of cuDNN's operations (dnn_graph.h): the output, on bf16 with its bias,
 * rounded once; the gradient of the input; and the gradient of the weight, which is f32. Of the
 * last, cuDNN 9.19 has no engine from bf16 to f32 for tensors in plain order, and in channels last
 * only for channels in multiples of 8; so its operands are f32 copies. These are exact in tf32, and
 * the products are those of bf16, on tensor cores, summed in f32. On f32 the caller adds the bias,
 * and makes the graph exact unless f32 may be rounded to tf32.
 *
 * ReLU is not part of a graph: most engines do not note that they pass NaN on, as ours does.
 */
#ifndef FSDPD_RUNTIME_CUDA_CONV_GRAPH_H
#define FSDPD_RUNTIME_CUDA_CONV_GRAPH_H

#include "ops/op.h"
#include "runtime/cuda/dnn_graph.h"

/* Ids of operands. Of a gradient, the one that it computes is the gradient. */
enum conv_operand { CONV_X = 1, CONV_WEIGHT, CONV_Y, CONV_BIAS };

/* Limits in bytes: for copies of x and y in another type or layout, which we or the engine make of
 * a part of the samples; and for an engine's scratch memory. */
#define CONV_COPIES_BYTES ((int64_t)192 << 20)
#define CONV_MOST_WORKSPACE ((int64_t)256 << 20)

/* The samples of one run: the largest number that divides them all, whose parts begin where the
 * graph's operands may, and whose copies fit; the smallest if none fits. */
int64_t conv_samples_of(const struct op_desc *desc, int64_t copies_bytes);

/* Whether x and y are f32 copies, and whether the graph of an output adds the bias. */
bool conv_widens(const struct op_desc *desc);
bool conv_graph_adds_bias(const struct op_desc *desc);

/* `desc` is a convolution's or a gradient's, of which a run takes that many samples. `add`: to the
 * values of the result. The graph keeps errors. */
void conv_graph(struct dnn_graph *graph, const struct op_desc *desc, int64_t samples, bool add);

#endif
