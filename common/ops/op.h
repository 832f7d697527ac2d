/*
 * The vocabulary of arithmetic: every op that a graph may hold and a device must run, with its
 * attributes. The model writes graphs in it, kernels implement it; neither knows the other. All
 * shapes are logical (PyTorch's order). "?" marks an optional input or output: OP_ABSENT.
 *
 * One row per kind, semantics as the PyTorch function of the same name:
 *
 *   kind                     inputs                    outputs
 *   CONV2D                   x, weight, bias?          y                attrs.conv
 *                                                      y = activation(conv + bias)
 *   CONV2D_BACKWARD_DATA     dy, weight                dx               attrs.conv, activation NONE
 *   CONV2D_BACKWARD_WEIGHTS  x, dy                     dweight, dbias?  attrs.conv, activation NONE
 *   LINEAR                   x (.., in),               y (.., out)      attrs.linear
 *                            weight (out, in), bias?
 *   LINEAR_BACKWARD_DATA     dy, weight                dx               activation NONE
 *   LINEAR_BACKWARD_WEIGHTS  x, dy                     dweight, dbias?  activation NONE
 *   RELU                     x                         y
 *   RELU_BACKWARD            dy, y                     dx               y is the forward's output
 *   MAX_POOL2D               x                         y, indices?      attrs.pool; indices u8,
 *                                                      shape of y: winner's position in its window
 *                                                      (row-major, first of equals, NaN wins)
 *   MAX_POOL2D_BACKWARD      dy, indices               dx               attrs.pool
 *   DROPOUT                  x                         y                attrs.dropout; see below
 *   DROPOUT_BACKWARD         dy                        dx               attrs.dropout: same mask
 *   RESHAPE                  x                         y                same elements, plain order
 *   ADD                      a, b                      y                same shapes
 *   LOG_SOFTMAX              x (n, c)                  y                over the last dimension
 *   LOG_SOFTMAX_BACKWARD     dy, y                     dx
 *   NLL_LOSS                 y (n, c), target (n) i32  loss (1)         attrs.loss
 *   NLL_LOSS_BACKWARD        target                    dy (n, c)        attrs.loss; d(loss) = 1
 *   CROSS_ENTROPY            x (n, c), target          loss (1),        attrs.loss; LOG_SOFTMAX and
 *                                                      y (n, c)         NLL_LOSS in one
 *   CROSS_ENTROPY_BACKWARD   y, target                 dx               attrs.loss;
 *                                                      (softmax - onehot) * scale
 *   COUNT_CORRECT            y (n, c), target          correct (1)      rows whose first maximum is
 *                                                      the target (NaN is the largest)
 *
 *   CAST                     x                         y                f32 to bf16 or back; to
 *                                                                       nearest, ties to even
 *
 * Operands are f32, but for targets and indices. The ops from CONV2D to ADD also take bf16: then
 * input 0 is bf16 and all other operands are too, except the gradients of weights and biases, which
 * are f32 always. They compute in f32 and round once, at the end.
 *
 * A target below 0 is a row to ignore: no loss, no gradient, never correct (short last batches are
 * filled up with such rows); the MEAN over no rows is 0. A target >= c is refused by whoever reads
 * the data, not by kernels.
 *
 * Outputs marked in `accumulate` are added to what is there, the others overwritten.
 *
 * DROPOUT keeps element i (its index in plain logical order, whatever the layout) when
 * uniform(seed, stream, step, rank, i) >= p, scaled by 1/(1-p); the generator is Philox4x32-10 with
 * key = seed and counter = (i / 4, stream, step, rank), word i % 4, uniform = word * 2^-32
 * (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). So the backward op needs
 * no stored mask.
 */
#ifndef FSDPD_OPS_OP_H
#define FSDPD_OPS_OP_H

#include "base/status.h"
#include "ops/tensor.h"

enum op_kind {
    OP_CONV2D,
    OP_CONV2D_BACKWARD_DATA,
    OP_CONV2D_BACKWARD_WEIGHTS,
    OP_LINEAR,
    OP_LINEAR_BACKWARD_DATA,
    OP_LINEAR_BACKWARD_WEIGHTS,
    OP_RELU,
    OP_RELU_BACKWARD,
    OP_MAX_POOL2D,
    OP_MAX_POOL2D_BACKWARD,
    OP_DROPOUT,
    OP_DROPOUT_BACKWARD,
    OP_RESHAPE,
    OP_ADD,
    OP_LOG_SOFTMAX,
    OP_LOG_SOFTMAX_BACKWARD,
    OP_NLL_LOSS,
    OP_NLL_LOSS_BACKWARD,
    OP_CROSS_ENTROPY,
    OP_CROSS_ENTROPY_BACKWARD,
    OP_COUNT_CORRECT,
    OP_CAST,
    OP_KIND_COUNT
};

enum { OP_MAX_INPUTS = 3, OP_MAX_OUTPUTS = 2 };

enum op_activation { ACTIVATION_NONE, ACTIVATION_RELU };
enum op_reduction { REDUCTION_SUM, REDUCTION_MEAN };

union op_attrs {
    struct {
        int64_t stride[2], padding[2], dilation[2]; /* height, width */
        int64_t groups;
        enum op_activation activation;
    } conv;
    struct {
        enum op_activation activation;
    } linear;
    struct {
        int64_t kernel[2], stride[2], padding[2]; /* kernel area at most 255 */
    } pool;
    struct {
        double p;        /* probability of zeroing, 0 <= p < 1 */
        uint32_t stream; /* one per dropout call in the model, in forward order */
    } dropout;
    struct {
        enum op_reduction reduction; /* MEAN divides by the number of rows that count */
    } loss;
};

/* An op with the types of its operands: all that a kernel library needs to prepare it. */
struct op_desc {
    enum op_kind kind;
    union op_attrs attrs;
    int input_count, output_count;
    bool input_present[OP_MAX_INPUTS], output_present[OP_MAX_OUTPUTS];
    bool accumulate[OP_MAX_OUTPUTS];
    struct tensor_type inputs[OP_MAX_INPUTS], outputs[OP_MAX_OUTPUTS];
};

/* Fixed facts of an op kind. */
struct op_info {
    const char *name; /* "conv2d_backward_data" */
    int input_count, output_count;
    unsigned optional_inputs, optional_outputs; /* bit masks */
    bool channels_last;                         /* four-dimensional operands may be CHANNELS_LAST */
    bool element_wise; /* output 0 may take over the memory of input 0 (same layout) */
    const char *input_names[OP_MAX_INPUTS], *output_names[OP_MAX_OUTPUTS]; /* for errors */
};

const struct op_info *op_info_get(enum op_kind kind);

/*
 * Checks an op_desc's shapes and dtypes against the table above (parameters' shapes, attribute
 * ranges, output sizes), layouts aside. INVALID_ARGUMENT names the op and both shapes.
 */
status_t op_desc_check(const struct op_desc *desc) FSDPD_MUST_USE;

/* Rows or columns of a convolution's or pool's output; <= 0 if the window does not fit. */
int64_t op_window_output(int64_t size, int64_t kernel, int64_t stride, int64_t padding,
                         int64_t dilation);

/* Floating-point operations of one run: 2 per multiply-add of convolutions and matmuls, else 0. */
double op_desc_flops(const struct op_desc *desc);

/* Bytes that one run must at least read and write: every operand once. */
uint64_t op_desc_bytes(const struct op_desc *desc);

#endif
