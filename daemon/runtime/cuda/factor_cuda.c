/*
 * Adafactor's sums over rows and columns on CUDA: the work of factor_step.c, as kernel launches. A
 * skipped step moves sums that mean nothing: all that changes state reads the gate.
 */
#include "base/mem.h"
#include "runtime/cuda/device_cuda.h"
#include "runtime/factor_step.h"
#include "runtime/step_args.h"

/* Of an instruction that the lane enqueues. */
struct factoring {
    const struct factor_work *work;
    struct cuda_lane *lane;
    struct cuda_launch launch;
    struct factor_args args;
    struct cuda_gate_in gate;
};

static int add_squares(const struct factoring *it, const struct plan_range *range)
{
    const struct factor_work *work = it->work;
    const struct plan_factor *of = &work->factors[factor_step_number(work, range)];
    const struct kernel_factor piece = factor_step_piece(of, range);
    double *sums = (double *)(void *)work->room + of->place;
    if (of->rows == 0) return 0;
    return cuda_factor_sums(&it->launch, &piece, work->values + range->from, sums, sums + of->rows,
                            &it->gate);
}

static int add_collected(const struct factoring *it, const struct plan_factor *of)
{
    const struct factor_work *work = it->work;
    double *sums = (double *)(void *)work->room + of->place;
    const double *inbox = (double *)(void *)(work->room + work->places.inbox) + of->inbox;
    AUTO_FREE struct cuda_factor_part *parts =
        mem_resize_array(NULL, (size_t)work->places.ranks, sizeof *parts);
    int count = 0;
    if (work->places.ranks == 1) return 0;
    for (int r = 0; r < work->places.ranks; r++) {
        struct plan_factor_part part = plan_factor_part(work->plan, work->unit, of, r);
        if (part.count > 0)
            parts[count++] = (struct cuda_factor_part){part.first_row, part.rows, part.first_column,
                                                       part.columns};
    }
    return cuda_factor_collect(&it->launch, parts, count, inbox, sums, of->rows, of->columns,
                               &it->gate);
}

static int renew(const struct factoring *it, const struct plan_factor *of)
{
    const struct factor_work *work = it->work;
    const struct kernel_factor whole = {.count = of->elements,
                                        .height = of->height,
                                        .width = of->width};
    if (!factor_step_owns(work, of)) return 0;
    int error = add_collected(it, of);
    if (error != 0) return error;
    return cuda_factor_renew(&it->launch, &whole, (double *)(void *)work->room + of->place,
                             factor_step_state(work, of),
                             work->room + work->places.factors + of->place, &it->args, &it->gate);
}

static int make_update(const struct factoring *it, const struct plan_range *range)
{
    const struct factor_work *work = it->work;
    int number = factor_step_number(work, range);
    const struct plan_factor *of = &work->factors[number];
    const struct kernel_factor piece = factor_step_piece(of, range);
    const float *factors = work->room + work->places.factors + of->place;
    double *totals = factor_step_totals(work, work->places.rank) + 2 * (ptrdiff_t)number;
    float *values = work->values + range->from;
    const float *param = work->param + range->from;
    if (of->rows == 0)
        return cuda_variance_update(&it->launch, (size_t)range->count, values, param,
                                    work->state + range->state, &it->args, it->lane->norm_parts,
                                    totals, &it->gate);
    return cuda_factor_update(&it->launch, &piece, values, param, factors, factors + of->rows,
                              &it->args, it->lane->norm_parts, totals, &it->gate);
}

static int scale_update(const struct factoring *it, const struct plan_range *range)
{
    const struct factor_work *work = it->work;
    int number = factor_step_number(work, range);
    const struct cuda_factor_totals totals = {.first = factor_step_totals(work, 0) +
                                                       2 * (ptrdiff_t)number,
                                              .stride = 2 * (int64_t)work->factor_count,
                                              .elements = work->factors[number].elements,
                                              .ranks = work->places.ranks};
    return cuda_factor_scale(&it->launch, (size_t)range->count, work->values + range->from, &totals,
                             &it->args, &it->gate);
}

/* Every range has the arguments of its group. */
static status_t scale_updates(struct factoring *it)
{
    const struct factor_work *work = it->work;
    int error = 0;
    for (int r = 0; r < work->range_count && error == 0; r++) {
        const struct plan_range *range = &work->ranges[r];
        const struct optimizer_step step = optimizer_step_of(&work->step, range->group, false);
        it->args = step_factor_args(&step);
        TRY(cuda_take_value(it->lane, &it->args, sizeof it->args, &it->launch.live));
        if (cuda_does_enqueue(it->lane)) error = scale_update(it, range);
    }
    return cuda_status((cudaError_t)error, "the rates of updates");
}

static status_t run(struct factoring *it)
{
    const struct factor_work *work = it->work;
    int error = 0;
    if (work->kind == INSTRUCTION_SCALE) return scale_updates(it);
    it->args = step_factor_args(&work->step);
    TRY(cuda_take_value(it->lane, &it->args, sizeof it->args, &it->launch.live));
    if (!cuda_does_enqueue(it->lane)) return NULL;
    if (work->kind == INSTRUCTION_FACTOR) {
        for (int f = 0; f < work->factor_count && error == 0; f++)
            error = renew(it, &work->factors[f]);
        return cuda_status((cudaError_t)error, "sums of rows and columns");
    }
    bool updates = work->kind == INSTRUCTION_UPDATE;
    if (updates)
        TRY_CUDA(cudaMemsetAsync(factor_step_totals(work, work->places.rank), 0,
                                 2 * (size_t)work->factor_count * sizeof(double),
                                 it->lane->stream));
    for (int r = 0; r < work->range_count && error == 0; r++)
        error = (updates ? make_update : add_squares)(it, &work->ranges[r]);
    return cuda_status((cudaError_t)error, updates ? "updates" : "sums of squares");
}

status_t cuda_lane_factors(struct lane_queue *base, const struct factor_work *work)
{
    struct cuda_lane *lane = cuda_lane(base);
    struct factoring it = {.work = work,
                           .lane = lane,
                           .launch = cuda_launch_of(lane),
                           .gate = cuda_gate_of(work->stats, work->gated)};
    if (cuda_does_enqueue(lane)) TRY(cuda_enqueue(lane));
    status_t status = run(&it);
    if (status != NULL || !cuda_does_enqueue(lane)) return cuda_named(lane, status);
    return cuda_enqueued(lane, cudaSuccess, "sums of squares");
}
