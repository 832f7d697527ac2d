/*
 * The sums of a kept state_dict, as the text of a file beside it: a line for each block, whose
 * SHA-256, size and tensor it has ("(header)" for the header's). A block ends after 1 MiB and
 * where a tensor ends, so that what is damaged has a name. The blocks are the whole file, in order:
 *
 *     5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03 1048576 fc1.weight
 *
 * Pure.
 */
#ifndef FSDPD_CHECKPOINT_STATE_SUMS_H
#define FSDPD_CHECKPOINT_STATE_SUMS_H

#include "checkpoint/block_sums.h"
#include "hf/safetensors.h"

#define STATE_SUMS_HEADER "(header)"

struct state_sums { /* of what was added so far */
    struct block_sums sums;
    struct buf list; /* the text */
    uint64_t at;
    int next; /* entry of the layout */
};

void state_sums_begin(struct state_sums *sums);
/* `layout` is needed with the bytes that complete the header, and all later ones; it must outlive
 * `sums`. */
void state_sums_add(struct state_sums *sums, const struct safetensors_header *layout,
                    const void *bytes, size_t size);
/* Completes the text; *digest is its SHA-256. */
void state_sums_end(struct state_sums *sums, struct digest *digest);
void state_sums_deinit(struct state_sums *sums); /* accepts a zeroed one */

struct state_block {
    struct digest digest;
    uint64_t bytes;
    char name[200]; /* cut */
};

/* The block whose line begins at *at, which then is the next line's; false: there is none, or it is
 * not one. */
bool state_sums_next(const struct buf *list, size_t *at, struct state_block *block);

#endif
