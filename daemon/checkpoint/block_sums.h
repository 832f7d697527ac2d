/*
 * The sum of a file of a checkpoint: the SHA-256 of the SHA-256s of its blocks, end to end. A
 * writer computes it as it writes. A reader that has compared it once keeps the blocks' own sums,
 * and then proves every block again that it reads, whatever has become of the file since. Pure.
 */
#ifndef FSDPD_CHECKPOINT_BLOCK_SUMS_H
#define FSDPD_CHECKPOINT_BLOCK_SUMS_H

#include "digest/digest.h"

enum { BLOCK_BYTES = 1 << 20 }; /* the last one of a file may be shorter */

struct block_sums { /* of what was added so far */
    struct digester *block, *whole;
    size_t filled; /* bytes in the current block */
};

void block_sums_begin(struct block_sums *sums);
void block_sums_add(struct block_sums *sums, const void *bytes, size_t size);
/* The file's sum; nothing of `sums` is left. */
void block_sums_end(struct block_sums *sums, struct digest *sum);

/* The sum of a file that is in memory. */
void block_sums_of(const void *bytes, size_t size, struct digest *sum);

#endif
