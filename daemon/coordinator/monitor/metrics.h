/* The text of /metrics, which Prometheus reads. */
#ifndef FSDPD_COORDINATOR_METRICS_H
#define FSDPD_COORDINATOR_METRICS_H

#include "base/buf.h"
#include "coordinator/core/internal.h"

/* The exposition, in Prometheus' text format 0.0.4. */
void metrics_write(const struct coordinator *c, struct buf *out);

/* Whether the coordinator accepts work; if not, *why is the reason in a word or two. */
bool metrics_is_ready(const struct coordinator *c, const char **why);

#endif
