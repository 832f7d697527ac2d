/*
 * Collectives of devices through host memory, by another communicator (Gloo's): for workers that
 * share a device, which NCCL refuses. A collective is cut into pieces of the size of the pinned
 * staging memory; each is a copy to the host, a host function that runs the collective there, and a
 * copy back, all in the order of the lane's stream, so enqueueing does not wait. The other
 * communicator computes the sums, so they have its bits; an element's sum does not depend on its
 * piece.
 *
 * The functions run on the driver's thread, one at a time, and call no CUDA functions. They wait
 * for the peers there, at most for the group's timeout; a failure is kept for the lane's next wait,
 * and later functions fail at once. Data in host memory is sent directly, in one piece.
 */
#include "runtime/cuda/device_cuda.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "runtime/comm_table.h"

/* A collective in progress. */
struct staged_call {
    struct comm_call call; /* as requested */
    struct staged_comm *comm;
    struct cuda_lane *lane;
    const char *label;
    bool of_host; /* its memory */
    size_t done;  /* elements of the pieces that have run; the driver's thread */
    struct staged_call *next_unused, *next_made;
};

struct staged_comm {
    struct comm base;
    struct cuda_device *device;
    struct comm *host;
    char *staging;   /* COMM_STAGING_BYTES, pinned; a part's is the whole's */
    char *workspace; /* of reductions of `host` */
    /* Guarded by base.lock: all records; the unused ones. */
    struct staged_call *made, *unused;
};

static struct staged_comm *staged_comm(struct comm *comm)
{
    return (struct staged_comm *)comm;
}

/* ---- pieces ---- */

/* The part of an exchange that begins at element `done` of all pieces: of one piece, as much as the
 * staging memory takes. Its offsets are this rank's, in the caller's memory. */
static struct comm_piece part_of_exchange(const struct comm_call *call, size_t done)
{
    const int64_t most = COMM_STAGING_BYTES / (int64_t)sizeof(float);
    const struct comm_piece *it = call->pieces;
    int64_t at = (int64_t)done;
    for (; at >= it->count; it++) at -= it->count;
    struct comm_piece part = {it->from, it->to, it->source + at, it->target + at, it->count - at};
    if (part.count > most) part.count = most;
    return part;
}

/* The layout of one element of a collective in the staging memory. */
struct shape {
    size_t in_parts, in_size; /* what this rank brings: side by side; bytes of each */
    size_t out_parts, out_size;
    bool in_place;
};

static struct shape shape_of(const struct staged_comm *comm, const struct comm_call *call)
{
    size_t world = (size_t)comm->base.world, real = sizeof(float);
    bool low = call->dtype == DTYPE_BF16;
    switch (call->kind) {
    case COMM_ALL_GATHER:
        return (struct shape){1, call->rounded ? dtype_size(DTYPE_BF16) : real, world,
                              low ? dtype_size(DTYPE_BF16) : real, false};
    case COMM_GATHER: return (struct shape){1, real, world, real, false};
    case COMM_SHIFT: return (struct shape){1, real, 1, real, false};
    case COMM_REDUCE_SCATTER: return (struct shape){world, real, 1, real, false};
    case COMM_ALL_REDUCE: return (struct shape){1, real, 1, real, true};
    case COMM_BROADCAST: return (struct shape){1, 1, 1, 1, true};
    case COMM_EXCHANGE: /* see part_of_exchange */
    case COMM_BARRIER: break;
    }
    return (struct shape){0};
}

enum { ALIGNMENT = 64 };

/* Elements of the piece that begins at `done`; the same on every rank. Even, unless it is the last. */
static size_t piece_count(const struct shape *shape, size_t count, size_t done)
{
    size_t each = shape->in_parts * shape->in_size;
    if (!shape->in_place) each += shape->out_parts * shape->out_size;
    size_t most = (COMM_STAGING_BYTES - ALIGNMENT) / (each > 0 ? each : 1) / ALIGNMENT * ALIGNMENT;
    return count - done < most ? count - done : most;
}

static char *staged_out(const struct staged_comm *comm, const struct shape *shape, size_t count)
{
    size_t in = shape->in_parts * shape->in_size * count;
    return comm->staging + (shape->in_place ? 0 : round_up(in, ALIGNMENT));
}

/* ---- on the driver's thread ---- */

static void put_back(struct staged_call *record)
{
    struct staged_comm *comm = record->comm;
    pthread_mutex_lock(&comm->base.lock);
    record->next_unused = comm->unused;
    comm->unused = record;
    pthread_mutex_unlock(&comm->base.lock);
}

static void CUDART_CB run_piece(void *argument)
{
    struct staged_call *record = argument;
    struct staged_comm *comm = record->comm;
    struct comm_call piece = record->call;
    struct comm_piece part;
    piece.workspace = comm->workspace;
    if (!record->of_host && piece.kind == COMM_EXCHANGE) {
        part = part_of_exchange(&record->call, record->done);
        part.source = part.target = 0;
        piece.pieces = &part, piece.piece_count = 1, piece.count = (size_t)part.count;
        piece.in = piece.out = (float *)(void *)comm->staging;
    } else if (!record->of_host) {
        struct shape shape = shape_of(comm, &record->call);
        piece.count = piece_count(&shape, record->call.count, record->done);
        piece.in = (const float *)(const void *)comm->staging;
        piece.out = (float *)(void *)staged_out(comm, &shape, piece.count);
    }
    record->done += piece.count;
    uint64_t sent = comm_bytes_sent(comm->host);
    status_t status = comm_run(comm->host, &piece);
    comm_count_sent(&comm->base, comm_bytes_sent(comm->host) - sent);
    if (status != NULL)
        cuda_lane_fail(record->lane, record->label,
                       comm_name_call(&comm->base, &record->call, status));
    if (record->done >= record->call.count) put_back(record);
}

/* ---- enqueueing ---- */

/* base.lock is held. */
static void make_record(struct staged_comm *comm)
{
    struct staged_call *record = mem_alloc(sizeof *record);
    record->comm = comm;
    record->next_made = comm->made;
    record->next_unused = comm->unused;
    comm->made = comm->unused = record;
}

static void reserve(struct comm *base, int calls)
{
    struct staged_comm *comm = staged_comm(base);
    pthread_mutex_lock(&base->lock);
    for (const struct staged_call *r = comm->unused; r != NULL && calls > 0; r = r->next_unused)
        calls--;
    for (; calls > 0; calls--) make_record(comm);
    pthread_mutex_unlock(&base->lock);
}

static struct staged_call *take_record(struct staged_comm *comm)
{
    pthread_mutex_lock(&comm->base.lock);
    if (comm->unused == NULL) make_record(comm);
    struct staged_call *record = comm->unused;
    comm->unused = record->next_unused;
    pthread_mutex_unlock(&comm->base.lock);
    return record;
}

/* A rank without a part in one side of a collective may pass nothing for it. */
static bool brings(const struct staged_comm *comm, const struct comm_call *call)
{
    return call->kind != COMM_BARRIER &&
           (call->kind != COMM_BROADCAST || comm->base.rank == call->root);
}

static bool receives(const struct staged_comm *comm, const struct comm_call *call)
{
    if (call->kind == COMM_BROADCAST) return comm->base.rank != call->root;
    return call->kind != COMM_BARRIER &&
           (call->kind != COMM_GATHER || comm->base.rank == call->root);
}

static status_t find_side(const struct staged_comm *comm, const struct comm_call *call,
                          bool *of_host)
{
    struct device *device = &comm->device->base;
    bool in = brings(comm, call), out = receives(comm, call);
    bool in_device = in && cuda_is_of_device(device, call->in);
    bool out_device = out && cuda_is_of_device(device, call->out);
    if (in && out && in_device != out_device)
        return status_new(STATUS_INTERNAL, "%s: one side is the host's memory, the other the "
                                           "device's",
                          comm_kind_name(call->kind));
    *of_host = !in_device && !out_device;
    return NULL;
}

static status_t copy_in(struct staged_comm *comm, struct cuda_lane *lane,
                        const struct comm_call *call, const struct shape *shape, size_t at,
                        size_t count)
{
    for (size_t part = 0; part < shape->in_parts; part++)
        TRY_CUDA(cudaMemcpyAsync(comm->staging + part * count * shape->in_size,
                                 (const char *)call->in +
                                     (part * call->count + at) * shape->in_size,
                                 count * shape->in_size, cudaMemcpyDeviceToHost, lane->stream));
    return NULL;
}

static status_t copy_out(struct staged_comm *comm, struct cuda_lane *lane,
                         const struct comm_call *call, const struct shape *shape, size_t at,
                         size_t count)
{
    const char *from = staged_out(comm, shape, count);
    for (size_t part = 0; part < shape->out_parts; part++)
        TRY_CUDA(cudaMemcpyAsync((char *)call->out + (part * call->count + at) * shape->out_size,
                                 from + part * count * shape->out_size, count * shape->out_size,
                                 cudaMemcpyHostToDevice, lane->stream));
    return NULL;
}

static status_t enqueue_pieces(struct staged_comm *comm, struct cuda_lane *lane,
                               struct staged_call *record, const struct comm_call *call)
{
    struct shape shape = shape_of(comm, call);
    for (size_t at = 0; at < call->count;) {
        size_t count = piece_count(&shape, call->count, at);
        if (brings(comm, call)) TRY(copy_in(comm, lane, call, &shape, at, count));
        TRY_CUDA(cudaLaunchHostFunc(lane->stream, run_piece, record));
        if (receives(comm, call)) TRY(copy_out(comm, lane, call, &shape, at, count));
        at += count;
    }
    return NULL;
}

/* A piece at a time, in which the other ranks take part. */
static status_t enqueue_exchange(struct staged_comm *comm, struct cuda_lane *lane,
                                 struct staged_call *record, const struct comm_call *call)
{
    for (size_t at = 0; at < call->count;) {
        const struct comm_piece part = part_of_exchange(call, at);
        const size_t bytes = (size_t)part.count * sizeof(float);
        if (part.from == comm->base.rank)
            TRY_CUDA(cudaMemcpyAsync(comm->staging, call->in + part.source, bytes,
                                     cudaMemcpyDeviceToHost, lane->stream));
        TRY_CUDA(cudaLaunchHostFunc(lane->stream, run_piece, record));
        if (part.to == comm->base.rank)
            TRY_CUDA(cudaMemcpyAsync(call->out + part.target, comm->staging, bytes,
                                     cudaMemcpyHostToDevice, lane->stream));
        at += (size_t)part.count;
    }
    return NULL;
}

static status_t enqueue(struct comm *base, struct lane_queue *queue, const struct comm_call *call)
{
    struct staged_comm *comm = staged_comm(base);
    struct cuda_lane *lane = cuda_lane(queue);
    bool of_host = false;
    TRY(find_side(comm, call, &of_host));
    TRY(cuda_enqueue(lane));
    struct staged_call *record = take_record(comm);
    record->call = *call;
    record->lane = lane;
    record->label = queue->label;
    record->of_host = of_host;
    record->done = 0;
    /* The driver may still use a failed one: only its last piece returns it. */
    if (of_host) TRY_CUDA(cudaLaunchHostFunc(lane->stream, run_piece, record));
    else if (call->kind == COMM_EXCHANGE) TRY(enqueue_exchange(comm, lane, record, call));
    else TRY(enqueue_pieces(comm, lane, record, call));
    return cuda_enqueued(lane, cudaSuccess, comm_kind_name(call->kind));
}

/* ---- groups ---- */

static void quit(struct comm *base, const char *why)
{
    comm_abort(staged_comm(base)->host, why);
}

static void free_comm(struct comm *base)
{
    struct staged_comm *comm = staged_comm(base);
    for (struct staged_call *record = comm->made, *next; record != NULL; record = next) {
        next = record->next_made;
        free(record);
    }
    comm_free(comm->host);
    status_free(cuda_use(comm->device));
    if (base->whole == NULL && comm->staging != NULL) cudaFreeHost(comm->staging);
    free(comm->workspace);
    comm_deinit(base);
    free(comm);
}

static status_t split(struct comm *base, const int *ranks, int count, int rank, int number,
                      struct comm **part);

static struct staged_comm *make(struct cuda_device *device, struct comm *host, int64_t timeout_ms)
{
    static const struct comm_table table = {.name = "host memory",
                                            .enqueue = enqueue,
                                            .unscaled = true, /* as NCCL's: the same bits */
                                            .reserve = reserve,
                                            .quit = quit,
                                            .free = free_comm,
                                            .split = split};
    struct staged_comm *comm = mem_alloc(sizeof *comm);
    comm_init(&comm->base, &table, comm_rank(host), comm_world(host), timeout_ms);
    comm->device = device;
    comm->host = host;
    uint64_t bytes = comm_workspace_bytes(comm->base.world);
    if (bytes > 0) comm->workspace = mem_alloc(bytes);
    return comm;
}

static status_t split(struct comm *base, const int *ranks, int count, int rank, int number,
                      struct comm **part)
{
    struct staged_comm *whole = staged_comm(base);
    struct comm *host = NULL;
    (void)rank, (void)number; /* the host's part has them */
    TRY(comm_split(whole->host, ranks, count, &host));
    struct staged_comm *made = make(whole->device, host, base->timeout_ms);
    made->staging = whole->staging;
    *part = &made->base;
    return NULL;
}

status_t comm_staged_new(struct device *device, struct comm *host, struct comm **comm)
{
    struct staged_comm *made = make(cuda_device(device), host, host->timeout_ms);
    status_t status = cuda_use(made->device);
    if (status == NULL)
        status = cuda_status(cudaMallocHost((void **)&made->staging, COMM_STAGING_BYTES),
                             "cudaMallocHost");
    if (status != NULL) {
        free_comm(&made->base);
        return status_wrap(status, "host memory of a group that shares a device");
    }
    *comm = &made->base;
    return NULL;
}
