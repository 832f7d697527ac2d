/*
 * Our own kernels for NVIDIA GPUs: all memory-bound ops, and plain versions of convolution and
 * attention for cases that cuDNN does not support. cuBLASLt computes matrix products, so the ops
 * made of them (LINEAR, LINEAR_CROSS_ENTROPY) are not here, only the other parts that they need.
 *
 * Code that only nvcc understands is confined to platform.h, so that tests can compile the sources
 * (*.cu) with a C++ compiler and run them under an emulation (tests/emulation).
 *
 * All operands are in device memory and in plain layout. A run only enqueues on a stream; it
 * returns the first error of its launches, 0 for success. Results do not depend on
 * timing: no atomic additions of floats, and only shapes determine the order of a sum.
 */
#ifndef FSDPD_KERNELS_CUDA_CUDA_H
#define FSDPD_KERNELS_CUDA_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/kernels.h"

/* Of the kernels, too: by it tools tell them from those of NVIDIA's libraries. */
#ifdef __cplusplus
namespace fsdpd {
#endif

struct cuda_halves;

/* Where and how wide kernels are launched. */
struct cuda_launch {
    void *stream;   /* cudaStream_t */
    int processors; /* number of multiprocessors, which limits the size of grids that loop */
    /* Device memory from which the kernel reads, when it runs, those arguments that differ in every
     * step that a graph replays; NULL: the call's own are used. For ops this is struct cuda_live;
     * for optimizers and the gate their arguments. */
    const void *live;
    const struct cuda_halves *halves; /* for optimizers; NULL: all is f32 */
};

/* Of struct kernel_call: what keys dropout in this step. */
struct cuda_live {
    uint64_t step, first_sample;
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

/* UNIMPLEMENTED "cuda: op X has no kernel ..." names what is missing. `desc` must be checked. */
status_t cuda_op_prepare(const struct op_desc *desc, struct cuda_op *op) FSDPD_MUST_USE;

/* Parts of ops that also need a matrix product. */

/* y[r][c] (+)= over rows of `columns` elements: ReLU in place, and the addition of a bias. */
int cuda_relu_in_place(const struct cuda_launch *launch, enum dtype dtype, void *y, int64_t n);
/* GELU by tanh of n elements, and dx = dy gelu'(x); the result may overwrite the first operand. */
int cuda_gelu(const struct cuda_launch *launch, enum dtype dtype, void *y, const void *x,
              int64_t n);
int cuda_gelu_backward(const struct cuda_launch *launch, enum dtype dtype, void *dx, const void *dy,
                       const void *x, int64_t n);
int cuda_add_bias(const struct cuda_launch *launch, enum dtype dtype, void *y, const void *bias,
                  int64_t rows, int64_t columns);
/* sum[c] (+)= sum of values (rows, columns) over rows; `workspace` has cuda_column_sum_bytes. The
 * second function is for rows that are `stride` elements apart. */
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
 * Softmax and cross-entropy of a block of logits, rows as long as a vocabulary: makes a loss per
 * row; 1 for a row whose first maximum is the target, else 0; and, if `gradient` is not NULL, the
 * gradient, scale * (softmax - one-hot). If rows are multiples of 8 elements apart, at addresses
 * that are multiples of 32 bytes, they are accessed in packs; the gap between the end of a
 * gradient's row and the next multiple of 8 may then be overwritten.
 */
struct cuda_logits {
    void *logits; /* (rows, classes) of logits_dtype: f32, or `dtype` */
    enum dtype logits_dtype;
    int64_t rows, classes, stride;
    const void *bias; /* (classes) of bias_dtype, added first; may be NULL */
    enum dtype bias_dtype;
    const int32_t *target; /* (rows); negative: the row does not count */
    float scale;
    enum dtype dtype;
    void *gradient; /* (rows, classes) of dtype; may be `logits` itself if that has its type */
    int64_t gradient_stride;
    float *losses, *correct; /* (rows); `correct` may be NULL */
};
int cuda_cross_entropy_block(const struct cuda_launch *launch, const struct cuda_logits *block);
/* Of `count` probabilities of an ATTENTION or its gradient, from number `start` on: 1 for those
 * that dropout keeps, 0 for the others, in bf16. `kept` is a multiple of 16 bytes. */
int cuda_attention_kept(const struct cuda_launch *launch, const struct op_desc *desc,
                        const struct kernel_call *call, int64_t start, int64_t count, void *kept);
/* Of a mask of keys (samples, time): 0 for a key that is seen, -2^100 for a hidden one, in bf16;
 * samples are `row` elements apart, a multiple of 8. `hiding` is a multiple of 16 bytes. */
int cuda_attention_hide(const struct cuda_launch *launch, const uint8_t *mask, int64_t samples,
                        int64_t time, int64_t row, void *hiding);
/* Makes the outputs of an ATTENTION's rows that see no key: 0, and a log-sum-exp of infinity. */
int cuda_attention_clear(const struct cuda_launch *launch, const struct op_desc *desc,
                         const struct kernel_call *call);
/* out[0] (+)= scale * sum of values. */
int cuda_sum(const struct cuda_launch *launch, const float *values, int64_t n, float scale,
             float *out, bool add);

/* The end of a step, over flat memory; the arithmetic is that of kernels.h and
 * runtime/step_cpu.c. */

enum { CUDA_NORM_PARTS = 1024 };

/* Arrays of an optimizer that are bf16, at the addresses of f32 ones, and rounded at random by
 * kernel_step_halves' draws. `slots`: both averages of Adam. */
struct cuda_halves {
    bool param, slots;
    uint64_t seed, first;
    uint32_t parameter;
    uint64_t step;
    const uint64_t *live; /* as cuda_launch.live: the step */
};

/* A step's statistics about its gradient, in device memory; they replace the arguments'
 * grad_scale. */
struct cuda_gate_in {
    /* From the gate: skipped[0] != 0 skips the update. Both are NULL without a gate. */
    const float *skipped, *scale;
    /* Without a gate the scale is targets[0] / counted[0]; counted[0] = 0 skips the update. */
    const float *targets, *counted;
};
/* cuda_adam and the like. `copy`: of the parameters in bf16, written with them; NULL: none. */
#define CUDA_OPTIMIZER(kernel, ARRAYS)                                                             \
    int cuda_##kernel(const struct cuda_launch *launch, size_t n, float *param, uint16_t *copy,    \
                      const float *grad, OPTIMIZER_ARRAYS_##ARRAYS,                                \
                      const struct kernel##_args *args, const struct cuda_gate_in *gate);
OPTIMIZER_KERNELS(CUDA_OPTIMIZER)
#undef CUDA_OPTIMIZER
/* kernel_adam_packed: averages in blocks of 8 bits. */
int cuda_adam_packed(const struct cuda_launch *launch, size_t n, float *param, uint16_t *copy,
                     const float *grad, float *average, float *square_average,
                     const struct adam_args *args, const struct cuda_gate_in *gate);
/* `average` has moved before. */
int cuda_muon(const struct cuda_launch *launch, size_t n, float *param, uint16_t *copy,
              const float *update, float *average, const struct muon_args *args,
              const struct cuda_gate_in *gate);
/* Muon's parts before that: the momentum, in place of the gradient, skipped as the optimizer is;
 * and to = from / sqrt(*squares), where that root is at least KERNEL_MUON_EPS; `to` may be `from`.
 */
int cuda_muon_momentum(const struct cuda_launch *launch, size_t n, float *grad, float *average,
                       const struct muon_args *args, const struct cuda_gate_in *gate);
int cuda_muon_normalize(const struct cuda_launch *launch, size_t n, float *to, const float *from,
                        const double *squares);
/*
 * Adafactor's parts (kernels.h), skipped as the optimizer is. Sums for this rank's elements.
 */
int cuda_factor_sums(const struct cuda_launch *launch, const struct kernel_factor *of,
                     const float *grad, double *rows, double *columns,
                     const struct cuda_gate_in *gate);
/* sums (rows, then columns) = what `count` ranks sent of some of them, added in this order; `from`
 * has each rank's rows, then its columns, one rank behind the other. */
struct cuda_factor_part {
    int64_t first_row, rows, first_column, columns;
};
int cuda_factor_collect(const struct cuda_launch *launch, const struct cuda_factor_part *parts,
                        int count, const double *from, double *sums, int64_t rows, int64_t columns,
                        const struct cuda_gate_in *gate);
/* Of a whole stack of matrices: the state moves to the means of the sums, and becomes factors. */
int cuda_factor_renew(const struct cuda_launch *launch, const struct kernel_factor *of,
                      const double *sums, float *state, float *factors,
                      const struct factor_args *args, const struct cuda_gate_in *gate);
/* Updates of a matrix's elements or a vector's, in place of the gradient, and the sums of squares
 * of them (totals[0]) and of their parameters (totals[1]). `parts`: CUDA_NORM_PARTS doubles. */
int cuda_factor_update(const struct cuda_launch *launch, const struct kernel_factor *of,
                       float *values, const float *param, const float *rows, const float *columns,
                       const struct factor_args *args, double *parts, double *totals,
                       const struct cuda_gate_in *gate);
int cuda_variance_update(const struct cuda_launch *launch, size_t n, float *values,
                         const float *param, float *variance, const struct factor_args *args,
                         double *parts, double *totals, const struct cuda_gate_in *gate);
/* Multiplies updates by their parameter's rate, given every rank's two sums. */
struct cuda_factor_totals {
    const double *first;      /* rank 0's; the next rank's are `stride` doubles behind it */
    int64_t stride, elements; /* of the whole parameter */
    int ranks;
};
int cuda_factor_scale(const struct cuda_launch *launch, size_t n, float *values,
                      const struct cuda_factor_totals *totals, const struct factor_args *args,
                      const struct cuda_gate_in *gate);
/* Of the parameters over steps; skipped as the optimizer is. */
int cuda_average(const struct cuda_launch *launch, size_t n, float *average, const float *param,
                 const struct average_args *args, const struct cuda_gate_in *gate);
int cuda_add(const struct cuda_launch *launch, size_t n, float *to, const float *from);
/* Adds the sum of squares to *total, or raises it to the largest magnitude (a NaN counts as
 * larger). `parts`: CUDA_NORM_PARTS doubles. */
int cuda_norm(const struct cuda_launch *launch, bool largest, size_t n, const float *values,
              double *parts, double *total);

struct cuda_gate_args {
    bool largest; /* else the totals are sums of squares */
    double max_norm;
    bool skip;
};
/* The statistics of a step that the gate reads and writes. */
struct cuda_gate_stats {
    const float *loss, *targets, *counted;
    float *norm, *scale, *skipped;
};
/* Computes from every rank's total: the norm, the gradient's scale, and whether to skip the
 * step. */
int cuda_gate(const struct cuda_launch *launch, const struct cuda_gate_args *args,
              const double *totals, int count, const struct cuda_gate_stats *stats);

/* For communicators. */
int cuda_f32_to_bf16(const struct cuda_launch *launch, size_t n, uint16_t *out, const float *in);
int cuda_bf16_to_f32(const struct cuda_launch *launch, size_t n, float *out, const uint16_t *in);
/* kernel_int8_unpack and kernel_nf4_unpack, to values of `dtype`. */
int cuda_int8_unpack(const struct cuda_launch *launch, enum dtype dtype, size_t n,
                     const float *blocks, void *values);
int cuda_nf4_unpack(const struct cuda_launch *launch, enum dtype dtype, size_t n,
                    const float *groups, void *values);
/* Rounds n floats to bf16 in the lower half of their own memory. */
int cuda_pack_bf16(const struct cuda_launch *launch, size_t n, float *values);
/* Replaces every value by its rounding error in bf16. */
int cuda_round_in_place(const struct cuda_launch *launch, size_t n, float *values);
/* out[i] = parts[i] + parts[n + i] + ... in this order, in f32 */
int cuda_sum_parts_bf16(const struct cuda_launch *launch, size_t n, float *out,
                        const uint16_t *parts, int count);
/* Advances a counter in device memory and copies it to the host's pinned memory: to the next odd
 * number if something begins, to the even number after it if it ends; by one at a delivery, where
 * the host then sees what was copied to its memory before. */
enum cuda_progress_kind { CUDA_BEGINS, CUDA_ENDS, CUDA_DELIVERS };
int cuda_count(const struct cuda_launch *launch, uint32_t *count, uint32_t *host_count,
               enum cuda_progress_kind kind);

#ifdef __cplusplus
}
}
#endif

#endif
