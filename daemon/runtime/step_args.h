/*
 * An optimizer step's numbers as kernels take them: computed in double, then rounded once, the same
 * for every device. Pure.
 */
#ifndef FSDPD_RUNTIME_STEP_ARGS_H
#define FSDPD_RUNTIME_STEP_ARGS_H

#include <math.h>

#include "kernels/kernels.h"
#include "runtime/device.h"

/* Whether a step updates nothing, and the scale of its gradient, by the statistics; `gated` as for
 * lane_optimize. */
static inline bool step_is_skipped(const float *stats, bool gated)
{
    return gated ? stats[PLAN_STAT_SKIPPED] != 0 : stats[PLAN_STAT_COUNTED] == 0;
}

/* The factor that makes a gradient the mean over the targets that count. */
static inline double step_mean_scale(const float *stats)
{
    return (double)stats[PLAN_STAT_TARGETS] / (double)stats[PLAN_STAT_COUNTED];
}

static inline float step_scale(const float *stats, bool gated)
{
    return gated ? stats[PLAN_STAT_SCALE] : (float)step_mean_scale(stats);
}

static inline struct adam_args step_adam_args(const struct optimizer_step *step, float scale)
{
    double t = (double)(step->taken + 1);
    bool decoupled = step->kind == OPTIMIZER_ADAMW;
    return (struct adam_args){
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
}

/* Rectified (Liu et al., 2020) once the average of squares has a variance: torch.optim.RAdam's. */
static inline struct radam_args step_radam_args(const struct optimizer_step *step, float scale)
{
    double t = (double)(step->taken + 1), power = pow(step->beta2, t);
    double most = 2 / (1 - step->beta2) - 1, length = most - 2 * t * power / (1 - power);
    double square = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length);
    return (struct radam_args){.lr = (float)step->lr,
                               .beta1 = (float)step->beta1,
                               .one_minus_beta1 = (float)(1 - step->beta1),
                               .beta2 = (float)step->beta2,
                               .one_minus_beta2 = (float)(1 - step->beta2),
                               .eps = (float)step->eps,
                               .weight_decay = (float)step->weight_decay,
                               .correction = (float)(1 - pow(step->beta1, t)),
                               .root = (float)sqrt(1 - power),
                               .rectified = length > 5 ? (float)sqrt(square) : 0,
                               .grad_scale = scale};
}

static inline struct lion_args step_lion_args(const struct optimizer_step *step, float scale)
{
    return (struct lion_args){.lr = (float)step->lr,
                              .beta1 = (float)step->beta1,
                              .one_minus_beta1 = (float)(1 - step->beta1),
                              .beta2 = (float)step->beta2,
                              .one_minus_beta2 = (float)(1 - step->beta2),
                              .shrink = (float)(1 - step->lr * step->weight_decay),
                              .grad_scale = scale};
}

static inline struct adagrad_args step_adagrad_args(const struct optimizer_step *step, float scale)
{
    return (struct adagrad_args){.decayed_lr =
                                     (float)(step->lr / (1 + (double)step->taken * step->lr_decay)),
                                 .eps = (float)step->eps,
                                 .weight_decay = (float)step->weight_decay,
                                 .grad_scale = scale};
}

static inline struct adadelta_args step_adadelta_args(const struct optimizer_step *step,
                                                      float scale)
{
    return (struct adadelta_args){.lr = (float)step->lr,
                                  .rho = (float)step->rho,
                                  .eps = (float)step->eps,
                                  .weight_decay = (float)step->weight_decay,
                                  .one_minus_rho = (float)(1.0 - step->rho),
                                  .grad_scale = scale};
}

static inline struct muon_args step_muon_args(const struct optimizer_step *step, float scale)
{
    /* Adafactor's updates have the rate in them. */
    return (struct muon_args){.lr = optimizer_factors(step->kind) ? 1 : (float)step->lr,
                              .momentum = (float)step->momentum,
                              .one_minus_momentum = (float)(1 - step->momentum),
                              .shrink = (float)(1 - step->lr * step->weight_decay),
                              .grad_scale = scale,
                              .nesterov = step->nesterov};
}

static inline struct factor_args step_factor_args(const struct optimizer_step *step)
{
    double t = (double)(step->taken + 1), weight = pow(t, step->beta2_decay);
    return (struct factor_args){.weight = (float)weight,
                                .rest = (float)(1 - weight),
                                .least_mean = (float)step->eps1,
                                .least = (float)(step->eps1 * step->eps1),
                                .rate = fmin(step->lr, 1 / sqrt(t)),
                                .eps2 = step->eps2,
                                .clip = step->clip};
}

/* The factor of the update of a parameter, given the root mean squares of both. */
static inline float step_factor_rate(const struct factor_args *args, double parameter,
                                     double update)
{
    return (float)(fmax(args->eps2, parameter) * args->rate / fmax(1, update / args->clip));
}

/* The factor of the update of a matrix. */
static inline float step_muon_scale(const struct optimizer_step *step, int64_t rows,
                                    int64_t columns)
{
    double ratio = (double)rows / (double)columns, most = (double)(rows > columns ? rows : columns);
    if (step->adjust_lr == ADJUST_LR_MATCH_RMS_ADAMW) return (float)(0.2 * sqrt(most));
    return (float)sqrt(ratio > 1 ? ratio : 1);
}

/* The first step's parameters are the first average, as in torch.optim.swa_utils. */
static inline struct average_args step_average_args(const struct optimizer_step *step)
{
    return (struct average_args){step->taken == 0 ? 1 : (float)(1 - step->ema_decay)};
}

static inline struct sgd_args step_sgd_args(const struct optimizer_step *step, float scale)
{
    return (struct sgd_args){.lr = (float)step->lr,
                             .momentum = (float)step->momentum,
                             .one_minus_dampening = (float)(1.0 - step->dampening),
                             .weight_decay = (float)step->weight_decay,
                             .grad_scale = scale,
                             .nesterov = step->nesterov,
                             .first_step = step->taken == 0};
}

#endif
