/*
 * Which stretch of the tokens is which row of a run. Rows are numbered from 0 through the whole
 * run; a row's window depends on its number and the seed alone, so the n-th global batch is the
 * same for every world size, and a run can go on from any step.
 *
 * An epoch is all windows once: neighbours that do not overlap, in a pseudo-random order (a
 * permutation by seed and epoch, computed element by element: it takes no memory), all shifted by a
 * few tokens that differ from epoch to epoch, so that their boundaries do. Without shuffling they
 * follow each other, unshifted. Pure functions; any thread.
 */
#ifndef FSDPD_TRAIN_WINDOWS_H
#define FSDPD_TRAIN_WINDOWS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct windows {
    int64_t first;  /* the split's first token in the file */
    int64_t length; /* tokens of a window */
    int64_t count;  /* windows of an epoch */
    int64_t shifts; /* in how many places an epoch may begin, at least 1 */
    bool shuffle;
    uint64_t seed;
};

/*
 * Over `tokens` tokens from `first` on. `extra` more tokens after each window are needed (the next
 * one, which is its last target). INVALID_ARGUMENT without a name if there is not even one window.
 */
status_t windows_init(struct windows *windows, int64_t first, int64_t tokens, int64_t length,
                      int64_t extra, bool shuffle, uint64_t seed) FSDPD_MUST_USE;

/* The place in the file of the first token of a row's window. */
int64_t windows_place(const struct windows *windows, int64_t row);

#endif
