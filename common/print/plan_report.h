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

/* Memory per rank at each program's peak, by class, and what a step sends. */
void report_memory(const Fsdpd__V1__Plan *plan, struct buf *out);

/* What a step takes, by estimate, and each kind of collective; nothing if it was not estimated. */
void report_estimate(const Fsdpd__V1__Plan *plan, struct buf *out);

/* What runs when, a table for each program: at most `limit` lines of each, 0: all. */
void report_schedule(const Fsdpd__V1__Plan *plan, size_t limit, struct buf *out);

/* Advice and notes, a line each. */
void report_advice(const Fsdpd__V1__Plan *plan, struct buf *out);

/* All of it, as `fsdpctl plan` and `fsdpd plan` print it; the dump, too, if the plan has one. */
void report_plan(const Fsdpd__V1__Plan *plan, int width, struct buf *out);

#endif
