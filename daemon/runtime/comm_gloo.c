/*
 * The gloo communicator: collectives between processes as plain message exchanges, every rank with
 * every other. Data moves directly between the callers' buffers; only addends use the workspace, in
 * chunks, two in flight per peer. The rank that owns a slice sums it in rank order, so sums have
 * the same bits everywhere.
 *
 * Runs on the lane's thread; gloo_quit on any.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kernels/kernels.h"
#include "runtime/comm_table.h"
#include "runtime/gloo_link.h"

enum {
    WINDOW = 16,           /* chunks offered to a peer at a time */
    SMALL_ELEMENTS = 2048, /* an all_reduce up to this size is one exchange of everything; at most
                              two chunks */
};

/* The memory that a collective exchanges with one peer. */
struct gloo_peer {
    struct gloo_buffer *data;    /* in or out of the caller's buffer */
    struct gloo_buffer *result;  /* the other of the caller's buffers, if there are two */
    struct gloo_buffer *scratch; /* this peer's two chunks of the workspace */
};

struct gloo_comm {
    struct comm base;
    struct gloo_link *link;  /* the whole's, if this is a part */
    int *link_ranks;         /* (world): a part's ranks in the link; NULL for the whole */
    size_t chunk;            /* elements */
    struct gloo_peer *peers; /* (world); open only during a collective */
    const float **parts;     /* (world): scratch for kernel_sum_ordered, and of bf16 */
    const uint16_t **low_parts;
    char token;   /* payload that a barrier sends */
    char *tokens; /* (world): what it receives */
};

static struct gloo_comm *gloo_comm(struct comm *comm)
{
    return (struct gloo_comm *)comm;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t chunks_of(const struct gloo_comm *comm, size_t elements)
{
    return (elements + comm->chunk - 1) / comm->chunk;
}

static size_t chunk_start_bytes(const struct gloo_comm *comm, size_t chunk)
{
    return chunk * comm->chunk * sizeof(float);
}

/* The size of chunk number `chunk` of `elements`, in bytes. */
static size_t chunk_bytes(const struct gloo_comm *comm, size_t elements, size_t chunk)
{
    return least(elements - chunk * comm->chunk, comm->chunk) * sizeof(float);
}

static status_t open_buffer(struct gloo_comm *comm, int peer, void *memory, size_t bytes,
                            struct gloo_buffer **buffer)
{
    int rank = comm->link_ranks != NULL ? comm->link_ranks[peer] : peer;
    return gloo_buffer_new(comm->link, rank, memory, bytes, buffer);
}

static status_t send_to(struct gloo_comm *comm, struct gloo_buffer *buffer, uint64_t tag,
                        size_t offset, size_t bytes)
{
    comm_count_sent(&comm->base, bytes);
    return gloo_send(buffer, tag, offset, bytes);
}

/* The peers in the order in which this rank serves them; every rank starts with a different one. */
static int nth_peer(const struct gloo_comm *comm, int i)
{
    return (comm->base.rank + i) % comm->base.world;
}

/* The destination of a peer's even or odd chunk. */
static char *scratch_of(const struct gloo_comm *comm, const struct comm_call *call, int peer,
                        size_t chunk)
{
    size_t place = (size_t)(peer < comm->base.rank ? peer : peer - 1);
    return call->workspace + (place * 2 + chunk % 2) * comm->chunk * sizeof(float);
}

static status_t gloo_all_gather(struct gloo_comm *comm, const struct comm_call *call,
                                int64_t deadline_ns)
{
    size_t bytes = call->count * dtype_size(call->dtype);
    int world = comm->base.world, rank = comm->base.rank;
    for (int i = 1; i < world; i++) {
        int p = nth_peer(comm, i);
        struct gloo_peer *peer = &comm->peers[p];
        TRY(open_buffer(comm, p, (char *)call->out + bytes * (size_t)p, bytes, &peer->result));
        TRY(gloo_receive(peer->result, comm_tag(call, 0, 0), 0, bytes));
    }
    for (int i = 1; i < world; i++) {
        int p = nth_peer(comm, i);
        struct gloo_peer *peer = &comm->peers[p];
        TRY(open_buffer(comm, p, (void *)call->in, bytes, &peer->data));
        TRY(send_to(comm, peer->data, comm_tag(call, 0, 0), 0, bytes));
    }
    char *own = (char *)call->out + bytes * (size_t)rank;
    if (own != (const char *)call->in) memcpy(own, call->in, bytes);
    for (int i = 1; i < world; i++)
        TRY(gloo_wait_received(comm->peers[nth_peer(comm, i)].result, deadline_ns));
    for (int i = 1; i < world; i++)
        TRY(gloo_wait_sent(comm->peers[nth_peer(comm, i)].data, deadline_ns));
    return NULL;
}

/*
 * A reduction: rank r sums slice r of every rank's `in`. A reduce_scatter keeps the sum; an
 * all_reduce (`share`) sends every chunk to all peers as soon as it is complete, into their
 * `call->out`, whose old contents this rank has received before.
 */
struct gloo_reduction {
    const struct comm_call *call;
    bool share, slices; /* slices: of one buffer (an all_reduce), the last ones shorter */
    size_t size;        /* of a part's element */
    size_t each;        /* elements of a whole slice */
    size_t mine;        /* of this rank's slice */
    float *out;         /* destination of this rank's sum */
    int64_t deadline_ns;
};

static size_t slice_start(const struct gloo_reduction *r, int rank)
{
    return r->slices ? least(r->each * (size_t)rank, r->call->count) : r->each * (size_t)rank;
}

static size_t slice_count(const struct gloo_reduction *r, int rank)
{
    return r->slices ? least(r->call->count - slice_start(r, rank), r->each) : r->each;
}

/* Offers chunk `chunk` of their slices to the peers. */
static status_t offer_chunk(struct gloo_comm *comm, const struct gloo_reduction *r, size_t chunk)
{
    for (int i = 1; i < comm->base.world; i++) {
        int p = nth_peer(comm, i);
        size_t count = slice_count(r, p), start = slice_start(r, p);
        if (chunk >= chunks_of(comm, count)) continue;
        TRY(send_to(comm, comm->peers[p].data, comm_tag(r->call, 0, chunk),
                    (start + chunk * comm->chunk) * r->size,
                    chunk_bytes(comm, count, chunk) / sizeof(float) * r->size));
    }
    return NULL;
}

/* Makes room for chunk `chunk` of this rank's slice from every peer. */
static status_t expect_chunk(struct gloo_comm *comm, const struct gloo_reduction *r, size_t chunk)
{
    if (chunk >= chunks_of(comm, r->mine)) return NULL;
    for (int i = 1; i < comm->base.world; i++)
        TRY(gloo_receive(comm->peers[nth_peer(comm, i)].scratch, comm_tag(r->call, 0, chunk),
                         chunk_start_bytes(comm, chunk % 2),
                         chunk_bytes(comm, r->mine, chunk) / sizeof(float) * r->size));
    return NULL;
}

static void sum_low_parts(struct gloo_comm *comm, const struct gloo_reduction *r, size_t chunk)
{
    int rank = comm->base.rank;
    size_t start = chunk * comm->chunk;
    const uint16_t *own = (const uint16_t *)(const void *)r->call->in;
    for (int p = 0; p < comm->base.world; p++)
        comm->low_parts[p] = p == rank
                                 ? own + slice_start(r, rank) + start
                                 : (const uint16_t *)(void *)scratch_of(comm, r->call, p, chunk);
    kernel_sum_ordered_bf16(chunk_bytes(comm, r->mine, chunk) / sizeof(float), r->out + start,
                            comm->low_parts, comm->base.world, r->call->scale);
}

static status_t sum_chunk(struct gloo_comm *comm, const struct gloo_reduction *r, size_t chunk)
{
    int rank = comm->base.rank;
    size_t start = chunk * comm->chunk;
    for (int i = 1; i < comm->base.world; i++)
        TRY(gloo_wait_received(comm->peers[nth_peer(comm, i)].scratch, r->deadline_ns));
    if (r->call->dtype == DTYPE_BF16) {
        sum_low_parts(comm, r, chunk);
        return NULL;
    }
    for (int p = 0; p < comm->base.world; p++)
        comm->parts[p] = p == rank ? r->call->in + slice_start(r, rank) + start
                                   : (const float *)scratch_of(comm, r->call, p, chunk);
    kernel_sum_ordered(chunk_bytes(comm, r->mine, chunk) / sizeof(float), r->out + start,
                       comm->parts, comm->base.world, r->call->scale);
    return NULL;
}

/* Sends chunk `chunk` of this rank's sum, and receives those of the peers. */
static status_t share_chunk(struct gloo_comm *comm, const struct gloo_reduction *r, size_t chunk)
{
    int rank = comm->base.rank;
    for (int i = 1; i < comm->base.world; i++) {
        int p = nth_peer(comm, i);
        struct gloo_buffer *data = comm->peers[p].data;
        size_t count = slice_count(r, p);
        if (chunk < chunks_of(comm, count))
            TRY(gloo_receive(data, comm_tag(r->call, 1, chunk),
                             slice_start(r, p) * sizeof(float) + chunk_start_bytes(comm, chunk),
                             chunk_bytes(comm, count, chunk)));
        if (chunk < chunks_of(comm, r->mine))
            TRY(send_to(comm, data, comm_tag(r->call, 1, chunk),
                        slice_start(r, rank) * sizeof(float) + chunk_start_bytes(comm, chunk),
                        chunk_bytes(comm, r->mine, chunk)));
    }
    return NULL;
}

static status_t reduce(struct gloo_comm *comm, const struct gloo_reduction *r, size_t in_elements)
{
    const struct comm_call *call = r->call;
    int world = comm->base.world;
    size_t chunks = chunks_of(comm, r->each);
    for (int i = 1; i < world; i++) {
        int p = nth_peer(comm, i);
        TRY(open_buffer(comm, p, (void *)call->in, in_elements * sizeof(float),
                        &comm->peers[p].data));
        TRY(open_buffer(comm, p, scratch_of(comm, call, p, 0), chunk_start_bytes(comm, 2),
                        &comm->peers[p].scratch));
    }
    for (size_t chunk = 0; chunk < 2; chunk++) TRY(expect_chunk(comm, r, chunk));
    for (size_t chunk = 0; chunk < WINDOW && chunk < chunks; chunk++)
        TRY(offer_chunk(comm, r, chunk));
    for (size_t chunk = 0; chunk < chunks; chunk++) {
        if (chunk < chunks_of(comm, r->mine)) {
            TRY(sum_chunk(comm, r, chunk));
            TRY(expect_chunk(comm, r, chunk + 2));
        }
        if (r->share) TRY(share_chunk(comm, r, chunk));
        if (chunk + WINDOW < chunks) TRY(offer_chunk(comm, r, chunk + WINDOW));
    }
    for (int i = 1; i < world; i++) {
        int p = nth_peer(comm, i);
        size_t received = r->share ? chunks_of(comm, slice_count(r, p)) : 0;
        size_t sent =
            chunks_of(comm, slice_count(r, p)) + (r->share ? chunks_of(comm, r->mine) : 0);
        while (received-- > 0) TRY(gloo_wait_received(comm->peers[p].data, r->deadline_ns));
        while (sent-- > 0) TRY(gloo_wait_sent(comm->peers[p].data, r->deadline_ns));
    }
    return NULL;
}

static status_t gloo_reduce_scatter(struct gloo_comm *comm, const struct comm_call *call,
                                    int64_t deadline_ns)
{
    struct gloo_reduction r = {.call = call,
                               .size = dtype_size(call->dtype),
                               .each = call->count,
                               .mine = call->count,
                               .out = call->out,
                               .deadline_ns = deadline_ns};
    return reduce(comm, &r, call->count * (size_t)comm->base.world);
}

/* For few elements: all ranks send everything to all ranks, in one round. */
static status_t all_reduce_small(struct gloo_comm *comm, const struct comm_call *call,
                                 int64_t deadline_ns)
{
    int world = comm->base.world;
    size_t bytes = call->count * sizeof(float);
    for (int i = 1; i < world; i++) {
        int p = nth_peer(comm, i);
        struct gloo_peer *peer = &comm->peers[p];
        TRY(open_buffer(comm, p, scratch_of(comm, call, p, 0), bytes, &peer->scratch));
        TRY(gloo_receive(peer->scratch, comm_tag(call, 0, 0), 0, bytes));
        TRY(open_buffer(comm, p, call->out, bytes, &peer->data));
        TRY(send_to(comm, peer->data, comm_tag(call, 0, 0), 0, bytes));
    }
    for (int p = 0; p < world; p++) comm->parts[p] = (const float *)scratch_of(comm, call, p, 0);
    comm->parts[comm->base.rank] = call->out;
    for (int i = 1; i < world; i++) {
        struct gloo_peer *peer = &comm->peers[nth_peer(comm, i)];
        TRY(gloo_wait_received(peer->scratch, deadline_ns));
        TRY(gloo_wait_sent(peer->data, deadline_ns));
    }
    kernel_sum_ordered(call->count, call->out, comm->parts, world, call->scale);
    return NULL;
}

/*
 * The parts are in the lower half of the buffer. This rank's sum is computed in the upper half;
 * when every part has been sent, it is moved into place, and all ranks exchange their sums.
 */
static status_t all_reduce_bf16(struct gloo_comm *comm, const struct comm_call *call,
                                int64_t deadline_ns)
{
    int world = comm->base.world, rank = comm->base.rank;
    struct gloo_reduction r = {.call = call,
                               .slices = true,
                               .size = dtype_size(call->dtype),
                               .each = (call->count + (size_t)world - 1) / (size_t)world,
                               .out = comm_upper_half(call),
                               .deadline_ns = deadline_ns};
    r.mine = slice_count(&r, rank);
    TRY(reduce(comm, &r, call->count));
    size_t start = slice_start(&r, rank) * sizeof(float), bytes = r.mine * sizeof(float);
    memmove((char *)call->out + start, r.out, bytes);
    for (int i = 1; i < world; i++) {
        int p = nth_peer(comm, i);
        struct gloo_buffer *data = comm->peers[p].data;
        size_t theirs = slice_count(&r, p) * sizeof(float);
        if (theirs > 0)
            TRY(gloo_receive(data, comm_tag(call, 1, 0), slice_start(&r, p) * sizeof(float),
                             theirs));
        if (bytes > 0) TRY(send_to(comm, data, comm_tag(call, 1, 0), start, bytes));
    }
    for (int i = 1; i < world; i++) {
        int p = nth_peer(comm, i);
        if (slice_count(&r, p) > 0) TRY(gloo_wait_received(comm->peers[p].data, deadline_ns));
        if (bytes > 0) TRY(gloo_wait_sent(comm->peers[p].data, deadline_ns));
    }
    return NULL;
}

static status_t gloo_all_reduce(struct gloo_comm *comm, const struct comm_call *call,
                                int64_t deadline_ns)
{
    if (call->dtype == DTYPE_BF16) return all_reduce_bf16(comm, call, deadline_ns);
    if (call->count <= SMALL_ELEMENTS) return all_reduce_small(comm, call, deadline_ns);
    size_t world = (size_t)comm->base.world;
    struct gloo_reduction r = {.call = call,
                               .share = true,
                               .slices = true,
                               .size = sizeof(float),
                               /* a multiple of 16 elements: slices start on cache lines */
                               .each = ((call->count + world - 1) / world + 15) / 16 * 16,
                               .deadline_ns = deadline_ns};
    r.mine = slice_count(&r, comm->base.rank);
    r.out = call->out + slice_start(&r, comm->base.rank);
    return reduce(comm, &r, call->count);
}

static status_t gloo_broadcast(struct gloo_comm *comm, const struct comm_call *call,
                               int64_t deadline_ns)
{
    bool root = comm->base.rank == call->root;
    for (int i = 1; i < comm->base.world; i++) {
        int p = nth_peer(comm, i);
        struct gloo_buffer **data = &comm->peers[p].data;
        if (!root && p != call->root) continue;
        TRY(open_buffer(comm, p, call->out, call->count, data));
        if (root) TRY(send_to(comm, *data, comm_tag(call, 0, 0), 0, call->count));
        else TRY(gloo_receive(*data, comm_tag(call, 0, 0), 0, call->count));
    }
    for (int i = 1; i < comm->base.world && root; i++)
        TRY(gloo_wait_sent(comm->peers[nth_peer(comm, i)].data, deadline_ns));
    return root ? NULL : gloo_wait_received(comm->peers[call->root].data, deadline_ns);
}

static status_t gloo_gather(struct gloo_comm *comm, const struct comm_call *call,
                            int64_t deadline_ns)
{
    size_t bytes = call->count * sizeof(float);
    if (comm->base.rank != call->root) {
        struct gloo_buffer **data = &comm->peers[call->root].data;
        TRY(open_buffer(comm, call->root, (void *)call->in, bytes, data));
        TRY(send_to(comm, *data, comm_tag(call, 0, 0), 0, bytes));
        return gloo_wait_sent(*data, deadline_ns);
    }
    for (int i = 1; i < comm->base.world; i++) {
        int p = nth_peer(comm, i);
        struct gloo_buffer **result = &comm->peers[p].result;
        TRY(open_buffer(comm, p, call->out + call->count * (size_t)p, bytes, result));
        TRY(gloo_receive(*result, comm_tag(call, 0, 0), 0, bytes));
    }
    float *own = call->out + call->count * (size_t)call->root;
    if (own != call->in) memcpy(own, call->in, bytes);
    for (int i = 1; i < comm->base.world; i++)
        TRY(gloo_wait_received(comm->peers[nth_peer(comm, i)].result, deadline_ns));
    return NULL;
}

static status_t gloo_shift(struct gloo_comm *comm, const struct comm_call *call,
                           int64_t deadline_ns)
{
    int world = comm->base.world, rank = comm->base.rank;
    int to = (rank + call->root) % world, from = (rank + world - call->root) % world;
    size_t bytes = call->count * sizeof(float);
    struct gloo_buffer **result = &comm->peers[from].result, **data = &comm->peers[to].data;
    TRY(open_buffer(comm, from, call->out, bytes, result));
    TRY(gloo_receive(*result, comm_tag(call, 0, 0), 0, bytes));
    TRY(open_buffer(comm, to, (void *)call->in, bytes, data));
    TRY(send_to(comm, *data, comm_tag(call, 0, 0), 0, bytes));
    TRY(gloo_wait_received(*result, deadline_ns));
    return gloo_wait_sent(*data, deadline_ns);
}

/* The end of this rank's pieces in its `in`, or in its `out`. */
static size_t extent_of(const struct gloo_comm *comm, const struct comm_call *call, bool sends)
{
    int64_t end = 0;
    for (int i = 0; i < call->piece_count; i++) {
        const struct comm_piece *it = &call->pieces[i];
        int64_t start = sends ? it->source : it->target;
        if ((sends ? it->from : it->to) == comm->base.rank && start + it->count > end)
            end = start + it->count;
    }
    return (size_t)end * sizeof(float);
}

/* All pieces at once; their numbers distinguish those of the same two ranks. */
static status_t gloo_exchange(struct gloo_comm *comm, const struct comm_call *call,
                              int64_t deadline_ns)
{
    int rank = comm->base.rank;
    size_t in = extent_of(comm, call, true), out = extent_of(comm, call, false);
    for (int i = 1; i < comm->base.world; i++) {
        int p = nth_peer(comm, i);
        struct gloo_peer *peer = &comm->peers[p];
        if (in > 0) TRY(open_buffer(comm, p, (void *)call->in, in, &peer->data));
        if (out > 0) TRY(open_buffer(comm, p, call->out, out, &peer->result));
    }
    for (int pass = 0; pass < 4; pass++)
        for (int i = 0; i < call->piece_count; i++) {
            const struct comm_piece *it = &call->pieces[i];
            size_t bytes = (size_t)it->count * sizeof(float);
            uint64_t tag = comm_tag(call, 0, (size_t)i);
            bool receives = it->to == rank && it->from != rank && bytes > 0;
            bool sends = it->from == rank && it->to != rank && bytes > 0;
            if (receives && pass == 0)
                TRY(gloo_receive(comm->peers[it->from].result, tag,
                                 (size_t)it->target * sizeof(float), bytes));
            if (sends && pass == 1)
                TRY(send_to(comm, comm->peers[it->to].data, tag, (size_t)it->source * sizeof(float),
                            bytes));
            if (receives && pass == 2)
                TRY(gloo_wait_received(comm->peers[it->from].result, deadline_ns));
            if (sends && pass == 3) TRY(gloo_wait_sent(comm->peers[it->to].data, deadline_ns));
        }
    return NULL;
}

static status_t gloo_barrier(struct gloo_comm *comm, const struct comm_call *call,
                             int64_t deadline_ns)
{
    for (int i = 1; i < comm->base.world; i++) {
        int p = nth_peer(comm, i);
        struct gloo_peer *peer = &comm->peers[p];
        TRY(open_buffer(comm, p, &comm->tokens[p], 1, &peer->result));
        TRY(gloo_receive(peer->result, comm_tag(call, 0, 0), 0, 1));
        TRY(open_buffer(comm, p, &comm->token, 1, &peer->data));
        TRY(gloo_send(peer->data, comm_tag(call, 0, 0), 0, 1));
    }
    for (int i = 1; i < comm->base.world; i++) {
        TRY(gloo_wait_received(comm->peers[nth_peer(comm, i)].result, deadline_ns));
        TRY(gloo_wait_sent(comm->peers[nth_peer(comm, i)].data, deadline_ns));
    }
    return NULL;
}

static status_t gloo_run(struct comm *base, const struct comm_call *call)
{
    struct gloo_comm *comm = gloo_comm(base);
    int64_t deadline_ns = clock_monotonic_ns() + base->timeout_ms * 1000000;
    status_t status = NULL;
    switch (call->kind) {
    case COMM_ALL_GATHER: status = gloo_all_gather(comm, call, deadline_ns); break;
    case COMM_REDUCE_SCATTER: status = gloo_reduce_scatter(comm, call, deadline_ns); break;
    case COMM_ALL_REDUCE: status = gloo_all_reduce(comm, call, deadline_ns); break;
    case COMM_BROADCAST: status = gloo_broadcast(comm, call, deadline_ns); break;
    case COMM_GATHER: status = gloo_gather(comm, call, deadline_ns); break;
    case COMM_SHIFT: status = gloo_shift(comm, call, deadline_ns); break;
    case COMM_EXCHANGE: status = gloo_exchange(comm, call, deadline_ns); break;
    case COMM_BARRIER: status = gloo_barrier(comm, call, deadline_ns); break;
    }
    /* Unfinished transfers may refer to memory until their connection is closed. */
    if (status != NULL) gloo_link_quit(comm->link);
    for (int p = 0; p < base->world; p++) {
        gloo_buffer_free(comm->peers[p].data);
        gloo_buffer_free(comm->peers[p].result);
        gloo_buffer_free(comm->peers[p].scratch);
        comm->peers[p] = (struct gloo_peer){0};
    }
    return status;
}

static void gloo_quit(struct comm *comm, const char *why)
{
    (void)why;
    if (gloo_comm(comm)->link != NULL) gloo_link_quit(gloo_comm(comm)->link);
}

static void gloo_free(struct comm *base)
{
    struct gloo_comm *comm = gloo_comm(base);
    if (base->whole == NULL) gloo_link_free(comm->link);
    free(comm->link_ranks);
    free(comm->tokens);
    free(comm->parts);
    free(comm->low_parts);
    free(comm->peers);
    comm_deinit(base);
    free(comm);
}

static status_t gloo_split(struct comm *comm, const int *ranks, int count, int rank, int number,
                           struct comm **part);

static struct gloo_comm *gloo_new(struct gloo_link *link, int rank, int world, int64_t timeout_ms)
{
    static const struct comm_table table = {
        .name = "gloo", .run = gloo_run, .quit = gloo_quit, .free = gloo_free, .split = gloo_split};
    struct gloo_comm *comm = mem_alloc(sizeof *comm);
    comm_init(&comm->base, &table, rank, world, timeout_ms);
    comm->link = link;
    comm->chunk = comm_chunk_elements(world);
    comm->peers = mem_alloc_array((size_t)world, sizeof *comm->peers);
    comm->parts = mem_alloc_array((size_t)world, sizeof *comm->parts);
    comm->low_parts = mem_alloc_array((size_t)world, sizeof *comm->low_parts);
    comm->tokens = mem_alloc((size_t)world);
    return comm;
}

static status_t gloo_split(struct comm *comm, const int *ranks, int count, int rank, int number,
                           struct comm **result)
{
    (void)number; /* it is part of the tags */
    struct gloo_comm *part = gloo_new(gloo_comm(comm)->link, rank, count, comm->timeout_ms);
    part->link_ranks = mem_dup(ranks, (size_t)count * sizeof *ranks);
    *result = &part->base;
    return NULL;
}

status_t comm_gloo_new(int rank, int world, const char *address, const char *group,
                       const struct rendezvous *store, int64_t join_ms, int64_t timeout_ms,
                       struct comm **result)
{
    if (world < 1 || rank < 0 || rank >= world)
        return status_new(STATUS_INVALID_ARGUMENT, "rank %d of %d", rank, world);
    if (timeout_ms < 1 || join_ms < 1)
        return status_new(STATUS_INVALID_ARGUMENT, "a group's timeout must be positive");
    struct gloo_link *link = NULL;
    if (world > 1) TRY(gloo_link_new(rank, world, address, group, store, join_ms, &link));
    *result = &gloo_new(link, rank, world, timeout_ms)->base;
    return NULL;
}
