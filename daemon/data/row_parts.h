/* What rows of tokens are made with: sources by weight, masks, targets of arrays. */
#ifndef FSDPD_DATA_ROW_PARTS_H
#define FSDPD_DATA_ROW_PARTS_H

#include <stdbool.h>
#include <stdint.h>

#include "data/npy.h"
#include "data/windows.h"
#include "model/model.h"

/*
 * Several sources of rows as one endless stream of rows. Weights are whole numbers, and their sum
 * is the length of a cycle. Each cycle has exactly as many rows of a source as its weight, in an
 * order that depends on the seed and the cycle. Finding a row's source needs no memory and no
 * history, so a run can continue anywhere. Pure functions; any thread.
 */
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

/*
 * Masked language modelling as in BERT: some of a window's tokens must be predicted; of these 80 %
 * are replaced by the mask token, 10 % by another token, 10 % stay. The result for a token depends
 * only on the seed, the row's number and its position in the window.
 */
struct masking {
    double probability; /* probability that a token must be predicted */
    int32_t mask_token;
    int64_t vocabulary;
    uint64_t seed;
    bool validation; /* different masks from those of training rows with the same numbers */
};

/* Changes `tokens`; the targets are the original tokens, and -1 where nothing must be predicted.
 * Returns the number of targets. Pure; any thread. */
int64_t masking_apply(const struct masking *masking, int64_t row, int64_t count, int32_t *tokens,
                      int32_t *targets);

/*
 * Targets in an array, as a batch has them: classes as i32, or numbers as f32. Those that do not
 * count are -1, which as f32 is a NaN.
 */
struct target_array {
    const struct npy *npy; /* integers, or NPY_F32 for numbers; NULL: there is none */
    int64_t classes;       /* of integers: they are below it */
    bool may_ignore;       /* of integers: negative ones do not count; otherwise they are refused */
};

/*
 * Reads elements `first` to `first` + `count` - 1; *counted is how many of them count.
 * INVALID_ARGUMENT names the file and the element for a class that the model does not have, and for
 * a number that is infinite; one that is NaN does not count.
 */
status_t target_array_read(const struct target_array *array, int64_t first, int64_t count,
                           int32_t *targets, int64_t *counted) FSDPD_MUST_USE;

/* The same without the values. */
status_t target_array_count(const struct target_array *array, int64_t first, int64_t count,
                            int64_t *counted) FSDPD_MUST_USE;

#endif
