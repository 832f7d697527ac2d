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
#include "checkpoint/state_entries.h"

enum { PIECE_BYTES = 1 << 20 };

/* The communicator's own deadline ends a gather whose peers have failed; this one only bounds a
 * lane that never runs. */
enum { LANE_TIMEOUT_MS = 24 * 60 * 60 * 1000 };

struct part { /* one unit's */
    const float
        *values; /* (elements): this rank's shard, or the whole flat parameter with no_shard */
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
    for (int i = 0; i < snapshot->part_count; i++) free(snapshot->parts[i].copy);
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

/* `slot`: of the average; -1: the parameters, which are also taken of units without an average. Only parameters can be
 * borrowed. */
static status_t take_part(struct executor *executor, const struct plan *plan, int unit, int slot, bool borrow,
                          struct part *part)
{
    part->elements = executor_shard_elements(executor, unit);
    part->shard_world = plan->units->units[unit].shard_world;
    if (part->elements == 0) return NULL;
    const struct slot_layout *slots = &plan->units->units[unit].flat.slots;
    bool base = slots->base != BASE_F32;
    if (borrow && !base && !slots->rounded && executor_in_host_memory(executor, unit)) {
        part->values = executor_unit_state(executor, unit, -1);
        return NULL;
    }
    part->values = part->copy = malloc(part->elements * sizeof *part->values);
    if (part->copy == NULL)
        return status_no_memory("to copy the %zu parameters that this rank holds of unit %s",
                                part->elements, plan->units->units[unit].name);
    if (base) return executor_read_shard(executor, unit, part->copy);
    if (executor_unit_state(executor, unit, slot) == NULL) slot = -1;
    if (slot < 0) return executor_read_shard(executor, unit, part->copy);
    return executor_read_slot(executor, unit, slot, part->copy);
}

static struct snapshot *take(struct executor *executor, uint64_t step, int slot, bool borrow)
{
    const struct plan *plan = executor_plan(executor);
    struct snapshot *snapshot = mem_alloc(sizeof *snapshot);
    snapshot->step = step;
    snapshot->rank = plan->options.rank;
    snapshot->sharded = plan_is_sharded(plan);
    snapshot->part_count = plan->units->unit_count;
    snapshot->parts = mem_alloc_array((size_t)snapshot->part_count, sizeof *snapshot->parts);
    snapshot->entries = state_entries_list(plan, &snapshot->entry_count);
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

/* `values`: from the stretch's begin on. */
static status_t write_stretch(const struct snapshot *snapshot, const struct state_stretch *stretch,
                              const float *values, const struct state_dict_sink *sink)
{
    for (int i = stretch->first; i < stretch->first + stretch->count; i++) {
        const struct state_entry *entry = &snapshot->entries[i];
        size_t elements = (size_t)state_entry_elements(entry);
        if (elements == 0) continue;
        TRY(write_bytes(sink, values + ((size_t)entry->offset - stretch->begin),
                        elements * sizeof *values));
    }
    return NULL;
}

/* Memory for the largest gather, on rank 0. */
static status_t allocate_gathered(const struct snapshot *snapshot, float **gathered)
{
    size_t largest = 1;
    for (int i = 0; i < snapshot->entry_count;) {
        struct state_stretch stretch = find_stretch(snapshot, i);
        i += stretch.count;
        if (stretch.part->shard_world == 1 || stretch.end == stretch.begin) continue;
        size_t elements = find_window(&stretch).count * (size_t)stretch.part->shard_world;
        if (elements > largest) largest = elements;
    }
    *gathered = malloc(largest * sizeof **gathered);
    if (*gathered == NULL) return status_no_memory("to gather %zu parameters", largest);
    return NULL;
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
                               const struct state_stretch *stretch, float *gathered,
                               const float **values)
{
    const struct part *part = stretch->part;
    *values = part->values;
    if (stretch->end == stretch->begin) return NULL;
    if (part->shard_world == 1) {
        *values += stretch->begin;
        return NULL;
    }
    struct comm *comm;
    TRY(find_comm(gathering, part->shard_world, &comm));
    int rank = comm_rank(gathering->all);
    if (rank >= part->shard_world) return NULL;
    struct state_window window = find_window(stretch);
    const float *own = part->values + (window.is_one || rank == window.first ? window.start : 0);
    if (rank == 0)
        *values = gathered + (size_t)window.first * window.count +
                  (stretch->begin % part->elements - window.start);
    TRY(comm_gather(comm, lane, own, gathered, window.count, 0));
    return lane_wait(lane, LANE_TIMEOUT_MS);
}

static status_t stream(const struct snapshot *snapshot, struct comm *comm, struct lane_queue *lane,
                       float *gathered, const struct state_dict_sink *sink)
{
    bool root = snapshot->rank == 0;
    status_t sink_status = root ? write_header(snapshot, sink) : NULL;
    status_t status = NULL;
    struct state_gathering gathering = {.all = comm};
    for (int i = 0; i < snapshot->entry_count && status == NULL;) {
        struct state_stretch stretch = find_stretch(snapshot, i);
        const float *values = NULL;
        status = gather_stretch(&gathering, lane, &stretch, gathered, &values);
        if (root && status == NULL && sink_status == NULL)
            sink_status = write_stretch(snapshot, &stretch, values, sink);
        i += stretch.count;
    }
    for (int i = 0; i < gathering.part_count; i++) comm_free(gathering.parts[i].comm);
    free(gathering.parts);
    return status_first(sink_status, status);
}

status_t state_dict_stream(const struct snapshot *snapshot, struct comm *comm,
                           struct lane_queue **lane, const struct state_dict_sink *sink)
{
    bool root = snapshot->rank == 0;
    if (!snapshot->sharded) {
        if (!root) return NULL;
        if (snapshot->failed != NULL) return status_copy(snapshot->failed);
        return stream(snapshot, NULL, NULL, NULL, sink);
    }
    AUTO_FREE float *gathered = NULL;
    status_t mine = status_copy(snapshot->failed);
    if (root && mine == NULL)
        mine = status_wrap(allocate_gathered(snapshot, &gathered), "rank 0");
    const struct agreement ranks = {comm, lane, LANE_TIMEOUT_MS};
    status_t status = agreement_reach(&ranks, &mine);
    if (status == NULL && mine == NULL) status = stream(snapshot, comm, *lane, gathered, sink);
    return status_first(mine, status);
}
