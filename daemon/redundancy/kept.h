/*
 * What a worker's process keeps of a run in host memory, so that the run can continue without the
 * disk after other ranks were lost. Four words are used everywhere:
 *
 *   generation  the state after a step, as the ranks of one attempt had it. Two of them are
 *               kept, so that an update that never ends leaves the one before whole.
 *   primary     a rank's shards in it, with their optimizer slots.
 *   backup      what the rank holds for others, beside its primary:
 *                 replica  nothing: ranks of other replicas have the same shards anyway
 *                 mirror   a copy of the primary of the rank `distance` before it
 *                 parity   the XOR of parts of the primaries of its group
 *   parity      RAID-5 over a group of n ranks: each primary is cut into n - 1 parts, and each
 *               rank stores the XOR of one part of every other rank. In a group of four:
 *
 *                          rank 0       rank 1       rank 2       rank 3
 *                 primary  a0 a1 a2     b0 b1 b2     c0 c1 c2     d0 d1 d2
 *                 backup   b2^c1^d0     a0^c2^d1     a1^b0^d2     a2^b1^c0
 *
 *               If rank 2 is lost, c0 is rank 3's parity XOR a2 XOR b1, and likewise c1 and c2.
 *
 * Where the ranks' processes share memory, a primary is in such memory. Then `mirror`, and `parity`
 * between two ranks, copy nothing: a rank maps the other's primary as its backup, and so keeps it
 * when that rank dies. A mark in that memory says of which generation it is.
 *
 * It outlives attempts; one thread at a time uses it. redundancy/protect.h fills it,
 * redundancy/recover.h reads it.
 */
#ifndef FSDPD_REDUNDANCY_KEPT_H
#define FSDPD_REDUNDANCY_KEPT_H

#include "base/must.h"
#include "base/shared_memory.h"
#include "checkpoint/capture.h"

enum redundancy { REDUNDANCY_NONE, REDUNDANCY_REPLICA, REDUNDANCY_MIRROR, REDUNDANCY_PARITY };

/* How the ranks of a generation are related. */
struct kept_shape {
    enum redundancy kind;
    int world, rank;
    int distance; /* mirror: to the rank that holds a rank's copy */
    int groups;   /* parity: rank r is in group r % groups */
};

struct kept_piece {
    float *values;
    size_t elements, capacity;
    bool whole;
    struct shared_memory shared; /* that has the values: this rank's, or another's */
};

struct kept_generation {
    uint32_t attempt; /* that took it; 0: there is none */
    uint32_t valid;   /* the last attempt that took it or continued from it */
    struct kept_shape shape;
    struct manifest manifest; /* where in a rank's shards everything lies, and the progress */
    struct kept_piece primary, backup;
};

enum { KEPT_GENERATIONS = 2 };

struct kept {
    char *run; /* NULL: nothing is kept */
    struct kept_generation generations[KEPT_GENERATIONS];
    int last; /* the generation that must not be overwritten */
    struct must_user user;
};

/* Of the run `run`; what is kept of another one is freed. */
void kept_begin(struct kept *kept, const char *run);
void kept_clear(struct kept *kept);
uint64_t kept_bytes(const struct kept *kept);

/* Frees what is kept of attempts before `attempt` that no later one continued from. */
void kept_drop_before(struct kept *kept, uint32_t attempt);

/* The generation that an attempt took after a step, with mirrors at that distance: an attempt that
 * hands its state over may take two of one step. NULL: it is not kept here. */
struct kept_generation *kept_find(struct kept *kept, uint32_t attempt, uint64_t step, int distance);

/* Members of a rank's parity group, and the place of `rank` in it: rank == groups * place + its
 * number. */
static inline int kept_group_size(const struct kept_shape *shape)
{
    int group = shape->rank % shape->groups;
    return (shape->world - group + shape->groups - 1) / shape->groups;
}

/* The member of `rank`'s parity group that is `distance` after it. */
static inline int kept_member_after(const struct kept_shape *of, int rank, int distance)
{
    struct kept_shape shape = *of;
    shape.rank = rank;
    int size = kept_group_size(&shape);
    int place = ((rank / shape.groups + distance) % size + size) % size;
    return rank % shape.groups + place * shape.groups;
}

/* Whether a rank of this shape keeps one other rank's shards, as they are. */
static inline bool kept_is_copy(const struct kept_shape *shape)
{
    return shape->kind == REDUNDANCY_MIRROR ||
           (shape->kind == REDUNDANCY_PARITY && kept_group_size(shape) == 2);
}

/*
 * Mirror: the smallest distance that maximises the ranks whose copy is on another host. hosts: of
 * each rank, a number. As ranks are placed, those of one host are consecutive: then no copy is on
 * its rank's own host, unless more than half of all ranks are on one; and no host has more than one
 * member of a parity group unless it has more ranks than there are groups.
 */
int kept_choose_distance(const uint64_t *hosts, int world);

/* Mirror: a distance at which no rank that leaves has its copy on another one that leaves: `usual`
 * if possible; 0: there is none. leaves: (world). */
int kept_choose_distance_without(const bool *leaves, int world, int usual);

/* Whether the backup is whole: another rank's memory may have a later generation now. */
bool kept_has_backup(const struct kept_generation *generation);

/* Maps the primary that is there as the backup, unless it is mapped already. */
status_t kept_map_backup(struct kept_generation *generation,
                         const struct shared_place *place) FSDPD_MUST_USE;

/* The XOR of the parts' bits; `out` may be one of them. One pass over all of them. */
void kept_xor(float *out, const float *const *parts, int count, size_t elements);

/* Elements of part `part` of a rank's shards, of `parts`, and where it begins. */
size_t kept_part(size_t elements, int parts, int part, size_t *begin);

/* The XOR of part k of `shards[k]`, for each of the `parts`, the last of which may be shorter.
 * `out` is as long as the first one. */
void kept_xor_parts(float *out, const float *const *shards, int parts, size_t elements);

/* Elements of all that a rank keeps of the units' shards and slots, one after the other; and of one
 * unit. What is in 8 bits counts as the floats that its words take. */
size_t kept_elements(const struct manifest *manifest);
size_t kept_unit_elements(const struct saved_unit *unit);

/* Bytes that a rank of this shape keeps, of a plan; and sends in each update. */
uint64_t kept_plan_bytes(const struct plan *plan, const struct kept_shape *shape);
uint64_t kept_plan_sent_bytes(const struct plan *plan, const struct kept_shape *shape);

/*
 * Copies this rank's state into the older generation, as that of this attempt and step; `shares`:
 * into shared memory. Its backup is not whole yet, but has room, unless it is to be mapped.
 * RESOURCE_EXHAUSTED if there is no memory. The caller makes it `last` when it is complete.
 */
status_t kept_take(struct kept *kept, struct executor *executor, const struct capture_job *job,
                   const struct saved_progress *progress, const struct kept_shape *shape,
                   bool shares, struct kept_generation **taken) FSDPD_MUST_USE;

#endif
