/* BERT's masks; see row_parts.h. */
#include "data/row_parts.h"

#include "kernels/philox.h"

int64_t masking_apply(const struct masking *masking, int64_t row, int64_t count, int32_t *tokens,
                      int32_t *targets)
{
    const uint64_t chosen = philox_threshold(masking->probability);
    const uint64_t hidden = philox_threshold(0.8), replaced = philox_threshold(0.9);
    /* differs from dropout's key, which is the plain seed */
    const uint32_t key[2] = {(uint32_t)masking->seed ^ 0x6d61736bu,
                             (uint32_t)(masking->seed >> 32)};
    int64_t guesses = 0;
    for (int64_t i = 0; i < count; i++) {
        const uint32_t counter[4] = {(uint32_t)i, (uint32_t)row, (uint32_t)((uint64_t)row >> 32),
                                     masking->validation};
        uint32_t words[4];
        philox_block(counter, key, words);
        targets[i] = -1;
        if (words[0] >= chosen) continue;
        targets[i] = tokens[i];
        guesses++;
        if (words[1] < hidden) tokens[i] = masking->mask_token;
        else if (words[1] < replaced)
            tokens[i] = (int32_t)(words[2] * (uint64_t)masking->vocabulary >> 32);
    }
    return guesses;
}
