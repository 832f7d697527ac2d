/* Sums of files by blocks; see block_sums.h. */
#include "checkpoint/block_sums.h"

void block_sums_begin(struct block_sums *sums)
{
    *sums = (struct block_sums){.block = digester_new(), .whole = digester_new()};
}

void block_sums_begin_list(struct block_sums *sums, struct buf *list)
{
    block_sums_begin(sums);
    sums->list = list;
    sums->part = "";
}

/* A name of a hostile file must not end its line. */
static void add_name(struct buf *list, const char *name)
{
    for (; *name != '\0'; name++)
        buf_add_char(list, (unsigned char)*name < ' ' || *name == 127 ? '?' : *name);
    buf_add_char(list, '\n');
}

static void end_line(struct block_sums *sums, const struct digest *digest)
{
    char digits[DIGEST_DIGITS + 1];
    size_t start = sums->list->length;
    buf_printf(sums->list, "%s %zu ", digest_format(digest, digits), sums->filled);
    add_name(sums->list, sums->part);
    digester_add(sums->whole, sums->list->data + start, sums->list->length - start);
}

static void end_block(struct block_sums *sums)
{
    struct digest digest;
    digester_take(sums->block, &digest);
    if (sums->list != NULL) end_line(sums, &digest);
    else digester_add(sums->whole, digest.bytes, DIGEST_BYTES);
    sums->filled = 0;
}

void block_sums_part(struct block_sums *sums, const char *name)
{
    if (sums->filled > 0) end_block(sums);
    sums->part = name;
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
