/*
 * A trace, as it comes in chunks from TraceJob, and as a timeline in the format that Chrome's
 * tracing and Perfetto read. No I/O.
 */
#ifndef FSDPD_CLIENT_TIMELINE_H
#define FSDPD_CLIENT_TIMELINE_H

#include "base/buf.h"
#include "base/status.h"
#include "fsdpd/v1/control.pb-c.h"

struct timeline {
    Fsdpd__V1__TraceChunk **chunks; /* copies, as they came */
    int chunk_count, chunk_capacity;
    int world; /* 0: not told yet */

    /* Found by timeline_finish. */
    struct timeline_program {
        const Fsdpd__V1__TraceInstruction **instructions;
        size_t count;
    } train, accumulate; /* the latter of the batches of a step but the last, if it has several */
    uint64_t live_peak_bytes;
    int step_count; /* that every rank has */
    uint64_t first_step, last_step;
    int host_count;
};

void timeline_deinit(struct timeline *timeline);

/* Keeps a copy. */
void timeline_add(struct timeline *timeline, const Fsdpd__V1__TraceChunk *chunk);

/*
 * All chunks are in: DATA_LOSS if something is missing or does not fit together,
 * FAILED_PRECONDITION if not one step was traced.
 */
status_t timeline_finish(struct timeline *timeline) FSDPD_MUST_USE;

/* How long an average step of a rank was at a kind of op, or at another kind of instruction. */
struct timeline_time {
    const char *what, *lane; /* the timeline's */
    double often, seconds;
};
struct timeline_times {
    struct timeline_time *times; /* the longest first */
    int count, capacity;
};
/* Of a timeline that is finished. */
void timeline_sum_up(const struct timeline *timeline, struct timeline_times *times);
void timeline_times_deinit(struct timeline_times *times);

/*
 * The file: pid is the rank, tid the lane. Times start at the first step's begin. Clocks of ranks
 * on one host are one; those of other hosts are shifted so that the first step ends everywhere at
 * the same time, which "otherData" then says.
 */
void timeline_write(const struct timeline *timeline, const char *job, struct buf *out);

#endif
