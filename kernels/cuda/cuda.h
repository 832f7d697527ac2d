/*
 * Our own kernels on an NVIDIA GPU: everything that is bound by memory, and plain versions of
 * convolution and attention for what cuDNN does not have. Products of matrices are cuBLASLt's, so
 * the ops made of them (LINEAR, LINEAR_CROSS_ENTROPY) are not here, but the parts they need are.
 *
 * The sources (*.cu) say nothing that only nvcc understands outside of platform.h, so that tests
 * compile them with a C++ compiler and run them under an emulation (tests/emulation).
 *
 * All operands are in device memory and in plain layout. A run only enqueues on a stream; it
 * returns what cudaGetLastError says of its launches, 0 for success. Results do not depend on
 * timing: no atomic additions of floats, every sum in one order that the shapes give.
 */
#ifndef FSDPD_KERNELS_CUDA_CUDA_H
#define FSDPD_KERNELS_CUDA_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/kernels.h"

/* Where and how wide kernels are started. */
struct cuda_launch {
    void *stream;   /* cudaStream_t */
    int processors; /* multiprocessors of the device: grids that go round are made for them */
    /* NULL, or memory of the device in which the kernel finds, when it runs, what the call gives
     * and what may be another in every step that a graph replays: of dropout and attention the
     * step, a uint64_t; of optimizers and the gate their arguments. */
    const void *live;
};

enum { CUDA_ROPE_PAIRS_MAX = 256 };

/* A prepared op. */
struct cuda_op {
    struct op_desc desc;
    uint64_t workspace_bytes;
    int (*run)(const struct cuda_op *op, const struct kernel_call *call,
               const struct cuda_launch *launch);
    float frequencies[CUDA_ROPE_PAIRS_MAX]; /* of ROPE: angle per position, by pair */
};

/* UNIMPLEMENTED "cuda: op X has no kernel ..." says what is missing. `desc` was checked. */
status_t cuda_op_prepare(const struct op_desc *desc, struct cuda_op *op) FSDPD_MUST_USE;

/* Parts of ops that also need a product of matrices. */

/* y[r][c] (+)= over rows of `columns` elements: relu in place, and what a bias gets. */
int cuda_relu_in_place(const struct cuda_launch *launch, enum dtype dtype, void *y, int64_t n);
/* GELU by tanh of n elements, and dx = dy gelu'(x); the result may be the first operand's memory.
 */
int cuda_gelu(const struct cuda_launch *launch, enum dtype dtype, void *y, const void *x,
              int64_t n);
int cuda_gelu_backward(const struct cuda_launch *launch, enum dtype dtype, void *dx, const void *dy,
                       const void *x, int64_t n);
int cuda_add_bias(const struct cuda_launch *launch, enum dtype dtype, void *y, const void *bias,
                  int64_t rows, int64_t columns);
/* sum[c] (+)= sum of values (rows, columns) over rows; `workspace` as cuda_column_sum_bytes. The
 * second is for rows that are `stride` elements apart. */
uint64_t cuda_column_sum_bytes(int64_t rows, int64_t columns);
int cuda_column_sum(const struct cuda_launch *launch, enum dtype dtype, const void *values,
                    int64_t rows, int64_t columns, float *sum, bool add, void *workspace);
int cuda_column_sum_apart(const struct cuda_launch *launch, enum dtype dtype, const void *values,
                          int64_t rows, int64_t columns, int64_t stride, float *sum, bool add,
                          void *workspace);
/* (n, c, area) += bias (c), and its gradient. */
int cuda_add_channel_bias(const struct cuda_launch *launch, enum dtype dtype, void *y,
                          const void *bias, int64_t n, int64_t channels, int64_t area);
int cuda_channel_sum(const struct cuda_launch *launch, enum dtype dtype, const void *dy, int64_t n,
                     int64_t channels, int64_t area, float *sum, bool add);

/*
 * Softmax and cross-entropy of a block of logits, rows of a vocabulary's length: a loss per row, 1
 * or 0 for a row whose first maximum is the target, and, where `gradient` is not NULL, scale[0] *
 * (softmax - one-hot). Rows that are multiples of 8 elements apart, at addresses that are multiples
 * of 32 bytes, are read and written in packs; what lies between a row's end and the next multiple
 * of 8 of its gradient may be overwritten with anything.
 */
struct cuda_logits {
    float *logits; /* (rows, classes) */
    int64_t rows, classes, stride;
    const void *bias; /* (classes) of bias_dtype, is added first; may be NULL */
    enum dtype bias_dtype;
    const int32_t *target; /* (rows); negative: the row does not count */
    const float *scale;
    enum dtype dtype;
    void *gradient; /* (rows, classes) of dtype; may be `logits` itself if that is f32 */
    int64_t gradient_stride;
    float *losses, *correct; /* (rows); `correct` may be NULL */
};
int cuda_cross_entropy_block(const struct cuda_launch *launch, const struct cuda_logits *block);
/* scale[0]: what a row's loss is multiplied with. */
int cuda_loss_scale(const struct cuda_launch *launch, const int32_t *target, int64_t rows,
                    enum op_reduction reduction, float *scale);
/* out[0] (+)= scale[0] * sum of values; a NULL scale is 1. */
int cuda_sum(const struct cuda_launch *launch, const float *values, int64_t n, const float *scale,
             float *out, bool add);

/* The end of a step, over flat memory; the arithmetic of kernels.h and runtime/step_cpu.c. */

enum { CUDA_NORM_PARTS = 256 };

/* `gate`: NULL, or the statistics of a step: skipped[0] != 0 leaves everything as it is, scale[0]
 * takes the place of the gradient's scale. */
struct cuda_gate_in {
    const float *skipped, *scale;
};
int cuda_adadelta(const struct cuda_launch *launch, size_t n, float *param, const float *grad,
                  float *square_avg, float *acc_delta, const struct adadelta_args *args,
                  const struct cuda_gate_in *gate);
int cuda_sgd(const struct cuda_launch *launch, size_t n, float *param, const float *grad,
             float *momentum_buffer, const struct sgd_args *args, const struct cuda_gate_in *gate);
int cuda_adam(const struct cuda_launch *launch, size_t n, float *param, const float *grad,
              float *average, float *square_average, const struct adam_args *args,
              const struct cuda_gate_in *gate);
int cuda_add(const struct cuda_launch *launch, size_t n, float *to, const float *from);
int cuda_scale(const struct cuda_launch *launch, size_t n, float *to, const float *from,
               float scale);
/* *total += the sum of squares, or = the largest magnitude if that is larger (a NaN is).
 * `parts`: CUDA_NORM_PARTS doubles. */
int cuda_norm(const struct cuda_launch *launch, bool largest, size_t n, const float *values,
              double *parts, double *total);

struct cuda_gate_args {
    bool largest; /* else the totals are sums of squares */
    double max_norm, gradient_scale;
    bool skip;
};
/* From every rank's total: the norm, the gradient's scale, and whether to skip the step. */
int cuda_gate(const struct cuda_launch *launch, const struct cuda_gate_args *args,
              const double *totals, int count, const float *loss, float *norm, float *scale,
              float *skipped);

/* For communicators. */
int cuda_f32_to_bf16(const struct cuda_launch *launch, size_t n, uint16_t *out, const float *in);
/* Rounds n floats to bf16 in the lower half of their own memory. */
int cuda_pack_bf16(const struct cuda_launch *launch, size_t n, float *values);
/* What is left of every value when it is rounded to bf16. */
int cuda_round_in_place(const struct cuda_launch *launch, size_t n, float *values);
/* out[i] = (parts[i] + parts[n + i] + ... in this order, in f32) * scale */
int cuda_sum_parts_bf16(const struct cuda_launch *launch, size_t n, float *out,
                        const uint16_t *parts, int count, float scale);
/* Counts in memory of the device, and tells the host in pinned memory: the next odd number if
 * something begins, the even one after it if it ends. */
int cuda_count(const struct cuda_launch *launch, uint32_t *count, uint32_t *told, bool begins);

#ifdef __cplusplus
}
#endif

#endif
