/* The end of a training step on CUDA: the work of step_cpu.c, as kernel launches. */
#include <string.h>

#include "runtime/cuda/device_cuda.h"
#include "runtime/step_args.h"

/* An optimizer's arguments as its kernel takes them; the step, which keys draws, is behind them. */
struct arguments {
    union {
#define MEMBER(KIND, name, kernel, ...) struct kernel##_args name;
        OPTIMIZERS(MEMBER)
#undef MEMBER
    };
    uint64_t taken;
};

/* The gradient's scale is read on the device. */
static void prepare_arguments(const struct optimizer_step *step, struct arguments *args)
{
    const float scale = 1;
    memset(args, 0, sizeof *args);
    args->taken = step->taken;
    switch (step->kind) {
#define PREPARE(KIND, name, kernel, ...)                                                           \
    case OPTIMIZER_##KIND: args->name = step_##kernel##_args(step, scale); return;
        OPTIMIZERS(PREPARE)
#undef PREPARE
    case OPTIMIZER_COUNT: return;
    }
}

static struct cuda_halves halves_of(const struct optimizer_step *step, const void *live)
{
    const struct arguments *args = live;
    return (struct cuda_halves){.param = step->rounded,
                                .slots = step->state == STATE_BF16,
                                .seed = step->seed,
                                .first = step->first,
                                .parameter = step->parameter,
                                .step = step->taken,
                                .live = args != NULL ? &args->taken : NULL};
}

static int optimize(const struct cuda_launch *launch, const struct optimizer_step *step,
                    const struct arguments *args, size_t n, float *param, uint16_t *copy,
                    const float *grad, float *const *slots, const struct cuda_gate_in *gate)
{
    if (step->state == STATE_INT8)
        return cuda_adam_packed(launch, n, param, copy, grad, slots[0], slots[1], &args->adam,
                                gate);
    switch (step->kind) {
#define RUN(KIND, name, kernel, count, ...)                                                        \
    case OPTIMIZER_##KIND:                                                                         \
        return cuda_##kernel(launch, n, param, copy, grad, __VA_ARGS__, &args->name, gate);
        OPTIMIZERS(RUN)
#undef RUN
    case OPTIMIZER_COUNT: break;
    }
    return 0;
}

struct cuda_gate_in cuda_gate_of(const float *stats, bool gated)
{
    if (gated)
        return (struct cuda_gate_in){.skipped = stats + PLAN_STAT_SKIPPED,
                                     .scale = stats + PLAN_STAT_SCALE};
    return (struct cuda_gate_in){.targets = stats + PLAN_STAT_TARGETS,
                                 .counted = stats + PLAN_STAT_COUNTED};
}

status_t cuda_lane_optimize(struct lane_queue *base, const struct optimizer_step *step, size_t n,
                            float *param, uint16_t *rounded, const float *grad, float *const *slots,
                            const float *stats, bool gated)
{
    struct cuda_lane *lane = cuda_lane(base);
    struct arguments args;
    if (n == 0) return NULL;
    struct cuda_launch launch = cuda_launch_of(lane), averaging = launch;
    const struct average_args average = step_average_args(step);
    bool averages = step->ema_decay > 0;
    prepare_arguments(step, &args);
    TRY(cuda_take_value(lane, &args, sizeof args, &launch.live));
    const struct cuda_halves halves = halves_of(step, launch.live);
    if (halves.param || halves.slots) launch.halves = &halves;
    if (averages) TRY(cuda_take_value(lane, &average, sizeof average, &averaging.live));
    if (!cuda_does_enqueue(lane)) return NULL;
    TRY(cuda_enqueue(lane));
    const struct cuda_gate_in in = cuda_gate_of(stats, gated);
    int error = optimize(&launch, step, &args, n, param, rounded, grad, slots, &in);
    if (error == 0 && averages)
        error = cuda_average(&averaging, n, slots[optimizer_step_slots(step) - 1], param, &average,
                             &in);
    return cuda_enqueued(lane, error, "the optimizer");
}

status_t cuda_lane_round(struct lane_queue *base, size_t n, uint16_t *to, const float *from)
{
    struct cuda_lane *lane = cuda_lane(base);
    if (n == 0 || !cuda_does_enqueue(lane)) return NULL;
    TRY(cuda_enqueue(lane));
    struct cuda_launch launch = cuda_launch_of(lane);
    return cuda_enqueued(lane, cuda_f32_to_bf16(&launch, n, to, from), "a rounding");
}

status_t cuda_lane_add(struct lane_queue *base, size_t n, float *to, const float *from)
{
    struct cuda_lane *lane = cuda_lane(base);
    if (n == 0 || !cuda_does_enqueue(lane)) return NULL;
    TRY(cuda_enqueue(lane));
    struct cuda_launch launch = cuda_launch_of(lane);
    return cuda_enqueued(lane, cuda_add(&launch, n, to, from), "an addition");
}

status_t cuda_lane_norm(struct lane_queue *base, enum norm_kind kind, size_t n, const float *values,
                        double *partial)
{
    struct cuda_lane *lane = cuda_lane(base);
    if (n == 0 || !cuda_does_enqueue(lane)) return NULL;
    TRY(cuda_enqueue(lane));
    struct cuda_launch launch = cuda_launch_of(lane);
    int error = cuda_norm(&launch, kind != NORM_2, n, values, lane->norm_parts, partial);
    return cuda_enqueued(lane, error, "a norm");
}

status_t cuda_lane_gate(struct lane_queue *base, const struct gate_args *args,
                        const double *partials, int count, float *stats)
{
    struct cuda_lane *lane = cuda_lane(base);
    struct cuda_launch launch = cuda_launch_of(lane);
    const struct cuda_gate_args wanted = {.largest = args->kind != NORM_2,
                                          .max_norm = args->max_norm,
                                          .skip = args->skip};
    const struct cuda_gate_stats of = {.loss = stats + PLAN_STAT_LOSS,
                                       .targets = stats + PLAN_STAT_TARGETS,
                                       .counted = stats + PLAN_STAT_COUNTED,
                                       .norm = stats + PLAN_STAT_NORM,
                                       .scale = stats + PLAN_STAT_SCALE,
                                       .skipped = stats + PLAN_STAT_SKIPPED};
    TRY(cuda_take_value(lane, &wanted, sizeof wanted, &launch.live));
    if (!cuda_does_enqueue(lane)) return NULL;
    TRY(cuda_enqueue(lane));
    int error = cuda_gate(&launch, &wanted, partials, count, &of);
    return cuda_enqueued(lane, error, "the gate");
}
