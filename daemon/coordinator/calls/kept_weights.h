/*
 * Reads the final state_dict that a job kept, and proves it: the store has the SHA-256 of the file
 * of sums beside it, which has those of its blocks (checkpoint/state_sums.h). No byte is given out
 * that was not compared. The loop creates it; each part of the work is one call of
 * kept_weights_work on a libuv thread.
 */
#ifndef FSDPD_COORDINATOR_KEPT_WEIGHTS_H
#define FSDPD_COORDINATOR_KEPT_WEIGHTS_H

#include "coordinator/store/store.h"

struct kept_weights;

/* `path` is that of the state_dict; that of its sums ends in ".sums". */
struct kept_weights *kept_weights_new(const char *path, const struct store_weights *weights);
void kept_weights_free(struct kept_weights *kept); /* accepts NULL */

/*
 * The first call opens the files; *count is 0. The others read the next *count bytes into `chunk`,
 * which has at least 1 MiB. DATA_LOSS names the tensor, or the file, that is damaged.
 */
status_t kept_weights_work(struct kept_weights *kept, void *chunk, size_t size,
                           size_t *count) FSDPD_MUST_USE;

uint64_t kept_weights_bytes(const struct kept_weights *kept); /* 0 before it is open */

/*
 * Others replace these: first the files are set aside, then their names are taken, the sums' first,
 * then the store records it. Whether it did or not, or at the next start, they are settled: those
 * that the store does not record, if there are two, are removed.
 */
void kept_weights_set_aside(const char *path);
void kept_weights_settle(const char *path, const struct store_weights *recorded);

#endif
