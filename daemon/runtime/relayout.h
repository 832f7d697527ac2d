/*
 * Changes the layout between two steps: moves parameters and optimizer state from one plan's
 * executor to another's, whose units are cut differently. Every rank calls this at the same step
 * boundary. A rank never holds more than its old and new shards and one buffer of a few MiB,
 * through which units pass in pieces.
 */
#ifndef FSDPD_RUNTIME_RELAYOUT_H
#define FSDPD_RUNTIME_RELAYOUT_H

#include "runtime/executor.h"

/* The maximum that a rank allocates while it changes plans: both state arenas, the new work arena
 * and the buffer. The old work arena is released before. Pure. */
uint64_t relayout_peak_bytes(const struct plan *from, const struct plan *to);

/*
 * Both plans have the same model, group and optimizer. `lane` is an idle lane for collectives;
 * `comm` may be NULL for one rank. `from` is unchanged; bytes of `to` between parameters are zeros.
 * On failure the content of `to` is undefined, and the other ranks' outcome is unknown. `peak` (may
 * be NULL) receives the maximum of memory allocated on the device.
 */
status_t relayout(struct device *device, const struct executor *from, struct executor *to,
                  struct comm *comm, struct lane_queue *lane, int64_t timeout_ms,
                  uint64_t *peak) FSDPD_MUST_USE;

#endif
