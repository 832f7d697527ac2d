/*
 * Measures a device and the links between its host's devices, for a profile with tables: training
 * steps of small networks of several sizes and types, instruction by instruction; collectives over
 * sizes and groups; copies to and from a device with memory of its own. The ranks are threads of
 * this process, each with a device and all of one group, as workers are.
 */
#ifndef FSDPD_PLANNING_CALIBRATE_H
#define FSDPD_PLANNING_CALIBRATE_H

#include "planning/profile.h"

enum { CALIBRATE_WORKERS_MAX = 64 };

struct calibrate_options {
    const char *device; /* "cpu"; "cuda:N", the first of as many as there are workers */
    int workers;        /* at most; powers of two up to it are measured, and itself */
    int threads;        /* of each on the cpu */
    double seconds;     /* that measuring may take */
    /* From any thread: whether to end early, with CANCELLED. NULL: never. */
    bool (*stops)(void *user);
    void *user;
};

/* Fills in *profile; profile_deinit it. */
status_t calibrate(const struct calibrate_options *options, struct profile *profile) FSDPD_MUST_USE;

#endif
