/* Images as rows: transformed pixels, and the label. */
#ifndef FSDPD_DATA_IMAGE_ROWS_H
#define FSDPD_DATA_IMAGE_ROWS_H

#include "data/image_set.h"
#include "data/image_transform.h"
#include "data/rows.h"

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

#endif
