/* Images as rows: normalised pixels, and the label. */
#ifndef FSDPD_TRAIN_IMAGE_ROWS_H
#define FSDPD_TRAIN_IMAGE_ROWS_H

#include "train/dataset.h"
#include "train/rows.h"

struct image_rows {
    const struct dataset *set;
    float values[256]; /* of a byte: (byte / 255 - mean) / std, rounded as torchvision's ToTensor
                          and Normalize round it */
    const uint32_t *order; /* samples by row, SAMPLE_NONE allowed; the owner's */
};

/* `set` must have been read in full and outlive the rows. INVALID_ARGUMENT if mean and std give
 * values that are not finite. */
status_t image_rows_init(struct image_rows *rows, const struct dataset *set, double mean,
                         double std) FSDPD_MUST_USE;

/* For the loader; `rows` must stay where it is. Its order may change while the loader is idle. */
struct rows image_rows_source(const struct image_rows *rows);

#endif
