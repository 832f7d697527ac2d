/*
 * Reads all that a coordinator keeps, and compares it with its sums, so that what rots is known
 * before it is needed: the rows of the store, final weights, checkpoints and logs. It changes
 * nothing, and works beside a coordinator and without one; on a thread of its own.
 */
#ifndef FSDPD_COORDINATOR_SCRUB_H
#define FSDPD_COORDINATOR_SCRUB_H

#include "base/status.h"
#include "coordinator/core/settings.h"

enum scrub_kind {
    SCRUB_STORE, /* its rows; with a job: those of this one */
    SCRUB_WEIGHTS,
    SCRUB_CHECKPOINT,
    SCRUB_LOG,
    SCRUB_KINDS,
};

/* "final weights" */
const char *scrub_kind_name(enum scrub_kind kind);

struct scrub_finding {
    enum scrub_kind kind;
    const char *job;     /* NULL: the store as a whole */
    uint64_t step;       /* of a checkpoint */
    const char *message; /* names the file, and in weights the tensor */
};

struct scrub_totals {
    uint64_t read[SCRUB_KINDS], bytes[SCRUB_KINDS], damaged[SCRUB_KINDS];
};

struct scrub {
    const struct coordinator_options *options; /* the state directory, and the data roots */
    /* After each part, with what it read: waits, so that the rate stays bounded. False ends it. */
    bool (*read)(void *user, uint64_t bytes);
    void (*found)(void *user, const struct scrub_finding *finding); /* the texts: during the call */
    void *user;
    struct scrub_totals totals; /* filled in */
};

/* An error if there is no store, or it cannot be read; CANCELLED if `read` ended it. Damage is no
 * error, it is found. */
status_t scrub_run(struct scrub *scrub) FSDPD_MUST_USE;

#endif
