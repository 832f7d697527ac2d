/*
 * The end of a training step on the cpu: the gradient's norm, clipping and skipping, and the
 * optimizer. Pure functions over the caller's memory; a compute lane's thread runs them.
 */
#include <math.h>

#include "kernels/kernels.h"
#include "runtime/device_table.h"
#include "runtime/step_args.h"

/* Avoids a division by a norm of zero; as in PyTorch. */
#define CLIP_EPSILON 1e-6f

static void update(const struct optimizer_step *step, size_t n, float *param, const float *grad,
                   float *const *slots, float scale);

struct piecewise {
    const struct optimizer_step *step;
    float scale;
};

/* Of values that were widened; a piece is below what kernels split over threads. */
static void update_piece(const void *user, size_t n, float *param, const float *grad,
                         float *const *slots)
{
    const struct piecewise *piecewise = user;
    update(piecewise->step, n, param, grad, slots, piecewise->scale);
}

static void update_halves(const struct optimizer_step *step, size_t n, float *param,
                          const float *grad, float *const *slots, float scale)
{
    struct optimizer_step wide = *step;
    const struct piecewise piecewise = {&wide, scale};
    struct kernel_halves halves = {.n = n,
                                   .param = step->rounded ? NULL : param,
                                   .half_param = step->rounded ? (uint16_t *)(void *)param : NULL,
                                   .grad = grad,
                                   .seed = step->seed,
                                   .step = step->taken,
                                   .parameter = step->parameter,
                                   .first = step->first,
                                   .update = update_piece,
                                   .user = &piecewise};
    wide.state = STATE_F32;
    wide.rounded = false;
    for (int slot = 0; slot < optimizer_step_slots(step); slot++) {
        if (step->state == STATE_BF16 && optimizer_slot_packs(slot))
            halves.half_slots[slot] = (uint16_t *)(void *)slots[slot];
        else halves.slots[slot] = slots[slot];
    }
    kernel_step_halves(&halves);
}

static void update(const struct optimizer_step *step, size_t n, float *param, const float *grad,
                   float *const *slots, float scale)
{
    if (step->state == STATE_INT8) {
        const struct adam_args args = step_adam_args(step, scale);
        kernel_adam_packed(n, param, grad, slots[0], slots[1], &args);
        return;
    }
    if (step->state == STATE_BF16 || step->rounded) {
        update_halves(step, n, param, grad, slots, scale);
        return;
    }
    switch (step->kind) {
#define RUN(KIND, name, kernel, count, ...)                                                        \
    case OPTIMIZER_##KIND: {                                                                       \
        const struct kernel##_args args = step_##kernel##_args(step, scale);                       \
        kernel_##kernel(n, param, grad, __VA_ARGS__, &args);                                       \
        return;                                                                                    \
    }
        OPTIMIZERS(RUN)
#undef RUN
    case OPTIMIZER_COUNT: return;
    }
}

void step_cpu_optimize(const struct optimizer_step *step, size_t n, float *param, uint16_t *rounded,
                       const float *grad, float *const *slots, const float *stats, bool gated)
{
    if (step_is_skipped(stats, gated)) return;
    update(step, n, param, grad, slots, step_scale(stats, gated));
    if (rounded != NULL) kernel_f32_to_bf16(n, rounded, param);
    if (step->ema_decay == 0) return;
    const struct average_args average = step_average_args(step);
    kernel_average(n, slots[optimizer_step_slots(step) - 1], param, &average);
}

/* NaN propagates. */
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
    bool counts = stats[PLAN_STAT_COUNTED] != 0;
    double total = 0, scale = counts ? step_mean_scale(stats) : 0;
    for (int i = 0; i < count; i++) combine(args->kind, &total, partials[i]);
    float norm = (float)((args->kind == NORM_2 ? sqrt(total) : total) * scale);
    bool skip = args->skip || !counts || !isfinite(norm) || !isfinite(stats[PLAN_STAT_LOSS]);
    if (args->max_norm > 0) {
        /* rounded as in torch.nn.utils.clip_grad_norm_ */
        float coefficient = 1 / (norm + CLIP_EPSILON) * (float)args->max_norm;
        if (coefficient < 1) scale *= coefficient;
    }
    stats[PLAN_STAT_NORM] = norm;
    stats[PLAN_STAT_SCALE] = skip ? 0 : (float)scale;
    stats[PLAN_STAT_SKIPPED] = skip;
}
