/* Images as rows: transformed pixels, and the label. */
#ifndef FSDPD_DATA_IMAGE_ROWS_H
#define FSDPD_DATA_IMAGE_ROWS_H

#include "data/image_set.h"
#include "data/image_transform.h"
#include "data/rows.h"
#include "setup/job.h"

struct image_rows {
    const struct image_set *set;
    struct image_transform transform; /* its size is that of a row */
    uint64_t seed;
    uint32_t epoch;        /* for draws */
    float values[256];     /* by byte: (byte / 255 - mean) / std, rounded as in torchvision's
                            * ToTensor and Normalize */
    const uint32_t *order; /* samples by row, SAMPLE_NONE allowed; the owner's */
};

/* `set` must have been prepared and outlive the rows. Without `augment` there is no crop and no
 * flip. INVALID_ARGUMENT if mean and std give values that are not finite. */
status_t image_rows_init(struct image_rows *rows, const struct image_set *set,
                         const struct image_transform *transform, uint64_t seed,
                         bool augment) FSDPD_MUST_USE;

/* For the loader; `rows` must not move. Its order and epoch may change while the loader is idle. */
struct rows image_rows_source(const struct image_rows *rows);

/* ---- image_files.c ---- */

/*
 * A job's images: finds out what a directory has, and opens it. In this order: dataset.json with
 * kind images (docs/datasets.md); train.images.npy and train.targets.npy, likewise for validation;
 * CIFAR's binary files (data_batch_1.bin and so on, or train.bin); idx files.
 */

/*
 * Opens the images to train on and, if the job evaluates, those to test with; `wanted` is what
 * the model has. NOT_FOUND if the directory has no images, or none to test with. With `check`, also
 * compares digests. The caller closes both sets, also after an error.
 */
status_t image_files_open(const struct train_job *job, struct image_targets wanted, bool check,
                          struct image_set *train, struct image_set *test) FSDPD_MUST_USE;

#endif
