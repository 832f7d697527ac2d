/* Images with labels, as they are on disk: one byte per pixel. Immutable once read; the loader's
 * threads share it. */
#ifndef FSDPD_TRAIN_DATASET_H
#define FSDPD_TRAIN_DATASET_H

#include <stdint.h>

#include "base/status.h"

struct dataset {
    int64_t count, height, width;
    uint8_t *images; /* (count, height, width); NULL if only the headers were read */
    uint8_t *labels; /* (count); NULL likewise */
};

void dataset_deinit(struct dataset *dataset);

#endif
