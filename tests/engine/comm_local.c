/* See comm_local.h. */
#include "comm_local.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kernels/kernels.h"
#include "runtime/comm_table.h"

struct local_rank {
    const struct comm_call *call; /* the collective it is in; valid once it arrived */
    bool arrived;                 /* at the barrier */
    bool busy;  /* between the barriers of a collective: may be reading its peers' memory */
    char *lost; /* the reason why it takes no further part; NULL while it does */
};

struct local_group;

/* A part of the group that some of its ranks have not created yet. */
struct local_part {
    int number, first_rank;
    int missing; /* ranks */
    struct local_group *group;
    struct local_part *next;
};

struct local_group {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int world, members;
    int arrived;
    uint64_t generation; /* barriers passed */
    struct local_part *parts;
    struct local_rank ranks[];
};

struct local_comm {
    struct comm base;
    struct local_group *group;
    const float **parts; /* (world): scratch for kernel_sum_ordered, and of bf16 */
    const uint16_t **low_parts;
};

static struct local_comm *local_comm(struct comm *comm)
{
    return (struct local_comm *)comm;
}

/* The peer's part, read only between barriers. */
static const struct comm_call *peer_call(const struct local_comm *comm, int rank)
{
    return comm->group->ranks[rank].call;
}

static status_t wrong_peer(const struct local_group *group, const struct comm_call *mine)
{
    for (int r = 0; r < group->world; r++) {
        const struct local_rank *peer = &group->ranks[r];
        if (peer->lost != NULL && !peer->arrived)
            return status_new(STATUS_UNAVAILABLE, "lost rank %d: %s", r, peer->lost);
        if (peer->arrived && (peer->call->kind != mine->kind || peer->call->count != mine->count ||
                              peer->call->dtype != mine->dtype || peer->call->root != mine->root))
            return status_new(STATUS_INTERNAL, "rank %d is in %s number %" PRIu64 " (%zu)", r,
                              comm_kind_name(peer->call->kind), peer->call->sequence,
                              peer->call->count);
    }
    return NULL;
}

static status_t expired(const struct local_group *group, int64_t timeout_ms)
{
    AUTO(buf_deinit) struct buf missing = {0};
    for (int r = 0; r < group->world; r++)
        if (!group->ranks[r].arrived)
            buf_printf(&missing, "%s%d", missing.length > 0 ? ", " : "", r);
    return status_new(STATUS_DEADLINE_EXCEEDED, "waited %" PRId64 " ms for rank %s", timeout_ms,
                      buf_text(&missing));
}

/* No peer may be reading this rank's memory when it leaves a collective early. */
static void wait_for_readers(struct local_group *group, int self)
{
    for (int r = 0; r < group->world; r++)
        while (r != self && group->ranks[r].busy) pthread_cond_wait(&group->changed, &group->lock);
}

/* `more`: another barrier of the same collective follows. */
static status_t barrier(struct local_comm *comm, const struct comm_call *call, bool more,
                        int64_t deadline_ns)
{
    struct local_group *group = comm->group;
    struct local_rank *self = &group->ranks[comm->base.rank];
    status_t status = NULL;
    pthread_mutex_lock(&group->lock);
    uint64_t generation = group->generation;
    if (self->call != call) self->call = call; /* peers may still be reading it */
    self->arrived = true;
    self->busy = false;
    group->arrived++;
    pthread_cond_broadcast(&group->changed);
    if (group->arrived == group->world && self->lost == NULL) {
        status = wrong_peer(group, call);
        if (status == NULL) {
            for (int r = 0; r < group->world; r++) {
                group->ranks[r].arrived = false;
                group->ranks[r].busy = more;
            }
            group->arrived = 0;
            group->generation++;
        }
    }
    bool late = false;
    while (status == NULL && group->generation == generation) {
        if (self->lost != NULL) status = status_new(STATUS_ABORTED, "%s", self->lost);
        else if ((status = wrong_peer(group, call)) == NULL && late)
            status = expired(group, comm->base.timeout_ms);
        else if (status == NULL) late = !condition_wait(&group->changed, &group->lock, deadline_ns);
    }
    if (status != NULL) {
        if (self->lost == NULL) self->lost = mem_strdup(status_message(status));
        self->arrived = false;
        group->arrived--;
        pthread_cond_broadcast(&group->changed);
        wait_for_readers(group, comm->base.rank);
    }
    pthread_mutex_unlock(&group->lock);
    return status;
}

/* out[0 .. n) = the sum over ranks of their `in` from `start` on. */
static void sum_parts(struct local_comm *comm, const struct comm_call *call, size_t start, size_t n,
                      float *out)
{
    if (call->dtype == DTYPE_BF16) {
        for (int r = 0; r < comm->base.world; r++)
            comm->low_parts[r] = (const uint16_t *)(const void *)peer_call(comm, r)->in + start;
        kernel_sum_ordered_bf16(n, out, comm->low_parts, comm->base.world, call->scale);
        return;
    }
    for (int r = 0; r < comm->base.world; r++) comm->parts[r] = peer_call(comm, r)->in + start;
    kernel_sum_ordered(n, out, comm->parts, comm->base.world, call->scale);
}

static void copy(void *to, const void *from, size_t bytes)
{
    if (to != from && bytes > 0) memcpy(to, from, bytes);
}

/* The slice of an all_reduce that `rank` sums. */
static void slice_of(const struct comm_call *call, int world, int rank, size_t *start,
                     size_t *count)
{
    size_t each = (call->count + (size_t)world - 1) / (size_t)world;
    *start = each * (size_t)rank < call->count ? each * (size_t)rank : call->count;
    *count = call->count - *start < each ? call->count - *start : each;
}

static status_t local_run(struct comm *base, const struct comm_call *call)
{
    struct local_comm *comm = local_comm(base);
    int rank = base->rank, world = base->world;
    size_t n = call->count, start, count, size = dtype_size(call->dtype);
    bool low = call->dtype == DTYPE_BF16;
    int64_t deadline_ns = clock_monotonic_ns() + base->timeout_ms * 1000000;

    TRY(barrier(comm, call, call->kind != COMM_BARRIER, deadline_ns));
    uint64_t sent = 0;
    switch (call->kind) {
    case COMM_ALL_GATHER:
        for (int r = 0; r < world; r++)
            copy((char *)call->out + n * (size_t)r * size, peer_call(comm, r)->in, n * size);
        sent = (uint64_t)(world - 1) * n * size;
        break;
    case COMM_REDUCE_SCATTER:
        /* Peers read only their own parts of `in`, so `out` may lie in this rank's. */
        sum_parts(comm, call, n * (size_t)rank, n, call->out);
        sent = (uint64_t)(world - 1) * n * size;
        break;
    case COMM_ALL_REDUCE:
        slice_of(call, world, rank, &start, &count);
        sum_parts(comm, call, start, count, low ? comm_upper_half(call) : call->out + start);
        TRY(barrier(comm, call, true, deadline_ns));
        if (low) { /* all parts have been read: the sum may overwrite them */
            memmove(call->out + start, comm_upper_half(call), count * sizeof(float));
            TRY(barrier(comm, call, true, deadline_ns));
        }
        for (int r = 0; r < world; r++) {
            slice_of(call, world, r, &start, &count);
            copy(call->out + start, peer_call(comm, r)->in + start, count * sizeof(float));
            if (r == rank)
                sent = ((uint64_t)n - count) * size + (uint64_t)(world - 1) * count * sizeof(float);
        }
        break;
    case COMM_BROADCAST:
        copy(call->out, peer_call(comm, call->root)->in, n);
        sent = rank == call->root ? (uint64_t)(world - 1) * n : 0;
        break;
    case COMM_GATHER:
        for (int r = 0; r < world && rank == call->root; r++)
            copy(call->out + n * (size_t)r, peer_call(comm, r)->in, n * sizeof(float));
        sent = rank != call->root ? n * sizeof(float) : 0;
        break;
    case COMM_SHIFT:
        copy(call->out, peer_call(comm, (rank + world - call->root) % world)->in,
             n * sizeof(float));
        sent = n * sizeof(float);
        break;
    case COMM_EXCHANGE:
        for (int i = 0; i < call->piece_count; i++) {
            const struct comm_piece *it = &call->pieces[i];
            size_t bytes = (size_t)it->count * sizeof(float);
            if (it->from == it->to) continue;
            if (it->to == rank)
                copy(call->out + it->target, peer_call(comm, it->from)->in + it->source, bytes);
            if (it->from == rank) sent += bytes;
        }
        break;
    case COMM_BARRIER: return NULL;
    }
    TRY(barrier(comm, call, false, deadline_ns));
    comm_count_sent(base, sent);
    return NULL;
}

static void local_quit(struct comm *comm, const char *why)
{
    struct local_group *group = local_comm(comm)->group;
    pthread_mutex_lock(&group->lock);
    struct local_rank *self = &group->ranks[comm->rank];
    if (self->lost == NULL) self->lost = mem_strdup(why);
    pthread_cond_broadcast(&group->changed);
    pthread_mutex_unlock(&group->lock);
}

static status_t local_split(struct comm *comm, const int *ranks, int count, int rank, int number,
                            struct comm **result);

static void group_free(struct local_group *group)
{
    /* Parts end before the whole: ranks that joined these have left them. */
    for (struct local_part *part = group->parts, *next; part != NULL; part = next) {
        next = part->next;
        group_free(part->group);
        free(part);
    }
    for (int r = 0; r < group->world; r++) free(group->ranks[r].lost);
    pthread_cond_destroy(&group->changed);
    pthread_mutex_destroy(&group->lock);
    free(group);
}

static void local_free(struct comm *comm)
{
    struct local_group *group = local_comm(comm)->group;
    local_quit(comm, "it left the group");
    pthread_mutex_lock(&group->lock);
    bool last = --group->members == 0;
    pthread_mutex_unlock(&group->lock);
    if (last) group_free(group);
    free(local_comm(comm)->parts);
    free(local_comm(comm)->low_parts);
    comm_deinit(comm);
    free(comm);
}

static struct local_group *group_new(int world)
{
    struct local_group *group = mem_alloc(sizeof *group + (size_t)world * sizeof group->ranks[0]);
    group->world = world;
    group->members = world;
    pthread_mutex_init(&group->lock, NULL);
    condition_init(&group->changed);
    return group;
}

static struct comm *local_new(struct local_group *group, int rank, int64_t timeout_ms)
{
    static const struct comm_table table = {.name = "local",
                                            .run = local_run,
                                            .quit = local_quit,
                                            .free = local_free,
                                            .split = local_split};
    struct local_comm *comm = mem_alloc(sizeof *comm);
    comm_init(&comm->base, &table, rank, group->world, timeout_ms);
    comm->group = group;
    comm->parts = mem_alloc_array((size_t)group->world, sizeof *comm->parts);
    comm->low_parts = mem_alloc_array((size_t)group->world, sizeof *comm->low_parts);
    return &comm->base;
}

/* The first rank creates the part's group; the last one removes it from the whole's list. */
static status_t local_split(struct comm *comm, const int *ranks, int count, int rank, int number,
                            struct comm **result)
{
    struct local_group *whole = local_comm(comm)->group;
    pthread_mutex_lock(&whole->lock);
    struct local_part **at = &whole->parts;
    while (*at != NULL && ((*at)->number != number || (*at)->first_rank != ranks[0]))
        at = &(*at)->next;
    if (*at == NULL) {
        *at = mem_alloc(sizeof **at);
        **at = (struct local_part){.number = number,
                                   .first_rank = ranks[0],
                                   .missing = count,
                                   .group = group_new(count)};
    }
    struct local_part *part = *at;
    struct local_group *group = part->group;
    if (group->world == count && --part->missing == 0) {
        *at = part->next;
        free(part);
    }
    pthread_mutex_unlock(&whole->lock);
    if (group->world != count)
        return status_new(STATUS_INTERNAL, "a part of %d ranks, for others of %d", count,
                          group->world);
    *result = local_new(group, rank, comm->timeout_ms);
    return NULL;
}

status_t comm_local_new(int world, int64_t timeout_ms, struct comm **comms)
{
    if (world < 1 || world > 1024)
        return status_new(STATUS_INVALID_ARGUMENT, "a local group of %d; expected 1 to 1024",
                          world);
    struct local_group *group = group_new(world);
    for (int r = 0; r < world; r++) comms[r] = local_new(group, r, timeout_ms);
    return NULL;
}
