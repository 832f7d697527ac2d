/*
 * Communicators: collectives over a group of ranks. Each collective is enqueued on a lane; all
 * ranks must enqueue the same ones in the same order. Each has a sequence number, a deadline (the
 * group's timeout) and can be aborted. A failed collective's error names the collective, its number
 * and, if known, the peer: UNAVAILABLE for a lost peer, DEADLINE_EXCEEDED, ABORTED.
 *
 * Reductions have the same bits on every rank. They add in rank order, starting with 0, and so have
 * the same bits for every communicator, except NCCL's on f32, which use NCCL's own order. Counts
 * are f32 elements. Empty (0) is allowed.
 *
 *   local  ranks are threads of this process, for tests
 *   gloo   CPU processes over TCP, through a rendezvous store
 *   shm    CPU processes of one host, through memory that they share
 *   nccl   CUDA devices; a module's (runtime/backend.h)
 */
#ifndef FSDPD_RUNTIME_COMM_H
#define FSDPD_RUNTIME_COMM_H

#include "runtime/device.h"
#include "runtime/rendezvous.h"

struct comm;

/*
 * Joins a Gloo group; blocks until all ranks have joined. All must arrive within `join_ms`;
 * connecting then takes seconds. `group` names the group in the store; `address` is the host name
 * or address at which peers reach this process. A failure on one rank ends the call on all, through
 * the store's `fail`; the store's `check` ends it on this rank. `timeout_ms` is for collectives.
 */
status_t comm_gloo_new(int rank, int world, const char *address, const char *group,
                       const struct rendezvous *store, int64_t join_ms, int64_t timeout_ms,
                       struct comm **comm) FSDPD_MUST_USE;

/*
 * The same through shared memory if `shared`, and if the rendezvous shows that all ranks are on one
 * host, belong to the same user, and are at most 64; otherwise over Gloo. All ranks must pass the
 * same `shared`. Results have the same bits either way.
 */
status_t comm_host_new(int rank, int world, const char *address, const char *group,
                       const struct rendezvous *store, int64_t join_ms, int64_t timeout_ms,
                       bool shared, struct comm **comm) FSDPD_MUST_USE;

/*
 * Makes a communicator of some of `comm`'s ranks, including this one: its rank i is ranks[i]. Sends
 * nothing: every rank of `comm` makes a part of its own. A part is never used if only some of its
 * ranks make it. All make theirs in the same order, and parts made at the same time have no rank in
 * common. A part uses `comm`'s connections, so it shares a lane with it, adds to its bytes sent, is
 * aborted with it, and must be freed before it. The owner reports a part's failure to `comm`
 * (comm_abort).
 */
status_t comm_split(struct comm *comm, const int *ranks, int count,
                    struct comm **part) FSDPD_MUST_USE;

void comm_free(struct comm *comm); /* accepts NULL; no collective may be queued */

/*
 * Instead of comm_free, for a group that may continue with fewer ranks or more: returns what the
 * next backend_join takes, or else comm_free, which then waits for no peer; NULL if this group
 * cannot be kept, and was freed. Nothing else may use it. Its device may be closed meanwhile.
 */
struct comm *comm_keep(struct comm *comm) FSDPD_MUST_USE; /* accepts NULL */

/* The progress of this rank's thread: the number of collectives begun, and whether it is in one. 0
 * for communicators whose collectives run on the device. From any thread. */
struct comm_progress {
    uint64_t begun;
    bool waits;
    const char *kind;  /* of the last one begun, "all_gather"; NULL: none */
    uint64_t sequence; /* of that one, in its group or part of it */
    int64_t since_ns;  /* when that one began; CLOCK_MONOTONIC */
};
struct comm_progress comm_progress(struct comm *comm);

int comm_rank(const struct comm *comm);
int comm_world(const struct comm *comm);

/* The transport: "shared memory", "gloo", ... */
const char *comm_transport(const struct comm *comm);

/* Whether reductions also multiply while they add. If not, every scale must be 1. */
bool comm_scales(const struct comm *comm);

/* Scratch that a reduction over `elements` needs, from the plan: bounded by a constant times world.
 */
uint64_t comm_workspace_bytes(int world);

/* out: world * elements, rank r's part at r * elements; `in` may be this rank's part of `out`. */
status_t comm_all_gather(struct comm *comm, struct lane_queue *lane, const float *in, float *out,
                         size_t elements) FSDPD_MUST_USE;

/* in: world * elements; out: this rank's part of the sum over ranks, times `scale`. `out` may lie
 * inside `in` at this rank's part, nowhere else. */
status_t comm_reduce_scatter(struct comm *comm, struct lane_queue *lane, const float *in,
                             float *out, size_t elements, float scale,
                             void *workspace) FSDPD_MUST_USE;
/* In place, any count. */
status_t comm_all_reduce(struct comm *comm, struct lane_queue *lane, float *data, size_t elements,
                         float scale, void *workspace) FSDPD_MUST_USE;
/*
 * The same with bf16 on the wire. A gather first rounds its own part into its place in `out`. A
 * reduction rounds the parts of every rank, including its own, and adds them in f32, in rank order;
 * sums stay f32, also those that an all_reduce distributes. `in` is overwritten unless it is the
 * result, and `out` of a reduce_scatter may not lie inside it; an all_reduce's count must be even.
 */
status_t comm_all_gather_bf16(struct comm *comm, struct lane_queue *lane, const float *in,
                              uint16_t *out, size_t elements) FSDPD_MUST_USE;
/* The gathered data is already bf16. */
status_t comm_all_gather_rounded(struct comm *comm, struct lane_queue *lane, const uint16_t *in,
                                 uint16_t *out, size_t elements) FSDPD_MUST_USE;
status_t comm_reduce_scatter_bf16(struct comm *comm, struct lane_queue *lane, float *in, float *out,
                                  size_t elements, float scale, void *workspace) FSDPD_MUST_USE;
status_t comm_all_reduce_bf16(struct comm *comm, struct lane_queue *lane, float *data,
                              size_t elements, float scale, void *workspace) FSDPD_MUST_USE;
status_t comm_broadcast(struct comm *comm, struct lane_queue *lane, void *data, size_t bytes,
                        int root) FSDPD_MUST_USE;
/* out (root only; NULL elsewhere): world * elements. */
status_t comm_gather(struct comm *comm, struct lane_queue *lane, const float *in, float *out,
                     size_t elements, int root) FSDPD_MUST_USE;
/* Sends `in` to the rank `distance` (1 to world - 1) after this one, and receives into `out` from the
 * rank that far before it; the ranks form a ring. Only between hosts' processes and in tests. */
status_t comm_shift(struct comm *comm, struct lane_queue *lane, const float *in, float *out,
                    size_t elements, int distance) FSDPD_MUST_USE;

/* A run of elements that one rank has in its `in` and another, or the same, gets in its `out`. */
struct comm_piece {
    int from, to;                  /* ranks */
    int64_t source, target, count; /* elements; the first in `in` and in `out` */
};
/* Every rank passes the same pieces, which stay as they are until the exchange is done, and gets
 * its own. `out` may be `in` where no piece is written into one that is sent. */
status_t comm_exchange(struct comm *comm, struct lane_queue *lane, const struct comm_piece *pieces,
                       int count, const float *in, float *out) FSDPD_MUST_USE;
status_t comm_barrier(struct comm *comm, struct lane_queue *lane) FSDPD_MUST_USE;

/* Allocates records for that many queued collectives, so that enqueueing allocates nothing. */
void comm_reserve(struct comm *comm, int calls);

/*
 * Makes current and future collectives fail with ABORTED soon, on this rank; peers see a lost peer.
 * Thread-safe; does not take ownership of `why`.
 */
void comm_abort(struct comm *comm, const char *why);

/* Why the group fails, or was aborted; the caller frees it. NULL: it does not. From any thread. */
char *comm_failure(struct comm *comm);

/* Whether a device may record a step with this communicator's collectives and repeat it without the
 * host (a CUDA graph): false if the host takes part in them. */
bool comm_is_repeatable(const struct comm *comm);
/*
 * After a device has recorded a step, or could not, and before the next collective: every rank MUST
 * call it, with whether its recording succeeded; waits for the peers. *all: whether every rank's
 * has. *renewed: a recording has failed that contained collectives, which no communicator outlives:
 * this one and its parts have new connections, and no recording made before can be replayed. After
 * an error the group fails.
 */
status_t comm_end_recording(struct comm *comm, bool recorded, bool *all,
                            bool *renewed) FSDPD_MUST_USE;

/*
 * Registers memory used by collectives with the communicator and its present and future parts, so
 * that it can transfer directly (NCCL's user-buffer registration). Pass a whole allocation of
 * device_allocate_registrable; every rank registers the same sizes in the same order, and a
 * collective's operands are at the same offset on every rank, or are registered on none. Sums may
 * then be added in another order. From then on ranks may wait for each other while they enqueue,
 * and while a device records a step (comm_enqueue_needs_peers). If it fails on one rank, as by the
 * limits of a network's adapter, all continue without registered memory, and with a note of the
 * device.
 *
 * Only the owner's thread calls these. Deregister memory before releasing it, while nothing uses it
 * and no recording refers to it; comm_free deregisters the rest. An error of comm_deregister is
 * returned by the next collective. Deregistering unregistered memory has no effect.
 */
bool comm_registers(const struct comm *comm); /* if false, registration has no use */
status_t comm_register(struct comm *comm, void *memory, uint64_t bytes) FSDPD_MUST_USE;
void comm_deregister(struct comm *comm, void *memory);
/* Whether enqueueing a collective blocks until the peers enqueue it, because memory is
 * registered. */
bool comm_enqueue_needs_peers(const struct comm *comm);

/* Pinned host memory of a device's rank that communicates through it (backend_join), including
 * scratch for its reductions. */
uint64_t comm_staging_bytes(int world);

/* Sent by this rank since it joined. */
uint64_t comm_bytes_sent(const struct comm *comm);

/* For tests: the collectives enqueued so far, "all_gather(1024) reduce_scatter(512) ..." if the log
 * is on; those of parts of two ranks as "all_gather(1024)x2"; caller frees. */
void comm_log_enable(struct comm *comm);
char *comm_log(const struct comm *comm);

#endif
