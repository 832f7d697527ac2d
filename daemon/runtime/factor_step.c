/* Sums over rows and columns at the end of a step; see factor_step.h. */
#include "runtime/factor_step.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/kernels.h"
#include "runtime/device_table.h"
#include "runtime/step_args.h"

void factor_work_init(struct factor_work *work)
{
    work->factor_count = plan_find_factors(work->plan, work->unit, &work->factors, &work->places);
    work->range_count = plan_find_ranges(work->plan, work->unit, false, &work->ranges);
}

void factor_work_deinit(struct factor_work *work)
{
    free(work->factors);
    free(work->ranges);
}

size_t factor_totals(const struct plan *plan, int unit, int rank)
{
    AUTO_FREE struct plan_factor *factors = NULL;
    struct plan_factor_room places;
    int count = plan_find_factors(plan, unit, &factors, &places);
    return (size_t)(places.totals + (int64_t)4 * count * rank);
}

struct comm_piece *factor_step_pieces(const struct plan *plan, int unit, bool collects, int *count)
{
    AUTO_FREE struct plan_factor_move *moves = NULL;
    *count = plan_find_factor_moves(plan, unit, collects, &moves);
    struct comm_piece *pieces = mem_alloc_array((size_t)*count + 1, sizeof *pieces);
    for (int m = 0; m < *count; m++)
        pieces[m] = (struct comm_piece){.from = moves[m].from,
                                        .to = moves[m].to,
                                        .source = moves[m].source,
                                        .target = moves[m].target,
                                        .count = moves[m].count};
    return pieces;
}

static void add_squares(const struct factor_work *work)
{
    double *sums = (double *)(void *)work->room;
    float scale = step_scale(work->stats, work->gated);
    for (int r = 0; r < work->range_count; r++) {
        const struct plan_range *range = &work->ranges[r];
        const struct plan_factor *it = &work->factors[factor_step_number(work, range)];
        const struct kernel_factor piece = factor_step_piece(it, range);
        if (it->rows > 0)
            kernel_factor_sums(&piece, work->values + range->from, scale, sums + it->place,
                               sums + it->place + it->rows);
    }
}

/* Adds up what the ranks sent, in their order, into this rank's own sums, which were sent, too. */
static void add_collected(const struct factor_work *work, const struct plan_factor *it)
{
    double *sums = (double *)(void *)work->room + it->place, *columns = sums + it->rows;
    const double *from =
        (const double *)(const void *)(work->room + work->places.inbox) + it->inbox;
    if (work->places.ranks == 1) return;
    memset(sums, 0, (size_t)(it->rows + it->columns) * sizeof *sums);
    for (int r = 0; r < work->places.ranks; r++) {
        struct plan_factor_part part = plan_factor_part(work->plan, work->unit, it, r);
        for (int64_t i = 0; i < part.rows; i++) sums[part.first_row + i] += *from++;
        for (int64_t i = 0; i < part.columns; i++) columns[part.first_column + i] += *from++;
    }
}

/* The state of a matrix, rows first, and the factors whose products are its variances: those of a
 * row are divided by the mean of the matrix's rows. */
static void renew(const struct factor_work *work, const struct plan_factor *it)
{
    const double *sums = (const double *)(const void *)work->room + it->place;
    float *state = factor_step_state(work, it);
    float *factors = work->room + work->places.factors + it->place;
    const struct factor_args args = step_factor_args(&work->step);
    for (int64_t i = 0; i < it->rows + it->columns; i++) {
        double mean = sums[i] / (double)(i < it->rows ? it->width : it->height);
        factors[i] = state[i] = kernel_lerp(state[i], (float)mean, args.weight, args.rest);
    }
    for (int64_t begin = 0; begin < it->rows; begin += it->height) {
        double sum = 0;
        for (int64_t i = 0; i < it->height; i++) sum += state[begin + i];
        float mean = (float)(sum / (double)it->height);
        if (mean < args.least_mean) mean = args.least_mean;
        for (int64_t i = 0; i < it->height; i++) factors[begin + i] /= mean;
    }
}

static void renew_own(const struct factor_work *work)
{
    for (int f = 0; f < work->factor_count; f++) {
        const struct plan_factor *it = &work->factors[f];
        if (!factor_step_owns(work, it)) continue;
        add_collected(work, it);
        renew(work, it);
    }
}

static void make_updates(const struct factor_work *work)
{
    float scale = step_scale(work->stats, work->gated);
    const struct factor_args args = step_factor_args(&work->step);
    double *totals = factor_step_totals(work, work->places.rank);
    memset(totals, 0, 2 * (size_t)work->factor_count * sizeof *totals);
    for (int r = 0; r < work->range_count; r++) {
        const struct plan_range *range = &work->ranges[r];
        int number = factor_step_number(work, range);
        const struct plan_factor *it = &work->factors[number];
        const struct kernel_factor piece = factor_step_piece(it, range);
        const float *factors = work->room + work->places.factors + it->place;
        float *values = work->values + range->from;
        size_t count = (size_t)range->count;
        if (it->rows > 0)
            kernel_factor_update(&piece, values, scale, factors, factors + it->rows, args.least);
        else
            kernel_variance_update(count, values, scale, work->state + range->state, args.weight,
                                   args.rest, args.least);
        totals[(size_t)2 * (size_t)number] = kernel_sum_squares(count, values);
        totals[(size_t)2 * (size_t)number + 1] =
            kernel_sum_squares(count, work->param + range->from);
    }
}

/* The root mean square of a parameter (`which` 1) or of its update (0), over all ranks. */
static double mean_of(const struct factor_work *work, int number, int which)
{
    double sum = 0;
    for (int r = 0; r < work->places.ranks; r++)
        sum += factor_step_totals(work, r)[2 * number + which];
    return sqrt(sum / (double)work->factors[number].elements);
}

static void scale_updates(const struct factor_work *work)
{
    for (int r = 0; r < work->range_count; r++) {
        const struct plan_range *range = &work->ranges[r];
        int number = factor_step_number(work, range);
        const struct optimizer_step step = optimizer_step_of(&work->step, range->group, false);
        const struct factor_args args = step_factor_args(&step);
        kernel_scale((size_t)range->count, work->values + range->from,
                     step_factor_rate(&args, mean_of(work, number, 1), mean_of(work, number, 0)));
    }
}

status_t factor_step_run(void *argument)
{
    const struct factor_work *work = argument;
    if (step_is_skipped(work->stats, work->gated)) return NULL;
    if (work->kind == INSTRUCTION_SQUARES) add_squares(work);
    else if (work->kind == INSTRUCTION_FACTOR) renew_own(work);
    else if (work->kind == INSTRUCTION_UPDATE) make_updates(work);
    else scale_updates(work);
    return NULL;
}

status_t factor_step_enqueue(struct lane_queue *lane, struct factor_work *work)
{
    if (lane->device->table->factors == NULL) return lane_call(lane, factor_step_run, work);
    MUST_ALONE(&lane->user);
    return lane->device->table->factors(lane, work);
}
