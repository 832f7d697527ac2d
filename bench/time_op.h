/* How the programs of this directory time one op's CPU kernel, on random operands. */
#ifndef FSDPD_BENCH_TIME_OP_H
#define FSDPD_BENCH_TIME_OP_H

#include <stdint.h>
#include <time.h>

#include "kernels/kernels.h"

struct op_timer {
    double seconds;  /* how long each op is repeated */
    clockid_t clock; /* CLOCK_PROCESS_CPUTIME_ID: on one thread, what else runs disturbs less */
    int64_t largest_index; /* i32 operands are drawn below it; 0: they are all 0 */
};

struct op_times {
    double best_us, median_us;
    uint64_t workspace_bytes;
};

/* An op with every operand that its kind may have; their types are left to the caller. */
struct op_desc whole_op(enum op_kind kind);

/* Random numbers in [-1, 1], or indices; 64-byte aligned, the caller frees it. */
void *operand_new(const struct tensor_type *type, int64_t largest_index);

/* Sorts the times (microseconds). */
struct op_times times_of(double *times, int count);

/* What `clock` shows, in microseconds. */
double clock_us(clockid_t clock);

/* Ends the program with a message if there is no kernel for the op. */
struct op_times time_op(const struct op_timer *timer, const struct op_desc *desc);

#endif
