/*
 * Evaluates a job's plan: its memory, the estimated times of its steps on the profile's devices,
 * and better settings. It allocates no buffers and reads no data except headers. Every named
 * alternative has been planned, not guessed.
 */
#ifndef FSDPD_PLANNING_PLANNING_H
#define FSDPD_PLANNING_PLANNING_H

#include "fsdpd/v1/control.pb-c.h"
#include "planning/profile.h"
#include "setup/job.h"

struct planning_options {
    const struct profile *profile; /* NULL: that of `device` */
    /* With `device`: the rates that were measured on such devices, instead of the profile's. May be
     * NULL. */
    const struct profile *measured;
    /* The device of this process that the job would run on: prepares its ops and queries its
     * memory. NULL: none; use the profile's. */
    const char *device;
    uint64_t memory_bytes; /* of `device`; 0: its free memory now */
    /* The host's free memory when nothing ran there, or now if that is more. */
    uint64_t host_memory_bytes;
    int host_workers; /* most ranks that would share it; 0: 1 */
    bool staged;      /* workers share devices: see backend_join */
    int threads;      /* per op of a cpu */
    bool details;     /* schedule and advice, too */
    bool choose;      /* choose the job's settings first; the plan lists them as its choices */
    bool tune;        /* list the units that fsdp.tune tries */
    bool dump;
};

/*
 * Plans `job` (without data if it has no data_dir), or with `choose` the fastest settings that fit.
 * RESOURCE_EXHAUSTED if the plan does not fit the device or, for a device of this process, its
 * host; the message says what does not fit, and what would. Free *plan with
 * fsdpd__v1__plan__free_unpacked.
 */
status_t planning_make(const struct train_job *job, const struct planning_options *options,
                       Fsdpd__V1__Plan **plan) FSDPD_MUST_USE;

#endif
