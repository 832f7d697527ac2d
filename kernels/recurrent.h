/*
 * What the libraries share of RECURRENT: its sizes, and the order in which it goes through time.
 * Inline; any thread.
 */
#ifndef FSDPD_KERNELS_RECURRENT_H
#define FSDPD_KERNELS_RECURRENT_H

#include "kernels/kernels.h"

struct recurrent_shape {
    int64_t batch, time, width;
    int64_t columns; /* of all gates */
    int64_t kept;    /* of the state, by row of y */
    bool gru, reverse;
};

static inline struct recurrent_shape recurrent_shape_of(const struct op_desc *desc)
{
    bool gru = desc->attrs.recurrent.kind == RECURRENCE_GRU;
    const struct tensor_type *y = &desc->outputs[0];
    if (desc->kind == OP_RECURRENT_BACKWARD) y = &desc->inputs[1];
    struct recurrent_shape s;
    s.batch = y->dims[0];
    s.time = y->dims[1];
    s.width = y->dims[2];
    s.columns = (gru ? 3 : 4) * s.width;
    s.kept = (gru ? 4 : 5) * s.width;
    s.gru = gru;
    s.reverse = desc->attrs.recurrent.reverse;
    return s;
}

/* The row, of all samples' times, that sample `n` reaches in its step number `step`. */
static inline int64_t recurrent_row(const struct recurrent_shape *s, int64_t n, int64_t step)
{
    return n * s->time + (s->reverse ? s->time - 1 - step : step);
}

#endif
