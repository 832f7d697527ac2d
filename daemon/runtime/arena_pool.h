/*
 * The first touch of arenas of host memory, where the system finds and clears each page; on virtual
 * machines that can take longer than a job's first step. Small arenas that ended jobs of this
 * process left are used again by the next job that wants the same sizes. Large ones are touched
 * ahead, in a thread of their own, while their owner reads files and draws values; a thread that
 * writes to a page meanwhile only gets it sooner. Thread-safe.
 */
#ifndef FSDPD_RUNTIME_ARENA_POOL_H
#define FSDPD_RUNTIME_ARENA_POOL_H

#include <stdbool.h>
#include <stdint.h>

/* Memory of that size, zeroed; the caller unmaps it. NULL: there is none, and the pool is empty
 * now, so that what it has is never in addition to a job's own. */
void *arena_pool_take(uint64_t bytes);

/* Zeroes the memory, a private anonymous map, and owns it from then on. False: it does neither,
 * since the arena is too small or too large, or the pool is full. */
bool arena_pool_give(void *memory, uint64_t bytes);

uint64_t arena_pool_bytes(void);

/* Begins to touch `bytes` of a private anonymous map, in whole pages, which keep their values.
 * Without a thread to be had, before Linux 5.14, and where a page lies with the processor that
 * touches it first (NUMA), the memory is touched by its first use as always. */
void arena_touch_begin(void *memory, uint64_t bytes);

/* Ends it, if it has begun; then the memory may be unmapped. It takes the time of one large page.
 */
void arena_touch_end(void *memory);

#endif
