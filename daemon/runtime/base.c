/* Frozen parameters in another type than f32; see base.h. */
#include "runtime/base.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/kernels.h"
#include "runtime/device_table.h"

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

/* Runs that follow each other become one. */
static void add_run(struct base_part *unit, const struct slot_run *run)
{
    struct slot_run *last = unit->run_count > 0 ? &unit->runs[unit->run_count - 1] : NULL;
    int64_t block = run->packed ? base_block(unit->base) : 1;
    int64_t words = run->packed ? base_block_words(unit->base) : 1;
    if (last != NULL && last->packed == run->packed && last->from + last->count == run->from &&
        last->word + last->count / block * words == run->word) {
        last->count += run->count;
        return;
    }
    unit->runs = mem_resize_array(unit->runs, (size_t)unit->run_count + 1, sizeof *unit->runs);
    unit->runs[unit->run_count++] = *run;
}

void base_work_init(struct base_work *work, const struct slot_layout *layout)
{
    work->unit = (struct base_part){.base = layout->base};
    for (int part = 0; part < layout->parts; part++) {
        AUTO_FREE struct slot_run *runs = NULL;
        int count = slot_find_runs(layout, part, &runs);
        for (int r = 0; r < count; r++) {
            runs[r].from += layout->shard * part;
            runs[r].word += layout->words * part;
            add_run(&work->unit, &runs[r]);
        }
    }
}

void base_work_deinit(struct base_work *work)
{
    base_part_deinit(&work->unit);
}

static status_t unpack(void *argument)
{
    const struct base_work *work = argument;
    for (int r = 0; r < work->unit.run_count; r++) {
        const struct slot_run *run = &work->unit.runs[r];
        unpack_run(work->unit.base, run, work->kept + run->word,
                   work->low ? NULL : (float *)(void *)work->target + run->from,
                   work->low ? (uint16_t *)(void *)work->target + run->from : NULL);
    }
    return NULL;
}

status_t base_unpack_enqueue(struct lane_queue *lane, struct base_work *work)
{
    if (lane->device->table->unpack == NULL) return lane_call(lane, unpack, work);
    MUST_ALONE(&lane->user);
    return lane->device->table->unpack(lane, work);
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

static status_t store(const struct base_target *target, void *to, const void *from, size_t bytes)
{
    return target->store(target->user, to, from, bytes);
}

/* What a group's magnitudes take, until the mean of all is known. */
enum { HEAD = 1 + KERNEL_PACKED_WORDS };

static status_t end_nf4(struct base_packer *packer, const struct base_target *target)
{
    int64_t begin, end, group = KERNEL_NF4_GROUP;
    int64_t blocks = (target->elements + KERNEL_NF4_BLOCK - 1) / KERNEL_NF4_BLOCK;
    float mean = (float)(packer->sum / (double)blocks);
    find_kept(target, &begin, &end);
    for (int64_t at = begin; at < end; at += group) {
        float head[HEAD] = {0};
        int64_t count = (end - at + KERNEL_NF4_BLOCK - 1) / KERNEL_NF4_BLOCK;
        kernel_nf4_scale((size_t)(count < NF4_BLOCKS ? count : NF4_BLOCKS),
                         packer->most + (at - begin) / KERNEL_NF4_BLOCK, mean, head);
        TRY(store(target, place_of(target, at), head, sizeof head));
    }
    base_packer_deinit(packer);
    return NULL;
}

/* A block's values are complete; `first` is its first element. */
static status_t pack_block(struct base_packer *packer, const struct base_target *target,
                           int64_t first, size_t count, const float *values)
{
    static const float no_head[HEAD];
    int64_t begin, end, group = first / KERNEL_NF4_GROUP * KERNEL_NF4_GROUP;
    if (target->layout->base == BASE_INT8) {
        float block[KERNEL_PACKED_WORDS] = {0};
        kernel_int8_pack(count, values, block);
        return store(target, place_of(target, first), block, sizeof block);
    }
    uint8_t codes[KERNEL_NF4_BLOCK / 2];
    float most = kernel_nf4_pack(count, values, codes);
    packer->sum += (double)most;
    find_kept(target, &begin, &end);
    if (first < begin || first >= end) return NULL;
    packer->most[(first - begin) / KERNEL_NF4_BLOCK] = most;
    float *place = place_of(target, group);
    /* So that what is stored has no gaps. */
    if (first == group) TRY(store(target, place, no_head, sizeof no_head));
    return store(target, kernel_nf4_codes(place, (size_t)(first - group) / KERNEL_NF4_BLOCK), codes,
                 sizeof codes);
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

static status_t pack_values(struct base_packer *packer, const struct base_target *target,
                            int64_t count, const float *values)
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
        TRY(pack_block(packer, target, packer->next - packer->filled, (size_t)packer->filled,
                       packer->block));
        packer->filled = 0;
    }
    if (is_nf4(target) && packer->next == target->elements) return end_nf4(packer, target);
    return NULL;
}

static status_t pack_halves(const struct base_target *target, int64_t from, int64_t count,
                            const float *values)
{
    enum { PIECE = 4096 };
    char *place = (char *)place_of(target, from - from % 2);
    place += from % 2 * (int64_t)sizeof(uint16_t);
    for (int64_t at = 0; at < count; at += PIECE) {
        uint16_t halves[PIECE];
        size_t now = (size_t)(count - at < PIECE ? count - at : PIECE);
        kernel_f32_to_bf16(now, halves, values + at);
        TRY(store(target, place + at * (int64_t)sizeof *halves, halves, now * sizeof *halves));
    }
    return NULL;
}

status_t base_pack(struct base_packer *packer, const struct base_target *target, int parameter,
                   int64_t from, int64_t count, const float *values)
{
    int64_t first, wanted;
    base_wanted(target, &first, &wanted);
    if (from < first || from + count > first + wanted)
        return status_new(STATUS_INTERNAL, "this rank does not keep this part of parameter %d",
                          parameter);
    if (!is_packed(target))
        return store(target, place_of(target, from), values, (size_t)count * sizeof *values);
    if (base_block(target->layout->base) == 2) /* bf16 */
        return pack_halves(target, from, count, values);
    if (from == first) start(packer, target, parameter, from);
    if (packer->parameter != parameter || packer->next != from)
        return status_new(STATUS_INTERNAL, "values of parameter %d from %lld on come out of order",
                          parameter, (long long)from);
    return pack_values(packer, target, count, values);
}

void base_packer_deinit(struct base_packer *packer)
{
    free(packer->most);
    packer->most = NULL;
}
