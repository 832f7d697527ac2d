/*
 * Arithmetic on raw memory. A kernel is one op (ops/op.h) prepared for fixed shapes and layouts:
 * prepare once, run every step. A run allocates nothing: the kernel states its scratch memory
 * beforehand, and receives it as `workspace`. Two libraries implement the same table:
 *
 *   KERNELS_REFERENCE  plain loops in the order of the formula; any layout; the truth in tests
 *   KERNELS_CPU        oneDNN for matmul and convolution, but Winograd's algorithm where that is
 *                      faster; our own vectorised loops for the rest
 *
 * Ops on bf16 compute in f32 and round once, at the end. Where the processor supports it (AVX-512
 * BF16), the CPU library runs convolutions and matmuls on bf16 directly; the other ops use f32
 * copies in the workspace.
 *
 * Threads: a kernel may be prepared and run on different threads, but runs on one thread at a time.
 * A run uses up to kernels_set_threads threads (OpenMP). Results do not depend on timing: the same
 * library, shapes and thread count give the same bits.
 */
#ifndef FSDPD_KERNELS_KERNELS_H
#define FSDPD_KERNELS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "ops/op.h"
#include "ops/optimizers.h"

enum kernel_library { KERNELS_REFERENCE, KERNELS_CPU };

struct kernel;

/* Whether the processor multiplies bf16 itself. On one that does not, oneDNN would emulate it, which
 * is slower than f32 copies. */
bool kernels_have_bf16(void);

struct kernel_call {
    const void *inputs[OP_MAX_INPUTS]; /* NULL where absent */
    void *outputs[OP_MAX_OUTPUTS];     /* NULL where absent; 64-byte alignment not required */
    void *workspace;     /* kernel_workspace_bytes, aligned to 64; undefined contents */
    uint64_t seed, step; /* for dropout, with the members below */
    uint32_t rank;       /* also of ops over values of all ranks */
    /* Random numbers are counted from the first element of sample 0, of which the op's first sample
     * is `first_sample`; 0 and 0: from the op's first element. */
    uint64_t first_sample, sample_elements;
};

/* The number of the op's first element. */
static inline uint64_t kernel_first_element(const struct kernel_call *call)
{
    return call->first_sample * call->sample_elements;
}

/*
 * Prepares `desc` after op_desc_check. UNIMPLEMENTED if this library cannot run that combination of
 * attributes or layouts.
 */
status_t kernel_new(enum kernel_library library, const struct op_desc *desc,
                    struct kernel **kernel) FSDPD_MUST_USE;
void kernel_free(struct kernel *kernel); /* accepts NULL */

uint64_t kernel_workspace_bytes(const struct kernel *kernel);

/* Memory that the kernel itself holds (tables of prepared primitives); outside of any arena. */
uint64_t kernel_held_bytes(const struct kernel *kernel);

/*
 * Operands must not overlap, with two exceptions: output 0 of an element_wise op may be input 0
 * (same address), and a RESHAPE between tensors in plain order may have one address for both, which
 * makes it a no-op. Fails only if the math library does (INTERNAL).
 */
status_t kernel_run(struct kernel *kernel, const struct kernel_call *call) FSDPD_MUST_USE;

/* Sets the threads per run for kernels prepared later, at least 1. */
void kernels_set_threads(int count);

/*
 * Optimizers, fused over a flat shard of n elements; algebra and rounding as in PyTorch (reference:
 * PyTorch 1.13's torch/optim, fused multiply-adds written out). Bit-exact on the CPU. They multiply
 * the gradient by grad_scale first.
 */
struct adadelta_args {
    float lr, rho, eps, weight_decay, grad_scale;
    float one_minus_rho; /* computed in double, then cast */
};

struct sgd_args {
    float lr, momentum, one_minus_dampening, weight_decay, grad_scale;
    bool nesterov;
    bool first_step; /* momentum buffer is set to the gradient instead of being updated */
};

/* Adam and AdamW. For step t, from 1, computed in double and then cast: */
struct adam_args {
    float beta1, one_minus_beta1, beta2, one_minus_beta2, eps;
    float weight_decay;   /* Adam's; 0 for AdamW */
    float shrink;         /* 1 - lr * weight_decay for AdamW, else 1 */
    float corrected_lr;   /* lr / (1 - beta1^t) */
    float corrected_root; /* sqrt(1 - beta2^t) */
    float grad_scale;
};

/*
 * The same with averages in 8 bits, as bitsandbytes' AdamW8bit on a CPU. Each average is
 * KERNEL_PACKED_WORDS floats per KERNEL_PACKED_BLOCK values, the last block possibly with fewer:
 * the block's scale, then the codes, a byte each. Zeros stand for zeros.
 */
enum { KERNEL_PACKED_BLOCK = 256, KERNEL_PACKED_WORDS = 1 + KERNEL_PACKED_BLOCK / 4 };
void kernel_adam_packed(size_t n, float *param, const float *grad, float *average,
                        float *square_average, const struct adam_args *args);
/* The values that the codes stand for; unsigned ones are those of squares. */
void kernel_packed_map(bool is_signed, float values[256]);
/* A value over its scale is rounded to one of 65,536 steps; that of a code is at least firsts[code]
 * and, unless the code is the last, below firsts[code + 1]. */
void kernel_packed_steps(bool is_signed, uint16_t firsts[256]);

/*
 * An optimizer's step over values in bf16. Pieces of the values are widened, stepped by `update`,
 * and rounded at random to one of the two nearest bf16 values: up as often as the value is near it,
 * so that the expected value is the one that f32 would have. The draw depends only on the job's
 * seed, the step, the array, and the element in its parameter. A NaN stays a NaN, and what is
 * finite stays finite.
 */
enum { KERNEL_HALVES_SLOTS = 3 };
struct kernel_halves {
    size_t n;
    float *param; /* in f32; NULL: in bf16, */
    uint16_t *half_param;
    const float *grad;
    float *slots[KERNEL_HALVES_SLOTS]; /* in f32; NULL: none, or in bf16: */
    uint16_t *half_slots[KERNEL_HALVES_SLOTS];
    uint64_t seed, step;
    uint32_t parameter; /* its number in the model */
    uint64_t first;     /* its element that `param` begins with, a multiple of 8 */
    void (*update)(const void *user, size_t n, float *param, const float *grad,
                   float *const *slots);
    const void *user;
};
void kernel_step_halves(const struct kernel_halves *halves);

/*
 * Parameters in the signed blocks of that, as bitsandbytes' quantize_blockwise makes them on a CPU.
 * `values` or `rounded`, or both, get what the blocks stand for; the other is NULL.
 */
void kernel_int8_pack(size_t n, const float *values, float *blocks);
void kernel_int8_unpack(size_t n, const float *blocks, float *values, uint16_t *rounded);

/*
 * Parameters in NF4 with double quantisation, as bitsandbytes' quantize_4bit makes them on a CPU. A
 * group of 16,384 values, of which a parameter's last has fewer, is KERNEL_NF4_WORDS floats: the
 * mean of the parameter's magnitudes, the group's magnitudes in 8 bits, and the codes, two a byte.
 */
enum {
    KERNEL_NF4_BLOCK = 64,
    KERNEL_NF4_GROUP = KERNEL_NF4_BLOCK * KERNEL_PACKED_BLOCK,
    KERNEL_NF4_WORDS = 1 + KERNEL_PACKED_WORDS + KERNEL_NF4_GROUP / 8
};
/* Of one block: its codes (KERNEL_NF4_BLOCK / 2 bytes), and as result its magnitude. */
float kernel_nf4_pack(size_t n, const float *values, uint8_t *codes);
uint8_t *kernel_nf4_codes(float *group, size_t block);
/* Sets the magnitudes of a group's blocks. */
void kernel_nf4_scale(size_t blocks, const float *most, float mean, float *group);
void kernel_nf4_unpack(size_t n, const float *groups, float *values, uint16_t *rounded);
/* What the codes stand for, as parts of a block's magnitude. */
void kernel_nf4_map(float values[16]);

/* Lion (Chen et al., "Symbolic discovery of optimization algorithms", 2023): the parameter moves by
 * lr along the sign of a weighted mean of average and gradient. Computed in double and then
 * cast: */
struct radam_args {
    float lr, beta1, one_minus_beta1, beta2, one_minus_beta2, eps, weight_decay;
    float correction; /* 1 - beta1^t */
    float root;       /* sqrt(1 - beta2^t) */
    float rectified;  /* the factor of a step by the root of squares; 0: too early for these */
    float grad_scale;
};
struct lion_args {
    float lr, beta1, one_minus_beta1, beta2, one_minus_beta2;
    float shrink; /* 1 - lr * weight_decay */
    float grad_scale;
};

struct adagrad_args {
    float decayed_lr; /* for step t, from 1: lr / (1 + (t - 1) * lr_decay), computed in double */
    float eps, weight_decay, grad_scale;
};

/* kernel_adam and the like, with Adam's average of gradients before that of squares, and Adadelta's
 * average of squares before that of steps; SGD's buffer may be NULL when momentum is 0. */
#define KERNEL_OPTIMIZER(kernel, ARRAYS)                                                           \
    void kernel_##kernel(size_t n, float *param, const float *grad, OPTIMIZER_ARRAYS_##ARRAYS,     \
                         const struct kernel##_args *args);
OPTIMIZER_KERNELS(KERNEL_OPTIMIZER)
#undef KERNEL_OPTIMIZER

/*
 * Muon of a matrix, in three parts. Momentum: the average moves, and the gradient becomes the
 * update. kernel_orthogonalize: the update of a whole matrix (rows, columns), in place, nearly
 * orthogonal after `steps` iterations, times `scale`. The parameter moves by lr along it.
 */
struct muon_args {
    float lr, momentum, one_minus_momentum;
    float shrink; /* 1 - lr * weight_decay, computed in double */
    float grad_scale;
    bool nesterov;
};
void kernel_muon_momentum(size_t n, float *grad, float *average, const struct muon_args *args);
/* `scratch`: kernel_muon_scratch bytes. INTERNAL if oneDNN fails. */
status_t kernel_orthogonalize(int64_t rows, int64_t columns, int steps, float scale, float *matrix,
                              void *scratch) FSDPD_MUST_USE;
size_t kernel_muon_scratch(int64_t rows, int64_t columns);
/* `average` has moved before. */
void kernel_muon(size_t n, float *param, const float *update, float *average,
                 const struct muon_args *args);

/* As torch.lerp: from the nearer end; rest = 1 - weight. */
float kernel_lerp(float from, float to, float weight, float rest);

/*
 * Adafactor. Of `count` elements, at least one, from `first` on, of a stack of matrices of (height,
 * width): the sums of squares of grad * scale over each row and column of which it has an element,
 * where `rows` and `columns` are those of the whole stack. Then the update in place of the
 * gradient: grad * scale / sqrt(max(rows * columns, least)). Of vectors, with the variance of each
 * element, which moves by `weight`, rest = 1 - weight. The update of all, times a factor.
 */
struct kernel_factor {
    int64_t first, count, height, width;
};
/* Of a step: how far variances move, weight + rest = 1; the least mean of a matrix's rows, and the
 * least variance; and a parameter's rate, times the largest of eps2 and its root mean square,
 * divided by the update's over `clip` where that is more than 1. */
struct factor_args {
    float weight, rest, least_mean, least;
    double rate, eps2, clip;
};
void kernel_factor_sums(const struct kernel_factor *of, const float *grad, float scale,
                        double *rows, double *columns);
void kernel_factor_update(const struct kernel_factor *of, float *grad, float scale,
                          const float *rows, const float *columns, float least);
void kernel_variance_update(size_t n, float *grad, float scale, float *variance, float weight,
                            float rest, float least);
void kernel_scale(size_t n, float *values, float scale);

/* The average of the parameters over steps (torch.optim.swa_utils.get_ema_multi_avg_fn). */
struct average_args {
    float weight; /* of the parameters: 1 - decay; 1: the average becomes the parameters */
};
void kernel_average(size_t n, float *average, const float *param, const struct average_args *args);

/* The sum for a norm; NaN if a value is NaN. Runs on the calling thread. */
double kernel_sum_squares(size_t n, const float *values);
double kernel_max_abs(size_t n, const float *values);

/* to[i] += from[i] */
void kernel_add(size_t n, float *to, const float *from);

/* Vectorised helpers of communicators: */

/* out[i] = (parts[0][i] + parts[1][i] + ... in this order) * scale; out may be parts[0]. */
void kernel_sum_ordered(size_t n, float *out, const float *const *parts, int part_count,
                        float scale);

/* PyTorch's draws from uniform values in [0, 1), in place, on the calling thread: kernel_fused
 * gives values * factor + offset, rounded once; the other gives normal values, from blocks of
 * 16. */
void kernel_fused(size_t n, float *values, float factor, float offset);
void kernel_box_muller(size_t blocks, float *values, float mean, float std);

/* bf16 is the upper half of an f32. Rounds to nearest, ties to even. */
void kernel_bf16_to_f32(size_t n, float *out, const uint16_t *in);
void kernel_f32_to_bf16(size_t n, uint16_t *out, const float *in);
/* As kernel_sum_ordered, for parts in bf16; the sum is f32 throughout. */
void kernel_sum_ordered_bf16(size_t n, float *out, const uint16_t *const *parts, int part_count,
                             float scale);

/* The library that computes most ops on a cpu, with its version: "oneDNN 3.1.1". */
void kernel_cpu_version(char *text, size_t size);

#endif
