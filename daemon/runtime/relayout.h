/*
 * From one layout to another between two steps: the parameters and the optimizer's state of one
 * plan's executor are moved into another's, whose units are cut differently. Every rank calls this
 * at the same step boundary. No rank ever holds more than its old and new shards and one buffer of
 * a few MiB: a unit passes through it in pieces.
 */
#ifndef FSDPD_RUNTIME_RELAYOUT_H
#define FSDPD_RUNTIME_RELAYOUT_H

#include "runtime/executor.h"

/* What a rank allocates at most while it changes from one plan to the other: both state arenas, the
 * new work arena and the buffer. The old work arena is given back before. Pure. */
uint64_t relayout_peak_bytes(const struct plan *from, const struct plan *to);

/*
 * Both plans are of the same model, group and optimizer. `lane` is a lane for collectives with
 * nothing on it; `comm` may be NULL for one rank. What `from` holds is left as it was; bytes of
 * `to` between parameters are zeros. On failure `to` is worthless, and what the other ranks did is
 * not known. `peak` (may be NULL) is told what was allocated on the device at most.
 */
status_t relayout(struct device *device, const struct executor *from, struct executor *to,
                  struct comm *comm, struct lane_queue *lane, int64_t timeout_ms,
                  uint64_t *peak) FSDPD_MUST_USE;

#endif
