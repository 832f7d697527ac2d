/*
 * What the libraries share of batch norms: x as (n, channels, area), in memory also as (n, area,
 * channels), and the state that a batch moves. Inline; any thread.
 */
#ifndef FSDPD_KERNELS_BATCH_NORM_H
#define FSDPD_KERNELS_BATCH_NORM_H

#include "kernels/kernels.h"

#ifdef __CUDACC__
#define BATCH_ANYWHERE __host__ __device__
#else
#define BATCH_ANYWHERE
#endif

struct batch_shape {
    int64_t n, channels, area;
    bool last; /* channels are the last dimension in memory */
};

static inline struct batch_shape batch_shape_of(const struct tensor_type *x)
{
    struct batch_shape shape = {x->dims[0], x->dims[1], 1, x->layout == LAYOUT_CHANNELS_LAST};
    for (int i = 2; i < x->dim_count; i++) shape.area *= x->dims[i];
    return shape;
}

/* The index of an element. */
static inline int64_t batch_place(const struct batch_shape *shape, int64_t n, int64_t c, int64_t i)
{
    return shape->last ? (n * shape->area + i) * shape->channels + c
                       : (n * shape->channels + c) * shape->area + i;
}

/* The elements of a channel that count. */
static inline int64_t batch_count(const struct batch_shape *shape, const int32_t *target)
{
    int64_t rows = 0;
    for (int64_t n = 0; n < shape->n; n++) rows += !target || target[n] >= 0;
    return rows * shape->area;
}

/* The running value after a batch. */
BATCH_ANYWHERE static inline float batch_moved(double momentum, float running, double value)
{
    return (float)((1 - momentum) * running + momentum * value);
}

/* The unbiased variance that running_var moves towards, of the sum of squared distances. */
BATCH_ANYWHERE static inline double batch_unbiased(double squares, int64_t count)
{
    return squares / (double)(count > 1 ? count - 1 : 1);
}

/* What all ranks tell each other of their batches: of each rank its rows that count, and two
 * numbers for every channel. Without ranks: nothing, the batch is this rank's. */
struct batch_totals {
    const float *parts; /* (ranks, 1 + 2 * channels) */
    int64_t ranks, channels;
};

static inline struct batch_totals batch_totals_of(const struct op_desc *desc,
                                                  const struct kernel_call *call, int input,
                                                  int64_t channels)
{
    struct batch_totals totals = {NULL, 0, 0};
    if (!desc->input_present[input]) return totals;
    totals.parts = (const float *)call->inputs[input];
    totals.ranks = desc->inputs[input].dims[0], totals.channels = channels;
    return totals;
}

/* The sum over ranks of their numbers `i`. */
BATCH_ANYWHERE static inline double batch_total(const struct batch_totals *totals, int64_t i)
{
    double sum = 0;
    for (int64_t r = 0; r < totals->ranks; r++)
        sum += totals->parts[r * (1 + 2 * totals->channels) + i];
    return sum;
}

/* A channel's mean and variance over the rows of all ranks, of each rank's own. */
BATCH_ANYWHERE static inline void batch_merge(const struct batch_totals *totals, int64_t c,
                                              double *mean, double *variance)
{
    double rows = batch_total(totals, 0), sum = 0, squares = 0;
    int64_t size = 1 + 2 * totals->channels;
    for (const float *part = totals->parts; part < totals->parts + totals->ranks * size;
         part += size)
        sum += (double)part[0] * part[1 + c];
    *mean = rows > 0 ? sum / rows : 0;
    for (const float *part = totals->parts; part < totals->parts + totals->ranks * size;
         part += size) {
        double distance = part[1 + c] - *mean;
        squares += part[0] * (part[1 + totals->channels + c] + distance * distance);
    }
    *variance = rows > 0 ? squares / rows : 0;
}

#endif
