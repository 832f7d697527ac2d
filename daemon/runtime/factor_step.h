/*
 * The part of a step that works on sums over rows and columns (fsdp/factors.h), on lanes that are
 * threads. Internal to this room.
 */
#ifndef FSDPD_RUNTIME_FACTOR_STEP_H
#define FSDPD_RUNTIME_FACTOR_STEP_H

#include "fsdp/factors.h"
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

/* For lane_call. Nothing happens in a step that updates nothing. */
status_t factor_step_run(void *work) FSDPD_MUST_USE;

/* The pieces of COLLECT or DISTRIBUTE; the caller frees them. */
struct comm_piece *factor_step_pieces(const struct plan *plan, int unit, bool collects, int *count);

/* Where the sums of a rank's parameters begin in BUFFER_FACTORS, in floats. */
size_t factor_totals(const struct plan *plan, int unit, int rank);

#endif
