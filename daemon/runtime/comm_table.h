/*
 * What a kind of communicator implements. comm.c numbers, logs and enqueues the collectives, makes
 * the first failure stick, and calls this table on the lane's thread. Internal to daemon/runtime.
 */
#ifndef FSDPD_RUNTIME_COMM_TABLE_H
#define FSDPD_RUNTIME_COMM_TABLE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "runtime/comm.h"

enum comm_kind {
    COMM_ALL_GATHER,
    COMM_REDUCE_SCATTER,
    COMM_ALL_REDUCE,
    COMM_BROADCAST, /* `count` is bytes */
    COMM_GATHER,
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
    struct comm_call *next_free, *next_made;
};

enum { COMM_PARTS_MAX = 254 }; /* that are told apart at a time */

/* What goes through host memory at a time where devices share it (cuda/comm_staged.c). */
enum { COMM_STAGING_BYTES = 4 << 20 };

struct comm_table {
    /* Carries out one collective with the peers; `count` is positive unless it is a barrier. */
    status_t (*run)(struct comm *comm, const struct comm_call *call);
    /* Instead of `run`, of communicators whose collectives are a device's own work: enqueues it on
     * the lane, from the thread that asks, also for one rank. NULL: `run` it is, on the lane's
     * thread. */
    status_t (*enqueue)(struct comm *comm, struct lane_queue *lane, const struct comm_call *call);
    bool repeatable; /* see comm_is_repeatable */
    /* Of those with `enqueue`: see comm_reserve; NULL: it keeps no records. */
    void (*reserve)(struct comm *comm, int calls);
    /* This rank takes no further part: its own waiting collective returns soon with any error,
     * peers see a lost peer. From any thread, more than once. */
    void (*quit)(struct comm *comm, const char *why);
    void (*free)(struct comm *comm);
    /* See comm_register, of one communicator; *handle is what names the memory to it later. NULL:
     * it has no use for that. */
    status_t (*register_memory)(struct comm *comm, void *memory, uint64_t bytes, void **handle);
    /* Before `free`. Of one that has failed there may be nothing left to do. */
    status_t (*deregister_memory)(struct comm *comm, void *handle);
    /* See comm_split; this rank is ranks[rank], and the part's number is the same on all of them.
     */
    status_t (*split)(struct comm *comm, const int *ranks, int count, int rank, int number,
                      struct comm **part);
};

struct comm {
    const struct comm_table *table;
    int rank, world;
    int64_t timeout_ms;
    _Atomic uint64_t bytes_sent;
    struct comm *whole;         /* that this one is a part of; NULL */
    int number;                 /* of this part; 0 for the whole */
    int splits;                 /* parts made so far; its owner's thread */
    struct comm_memory *memory; /* that is registered; the same */

    pthread_mutex_t lock;            /* guards what follows */
    uint64_t sequence;               /* of the last collective enqueued */
    struct comm_call *made, *unused; /* every call that was ever made; those that are not queued */
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
 * For a communicator that stands on another one: carries out `call` (all but its sequence, which is
 * `comm`'s next) with the peers and waits for them, on this thread; one at a time. A failure sticks
 * to `comm`. The error does not name the collective: comm_name_call does, by whoever's call it is.
 */
status_t comm_run(struct comm *comm, const struct comm_call *call) FSDPD_MUST_USE;
status_t comm_name_call(const struct comm *comm, const struct comm_call *call,
                        status_t status) FSDPD_MUST_USE;

/* An all_reduce on bf16: where, behind the rounded parts, this rank's sum goes at first. */
static inline float *comm_upper_half(const struct comm_call *call)
{
    return call->out + call->count / 2;
}

/* A failure that came in no collective: later ones fail with it. Takes ownership. */
void comm_fail(struct comm *comm, status_t status);

/* comm_memory.c: what the whole has is the part's, too; and before one is freed. */
status_t comm_memory_share(struct comm *whole, struct comm *part) FSDPD_MUST_USE;
void comm_memory_forget(struct comm *comm);

/* Counts what this rank has sent, for the whole too. */
void comm_count_sent(struct comm *comm, uint64_t bytes);

/* Whether comm_abort was called. */
bool comm_is_aborted(struct comm *comm);

/* Elements of the pieces in which a reduction goes through its workspace: two per peer at a time.
 */
size_t comm_chunk_elements(int world);

#endif
