/*
 * Inside redundancy/: redundancy in memory. After a step every rank copies its state to host
 * memory. A lane of its own sends it, or the parts of it that parity needs, to ranks of the group
 * (redundancy/kept.h) beside the next step. That step counts as done when this has ended on all
 * ranks: so when a step is counted, the generation before it is whole everywhere, and a rank that
 * begins to overwrite a generation knows that the other one is whole on all ranks.
 */
#ifndef FSDPD_REDUNDANCY_PROTECT_H
#define FSDPD_REDUNDANCY_PROTECT_H

#include "train/run_state.h"

/* Before the state is restored: opens the group's lane and decides who keeps what for whom. */
status_t protect_open(struct run *run) FSDPD_MUST_USE;
void protect_close(struct run *run);

/* When the state is set: makes a generation of it at once, because that which it was recovered from
 * has lost a part of itself; and frees stale ones. */
status_t protect_begin(struct run *run) FSDPD_MUST_USE;

/* Copies the state as it is now, between two steps, and begins to send it; nothing without
 * redundancy. */
status_t protect(struct run *run) FSDPD_MUST_USE;

/* Before the next step counts, and before the run ends: waits until it has been sent. */
status_t protect_finish(struct run *run) FSDPD_MUST_USE;

/* Every rank calls this at the same boundary: a generation of this step, from which the ranks that
 * stay can continue. *refused, which all ranks compute alike, says why they could not; NULL: they
 * can. An error is that of a collective, or of memory. leaves: by rank. */
status_t protect_hand_over(struct run *run, const bool *leaves, status_t *refused) FSDPD_MUST_USE;

#endif
