/*
 * What the libraries share of batch norms: x as (n, channels, area), and the state that a batch
 * moves. Inline; any thread.
 */
#ifndef FSDPD_KERNELS_BATCH_NORM_H
#define FSDPD_KERNELS_BATCH_NORM_H

#include "ops/op.h"

struct batch_shape {
    int64_t n, channels, area;
};

static inline struct batch_shape batch_shape_of(const struct tensor_type *x)
{
    struct batch_shape shape = {x->dims[0], x->dims[1], 1};
    for (int i = 2; i < x->dim_count; i++) shape.area *= x->dims[i];
    return shape;
}

/* The elements of a channel that count. */
static inline int64_t batch_count(const struct batch_shape *shape, const int32_t *target)
{
    int64_t rows = 0;
    for (int64_t n = 0; n < shape->n; n++) rows += !target || target[n] >= 0;
    return rows * shape->area;
}

/* The running value after a batch. */
static inline float batch_moved(double momentum, float running, double value)
{
    return (float)((1 - momentum) * running + momentum * value);
}

/* The unbiased variance that running_var moves towards, of the sum of squared distances. */
static inline double batch_unbiased(double squares, int64_t count)
{
    return squares / (double)(count > 1 ? count - 1 : 1);
}

#endif
