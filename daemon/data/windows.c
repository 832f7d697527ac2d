/* Windows of tokens; see windows.h. */
#include "data/windows.h"

#include <inttypes.h>

#include "kernels/philox.h"

enum { FEISTEL_ROUNDS = 6 };

/* The purpose of random words, in the counter's last word. */
enum { WORDS_ORDER = 1, WORDS_SHIFT = 2 };

/* The key differs from dropout's, which is the plain seed. */
static uint32_t random_word(const struct windows *windows, uint32_t purpose, int64_t epoch,
                            uint32_t value, uint32_t round)
{
    const uint32_t counter[4] = {value, (uint32_t)epoch, (uint32_t)((uint64_t)epoch >> 32),
                                 purpose << 8 | round};
    const uint32_t key[2] = {(uint32_t)windows->seed ^ 0x77696e64u,
                             (uint32_t)(windows->seed >> 32)};
    uint32_t words[4];
    philox_block(counter, key, words);
    return words[0];
}

/* Permutes numbers of 2 * `half` bits. */
static uint64_t permute_bits(const struct windows *windows, int64_t epoch, int half, uint64_t value)
{
    uint32_t mask = (uint32_t)((UINT64_C(1) << half) - 1);
    uint32_t left = (uint32_t)(value >> half), right = (uint32_t)value & mask;
    for (uint32_t round = 0; round < FEISTEL_ROUNDS; round++) {
        uint32_t next = left ^ (random_word(windows, WORDS_ORDER, epoch, right, round) & mask);
        left = right;
        right = next;
    }
    return (uint64_t)left << half | right;
}

/* A Feistel network permutes the next even power of two. A result out of range is permuted again,
 * which ends because it is a permutation. */
static int64_t permute(const struct windows *windows, int64_t epoch, int64_t index)
{
    int half = 1;
    while (half < 31 && (INT64_C(1) << 2 * half) < windows->count) half++;
    uint64_t value = (uint64_t)index;
    do value = permute_bits(windows, epoch, half, value);
    while (value >= (uint64_t)windows->count);
    return (int64_t)value;
}

status_t windows_init(struct windows *windows, int64_t first, int64_t tokens, int64_t length,
                      int64_t extra, bool shuffle, uint64_t seed)
{
    int64_t usable = tokens - extra; /* tokens within which windows must lie */
    if (usable < length)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%" PRId64 " tokens are too few for one window of %" PRId64 "%s", tokens,
                          length, extra > 0 ? " and the token after it" : "");
    int64_t all = usable / length, shifted = (usable - (length - 1)) / length;
    /* The number of windows for which every shift has room; a single window may have fewer shifts
     * instead. */
    int64_t count = shuffle && shifted > 0 ? shifted : all;
    int64_t spare = usable - count * length;
    *windows = (struct windows){.first = first,
                                .length = length,
                                .count = count,
                                .shifts = !shuffle         ? 1
                                          : spare < length ? spare + 1
                                                           : length,
                                .shuffle = shuffle,
                                .seed = seed};
    return NULL;
}

int64_t windows_place(const struct windows *windows, int64_t row)
{
    int64_t epoch = row / windows->count, index = row % windows->count;
    if (!windows->shuffle) return windows->first + index * windows->length;
    int64_t shift = (int64_t)((uint64_t)random_word(windows, WORDS_SHIFT, epoch, 0, 0) *
                                  (uint64_t)windows->shifts >>
                              32);
    return windows->first + shift + permute(windows, epoch, index) * windows->length;
}
