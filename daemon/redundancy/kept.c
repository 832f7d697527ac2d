/* State in host memory; see kept.h. */
#include "redundancy/kept.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/capture_internal.h"

static void piece_deinit(struct kept_piece *piece)
{
    if (piece->shared.memory == NULL) free(piece->values);
    shared_memory_free(&piece->shared);
    *piece = (struct kept_piece){0};
}

static void generation_deinit(struct kept_generation *generation)
{
    manifest_deinit(&generation->manifest);
    piece_deinit(&generation->primary);
    piece_deinit(&generation->backup);
    *generation = (struct kept_generation){0};
}

void kept_clear(struct kept *kept)
{
    MUST_ALONE(&kept->user);
    for (int i = 0; i < KEPT_GENERATIONS; i++) generation_deinit(&kept->generations[i]);
    free(kept->run);
    kept->run = NULL;
    kept->last = 0;
}

void kept_begin(struct kept *kept, const char *run)
{
    MUST_ALONE(&kept->user);
    if (kept->run != NULL && strcmp(kept->run, run) == 0) return;
    kept_clear(kept);
    kept->run = mem_strdup(run);
}

uint64_t kept_bytes(const struct kept *kept)
{
    size_t elements = 0;
    for (int i = 0; i < KEPT_GENERATIONS; i++)
        elements += kept->generations[i].primary.capacity + kept->generations[i].backup.capacity;
    return (uint64_t)elements * sizeof(float);
}

void kept_drop_before(struct kept *kept, uint32_t attempt)
{
    MUST_ALONE(&kept->user);
    for (int i = 0; i < KEPT_GENERATIONS; i++)
        if (kept->generations[i].valid < attempt) generation_deinit(&kept->generations[i]);
}

struct kept_generation *kept_find(struct kept *kept, uint32_t attempt, uint64_t step, int distance)
{
    MUST_ALONE(&kept->user);
    for (int i = 0; i < KEPT_GENERATIONS; i++) {
        struct kept_generation *generation = &kept->generations[i];
        if (attempt > 0 && generation->attempt == attempt &&
            generation->manifest.progress.step == step && generation->shape.distance == distance)
            return generation;
    }
    return NULL;
}

size_t kept_part(size_t elements, int parts, int part, size_t *begin)
{
    size_t each = (elements + (size_t)parts - 1) / (size_t)parts;
    *begin = each * (size_t)part < elements ? each * (size_t)part : elements;
    return elements - *begin < each ? elements - *begin : each;
}

static size_t unit_elements(const struct slot_layout *layout, int slots)
{
    size_t elements = 0;
    for (int slot = -1; slot < slots; slot++)
        elements += (size_t)slot_layout_of(layout, slot).words;
    return elements;
}

size_t kept_unit_elements(const struct saved_unit *unit)
{
    return unit_elements(&unit->layout, unit->slots);
}

size_t kept_elements(const struct manifest *manifest)
{
    size_t elements = 0;
    for (int u = 0; u < manifest->unit_count; u++)
        elements += kept_unit_elements(&manifest->units[u]);
    return elements;
}

/* Elements of the piece that a rank holds for others. */
static size_t backup_elements(size_t primary, const struct kept_shape *shape)
{
    size_t begin;
    if (shape->world == 1) return 0;
    if (shape->kind == REDUNDANCY_MIRROR) return primary;
    if (shape->kind != REDUNDANCY_PARITY || kept_group_size(shape) < 2) return 0;
    return kept_part(primary, kept_group_size(shape) - 1, 0, &begin);
}

static size_t plan_elements(const struct plan *plan)
{
    size_t elements = 0;
    for (int u = 0; u < plan->units->unit_count; u++) {
        const struct unit *unit = &plan->units->units[u];
        int slots = unit->frozen ? 0 : plan->options.optimizer_slots;
        if (unit->unsaved) continue; /* made of files again */
        elements += unit_elements(&unit->flat.slots, slots);
    }
    return elements;
}

uint64_t kept_plan_bytes(const struct plan *plan, const struct kept_shape *shape)
{
    if (shape->kind == REDUNDANCY_NONE) return 0;
    size_t primary = plan_elements(plan);
    return KEPT_GENERATIONS * (uint64_t)(primary + backup_elements(primary, shape)) * sizeof(float);
}

uint64_t kept_plan_sent_bytes(const struct plan *plan, const struct kept_shape *shape)
{
    bool sends = backup_elements(plan_elements(plan), shape) > 0;
    return sends ? (uint64_t)plan_elements(plan) * sizeof(float) : 0;
}

static status_t allocate(struct kept_piece *piece, size_t elements, bool shared)
{
    if (shared) {
        TRY(shared_memory_make(elements * sizeof *piece->values, &piece->shared));
        piece->values = piece->shared.memory;
        return NULL;
    }
    piece->values = malloc(elements * sizeof *piece->values);
    if (piece->values != NULL || elements == 0) return NULL;
    return status_new(STATUS_RESOURCE_EXHAUSTED, "the host has none left");
}

/* Room for a piece whose contents no longer count. */
static status_t make_room(struct kept_piece *piece, size_t elements, bool shared)
{
    piece->whole = false;
    piece->elements = elements;
    if (elements <= piece->capacity && shared == (piece->shared.memory != NULL)) return NULL;
    piece_deinit(piece);
    TRY(status_wrap(allocate(piece, elements, shared),
                    "elastic.redundancy: no memory for a copy of %zu numbers", elements));
    piece->elements = piece->capacity = elements;
    return NULL;
}

/* ---- Memory of another rank ---- */

/* Differs between the generations of an attempt, as a rank changes its primary. */
static uint64_t mark_of(const struct kept_generation *generation)
{
    return (uint64_t)generation->attempt << 32 |
           ((generation->manifest.progress.step + 1) & UINT32_MAX);
}

/* Before the rank changes its primary (0), and once that is whole. */
static void set_mark(struct kept_generation *generation, uint64_t mark)
{
    if (generation->primary.shared.memory == NULL) return;
    atomic_store(generation->primary.shared.mark, mark);
    atomic_thread_fence(memory_order_seq_cst);
}

bool kept_has_backup(const struct kept_generation *generation)
{
    const struct kept_piece *backup = &generation->backup;
    return backup->whole && (backup->shared.memory == NULL ||
                             atomic_load(backup->shared.mark) == mark_of(generation));
}

status_t kept_map_backup(struct kept_generation *generation, const struct shared_place *place)
{
    MUST(kept_is_copy(&generation->shape) && generation->primary.whole);
    struct kept_piece *backup = &generation->backup;
    size_t elements = generation->primary.elements;
    if (place->bytes < elements * sizeof *backup->values)
        return status_new(STATUS_INTERNAL, "the other rank has another layout");
    if (backup->shared.memory == NULL || backup->shared.number != place->number) {
        piece_deinit(backup);
        TRY(shared_memory_map(place, &backup->shared));
        backup->values = backup->shared.memory;
    }
    backup->elements = elements;
    return NULL;
}

enum { RUN = 16 }; /* elements that the compiler keeps in registers */

static void xor_run(float *out, const float *const *parts, int count, size_t at)
{
    uint64_t sum[RUN / 2], more[RUN / 2];
    memcpy(sum, parts[0] + at, sizeof sum);
    for (int p = 1; p < count; p++) {
        memcpy(more, parts[p] + at, sizeof more);
        for (int i = 0; i < RUN / 2; i++) sum[i] ^= more[i];
    }
    memcpy(out + at, sum, sizeof sum);
}

void kept_xor(float *out, const float *const *parts, int count, size_t elements)
{
    size_t at = 0;
    for (; at + RUN <= elements; at += RUN) xor_run(out, parts, count, at);
    for (; at < elements; at++) {
        uint32_t sum = 0, more;
        for (int p = 0; p < count; p++) {
            memcpy(&more, parts[p] + at, sizeof more);
            sum ^= more;
        }
        memcpy(out + at, &sum, sizeof sum);
    }
}

void kept_xor_parts(float *out, const float *const *shards, int parts, size_t elements)
{
    AUTO_FREE const float **from = mem_alloc_array((size_t)parts, sizeof *from);
    size_t begin, done = 0;
    for (int left = parts; left > 0; left--) {
        size_t end = kept_part(elements, parts, left - 1, &begin);
        for (int part = 0; part < left; part++) {
            kept_part(elements, parts, part, &begin);
            from[part] = shards[part] + begin + done;
        }
        kept_xor(out + done, from, left, end - done);
        done = end;
    }
}

/* The layout changes with the attempt and with the units. */
static void describe(struct kept_generation *generation, const struct executor *executor,
                     const struct capture_job *job, const struct saved_progress *progress)
{
    struct manifest *manifest = &generation->manifest;
    if (generation->attempt != job->attempt ||
        manifest->plan_hash != executor_plan(executor)->hash) {
        manifest_deinit(manifest);
        capture_describe(executor, job, progress, manifest);
    }
    manifest->progress = *progress;
}

static status_t copy_state(struct executor *executor, const struct manifest *manifest, float *to)
{
    for (int u = 0; u < manifest->unit_count; u++)
        for (int slot = -1; slot < manifest->units[u].slots && manifest->units[u].shard > 0;
             slot++) {
            TRY(executor_read_slot(executor, u, slot, to));
            to += slot_layout_of(&manifest->units[u].layout, slot).words;
        }
    return NULL;
}

status_t kept_take(struct kept *kept, struct executor *executor, const struct capture_job *job,
                   const struct saved_progress *progress, const struct kept_shape *shape,
                   bool shares, struct kept_generation **taken)
{
    MUST_ALONE(&kept->user);
    MUST(kept->run != NULL && shape->kind != REDUNDANCY_NONE);
    MUST(shape->rank >= 0 && shape->rank < shape->world);
    struct kept_generation *generation = &kept->generations[1 - kept->last];
    set_mark(generation, 0);
    generation->primary.whole = generation->backup.whole = false;
    describe(generation, executor, job, progress);
    generation->attempt = generation->valid = job->attempt;
    generation->shape = *shape;
    size_t elements = kept_elements(&generation->manifest);
    TRY(make_room(&generation->primary, elements, shares));
    if (!shares || !kept_is_copy(shape))
        TRY(make_room(&generation->backup, backup_elements(elements, shape), false));
    TRY(copy_state(executor, &generation->manifest, generation->primary.values));
    generation->primary.whole = true;
    set_mark(generation, mark_of(generation));
    *taken = generation;
    return NULL;
}

/* ---- kept distance ---- */

int kept_choose_distance(const uint64_t *hosts, int world)
{
    int best = 1, most = -1;
    for (int d = 1; d < world; d++) {
        int apart = 0;
        for (int r = 0; r < world; r++) apart += hosts[r] != hosts[(r + d) % world];
        if (apart > most) best = d;
        if (apart > most) most = apart;
    }
    return best;
}

static bool suits(const bool *leaves, int world, int distance)
{
    for (int r = 0; r < world; r++)
        if (leaves[r] && leaves[(r + distance) % world]) return false;
    return true;
}

int kept_choose_distance_without(const bool *leaves, int world, int usual)
{
    if (suits(leaves, world, usual)) return usual;
    for (int d = 1; d < world; d++)
        if (suits(leaves, world, d)) return d;
    return 0;
}
