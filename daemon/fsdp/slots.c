/* The layout of optimizer slots; see slots.h. */
#include "fsdp/slots.h"

#include <stdlib.h>

#include "base/mem.h"

static struct slot_packed *add(struct slot_layout *layout)
{
    int count = layout->packed_count;
    /* A capacity of powers of two, which the count tells. */
    if ((count & (count - 1)) == 0)
        layout->packed =
            mem_resize_array(layout->packed, 2 * (size_t)count + 1, sizeof *layout->packed);
    return &layout->packed[layout->packed_count++];
}

/* Whether all parameters are listed, and what is between them takes no words. */
static bool is_tight(const struct slot_layout *layout)
{
    return layout->base == BASE_INT8 || layout->base == BASE_NF4;
}

/* The word of an element of a listed parameter of a tight layout, or its end behind it. */
static int64_t tight_word(const struct slot_layout *layout, const struct slot_packed *of,
                          int64_t element)
{
    int64_t block = base_block(layout->base), at = element - of->offset;
    if (of->blocks == 0) return of->words + (at < of->elements ? at : of->elements);
    return of->words +
           (at / block < of->blocks ? at / block : of->blocks) * base_block_words(layout->base);
}

void slot_layout_add(struct slot_layout *layout, int64_t offset, int64_t elements)
{
    bool first = layout->packed_count == 0;
    struct slot_packed *added = add(layout);
    *added = (struct slot_packed){
        .offset = offset,
        .before = first ? 0 : added[-1].before + added[-1].blocks,
        .blocks = (elements + base_block(layout->base) - 1) / base_block(layout->base),
        .words = first || !is_tight(layout) ? 0 : tight_word(layout, &added[-1], offset)};
}

void slot_layout_add_shaped(struct slot_layout *layout, int64_t offset, int64_t elements,
                            int64_t words)
{
    bool first = layout->packed_count == 0;
    struct slot_packed *added = add(layout);
    if (is_tight(layout)) {
        *added = (struct slot_packed){.offset = offset,
                                      .words = first ? 0 : tight_word(layout, &added[-1], offset),
                                      .elements = elements};
        return;
    }
    int64_t before = first ? 0 : added[-1].before + added[-1].elements - added[-1].words;
    *added = (struct slot_packed){
        .offset = offset, .before = before, .blocks = 1, .words = words, .elements = elements};
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
    bool kept = slot < 0 && unit->base != BASE_F32;
    bool shaped = unit->shape != SHAPE_PLAIN && slot_differs(unit, slot);
    if (kept || shaped || (slot_is_packed(unit) && slot_differs(unit, slot))) return *unit;
    bool halves = slot < 0 && unit->rounded;
    return (struct slot_layout){.halves = halves,
                                .shard = unit->shard,
                                .parts = unit->parts,
                                .words = halves ? unit->shard / 2 : unit->shard};
}

const char *slot_file_type(const struct slot_layout *layout, int *per_word)
{
    bool packed = slot_is_packed(layout);
    *per_word = layout->halves ? 2 : packed ? (int)sizeof(float) : 1;
    return layout->halves ? "BF16" : packed ? "U8" : "F32";
}

/* The number of those that begin before it. */
static int count_before(const struct slot_layout *layout, int64_t element)
{
    int low = 0, high = layout->packed_count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (layout->packed[middle].offset < element) low = middle + 1;
        else high = middle;
    }
    return low;
}

int64_t slot_at(const struct slot_layout *layout, int64_t element)
{
    if (layout->halves) return element / 2;
    int before = count_before(layout, element);
    if (before == 0) return element;
    const struct slot_packed *last = &layout->packed[before - 1];
    if (is_tight(layout)) return tight_word(layout, last, element);
    if (layout->shape != SHAPE_PLAIN) { /* all elements but the first are behind its words */
        int64_t end = last->offset + last->elements;
        return (element < end ? end : element) - (last->before + last->elements - last->words);
    }
    int64_t block = base_block(layout->base), blocks = (element - last->offset) / block;
    if (blocks > last->blocks) blocks = last->blocks;
    return element - (last->before + blocks) * (block - base_block_words(layout->base));
}

bool slot_in_block(const struct slot_layout *layout, int64_t element)
{
    int at = count_before(layout, element + 1) - 1; /* the last that begins at or before it */
    if (at < 0 || layout->shape != SHAPE_PLAIN) return false;
    const struct slot_packed *last = &layout->packed[at];
    return element < last->offset + last->blocks * base_block(layout->base);
}

int64_t slot_words(const struct slot_layout *layout, int64_t offset, int64_t elements)
{
    if (layout->halves) return (elements + 1) / 2;
    int at = count_before(layout, offset + 1) - 1; /* the last that begins at or before it */
    if (at < 0) return elements;
    const struct slot_packed *last = &layout->packed[at];
    if (layout->shape != SHAPE_PLAIN) return offset == last->offset ? last->words : elements;
    int64_t block = base_block(layout->base), words = base_block_words(layout->base);
    if (offset >= last->offset + last->blocks * block) return elements;
    return (elements + block - 1) / block * words;
}

int slot_find_runs(const struct slot_layout *layout, int part, struct slot_run **runs)
{
    int64_t begin = layout->shard * part, end = begin + layout->shard, at = begin;
    int64_t start = slot_at(layout, begin), block = base_block(layout->base);
    struct slot_run *found = mem_alloc_array(2 * (size_t)layout->packed_count + 2, sizeof *found);
    int count = 0;
    for (int i = 0; i < layout->packed_count && at < end; i++) {
        const struct slot_packed *listed = &layout->packed[i];
        bool packed = listed->blocks > 0;
        int64_t first = listed->offset,
                last = first + (packed ? listed->blocks * block : listed->elements);
        if (last <= at) continue;
        if (first < at) first = at;
        if (first > end) first = end;
        if (last > end) last = end;
        if (first > at && !is_tight(layout))
            found[count++] =
                (struct slot_run){at - begin, first - at, slot_at(layout, at) - start, false};
        if (last > first)
            found[count++] = (struct slot_run){first - begin, last - first,
                                               slot_at(layout, first) - start, packed};
        at = last;
    }
    if (at < end && (!is_tight(layout) || layout->packed_count == 0))
        found[count++] =
            (struct slot_run){at - begin, end - at, slot_at(layout, at) - start, false};
    *runs = found;
    return count;
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
