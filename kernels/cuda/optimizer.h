/* Shared by the kernels of optimizers: whether a step counts, and AdamW of one parameter. */
#ifndef FSDPD_KERNELS_CUDA_OPTIMIZER_H
#define FSDPD_KERNELS_CUDA_OPTIMIZER_H

#include "kernels/cuda/platform.h"

namespace fsdpd
{

/* The scale that makes a gradient the mean over the targets that count. */
__device__ inline double mean_scale(const float *targets, const float *counted)
{
    return (double)targets[0] / (double)counted[0];
}

/* Reads the gradient's scale; false if the step is skipped. */
__device__ inline bool read_gate(const cuda_gate_in &gate, float *scale)
{
    if (gate.skipped != nullptr) {
        *scale = gate.scale[0];
        return gate.skipped[0] == 0;
    }
    *scale = (float)mean_scale(gate.targets, gate.counted);
    return gate.counted[0] != 0;
}

/* As kernel_lerp. */
__device__ inline float lerp(float from, float to, float weight, float rest)
{
    return weight < 0.5f ? fmaf(to - from, weight, from) : fmaf(from - to, rest, to);
}

/* `gradient` is scaled. */
__device__ inline void adam_value(const struct adam_args &args, float gradient, float *p, float *m,
                                  float *s)
{
    float kept = *p * args.shrink;
    float g = args.weight_decay == 0 ? gradient : fmaf(kept, args.weight_decay, gradient);
    *m = fmaf(g, args.one_minus_beta1, args.beta1 * *m);
    *s = fmaf(args.one_minus_beta2 * g, g, args.beta2 * *s);
    *p = kept + -args.corrected_lr * *m / (sqrtf(*s) / args.corrected_root + args.eps);
}

} // namespace fsdpd

#endif
