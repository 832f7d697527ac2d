/* Plans and units as text for people, the same from fsdpctl and from fsdpd. */
#ifndef FSDPD_PRINT_PLAN_REPORT_H
#define FSDPD_PRINT_PLAN_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "fsdpd/v1/control.pb-c.h"

/* The daemon's printed module tree, sanitised. */
void report_tree(const Fsdpd__V1__Plan *plan, struct buf *out);

/* The table of units: modules, parameters, padded, bytes, shard bytes. Equal units whose names
 * differ in a number, as a model's layers do, share a row. */
void report_units(Fsdpd__V1__Unit *const *units, size_t count, int width, struct buf *out);

/* Memory per rank at each program's peak, by class, and what a step sends. */
void report_memory(const Fsdpd__V1__Plan *plan, struct buf *out);

/* The schedule, a table for each program: at most `limit` rows of each, where repeated lines share
 * a row; 0: every line. */
void report_schedule(const Fsdpd__V1__Plan *plan, size_t limit, int width, struct buf *out);

/* Advice and notes, one per line. */
void report_advice(const Fsdpd__V1__Plan *plan, struct buf *out);

/* Everything, as `fsdpctl plan` and `fsdpd plan` print it; with the dump if the plan has one. */
void report_plan(const Fsdpd__V1__Plan *plan, int width, struct buf *out);

#endif
