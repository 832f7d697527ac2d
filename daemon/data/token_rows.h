/* Rows of tokens, from one source or several: the targets are the next tokens or the masked ones.
 * Global batches are split into slices: rank r has rows r * batch to (r + 1) * batch - 1 of each,
 * so that a global batch does not depend on the number of ranks. */
#ifndef FSDPD_DATA_TOKEN_ROWS_H
#define FSDPD_DATA_TOKEN_ROWS_H

#include "data/batch_share.h"
#include "data/row_parts.h"
#include "data/rows.h"
#include "data/token_split.h"

struct token_rows {
    const struct token_split *const *splits; /* of the sources, by number in the mixture */
    const struct mixture *mixture;
    int64_t length;  /* tokens of a row */
    int64_t targets; /* of a row */
    int32_t padding; /* the tokens of a row that does not exist */
    int64_t vocabulary;
    bool packed;                   /* rows hold several documents */
    int64_t references;            /* of a row: what the reference made of it; 0: none */
    const struct masking *masking; /* NULL: each token's target is the next token */
    int64_t batch;                 /* rows per rank and batch */
    int world, rank;
    /* 0: no limit. Otherwise the number of rows of all ranks together, spread evenly over the
     * mixture's cycle; rows beyond it do not exist. */
    int64_t limit;
    struct batch_share share; /* of training with a global batch; else zeroed */
};

/* For the loader; `rows` must neither move nor change. */
struct rows token_rows_source(const struct token_rows *rows);

#endif
