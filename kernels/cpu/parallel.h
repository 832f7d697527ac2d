/*
 * Splits a range over OpenMP threads. Each thread has one contiguous part whose bounds depend only
 * on the range and the number of threads, never on timing.
 */
#ifndef FSDPD_KERNELS_CPU_PARALLEL_H
#define FSDPD_KERNELS_CPU_PARALLEL_H

#include <stddef.h>

/* Runs function(argument, begin, end) over [0, count), split at multiples of `grain`. */
void cpu_parallel(int threads, size_t count, size_t grain,
                  void (*function)(const void *argument, size_t begin, size_t end),
                  const void *argument);

/* Inside such a function: the thread's index from 0; each occurs at most once per call. */
int cpu_parallel_thread(void);

#endif
