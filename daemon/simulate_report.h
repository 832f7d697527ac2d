/* What `fsdpd plan --simulate` prints. */
#ifndef FSDPD_SIMULATE_REPORT_H
#define FSDPD_SIMULATE_REPORT_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/status.h"

struct cluster;
struct simulated;

void simulate_report(const struct cluster *cluster, const struct simulated *simulated,
                     const char *profile, bool json, struct buf *out);

/* "1024x8": hosts and devices of each. INVALID_ARGUMENT says what was expected. */
status_t simulate_read_cluster(const char *text, struct cluster *cluster) FSDPD_MUST_USE;
/* "17=0.8": a rank or a host, and the fraction of its speed. Adds it to `rank` or to the links. */
status_t simulate_read_slow(const char *text, bool link, struct cluster *cluster) FSDPD_MUST_USE;

#endif
