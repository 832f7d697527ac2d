/*
 * Workers that get no more work at an operator's request: by their id, or by the name of their
 * host, which applies to all workers that the host has or will have. The entries are in the store,
 * and so survive restarts of the coordinator, of the workers and of the host.
 */
#ifndef FSDPD_COORDINATOR_DRAINS_H
#define FSDPD_COORDINATOR_DRAINS_H

#include "coordinator/core/internal.h"

struct drain {
    char *worker; /* id or host */
    char *by;
    int64_t time_ms;
};

/* Loads the entries from the store when the coordinator starts. */
status_t drains_load(struct coordinator *c) FSDPD_MUST_USE;
void drains_free(struct coordinator *c);

/* The entry that drains this worker, its own before its host's; NULL if there is none. */
const struct drain *drains_find(const struct coordinator *c, const char *id, const char *host);

/* Whether this worker or host has an entry. */
bool drains_has(const struct coordinator *c, const char *name);

/* Adds or removes the entry of a worker or host, in the store first; does nothing if the entry
 * exists already, or does not exist. */
status_t drains_add(struct coordinator *c, const char *name, const char *by) FSDPD_MUST_USE;
status_t drains_remove(struct coordinator *c, const char *name, const char *by) FSDPD_MUST_USE;

#endif
