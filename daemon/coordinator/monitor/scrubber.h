/*
 * Scrubs in the background, every scrub.days, on a thread of its own. What it finds is in the log,
 * in the log of the job, in a metric, in /readyz and in the status that clients ask for. When it
 * ended, and what it found, is also in "scrub" in the state directory, for the next start.
 */
#ifndef FSDPD_COORDINATOR_SCRUBBER_H
#define FSDPD_COORDINATOR_SCRUBBER_H

#include "base/buf.h"
#include "coordinator/core/internal.h"

void scrubber_open(struct coordinator *c);
void scrubber_tick(struct coordinator *c);
void scrubber_close(struct coordinator *c); /* waits for the part that is being read */

/* Describes what the last one found; adds nothing if all was whole. */
void scrubber_describe(const struct coordinator *c, struct buf *out);

/* How much it found, and when the last one ended (Unix time in seconds); 0: none did. */
uint64_t scrubber_damaged(const struct coordinator *c);
int64_t scrubber_ended(const struct coordinator *c);

#endif
