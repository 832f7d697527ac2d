/* The layout of the memory that ranks of one host share; see shm_link.h. Internal to
 * daemon/runtime/shm_*.c. */
#ifndef FSDPD_RUNTIME_SHM_SEGMENT_H
#define FSDPD_RUNTIME_SHM_SEGMENT_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/must.h"
#include "runtime/shm_link.h"

enum {
    SHM_LAYOUT = 1,           /* raised with every change of this file */
    SHM_BOARD_BYTES = 1 << 20 /* all slots of one rank */
};

/* Incremented on each event that other ranks may wait for. */
struct shm_signal {
    _Alignas(64) _Atomic uint32_t count;
    _Atomic uint32_t waiters;
};

enum shm_state { SHM_HERE, SHM_LEFT, SHM_GAVE_UP, SHM_DIED };

struct shm_rank {
    struct shm_signal posted; /* this rank posted a message */
    struct shm_signal freed;  /* a slot of this rank became free */
    _Atomic uint32_t state;   /* enum shm_state */
};

/* `readers` have yet to read it; 0: it is free, and its owner may write it. */
struct shm_slot {
    _Alignas(64) _Atomic uint64_t readers;
    _Atomic uint64_t tag;
};

struct shm_segment {
    _Atomic int32_t first_lost; /* the rank that gave up or died before any other; -1 */
    struct shm_rank ranks[SHM_RANKS_MAX];
    struct shm_slot slots[]; /* (world * slots per rank), then the boards, on a page's boundary */
};

struct shm_link {
    int rank, world;
    int slots; /* per rank */
    size_t slot_bytes, boards_at, segment_bytes;
    struct shm_segment *segment;
    int next;     /* the slot for the next post */
    int *reading; /* (world): the slot of the last message found */
    int *sockets; /* (world): rank 0's to its peers, the others' to rank 0; else -1 */
    int stop;     /* an eventfd that ends the watcher */
    bool watched; /* the watcher runs */
    pthread_t watcher;
    atomic_bool quit;
    struct must_user user;
};

/* Computes the sizes of a link for its number of ranks. */
void shm_link_measure(struct shm_link *link);

/* shm_watch.c: starts the watcher's thread, which ends at `stop`. */
status_t shm_watch(struct shm_link *link) FSDPD_MUST_USE;

/* Marks the peer lost for all ranks, unless it is already marked, and wakes them. */
void shm_mark(struct shm_link *link, int rank, enum shm_state state);

#endif
