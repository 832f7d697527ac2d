/*
 * Where the ranks of a group find each other: small values under names, kept by somebody all of
 * them can reach (the coordinator; in tests a directory). Plain C and C++.
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
    void *user;
};

#endif
