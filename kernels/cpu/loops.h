/*
 * The vectorised loops of the CPU library: the same source compiled for several instruction sets,
 * chosen at run time by what the processor has. All levels give the same bits. Plain functions over
 * memory of the caller: no threads, no allocation, any alignment. Outputs may be the first input
 * where it says so; otherwise nothing overlaps.
 */
#ifndef FSDPD_KERNELS_CPU_LOOPS_H
#define FSDPD_KERNELS_CPU_LOOPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

enum cpu_level { CPU_LEVEL_BASE, CPU_LEVEL_AVX2, CPU_LEVEL_AVX512, CPU_LEVEL_COUNT };

struct cpu_loops {
    const char *name;

    /* y may be x (or dy, or a). `add` adds to what is there. */
    void (*relu)(size_t n, float *y, const float *x, bool add);
    void (*relu_backward)(size_t n, float *dx, const float *dy, const float *y, bool add);
    void (*add)(size_t n, float *y, const float *a, const float *b, bool add);
    void (*copy_add)(size_t n, float *y, const float *x); /* y += x */

    void (*scale)(size_t n, float *values, float scale);
    void (*sum_ordered)(size_t n, float *out, const float *const *parts, int part_count,
                        float scale);
    void (*adadelta)(size_t n, float *param, const float *grad, float *square_avg, float *acc_delta,
                     const struct adadelta_args *args);
    void (*sgd)(size_t n, float *param, const float *grad, float *momentum_buffer,
                const struct sgd_args *args);
};

/* The best that this processor can run. */
const struct cpu_loops *cpu_loops_get(void);

/* One level; NULL if this processor cannot run it. */
const struct cpu_loops *cpu_loops_at(enum cpu_level level);

/* Defined by the files that compile the loops; NULL where the compiler cannot make them. */
extern const struct cpu_loops *const cpu_loops_base, *const cpu_loops_avx2, *const cpu_loops_avx512;

#endif
