/* Times one op's CPU kernel on random operands, for the programs of this directory. */
#ifndef FSDPD_BENCH_TIME_OP_H
#define FSDPD_BENCH_TIME_OP_H

#include <stdint.h>
#include <time.h>

#include "kernels/kernels.h"

struct op_timer {
    double seconds;  /* how long to repeat each op */
    clockid_t clock; /* CLOCK_PROCESS_CPUTIME_ID: on one thread, other programs disturb it less */
    int64_t largest_index; /* upper bound of random i32 operands, exclusive; 0: they are all 0 */
    int64_t document;      /* length of the documents in rows with starts */
};

struct op_times {
    double best_us, median_us;
    uint64_t workspace_bytes;
};

/* An op with every operand that its kind may have, except starts and preactivations; the caller sets
 * their types. */
struct op_desc whole_op(enum op_kind kind);

/* Random numbers in [-1, 1], or indices; 64-byte aligned. Caller frees. */
void *operand_new(const struct tensor_type *type, int64_t largest_index);

/* Sorts the times, which are in microseconds. */
struct op_times times_of(double *times, int count);

/* The current time of `clock`, in microseconds. */
double clock_us(clockid_t clock);

/* Exits with a message if there is no kernel for the op. */
struct op_times time_op(const struct op_timer *timer, const struct op_desc *desc);

#endif
