/* The end of a training step on CUDA: what step_cpu.c does, as launches. */
#include "runtime/cuda/device_cuda.h"
#include "runtime/step_args.h"

static int optimize(const struct cuda_launch *launch, const struct optimizer_step *step, size_t n,
                    float *param, const float *grad, float *const *slots,
                    const struct cuda_gate_in *gate)
{
    float scale = (float)step_scale_or_one(step->gradient_scale);
    switch (step->kind) {
    case OPTIMIZER_ADADELTA: {
        struct adadelta_args args = step_adadelta_args(step, scale);
        return cuda_adadelta(launch, n, param, grad, slots[0], slots[1], &args, gate);
    }
    case OPTIMIZER_SGD: {
        struct sgd_args args = step_sgd_args(step, scale);
        return cuda_sgd(launch, n, param, grad, slots[0], &args, gate);
    }
    case OPTIMIZER_ADAM:
    case OPTIMIZER_ADAMW: break;
    }
    struct adam_args args = step_adam_args(step, scale);
    return cuda_adam(launch, n, param, grad, slots[0], slots[1], &args, gate);
}

status_t cuda_lane_optimize(struct lane_queue *base, const struct optimizer_step *step, size_t n,
                            float *param, const float *grad, float *const *slots, const float *gate)
{
    struct cuda_lane *lane = cuda_lane(base);
    if (n == 0) return STATUS_OKAY;
    TRY(cuda_enqueue(lane));
    struct cuda_launch launch = cuda_launch_of(lane);
    struct cuda_gate_in in = {0};
    if (gate != NULL)
        in = (struct cuda_gate_in){.skipped = gate + PLAN_STAT_SKIPPED,
                                   .scale = gate + PLAN_STAT_SCALE};
    int error = optimize(&launch, step, n, param, grad, slots, gate != NULL ? &in : NULL);
    return cuda_enqueued(lane, error, "the optimizer");
}

status_t cuda_lane_add(struct lane_queue *base, size_t n, float *to, const float *from)
{
    struct cuda_lane *lane = cuda_lane(base);
    if (n == 0) return STATUS_OKAY;
    TRY(cuda_enqueue(lane));
    struct cuda_launch launch = cuda_launch_of(lane);
    return cuda_enqueued(lane, cuda_add(&launch, n, to, from), "an addition");
}

status_t cuda_lane_norm(struct lane_queue *base, enum norm_kind kind, size_t n, const float *values,
                        double *partial)
{
    struct cuda_lane *lane = cuda_lane(base);
    if (n == 0) return STATUS_OKAY;
    TRY(cuda_enqueue(lane));
    struct cuda_launch launch = cuda_launch_of(lane);
    int error = cuda_norm(&launch, kind != NORM_2, n, values, lane->norm_parts, partial);
    return cuda_enqueued(lane, error, "a norm");
}

status_t cuda_lane_gate(struct lane_queue *base, const struct gate_args *args,
                        const double *partials, int count, float *stats)
{
    struct cuda_lane *lane = cuda_lane(base);
    TRY(cuda_enqueue(lane));
    struct cuda_launch launch = cuda_launch_of(lane);
    const struct cuda_gate_args wanted = {.largest = args->kind != NORM_2,
                                          .max_norm = args->max_norm,
                                          .gradient_scale = step_scale_or_one(args->gradient_scale),
                                          .skip = args->skip};
    int error =
        cuda_gate(&launch, &wanted, partials, count, stats + PLAN_STAT_LOSS, stats + PLAN_STAT_NORM,
                  stats + PLAN_STAT_SCALE, stats + PLAN_STAT_SKIPPED);
    return cuda_enqueued(lane, error, "the gate");
}
