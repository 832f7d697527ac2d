/*
 * The part of a step that works on whole matrices (fsdp/matrices.h), on lanes that are threads.
 * Internal to this room.
 */
#ifndef FSDPD_RUNTIME_MATRIX_STEP_H
#define FSDPD_RUNTIME_MATRIX_STEP_H

#include "runtime/comm.h"
#include "runtime/device.h"

/* What an instruction needs, beside the settings of the step; all but `step` is constant. */
struct matrix_work {
    struct optimizer_step step;
    float *values, *average; /* of this rank's part of the unit; or of its own matrices */
    const float *stats;
    bool gated; /* as for lane_optimize */
    const struct plan_range *ranges;
    int range_count;
    const struct plan_matrix *matrices; /* of the unit */
    int matrix_count, rank;
    bool gathered; /* its own are at their places, otherwise where they are in the unit */
    void *scratch;
};

/* For lane_call: MOMENTUM and ORTHOGONALIZE. Nothing happens in a step that updates nothing. */
status_t matrix_step_momentum(void *work) FSDPD_MUST_USE;
status_t matrix_step_orthogonalize(void *work) FSDPD_MUST_USE;

/* The pieces of COLLECT or DISTRIBUTE; the caller frees them. */
struct comm_piece *matrix_step_pieces(const struct plan *plan, int unit, bool collects, int *count);

#endif
