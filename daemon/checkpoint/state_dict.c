/*
 * The full state_dict, streamed; see state_dict.h. A snapshot copies everything that it needs,
 * shapes and names too, so it outlives the plan and the executor that it was taken from: it may be
 * streamed from another thread while training continues or is already over.
 */
#include "checkpoint/state_dict.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/agreement.h"
#include "checkpoint/state_header.h"

enum { PIECE_BYTES = 1 << 20 };

/* The communicator's own deadline ends a gather whose peers have failed; this one only bounds a
 * lane that never runs. */
enum { LANE_TIMEOUT_MS = 24 * 60 * 60 * 1000 };

/* A state_dict entry and where its values lie in its unit's flat parameter. */
struct piece {
    char *name;
    bool count; /* a 64-bit integer */
    int dim_count;
    int64_t dims[TENSOR_MAX_DIMS];
    size_t offset, elements;
};

struct part {      /* one unit's */
    float *values; /* (elements): this rank's shard, or the whole flat parameter with no_shard */
    size_t elements;
    int shard_world; /* ranks that have the unit together: the first of the group, and their copies
                      */
    struct piece *pieces;
    int piece_count;
};

struct snapshot {
    uint64_t step;
    int rank, world;
    bool sharded; /* the values are spread over the ranks */
    struct part *parts;
    int part_count;
    status_t failed; /* why there are no values */
};

void snapshot_free(struct snapshot *snapshot)
{
    if (snapshot == NULL) return;
    for (int i = 0; i < snapshot->part_count; i++) {
        struct part *part = &snapshot->parts[i];
        for (int j = 0; j < part->piece_count; j++) free(part->pieces[j].name);
        free(part->pieces);
        free(part->values);
    }
    free(snapshot->parts);
    status_free(snapshot->failed);
    free(snapshot);
}

bool snapshot_is_sharded(const struct snapshot *snapshot)
{
    return snapshot->sharded;
}

uint64_t snapshot_bytes(const struct snapshot *snapshot)
{
    uint64_t bytes = 0;
    for (int i = 0; i < snapshot->part_count; i++)
        bytes += snapshot->parts[i].elements * sizeof(float);
    return bytes;
}

static size_t offset_in_flat(const struct flat_parameter *flat, int parameter)
{
    for (int i = 0; i < flat->parameter_count; i++)
        if (flat->parameters[i] == parameter) return (size_t)flat->offsets[i];
    return SIZE_MAX;
}

/* The entries whose values unit `unit` holds, in state_dict order; a tied name has its owner's
 * values. */
static status_t add_pieces(const struct model *model, const struct unit_set *units, int unit,
                           struct part *part)
{
    const struct flat_parameter *flat = &units->units[unit].flat;
    int capacity = 0;
    for (int i = 0; i < model->parameter_count; i++) {
        const struct parameter *parameter = &model->parameters[i];
        if (units->unit_of_parameter[i] != unit) continue;
        int owner = i;
        while (model->parameters[owner].tied_to >= 0) owner = model->parameters[owner].tied_to;
        size_t offset = offset_in_flat(flat, owner);
        if (offset == SIZE_MAX)
            return status_new(STATUS_INTERNAL, "unit %s does not hold the parameter %s",
                              units->units[unit].name, parameter->name);
        MEM_GROW(part->pieces, part->piece_count, capacity);
        struct piece *piece = &part->pieces[part->piece_count++];
        *piece = (struct piece){.name = mem_strdup(parameter->name),
                                .dim_count = parameter->type.dim_count,
                                .offset = offset,
                                .elements = (size_t)tensor_element_count(&parameter->type)};
        memcpy(piece->dims, parameter->type.dims, sizeof piece->dims);
        piece->count = parameter->buffer == MODEL_BUFFER_COUNT;
    }
    return NULL;
}

static status_t take_part(struct executor *executor, const struct plan *plan, int unit,
                          struct part *part)
{
    TRY(add_pieces(plan->model, plan->units, unit, part));
    part->elements = executor_shard_elements(executor, unit);
    part->shard_world = plan->units->units[unit].shard_world;
    if (part->elements == 0) return NULL;
    part->values = malloc(part->elements * sizeof *part->values);
    if (part->values == NULL)
        return status_new(STATUS_RESOURCE_EXHAUSTED,
                          "no memory to copy the %zu parameters that this rank holds of unit %s",
                          part->elements, plan->units->units[unit].name);
    return executor_read_shard(executor, unit, part->values);
}

struct snapshot *snapshot_take(struct executor *executor, uint64_t step)
{
    const struct plan *plan = executor_plan(executor);
    struct snapshot *snapshot = mem_alloc(sizeof *snapshot);
    snapshot->step = step;
    snapshot->rank = plan->options.rank;
    snapshot->world = plan->options.world;
    snapshot->sharded = plan_is_sharded(plan);
    snapshot->part_count = plan->units->unit_count;
    snapshot->parts = mem_alloc_array((size_t)snapshot->part_count, sizeof *snapshot->parts);
    status_t status = NULL;
    for (int i = 0; i < snapshot->part_count && status == NULL; i++)
        status = take_part(executor, plan, i, &snapshot->parts[i]);
    snapshot->failed = status_wrap(status, "rank %d", snapshot->rank);
    /* The part that was allocated was too much. */
    for (int i = 0; i < snapshot->part_count && status != NULL; i++) {
        free(snapshot->parts[i].values);
        snapshot->parts[i].values = NULL;
    }
    return snapshot;
}

static status_t write_pieces(const struct state_dict_sink *sink, const void *bytes, size_t size)
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

static status_t write_header(const struct snapshot *snapshot, const char *job,
                             const struct state_dict_sink *sink)
{
    int count = 0;
    for (int i = 0; i < snapshot->part_count; i++) count += snapshot->parts[i].piece_count;
    struct safetensors_entry *entries = mem_alloc_array((size_t)count, sizeof *entries);
    int filled = 0;
    for (int i = 0; i < snapshot->part_count; i++)
        for (int j = 0; j < snapshot->parts[i].piece_count; j++) {
            const struct piece *piece = &snapshot->parts[i].pieces[j];
            struct safetensors_entry *entry = &entries[filled++];
            entry->name = piece->name;
            entry->dim_count = piece->dim_count;
            memcpy(entry->dims, piece->dims, sizeof entry->dims);
            if (piece->count) state_header_count(entry);
        }
    struct buf header = {0};
    state_header_write(&header, entries, count, snapshot->step, job);
    uint64_t data = count > 0 ? entries[count - 1].end : 0;
    free(entries);
    status_t status = sink->begin(sink->user, header.length + data, snapshot->step);
    if (status == NULL) status = write_pieces(sink, header.data, header.length);
    buf_deinit(&header);
    return status;
}

static status_t write_part(const struct part *part, const float *flat,
                           const struct state_dict_sink *sink)
{
    for (int i = 0; i < part->piece_count; i++)
        TRY(write_pieces(sink, flat + part->pieces[i].offset,
                         part->pieces[i].elements * sizeof *flat));
    return NULL;
}

/* Memory for the largest unit, on rank 0. */
static status_t allocate_unit(const struct snapshot *snapshot, float **flat)
{
    size_t largest = 1;
    for (int i = 0; i < snapshot->part_count; i++) {
        const struct part *part = &snapshot->parts[i];
        size_t elements = part->elements * (size_t)part->shard_world;
        if (part->shard_world > 1 && elements > largest) largest = elements;
    }
    *flat = malloc(largest * sizeof **flat);
    if (*flat == NULL)
        return status_new(STATUS_RESOURCE_EXHAUSTED, "no memory to gather a unit of %zu parameters",
                          largest);
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
    int *members = mem_alloc_array((size_t)ranks, sizeof *members);
    for (int i = 0; i < ranks; i++) members[i] = comm_rank(gathering->all) / ranks * ranks + i;
    status_t status = comm_split(gathering->all, members, ranks, comm);
    free(members);
    if (status != NULL) return status;
    MEM_GROW(gathering->parts, gathering->part_count, gathering->capacity);
    gathering->parts[gathering->part_count++] = (struct comm_part){.ranks = ranks, .comm = *comm};
    return NULL;
}

/* The unit as rank 0 then has it, in *whole, from itself and the ranks that share it; on the other
 * ranks *whole is undefined. */
static status_t gather_part(struct state_gathering *gathering, struct lane_queue *lane,
                            const struct part *part, float *flat, const float **whole)
{
    *whole = part->values;
    if (part->shard_world == 1) return NULL;
    struct comm *comm;
    TRY(find_comm(gathering, part->shard_world, &comm));
    *whole = flat;
    if (comm_rank(gathering->all) >= part->shard_world) return NULL;
    TRY(comm_gather(comm, lane, part->values, flat, part->elements, 0));
    return lane_wait(lane, LANE_TIMEOUT_MS);
}

static status_t stream_sharded(const struct snapshot *snapshot, struct comm *comm,
                               struct lane_queue *lane, float *flat, const char *job,
                               const struct state_dict_sink *sink)
{
    bool root = snapshot->rank == 0;
    status_t sink_status = root ? write_header(snapshot, job, sink) : NULL;
    status_t status = NULL;
    struct state_gathering gathering = {.all = comm};
    for (int i = 0; i < snapshot->part_count && status == NULL; i++) {
        const struct part *part = &snapshot->parts[i];
        if (part->elements == 0) continue;
        const float *whole;
        status = gather_part(&gathering, lane, part, flat, &whole);
        if (root && status == NULL && sink_status == NULL)
            sink_status = write_part(part, whole, sink);
    }
    for (int i = 0; i < gathering.part_count; i++) comm_free(gathering.parts[i].comm);
    free(gathering.parts);
    return status_first(sink_status, status);
}

status_t state_dict_stream(const struct snapshot *snapshot, struct comm *comm,
                           struct lane_queue **lane, const char *job,
                           const struct state_dict_sink *sink)
{
    bool root = snapshot->rank == 0;
    if (!snapshot->sharded) {
        if (!root) return NULL;
        if (snapshot->failed != NULL) return status_copy(snapshot->failed);
        TRY(write_header(snapshot, job, sink));
        for (int i = 0; i < snapshot->part_count; i++)
            TRY(write_part(&snapshot->parts[i], snapshot->parts[i].values, sink));
        return NULL;
    }
    float *flat = NULL;
    status_t mine = status_copy(snapshot->failed);
    if (root && mine == NULL) mine = allocate_unit(snapshot, &flat);
    const struct agreement ranks = {comm, lane, LANE_TIMEOUT_MS};
    status_t status = agreement_reach(&ranks, &mine);
    if (status == NULL && mine == NULL)
        status = stream_sharded(snapshot, comm, *lane, flat, job, sink);
    free(flat);
    return status_first(mine, status);
}
