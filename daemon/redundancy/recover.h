/*
 * Inside redundancy/: continues a run from what the ranks' processes keep in memory
 * (redundancy/kept.h). The ranks tell each other which generations and which pieces of them they
 * have. All of them choose the newest generation of which they have every shard: from the rank
 * itself, from the copy that another holds, or from the parity. The rank that has a shard then
 * sends it to all ranks, which take their parts, as in a change of units (runtime/relayout.h).
 */
#ifndef FSDPD_REDUNDANCY_RECOVER_H
#define FSDPD_REDUNDANCY_RECOVER_H

#include "train/run_state.h"

struct recovery {
    bool found;       /* the members below describe a whole generation; the same on all ranks */
    status_t problem; /* why none is whole; NULL: none was kept, or one is */
    uint32_t attempt;
    int root; /* the first rank that has some of it */
    struct manifest manifest;
    struct kept_shape shape; /* of its first rank */
    int *primary, *backup; /* by rank of that attempt: the rank that has its piece now; -1: none */
};

/* Every rank calls this together. An error is that of a collective. */
status_t recover_find(struct run *run, struct recovery *recovery) FSDPD_MUST_USE;
void recover_deinit(struct recovery *recovery);

/* Whether those that stay could continue from this generation, which is whole on all ranks;
 * FAILED_PRECONDITION says why not. leaves: by rank. */
status_t recover_check_without(const struct kept_generation *generation,
                               const bool *leaves) FSDPD_MUST_USE;

/* Every rank calls this together, with a new executor, which it fills; other generations are freed.
 * The caller sets the progress. */
status_t recover_load(struct run *run, struct recovery *recovery) FSDPD_MUST_USE;

#endif
