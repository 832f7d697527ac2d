/* The calibrate role: `fsdpd calibrate -o FILE` measures this machine and writes a profile of it,
 * for `fsdpd plan --profile FILE`. */
#ifndef FSDPD_CALIBRATE_ROLE_H
#define FSDPD_CALIBRATE_ROLE_H

#include <stdbool.h>

#include "base/status.h"

struct calibrate_role_options {
    const char *out; /* NULL: standard output */
    int workers;     /* 0: as many as there are processors */
    int seconds;     /* 0: the default */
    int worker; /* the process id of the worker that it measures for, at the lowest priority and
                 * not longer than that lives; 0: none */
};

struct worker_options;

/* INVALID_ARGUMENT, and the device's errors. */
status_t calibrate_role_run(const struct calibrate_role_options *options, const char *device,
                            int threads) FSDPD_MUST_USE;

#endif
