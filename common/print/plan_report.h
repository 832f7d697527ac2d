/* Plans and units as text for people, the same from fsdpctl and from fsdpd. */
#ifndef FSDPD_PRINT_PLAN_REPORT_H
#define FSDPD_PRINT_PLAN_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "fsdpd/v1/control.pb-c.h"

/* The wrapped module tree as the daemon printed it, cleaned. */
void report_tree(const Fsdpd__V1__Plan *plan, struct buf *out);

/* The table of units: modules, parameters, padded, bytes, shard bytes. */
void report_units(Fsdpd__V1__Unit *const *units, size_t count, int width, struct buf *out);

/* Memory per rank at the peak, by class, and what a step sends. */
void report_memory(const Fsdpd__V1__Plan *plan, struct buf *out);

#endif
