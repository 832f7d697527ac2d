/* Windows of tokens as rows: the input is a window, the targets are the next tokens or what is
 * masked. Global batches are cut into slices: rank r of each has rows r * batch to (r + 1) * batch
 * - 1, so that what a global batch is does not depend on the number of ranks. */
#ifndef FSDPD_TRAIN_TOKEN_ROWS_H
#define FSDPD_TRAIN_TOKEN_ROWS_H

#include "train/masking.h"
#include "train/rows.h"
#include "train/token_file.h"
#include "train/windows.h"

struct token_rows {
    const struct token_file *file;
    const struct windows *windows;
    int64_t vocabulary;
    const struct masking *masking; /* NULL: each token's target is the one after it */
    int64_t batch;                 /* rows per rank and batch */
    int world, rank;
    /* 0: as many rows as one likes. Otherwise so many of all ranks together, taken from windows
     * evenly spread over an epoch; further ones are none. */
    int64_t limit;
};

/* For the loader; `rows` must stay where it is, and as it is. */
struct rows token_rows_source(const struct token_rows *rows);

#endif
