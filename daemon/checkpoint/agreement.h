/*
 * Messages between ranks between steps, so that all of them have the same information before any of
 * them continues: each call is one or two small collectives, and waits for them. Every rank makes
 * the same calls in the same order. A returned status is that of a collective: then the ranks may
 * have different information. The lane is closed then, and *lane NULL, as it might still use memory
 * that is about to be freed.
 */
#ifndef FSDPD_CHECKPOINT_AGREEMENT_H
#define FSDPD_CHECKPOINT_AGREEMENT_H

#include <stddef.h>

#include "base/status.h"
#include "runtime/comm.h"
#include "runtime/device.h"

struct agreement {
    struct comm *comm;        /* NULL: there is one rank, which agrees with itself */
    struct lane_queue **lane; /* with nothing on it */
    int64_t timeout_ms; /* the communicator's; the lane is given longer, as its error says more
                         */
};

/* Waits for a collective that was enqueued with this status. */
status_t agreement_wait(const struct agreement *agreement, status_t enqueued) FSDPD_MUST_USE;

/* Distributes the bytes of rank `root` to all ranks. */
status_t agreement_share(const struct agreement *agreement, void *bytes, size_t size,
                         int root) FSDPD_MUST_USE;

/* Distributes *outcome of rank `root` to all ranks: its code, and the first 1,023 bytes of its
 * message. */
status_t agreement_share_outcome(const struct agreement *agreement, status_t *outcome,
                                 int root) FSDPD_MUST_USE;

/* *outcome becomes the failure of the first rank that has one, on all ranks. */
status_t agreement_reach(const struct agreement *agreement, status_t *outcome) FSDPD_MUST_USE;

/* The lowest 16 * `count` bits of a number as floats, for a gather: a communicator moves floats,
 * and 16 bits in each survive any of them. */
void agreement_pack(uint64_t value, int count, float *packed);
uint64_t agreement_unpack(const float *packed, int count);

#endif
