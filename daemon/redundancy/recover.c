/* Continuing from memory; see recover.h. */
#include "redundancy/recover.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { PIECE = 1 << 20 }; /* elements that are sent at a time */

/* ---- what the ranks have ---- */

struct offer { /* of one rank, one generation */
    uint32_t attempt, valid, primary, backup;
    uint64_t step;
    struct kept_shape shape;
};

struct offers { /* (world * KEPT_GENERATIONS) */
    struct offer *items;
    int world, count;
};

static struct offer offer_of(const struct kept_generation *generation)
{
    struct offer offer;
    memset(&offer, 0, sizeof offer); /* its bytes are sent */
    if (generation->attempt == 0) return offer;
    offer.attempt = generation->attempt;
    offer.valid = generation->valid;
    offer.primary = generation->primary.whole;
    offer.backup = kept_has_backup(generation);
    offer.step = generation->manifest.progress.step;
    offer.shape = generation->shape;
    return offer;
}

/* Every rank learns what every rank has. */
static status_t share_offers(struct run *run, struct offers *offers)
{
    const struct kept *kept = run->protection.kept;
    offers->world = run->job->world;
    offers->count = offers->world * KEPT_GENERATIONS;
    offers->items = mem_alloc_array((size_t)offers->count, sizeof *offers->items);
    for (int r = 0; r < offers->world; r++) {
        struct offer *theirs = &offers->items[r * KEPT_GENERATIONS];
        for (int g = 0; g < KEPT_GENERATIONS && r == run->session->rank; g++)
            theirs[g] = offer_of(&kept->generations[g]);
        TRY(agreement_share(&run->protection.ranks, theirs, KEPT_GENERATIONS * sizeof *theirs, r));
    }
    return NULL;
}

/* Two generations of one step and attempt are the same state, with other copies. */
static bool is_newer(const struct offer *a, const struct offer *b)
{
    if (a->step != b->step) return a->step > b->step;
    if (a->attempt != b->attempt) return a->attempt > b->attempt;
    return a->shape.distance > b->shape.distance;
}

static bool is_same(const struct offer *a, const struct offer *b)
{
    return a->step == b->step && a->attempt == b->attempt && a->shape.distance == b->shape.distance;
}

/* The newest generation that is older than `than` (NULL: any) and not stale. */
static const struct offer *next_offer(const struct offers *offers, uint32_t since,
                                      const struct offer *than)
{
    const struct offer *found = NULL;
    for (int i = 0; i < offers->count; i++) {
        const struct offer *one = &offers->items[i];
        if (one->attempt == 0 || one->valid < since) continue;
        if (than != NULL && !is_newer(than, one)) continue;
        if (found == NULL || is_newer(one, found)) found = one;
    }
    return found;
}

/* ---- whether it is whole ---- */

static int mirrored_by(const struct recovery *recovery, int rank)
{
    const struct kept_shape *shape = &recovery->shape;
    if (shape->kind != REDUNDANCY_MIRROR || shape->world == 1) return -1;
    return recovery->backup[(rank + shape->distance) % shape->world];
}

static int group_size_of(const struct recovery *recovery, int rank)
{
    struct kept_shape shape = recovery->shape;
    shape.rank = rank;
    return kept_group_size(&shape);
}

/* Whether all other members of its parity group have their shards and their parity. */
static bool can_rebuild(const struct recovery *recovery, int rank)
{
    if (recovery->shape.kind != REDUNDANCY_PARITY) return false;
    int size = group_size_of(recovery, rank);
    for (int d = 1; d < size; d++) {
        int member = kept_member_after(&recovery->shape, rank, d);
        if (recovery->primary[member] < 0 || recovery->backup[member] < 0) return false;
    }
    return size > 1;
}

static bool has_shards(const struct recovery *recovery, int rank)
{
    return recovery->primary[rank] >= 0 || mirrored_by(recovery, rank) >= 0 ||
           can_rebuild(recovery, rank);
}

/* The rank of the old attempt whose copy of part `part` of the unit's shards is used: that which a
 * checkpoint would have, if it is there; -1: none. */
static int source_of(const struct recovery *recovery, const struct saved_unit *unit, int part)
{
    if (has_shards(recovery, unit->first_rank + part)) return unit->first_rank + part;
    for (int r = part; r < recovery->shape.world; r += unit->shard_world)
        if (has_shards(recovery, r)) return r;
    return -1;
}

/* The first rank whose shards no rank has; -1: there is none. */
static int find_missing(const struct recovery *recovery)
{
    for (int u = 0; u < recovery->manifest.unit_count; u++) {
        const struct saved_unit *unit = &recovery->manifest.units[u];
        for (int part = 0; part < unit->shard_world && unit->shard > 0; part++)
            if (source_of(recovery, unit, part) < 0) return unit->first_rank + part;
    }
    return -1;
}

static status_t check_whole(const struct recovery *recovery)
{
    int missing = find_missing(recovery);
    if (missing < 0) return NULL;
    return status_new(STATUS_FAILED_PRECONDITION,
                      "the shards of rank %d of %d and their copies were lost", missing,
                      recovery->shape.world);
}

status_t recover_check_without(const struct kept_generation *generation, const bool *leaves)
{
    int world = generation->shape.world;
    struct recovery recovery = {.manifest = generation->manifest, .shape = generation->shape};
    recovery.primary = recovery.backup = mem_alloc_array((size_t)world, sizeof *recovery.primary);
    for (int r = 0; r < world; r++) recovery.primary[r] = leaves[r] ? -1 : r;
    int missing = find_missing(&recovery);
    free(recovery.primary);
    if (missing < 0) return NULL;
    return status_new(STATUS_FAILED_PRECONDITION,
                      "no worker that stays has the shards of rank %d of %d or a copy of them",
                      missing, world);
}

/* ---- choosing ---- */

static void note_holders(const struct offers *offers, const struct offer *chosen,
                         struct recovery *recovery)
{
    int world = chosen->shape.world;
    recovery->attempt = chosen->attempt;
    recovery->shape = chosen->shape;
    recovery->primary = mem_alloc_array((size_t)world, sizeof *recovery->primary);
    recovery->backup = mem_alloc_array((size_t)world, sizeof *recovery->backup);
    for (int r = 0; r < world; r++) recovery->primary[r] = recovery->backup[r] = -1;
    for (int i = offers->count - 1; i >= 0; i--) {
        const struct offer *one = &offers->items[i];
        if (one->attempt == 0 || !is_same(one, chosen)) continue;
        if (one->primary) recovery->primary[one->shape.rank] = i / KEPT_GENERATIONS;
        if (one->backup) recovery->backup[one->shape.rank] = i / KEPT_GENERATIONS;
    }
}

/* Gives all ranks the manifest of the rank `root`. */
static status_t share_manifest(struct run *run, struct kept_generation *mine, int root,
                               struct manifest *manifest)
{
    const struct agreement *ranks = &run->protection.ranks;
    AUTO(buf_deinit) struct buf text = {0};
    if (run->session->rank == root) {
        struct manifest *kept = &mine->manifest;
        for (int f = 0; f < kept->world; f++) kept->files[f].bytes = 1; /* there are none */
        manifest_write(kept, &text);
    }
    uint64_t size = text.length;
    status_t status = agreement_share(ranks, &size, sizeof size, root);
    if (status == NULL && size > MANIFEST_MAX)
        status = status_new(STATUS_INTERNAL, "a manifest of %" PRIu64 " bytes", size);
    AUTO_FREE char *bytes = status == NULL ? mem_alloc(size + 1) : NULL;
    if (status == NULL && text.length > 0) memcpy(bytes, text.data, size);
    if (status == NULL) status = agreement_share(ranks, bytes, size, root);
    if (status == NULL) status = manifest_read(bytes, size, "the memory", manifest);
    return status;
}

void recover_deinit(struct recovery *recovery)
{
    manifest_deinit(&recovery->manifest);
    free(recovery->primary);
    free(recovery->backup);
    status_free(recovery->problem);
    *recovery = (struct recovery){0};
}

static status_t examine(struct run *run, const struct offers *offers, const struct offer *chosen,
                        struct recovery *recovery)
{
    note_holders(offers, chosen, recovery);
    recovery->root = (int)(chosen - offers->items) / KEPT_GENERATIONS;
    struct kept_generation *mine =
        kept_find(run->protection.kept, chosen->attempt, chosen->step, chosen->shape.distance);
    TRY(share_manifest(run, mine, recovery->root, &recovery->manifest));
    recovery->problem = check_whole(recovery);
    recovery->found = recovery->problem == NULL;
    return NULL;
}

static status_t search(struct run *run, const struct offers *offers, struct recovery *recovery)
{
    status_t first = NULL;
    const struct offer *one = NULL;
    while (!recovery->found) {
        one = next_offer(offers, run->session->spare.since, one);
        if (one == NULL) break;
        recover_deinit(recovery);
        status_t status = examine(run, offers, one, recovery);
        if (status != NULL) {
            status_free(first);
            return status;
        }
        if (first == NULL && recovery->problem != NULL)
            first = status_wrap(status_copy(recovery->problem), "the memory of step %" PRIu64,
                                one->step);
    }
    status_free(recovery->problem);
    recovery->problem = recovery->found ? NULL : first;
    if (recovery->found) status_free(first);
    return NULL;
}

status_t recover_find(struct run *run, struct recovery *recovery)
{
    *recovery = (struct recovery){0};
    if (run->protection.kept == NULL || run->session->spare.since == 0) return NULL;
    struct offers offers = {0};
    status_t status = share_offers(run, &offers);
    if (status == NULL) status = search(run, &offers, recovery);
    free(offers.items);
    return status;
}

/* ---- moving the shards ---- */

struct restoration {
    struct run *run;
    const struct recovery *recovery;
    const struct kept_generation *mine; /* NULL: this rank has nothing of it */
    float *buffer;                      /* (PIECE) */
    float **rebuilt; /* by rank of the old attempt: shards made from parity, here; or NULL */
    int *rebuilt_by; /* the rank that has them; -1: none */
};

static const float *shards_here(const struct restoration *restoration, int rank)
{
    if (restoration->rebuilt[rank] != NULL) return restoration->rebuilt[rank];
    if (restoration->mine == NULL) return NULL;
    const struct kept_generation *mine = restoration->mine;
    if (mine->shape.rank == rank) return mine->primary.values;
    bool mirrors = mine->shape.kind == REDUNDANCY_MIRROR &&
                   (rank + mine->shape.distance) % mine->shape.world == mine->shape.rank;
    return mirrors ? mine->backup.values : NULL;
}

static int holder_of(const struct restoration *restoration, int rank)
{
    const struct recovery *recovery = restoration->recovery;
    if (recovery->primary[rank] >= 0) return recovery->primary[rank];
    int mirror = mirrored_by(recovery, rank);
    return mirror >= 0 ? mirror : restoration->rebuilt_by[rank];
}

/* `values`, on rank `root`, reach the buffers of all ranks. */
static status_t send_piece(struct restoration *restoration, int root, const float *values,
                           size_t count)
{
    const struct agreement *ranks = &restoration->run->protection.ranks;
    TRY(session_check_abort(restoration->run->session));
    if (restoration->run->session->rank == root)
        memcpy(restoration->buffer, values, count * sizeof *values);
    if (ranks->comm == NULL) return NULL;
    return agreement_wait(ranks, comm_broadcast(ranks->comm, *ranks->lane, restoration->buffer,
                                                count * sizeof *restoration->buffer, root));
}

/* Part of what a member keeps reaches all ranks, and changes `sum` where there is one. */
static status_t add_piece(struct restoration *restoration, int root, const float *values,
                          size_t count, float *sum)
{
    TRY(send_piece(restoration, root, values, count));
    if (sum != NULL) kept_xor(sum, (const float *const[]){sum, restoration->buffer}, 2, count);
    return NULL;
}

/* Part `distance - 1` of the lost rank's primary: the parity of the member `distance` places after
 * it, XOR the other ranks' parts in it. */
static status_t rebuild_part(struct restoration *restoration, int lost, int distance,
                             size_t elements, float *values)
{
    const struct recovery *recovery = restoration->recovery;
    int size = group_size_of(recovery, lost);
    int keeper = kept_member_after(&recovery->shape, lost, distance);
    bool keeps = restoration->mine != NULL && restoration->mine->shape.rank == keeper;
    size_t begin, count = kept_part(elements, size - 1, distance - 1, &begin);
    for (size_t at = 0; at < count; at += PIECE) {
        size_t n = count - at < PIECE ? count - at : PIECE;
        float *sum = values != NULL ? values + begin + at : NULL;
        TRY(add_piece(restoration, recovery->backup[keeper],
                      keeps ? restoration->mine->backup.values + at : NULL, n, sum));
        for (int d = 1; d < size; d++) {
            if (d == distance) continue;
            int member = kept_member_after(&recovery->shape, keeper, -d);
            bool here = restoration->mine != NULL && restoration->mine->shape.rank == member;
            size_t start, length = kept_part(elements, size - 1, d - 1, &start);
            if (at >= length) continue;
            TRY(add_piece(restoration, recovery->primary[member],
                          here ? restoration->mine->primary.values + start + at : NULL,
                          length - at < n ? length - at : n, sum));
        }
    }
    return NULL;
}

static status_t rebuild(struct restoration *restoration, int lost)
{
    const struct recovery *recovery = restoration->recovery;
    size_t elements = kept_elements(&recovery->manifest);
    restoration->rebuilt_by[lost] = recovery->primary[kept_member_after(&recovery->shape, lost, 1)];
    if (restoration->rebuilt_by[lost] == restoration->run->session->rank) {
        restoration->rebuilt[lost] = calloc(elements + 1, sizeof(float));
        if (restoration->rebuilt[lost] == NULL)
            return status_new(STATUS_RESOURCE_EXHAUSTED, "no memory for %zu numbers of a lost rank",
                              elements);
    }
    for (int d = 1; d < group_size_of(recovery, lost); d++)
        TRY(rebuild_part(restoration, lost, d, elements, restoration->rebuilt[lost]));
    return NULL;
}

static int find_parameter(const struct model *model, const char *name)
{
    for (int p = 0; p < model->parameter_count; p++)
        if (strcmp(model->parameters[p].name, name) == 0) return p;
    return -1;
}

/* Keeps this rank's parts of words `begin` to `end` of a unit's array, which are in the buffer. */
static status_t keep(struct restoration *restoration, const struct saved_unit *unit,
                     const int *parameters, int slot, int64_t begin, int64_t end)
{
    struct executor *executor = restoration->run->executor;
    const struct slot_layout layout = slot_layout_of(&unit->layout, slot);
    for (int i = 0; i < unit->parameter_count; i++) {
        int64_t start = slot_at(&layout, unit->parameters[i].offset);
        const struct parameter_part mine = executor_state_part(executor, parameters[i], slot);
        int64_t first = start + mine.offset, last = first + mine.count;
        if (first < begin) first = begin;
        if (last > end) last = end;
        if (first >= last) continue;
        const struct parameter_part part = {.offset = first - start, .count = last - first};
        TRY(executor_set_state_part(executor, parameters[i], slot, part,
                                    restoration->buffer + (first - begin)));
    }
    return NULL;
}

/* `at`: where the array begins in a rank's shards. */
static status_t move_array(struct restoration *restoration, const struct saved_unit *unit,
                           const int *parameters, int slot, size_t at)
{
    const struct slot_layout layout = slot_layout_of(&unit->layout, slot);
    for (int part = 0; part < unit->shard_world; part++) {
        int source = source_of(restoration->recovery, unit, part);
        const float *values = shards_here(restoration, source);
        int64_t start = slot_part(&layout, part), end = slot_part(&layout, part + 1);
        for (int64_t done = 0; done < layout.words; done += PIECE) {
            int64_t count = layout.words - done < PIECE ? layout.words - done : PIECE;
            TRY(send_piece(restoration, holder_of(restoration, source),
                           values != NULL ? values + at + done : NULL, (size_t)count));
            int64_t begin = start + done, stop = begin + count < end ? begin + count : end;
            TRY(keep(restoration, unit, parameters, slot, begin, stop));
        }
    }
    return NULL;
}

/* The same job has the same parameters, whatever its units were. */
static status_t find_parameters(const struct run *run, const struct saved_unit *unit,
                                int *parameters)
{
    const struct model *model = run->session->model;
    for (int i = 0; i < unit->parameter_count; i++) {
        const struct saved_parameter *one = &unit->parameters[i];
        int p = parameters[i] = find_parameter(model, one->name);
        if (p < 0 || tensor_element_count(&model->parameters[p].type) != one->elements)
            return status_new(STATUS_INTERNAL, "the memory has %" PRId64 " numbers of %s",
                              one->elements, one->name);
    }
    return NULL;
}

static status_t move_unit(struct restoration *restoration, const struct saved_unit *unit, size_t at)
{
    AUTO_FREE int *parameters =
        mem_alloc_array((size_t)unit->parameter_count + 1, sizeof *parameters);
    status_t status = find_parameters(restoration->run, unit, parameters);
    for (int slot = -1; slot < unit->slots && unit->shard > 0 && status == NULL; slot++) {
        status = move_array(restoration, unit, parameters, slot, at);
        at += (size_t)slot_layout_of(&unit->layout, slot).words;
    }
    return status;
}

static status_t move_all(struct restoration *restoration)
{
    const struct manifest *manifest = &restoration->recovery->manifest;
    for (int r = 0; r < restoration->recovery->shape.world; r++) {
        restoration->rebuilt_by[r] = -1;
        bool kept =
            restoration->recovery->primary[r] >= 0 || mirrored_by(restoration->recovery, r) >= 0;
        if (!kept && can_rebuild(restoration->recovery, r)) TRY(rebuild(restoration, r));
    }
    size_t at = 0;
    for (int u = 0; u < manifest->unit_count; u++) {
        const struct saved_unit *unit = &manifest->units[u];
        TRY(status_wrap(move_unit(restoration, unit, at), "unit %s", unit->name));
        at += kept_unit_elements(unit);
    }
    return NULL;
}

/* A rank that the others gave up may still run, and the piece that was read be in its memory. */
static status_t check_still_whole(const struct run *run, const struct recovery *recovery,
                                  const struct kept_generation *mine)
{
    if (mine == NULL || recovery->backup[mine->shape.rank] != run->session->rank) return NULL;
    if (kept_has_backup(mine)) return NULL;
    return status_new(STATUS_UNAVAILABLE, "a lost rank changed its memory while it was read");
}

status_t recover_load(struct run *run, struct recovery *recovery)
{
    struct kept *kept = run->protection.kept;
    struct kept_generation *mine =
        kept_find(kept, recovery->attempt, recovery->manifest.progress.step,
                  recovery->shape.distance);
    size_t world = (size_t)recovery->shape.world;
    struct restoration restoration = {.run = run, .recovery = recovery, .mine = mine};
    restoration.buffer = mem_alloc_array(PIECE, sizeof *restoration.buffer);
    restoration.rebuilt = mem_alloc_array(world, sizeof *restoration.rebuilt);
    restoration.rebuilt_by = mem_alloc_array(world, sizeof *restoration.rebuilt_by);
    status_t status = move_all(&restoration);
    for (size_t r = 0; r < world; r++) free(restoration.rebuilt[r]);
    free(restoration.rebuilt_by);
    free(restoration.rebuilt);
    free(restoration.buffer);
    if (status == NULL) status = check_still_whole(run, recovery, mine);
    if (status != NULL || mine == NULL) return status;
    mine->valid = run->session->spare.attempt;
    kept->last = (int)(mine - kept->generations);
    return NULL;
}
