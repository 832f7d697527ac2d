/*
 * Arenas of host memory that ended jobs of this process left for the next job that wants the same
 * sizes: touching new pages takes half of a short job's first step. Thread-safe.
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

#endif
