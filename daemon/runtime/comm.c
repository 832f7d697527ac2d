/*
 * Communicators, the part shared by all kinds: collectives are numbered when enqueued and run by
 * the lane's thread; a communicator's first failure is sticky. The comm owns its call records and
 * reuses them, so that the steady state allocates nothing.
 */
#include "runtime/comm.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kernels/kernels.h"
#include "runtime/comm_table.h"

const char *comm_kind_name(enum comm_kind kind)
{
    static const char *const names[] = {"all_gather", "reduce_scatter", "all_reduce", "broadcast",
                                        "gather",     "shift",          "exchange",   "barrier"};
    return names[kind];
}

void comm_init(struct comm *comm, const struct comm_table *table, int rank, int world,
               int64_t timeout_ms)
{
    comm->table = table;
    comm->rank = rank;
    comm->world = world;
    comm->timeout_ms = timeout_ms;
    pthread_mutex_init(&comm->lock, NULL);
}

void comm_deinit(struct comm *comm)
{
    for (struct comm_call *call = comm->made, *next; call != NULL; call = next) {
        next = call->next_made;
        free(call);
    }
    status_free(comm->failure);
    buf_deinit(&comm->log);
    pthread_mutex_destroy(&comm->lock);
}

static void leave_whole(struct comm *part)
{
    struct comm *whole = part->whole;
    if (whole == NULL) return;
    pthread_mutex_lock(&whole->lock);
    struct comm **at = &whole->parts;
    while (*at != part) at = &(*at)->next_part;
    *at = part->next_part;
    pthread_mutex_unlock(&whole->lock);
}

void comm_free(struct comm *comm)
{
    if (comm == NULL) return;
    comm_memory_forget(comm);
    leave_whole(comm);
    comm->table->free(comm);
}

struct comm *comm_keep(struct comm *comm)
{
    if (comm == NULL || comm->whole != NULL || comm->table->keep == NULL) {
        comm_free(comm);
        return NULL;
    }
    comm_memory_forget(comm);
    if (comm->table->keep(comm)) return comm;
    comm->table->free(comm);
    return NULL;
}

status_t comm_split(struct comm *comm, const int *ranks, int count, struct comm **result)
{
    int rank = -1;
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= comm->world)
            return status_new(STATUS_INTERNAL, "a part with rank %d of %d", ranks[i], comm->world);
        if (ranks[i] == comm->rank) rank = i;
    }
    if (rank < 0 || comm->whole != NULL)
        return status_new(STATUS_INTERNAL, rank < 0 ? "a part without rank %d" : "a part of a part",
                          comm->rank);
    int number = 1 + comm->splits++ % COMM_PARTS_MAX;
    struct comm *part;
    TRY(comm->table->split(comm, ranks, count, rank, number, &part));
    part->whole = comm;
    part->number = number;
    pthread_mutex_lock(&comm->lock);
    part->next_part = comm->parts;
    comm->parts = part;
    bool aborted = comm->aborted;
    pthread_mutex_unlock(&comm->lock);
    if (aborted) comm_abort(part, "the whole was");
    status_t status = comm_memory_share(comm, part);
    if (status != NULL) {
        comm_free(part);
        return status;
    }
    *result = part;
    return NULL;
}

void comm_count_sent(struct comm *comm, uint64_t bytes)
{
    for (; comm != NULL; comm = comm->whole) atomic_fetch_add(&comm->bytes_sent, bytes);
}

int comm_rank(const struct comm *comm)
{
    return comm->rank;
}

int comm_world(const struct comm *comm)
{
    return comm->world;
}

const char *comm_transport(const struct comm *comm)
{
    return comm->table->name;
}

/*
 * All pieces together take up 1 MiB: on two ranks, pieces of 512 KiB keep the number of messages
 * small, at a cost that the plan of every job includes. A piece is at least 4 KiB.
 */
size_t comm_chunk_elements(int world)
{
    enum { TOTAL_BYTES = 1 << 20, LEAST = 1024, LINE_BYTES = 64 };
    if (world < 2) return LEAST;
    size_t lines = TOTAL_BYTES / 2 / LINE_BYTES / (size_t)(world - 1);
    size_t elements = lines * (LINE_BYTES / sizeof(float));
    return elements > LEAST ? elements : LEAST;
}

uint64_t comm_workspace_bytes(int world)
{
    return world > 1 ? (uint64_t)(world - 1) * 2 * comm_chunk_elements(world) * sizeof(float) : 0;
}

uint64_t comm_staging_bytes(int world)
{
    return COMM_STAGING_BYTES + comm_workspace_bytes(world);
}

uint64_t comm_bytes_sent(const struct comm *comm)
{
    return atomic_load(&comm->bytes_sent);
}

bool comm_is_repeatable(const struct comm *comm)
{
    return comm->table->repeatable;
}

status_t comm_end_recording(struct comm *comm, bool recorded, bool *all, bool *renewed)
{
    *all = *renewed = false;
    if (comm->table->agree == NULL) return NULL;
    status_t status = comm->table->agree(comm, COMM_RECORDING, !recorded, all, renewed);
    if (status != NULL) comm_abort(comm, status_message(status));
    return status;
}

bool comm_scales(const struct comm *comm)
{
    return !comm->table->unscaled;
}

char *comm_failure(struct comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    char *why = comm->failure != NULL ? mem_strdup(status_message(comm->failure)) : NULL;
    pthread_mutex_unlock(&comm->lock);
    return why;
}

void comm_log_enable(struct comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->logging = true;
    pthread_mutex_unlock(&comm->lock);
}

char *comm_log(const struct comm *comm)
{
    pthread_mutex_t *lock = &((struct comm *)comm)->lock;
    pthread_mutex_lock(lock);
    char *text = mem_strdup(buf_text(&comm->log));
    pthread_mutex_unlock(lock);
    return text;
}

static void mark_aborted(struct comm *comm, const char *why)
{
    comm->aborted = true;
    if (comm->failure == NULL)
        comm->failure = status_new(STATUS_ABORTED, "the group was aborted: %s", why);
}

/* Sets every part's reason before waking the first one. Parts are added and removed only under the
 * lock. */
void comm_abort(struct comm *comm, const char *why)
{
    pthread_mutex_lock(&comm->lock);
    mark_aborted(comm, why);
    for (struct comm *part = comm->parts; part != NULL; part = part->next_part) {
        pthread_mutex_lock(&part->lock);
        mark_aborted(part, why);
        pthread_mutex_unlock(&part->lock);
    }
    for (struct comm *part = comm->parts; part != NULL; part = part->next_part)
        part->table->quit(part, why);
    pthread_mutex_unlock(&comm->lock);
    comm->table->quit(comm, why);
}

/* Rounds `count` floats to bf16 in the lower half of their own memory. */
static void pack(float *values, size_t count)
{
    enum { CHUNK = 2048 };
    uint16_t rounded[CHUNK];
    for (size_t start = 0; start < count; start += CHUNK) {
        size_t n = count - start < CHUNK ? count - start : CHUNK;
        kernel_f32_to_bf16(n, rounded, values + start);
        memcpy((char *)values + start * sizeof *rounded, rounded, n * sizeof *rounded);
    }
}

/* Converts back to f32, from the end. */
static void unpack(float *values, size_t count, float scale)
{
    for (size_t i = count; i-- > 0;) {
        uint16_t rounded;
        float value;
        memcpy(&rounded, (char *)values + i * sizeof rounded, sizeof rounded);
        kernel_bf16_to_f32(1, &value, &rounded);
        values[i] = value * scale;
    }
}

/* For a group of one rank: no peers, no waiting. */
static void run_alone_bf16(const struct comm_call *call)
{
    if (call->kind == COMM_ALL_GATHER) return;
    unpack((float *)call->in, call->count, call->scale);
    if (call->in != call->out) memcpy(call->out, call->in, call->count * sizeof(float));
}

/* Prepares a collective on bf16 for the table: rounds `in`. */
static void round_input(const struct comm *comm, struct comm_call *call)
{
    if (call->kind == COMM_ALL_GATHER) {
        uint16_t *own = (uint16_t *)call->out + call->count * (size_t)comm->rank;
        if (call->rounded) memcpy(own, call->in, call->count * sizeof *own);
        else kernel_f32_to_bf16(call->count, own, call->in);
        call->in = (const float *)(const void *)own;
    } else {
        size_t parts = call->kind == COMM_REDUCE_SCATTER ? (size_t)comm->world : 1;
        pack((float *)call->in, call->count * parts);
    }
}

/* For a group of one rank: no peers, no waiting. */
static void run_alone(const struct comm_call *call)
{
    size_t bytes = call->count * sizeof(float);
    if (call->dtype == DTYPE_BF16) {
        run_alone_bf16(call);
        return;
    }
    switch (call->kind) {
    case COMM_ALL_GATHER:
    case COMM_GATHER:
        if (call->in != call->out) memcpy(call->out, call->in, bytes);
        break;
    case COMM_REDUCE_SCATTER:
        kernel_sum_ordered(call->count, call->out, &call->in, 1, call->scale);
        break;
    case COMM_ALL_REDUCE:
        kernel_sum_ordered(call->count, call->out, (const float *const[]){call->out}, 1,
                           call->scale);
        break;
    case COMM_BROADCAST:
    case COMM_SHIFT:    /* there is no distance in such a group */
    case COMM_EXCHANGE: /* see keep_pieces */
    case COMM_BARRIER: break;
    }
}

/* What an exchange moves from this rank to itself. */
static void keep_pieces(const struct comm *comm, const struct comm_call *call)
{
    for (int i = 0; i < call->piece_count; i++) {
        const struct comm_piece *piece = &call->pieces[i];
        const float *source = call->in + piece->source;
        float *target = call->out + piece->target;
        if (piece->from == comm->rank && piece->to == comm->rank && source != target)
            memcpy(target, source, (size_t)piece->count * sizeof *target);
    }
}

/* A failed collective: keeps the first reason; this rank takes no further part. */
static status_t keep_failure(struct comm *comm, status_t status)
{
    pthread_mutex_lock(&comm->lock);
    if (comm->failure != NULL) {
        /* If it was aborted meanwhile, that is the reason, not the transport's error. */
        status_free(status);
        status = status_copy(comm->failure);
    } else {
        comm->failure = status_copy(status);
    }
    pthread_mutex_unlock(&comm->lock);
    comm->table->quit(comm, status_message(status));
    return status;
}

void comm_fail(struct comm *comm, status_t status)
{
    status_free(keep_failure(comm, status));
}

status_t comm_name_call(const struct comm *comm, const struct comm_call *call, status_t status)
{
    const struct comm *whole = comm->whole != NULL ? comm->whole : comm;
    AUTO_FREE char *among = comm != whole ? mem_printf(", among %d", comm->world) : mem_strdup("");
    status = status_wrap(status, "%s number %" PRIu64 " (%zu %s) on rank %d of %d%s",
                         comm_kind_name(call->kind), call->sequence, call->count,
                         call->kind == COMM_BROADCAST ? "bytes" : "elements", whole->rank,
                         whole->world, among);
    return status;
}

static status_t run_unnamed(struct comm *comm, const struct comm_call *queued)
{
    struct comm_call rounded, *call = &rounded;
    rounded = *queued;
    pthread_mutex_lock(&comm->lock);
    status_t status = status_copy(comm->failure);
    pthread_mutex_unlock(&comm->lock);
    if (status == NULL && call->count == 0 && call->kind != COMM_BARRIER) return NULL;
    if (status == NULL && call->dtype == DTYPE_BF16) round_input(comm, call);
    if (status == NULL && call->kind == COMM_EXCHANGE) keep_pieces(comm, call);
    if (status == NULL && comm->world == 1) {
        run_alone(call);
        return NULL;
    }
    if (status == NULL) {
        struct comm *whole = comm->whole != NULL ? comm->whole : comm;
        atomic_store(&whole->kind, (int)call->kind);
        atomic_store(&whole->begun_sequence, call->sequence);
        atomic_store(&whole->begun_ns, clock_monotonic_ns());
        atomic_fetch_add(&whole->begun, 1);
        atomic_store(&whole->waits, true);
        status = comm->table->run(comm, call);
        atomic_store(&whole->waits, false);
        if (status != NULL) status = keep_failure(comm, status);
    }
    return status;
}

struct comm_progress comm_progress(struct comm *comm)
{
    uint64_t begun = atomic_load(&comm->begun);
    return (struct comm_progress){
        .begun = begun,
        .waits = atomic_load(&comm->waits),
        .kind = begun > 0 ? comm_kind_name((enum comm_kind)atomic_load(&comm->kind)) : NULL,
        .sequence = atomic_load(&comm->begun_sequence),
        .since_ns = atomic_load(&comm->begun_ns),
    };
}

status_t comm_run(struct comm *comm, const struct comm_call *wanted)
{
    MUST_ALONE(&comm->user);
    struct comm_call call = *wanted;
    pthread_mutex_lock(&comm->lock);
    call.comm = comm;
    call.sequence = ++comm->sequence;
    pthread_mutex_unlock(&comm->lock);
    return run_unnamed(comm, &call);
}

static status_t run_on_lane(void *argument)
{
    struct comm_call *call = argument;
    struct comm *comm = call->comm;
    status_t status = run_unnamed(comm, call);
    if (status != NULL) status = comm_name_call(comm, call, status);
    pthread_mutex_lock(&comm->lock);
    call->next_free = comm->unused;
    comm->unused = call;
    pthread_mutex_unlock(&comm->lock);
    return status;
}

static void log_call(struct comm *comm, const struct comm_call *call)
{
    struct comm *whole = comm->whole != NULL ? comm->whole : comm;
    pthread_mutex_lock(&whole->lock);
    if (whole->logging) {
        buf_printf(&whole->log, "%s%s(%zu)", whole->log.length > 0 ? " " : "",
                   comm_kind_name(call->kind), call->count);
        if (comm != whole) buf_printf(&whole->log, "x%d", comm->world);
    }
    pthread_mutex_unlock(&whole->lock);
}

/* For a lane that is a device's stream. */
static status_t enqueue_on_device(struct comm *comm, struct lane_queue *lane,
                                  const struct comm_call *call)
{
    pthread_mutex_lock(&comm->lock);
    status_t status = status_copy(comm->failure);
    pthread_mutex_unlock(&comm->lock);
    if (status == NULL && call->count == 0 && call->kind != COMM_BARRIER) return NULL;
    if (status == NULL) {
        status = comm->table->enqueue(comm, lane, call);
        if (status == NULL) return NULL;
        status = keep_failure(comm, status);
    }
    return comm_name_call(comm, call, status);
}

/* The lock is held. */
static void make_call(struct comm *comm)
{
    struct comm_call *call = mem_alloc(sizeof *call);
    call->next_made = comm->made;
    comm->made = call;
    call->next_free = comm->unused;
    comm->unused = call;
}

void comm_reserve(struct comm *comm, int calls)
{
    if (comm->table->enqueue != NULL) {
        if (comm->table->reserve != NULL) comm->table->reserve(comm, calls);
        return;
    }
    pthread_mutex_lock(&comm->lock);
    for (const struct comm_call *call = comm->unused; call != NULL && calls > 0;
         call = call->next_free)
        calls--;
    for (; calls > 0; calls--) make_call(comm);
    pthread_mutex_unlock(&comm->lock);
}

/* A dry run: not counted, and an error affects only the recording. */
static status_t rehearse(struct comm *comm, struct lane_queue *lane, const struct comm_call *call)
{
    if (call->count == 0 && call->kind != COMM_BARRIER) return NULL;
    status_t status = comm->table->enqueue(comm, lane, call);
    return status != NULL ? comm_name_call(comm, call, status) : status;
}

static status_t enqueue(struct comm *comm, struct lane_queue *lane, struct comm_call wanted)
{
    MUST_ALONE(&comm->user);
    bool reduces = wanted.kind == COMM_REDUCE_SCATTER || wanted.kind == COMM_ALL_REDUCE;
    if (reduces && wanted.scale != 1 && !comm_scales(comm))
        return status_new(STATUS_INTERNAL, "%s times %g: sums by %s are not scaled",
                          comm_kind_name(wanted.kind), (double)wanted.scale, comm->table->name);
    if (lane_is_dry_run(lane)) {
        wanted.comm = comm;
        return rehearse(comm, lane, &wanted);
    }
    if (comm->table->enqueue != NULL) {
        pthread_mutex_lock(&comm->lock);
        wanted.comm = comm;
        wanted.sequence = ++comm->sequence;
        pthread_mutex_unlock(&comm->lock);
        log_call(comm, &wanted);
        return enqueue_on_device(comm, lane, &wanted);
    }
    pthread_mutex_lock(&comm->lock);
    if (comm->unused == NULL) make_call(comm);
    struct comm_call *call = comm->unused;
    comm->unused = call->next_free;
    wanted.next_made = call->next_made;
    wanted.comm = comm;
    wanted.sequence = ++comm->sequence;
    *call = wanted;
    pthread_mutex_unlock(&comm->lock);
    log_call(comm, call);
    return lane_call(lane, run_on_lane, call);
}

status_t comm_all_gather(struct comm *comm, struct lane_queue *lane, const float *in, float *out,
                         size_t elements)
{
    return enqueue(
        comm, lane,
        (struct comm_call){.kind = COMM_ALL_GATHER, .in = in, .out = out, .count = elements});
}

status_t comm_reduce_scatter(struct comm *comm, struct lane_queue *lane, const float *in,
                             float *out, size_t elements, float scale, void *workspace)
{
    return enqueue(comm, lane,
                   (struct comm_call){.kind = COMM_REDUCE_SCATTER,
                                      .in = in,
                                      .out = out,
                                      .count = elements,
                                      .scale = scale,
                                      .workspace = workspace});
}

status_t comm_all_reduce(struct comm *comm, struct lane_queue *lane, float *data, size_t elements,
                         float scale, void *workspace)
{
    return enqueue(comm, lane,
                   (struct comm_call){.kind = COMM_ALL_REDUCE,
                                      .in = data,
                                      .out = data,
                                      .count = elements,
                                      .scale = scale,
                                      .workspace = workspace});
}

status_t comm_all_gather_bf16(struct comm *comm, struct lane_queue *lane, const float *in,
                              uint16_t *out, size_t elements)
{
    return enqueue(comm, lane,
                   (struct comm_call){.kind = COMM_ALL_GATHER,
                                      .dtype = DTYPE_BF16,
                                      .in = in,
                                      .out = (float *)(void *)out,
                                      .count = elements});
}

status_t comm_all_gather_rounded(struct comm *comm, struct lane_queue *lane, const uint16_t *in,
                                 uint16_t *out, size_t elements)
{
    return enqueue(comm, lane,
                   (struct comm_call){.kind = COMM_ALL_GATHER,
                                      .dtype = DTYPE_BF16,
                                      .rounded = true,
                                      .in = (const float *)(const void *)in,
                                      .out = (float *)(void *)out,
                                      .count = elements});
}

status_t comm_reduce_scatter_bf16(struct comm *comm, struct lane_queue *lane, float *in, float *out,
                                  size_t elements, float scale, void *workspace)
{
    return enqueue(comm, lane,
                   (struct comm_call){.kind = COMM_REDUCE_SCATTER,
                                      .dtype = DTYPE_BF16,
                                      .in = in,
                                      .out = out,
                                      .count = elements,
                                      .scale = scale,
                                      .workspace = workspace});
}

status_t comm_all_reduce_bf16(struct comm *comm, struct lane_queue *lane, float *data,
                              size_t elements, float scale, void *workspace)
{
    if (elements % 2 != 0)
        return status_new(STATUS_INTERNAL,
                          "an all_reduce of %zu elements as bf16; expected an "
                          "even number",
                          elements);
    return enqueue(comm, lane,
                   (struct comm_call){.kind = COMM_ALL_REDUCE,
                                      .dtype = DTYPE_BF16,
                                      .in = data,
                                      .out = data,
                                      .count = elements,
                                      .scale = scale,
                                      .workspace = workspace});
}

static status_t check_root(const struct comm *comm, const char *what, int root)
{
    if (root >= 0 && root < comm->world) return NULL;
    return status_new(STATUS_INTERNAL, "%s: root %d; expected 0 to %d", what, root,
                      comm->world - 1);
}

status_t comm_broadcast(struct comm *comm, struct lane_queue *lane, void *data, size_t bytes,
                        int root)
{
    TRY(check_root(comm, "broadcast", root));
    return enqueue(comm, lane,
                   (struct comm_call){.kind = COMM_BROADCAST,
                                      .in = data,
                                      .out = data,
                                      .count = bytes,
                                      .root = root});
}

status_t comm_gather(struct comm *comm, struct lane_queue *lane, const float *in, float *out,
                     size_t elements, int root)
{
    TRY(check_root(comm, "gather", root));
    return enqueue(comm, lane,
                   (struct comm_call){
                       .kind = COMM_GATHER, .in = in, .out = out, .count = elements, .root = root});
}

status_t comm_shift(struct comm *comm, struct lane_queue *lane, const float *in, float *out,
                    size_t elements, int distance)
{
    if (distance < 1 || distance >= comm->world)
        return status_new(STATUS_INTERNAL, "shift: distance %d; expected 1 to %d", distance,
                          comm->world - 1);
    return enqueue(comm, lane,
                   (struct comm_call){.kind = COMM_SHIFT,
                                      .in = in,
                                      .out = out,
                                      .count = elements,
                                      .root = distance});
}

status_t comm_exchange(struct comm *comm, struct lane_queue *lane, const struct comm_piece *pieces,
                       int count, const float *in, float *out)
{
    size_t elements = 0;
    for (int i = 0; i < count; i++) elements += (size_t)pieces[i].count;
    return enqueue(comm, lane,
                   (struct comm_call){.kind = COMM_EXCHANGE,
                                      .in = in,
                                      .out = out,
                                      .count = elements,
                                      .pieces = pieces,
                                      .piece_count = count});
}

status_t comm_barrier(struct comm *comm, struct lane_queue *lane)
{
    return enqueue(comm, lane, (struct comm_call){.kind = COMM_BARRIER});
}
