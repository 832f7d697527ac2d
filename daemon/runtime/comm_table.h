/*
 * The interface of a kind of communicator. comm.c numbers, logs and enqueues the collectives, makes
 * the first failure sticky, and calls this table on the lane's thread. Internal to daemon/runtime.
 */
#ifndef FSDPD_RUNTIME_COMM_TABLE_H
#define FSDPD_RUNTIME_COMM_TABLE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "base/must.h"
#include "runtime/comm.h"

enum comm_kind {
    COMM_ALL_GATHER,
    COMM_REDUCE_SCATTER,
    COMM_ALL_REDUCE,
    COMM_BROADCAST, /* `count` is bytes */
    COMM_GATHER,
    COMM_SHIFT,    /* `root` is the distance */
    COMM_EXCHANGE, /* `count` is of all pieces; those from a rank to itself are comm.c's */
    COMM_BARRIER,
};

struct comm_call {
    struct comm *comm;
    enum comm_kind kind;
    bool rounded; /* a gather's `in` holds bf16 from the start */
    enum dtype
        dtype; /* DTYPE_BF16: `in` holds bf16 when the table sees it; so does a gather's out */
    uint64_t sequence; /* from 1; the same on every rank */
    const float *in;
    float *out;
    size_t count;
    float scale;
    char *workspace;
    int root;
    const struct comm_piece *pieces;
    int piece_count;
    struct comm_call *next_free, *next_made;
};

/* What may fail on one rank, so that NCCL's group is spoilt for all. */
enum comm_trial { COMM_RECORDING, COMM_REGISTRATION };

enum { COMM_PARTS_MAX = 254 }; /* distinct at a time */

/* The piece size through host memory where ranks share a device (cuda/comm_staged.c). */
enum { COMM_STAGING_BYTES = 4 << 20 };

struct comm_table {
    const char *name; /* see comm_transport */
    /* Carries out one collective with the peers; `count` is positive unless it is a barrier. */
    status_t (*run)(struct comm *comm, const struct comm_call *call);
    /* Replaces `run` for communicators whose collectives run on the device: enqueues it on the
     * lane, from the calling thread, also for one rank. NULL: use `run`, on the lane's thread. */
    status_t (*enqueue)(struct comm *comm, struct lane_queue *lane, const struct comm_call *call);
    bool repeatable; /* see comm_is_repeatable */
    bool unscaled;   /* see comm_scales */
    /* For communicators with `enqueue`: see comm_reserve; NULL: it keeps no records. */
    void (*reserve)(struct comm *comm, int calls);
    /* This rank takes no further part: its waiting collective soon returns with any error; peers
     * see a lost peer. From any thread, more than once. */
    void (*quit)(struct comm *comm, const char *why);
    void (*free)(struct comm *comm);
    /* See comm_keep; false: it is to be freed. NULL: a group of this kind is never kept. */
    bool (*keep)(struct comm *comm);
    /* See comm_register, for one communicator; *handle identifies the memory to it later. NULL:
     * unsupported. */
    status_t (*register_memory)(struct comm *comm, void *memory, uint64_t bytes, void **handle);
    /* Called before `free`. After a failure there may be nothing left to do. */
    status_t (*deregister_memory)(struct comm *comm, void *handle);
    /* See comm_split; this rank is ranks[rank], and the part's number is the same on all of them.
     */
    status_t (*split)(struct comm *comm, const int *ranks, int count, int rank, int number,
                      struct comm **part);
    /* Of a whole, by all ranks: whether none has failed; and if one broke the group, which a failed
     * recording may and a failed registration does, the group is a new one, in which memory is
     * registered again after a recording, and none after a registration. NULL: a recording that
     * fails does a group no harm, and a registration ends it. See comm_end_recording. */
    status_t (*agree)(struct comm *comm, enum comm_trial trial, bool failed, bool *all,
                      bool *renewed);
};

struct comm {
    const struct comm_table *table;
    int rank, world;
    int64_t timeout_ms;
    _Atomic uint64_t bytes_sent, begun; /* the whole's have its parts', too; see comm_progress */
    _Atomic bool waits;
    _Atomic int kind; /* of the last collective begun; the whole's has its parts', too, and: */
    _Atomic uint64_t begun_sequence;
    _Atomic int64_t begun_ns;
    struct comm *whole;         /* the communicator that this is a part of, or NULL */
    int number;                 /* of this part; 0 for the whole */
    int splits;                 /* parts made so far; its owner's thread */
    struct comm_memory *memory; /* registered memory; its owner's thread */
    bool unregistered;          /* a whole whose ranks continue without; its owner's thread */
    struct must_user user;      /* who enqueues or runs a collective: all ranks in the same order */

    pthread_mutex_t lock;            /* guards the members below */
    uint64_t sequence;               /* of the last collective enqueued */
    struct comm_call *made, *unused; /* all call records; those not in the queue */
    struct comm *parts, *next_part;  /* next_part is guarded by the whole's lock */
    bool aborted;
    status_t failure; /* the first one; every later collective fails with it */
    bool logging;
    struct buf log;
};

void comm_init(struct comm *comm, const struct comm_table *table, int rank, int world,
               int64_t timeout_ms);
void comm_deinit(struct comm *comm);

const char *comm_kind_name(enum comm_kind kind);

/*
 * For a communicator built on another one: runs `call` (its sequence becomes `comm`'s next) with
 * the peers and waits for them, on this thread; one at a time. A failure is sticky for `comm`. The
 * error does not name the collective: the caller does, with comm_name_call.
 */
status_t comm_run(struct comm *comm, const struct comm_call *call) FSDPD_MUST_USE;
status_t comm_name_call(const struct comm *comm, const struct comm_call *call,
                        status_t status) FSDPD_MUST_USE;

/* An all_reduce on bf16: the offset, after the rounded parts, of this rank's intermediate sum. */
static inline float *comm_upper_half(const struct comm_call *call)
{
    return call->out + call->count / 2;
}

/* Tells a rank's messages apart by the part of the group, the collective, its phase and piece. */
static inline uint64_t comm_tag(const struct comm_call *call, unsigned phase, size_t piece)
{
    return (uint64_t)call->comm->number << 56 | (call->sequence & UINT32_MAX) << 24 |
           (uint64_t)phase << 23 | (uint64_t)piece;
}

/* A failure that came in no collective: later ones fail with it. Takes ownership. */
void comm_fail(struct comm *comm, status_t status);

/* comm_memory.c: shares the whole's registrations with a part, and releases them before one is
 * freed. */
status_t comm_memory_share(struct comm *whole, struct comm *part) FSDPD_MUST_USE;
/* Registers all of one communicator's memory again, with its new connections. */
status_t comm_memory_renew(struct comm *comm) FSDPD_MUST_USE;
void comm_memory_forget(struct comm *comm);
/* Of a whole and its parts, whose connections have ended: nothing is registered any more, or ever
 * again. */
void comm_memory_abandon(struct comm *comm);

/* Counts what this rank has sent, for the whole too. */
void comm_count_sent(struct comm *comm, uint64_t bytes);

/* Elements of the pieces in which a reduction passes through its workspace: two per peer at a
 * time. */
size_t comm_chunk_elements(int world);

#endif
