/*
 * The time of a step by kind of instruction, for a job's metrics: traces one step in every interval
 * (as for trace orders, and not during one of these) and adds up the times of its instructions by
 * kind. Training thread only. All ranks trace the same steps, because such a step is enqueued call
 * by call on all of them; rank 0 adds up.
 */
#ifndef FSDPD_WORKER_OP_TIMES_H
#define FSDPD_WORKER_OP_TIMES_H

#include "runtime/executor.h"

enum { OP_TIMES_MAX = 96 }; /* kinds of ops, and of other instructions */

struct op_time {
    const char *kind; /* "linear", "all_gather", "optimizer": a constant */
    double seconds;   /* of all of that kind in the step, with accumulation in all its batches */
};

struct op_times {
    uint64_t interval; /* steps; 0: none is traced */
    bool adds_up;      /* rank 0 */
    struct trace *trace;
    uint64_t step; /* the last one that was added up; 0: none since they were taken */
    struct op_time times[OP_TIMES_MAX]; /* the longest first */
    int count;
};

/* A step is done, or an evaluation is in progress: `step` are done. */
void op_times_step(struct op_times *times, struct executor *executor, uint64_t step);

/* No step will follow under this executor, which is or will be freed. */
void op_times_end(struct op_times *times);

#endif
