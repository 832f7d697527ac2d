/*
 * The end of a training step on the cpu: the gradient's norm, what follows from it, and the
 * optimizer. Pure functions over memory of the caller; a compute lane's thread runs them.
 */
#include <math.h>

#include "kernels/kernels.h"
#include "runtime/device_table.h"

/* So that a norm of zero does not divide by it; PyTorch's. */
#define CLIP_EPSILON 1e-6f

static double scale_or_one(double scale)
{
    return scale != 0 ? scale : 1;
}

static void optimize_adam(const struct optimizer_step *step, float scale, size_t n, float *param,
                          const float *grad, float *const *slots)
{
    double t = (double)(step->taken + 1);
    bool decoupled = step->kind == OPTIMIZER_ADAMW;
    struct adam_args args = {
        .beta1 = (float)step->beta1,
        .one_minus_beta1 = (float)(1 - step->beta1),
        .beta2 = (float)step->beta2,
        .one_minus_beta2 = (float)(1 - step->beta2),
        .eps = (float)step->eps,
        .weight_decay = decoupled ? 0 : (float)step->weight_decay,
        .shrink = decoupled ? (float)(1 - step->lr * step->weight_decay) : 1,
        .corrected_lr = (float)(step->lr / (1 - pow(step->beta1, t))),
        .corrected_root = (float)sqrt(1 - pow(step->beta2, t)),
        .grad_scale = scale,
    };
    kernel_adam(n, param, grad, slots[0], slots[1], &args);
}

void step_cpu_optimize(const struct optimizer_step *step, size_t n, float *param, const float *grad,
                       float *const *slots, const float *gate)
{
    float scale = (float)scale_or_one(step->gradient_scale);
    if (gate != NULL) {
        if (gate[PLAN_STAT_SKIPPED] != 0) return;
        scale = gate[PLAN_STAT_SCALE];
    }
    switch (step->kind) {
    case OPTIMIZER_ADADELTA: {
        struct adadelta_args args = {.lr = (float)step->lr,
                                     .rho = (float)step->rho,
                                     .eps = (float)step->eps,
                                     .weight_decay = (float)step->weight_decay,
                                     .one_minus_rho = (float)(1.0 - step->rho),
                                     .grad_scale = scale};
        kernel_adadelta(n, param, grad, slots[0], slots[1], &args);
        break;
    }
    case OPTIMIZER_SGD: {
        struct sgd_args args = {.lr = (float)step->lr,
                                .momentum = (float)step->momentum,
                                .one_minus_dampening = (float)(1.0 - step->dampening),
                                .weight_decay = (float)step->weight_decay,
                                .grad_scale = scale,
                                .nesterov = step->nesterov,
                                .first_step = step->taken == 0};
        kernel_sgd(n, param, grad, slots[0], &args);
        break;
    }
    case OPTIMIZER_ADAM:
    case OPTIMIZER_ADAMW: optimize_adam(step, scale, n, param, grad, slots); break;
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
    double total = 0, scale = scale_or_one(args->gradient_scale);
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
