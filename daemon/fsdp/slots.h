/*
 * Where an optimizer slot keeps its values: the one description from which plans, checkpoints,
 * memory for other ranks, other units and exports take bytes and offsets.
 *
 * A slot is an array of words of 4 bytes, cut into one part per rank as the unit's flat parameter
 * is. It has one f32 per element, or, in 8 bits, SLOT_BLOCK_WORDS for each SLOT_BLOCK elements of a
 * parameter of at least SLOT_PACKED_LEAST elements: the block's scale, an f32, and a code of one
 * byte per element. The other parameters of such a unit have one f32 per element. Blocks begin with
 * their parameter, and parts are cut between blocks, so neither depends on the number of ranks.
 *
 * In bf16 a word has two elements: parameters begin, and parts are cut, at even ones.
 *
 * Parts may have different lengths; every rank's array has that of the longest. Pure functions; any
 * thread.
 */
#ifndef FSDPD_FSDP_SLOTS_H
#define FSDPD_FSDP_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "fsdp/optimizers.h"

enum { SLOT_BLOCK = 256, SLOT_BLOCK_WORDS = 1 + SLOT_BLOCK / 4, SLOT_PACKED_LEAST = 4096 };

struct slot_packed { /* a parameter in 8 bits */
    int64_t offset;  /* element at which it begins, a multiple of SLOT_BLOCK */
    int64_t before;  /* blocks before it */
    int64_t blocks;  /* its own */
};

struct slot_layout {
    struct slot_packed *packed; /* ascending */
    int packed_count;
    bool rounded;               /* of a unit: its parameters are in bf16, too */
    bool halves;                /* in bf16; without it and without packed: an f32 per element */
    int64_t shard;              /* elements of a part */
    int parts;
    int64_t words; /* of every rank's array */
};

/* Whether a parameter of that many elements is in 8 bits, in a unit whose state is. */
static inline bool slot_packs(int64_t elements)
{
    return elements >= SLOT_PACKED_LEAST;
}

/* Whether the array's elements are not all f32. */
static inline bool slot_is_packed(const struct slot_layout *layout)
{
    return layout->packed_count > 0 || layout->halves;
}

/* The type of its words' contents in safetensors files, and the number of these in a word. */
const char *slot_file_type(const struct slot_layout *layout, int *per_word);

/* Adds a parameter in 8 bits behind those before; then the parts of the whole. */
void slot_layout_add(struct slot_layout *layout, int64_t offset, int64_t elements);
void slot_layout_end(struct slot_layout *layout, int64_t shard, int parts);
void slot_layout_deinit(struct slot_layout *layout);

/* Slot `slot` of a unit of this layout; -1: its parameters. Those are f32 unless they are rounded,
 * as are slots that optimizer_slot_packs does not name. Borrows the unit's. */
struct slot_layout slot_layout_of(const struct slot_layout *unit, int slot);

/* The word of an element: of a block's first one, or one in f32. Elements between parameters count
 * as f32. */
int64_t slot_at(const struct slot_layout *layout, int64_t element);

/* The word where a rank's part begins; `part` == parts: the end. */
static inline int64_t slot_part(const struct slot_layout *layout, int part)
{
    return slot_at(layout, layout->shard * part);
}

/* The part that has that word. */
int slot_part_of(const struct slot_layout *layout, int64_t word);

/* Words of a parameter of that many elements. */
static inline int64_t slot_words(const struct slot_layout *layout, int64_t elements)
{
    if (layout->halves) return (elements + 1) / 2;
    if (layout->packed_count == 0 || !slot_packs(elements)) return elements;
    return (elements + SLOT_BLOCK - 1) / SLOT_BLOCK * SLOT_BLOCK_WORDS;
}

#endif
