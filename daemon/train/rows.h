/*
 * Rows of batches, whatever the data: what the loader's threads fill batches from. Implemented by
 * image_rows.h and token_rows.h.
 */
#ifndef FSDPD_TRAIN_ROWS_H
#define FSDPD_TRAIN_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct rows {
    size_t input_bytes; /* of a row; f32 or i32 */
    size_t targets;     /* of a row */
    /*
     * Writes this rank's row `row`: its whole input, and all targets, -1 for those that do not
     * count; *samples is how many do. An error is the user's, and ends the run. From several
     * threads at a time.
     */
    status_t (*fill)(const void *user, int64_t row, void *input, int32_t *targets,
                     int64_t *samples);
    const void *user;
};

#endif
