/*
 * The window of tokens for each row of a run. Rows are numbered from 0 through the whole run. A
 * row's window depends only on its number and the seed, so the n-th global batch is the same for
 * every world size, and a run can continue from any step.
 *
 * An epoch has every window once. The windows are adjacent, do not overlap, and come in a
 * pseudo-random order (a permutation by seed and epoch, computed element by element, without
 * memory). All are shifted by a few tokens that differ from epoch to epoch, and so do their
 * boundaries. Without shuffling they follow each other, unshifted. Pure functions; any thread.
 */
#ifndef FSDPD_DATA_WINDOWS_H
#define FSDPD_DATA_WINDOWS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct windows {
    int64_t first;  /* the split's first token in the file */
    int64_t length; /* tokens per window */
    int64_t count;  /* windows per epoch */
    int64_t shifts; /* number of places where an epoch may begin, at least 1 */
    bool shuffle;
    uint64_t seed;
};

/*
 * Cuts windows from `tokens` tokens from `first` on. `extra` more tokens are needed after each
 * window (the next one, which is its last target). INVALID_ARGUMENT, without a file name, if there
 * is not even one window.
 */
status_t windows_init(struct windows *windows, int64_t first, int64_t tokens, int64_t length,
                      int64_t extra, bool shuffle, uint64_t seed) FSDPD_MUST_USE;

/* The place in the file of the first token in a row's window. */
int64_t windows_place(const struct windows *windows, int64_t row);

#endif
