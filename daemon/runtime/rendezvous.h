/*
 * Where the ranks of a group find each other: a key-value store of small values that all of them
 * can reach (the coordinator; in tests a directory). Plain C and C++.
 */
#ifndef FSDPD_RUNTIME_RENDEZVOUS_H
#define FSDPD_RUNTIME_RENDEZVOUS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#include "base/status.h"
}
#else
#include "base/status.h"
#endif

/* Functions may be called from any thread. */
struct rendezvous {
    status_t (*set)(void *user, const char *key, const void *value, size_t size);
    /* Waits for the key; *value is the caller's to free. */
    status_t (*get)(void *user, const char *key, int64_t timeout_ms, void **value, size_t *size);
    /* Makes every current and future get of a key "GROUP/..." fail with ABORTED and `why`. Returns
     * at once. NULL: unsupported; the other ranks wait until their deadline. */
    void (*fail)(void *user, const char *group, const char *why);
    /* The error once this rank must give up; every get and set then fails, too. NULL: never. */
    status_t (*check)(void *user);
    void *user;
};

struct rendezvous_value {
    void *data;
    size_t size;
};

#ifdef __cplusplus
extern "C" {
#endif

/* Sets GROUP/WHAT/RANK to `own` and waits for the same key of every other rank. The caller frees
 * the data of `values` (world), that of its own rank too, which is a copy. */
status_t rendezvous_meet(const struct rendezvous *store, const char *group, const char *what,
                         int rank, int world, const void *own, size_t size, int64_t deadline_ns,
                         struct rendezvous_value *values) FSDPD_MUST_USE;

/* The error if this rank must give up. */
status_t rendezvous_still_open(const struct rendezvous *store) FSDPD_MUST_USE;

/* Ends every rank's wait for the group. */
void rendezvous_give_up(const struct rendezvous *store, const char *group, const char *why);

#ifdef __cplusplus
}
#endif

#endif
