/*
 * Collectives by NCCL, enqueued on the comm lane's stream by the calling thread. Rank 0 creates the
 * group's id and distributes it through the rendezvous store; everything is non-blocking and has a
 * deadline. While waiting for a lane, the thread polls NCCL's errors, and aborts a group that quit,
 * failed, or has a collective that began and did not end within the timeout. The time that a
 * collective waits for other lanes does not count, whether it was enqueued or is part of a graph
 * (progress.c).
 *
 * Sums of f32 are added in NCCL's order, which is the same in every run on the same devices. A
 * reduce_scatter on bf16 sends parts and adds them here, in rank order and in f32: the bits of the
 * other communicators. An all_reduce on bf16 rounds the addends, but sends f32.
 *
 * Threads, by the source of NCCL 2.28.9. Of a communicator that does not block,
 * ncclGroupEndInternal starts a thread for every group of calls, also for one call, and returns
 * ncclInProgress; that thread (groupLaunch) may wait for peers, connects to them, and launches the
 * kernel, into a capture if the stream is captured. ncclCommGetAsyncError joins it
 * (ncclGroupJobComplete). The thread's start is paid by enqueued steps alone: a replayed graph does
 * not call NCCL. A communicator that blocks would run groupLaunch in the caller and save the start,
 * but nothing safe ends it there: its waits end by setCommAbortFlags of ncclCommAbort, called by
 * another thread, and ncclCommAbort joins only the thread of a group (ncclGroupJobAbort) before it
 * frees the communicator, which the caller would still be using. So ours do not block, waits begin
 * busy, and no thread of ours is needed for deadlines.
 *
 * ncclCommAbort has joined that thread when it returns, and frees the communicator in another one,
 * which waits for graphs that refer to it (commDestroySync). So a wait that ends early aborts
 * before the capture is ended.
 *
 * Ranks also exchange small data in host memory (before a run, at a change of its units, when it
 * resumes). NCCL cannot access that, so it is staged in device memory.
 */
#include "runtime/cuda/comm_nccl.h"

#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"

#ifdef FSDPD_HAVE_NCCL

enum { HOST_BYTES = 1 << 20 };

static struct nccl_comm *whole_of(struct nccl_comm *comm)
{
    return comm->base.whole != NULL ? nccl_comm(comm->base.whole) : comm;
}

void nccl_quit(struct nccl_comm *comm)
{
    atomic_store(&whole_of(comm)->quit, true);
}

bool nccl_has_quit(struct nccl_comm *comm)
{
    return atomic_load(&whole_of(comm)->quit);
}

static status_t nccl_status(struct nccl_comm *comm, ncclResult_t result, const char *call)
{
    if (result == ncclSuccess) return NULL;
    const char *more = comm->handle != NULL ? ncclGetLastError(comm->handle) : "";
    enum status_code code = result == ncclRemoteError || result == ncclSystemError
                                ? STATUS_UNAVAILABLE
                                : STATUS_INTERNAL;
    return status_new(code, "%s: %s%s%s", call, ncclGetErrorString(result),
                      more != NULL && more[0] != '\0' ? ": " : "", more != NULL ? more : "");
}

/* See "Threads" above. A sleep would take longer than NCCL's thread, so the first wait is busy. */
#define BUSY_NS INT64_C(500000)

static void pause_shortly(int64_t waited_ns)
{
    if (waited_ns < BUSY_NS) sched_yield();
    else nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

/* `left`: NCCL's thread was still at work when the wait ended. */
static status_t await_thread(struct nccl_comm *comm, ncclResult_t result, const char *call,
                             bool *left)
{
    int64_t begun = clock_monotonic_ns(), deadline = begun + comm->base.timeout_ms * 1000000;
    *left = true;
    while (result == ncclInProgress) {
        if (nccl_has_quit(comm))
            return status_new(STATUS_ABORTED, "%s: the group was aborted", call);
        if (clock_monotonic_ns() > deadline)
            return status_new(STATUS_DEADLINE_EXCEEDED, "%s: not done within %" PRId64 " ms", call,
                              comm->base.timeout_ms);
        pause_shortly(clock_monotonic_ns() - begun);
        ncclResult_t asked = ncclCommGetAsyncError(comm->handle, &result);
        if (asked != ncclSuccess) result = asked;
    }
    *left = false;
    return nccl_status(comm, result, call);
}

/* The abort ends NCCL's thread before a capture, into which it may launch, is ended. */
status_t nccl_await(struct nccl_comm *comm, ncclResult_t result, const char *call)
{
    bool left = false;
    status_t status = await_thread(comm, result, call, &left);
    if (left) nccl_abort(comm);
    return status;
}

#define TRY_NCCL(comm, function, ...) TRY(nccl_await(comm, function(__VA_ARGS__), #function))

/* Aborting waits until no graph refers to the communicator any more. */
static void abort_handle(struct nccl_comm *comm)
{
    if (comm->handle == NULL) return;
    if (comm->device != NULL) cuda_drop_recordings(comm->device, whole_of(comm));
    ncclCommAbort(comm->handle);
    comm->handle = NULL;
}

/* Aborts all at once: a graph with collectives of two of them ends only when both are aborted. The
 * whole's lock is held. */
static void abort_all(struct nccl_comm *whole)
{
    ncclGroupStart();
    for (struct comm *part = whole->base.parts; part != NULL; part = part->next_part)
        abort_handle(nccl_comm(part));
    abort_handle(whole);
    ncclGroupEnd();
}

void nccl_abort(struct nccl_comm *comm)
{
    struct nccl_comm *whole = whole_of(comm);
    pthread_mutex_lock(&whole->base.lock);
    abort_all(whole);
    pthread_mutex_unlock(&whole->base.lock);
}

/* ---- polling while waiting for a lane ---- */

static status_t check(struct nccl_comm *comm)
{
    ncclResult_t result = ncclSuccess;
    if (comm->handle == NULL) return status_new(STATUS_ABORTED, "the group was aborted");
    status_t status = NULL;
    if (nccl_has_quit(comm)) status = status_new(STATUS_ABORTED, "the group was aborted");
    if (status == NULL)
        status = nccl_status(comm, ncclCommGetAsyncError(comm->handle, &result),
                             "ncclCommGetAsyncError");
    if (status == NULL && result != ncclInProgress)
        status = nccl_status(comm, result, comm_kind_name(comm->last_kind));
    return status;
}

static status_t check_deadline(struct nccl_comm *whole)
{
    if (cuda_progress_waits_ns(whole->lane) <= whole->base.timeout_ms * 1000000) return NULL;
    char *what = cuda_progress_describe(whole->lane);
    status_t status = status_new(STATUS_DEADLINE_EXCEEDED,
                                 "%s was not done within %" PRId64 " ms of its start on this rank",
                                 what, whole->base.timeout_ms);
    free(what);
    return status;
}

/* For the whole and its parts: a failure of one ends all. */
static status_t poll(void *user)
{
    struct nccl_comm *whole = user;
    status_t status = check(whole);
    if (status == NULL) status = check_deadline(whole);
    pthread_mutex_lock(&whole->base.lock);
    for (struct comm *part = whole->base.parts; part != NULL; part = part->next_part)
        if (status == NULL) status = check(nccl_comm(part));
    if (status != NULL && !nccl_revoke(whole)) abort_all(whole);
    pthread_mutex_unlock(&whole->base.lock);
    return status;
}

/* ---- collectives ---- */

static uint64_t exchanged_bytes(const struct comm *comm, const struct comm_call *call)
{
    uint64_t bytes = 0;
    for (int i = 0; i < call->piece_count; i++)
        if (call->pieces[i].from == comm->rank && call->pieces[i].to != comm->rank)
            bytes += (uint64_t)call->pieces[i].count * sizeof(float);
    return bytes;
}

static uint64_t bytes_sent(const struct comm *comm, const struct comm_call *call)
{
    uint64_t element = call->dtype == DTYPE_BF16 ? 2 : 4, world = (uint64_t)comm->world;
    switch (call->kind) {
    case COMM_ALL_GATHER:
    case COMM_REDUCE_SCATTER: return (world - 1) * call->count * element;
    case COMM_ALL_REDUCE: return 2 * (world - 1) * call->count * 4 / world;
    case COMM_GATHER: return comm->rank != call->root ? call->count * 4 : 0;
    case COMM_BROADCAST: return comm->rank == call->root ? call->count : 0;
    case COMM_EXCHANGE: return exchanged_bytes(comm, call);
    case COMM_SHIFT: /* see dispatch */
    case COMM_BARRIER: break;
    }
    return 0;
}

static status_t all_gather(struct nccl_comm *comm, struct cuda_lane *lane,
                           const struct comm_call *call)
{
    struct cuda_launch launch = cuda_launch_of(lane);
    if (call->dtype != DTYPE_BF16) {
        TRY_NCCL(comm, ncclAllGather, call->in, call->out, call->count, ncclFloat, comm->handle,
                 lane->stream);
        return NULL;
    }
    uint16_t *own = (uint16_t *)(void *)call->out + call->count * (size_t)comm->base.rank;
    if (!call->rounded) {
        int error = cuda_f32_to_bf16(&launch, call->count, own, call->in);
        TRY(cuda_status((cudaError_t)error, "rounding to bf16"));
    } else if ((const void *)call->in != own) {
        TRY_CUDA(cudaMemcpyAsync(own, call->in, call->count * sizeof *own, cudaMemcpyDeviceToDevice,
                                 lane->stream));
    }
    TRY_NCCL(comm, ncclAllGather, own, call->out, call->count, ncclBfloat16, comm->handle,
             lane->stream);
    return NULL;
}

/* Sends and receives that NCCL starts together. A group that was started must be ended: its first
 * error is reported after that. */
struct transfers {
    ncclResult_t error; /* ncclSuccess: of none */
    const char *call;
};

static status_t begin_transfers(struct nccl_comm *comm, struct transfers *group)
{
    *group = (struct transfers){.error = ncclSuccess};
    TRY_NCCL(comm, ncclGroupStart);
    return NULL;
}

static void keep(struct transfers *group, ncclResult_t result, const char *call)
{
    if (result == ncclSuccess || result == ncclInProgress || group->error != ncclSuccess) return;
    group->error = result;
    group->call = call;
}

#define NCCL_SEND(group, ...) keep(group, ncclSend(__VA_ARGS__), "ncclSend")
#define NCCL_RECV(group, ...) keep(group, ncclRecv(__VA_ARGS__), "ncclRecv")

static status_t end_transfers(struct nccl_comm *comm, const struct transfers *group)
{
    status_t ended = nccl_await(comm, ncclGroupEnd(), "ncclGroupEnd");
    return status_first(nccl_status(comm, group->error, group->call), ended);
}

/* All ranks' rounded parts of this rank's share, side by side in the upper half of `in`. */
static status_t exchange_parts(struct nccl_comm *comm, struct cuda_lane *lane,
                               const struct comm_call *call)
{
    const uint16_t *packed = (const uint16_t *)(const void *)call->in;
    uint16_t *parts = (uint16_t *)packed + call->count * (size_t)comm->base.world;
    struct transfers group;
    TRY(begin_transfers(comm, &group));
    for (int r = 0; r < comm->base.world; r++) {
        size_t offset = (size_t)r * call->count;
        NCCL_SEND(&group, packed + offset, call->count, ncclBfloat16, r, comm->handle,
                  lane->stream);
        NCCL_RECV(&group, parts + offset, call->count, ncclBfloat16, r, comm->handle, lane->stream);
    }
    return end_transfers(comm, &group);
}

static status_t reduce_scatter(struct nccl_comm *comm, struct cuda_lane *lane,
                               const struct comm_call *call)
{
    struct cuda_launch launch = cuda_launch_of(lane);
    if (call->dtype != DTYPE_BF16) {
        TRY_NCCL(comm, ncclReduceScatter, call->in, call->out, call->count, ncclFloat, ncclSum,
                 comm->handle, lane->stream);
        return NULL;
    }
    size_t all = call->count * (size_t)comm->base.world;
    int error = cuda_pack_bf16(&launch, all, (float *)call->in);
    TRY(cuda_status((cudaError_t)error, "rounding to bf16"));
    TRY(exchange_parts(comm, lane, call));
    const uint16_t *parts = (const uint16_t *)(const void *)call->in + all;
    error = cuda_sum_parts_bf16(&launch, call->count, call->out, parts, comm->base.world);
    return cuda_status((cudaError_t)error, "adding parts");
}

static status_t all_reduce(struct nccl_comm *comm, struct cuda_lane *lane,
                           const struct comm_call *call)
{
    struct cuda_launch launch = cuda_launch_of(lane);
    int error = 0;
    if (call->dtype == DTYPE_BF16) error = cuda_round_in_place(&launch, call->count, call->out);
    TRY(cuda_status((cudaError_t)error, "rounding to bf16"));
    TRY_NCCL(comm, ncclAllReduce, call->out, call->out, call->count, ncclFloat, ncclSum,
             comm->handle, lane->stream);
    return NULL;
}

static status_t gather(struct nccl_comm *comm, struct cuda_lane *lane, const struct comm_call *call)
{
    struct transfers group;
    TRY(begin_transfers(comm, &group));
    NCCL_SEND(&group, call->in, call->count, ncclFloat, call->root, comm->handle, lane->stream);
    for (int r = 0; r < comm->base.world && comm->base.rank == call->root; r++)
        NCCL_RECV(&group, call->out + (size_t)r * call->count, call->count, ncclFloat, r,
                  comm->handle, lane->stream);
    return end_transfers(comm, &group);
}

/* What a rank keeps, without NCCL. */
static status_t copy_own(struct cuda_lane *lane, const struct comm_piece *piece, const float *from,
                         float *to)
{
    if (from == to) return NULL;
    TRY_CUDA(cudaMemcpyAsync(to, from, (size_t)piece->count * sizeof *to, cudaMemcpyDeviceToDevice,
                             lane->stream));
    return NULL;
}

/* NCCL matches the pieces between two ranks in their order, the same on both. */
static status_t exchange(struct nccl_comm *comm, struct cuda_lane *lane,
                         const struct comm_call *call)
{
    int rank = comm->base.rank;
    struct transfers group;
    for (int i = 0; i < call->piece_count; i++) {
        const struct comm_piece *it = &call->pieces[i];
        if (it->from == rank && it->to == rank)
            TRY(copy_own(lane, it, call->in + it->source, call->out + it->target));
    }
    TRY(begin_transfers(comm, &group));
    for (int i = 0; i < call->piece_count; i++) {
        const struct comm_piece *it = &call->pieces[i];
        if (it->from == it->to) continue;
        if (it->from == rank)
            NCCL_SEND(&group, call->in + it->source, (size_t)it->count, ncclFloat, it->to,
                      comm->handle, lane->stream);
        if (it->to == rank)
            NCCL_RECV(&group, call->out + it->target, (size_t)it->count, ncclFloat, it->from,
                      comm->handle, lane->stream);
    }
    return end_transfers(comm, &group);
}

static status_t dispatch(struct nccl_comm *comm, struct cuda_lane *lane,
                         const struct comm_call *call)
{
    switch (call->kind) {
    case COMM_ALL_GATHER: return all_gather(comm, lane, call);
    case COMM_REDUCE_SCATTER: return reduce_scatter(comm, lane, call);
    case COMM_ALL_REDUCE: return all_reduce(comm, lane, call);
    case COMM_GATHER: return gather(comm, lane, call);
    case COMM_BROADCAST:
        TRY_NCCL(comm, ncclBroadcast, call->in, call->out, call->count, ncclUint8, call->root,
                 comm->handle, lane->stream);
        return NULL;
    case COMM_BARRIER:
        TRY_NCCL(comm, ncclAllReduce, lane->norm_parts, lane->norm_parts, 1, ncclFloat, ncclSum,
                 comm->handle, lane->stream);
        return NULL;
    case COMM_SHIFT: return status_new(STATUS_UNIMPLEMENTED, "NCCL's groups do not shift");
    case COMM_EXCHANGE: return exchange(comm, lane, call);
    }
    return status_new(STATUS_INTERNAL, "unknown kind of collective %d", (int)call->kind);
}

/* Count the end even after an error: the collective must not appear unfinished. */
static status_t run(struct nccl_comm *comm, struct cuda_lane *lane, const struct comm_call *call)
{
    if (lane->recording == NULL)
        cuda_progress_name(lane, comm_kind_name(call->kind), call->sequence);
    TRY(cuda_progress_count(lane, CUDA_BEGINS));
    status_t status = dispatch(comm, lane, call);
    return status_first(status, cuda_progress_count(lane, CUDA_ENDS));
}

/* ---- host memory ---- */

static bool in_host_memory(struct nccl_comm *comm, const struct comm_call *call)
{
    struct device *device = &comm->device->base;
    return (call->in != NULL && !cuda_is_of_device(device, call->in)) ||
           (call->out != NULL && !cuda_is_of_device(device, call->out));
}

/* Waits before reusing the staging memory, polling NCCL's errors as every wait does. */
static status_t finish_piece(struct nccl_comm *comm, struct cuda_lane *lane)
{
    TRY(cuda_lane_wait(&lane->base, 2 * comm->base.timeout_ms + 1000));
    return cuda_enqueue(lane);
}

static status_t broadcast_of_host(struct nccl_comm *comm, struct cuda_lane *lane,
                                  const struct comm_call *call)
{
    struct comm_call piece = *call;
    char *data = (char *)call->out;
    piece.in = piece.out = (float *)(void *)comm->staged;
    for (size_t at = 0; at < call->count; at += HOST_BYTES) {
        if (at > 0) TRY(finish_piece(comm, lane));
        piece.count = call->count - at < HOST_BYTES ? call->count - at : HOST_BYTES;
        bool root = comm->base.rank == call->root;
        if (root) TRY(cuda_copy_in(lane, comm->staged, data + at, piece.count));
        TRY(run(comm, lane, &piece));
        if (!root) TRY(cuda_copy_out(lane, data + at, comm->staged, piece.count));
    }
    return NULL;
}

/* Each rank's piece is gathered in place. */
static status_t all_gather_of_host(struct nccl_comm *comm, struct cuda_lane *lane,
                                   const struct comm_call *call)
{
    struct comm_call piece = *call;
    const size_t world = (size_t)comm->base.world, most = HOST_BYTES / sizeof(float) / world;
    float *staged = (float *)(void *)comm->staged;
    for (size_t at = 0; at < call->count; at += most) {
        if (at > 0) TRY(finish_piece(comm, lane));
        piece.count = call->count - at < most ? call->count - at : most;
        const size_t bytes = piece.count * sizeof(float);
        float *own = staged + piece.count * (size_t)comm->base.rank;
        piece.in = own, piece.out = staged;
        TRY(cuda_copy_in(lane, (char *)own, (const char *)(call->in + at), bytes));
        TRY(run(comm, lane, &piece));
        if (piece.count == call->count)
            return cuda_copy_out(lane, (char *)call->out, comm->staged, bytes * world);
        /* Many copies could wait for each other without a poll of NCCL's errors. */
        TRY(finish_piece(comm, lane));
        for (size_t r = 0; r < world; r++)
            TRY(cuda_copy_out(lane, (char *)(call->out + r * call->count + at),
                              (char *)(staged + r * piece.count), bytes));
    }
    return NULL;
}

static status_t run_on_host_memory(struct nccl_comm *comm, struct cuda_lane *lane,
                                   const struct comm_call *call)
{
    struct device *device = &comm->device->base;
    bool known = (call->kind == COMM_ALL_GATHER && call->dtype != DTYPE_BF16) ||
                 call->kind == COMM_BROADCAST;
    if (!known || cuda_is_of_device(device, call->in) || cuda_is_of_device(device, call->out))
        return status_new(STATUS_UNIMPLEMENTED, "%s of host memory: NCCL moves device memory only",
                          comm_kind_name(call->kind));
    if (comm->staged == NULL) TRY_CUDA(cudaMalloc((void **)&comm->staged, HOST_BYTES));
    return call->kind == COMM_BROADCAST ? broadcast_of_host(comm, lane, call)
                                        : all_gather_of_host(comm, lane, call);
}

/* Registers a collective with the lane's recording that it becomes part of. */
static status_t check_recording(struct nccl_comm *comm, struct cuda_lane *lane,
                                const struct comm_call *call)
{
    if (lane->recording == NULL) return NULL;
    if (in_host_memory(comm, call))
        return status_new(STATUS_UNIMPLEMENTED, "a collective of host memory is not recorded");
    if (cuda_is_switched("FSDPD_CUDA_GRAPHS", "alone"))
        return status_new(STATUS_UNIMPLEMENTED,
                          "FSDPD_CUDA_GRAPHS is \"alone\", so collectives are not recorded");
    cuda_record_group(lane, whole_of(comm));
    if (cuda_does_enqueue(lane)) whole_of(comm)->captured = true;
    return NULL;
}

static void note_call(struct nccl_comm *comm, struct cuda_lane *lane, const struct comm_call *call)
{
    if (lane->recording != NULL)
        cuda_progress_name(lane, comm_kind_name(call->kind), call->sequence);
    struct nccl_comm *whole = whole_of(comm);
    comm->last_kind = call->kind;
    whole->lane = lane;
    lane->poll = poll;
    lane->poll_user = whole;
}

static status_t enqueue(struct comm *base, struct lane_queue *queue, const struct comm_call *call)
{
    struct nccl_comm *comm = nccl_comm(base);
    struct cuda_lane *lane = cuda_lane(queue);
    if (comm->handle == NULL || nccl_has_quit(comm))
        return status_new(STATUS_ABORTED, "the group was aborted");
    if (lane->recording == NULL && cuda_is_replaying(comm->device, whole_of(comm)))
        return status_new(STATUS_INTERNAL, "%s while a replay may use the group",
                          comm_kind_name(call->kind));
    TRY(check_recording(comm, lane, call));
    if (!queue->is_dry_run) note_call(comm, lane, call);
    if (cuda_does_enqueue(lane)) {
        TRY(cuda_enqueue(lane));
        TRY(in_host_memory(comm, call) ? run_on_host_memory(comm, lane, call)
                                       : run(comm, lane, call));
    }
    if (!queue->is_dry_run) comm_count_sent(base, bytes_sent(base, call));
    return cuda_enqueued(lane, cudaSuccess, comm_kind_name(call->kind));
}

/* ---- groups ---- */

/* The thread that waits for the lane aborts. */
static void quit(struct comm *base, const char *why)
{
    struct nccl_comm *comm = nccl_comm(base);
    nccl_quit(comm);
    /* Peers that wait for this rank outside of NCCL (nccl_agree). */
    if (comm->prefix != NULL) rendezvous_give_up(&comm->store, comm->prefix, why);
}

static void free_comm(struct comm *base)
{
    struct nccl_comm *comm = nccl_comm(base);
    status_free(cuda_status(cudaSetDevice(comm->number), "cudaSetDevice"));
    /* Destroying waits for the peers. After a failure only an abort is safe, of the whole with all
     * its parts, which share its resources. */
    if (comm->handle != NULL && !nccl_has_quit(comm)) {
        bool left = false;
        status_t status =
            await_thread(comm, ncclCommFinalize(comm->handle), "ncclCommFinalize", &left);
        if (status == NULL) {
            ncclCommDestroy(comm->handle);
            comm->handle = NULL;
        } else {
            nccl_quit(comm);
        }
        status_free(status);
    }
    if (comm->handle != NULL && comm->base.whole != NULL) nccl_abort(comm); /* the others */
    abort_handle(comm);
    cuda_release(comm->staged);
    free(comm->prefix);
    comm_deinit(base);
    free(comm);
}

static const struct comm_table table;

static status_t split(struct comm *base, const int *ranks, int count, int rank, int number,
                      struct comm **part)
{
    struct nccl_comm *whole = nccl_comm(base), *made = mem_alloc(sizeof *made);
    (void)number;
    comm_init(&made->base, &table, rank, count, base->timeout_ms);
    made->device = whole->device;
    made->number = whole->number;
    made->color = ranks[0];
    status_t status = nccl_connect_part(whole, made);
    if (status != NULL) {
        nccl_quit(whole);
        nccl_quit(made); /* which is not a part yet */
        free_comm(&made->base);
        return status;
    }
    *part = &made->base;
    return NULL;
}

static const struct comm_table table = {.name = "nccl",
                                        .enqueue = enqueue,
                                        .repeatable = true,
                                        .unscaled = true,
                                        .quit = quit,
                                        .free = free_comm,
                                        .keep = nccl_keep,
                                        .register_memory = nccl_register_memory,
                                        .deregister_memory = nccl_deregister_memory,
                                        .split = split,
                                        .agree = nccl_agree};

status_t comm_nccl_new(struct device *device, int rank, int world, const char *prefix,
                       const struct rendezvous *store, int64_t timeout_ms, struct comm **kept,
                       struct comm **result)
{
    TRY(cuda_use(cuda_device(device)));
    struct nccl_comm *comm = mem_alloc(sizeof *comm);
    comm_init(&comm->base, &table, rank, world, timeout_ms);
    comm->device = cuda_device(device);
    comm->number = comm->device->number;
    comm->store = *store;
    comm->prefix = mem_strdup(prefix);
    status_t status = nccl_join(comm, kept);
    if (status != NULL) {
        nccl_quit(comm);
        free_comm(&comm->base);
        return status_wrap(status, "joining the NCCL group as rank %d of %d", rank, world);
    }
    *result = &comm->base;
    return NULL;
}

#else

status_t comm_nccl_new(struct device *device, int rank, int world, const char *prefix,
                       const struct rendezvous *store, int64_t timeout_ms, struct comm **kept,
                       struct comm **comm)
{
    (void)device, (void)prefix, (void)store, (void)timeout_ms, (void)kept, (void)comm;
    return status_new(STATUS_UNIMPLEMENTED,
                      "rank %d of %d: the CUDA backend was built without NCCL, so devices cannot "
                      "work together",
                      rank, world);
}

#endif
