/* Frozen parameters in another type than f32; see base.h. */
#include "runtime/base.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/kernels.h"

enum { NF4_BLOCKS = KERNEL_NF4_GROUP / KERNEL_NF4_BLOCK /* of a group */ };

_Static_assert((int)KERNEL_PACKED_WORDS == (int)SLOT_BLOCK_WORDS, "blocks in 8 bits");
_Static_assert(KERNEL_NF4_WORDS == 1 + SLOT_BLOCK_WORDS + 64 * SLOT_BLOCK / 8, "base_block_words");

/* ---- Values of what is kept ---- */

static void widen(size_t n, const uint16_t *from, float *values)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)from[i] << 16;
        memcpy(&values[i], &bits, sizeof bits);
    }
}

static void unpack_values(enum base_dtype base, size_t count, const float *kept, float *values,
                          uint16_t *rounded)
{
    switch (base) {
    case BASE_F32:
        if (values != NULL) memcpy(values, kept, count * sizeof *values);
        else kernel_f32_to_bf16(count, rounded, kept);
        break;
    case BASE_BF16:
    case BASE_FILE:
        if (values != NULL) widen(count, (const uint16_t *)(const void *)kept, values);
        else memcpy(rounded, kept, count * sizeof *rounded);
        break;
    case BASE_INT8: kernel_int8_unpack(count, kept, values, rounded); break;
    case BASE_NF4: kernel_nf4_unpack(count, kept, values, rounded); break;
    }
}

static void unpack_run(enum base_dtype base, const struct slot_run *run, const float *kept,
                       float *values, uint16_t *rounded)
{
    unpack_values(run->packed ? base : BASE_F32, (size_t)run->count, kept, values, rounded);
}

void base_unpack(const struct slot_layout *layout, int part, const float *kept, float *values,
                 uint16_t *rounded)
{
    AUTO_FREE struct slot_run *runs = NULL;
    int count = slot_find_runs(layout, part, &runs);
    for (int r = 0; r < count; r++)
        unpack_run(layout->base, &runs[r], kept + runs[r].word,
                   values != NULL ? values + runs[r].from : NULL,
                   rounded != NULL ? rounded + runs[r].from : NULL);
}

void base_part_init(struct base_part *part, const struct slot_layout *layout, int number)
{
    *part = (struct base_part){.base = layout->halves ? BASE_BF16 : layout->base};
    part->run_count = slot_find_runs(layout, number, &part->runs);
    if (layout->halves) part->runs[0].packed = true; /* all of it */
}

void base_part_deinit(struct base_part *part)
{
    free(part->runs);
    *part = (struct base_part){0};
}

/* `count` values from element `at` of a run on, which need not begin with a block. */
static void read_run(enum base_dtype base, const float *kept, int64_t at, int64_t count,
                     float *values)
{
    int64_t block = base == BASE_F32 ? 1 : base_block(base), skipped = at % block;
    kept += at / block * (base == BASE_F32 ? 1 : base_block_words(base));
    if (skipped > 0) {
        AUTO_FREE float *whole = mem_alloc_array((size_t)block, sizeof *whole);
        int64_t now = block - skipped < count ? block - skipped : count;
        unpack_values(base, (size_t)(skipped + now), kept, whole, NULL);
        memcpy(values, whole + skipped, (size_t)now * sizeof *values);
        kept += base_block_words(base);
        values += now;
        count -= now;
    }
    if (count > 0) unpack_values(base, (size_t)count, kept, values, NULL);
}

void base_part_read(const struct base_part *part, const float *kept, int64_t from, int64_t count,
                    float *values)
{
    for (int r = 0; r < part->run_count; r++) {
        const struct slot_run *run = &part->runs[r];
        int64_t begin = run->from > from ? run->from : from, end = run->from + run->count;
        if (end > from + count) end = from + count;
        if (begin >= end) continue;
        read_run(run->packed ? part->base : BASE_F32, kept + run->word, begin - run->from,
                 end - begin, values + (begin - from));
    }
}

/* ---- What is kept of values ---- */

static bool is_packed(const struct base_target *target)
{
    return slot_in_block(target->layout, target->offset);
}

static bool is_nf4(const struct base_target *target)
{
    return target->layout->base == BASE_NF4 && is_packed(target);
}

/* Elements of the parameter that are kept here. */
static void find_kept(const struct base_target *target, int64_t *begin, int64_t *end)
{
    int64_t first = target->layout->shard * target->part, last = first + target->layout->shard;
    *begin = first > target->offset ? first - target->offset : 0;
    *end = last - target->offset < target->elements ? last - target->offset : target->elements;
    if (*end < *begin) *end = *begin;
}

void base_wanted(const struct base_target *target, int64_t *offset, int64_t *count)
{
    int64_t begin, end;
    find_kept(target, &begin, &end);
    bool all = is_nf4(target) && end > begin;
    *offset = all ? 0 : begin;
    *count = all ? target->elements : end - begin;
}

/* Where an element's block is kept, or itself. */
static float *place_of(const struct base_target *target, int64_t element)
{
    return target->kept + slot_at(target->layout, target->offset + element) -
           slot_part(target->layout, target->part);
}

static void end_nf4(struct base_packer *packer, const struct base_target *target)
{
    int64_t begin, end, group = KERNEL_NF4_GROUP;
    int64_t blocks = (target->elements + KERNEL_NF4_BLOCK - 1) / KERNEL_NF4_BLOCK;
    float mean = (float)(packer->sum / (double)blocks);
    find_kept(target, &begin, &end);
    for (int64_t at = begin; at < end; at += group) {
        int64_t count = (end - at + KERNEL_NF4_BLOCK - 1) / KERNEL_NF4_BLOCK;
        kernel_nf4_scale((size_t)(count < NF4_BLOCKS ? count : NF4_BLOCKS),
                         packer->most + (at - begin) / KERNEL_NF4_BLOCK, mean,
                         place_of(target, at));
    }
    base_packer_deinit(packer);
}

/* A block's values are complete; `first` is its first element. */
static void pack_block(struct base_packer *packer, const struct base_target *target, int64_t first,
                       size_t count, const float *values)
{
    int64_t begin, end;
    if (target->layout->base == BASE_INT8) {
        kernel_int8_pack(count, values, place_of(target, first));
        return;
    }
    find_kept(target, &begin, &end);
    uint8_t other[KERNEL_NF4_BLOCK / 2], *codes = other;
    bool here = first >= begin && first < end;
    if (here) {
        int64_t group = first / KERNEL_NF4_GROUP * KERNEL_NF4_GROUP;
        codes =
            kernel_nf4_codes(place_of(target, group), (size_t)(first - group) / KERNEL_NF4_BLOCK);
    }
    float most = kernel_nf4_pack(count, values, codes);
    packer->sum += (double)most;
    if (here) packer->most[(first - begin) / KERNEL_NF4_BLOCK] = most;
}

static void start(struct base_packer *packer, const struct base_target *target, int parameter,
                  int64_t from)
{
    int64_t begin, end;
    base_packer_deinit(packer);
    *packer = (struct base_packer){.parameter = parameter, .next = from};
    find_kept(target, &begin, &end);
    if (is_nf4(target))
        packer->most =
            mem_alloc_array((size_t)((end - begin) / KERNEL_NF4_BLOCK + 1), sizeof *packer->most);
}

static void pack_values(struct base_packer *packer, const struct base_target *target, int64_t count,
                        const float *values)
{
    int size = target->layout->base == BASE_NF4 ? KERNEL_NF4_BLOCK : KERNEL_PACKED_BLOCK;
    int64_t first, wanted;
    base_wanted(target, &first, &wanted);
    while (count > 0) {
        int64_t now = size - packer->filled < count ? size - packer->filled : count;
        memcpy(packer->block + packer->filled, values, (size_t)now * sizeof *values);
        packer->filled += (int)now;
        packer->next += now;
        values += now;
        count -= now;
        if (packer->filled < size && packer->next < first + wanted) continue;
        pack_block(packer, target, packer->next - packer->filled, (size_t)packer->filled,
                   packer->block);
        packer->filled = 0;
    }
    if (is_nf4(target) && packer->next == target->elements) end_nf4(packer, target);
}

status_t base_pack(struct base_packer *packer, const struct base_target *target, int parameter,
                   int64_t from, int64_t count, const float *values)
{
    int64_t first, wanted;
    base_wanted(target, &first, &wanted);
    if (from < first || from + count > first + wanted)
        return status_new(STATUS_INTERNAL, "this rank does not keep this part of parameter %d",
                          parameter);
    if (!is_packed(target)) {
        memcpy(place_of(target, from), values, (size_t)count * sizeof *values);
        return NULL;
    }
    if (base_block(target->layout->base) == 2) { /* bf16 */
        uint16_t *kept = (uint16_t *)(void *)place_of(target, from - from % 2);
        kernel_f32_to_bf16((size_t)count, kept + from % 2, values);
        return NULL;
    }
    if (from == first) start(packer, target, parameter, from);
    if (packer->parameter != parameter || packer->next != from)
        return status_new(STATUS_INTERNAL, "values of parameter %d from %lld on come out of order",
                          parameter, (long long)from);
    pack_values(packer, target, count, values);
    return NULL;
}

void base_packer_deinit(struct base_packer *packer)
{
    free(packer->most);
    packer->most = NULL;
}
