/*
 * A trace, assembled from the chunks of TraceJob and written as a timeline in the format that
 * Chrome's tracing and Perfetto read. No I/O.
 */
#ifndef FSDPD_PAGE_TIMELINE_H
#define FSDPD_PAGE_TIMELINE_H

#include "base/buf.h"
#include "base/status.h"
#include "fsdpd/v1/control.pb-c.h"

struct timeline {
    Fsdpd__V1__TraceChunk **chunks; /* copies, in order of arrival */
    int chunk_count, chunk_capacity;
    int world; /* 0: unknown so far */

    /* Set by timeline_finish. */
    struct timeline_program {
        const Fsdpd__V1__TraceInstruction **instructions;
        size_t count;
    } train, accumulate; /* the latter runs all batches of a step but the last, if it has several */
    uint64_t live_peak_bytes;
    int step_count; /* of every rank */
    uint64_t first_step, last_step;
    int host_count;
};

void timeline_deinit(struct timeline *timeline);

/* Keeps a copy of the chunk. */
void timeline_add(struct timeline *timeline, const Fsdpd__V1__TraceChunk *chunk);

/*
 * Call after the last chunk. DATA_LOSS if chunks are missing or inconsistent, FAILED_PRECONDITION
 * if no step was traced.
 */
status_t timeline_finish(struct timeline *timeline) FSDPD_MUST_USE;

/* The time that an average step of a rank spends on one kind of op, or on another kind of
 * instruction. */
struct timeline_time {
    const char *what, *lane; /* pointers into the timeline */
    double often, seconds;
};
struct timeline_times {
    struct timeline_time *times; /* the longest first */
    int count, capacity;
};
/* `timeline` must be finished. */
void timeline_sum_up(const struct timeline *timeline, struct timeline_times *times);
void timeline_times_deinit(struct timeline_times *times);

/*
 * Appends the file: pid is the rank, tid the lane. Times count from the beginning of the first
 * step. Ranks on one host share a clock; the clocks of other hosts are shifted so that the first
 * step ends at the same time everywhere, and "otherData" notes the shift.
 */
void timeline_write(const struct timeline *timeline, const char *job, struct buf *out);

#endif
