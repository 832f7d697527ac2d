/*
 * The part of a step that works on whole matrices (fsdp/matrices.h). Internal to this room and to
 * its modules.
 */
#ifndef FSDPD_RUNTIME_MATRIX_STEP_H
#define FSDPD_RUNTIME_MATRIX_STEP_H

#include "runtime/comm.h"
#include "runtime/device.h"

/* What an instruction needs, beside the settings of the step; all but `step` is constant. */
struct matrix_work {
    enum instruction_kind kind; /* MOMENTUM or ORTHOGONALIZE */
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

/* Before the device's memory is allocated: prepares this rank's own matrices. */
status_t matrix_step_prepare(struct device *device, const struct plan *plan) FSDPD_MUST_USE;

/* In a step that updates nothing, no state changes. `work` must stay valid until it has run. */
status_t matrix_step_enqueue(struct lane_queue *lane, struct matrix_work *work) FSDPD_MUST_USE;

/* The pieces of COLLECT or DISTRIBUTE; the caller frees them. */
struct comm_piece *matrix_step_pieces(const struct plan *plan, int unit, bool collects, int *count);

#endif
