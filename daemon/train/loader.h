/*
 * The loader makes batches of rows ahead of their use: two threads fill a small ring of batches
 * while the step runs. Which thread fills which batch does not matter to the result. One thread
 * owns a loader and takes the batches, in order. Batches live in host memory, outside the plan.
 */
#ifndef FSDPD_TRAIN_LOADER_H
#define FSDPD_TRAIN_LOADER_H

#include <stdbool.h>

#include "train/rows.h"

struct loader;

struct batch {
    const void *input; /* (batch, ...): of images f32, of tokens i32; zeros in a row that is none */
    const int32_t *target; /* (batch, ...); -1 for one that does not count */
    int64_t samples;       /* targets that count */
};

/* What `rows` refers to must outlive the loader. */
status_t loader_new(const struct rows *rows, int64_t batch_size,
                    struct loader **loader) FSDPD_MUST_USE;
/* At any time, in the middle of an epoch too. Accepts NULL. */
void loader_free(struct loader *loader);

/*
 * Begins with `count` rows from `first` on. The last batch may be short; it is filled up with rows
 * that do not count. Batches of an epoch that was given up are forgotten, and so is its error.
 */
void loader_start(struct loader *loader, int64_t first, int64_t count);

/* The next batch, valid until the next call on this loader; *more is false when there is none.
 * Waits only for the filling of one batch. The error is that of its rows; it stays. */
status_t loader_next(struct loader *loader, struct batch *batch, bool *more) FSDPD_MUST_USE;

#endif
