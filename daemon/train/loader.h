/*
 * The loader turns samples into batches ahead of their use: two threads fill a small ring of
 * batches with normalised pixels while the step runs. Which thread fills which batch does not
 * matter to the result. One thread owns a loader and takes the batches, in order. Batches live in
 * host memory, outside the plan.
 */
#ifndef FSDPD_TRAIN_LOADER_H
#define FSDPD_TRAIN_LOADER_H

#include "train/dataset.h"
#include "train/sampler.h"

struct loader;

struct batch {
    const float *input;    /* (batch, height, width): (byte / 255 - mean) / std, rounded as
                              torchvision's ToTensor and Normalize round it */
    const int32_t *target; /* (batch); -1 for a row that does not count, whose pixels are 0 */
    int64_t samples;       /* rows that count */
};

/*
 * `dataset` must have been read in full and outlive the loader. INVALID_ARGUMENT if mean and std
 * give values that are not finite.
 */
status_t loader_new(const struct dataset *dataset, int64_t batch_size, double mean, double std,
                    struct loader **loader) FSDPD_MUST_USE;
/* At any time, in the middle of an epoch too. Accepts NULL. */
void loader_free(struct loader *loader);

/*
 * Begins an epoch over the samples `order` (count of them, SAMPLE_NONE allowed), which must stay
 * valid until the epoch is over or another begins. The last batch may be short; it is filled up
 * with rows that do not count.
 */
void loader_start(struct loader *loader, const uint32_t *order, int64_t count);

/* The next batch, valid until the next call on this loader; false when the epoch is over. Waits
 * only for the filling of one batch. */
bool loader_next(struct loader *loader, struct batch *batch);

#endif
