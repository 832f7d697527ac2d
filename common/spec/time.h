/* Durations and points in time as people write them. Pure. */
#ifndef FSDPD_SPEC_TIME_H
#define FSDPD_SPEC_TIME_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

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
