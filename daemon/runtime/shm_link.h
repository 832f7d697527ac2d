/*
 * Messages between the ranks of one host through shared memory: the layer below comm_shm.c.
 *
 * The memory is a memfd of rank 0. The others receive it over a socket without a name in the file
 * system, so nothing is left when the last rank has ended, for any reason. Each rank has a ring of
 * slots in it. It posts a message of at most one slot for some of its peers. Each of them reads it
 * in place, by its tag, and the slot is free again when all have read it. A waiting rank sleeps on
 * a futex in that memory.
 *
 * Each rank keeps its socket to rank 0 open, and rank 0 keeps all of them. A watcher's thread waits
 * for them to close: so the kernel reports a process that died, and all ranks that wait for it wake
 * up.
 *
 * One thread at a time posts and reads; shm_link_quit may be called from any. Internal to
 * daemon/runtime.
 */
#ifndef FSDPD_RUNTIME_SHM_LINK_H
#define FSDPD_RUNTIME_SHM_LINK_H

#include <stdbool.h>

#include "runtime/rendezvous.h"

enum { SHM_RANKS_MAX = 64 }; /* limited by the bits of shm_slot.readers */

struct shm_link;

/* Connects the ranks, 2 to SHM_RANKS_MAX of them, if all are on one host; otherwise *link is NULL
 * on every rank. See comm_gloo_new for `group`, `store`, `join_ms` and errors. */
status_t shm_link_new(int rank, int world, const char *group, const struct rendezvous *store,
                      int64_t join_ms, struct shm_link **link) FSDPD_MUST_USE;
void shm_link_free(struct shm_link *link); /* accepts NULL */

/* The maximum size of a message in bytes: a multiple of 64. */
size_t shm_link_slot_bytes(const struct shm_link *link);

/* The number of messages that can be posted before any is read, if all slots are free. */
int shm_link_slots(const struct shm_link *link);

/* Copies `bytes` into this rank's next slot, once it is free, for the ranks in the bit set
 * `readers`, which excludes this one. `deadline_ns` is of clock_monotonic_ns. UNAVAILABLE names a
 * lost peer, DEADLINE_EXCEEDED one that has not read; ABORTED: this rank has quit. */
status_t shm_post(struct shm_link *link, uint64_t readers, uint64_t tag, const void *data,
                  size_t bytes, int64_t deadline_ns) FSDPD_MUST_USE;

/* Waits for rank `from`'s message with that tag; *data is valid until shm_read_end, which must be
 * called before this rank reads from `from` again. Messages that a lost peer posted before still
 * count. */
status_t shm_read_begin(struct shm_link *link, int from, uint64_t tag, const void **data,
                        int64_t deadline_ns) FSDPD_MUST_USE;
void shm_read_end(struct shm_link *link, int from);

/* Ends this rank's current and later waits with ABORTED; its peers see a lost peer. */
void shm_link_quit(struct shm_link *link);

#endif
