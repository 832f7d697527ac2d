/*
 * The full state_dict, streamed; see state_dict.h. A snapshot copies everything that it needs,
 * shapes and names too, so it outlives the plan and, unless its values are borrowed, the executor
 * that it was taken from: it may be streamed from another thread while training continues or is
 * already over.
 */
#include "checkpoint/state_dict.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/agreement.h"
#include "runtime/base.h"

enum { PIECE_BYTES = 1 << 20 };

/* The communicator's own deadline ends a gather whose peers have failed; this one only bounds a
 * lane that never runs. */
enum { LANE_TIMEOUT_MS = 24 * 60 * 60 * 1000 };

struct part { /* one unit's */
    const float *values; /* this rank's shard, or the whole flat parameter with no_shard, as it is
                          * kept: `elements` values, or in the words of: */
    bool packed;
    struct base_part kept;
    float *copy; /* owned: the same; NULL: the executor's own */
    size_t elements;
    int shard_world; /* ranks that have the unit together: the first of the group, and their copies
                      */
};

struct snapshot {
    uint64_t step;
    int rank;
    bool sharded; /* the values are spread over the ranks */
    struct part *parts;
    int part_count;
    struct state_entry *entries; /* in the file's order */
    int entry_count;
    status_t failed; /* why there are no values */
};

void snapshot_free(struct snapshot *snapshot)
{
    if (snapshot == NULL) return;
    for (int i = 0; i < snapshot->part_count; i++) {
        free(snapshot->parts[i].copy);
        base_part_deinit(&snapshot->parts[i].kept);
    }
    free(snapshot->parts);
    state_entries_free(snapshot->entries, snapshot->entry_count);
    status_free(snapshot->failed);
    free(snapshot);
}

status_t snapshot_failure(const struct snapshot *snapshot)
{
    return status_copy(snapshot->failed);
}

bool snapshot_is_sharded(const struct snapshot *snapshot)
{
    return snapshot->sharded;
}

/* `slot`: of the average; -1: the parameters, which are also taken of units without an average.
 * Only parameters can be borrowed. What is kept in another type than f32 is copied as it is. */
static status_t take_part(struct executor *executor, const struct plan *plan, int unit, int slot,
                          bool borrow, struct part *part)
{
    part->elements = executor_shard_elements(executor, unit);
    if (part->elements == 0) return NULL;
    if (slot >= 0 && executor_unit_state(executor, unit, slot) == NULL) slot = -1;
    part->packed &= slot < 0;
    if (borrow && executor_in_host_memory(executor, unit)) {
        part->values = executor_unit_state(executor, unit, -1);
        return NULL;
    }
    part->values = part->copy =
        malloc(executor_slot_words(executor, unit, slot) * sizeof *part->copy);
    if (part->copy == NULL)
        return status_no_memory("to copy the %zu parameters that this rank holds of unit %s",
                                part->elements, plan->units->units[unit].name);
    return executor_read_slot(executor, unit, slot, part->copy);
}

/* A snapshot without values. */
static struct snapshot *outline(const struct plan *plan)
{
    struct snapshot *snapshot = mem_alloc(sizeof *snapshot);
    snapshot->rank = plan->options.rank;
    snapshot->sharded = plan_is_sharded(plan);
    snapshot->part_count = plan->units->unit_count;
    snapshot->parts = mem_alloc_array((size_t)snapshot->part_count, sizeof *snapshot->parts);
    snapshot->entries = state_entries_list(plan, &snapshot->entry_count);
    for (int i = 0; i < snapshot->part_count; i++) {
        const struct unit *unit = &plan->units->units[i];
        const struct slot_layout layout = slot_layout_of(&unit->flat.slots, -1);
        struct part *part = &snapshot->parts[i];
        part->elements = (size_t)unit->flat.shard;
        part->shard_world = unit->shard_world;
        part->packed = layout.base != BASE_F32 || layout.halves;
        if (part->packed) base_part_init(&part->kept, &layout, snapshot->rank % unit->shard_world);
    }
    return snapshot;
}

static struct snapshot *take(struct executor *executor, uint64_t step, int slot, bool borrow)
{
    const struct plan *plan = executor_plan(executor);
    struct snapshot *snapshot = outline(plan);
    snapshot->step = step;
    AUTO_FREE bool *has_entries = mem_alloc_array((size_t)snapshot->part_count + 1, sizeof(bool));
    for (int e = 0; e < snapshot->entry_count; e++) has_entries[snapshot->entries[e].unit] = true;
    status_t status = borrow ? executor_settle(executor) : NULL;
    for (int i = 0; i < snapshot->part_count && status == NULL; i++)
        if (has_entries[i])
            status = take_part(executor, plan, i, slot, borrow, &snapshot->parts[i]);
    snapshot->failed = status_wrap(status, "rank %d", snapshot->rank);
    /* The part that was allocated was too much. */
    for (int i = 0; i < snapshot->part_count && status != NULL; i++) {
        free(snapshot->parts[i].copy);
        snapshot->parts[i].values = snapshot->parts[i].copy = NULL;
    }
    return snapshot;
}

struct snapshot *snapshot_take(struct executor *executor, uint64_t step)
{
    return take(executor, step, -1, false);
}

struct snapshot *snapshot_take_average(struct executor *executor, uint64_t step)
{
    return take(executor, step, plan_average_slot(executor_plan(executor)), false);
}

struct snapshot *snapshot_borrow(struct executor *executor, uint64_t step)
{
    return take(executor, step, -1, true);
}

static status_t write_bytes(const struct state_dict_sink *sink, const void *bytes, size_t size)
{
    const char *from = bytes;
    while (size > 0) {
        size_t count = size < PIECE_BYTES ? size : PIECE_BYTES;
        TRY(sink->write(sink->user, from, count));
        from += count;
        size -= count;
    }
    return NULL;
}

static status_t write_header(const struct snapshot *snapshot, const struct state_dict_sink *sink)
{
    AUTO(buf_deinit) struct buf header = {0};
    uint64_t bytes = state_header_write(&header, snapshot->entries, snapshot->entry_count);
    TRY(sink->begin(sink->user, bytes, snapshot->step));
    return write_bytes(sink, header.data, header.length);
}

/* Entries that follow each other in the file, and in one unit. */
struct state_stretch {
    int first, count;
    const struct part *part;
    size_t begin, end; /* of their values in the unit's flat parameter */
};

static size_t end_of(const struct state_entry *entry)
{
    return (size_t)(entry->offset + state_entry_elements(entry));
}

static struct state_stretch find_stretch(const struct snapshot *snapshot, int first)
{
    const struct state_entry *entry = &snapshot->entries[first];
    struct state_stretch stretch = {.first = first,
                                    .part = &snapshot->parts[entry->unit],
                                    .begin = (size_t)entry->offset,
                                    .end = (size_t)entry->offset};
    for (; first < snapshot->entry_count; entry++, first++) {
        if (entry->unit != snapshot->entries[stretch.first].unit ||
            (size_t)entry->offset < stretch.end)
            break;
        stretch.end = end_of(entry);
        stretch.count++;
    }
    return stretch;
}

/* What a gather takes of each rank's shard to have a stretch: `count` elements, on rank `first`
 * from its element `start` on. The other ranks send theirs from the same one if the stretch is in
 * one shard, and their first ones otherwise, so that what counts arrives end to end. */
struct state_window {
    int first;
    size_t start, count;
    bool is_one;
};

static struct state_window find_window(const struct state_stretch *stretch)
{
    size_t shard = stretch->part->elements, first = stretch->begin / shard;
    size_t last = (stretch->end - 1) / shard, start = stretch->begin % shard;
    if (first == last)
        return (struct state_window){(int)first, start, stretch->end - stretch->begin, true};
    size_t tail = shard - start, head = stretch->end - last * shard;
    size_t count = last > first + 1 ? shard : tail > head ? tail : head;
    return (struct state_window){(int)first, shard - count, count, false};
}

/* What a stream needs beside the shards, in values. */
struct stream_memory {
    size_t gathered_count, sent_count;
    float *gathered; /* on rank 0: what all ranks sent of a stretch */
    float *sent;     /* this rank's part of it, or a piece, of what is kept in another type */
};

/* `values`: from the stretch's begin on; NULL: this rank keeps all of it, in another type. */
static status_t write_stretch(const struct snapshot *snapshot, const struct state_stretch *stretch,
                              const float *values, const struct stream_memory *memory,
                              const struct state_dict_sink *sink)
{
    const struct part *part = stretch->part;
    for (int i = stretch->first; i < stretch->first + stretch->count; i++) {
        const struct state_entry *entry = &snapshot->entries[i];
        size_t elements = (size_t)state_entry_elements(entry), from = (size_t)entry->offset;
        size_t most = values != NULL ? elements : PIECE_BYTES / sizeof *values;
        for (size_t at = 0; at < elements; at += most) {
            size_t count = elements - at < most ? elements - at : most;
            const float *piece = memory->sent;
            if (values != NULL) piece = values + (from - stretch->begin);
            else
                base_part_read(&part->kept, part->values, (int64_t)(from + at), (int64_t)count,
                               memory->sent);
            TRY(write_bytes(sink, piece, count * sizeof *values));
        }
    }
    return NULL;
}

/* For the largest gather or, of whole units in another type, a piece. */
static void count_memory(const struct snapshot *snapshot, struct stream_memory *memory)
{
    bool root = snapshot->rank == 0;
    size_t piece = PIECE_BYTES / sizeof *memory->sent;
    *memory = (struct stream_memory){0};
    for (int i = 0; i < snapshot->entry_count;) {
        struct state_stretch stretch = find_stretch(snapshot, i);
        i += stretch.count;
        if (stretch.end == stretch.begin) continue;
        const struct part *part = stretch.part;
        bool whole = part->shard_world == 1;
        size_t alone = stretch.end - stretch.begin < piece ? stretch.end - stretch.begin : piece;
        size_t count = whole ? alone : find_window(&stretch).count;
        size_t all = whole || !root ? 0 : count * (size_t)part->shard_world;
        if (all > memory->gathered_count) memory->gathered_count = all;
        if (part->packed && (root || !whole) && count > memory->sent_count)
            memory->sent_count = count;
    }
}

static status_t allocate(struct stream_memory *memory)
{
    if (memory->gathered_count > 0) {
        memory->gathered = malloc(memory->gathered_count * sizeof *memory->gathered);
        if (memory->gathered == NULL)
            return status_no_memory("to gather %zu parameters", memory->gathered_count);
    }
    if (memory->sent_count == 0) return NULL;
    memory->sent = malloc(memory->sent_count * sizeof *memory->sent);
    if (memory->sent == NULL)
        return status_no_memory("for %zu parameters in f32", memory->sent_count);
    return NULL;
}

uint64_t state_dict_stream_bytes(const struct plan *plan)
{
    struct snapshot *snapshot = outline(plan);
    struct stream_memory memory;
    count_memory(snapshot, &memory);
    snapshot_free(snapshot);
    return (memory.gathered_count + memory.sent_count) * sizeof(float);
}

/* The communicators of a stream: one for units that are spread over all ranks, and the parts of it
 * for those that are not. */
struct state_gathering {
    struct comm *all;
    struct comm_part {
        int ranks;
        struct comm *comm;
    } * parts;
    int part_count, capacity;
};

/* Every rank makes its part, also where rank 0 is not in it and nothing will be gathered. */
static status_t find_comm(struct state_gathering *gathering, int ranks, struct comm **comm)
{
    *comm = gathering->all;
    if (ranks == comm_world(gathering->all)) return NULL;
    for (int i = 0; i < gathering->part_count; i++)
        if (gathering->parts[i].ranks == ranks) {
            *comm = gathering->parts[i].comm;
            return NULL;
        }
    AUTO_FREE int *members = mem_alloc_array((size_t)ranks, sizeof *members);
    for (int i = 0; i < ranks; i++) members[i] = comm_rank(gathering->all) / ranks * ranks + i;
    TRY(comm_split(gathering->all, members, ranks, comm));
    MEM_GROW(gathering->parts, gathering->part_count, gathering->capacity);
    gathering->parts[gathering->part_count++] = (struct comm_part){.ranks = ranks, .comm = *comm};
    return NULL;
}

/* The stretch's values as rank 0 then has them, in *values, from itself and the ranks that share
 * the unit; on the other ranks *values is undefined. */
static status_t gather_stretch(struct state_gathering *gathering, struct lane_queue *lane,
                               const struct state_stretch *stretch,
                               const struct stream_memory *memory, const float **values)
{
    const struct part *part = stretch->part;
    *values = part->values;
    if (stretch->end == stretch->begin) return NULL;
    if (part->shard_world == 1) {
        *values = part->packed ? NULL : part->values + stretch->begin;
        return NULL;
    }
    struct comm *comm;
    TRY(find_comm(gathering, part->shard_world, &comm));
    int rank = comm_rank(gathering->all);
    if (rank >= part->shard_world) return NULL;
    struct state_window window = find_window(stretch);
    size_t start = window.is_one || rank == window.first ? window.start : 0;
    const float *own = part->packed ? memory->sent : part->values + start;
    if (part->packed)
        base_part_read(&part->kept, part->values, (int64_t)start, (int64_t)window.count,
                       memory->sent);
    if (rank == 0)
        *values = memory->gathered + (size_t)window.first * window.count +
                  (stretch->begin % part->elements - window.start);
    TRY(comm_gather(comm, lane, own, memory->gathered, window.count, 0));
    return lane_wait(lane, LANE_TIMEOUT_MS);
}

static status_t stream(const struct snapshot *snapshot, struct comm *comm, struct lane_queue *lane,
                       const struct stream_memory *memory, const struct state_dict_sink *sink)
{
    bool root = snapshot->rank == 0;
    status_t sink_status = root ? write_header(snapshot, sink) : NULL;
    status_t status = NULL;
    struct state_gathering gathering = {.all = comm};
    for (int i = 0; i < snapshot->entry_count && status == NULL;) {
        struct state_stretch stretch = find_stretch(snapshot, i);
        const float *values = NULL;
        status = gather_stretch(&gathering, lane, &stretch, memory, &values);
        if (root && status == NULL && sink_status == NULL)
            sink_status = write_stretch(snapshot, &stretch, values, memory, sink);
        i += stretch.count;
    }
    for (int i = 0; i < gathering.part_count; i++) comm_free(gathering.parts[i].comm);
    free(gathering.parts);
    return status_first(sink_status, status);
}

static status_t stream_with(const struct snapshot *snapshot, struct comm *comm,
                            struct lane_queue **lane, struct stream_memory *memory,
                            const struct state_dict_sink *sink)
{
    bool root = snapshot->rank == 0;
    status_t mine = status_copy(snapshot->failed);
    if (mine == NULL) mine = status_wrap(allocate(memory), "rank %d", snapshot->rank);
    if (!snapshot->sharded) {
        if (mine == NULL && root) mine = stream(snapshot, NULL, NULL, memory, sink);
        return mine;
    }
    const struct agreement ranks = {comm, lane, LANE_TIMEOUT_MS};
    status_t status = agreement_reach(&ranks, &mine);
    if (status == NULL && mine == NULL) status = stream(snapshot, comm, *lane, memory, sink);
    return status_first(mine, status);
}

status_t state_dict_stream(const struct snapshot *snapshot, struct comm *comm,
                           struct lane_queue **lane, const struct state_dict_sink *sink)
{
    struct stream_memory memory;
    if (!snapshot->sharded && snapshot->rank != 0) return NULL;
    count_memory(snapshot, &memory);
    status_t status = stream_with(snapshot, comm, lane, &memory, sink);
    free(memory.gathered);
    free(memory.sent);
    return status;
}

/* ---- state entries ---- */

struct state_entry *state_entries_list(const struct plan *plan, int *count)
{
    const struct model *model = plan->model;
    const struct unit_set *units = plan->units;
    *count = 0;
    while (*count < model->parameter_count && !model->parameters[*count].reference) ++*count;
    struct state_entry *entries = mem_alloc_array((size_t)*count + 1, sizeof *entries);
    for (int i = 0; i < *count; i++) {
        const struct parameter *parameter = &model->parameters[i];
        int unit = units->unit_of_parameter[i], owner = i;
        while (model->parameters[owner].tied_to >= 0) owner = model->parameters[owner].tied_to;
        entries[i] =
            (struct state_entry){.name = mem_strdup(parameter->name),
                                 .dim_count = parameter->type.dim_count,
                                 .count = parameter->buffer == MODEL_BUFFER_COUNT,
                                 .unit = unit,
                                 .offset = flat_parameter_offset(&units->units[unit].flat, owner)};
        memcpy(entries[i].dims, parameter->type.dims, sizeof entries[i].dims);
    }
    return entries;
}
