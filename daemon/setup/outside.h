/*
 * The memory of a worker's process outside of the plan's arenas, for a device whose memory is the
 * host's. What the job determines is computed; the rest are figures of bench/memory.sh for x86-64
 * (docs/memory.md).
 */
#ifndef FSDPD_SETUP_OUTSIDE_H
#define FSDPD_SETUP_OUTSIDE_H

#include <stdint.h>

#include "setup/session.h"

enum outside_kind {
    OUTSIDE_CODE,         /* of the program and its libraries */
    OUTSIDE_LIBRARIES,    /* what these allocate: gRPC, oneDNN, graphs, the plan itself */
    OUTSIDE_DATA,         /* the order of an epoch's samples */
    OUTSIDE_LOADER,       /* batches made ahead */
    OUTSIDE_COMMUNICATOR, /* shared memory between the ranks of a host */
    OUTSIDE_REDUNDANCY,   /* copies of this rank's state and of others' */
    OUTSIDE_SAMPLES,      /* a decoder of sample.reserve: arenas, keys and values */
    OUTSIDE_HELD,         /* units that it gathers once for a call */
    OUTSIDE_FINAL,        /* what gathers the final weights, beyond the work arena that it frees */
};
enum { OUTSIDE_KINDS = OUTSIDE_FINAL + 1 };

struct train_outside {
    uint64_t bytes[OUTSIDE_KINDS];
    uint64_t not_held; /* what more there would be if units were held; 0: they are, or need not */
};

const char *outside_name(enum outside_kind kind);

/* For a device with memory of its own: what else is planned of it, the two of samples. */
void train_session_outside(const struct train_session *session, struct train_outside *outside);
uint64_t train_session_outside_bytes(const struct train_session *session);

#endif
