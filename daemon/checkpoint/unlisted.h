/*
 * Complete checkpoints without a report: rank 0 reports a checkpoint after the rename that
 * completes it, and may die in between. The next attempt finds them, before it writes any itself.
 */
#ifndef FSDPD_CHECKPOINT_UNLISTED_H
#define FSDPD_CHECKPOINT_UNLISTED_H

#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"

struct unlisted {
    struct unlisted_checkpoint {
        char *path;
        uint64_t step, bytes; /* of the files of all ranks */
        uint32_t attempt, world;
        int64_t time_ms; /* wall clock */
        bool is_best;    /* when it was taken (checkpoint.best), by this value: */
        double best;
    } * found;           /* oldest first */
    int count;
    /* Steps of listed checkpoints that the dead rank removed after it had completed one of these.
     */
    uint64_t *removed;
    int removed_count;
};

/*
 * Finds the run's checkpoints whose names are not among `listed`; of a step, only the last. One
 * whose manifest cannot be read, or that is another run's, is left out. Blocks on the disk. An
 * error if the directory cannot be read; the caller calls unlisted_deinit in any case.
 */
status_t unlisted_find(const struct folder *folder, const char *run, const char *const *listed,
                       size_t listed_count, struct unlisted *unlisted) FSDPD_MUST_USE;
void unlisted_deinit(struct unlisted *unlisted);

#endif
