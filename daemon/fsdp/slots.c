/* The layout of optimizer slots; see slots.h. */
#include "fsdp/slots.h"

#include <stdlib.h>

#include "base/mem.h"

void slot_layout_add(struct slot_layout *layout, int64_t offset, int64_t elements)
{
    int count = layout->packed_count;
    /* A capacity of powers of two, which the count tells. */
    if ((count & (count - 1)) == 0)
        layout->packed =
            mem_resize_array(layout->packed, 2 * (size_t)count + 1, sizeof *layout->packed);
    struct slot_packed *added = &layout->packed[count];
    *added = (struct slot_packed){.offset = offset,
                                  .before = count > 0 ? added[-1].before + added[-1].blocks : 0,
                                  .blocks = (elements + SLOT_BLOCK - 1) / SLOT_BLOCK};
    layout->packed_count++;
}

void slot_layout_end(struct slot_layout *layout, int64_t shard, int parts)
{
    layout->shard = shard;
    layout->words = layout->halves ? shard / 2 : shard;
    layout->parts = parts;
    if (layout->packed_count == 0) return;
    layout->words = 0;
    for (int part = 0; part < parts; part++) {
        int64_t words = slot_part(layout, part + 1) - slot_part(layout, part);
        if (words > layout->words) layout->words = words;
    }
}

void slot_layout_deinit(struct slot_layout *layout)
{
    free(layout->packed);
    *layout = (struct slot_layout){0};
}

struct slot_layout slot_layout_of(const struct slot_layout *unit, int slot)
{
    if (slot_is_packed(unit) && optimizer_slot_packs(slot)) return *unit;
    bool halves = slot < 0 && unit->rounded;
    return (struct slot_layout){.halves = halves,
                                .shard = unit->shard,
                                .parts = unit->parts,
                                .words = halves ? unit->shard / 2 : unit->shard};
}

const char *slot_file_type(const struct slot_layout *layout, int *per_word)
{
    *per_word = layout->halves ? 2 : layout->packed_count > 0 ? (int)sizeof(float) : 1;
    return layout->halves ? "BF16" : layout->packed_count > 0 ? "U8" : "F32";
}

int64_t slot_at(const struct slot_layout *layout, int64_t element)
{
    if (layout->halves) return element / 2;
    int low = 0, high = layout->packed_count; /* the parameters that begin before it */
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (layout->packed[middle].offset < element) low = middle + 1;
        else high = middle;
    }
    if (low == 0) return element;
    const struct slot_packed *last = &layout->packed[low - 1];
    int64_t blocks = (element - last->offset) / SLOT_BLOCK;
    if (blocks > last->blocks) blocks = last->blocks;
    return element - (last->before + blocks) * (SLOT_BLOCK - SLOT_BLOCK_WORDS);
}

int slot_part_of(const struct slot_layout *layout, int64_t word)
{
    if (layout->packed_count == 0) return (int)(word / layout->words);
    int low = 0, high = layout->parts - 1;
    while (low < high) { /* the last part that begins at or before it */
        int middle = low + (high - low + 1) / 2;
        if (slot_part(layout, middle) <= word) low = middle;
        else high = middle - 1;
    }
    return low;
}
