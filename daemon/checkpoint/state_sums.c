/* The sums of a kept state_dict; see state_sums.h. */
#include "checkpoint/state_sums.h"

#include <stdio.h>
#include <string.h>

void state_sums_begin(struct state_sums *sums)
{
    *sums = (struct state_sums){0};
    block_sums_begin_list(&sums->sums, &sums->list);
    block_sums_part(&sums->sums, STATE_SUMS_HEADER);
}

/* Where the current part ends. */
static uint64_t part_end(struct state_sums *sums, const struct safetensors_header *layout)
{
    if (layout == NULL) return UINT64_MAX;
    while (sums->at >= layout->data_offset && sums->next < layout->count) {
        const struct safetensors_entry *entry = &layout->entries[sums->next];
        if (sums->at == layout->data_offset + entry->begin)
            block_sums_part(&sums->sums, entry->name);
        if (sums->at < layout->data_offset + entry->end) return layout->data_offset + entry->end;
        sums->next++;
    }
    return sums->at < layout->data_offset ? layout->data_offset : UINT64_MAX;
}

void state_sums_add(struct state_sums *sums, const struct safetensors_header *layout,
                    const void *bytes, size_t size)
{
    const char *from = bytes;
    while (size > 0) {
        uint64_t left = part_end(sums, layout) - sums->at;
        size_t count = size < left ? size : (size_t)left;
        block_sums_add(&sums->sums, from, count);
        sums->at += count;
        from += count;
        size -= count;
    }
}

void state_sums_end(struct state_sums *sums, struct digest *digest)
{
    block_sums_end(&sums->sums, digest);
}

void state_sums_deinit(struct state_sums *sums)
{
    struct digest unused;
    if (sums->sums.block != NULL) block_sums_end(&sums->sums, &unused);
    buf_deinit(&sums->list);
}

bool state_sums_next(const struct buf *list, size_t *at, struct state_block *block)
{
    const char *line = list->data + *at;
    const char *end = *at < list->length ? memchr(line, '\n', list->length - *at) : NULL;
    if (end == NULL || end - line < DIGEST_DIGITS + 3 || !digest_parse(line, &block->digest))
        return false;
    const char *name = line + DIGEST_DIGITS + 1;
    for (block->bytes = 0; *name >= '0' && *name <= '9'; name++)
        block->bytes = block->bytes * 10 + (uint64_t)(*name - '0');
    if (*name != ' ') return false;
    snprintf(block->name, sizeof block->name, "%.*s", (int)(end - name - 1), name + 1);
    *at += (size_t)(end - line) + 1;
    return true;
}
