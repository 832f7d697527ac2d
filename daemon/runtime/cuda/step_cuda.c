/* The end of a training step on CUDA: what step_cpu.c does, as launches. */
#include <string.h>

#include "runtime/cuda/device_cuda.h"
#include "runtime/step_args.h"

/* An optimizer's arguments as its kernel takes them. */
union arguments {
    struct adadelta_args adadelta;
    struct sgd_args sgd;
    struct adam_args adam;
};

static void prepare_arguments(const struct optimizer_step *step, union arguments *args)
{
    float scale = (float)step_scale_or_one(step->gradient_scale);
    memset(args, 0, sizeof *args);
    switch (step->kind) {
    case OPTIMIZER_ADADELTA: args->adadelta = step_adadelta_args(step, scale); return;
    case OPTIMIZER_SGD: args->sgd = step_sgd_args(step, scale); return;
    case OPTIMIZER_ADAM:
    case OPTIMIZER_ADAMW: args->adam = step_adam_args(step, scale); return;
    }
}

static int optimize(const struct cuda_launch *launch, enum optimizer_kind kind,
                    const union arguments *args, size_t n, float *param, const float *grad,
                    float *const *slots, const struct cuda_gate_in *gate)
{
    switch (kind) {
    case OPTIMIZER_ADADELTA:
        return cuda_adadelta(launch, n, param, grad, slots[0], slots[1], &args->adadelta, gate);
    case OPTIMIZER_SGD: return cuda_sgd(launch, n, param, grad, slots[0], &args->sgd, gate);
    case OPTIMIZER_ADAM:
    case OPTIMIZER_ADAMW: break;
    }
    return cuda_adam(launch, n, param, grad, slots[0], slots[1], &args->adam, gate);
}

status_t cuda_lane_optimize(struct lane_queue *base, const struct optimizer_step *step, size_t n,
                            float *param, const float *grad, float *const *slots, const float *gate)
{
    struct cuda_lane *lane = cuda_lane(base);
    union arguments args;
    if (n == 0) return STATUS_OKAY;
    struct cuda_launch launch = cuda_launch_of(lane);
    prepare_arguments(step, &args);
    TRY(cuda_take_value(lane, &args, sizeof args, &launch.live));
    if (!cuda_does_enqueue(lane)) return STATUS_OKAY;
    TRY(cuda_enqueue(lane));
    struct cuda_gate_in in = {0};
    if (gate != NULL)
        in = (struct cuda_gate_in){.skipped = gate + PLAN_STAT_SKIPPED,
                                   .scale = gate + PLAN_STAT_SCALE};
    int error =
        optimize(&launch, step->kind, &args, n, param, grad, slots, gate != NULL ? &in : NULL);
    return cuda_enqueued(lane, error, "the optimizer");
}

status_t cuda_lane_add(struct lane_queue *base, size_t n, float *to, const float *from)
{
    struct cuda_lane *lane = cuda_lane(base);
    if (n == 0 || !cuda_does_enqueue(lane)) return STATUS_OKAY;
    TRY(cuda_enqueue(lane));
    struct cuda_launch launch = cuda_launch_of(lane);
    return cuda_enqueued(lane, cuda_add(&launch, n, to, from), "an addition");
}

status_t cuda_lane_norm(struct lane_queue *base, enum norm_kind kind, size_t n, const float *values,
                        double *partial)
{
    struct cuda_lane *lane = cuda_lane(base);
    if (n == 0 || !cuda_does_enqueue(lane)) return STATUS_OKAY;
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
                                          .gradient_scale = step_scale_or_one(args->gradient_scale),
                                          .skip = args->skip};
    TRY(cuda_take_value(lane, &wanted, sizeof wanted, &launch.live));
    if (!cuda_does_enqueue(lane)) return STATUS_OKAY;
    TRY(cuda_enqueue(lane));
    int error =
        cuda_gate(&launch, &wanted, partials, count, stats + PLAN_STAT_LOSS, stats + PLAN_STAT_NORM,
                  stats + PLAN_STAT_SCALE, stats + PLAN_STAT_SKIPPED);
    return cuda_enqueued(lane, error, "the gate");
}
