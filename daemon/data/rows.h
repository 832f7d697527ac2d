/*
 * Rows of batches for any kind of data: the loader's threads fill batches from them. Implemented by
 * image_rows.h and token_rows.h.
 */
#ifndef FSDPD_DATA_ROWS_H
#define FSDPD_DATA_ROWS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct rows {
    size_t input_bytes; /* of a row; f32 or i32 */
    size_t targets;     /* of a row; i32, or the bits of f32 */
    /*
     * Writes this rank's row `row`: its whole input, and all targets, with -1 (as bits of f32 a
     * NaN) for those that do not count; *samples is the number that count. An error is caused by
     * the user's data, and ends the run. Several threads may call it at the same time.
     */
    status_t (*fill)(const void *user, int64_t row, void *input, int32_t *targets,
                     int64_t *samples);
    /* NULL unless rows hold several documents: writes where the document of each token of a row
     * starts (ops/op.h), `targets` numbers. As fill. */
    status_t (*fill_starts)(const void *user, int64_t row, int32_t *starts);
    /* As fill: writes what the reference made of a row (train/run_state.h), `references` numbers;
     * 0: there are none. */
    size_t references;
    status_t (*fill_reference)(const void *user, int64_t row, float *sums);
    const void *user;
};

#endif
