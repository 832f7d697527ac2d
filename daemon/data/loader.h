/*
 * The loader makes batches of rows ahead of their use: two threads fill a small ring of batches
 * while the step runs. The result does not depend on which thread fills which batch. One thread
 * owns a loader and takes the batches, in order. Batches are in host memory, outside the plan.
 */
#ifndef FSDPD_DATA_LOADER_H
#define FSDPD_DATA_LOADER_H

#include <stdbool.h>

#include "data/rows.h"

/* Batches that are filled ahead, or in use. */
enum { LOADER_RING = 4 };

struct loader;

struct batch {
    const void *input; /* (batch, ...): images f32, tokens i32; zeros in rows that do not exist */
    const int32_t *target; /* (batch, ...); -1 for one that does not count */
    const int32_t *starts; /* (batch, ...); NULL if the rows have none */
    const float *reference; /* (batch, ...); NULL if the rows have none */
    int64_t samples;       /* targets that count */
};

/* The memory that `rows` refers to must outlive the loader. */
status_t loader_new(const struct rows *rows, int64_t batch_size,
                    struct loader **loader) FSDPD_MUST_USE;
/* Allowed at any time, even in the middle of an epoch. Accepts NULL. */
void loader_free(struct loader *loader);

/*
 * Begins with `count` rows starting at `first`. The last batch may be short; it is padded with rows
 * that do not count. Batches of an abandoned epoch are discarded, and so is its error.
 */
void loader_start(struct loader *loader, int64_t first, int64_t count);

/* The next batch, valid until the next call on this loader; *more is false at the end. Waits only
 * while that batch is being filled. An error is that of its rows, and is sticky. */
status_t loader_next(struct loader *loader, struct batch *batch, bool *more) FSDPD_MUST_USE;

#endif
