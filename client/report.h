/* Jobs, plans and units as text for people, shared by the verbs. Everything appends to a buffer. */
#ifndef FSDPD_CLIENT_REPORT_H
#define FSDPD_CLIENT_REPORT_H

#include <stdint.h>

#include "base/buf.h"
#include "fsdpd/v1/control.pb-c.h"

/* "RUNNING"; never NULL. */
const char *report_state(Fsdpd__V1__JobState state);
bool report_is_over(Fsdpd__V1__JobState state);

/* The wrapped module tree as the daemon printed it, cleaned. */
void report_tree(const Fsdpd__V1__Plan *plan, struct buf *out);

/* The table of units: modules, parameters, padded, bytes, shard bytes. */
void report_units(Fsdpd__V1__Unit *const *units, size_t count, int width, struct buf *out);

/* Memory per rank at the peak, by class, and what a step sends. */
void report_memory(const Fsdpd__V1__Plan *plan, struct buf *out);

/* Everything about a job. `now_ms`: wall time. */
void report_job(const Fsdpd__V1__Job *job, int64_t now_ms, int width, struct buf *out);

void report_jobs(Fsdpd__V1__Job *const *jobs, size_t count, int64_t now_ms, int width,
                 struct buf *out);
void report_workers(Fsdpd__V1__Worker *const *workers, size_t count, int64_t now_ms, int width,
                    struct buf *out);

/* "mnist-1 SUCCEEDED: all epochs done" */
void report_end(const char *id, Fsdpd__V1__JobState state, const Fsdpd__V1__Reason *reason,
                struct buf *out);

#endif
