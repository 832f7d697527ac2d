/*
 * Masked language modelling as BERT's: of a window's tokens some are to be guessed; of these four
 * in five are hidden behind the mask token, one in ten is another token, one in ten stays. What
 * happens to a token depends on the seed, the row's number and its place in the window alone.
 */
#ifndef FSDPD_TRAIN_MASKING_H
#define FSDPD_TRAIN_MASKING_H

#include <stdbool.h>
#include <stdint.h>

struct masking {
    double probability; /* that a token is to be guessed */
    int32_t mask_token;
    int64_t vocabulary;
    uint64_t seed;
    bool validation; /* other masks than training's rows of the same numbers have */
};

/* Changes `tokens`; the targets are what was there, and -1 where nothing is to be guessed. Returns
 * how many there are to guess. Pure; any thread. */
int64_t masking_apply(const struct masking *masking, int64_t row, int64_t count, int32_t *tokens,
                      int32_t *targets);

#endif
