/*
 * Several sources of rows as one endless stream of rows. Weights are whole numbers, and their sum
 * is the length of a cycle. Each cycle has exactly as many rows of a source as its weight, in an
 * order that depends on the seed and the cycle. Finding a row's source needs no memory and no
 * history, so a run can continue anywhere. Pure functions; any thread.
 */
#ifndef FSDPD_DATA_MIXTURE_H
#define FSDPD_DATA_MIXTURE_H

#include "data/windows.h"

struct mixture {
    int count;
    int64_t *ends;        /* running sums of the weights */
    struct windows order; /* the order of a cycle's rows */
};

/* Weights are at least 1, and their sum is below 2^62. */
void mixture_init(struct mixture *mixture, const int64_t *weights, int count, bool shuffle,
                  uint64_t seed);
void mixture_deinit(struct mixture *mixture); /* accepts a zeroed one */

/* Finds the source of `row`, and the row's number in that source, which counts from 0 without
 * gaps. */
void mixture_find(const struct mixture *mixture, int64_t row, int *source, int64_t *number);

#endif
