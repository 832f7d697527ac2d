/*
 * Touches large new memory in a thread of its own, while its owner reads files and draws values:
 * the system finds and clears each page at its first touch, which on virtual machines can take
 * longer than a job's first step. A thread that writes to a page meanwhile only gets it sooner.
 * Thread-safe.
 */
#ifndef FSDPD_RUNTIME_FIRST_TOUCH_H
#define FSDPD_RUNTIME_FIRST_TOUCH_H

#include <stdint.h>

/* Begins with `bytes` of a private anonymous map, in whole pages, which keep their values. Without
 * a thread to be had, before Linux 5.14, and where a page lies with the processor that touches it
 * first (NUMA), the memory is touched by its first use as always. */
void first_touch_begin(void *memory, uint64_t bytes);

/* Ends it, if it has begun; then the memory may be unmapped. It takes the time of one large page.
 */
void first_touch_end(void *memory);

#endif
