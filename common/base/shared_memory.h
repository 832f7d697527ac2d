/*
 * Memory that one process makes and others of the same host and user may read. They map it through
 * the maker's descriptors in /proc, so the maker does nothing for that. It lasts until the last of
 * them has unmapped it or ended, for any reason: a process that maps it keeps it when its maker
 * dies. Its number is drawn, so a place on another host, or of a process that has ended, leads to
 * none.
 */
#ifndef FSDPD_BASE_SHARED_MEMORY_H
#define FSDPD_BASE_SHARED_MEMORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct shared_memory {
    void *memory; /* begins on a page's boundary; read-only where it is mapped; NULL: none */
    size_t bytes;
    _Atomic uint64_t *mark; /* besides it: the maker changes it, and others read it; 0 at first */
    uint64_t number;
    int fd; /* the maker's */
};

/* Where others find it. */
struct shared_place {
    uint64_t process, fd, bytes, number;
};

/* All of it is allocated, and zero; RESOURCE_EXHAUSTED if there is no memory. */
status_t shared_memory_make(size_t bytes, struct shared_memory *made) FSDPD_MUST_USE;
struct shared_place shared_memory_place(const struct shared_memory *made);

/* NOT_FOUND if this process cannot find it there. */
status_t shared_memory_map(const struct shared_place *place,
                           struct shared_memory *mapped) FSDPD_MUST_USE;

/* Sets it to zero; accepts zero. */
void shared_memory_free(struct shared_memory *memory);

#endif
