/* Jobs, plans and units as text for people, shared by the verbs. Everything appends to a buffer. */
#ifndef FSDPD_CLIENT_REPORT_H
#define FSDPD_CLIENT_REPORT_H

#include <stdint.h>

#include "base/buf.h"
#include "fsdpd/v1/control.pb-c.h"
#include "print/plan_report.h"

/* "RUNNING"; never NULL. */
const char *report_state(Fsdpd__V1__JobState state);
bool report_is_over(Fsdpd__V1__JobState state);

/* Everything about a job. `now_ms`: wall time. */
void report_job(const Fsdpd__V1__Job *job, int64_t now_ms, int width, struct buf *out);

void report_jobs(Fsdpd__V1__Job *const *jobs, size_t count, int64_t now_ms, int width,
                 struct buf *out);
/* By host, then device; for every format, so that two calls can be compared. */
void report_sort_workers(Fsdpd__V1__ListWorkersResponse *list);
void report_workers(Fsdpd__V1__Worker *const *workers, size_t count, int64_t now_ms, int width,
                    struct buf *out);

/* "checkpoint of step 100: 1.2 MB in /srv/checkpoints/..." and a line's end. */
void report_checkpoint(const Fsdpd__V1__Checkpoint *checkpoint, struct buf *out);

/* "mnist-1 SUCCEEDED: all epochs done" */
void report_end(const char *id, Fsdpd__V1__JobState state, const Fsdpd__V1__Reason *reason,
                struct buf *out);

#endif
