/*
 * Arithmetic on raw memory. A kernel is one op (ops/op.h) prepared for fixed shapes and layouts:
 * prepare once, run every step. Running allocates nothing: what scratch memory it needs it says
 * beforehand, and gets as `workspace`. Two libraries implement the same table:
 *
 *   KERNELS_REFERENCE  plain loops in the order of the formula; any layout; the truth in tests
 *   KERNELS_CPU        oneDNN for matmul and convolution, but Winograd's algorithm where that is
 *                      faster; our own vectorised loops for the rest
 *
 * Ops on bf16 compute in f32 and round once, at the end. The CPU library has convolutions and
 * matmuls on bf16 itself where the processor has them (AVX-512 BF16); the rest is done on f32
 * copies in the workspace.
 *
 * Threads: a kernel may be prepared and run on different threads, but runs on one thread at a time.
 * Running uses up to kernels_set_threads threads (OpenMP). Results do not depend on timing: the
 * same library, shapes and thread count give the same bits.
 */
#ifndef FSDPD_KERNELS_KERNELS_H
#define FSDPD_KERNELS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "ops/op.h"

enum kernel_library { KERNELS_REFERENCE, KERNELS_CPU };

struct kernel;

struct kernel_call {
    const void *inputs[OP_MAX_INPUTS]; /* NULL where absent */
    void *outputs[OP_MAX_OUTPUTS];     /* NULL where absent; 64-byte alignment not required */
    void *workspace;     /* kernel_workspace_bytes, aligned to 64; undefined contents */
    uint64_t seed, step; /* for dropout */
    uint32_t rank;
};

/*
 * Prepares `desc` (checked with op_desc_check first). UNIMPLEMENTED if this library cannot run that
 * combination of attributes or layouts.
 */
status_t kernel_new(enum kernel_library library, const struct op_desc *desc,
                    struct kernel **kernel) FSDPD_MUST_USE;
void kernel_free(struct kernel *kernel); /* accepts NULL */

uint64_t kernel_workspace_bytes(const struct kernel *kernel);

/* Memory that the kernel itself holds (prepared primitives' tables); not in any arena. */
uint64_t kernel_held_bytes(const struct kernel *kernel);

/*
 * Operands do not overlap, except that output 0 of an element_wise op may be input 0 (same
 * address), and a RESHAPE between tensors in plain order may have one address for both, and then
 * does nothing. Fails only if the math library does (INTERNAL).
 */
status_t kernel_run(struct kernel *kernel, const struct kernel_call *call) FSDPD_MUST_USE;

/* Threads per kernel run from now on, at least 1; call before preparing kernels. */
void kernels_set_threads(int count);

/*
 * Optimizers, fused over a flat shard of n elements; algebra and rounding as in PyTorch
 * (reference: PyTorch 1.13's torch/optim, fused multiply-adds written out). Bit-exact on the CPU.
 * The gradient is multiplied with grad_scale first.
 */
struct adadelta_args {
    float lr, rho, eps, weight_decay, grad_scale;
    float one_minus_rho; /* computed in double, then cast */
};
void kernel_adadelta(size_t n, float *param, const float *grad, float *square_avg, float *acc_delta,
                     const struct adadelta_args *args);

struct sgd_args {
    float lr, momentum, one_minus_dampening, weight_decay, grad_scale;
    bool nesterov;
    bool first_step; /* momentum buffer is set to the gradient instead of being updated */
};
/* `momentum_buffer` may be NULL when momentum is 0. */
void kernel_sgd(size_t n, float *param, const float *grad, float *momentum_buffer,
                const struct sgd_args *args);

/* Adam and AdamW. In step t, from 1, computed in double and then cast: */
struct adam_args {
    float beta1, one_minus_beta1, beta2, one_minus_beta2, eps;
    float weight_decay;   /* Adam's; 0 for AdamW */
    float shrink;         /* 1 - lr * weight_decay for AdamW, else 1 */
    float corrected_lr;   /* lr / (1 - beta1^t) */
    float corrected_root; /* sqrt(1 - beta2^t) */
    float grad_scale;
};
void kernel_adam(size_t n, float *param, const float *grad, float *average, float *square_average,
                 const struct adam_args *args);

/* What norms are made of; not a number if a value is not. On the thread that calls. */
double kernel_sum_squares(size_t n, const float *values);
double kernel_max_abs(size_t n, const float *values);

/* to[i] += from[i] */
void kernel_add(size_t n, float *to, const float *from);

/* Helpers of communicators, vectorised: */

/* out[i] = (parts[0][i] + parts[1][i] + ... in this order) * scale; out may be parts[0]. */
void kernel_sum_ordered(size_t n, float *out, const float *const *parts, int part_count,
                        float scale);
void kernel_scale(size_t n, float *values, float scale);

/* bf16 is the upper half of an f32; rounding is to nearest, ties to even. */
void kernel_bf16_to_f32(size_t n, float *out, const uint16_t *in);
void kernel_f32_to_bf16(size_t n, uint16_t *out, const float *in);
/* As kernel_sum_ordered, of parts in bf16; the sum is f32 throughout. */
void kernel_sum_ordered_bf16(size_t n, float *out, const uint16_t *const *parts, int part_count,
                             float scale);

#endif
