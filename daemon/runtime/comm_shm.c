/*
 * The communicator of ranks on one host: collectives through shared memory, in pieces that fit a
 * slot. A rank copies the data that its peers need into its own slots, and they read it there: a
 * gather copies it to its place, a reduction adds it from the slot. The rank that owns a slice sums
 * it in rank order, as in comm_gloo.c, so sums have the same bits.
 *
 * Ranks cannot deadlock. The number of pieces that a rank posts ahead is limited so that it needs a
 * slot again only after peers at its own step or behind could read the slot's piece: for a gather
 * as many pieces as there are slots; for a reduction as many pieces as there are slots for one
 * piece per peer, or two if sums are shared, too. So the rank that is furthest behind can always
 * continue.
 *
 * Runs on the lane's thread; shm_quit on any.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kernels/kernels.h"
#include "runtime/comm_table.h"
#include "runtime/shm_link.h"

enum { SMALL_ELEMENTS = 2048 }; /* an all_reduce up to this size is one exchange of everything */

struct shm_comm {
    struct comm base;
    struct shm_link *link; /* the whole's, if this is a part */
    int *ranks;            /* (world): each member's rank in the link */
    const float **parts;   /* (world): scratch for kernel_sum_ordered, and of bf16 */
    const uint16_t **low_parts;
    int64_t deadline_ns; /* of the collective in progress */
};

static struct shm_comm *shm_comm(struct comm *comm)
{
    return (struct shm_comm *)comm;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- Messages ---- */

static uint64_t bit_of(const struct shm_comm *comm, int rank)
{
    return UINT64_C(1) << comm->ranks[rank];
}

static uint64_t others(const struct shm_comm *comm)
{
    uint64_t all = 0;
    for (int r = 0; r < comm->base.world; r++)
        if (r != comm->base.rank) all |= bit_of(comm, r);
    return all;
}

static status_t post(struct shm_comm *comm, uint64_t readers, uint64_t tag, const void *data,
                     size_t bytes)
{
    TRY(shm_post(comm->link, readers, tag, data, bytes, comm->deadline_ns));
    comm_count_sent(&comm->base, bytes * (uint64_t)__builtin_popcountll(readers));
    return NULL;
}

static status_t read_begin(struct shm_comm *comm, int from, uint64_t tag, const void **data)
{
    return shm_read_begin(comm->link, comm->ranks[from], tag, data, comm->deadline_ns);
}

static void read_end(struct shm_comm *comm, int from)
{
    shm_read_end(comm->link, comm->ranks[from]);
}

static status_t read_into(struct shm_comm *comm, int from, uint64_t tag, void *out, size_t bytes)
{
    const void *data;
    TRY(read_begin(comm, from, tag, &data));
    if (bytes > 0) memcpy(out, data, bytes);
    read_end(comm, from);
    return NULL;
}

/* The peers in the order in which this rank serves them; every rank starts with a different one. */
static int nth_peer(const struct shm_comm *comm, int i)
{
    return (comm->base.rank + i) % comm->base.world;
}

/* ---- Slices and pieces ---- */

/* Memory divided into one slice per rank; the last ones may be shorter. */
struct cut {
    size_t each, total;
};

static size_t start_of(struct cut cut, int rank)
{
    return least(cut.each * (size_t)rank, cut.total);
}

static size_t count_of(struct cut cut, int rank)
{
    return least(cut.each, cut.total - start_of(cut, rank));
}

/* The size of piece number `piece` of `count`; 0 if there is none. */
static size_t piece_of(size_t count, size_t piece_size, size_t piece)
{
    size_t start = piece * piece_size;
    return start < count ? least(count - start, piece_size) : 0;
}

static size_t pieces_of(size_t count, size_t piece_size)
{
    return (count + piece_size - 1) / piece_size;
}

/* ---- Gathers ---- */

/* A gather of slices into `out`, in bytes; this rank's slice is at `own`. */
struct shm_gathering {
    const struct comm_call *call;
    unsigned phase;
    struct cut cut;
    const char *own;
    char *out;
};

static status_t post_piece(struct shm_comm *comm, const struct shm_gathering *g, size_t piece)
{
    size_t size = shm_link_slot_bytes(comm->link);
    size_t bytes = piece_of(count_of(g->cut, comm->base.rank), size, piece);
    if (bytes == 0) return NULL;
    return post(comm, others(comm), comm_tag(g->call, g->phase, piece), g->own + piece * size,
                bytes);
}

static status_t read_piece(struct shm_comm *comm, const struct shm_gathering *g, size_t piece)
{
    size_t size = shm_link_slot_bytes(comm->link);
    for (int i = 1; i < comm->base.world; i++) {
        int p = nth_peer(comm, i);
        size_t bytes = piece_of(count_of(g->cut, p), size, piece);
        if (bytes > 0)
            TRY(read_into(comm, p, comm_tag(g->call, g->phase, piece),
                          g->out + start_of(g->cut, p) + piece * size, bytes));
    }
    return NULL;
}

static status_t gather_slices(struct shm_comm *comm, const struct shm_gathering *g)
{
    size_t pieces = pieces_of(g->cut.each, shm_link_slot_bytes(comm->link));
    size_t ahead = (size_t)shm_link_slots(comm->link);
    for (size_t piece = 0; piece < ahead; piece++) TRY(post_piece(comm, g, piece));
    for (size_t piece = 0; piece < pieces; piece++) {
        TRY(read_piece(comm, g, piece));
        TRY(post_piece(comm, g, piece + ahead));
    }
    return NULL;
}

static status_t shm_all_gather(struct shm_comm *comm, const struct comm_call *call)
{
    size_t bytes = call->count * dtype_size(call->dtype);
    struct shm_gathering g = {.call = call,
                              .cut = {bytes, bytes * (size_t)comm->base.world},
                              .own = (const char *)call->in,
                              .out = (char *)call->out};
    char *place = g.out + start_of(g.cut, comm->base.rank);
    if (place != g.own) memcpy(place, g.own, bytes);
    return gather_slices(comm, &g);
}

static status_t shm_broadcast(struct shm_comm *comm, const struct comm_call *call)
{
    size_t size = shm_link_slot_bytes(comm->link), pieces = pieces_of(call->count, size);
    for (size_t piece = 0; piece < pieces; piece++) {
        char *at = (char *)call->out + piece * size;
        size_t bytes = piece_of(call->count, size, piece);
        uint64_t tag = comm_tag(call, 0, piece);
        if (comm->base.rank == call->root) TRY(post(comm, others(comm), tag, at, bytes));
        else TRY(read_into(comm, call->root, tag, at, bytes));
    }
    return NULL;
}

static status_t shm_gather(struct shm_comm *comm, const struct comm_call *call)
{
    size_t bytes = call->count * sizeof(float), size = shm_link_slot_bytes(comm->link);
    size_t pieces = pieces_of(bytes, size);
    if (comm->base.rank != call->root) {
        for (size_t piece = 0; piece < pieces; piece++)
            TRY(post(comm, bit_of(comm, call->root), comm_tag(call, 0, piece),
                     (const char *)call->in + piece * size, piece_of(bytes, size, piece)));
        return NULL;
    }
    char *own = (char *)call->out + bytes * (size_t)call->root;
    if (own != (const char *)call->in) memcpy(own, call->in, bytes);
    for (size_t piece = 0; piece < pieces; piece++)
        for (int i = 1; i < comm->base.world; i++) {
            int p = nth_peer(comm, i);
            TRY(read_into(comm, p, comm_tag(call, 0, piece),
                          (char *)call->out + bytes * (size_t)p + piece * size,
                          piece_of(bytes, size, piece)));
        }
    return NULL;
}

static status_t post_shifted(struct shm_comm *comm, const struct comm_call *call, size_t piece)
{
    size_t size = shm_link_slot_bytes(comm->link);
    size_t bytes = piece_of(call->count * sizeof(float), size, piece);
    if (bytes == 0) return NULL;
    return post(comm, bit_of(comm, (comm->base.rank + call->root) % comm->base.world),
                comm_tag(call, 0, piece), (const char *)call->in + piece * size, bytes);
}

static status_t shm_shift(struct shm_comm *comm, const struct comm_call *call)
{
    size_t bytes = call->count * sizeof(float), size = shm_link_slot_bytes(comm->link);
    size_t pieces = pieces_of(bytes, size), ahead = (size_t)shm_link_slots(comm->link);
    int from = (comm->base.rank + comm->base.world - call->root) % comm->base.world;
    for (size_t piece = 0; piece < ahead; piece++) TRY(post_shifted(comm, call, piece));
    for (size_t piece = 0; piece < pieces; piece++) {
        TRY(read_into(comm, from, comm_tag(call, 0, piece), (char *)call->out + piece * size,
                      piece_of(bytes, size, piece)));
        TRY(post_shifted(comm, call, piece + ahead));
    }
    return NULL;
}

/* One piece after the other, in the order that all ranks have: the first that is not done has room
 * in its sender's slots, since their readers are done with all before it. */
static status_t shm_exchange(struct shm_comm *comm, const struct comm_call *call)
{
    size_t size = shm_link_slot_bytes(comm->link), number = 0;
    for (int i = 0; i < call->piece_count; i++) {
        const struct comm_piece *it = &call->pieces[i];
        size_t bytes = (size_t)it->count * sizeof(float), pieces = pieces_of(bytes, size);
        const char *source = (const char *)(call->in + it->source);
        char *target = (char *)(call->out + it->target);
        if (it->from == it->to) continue;
        for (size_t piece = 0; piece < pieces; piece++, number++) {
            size_t now = piece_of(bytes, size, piece), at = piece * size;
            uint64_t tag = comm_tag(call, 0, number);
            if (it->from == comm->base.rank)
                TRY(post(comm, bit_of(comm, it->to), tag, source + at, now));
            if (it->to == comm->base.rank) TRY(read_into(comm, it->from, tag, target + at, now));
        }
    }
    return NULL;
}

static status_t shm_barrier(struct shm_comm *comm, const struct comm_call *call)
{
    TRY(post(comm, others(comm), comm_tag(call, 0, 0), NULL, 0));
    for (int i = 1; i < comm->base.world; i++)
        TRY(read_into(comm, nth_peer(comm, i), comm_tag(call, 0, 0), NULL, 0));
    return NULL;
}

/* ---- Reductions ---- */

/*
 * A reduction: rank r sums slice r of every rank's `in`. A reduce_scatter keeps the sum; an
 * all_reduce (`share`) sends every piece to all peers as soon as it is complete, into their
 * `call->out`, whose old contents this rank has read before.
 */
struct shm_reduction {
    const struct comm_call *call;
    bool share;
    size_t size;  /* of a part's element */
    size_t piece; /* elements */
    struct cut cut;
    float *out; /* destination of this rank's sum */
};

static status_t offer_piece(struct shm_comm *comm, const struct shm_reduction *r, size_t piece)
{
    for (int i = 1; i < comm->base.world; i++) {
        int p = nth_peer(comm, i);
        size_t count = piece_of(count_of(r->cut, p), r->piece, piece);
        if (count == 0) continue;
        size_t start = start_of(r->cut, p) + piece * r->piece;
        TRY(post(comm, bit_of(comm, p), comm_tag(r->call, 0, piece),
                 (const char *)r->call->in + start * r->size, count * r->size));
    }
    return NULL;
}

static void sum_parts(struct shm_comm *comm, const struct comm_call *call, size_t count, float *out)
{
    if (call->dtype == DTYPE_BF16)
        kernel_sum_ordered_bf16(count, out, comm->low_parts, comm->base.world, call->scale);
    else kernel_sum_ordered(count, out, comm->parts, comm->base.world, call->scale);
}

/* Sums the parts of all ranks: this one's at `own`, the peers' in their messages, which stay open
 * together. */
static status_t sum_messages(struct shm_comm *comm, const struct comm_call *call, size_t piece,
                             const void *own, size_t count, float *out)
{
    for (int p = 0; p < comm->base.world; p++) {
        const void *data = own;
        if (p != comm->base.rank) TRY(read_begin(comm, p, comm_tag(call, 0, piece), &data));
        comm->parts[p] = data;
        comm->low_parts[p] = data;
    }
    sum_parts(comm, call, count, out);
    for (int i = 1; i < comm->base.world; i++) read_end(comm, nth_peer(comm, i));
    return NULL;
}

static status_t sum_piece(struct shm_comm *comm, const struct shm_reduction *r, size_t piece)
{
    int rank = comm->base.rank;
    size_t count = piece_of(count_of(r->cut, rank), r->piece, piece);
    if (count == 0) return NULL;
    const char *own =
        (const char *)r->call->in + (start_of(r->cut, rank) + piece * r->piece) * r->size;
    return sum_messages(comm, r->call, piece, own, count, r->out + piece * r->piece);
}

static status_t reduce(struct shm_comm *comm, const struct shm_reduction *r)
{
    /* Gathers the finished sums, in bytes. */
    struct shm_gathering sums = {
        .call = r->call,
        .phase = 1,
        .cut = {r->cut.each * sizeof(float), r->cut.total * sizeof(float)},
        .own = (const char *)r->out,
        .out = (char *)r->call->out,
    };
    size_t pieces = pieces_of(r->cut.each, r->piece);
    size_t ahead = r->share ? 2 : (size_t)(shm_link_slots(comm->link) / (comm->base.world - 1));
    for (size_t piece = 0; piece < ahead; piece++) TRY(offer_piece(comm, r, piece));
    for (size_t piece = 0; piece < pieces; piece++) {
        TRY(sum_piece(comm, r, piece));
        if (r->share) TRY(post_piece(comm, &sums, piece));
        if (r->share) TRY(read_piece(comm, &sums, piece));
        TRY(offer_piece(comm, r, piece + ahead));
    }
    return NULL;
}

static struct shm_reduction reduction_of(const struct shm_comm *comm, const struct comm_call *call,
                                         struct cut cut)
{
    size_t size = dtype_size(call->dtype);
    return (struct shm_reduction){.call = call,
                                  .size = size,
                                  .piece = shm_link_slot_bytes(comm->link) / size,
                                  .cut = cut,
                                  .out = call->out};
}

static status_t shm_reduce_scatter(struct shm_comm *comm, const struct comm_call *call)
{
    struct shm_reduction r =
        reduction_of(comm, call, (struct cut){call->count, call->count * (size_t)comm->base.world});
    return reduce(comm, &r);
}

static status_t all_reduce_small(struct shm_comm *comm, const struct comm_call *call)
{
    TRY(post(comm, others(comm), comm_tag(call, 0, 0), call->in, call->count * sizeof(float)));
    return sum_messages(comm, call, 0, call->in, call->count, call->out);
}

/* The slices of an all_reduce; they start on cache lines. */
static struct cut cut_of(const struct shm_comm *comm, size_t count)
{
    size_t world = (size_t)comm->base.world;
    return (struct cut){((count + world - 1) / world + 15) / 16 * 16, count};
}

/* The parts are in the lower half of the buffer. This rank's sum is computed in the upper half;
 * when every peer has read its part, the sum is moved into place, and all ranks exchange their
 * sums. */
static status_t all_reduce_bf16(struct shm_comm *comm, const struct comm_call *call)
{
    int rank = comm->base.rank;
    size_t world = (size_t)comm->base.world;
    struct shm_reduction r =
        reduction_of(comm, call, (struct cut){(call->count + world - 1) / world, call->count});
    r.out = comm_upper_half(call);
    TRY(reduce(comm, &r));
    float *place = call->out + start_of(r.cut, rank);
    memmove(place, r.out, count_of(r.cut, rank) * sizeof(float));
    struct shm_gathering g = {.call = call,
                              .phase = 1,
                              .cut = {r.cut.each * sizeof(float), r.cut.total * sizeof(float)},
                              .own = (const char *)place,
                              .out = (char *)call->out};
    return gather_slices(comm, &g);
}

static status_t shm_all_reduce(struct shm_comm *comm, const struct comm_call *call)
{
    if (call->dtype == DTYPE_BF16) return all_reduce_bf16(comm, call);
    if (call->count <= SMALL_ELEMENTS) return all_reduce_small(comm, call);
    struct shm_reduction r = reduction_of(comm, call, cut_of(comm, call->count));
    r.share = true;
    r.out = call->out + start_of(r.cut, comm->base.rank);
    return reduce(comm, &r);
}

/* ---- The table ---- */

static status_t shm_run(struct comm *base, const struct comm_call *call)
{
    struct shm_comm *comm = shm_comm(base);
    comm->deadline_ns = clock_monotonic_ns() + base->timeout_ms * 1000000;
    switch (call->kind) {
    case COMM_ALL_GATHER: return shm_all_gather(comm, call);
    case COMM_REDUCE_SCATTER: return shm_reduce_scatter(comm, call);
    case COMM_ALL_REDUCE: return shm_all_reduce(comm, call);
    case COMM_BROADCAST: return shm_broadcast(comm, call);
    case COMM_GATHER: return shm_gather(comm, call);
    case COMM_SHIFT: return shm_shift(comm, call);
    case COMM_EXCHANGE: return shm_exchange(comm, call);
    case COMM_BARRIER: return shm_barrier(comm, call);
    }
    return NULL;
}

static void shm_quit(struct comm *comm, const char *why)
{
    (void)why;
    shm_link_quit(shm_comm(comm)->link);
}

static void shm_free(struct comm *base)
{
    struct shm_comm *comm = shm_comm(base);
    if (base->whole == NULL) shm_link_free(comm->link);
    free(comm->ranks);
    free(comm->parts);
    free(comm->low_parts);
    comm_deinit(base);
    free(comm);
}

static status_t shm_split(struct comm *comm, const int *ranks, int count, int rank, int number,
                          struct comm **part);

static struct shm_comm *shm_new(struct shm_link *link, int rank, int world, int64_t timeout_ms)
{
    static const struct comm_table table = {.name = "shared memory",
                                            .run = shm_run,
                                            .quit = shm_quit,
                                            .free = shm_free,
                                            .split = shm_split};
    struct shm_comm *comm = mem_alloc(sizeof *comm);
    comm_init(&comm->base, &table, rank, world, timeout_ms);
    comm->link = link;
    comm->ranks = mem_alloc_array((size_t)world, sizeof *comm->ranks);
    comm->parts = mem_alloc_array((size_t)world, sizeof *comm->parts);
    comm->low_parts = mem_alloc_array((size_t)world, sizeof *comm->low_parts);
    return comm;
}

static status_t shm_split(struct comm *comm, const int *ranks, int count, int rank, int number,
                          struct comm **result)
{
    (void)number; /* it is part of the tags */
    struct shm_comm *part = shm_new(shm_comm(comm)->link, rank, count, comm->timeout_ms);
    memcpy(part->ranks, ranks, (size_t)count * sizeof *ranks);
    *result = &part->base;
    return NULL;
}

status_t comm_host_new(int rank, int world, const char *address, const char *group,
                       const struct rendezvous *store, int64_t join_ms, int64_t timeout_ms,
                       bool shared, struct comm **result)
{
    int64_t deadline_ns = clock_monotonic_ns() + join_ms * 1000000;
    struct shm_link *link = NULL;
    if (world > 1 && world <= SHM_RANKS_MAX && rank >= 0 && rank < world && shared)
        TRY(shm_link_new(rank, world, group, store, join_ms, &link));
    if (link == NULL) {
        int64_t left_ms = (deadline_ns - clock_monotonic_ns()) / 1000000;
        return comm_gloo_new(rank, world, address, group, store, left_ms > 1 ? left_ms : 1,
                             timeout_ms, result);
    }
    struct shm_comm *comm = shm_new(link, rank, world, timeout_ms);
    for (int r = 0; r < world; r++) comm->ranks[r] = r;
    *result = &comm->base;
    return NULL;
}
