/*
 * The end of a training step on the cpu: the gradient's norm, what follows from it, and the
 * optimizer. Pure functions over memory of the caller; a compute lane's thread runs them.
 */
#include <math.h>

#include "kernels/kernels.h"
#include "runtime/device_table.h"
#include "runtime/step_args.h"

/* So that a norm of zero does not divide by it; PyTorch's. */
#define CLIP_EPSILON 1e-6f

void step_cpu_optimize(const struct optimizer_step *step, size_t n, float *param, const float *grad,
                       float *const *slots, const float *gate)
{
    float scale = (float)step_scale_or_one(step->gradient_scale);
    if (gate != NULL) {
        if (gate[PLAN_STAT_SKIPPED] != 0) return;
        scale = gate[PLAN_STAT_SCALE];
    }
    switch (step->kind) {
    case OPTIMIZER_ADADELTA: {
        struct adadelta_args args = step_adadelta_args(step, scale);
        kernel_adadelta(n, param, grad, slots[0], slots[1], &args);
        break;
    }
    case OPTIMIZER_SGD: {
        struct sgd_args args = step_sgd_args(step, scale);
        kernel_sgd(n, param, grad, slots[0], &args);
        break;
    }
    case OPTIMIZER_ADAM:
    case OPTIMIZER_ADAMW: {
        struct adam_args args = step_adam_args(step, scale);
        kernel_adam(n, param, grad, slots[0], slots[1], &args);
        break;
    }
    }
}

/* Not a number wins, so that it is seen in the end. */
static void combine(enum norm_kind kind, double *total, double more)
{
    if (kind == NORM_2) *total += more;
    else if (more > *total || more != more) *total = more;
}

void step_cpu_norm(enum norm_kind kind, size_t n, const float *values, double *partial)
{
    double more = kind == NORM_2 ? kernel_sum_squares(n, values) : kernel_max_abs(n, values);
    combine(kind, partial, more);
}

void step_cpu_gate(const struct gate_args *args, const double *partials, int count, float *stats)
{
    double total = 0, scale = step_scale_or_one(args->gradient_scale);
    for (int i = 0; i < count; i++) combine(args->kind, &total, partials[i]);
    float norm = (float)((args->kind == NORM_2 ? sqrt(total) : total) * scale);
    bool skip = args->skip || !isfinite(norm) || !isfinite(stats[PLAN_STAT_LOSS]);
    if (args->max_norm > 0) {
        /* as torch.nn.utils.clip_grad_norm_ rounds it */
        float coefficient = 1 / (norm + CLIP_EPSILON) * (float)args->max_norm;
        if (coefficient < 1) scale *= coefficient;
    }
    stats[PLAN_STAT_NORM] = norm;
    stats[PLAN_STAT_SCALE] = skip ? 0 : (float)scale;
    stats[PLAN_STAT_SKIPPED] = skip;
}
