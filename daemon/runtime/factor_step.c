/* Sums over rows and columns at the end of a step; see factor_step.h. */
#include "runtime/factor_step.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/kernels.h"
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

/* The number among the unit's parameters of the one that a range is of. */
static int number_of(const struct factor_work *work, const struct plan_range *range)
{
    int low = 0, high = work->factor_count - 1;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (work->factors[middle].parameter < range->parameter) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* The range's elements, of a matrix. */
static struct kernel_factor piece_of(const struct plan_factor *it, const struct plan_range *range)
{
    return (struct kernel_factor){.first = range->first,
                                  .count = range->count,
                                  .height = it->height,
                                  .width = it->width};
}

static void add_squares(const struct factor_work *work)
{
    double *sums = (double *)(void *)work->room;
    float scale = step_scale(work->stats, work->gated);
    for (int r = 0; r < work->range_count; r++) {
        const struct plan_range *range = &work->ranges[r];
        const struct plan_factor *it = &work->factors[number_of(work, range)];
        const struct kernel_factor piece = piece_of(it, range);
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
    const struct slot_layout *layout = &work->plan->units->units[work->unit].flat.slots;
    float *state = work->state + slot_at(layout, it->offset) - slot_part(layout, work->places.rank);
    float *factors = work->room + work->places.factors + it->place;
    double moves = step_factor_weight(&work->step);
    float weight = (float)moves, rest = (float)(1 - moves);
    for (int64_t i = 0; i < it->rows + it->columns; i++) {
        double mean = sums[i] / (double)(i < it->rows ? it->width : it->height);
        factors[i] = state[i] = kernel_lerp(state[i], (float)mean, weight, rest);
    }
    for (int64_t begin = 0; begin < it->rows; begin += it->height) {
        double sum = 0;
        for (int64_t i = 0; i < it->height; i++) sum += state[begin + i];
        float mean = (float)(sum / (double)it->height), least = (float)work->step.eps1;
        if (mean < least) mean = least;
        for (int64_t i = 0; i < it->height; i++) factors[begin + i] /= mean;
    }
}

static void renew_own(const struct factor_work *work)
{
    for (int f = 0; f < work->factor_count; f++) {
        const struct plan_factor *it = &work->factors[f];
        bool own = work->places.ranks == 1 || it->owner == work->places.rank;
        if (it->rows == 0 || !own) continue;
        add_collected(work, it);
        renew(work, it);
    }
}

static void make_updates(const struct factor_work *work)
{
    float scale = step_scale(work->stats, work->gated);
    float least = (float)(work->step.eps1 * work->step.eps1);
    double moves = step_factor_weight(&work->step);
    double *totals = (double *)(void *)(work->room + work->places.totals) +
                     (size_t)2 * (size_t)work->factor_count * (size_t)work->places.rank;
    memset(totals, 0, 2 * (size_t)work->factor_count * sizeof *totals);
    for (int r = 0; r < work->range_count; r++) {
        const struct plan_range *range = &work->ranges[r];
        int number = number_of(work, range);
        const struct plan_factor *it = &work->factors[number];
        const struct kernel_factor piece = piece_of(it, range);
        const float *factors = work->room + work->places.factors + it->place;
        float *values = work->values + range->from;
        size_t count = (size_t)range->count;
        if (it->rows > 0)
            kernel_factor_update(&piece, values, scale, factors, factors + it->rows, least);
        else
            kernel_variance_update(count, values, scale, work->state + range->state, (float)moves,
                                   (float)(1 - moves), least);
        totals[(size_t)2 * (size_t)number] = kernel_sum_squares(count, values);
        totals[(size_t)2 * (size_t)number + 1] =
            kernel_sum_squares(count, work->param + range->from);
    }
}

/* The root mean square of a parameter (`which` 1) or of its update (0), over all ranks. */
static double mean_of(const struct factor_work *work, int number, int which)
{
    const double *totals = (const double *)(const void *)(work->room + work->places.totals);
    double sum = 0;
    for (int r = 0; r < work->places.ranks; r++)
        sum += totals[2 * ((int64_t)r * work->factor_count + number) + which];
    return sqrt(sum / (double)work->factors[number].elements);
}

static void scale_updates(const struct factor_work *work)
{
    for (int r = 0; r < work->range_count; r++) {
        const struct plan_range *range = &work->ranges[r];
        int number = number_of(work, range);
        const struct optimizer_step step = optimizer_step_of(&work->step, range->group, false);
        kernel_scale((size_t)range->count, work->values + range->from,
                     step_factor_rate(&step, mean_of(work, number, 1), mean_of(work, number, 0)));
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
