/*
 * Where an optimizer slot, or a frozen unit of another type than f32, keeps its values: the one
 * description from which plans, checkpoints, memory for other ranks, other units and exports take
 * bytes and offsets.
 *
 * A slot is an array of words of 4 bytes, cut into one part per rank as the unit's flat parameter
 * is. It has one f32 per element, or, in 8 bits, SLOT_BLOCK_WORDS for each SLOT_BLOCK elements of a
 * parameter of at least SLOT_PACKED_LEAST elements: the block's scale, an f32, and a code of one
 * byte per element. The other parameters of such a unit have one f32 per element. Blocks begin with
 * their parameter, and parts are cut between blocks, so neither depends on the number of ranks.
 *
 * In bf16 a word has two elements: parameters begin, and parts are cut, at even ones.
 *
 * The parameters of a frozen unit (model.base_dtype) lie in the same way, in blocks of their type:
 * with int8 and nf4 those that base_packs names, with bf16 all of the unit as one, with BASE_FILE
 * those whose file has them in bf16. With int8 and nf4 the layout lists every parameter, and what
 * lies between them and behind the last has no words: in f32 it would take 8 times a block's.
 *
 * Some optimizers keep another number of values than elements: in one of their slots (slot_shaped)
 * the words of a matrix belong to its first element, and so to the part that has it.
 *
 * Parts may have different lengths; every rank's array has that of the longest. Pure functions; any
 * thread.
 */
#ifndef FSDPD_FSDP_SLOTS_H
#define FSDPD_FSDP_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "ops/optimizers.h"

enum { SLOT_BLOCK = 256, SLOT_BLOCK_WORDS = 1 + SLOT_BLOCK / 4, SLOT_PACKED_LEAST = 4096 };

/* How parameters that are not trained are kept. BASE_FILE: each in f32 or in bf16. */
enum base_dtype { BASE_F32, BASE_BF16, BASE_INT8, BASE_NF4, BASE_FILE };

static inline const char *base_dtype_name(enum base_dtype base)
{
    static const char *const names[] = {"f32", "bf16", "int8", "nf4", "file"};
    return names[base];
}

/* Elements of a block, and the words that it takes; of BASE_F32 those of the optimizer's state. A
 * block of nf4 is a parameter's mean, 256 magnitudes in 8 bits, and 256 blocks of 64 codes. */
static inline int64_t base_block(enum base_dtype base)
{
    if (base == BASE_BF16 || base == BASE_FILE) return 2;
    return base == BASE_NF4 ? 64 * SLOT_BLOCK : SLOT_BLOCK;
}

static inline int64_t base_block_words(enum base_dtype base)
{
    int64_t group = 1 + SLOT_BLOCK_WORDS + 64 * SLOT_BLOCK / 8;
    if (base == BASE_BF16 || base == BASE_FILE) return 1;
    return base == BASE_NF4 ? group : SLOT_BLOCK_WORDS;
}

/* Whether a parameter is in blocks of int8 or nf4: matrices that are worth it, as vectors (norms,
 * biases) are small and matter. */
static inline bool base_packs(int dim_count, int64_t elements)
{
    return dim_count >= 2 && elements >= SLOT_PACKED_LEAST;
}

/* What is kept of a matrix in another number of words. */
enum slot_shape {
    SHAPE_PLAIN,   /* nothing */
    SHAPE_FACTORS, /* sums over its rows and its columns, in the first slot */
    SHAPE_OTHERS,  /* nothing in the second slot, which other parameters' optimizer has */
};

/* The slot; -1: none. */
static inline int slot_shaped(enum slot_shape shape)
{
    return shape == SHAPE_PLAIN ? -1 : shape == SHAPE_OTHERS;
}

struct slot_packed { /* a parameter in blocks, of a shape, or of a base in int8 or nf4 */
    int64_t offset;  /* element at which it begins, a multiple of the block */
    int64_t before;  /* blocks before it; of a shape the elements less the words */
    int64_t blocks;  /* its own; 0: a base's, in f32 */
    int64_t words;   /* of a shape, whose blocks is 1; of a base the word at which it begins */
    int64_t elements;
};

struct slot_layout {
    struct slot_packed *packed; /* ascending */
    int packed_count;
    enum slot_shape shape;      /* then these are of it */
    bool rounded;               /* of a unit: its parameters are in bf16, too */
    bool halves;                /* in bf16; without it and without packed: an f32 per element */
    enum base_dtype base;       /* of a frozen unit's parameters */
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
    return (layout->packed_count > 0 && layout->shape == SHAPE_PLAIN) || layout->halves;
}

/* Whether a slot of such a unit has other words than its elements. */
static inline bool slot_differs(const struct slot_layout *unit, int slot)
{
    if (unit->shape != SHAPE_PLAIN) return slot == slot_shaped(unit->shape);
    return optimizer_slot_packs(slot);
}

/* The type of its words' contents in safetensors files, and the number of these in a word. */
const char *slot_file_type(const struct slot_layout *layout, int *per_word);

/* Adds a parameter in blocks, or of the layout's shape, or one in f32 of a base in int8 or nf4,
 * behind those before; then the parts of the whole. */
void slot_layout_add(struct slot_layout *layout, int64_t offset, int64_t elements);
void slot_layout_add_shaped(struct slot_layout *layout, int64_t offset, int64_t elements,
                            int64_t words);
void slot_layout_end(struct slot_layout *layout, int64_t shard, int parts);
void slot_layout_deinit(struct slot_layout *layout);

/* Slot `slot` of a unit of this layout; -1: its parameters. Those are f32 unless they are rounded
 * or the unit is a frozen one of another type, as are slots that slot_differs does not name.
 * Borrows the unit's. */
struct slot_layout slot_layout_of(const struct slot_layout *unit, int slot);

/* The word of an element: of a block's first one, or one in f32. Elements between parameters count
 * as f32; of a base in int8 and nf4 they have the next one's. */
int64_t slot_at(const struct slot_layout *layout, int64_t element);

/* Whether an element is in a block. */
bool slot_in_block(const struct slot_layout *layout, int64_t element);

/* The word where a rank's part begins; `part` == parts: the end. */
static inline int64_t slot_part(const struct slot_layout *layout, int part)
{
    return slot_at(layout, layout->shard * part);
}

/* The part that has that word. */
int slot_part_of(const struct slot_layout *layout, int64_t word);

/* Words of a parameter of that many elements that begins at `offset`. */
int64_t slot_words(const struct slot_layout *layout, int64_t offset, int64_t elements);

/* Elements that lie together in a part: in blocks, or one word each. */
struct slot_run {
    int64_t from, count; /* from the part's first on */
    int64_t word;        /* at which they begin in the part's array */
    bool packed;
};

/* The runs of a part, ascending, elements between parameters included if they have words; their
 * number. The caller frees them. */
int slot_find_runs(const struct slot_layout *layout, int part, struct slot_run **runs);

#endif
