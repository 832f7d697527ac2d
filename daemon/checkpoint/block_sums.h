/*
 * The sum of a file: the SHA-256 of the SHA-256s of its blocks, end to end. A
 * writer computes it as it writes. A reader that has compared it once keeps the blocks' own sums,
 * and then proves every block again that it reads, whatever has become of the file since. Or the
 * writer lists the blocks in a text, with a name for each, and the sum is that of the text. Pure.
 */
#ifndef FSDPD_CHECKPOINT_BLOCK_SUMS_H
#define FSDPD_CHECKPOINT_BLOCK_SUMS_H

#include "base/buf.h"
#include "digest/digest.h"

enum { BLOCK_BYTES = 1 << 20 }; /* the last one of a file may be shorter */

struct block_sums { /* of what was added so far */
    struct digester *block, *whole;
    size_t filled;    /* bytes in the current block */
    struct buf *list; /* NULL: none */
    const char *part;
};

void block_sums_begin(struct block_sums *sums);
/* Also appends a line for each block to `list`: 64 digits, its bytes, the name of its part. */
void block_sums_begin_list(struct block_sums *sums, struct buf *list);
/* The next bytes begin a block, of this part of the file; the name must live as long as it. */
void block_sums_part(struct block_sums *sums, const char *name);
void block_sums_add(struct block_sums *sums, const void *bytes, size_t size);
/* The file's sum; nothing of `sums` is left. */
void block_sums_end(struct block_sums *sums, struct digest *sum);

/* The sum of a file that is in memory. */
void block_sums_of(const void *bytes, size_t size, struct digest *sum);

#endif
