/*
 * The rendezvous stores: small values by name, one store per attempt, through which ranks find each
 * other. A store ends with its attempt.
 */
#ifndef FSDPD_COORDINATOR_RENDEZVOUS_H
#define FSDPD_COORDINATOR_RENDEZVOUS_H

#include "coordinator/core/internal.h"

enum {
    RENDEZVOUS_KEY_MAX = 256,
    RENDEZVOUS_VALUE_MAX = 1 << 20,
    RENDEZVOUS_TOTAL_MAX = 256 << 20,
    RENDEZVOUS_WAIT_MAX_MS = 600 * 1000,
};

void rendezvous_begin(struct coordinator *c, const char *name);

/* Waiters get ABORTED. Does nothing if there is no such store. */
void rendezvous_end(struct coordinator *c, const char *name);

/* Replaces an older value. ABORTED if the store is gone. */
status_t rendezvous_set(struct coordinator *c, const char *name, const char *key, const void *value,
                        size_t size) FSDPD_MUST_USE;

/* Marks a group as failed, so that no rank can join it: every set and get of a key "GROUP/...",
 * including gets that wait, ends with ABORTED and the first `why`. Values that its ranks have set
 * are removed. */
status_t rendezvous_fail(struct coordinator *c, const char *name, const char *group,
                         const char *why) FSDPD_MUST_USE;

/*
 * `done` is called once, immediately if the key is set, with the value (valid during the call) or
 * an error that it owns: NOT_FOUND after timeout_ms, ABORTED when the store ends or is gone, or the
 * key's group has failed.
 */
typedef void rendezvous_done(void *user, status_t status, const void *value, size_t size);
void rendezvous_get(struct coordinator *c, const char *name, const char *key, int64_t timeout_ms,
                    rendezvous_done *done, void *user);

/* Ends every wait with this `user` without calling its `done`. */
void rendezvous_forget(struct coordinator *c, const void *user);

void rendezvous_tick(struct coordinator *c);
void rendezvous_close(struct coordinator *c);

#endif
