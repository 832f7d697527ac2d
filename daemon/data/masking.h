/*
 * Masked language modelling as in BERT: some of a window's tokens must be predicted; of these 80 %
 * are replaced by the mask token, 10 % by another token, 10 % stay. The result for a token depends
 * only on the seed, the row's number and its position in the window.
 */
#ifndef FSDPD_DATA_MASKING_H
#define FSDPD_DATA_MASKING_H

#include <stdbool.h>
#include <stdint.h>

struct masking {
    double probability; /* probability that a token must be predicted */
    int32_t mask_token;
    int64_t vocabulary;
    uint64_t seed;
    bool validation; /* different masks from those of training rows with the same numbers */
};

/* Changes `tokens`; the targets are the original tokens, and -1 where nothing must be predicted.
 * Returns the number of targets. Pure; any thread. */
int64_t masking_apply(const struct masking *masking, int64_t row, int64_t count, int32_t *tokens,
                      int32_t *targets);

#endif
