/*
 * Communicators: collectives over a group of ranks. Each collective is enqueued on a lane; all
 * ranks must enqueue the same ones in the same order. Each has a sequence number, a deadline (the
 * group's timeout) and can be aborted. A failed collective's error names the collective, its number
 * and, as far as it can be known, the peer: UNAVAILABLE for a lost peer, DEADLINE_EXCEEDED,
 * ABORTED.
 *
 * Reductions have the same bits on every rank. They add in rank order, 0 first, and so have the
 * same bits for every communicator, but NCCL's on f32, which have those of its own order. Counts
 * are f32 elements. Empty (0) is allowed.
 *
 *   local  ranks are threads of this process, for tests
 *   gloo   CPU processes over TCP, through a rendezvous store
 *   nccl   CUDA devices; a module's (runtime/backend.h)
 */
#ifndef FSDPD_RUNTIME_COMM_H
#define FSDPD_RUNTIME_COMM_H

#include "runtime/device.h"
#include "runtime/rendezvous.h"

struct comm;

/* A group of `world` local ranks; give one handle to each thread. The group goes with its last one.
 */
status_t comm_local_new(int world, int64_t timeout_ms, struct comm **comms) FSDPD_MUST_USE;

/*
 * Joins a Gloo group; blocks until all ranks have joined or the timeout. `prefix` names the group
 * in the store; `address` is the host name or address that peers reach this process under.
 */
status_t comm_gloo_new(int rank, int world, const char *address, const char *prefix,
                       const struct rendezvous *store, int64_t timeout_ms,
                       struct comm **comm) FSDPD_MUST_USE;

/*
 * A communicator of some of `comm`'s ranks, this one among them: rank i of it is ranks[i]. Sends
 * nothing: every rank of `comm` makes its own part, or one that others make without it is never
 * used; all make theirs in the same order, and parts made at the same time have no rank in common.
 * A part uses `comm`'s connections, so it takes turns with it on one lane, counts what it sends
 * there too, is aborted with it, and must be freed before it. A failure of a part is for `comm` to
 * learn from its owner (comm_abort).
 */
status_t comm_split(struct comm *comm, const int *ranks, int count,
                    struct comm **part) FSDPD_MUST_USE;

void comm_free(struct comm *comm); /* accepts NULL; no collective may be queued */

int comm_rank(const struct comm *comm);
int comm_world(const struct comm *comm);

/* Scratch that a reduction over `elements` needs, from the plan: bounded by a constant times world.
 */
uint64_t comm_workspace_bytes(int world);

/* out: world * elements, rank r's part at r * elements; `in` may be its own part of `out`. */
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
 * The same with bf16 on the wire. A gather rounds its own part into its place in `out` first. In a
 * reduction every rank's parts are rounded, its own too, and added in f32, in rank order; sums stay
 * f32, also those that an all_reduce hands around. `in`, unless it is the result, is spoiled, and
 * `out` of a reduce_scatter may not lie inside it; an all_reduce's count must be even.
 */
status_t comm_all_gather_bf16(struct comm *comm, struct lane_queue *lane, const float *in,
                              uint16_t *out, size_t elements) FSDPD_MUST_USE;
/* What is gathered is bf16 already. */
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
status_t comm_barrier(struct comm *comm, struct lane_queue *lane) FSDPD_MUST_USE;

/* Makes records for so many collectives in the queue at a time, so that enqueueing allocates
 * nothing. */
void comm_reserve(struct comm *comm, int calls);

/*
 * Makes every collective in progress and to come fail with ABORTED soon, on this rank; peers see a
 * lost peer. Thread-safe; takes no ownership of `why`.
 */
void comm_abort(struct comm *comm, const char *why);

/* Whether a device may record a step with this communicator's collectives and repeat it without the
 * host (a CUDA graph): not where the host takes part in them. */
bool comm_is_repeatable(const struct comm *comm);

/*
 * Memory that collectives read and write, made known to the communicator and its parts, also to
 * later ones, so that it can move it without copies of its own (NCCL's user-buffer registration).
 * Of device_allocate_registrable, the whole allocation; every rank registers as much in the same
 * order, and what a collective is given lies at the same place of it on every rank, or is
 * registered on none. Sums and their order may be others than without. From then on ranks may wait
 * for each other while they enqueue, and while a device records a step (comm_talks).
 *
 * The owner's thread calls these. What is registered is deregistered before it is released, when
 * nothing works on it and no recording has it; comm_free does it for what is left. An error of
 * comm_deregister is that of the next collective. Deregistering what is not registered does
 * nothing.
 */
bool comm_registers(const struct comm *comm); /* otherwise it has no use for that */
status_t comm_register(struct comm *comm, void *memory, uint64_t bytes) FSDPD_MUST_USE;
void comm_deregister(struct comm *comm, void *memory);
/* Whether enqueueing a collective takes the peers, as memory is registered. */
bool comm_talks(const struct comm *comm);

/* Host memory that a device's rank holds, pinned, to talk to its peers through it (backend_join),
 * with what reductions there need. */
uint64_t comm_staging_bytes(int world);

/* Sent by this rank since it joined. */
uint64_t comm_bytes_sent(const struct comm *comm);

/* For tests: the collectives enqueued so far, "all_gather(1024) reduce_scatter(512) ..." if the log
 * was turned on; those of parts of two ranks as "all_gather(1024)x2"; caller frees. */
void comm_log_enable(struct comm *comm);
char *comm_log(const struct comm *comm);

#endif
