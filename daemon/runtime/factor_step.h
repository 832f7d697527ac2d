/*
 * The part of a step that works on sums over rows and columns (fsdp/factors.h). Internal to this
 * room and to its modules.
 */
#ifndef FSDPD_RUNTIME_FACTOR_STEP_H
#define FSDPD_RUNTIME_FACTOR_STEP_H

#include "fsdp/factors.h"
#include "kernels/kernels.h"
#include "runtime/comm.h"
#include "runtime/device.h"

/* What an instruction needs, beside the settings of the step; all but `step` is constant. */
struct factor_work {
    enum instruction_kind kind; /* SQUARES, FACTOR, UPDATE or SCALE */
    struct optimizer_step step;
    const struct plan *plan;
    int unit;
    float *values; /* this rank's part of the unit's gradient, or its update */
    float *room;   /* BUFFER_FACTORS */
    float *state;  /* this rank's part of the first slot */
    const float *param;
    const float *stats;
    bool gated; /* as for lane_optimize */
    /* From here on by factor_work_init: */
    struct plan_factor *factors;
    int factor_count;
    struct plan_factor_room places;
    struct plan_range *ranges; /* one of each parameter that this rank has a part of */
    int range_count;
};
void factor_work_init(struct factor_work *work);
void factor_work_deinit(struct factor_work *work);

/* In a step that updates nothing, no state changes. `work` must stay valid until it has run. */
status_t factor_step_enqueue(struct lane_queue *lane, struct factor_work *work) FSDPD_MUST_USE;
/* What lanes that are threads run. */
status_t factor_step_run(void *work) FSDPD_MUST_USE;

/* The pieces of COLLECT or DISTRIBUTE; the caller frees them. */
struct comm_piece *factor_step_pieces(const struct plan *plan, int unit, bool collects, int *count);

/* Where the sums of a rank's parameters begin in BUFFER_FACTORS, in floats. */
size_t factor_totals(const struct plan *plan, int unit, int rank);

/* The same in `room`: by parameter the update's sum of squares, then the parameter's. */
static inline double *factor_step_totals(const struct factor_work *work, int rank)
{
    double *totals = (double *)(void *)(work->room + work->places.totals);
    return totals + 2 * (ptrdiff_t)work->factor_count * rank;
}

/* The number among the unit's parameters of the one that a range is of. */
static inline int factor_step_number(const struct factor_work *work, const struct plan_range *range)
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
static inline struct kernel_factor factor_step_piece(const struct plan_factor *it,
                                                     const struct plan_range *range)
{
    return (struct kernel_factor){.first = range->first,
                                  .count = range->count,
                                  .height = it->height,
                                  .width = it->width};
}

/* Whether this rank keeps the sums of the parameter, a matrix; and where. */
static inline bool factor_step_owns(const struct factor_work *work, const struct plan_factor *it)
{
    return it->rows > 0 && (work->places.ranks == 1 || it->owner == work->places.rank);
}

static inline float *factor_step_state(const struct factor_work *work, const struct plan_factor *it)
{
    const struct slot_layout *layout = &work->plan->units->units[work->unit].flat.slots;
    return work->state + slot_at(layout, it->offset) - slot_part(layout, work->places.rank);
}

#endif
