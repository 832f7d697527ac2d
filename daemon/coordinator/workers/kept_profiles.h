/*
 * The profiles that workers have measured (docs/profiles.md), in <state_dir>/profiles: one per make
 * of device and number of workers. On the loop's thread.
 */
#ifndef FSDPD_COORDINATOR_KEPT_PROFILES_H
#define FSDPD_COORDINATOR_KEPT_PROFILES_H

#include "coordinator/core/internal.h"

enum { KEPT_PROFILE_MAX = 1 << 20 /* bytes */ };

struct kept_profile {
    const char *kind; /* "cuda" */
    const char *make; /* what decides how fast the device is; see Hello */
    int workers;
    const char *path;
    const char *text; /* the whole file: a profile, after comments */
};

/* The profile of devices of this make, measured with as many workers or the next larger number;
 * NULL if there is none. Valid until the next call of kept_profiles_put. */
const struct kept_profile *kept_profiles_find(struct coordinator *c, const char *make, int workers);

/* The newest of this kind of device; "": of any. Likewise. */
const struct kept_profile *kept_profiles_newest(struct coordinator *c, const char *kind);

/* Keeps a profile in the place of those of the same make with at most that many workers. The oldest
 * ones are removed if there are too many. */
status_t kept_profiles_put(struct coordinator *c, const char *kind, const char *make, int workers,
                           const char *text) FSDPD_MUST_USE;

void kept_profiles_free(struct coordinator *c);

#endif
