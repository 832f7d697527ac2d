/*
 * Moves a job's state from one plan's shards to another's; see relayout.h. For one unit of the old
 * plan after the other, and one array of each (parameters, then the optimizer's slots): pieces of
 * the shards of all ranks that share it are gathered into the buffer, and each rank copies out the
 * parts of its new shards. Everything is enqueued on one lane, which orders it.
 */
#include "runtime/relayout.h"

#include <string.h>

#include "base/mem.h"

/* Size of the buffer; large enough for the network, small compared with any model worth
 * sharding. */
enum { BUFFER_ELEMENTS = 1 << 20, PIECE_MIN = 256 };

struct moving {
    const struct executor *from;
    struct executor *to;
    const struct unit_set *from_units, *to_units;
    int rank, world;
    struct comm *comm, *part; /* all ranks; the last of its parts that was used */
    struct lane_queue *lane;
    int64_t timeout_ms;
    float *buffer; /* (ranks that share a unit, piece); then the own piece of an offloaded unit */
};

/* Ranks that hold one copy together. */
static int shard_count(const struct flat_parameter *flat)
{
    return flat->shard > 0 ? (int)(flat->padded / flat->shard) : 1;
}

/* Elements of every shard that are gathered at a time. */
static int64_t piece_elements(int shards)
{
    int64_t piece = BUFFER_ELEMENTS / shards;
    return piece > PIECE_MIN ? piece : PIECE_MIN;
}

/* Elements of the buffer: none if no unit is spread over ranks, at most what the largest unit
 * needs. */
static int64_t buffer_elements(const struct plan *from)
{
    int64_t largest = 0;
    for (int u = 0; u < from->units->unit_count; u++) {
        const struct flat_parameter *flat = &from->units->units[u].flat;
        int shards = shard_count(flat);
        int64_t piece = piece_elements(shards);
        if (piece > flat->shard) piece = flat->shard;
        int64_t needed = piece * (shards + plan_offloads(from, u));
        if (shards > 1 && needed > largest) largest = needed;
    }
    return largest;
}

uint64_t relayout_peak_bytes(const struct plan *from, const struct plan *to)
{
    return from->state_bytes + to->state_bytes + to->work_bytes +
           (uint64_t)buffer_elements(from) * sizeof(float);
}

/* The first of the unit's parameters that ends after the array's word `at`. */
static int first_behind(const struct flat_parameter *flat, const struct slot_layout *layout,
                        int64_t at)
{
    int low = 0, high = flat->parameter_count;
    while (low < high) { /* the next one starts after `at` */
        int middle = low + (high - low) / 2;
        bool before =
            middle + 1 < flat->parameter_count && slot_at(layout, flat->offsets[middle + 1]) <= at;
        if (before) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Copies this rank's new parts of words `begin` to `end` of an old unit's array, which are at
 * `values`: in host memory if `offloaded`. */
static status_t keep(const struct moving *moving, const struct flat_parameter *flat, int slot,
                     int64_t begin, int64_t end, const float *values, bool offloaded)
{
    const struct plan *new = executor_plan(moving->to);
    const struct model *model = executor_plan(moving->from)->model;
    const struct slot_layout layout = slot_layout_of(&flat->slots, slot);
    for (int i = first_behind(flat, &layout, begin); i < flat->parameter_count; i++) {
        int64_t start = slot_at(&layout, flat->offsets[i]);
        if (start >= end) break;
        int p = flat->parameters[i];
        int64_t stop = start + slot_words(&layout, flat->offsets[i],
                                          tensor_element_count(&model->parameters[p].type));
        int unit = moving->to_units->unit_of_parameter[p];
        const struct flat_parameter *there = &moving->to_units->units[unit].flat;
        const struct slot_layout to = slot_layout_of(&there->slots, slot);
        /* from old places to new ones */
        int64_t moved = slot_at(&to, flat_parameter_offset(there, p)) - start;
        int part = moving->rank % shard_count(there);
        int64_t mine = slot_part(&to, part), mine_end = slot_part(&to, part + 1);
        int64_t first = start > begin ? start : begin, last = stop < end ? stop : end;
        if (first + moved < mine) first = mine - moved;
        if (last + moved > mine_end) last = mine_end - moved;
        if (first >= last) continue;
        float *target = executor_unit_state(moving->to, unit, slot);
        if (target == NULL)
            return status_new(STATUS_INTERNAL, "the new plan has no place for %s",
                              model->parameters[p].name);
        uint64_t bytes = (uint64_t)(last - first) * sizeof *values;
        target += first + moved - mine;
        if (offloaded && plan_offloads(new, unit)) memcpy(target, values + (first - begin), bytes);
        else TRY(lane_copy(moving->lane, target, values + (first - begin), bytes));
    }
    return NULL;
}

/* The ranks that share a copy of a unit: neighbours. All ranks process the same units in the same
 * order, and so create their parts together. */
static status_t find_group(struct moving *moving, int shards, struct comm **comm)
{
    if (shards == moving->world) {
        *comm = moving->comm;
        return NULL;
    }
    if (moving->part == NULL || comm_world(moving->part) != shards) {
        comm_free(moving->part);
        moving->part = NULL;
        AUTO_FREE int *ranks = mem_alloc_array((size_t)shards, sizeof *ranks);
        for (int i = 0; i < shards; i++) ranks[i] = moving->rank / shards * shards + i;
        TRY(comm_split(moving->comm, ranks, shards, &moving->part));
    }
    *comm = moving->part;
    return NULL;
}

static status_t move_array(struct moving *moving, int unit, int slot, const float *shard)
{
    const struct flat_parameter *flat = &moving->from_units->units[unit].flat;
    bool offloaded = plan_offloads(executor_plan(moving->from), unit);
    const struct slot_layout layout = slot_layout_of(&flat->slots, slot);
    int shards = shard_count(flat);
    if (shards == 1) {
        TRY(keep(moving, flat, slot, 0, layout.words, shard, offloaded));
        return lane_wait(moving->lane, moving->timeout_ms);
    }
    struct comm *comm;
    TRY(find_group(moving, shards, &comm));
    int64_t piece = piece_elements(shards);
    for (int64_t at = 0; at < layout.words; at += piece) {
        int64_t count = layout.words - at < piece ? layout.words - at : piece;
        const float *own = shard + at;
        if (offloaded) {
            float *uploaded = moving->buffer + count * shards;
            TRY(lane_copy(moving->lane, uploaded, own, (uint64_t)count * sizeof *own));
            own = uploaded;
        }
        TRY(comm_all_gather(comm, moving->lane, own, moving->buffer, (size_t)count));
        for (int s = 0; s < shards; s++) {
            int64_t begin = slot_part(&layout, s) + at, end = slot_part(&layout, s + 1);
            if (begin + count < end) end = begin + count;
            TRY(keep(moving, flat, slot, begin, end, moving->buffer + s * count, false));
        }
        /* The collective has its own deadline, whose error says more. */
        TRY(lane_wait(moving->lane, 2 * moving->timeout_ms + 1000));
    }
    return NULL;
}

static status_t move_all(struct moving *moving, int slots)
{
    for (int u = 0; u < moving->from_units->unit_count; u++) {
        for (int slot = -1; slot < slots; slot++) {
            const float *shard = executor_unit_state(moving->from, u, slot);
            if (shard != NULL)
                TRY(status_wrap(move_array(moving, u, slot, shard), "moving unit %s",
                                moving->from_units->units[u].name));
        }
    }
    return NULL;
}

status_t relayout(struct device *device, const struct executor *from, struct executor *to,
                  struct comm *comm, struct lane_queue *lane, int64_t timeout_ms, uint64_t *peak)
{
    const struct plan *old = executor_plan(from), *new = executor_plan(to);
    if (old->model != new->model || old->options.world != new->options.world ||
        old->options.rank != new->options.rank ||
        old->options.optimizer_slots != new->options.optimizer_slots ||
        old->options.state != new->options.state)
        return status_new(STATUS_INTERNAL, "the new plan is not of the same job");
    struct moving moving = {.from = from,
                            .to = to,
                            .from_units = old->units,
                            .to_units = new->units,
                            .rank = old->options.rank,
                            .world = old->options.world,
                            .comm = comm,
                            .lane = lane,
                            .timeout_ms = timeout_ms};
    uint64_t bytes = (uint64_t)buffer_elements(old) * sizeof(float);
    if (bytes > 0) TRY(device_allocate(device, bytes, (void **)&moving.buffer));
    if (peak != NULL) *peak = device_allocated_bytes(device);
    lane_label(lane, "re-laying out the units");
    status_t status = move_all(&moving, old->options.optimizer_slots);
    /* After an error the lane may still have work that uses the buffer. */
    if (status != NULL) status_free(lane_wait(lane, timeout_ms));
    else status = executor_round_parameters(to);
    comm_free(moving.part);
    lane_label(lane, NULL);
    device_release(device, moving.buffer);
    return status;
}
