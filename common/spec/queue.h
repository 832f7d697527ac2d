/* Single values of the queue's keys; also for the command line and the daemon. */
#ifndef FSDPD_SPEC_QUEUE_H
#define FSDPD_SPEC_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "spec/spec.h"

enum {
    SPEC_LABELS_MAX = 32,
    SPEC_LABEL_KEY_MAX = 40,
    SPEC_LABEL_VALUE_MAX = 63,
    SPEC_AFTER_MAX = 64,
    SPEC_JOB_ID_MAX = 64,
    SPEC_PRIORITY_MAX = 1000, /* and its negative is the minimum */
};

/* [a-z][a-z0-9_-]*. All errors read "expected ..., found ...". */
status_t spec_check_label_key(const char *key) FSDPD_MUST_USE;
/* Letters, digits and "._-+:/@"; may be empty. */
status_t spec_check_label_value(const char *value) FSDPD_MUST_USE;
/* Also refuses duplicate keys. */
status_t spec_check_labels(Fsdpd__V1__JobSpec__LabelsEntry *const *labels,
                           size_t count) FSDPD_MUST_USE;
status_t spec_check_job_id(const char *id) FSDPD_MUST_USE;
status_t spec_check_jobs(char *const *jobs, size_t count) FSDPD_MUST_USE;

/* Sorted by key: maps have no order, and equal specs must have equal bytes. */
void spec_sort_labels(Fsdpd__V1__JobSpec *spec);

/* ---- time.c ---- */

/* Durations and points in time as people write them. Pure. */

/*
 * A duration "90s", "2h30m", "7d" (w, d, h, m, s, each at most once and in this order; the last may
 * have a fraction) sets *milliseconds to its length: above 0, at most ten years. An RFC 3339 time
 * "2026-12-01T08:00:00Z", also with a fraction, an offset ("+01:00") or a blank for the T, sets it
 * to the time since the Unix epoch. INVALID_ARGUMENT reads "expected ..., found ...".
 */
status_t spec_parse_time(const char *text, bool *is_duration, int64_t *milliseconds) FSDPD_MUST_USE;

/* The point in time that `text` denotes for a job submitted at `submitted_ms`; 0 for "", or for
 * text that spec_parse_time refuses. */
int64_t spec_time_at(const char *text, int64_t submitted_ms);

#endif
