/* Sums of files by blocks; see block_sums.h. */
#include "checkpoint/block_sums.h"

void block_sums_begin(struct block_sums *sums)
{
    *sums = (struct block_sums){.block = digester_new(), .whole = digester_new()};
}

static void end_block(struct block_sums *sums)
{
    struct digest digest;
    digester_take(sums->block, &digest);
    digester_add(sums->whole, digest.bytes, DIGEST_BYTES);
    sums->filled = 0;
}

void block_sums_add(struct block_sums *sums, const void *bytes, size_t size)
{
    const char *from = bytes;
    while (size > 0) {
        size_t room = BLOCK_BYTES - sums->filled, count = size < room ? size : room;
        digester_add(sums->block, from, count);
        sums->filled += count;
        if (sums->filled == BLOCK_BYTES) end_block(sums);
        from += count;
        size -= count;
    }
}

void block_sums_end(struct block_sums *sums, struct digest *sum)
{
    if (sums->filled > 0) end_block(sums);
    digester_take(sums->whole, sum);
    digester_free(sums->block);
    digester_free(sums->whole);
    *sums = (struct block_sums){0};
}

void block_sums_of(const void *bytes, size_t size, struct digest *sum)
{
    struct block_sums sums;
    block_sums_begin(&sums);
    block_sums_add(&sums, bytes, size);
    block_sums_end(&sums, sum);
}
