/*
 * A job's plan, judged: what it needs, what its steps would take on the profile's devices, and what
 * would be better. Nothing is allocated, no data is read but its headers. Alternatives are not
 * guessed: each one that is named has been planned.
 */
#ifndef FSDPD_PLANNING_PLANNING_H
#define FSDPD_PLANNING_PLANNING_H

#include "fsdpd/v1/control.pb-c.h"
#include "planning/profile.h"
#include "train/job.h"

struct planning_options {
    const struct profile *profile; /* NULL: that of `device` */
    /* The device of this process that the job would run on: its ops are prepared, its memory asked
     * for. NULL: none, it is the profile's. */
    const char *device;
    uint64_t memory_bytes; /* of `device`; 0: what it has free now */
    /* Of its host, when nothing ran there: what it has free now, if that is more. */
    uint64_t host_memory_bytes;
    int host_workers; /* so many ranks at most would divide it; 0: 1 */
    bool staged;      /* workers share devices: see backend_join */
    int threads;      /* per op of a cpu */
    bool details;     /* schedule and advice, too */
    bool dump;
};

/*
 * Plans `job` (without data if it has no data_dir). RESOURCE_EXHAUSTED if the plan does not fit the
 * device or, of a device of this process, its host: what, and what would make it fit. Free *plan
 * with fsdpd__v1__plan__free_unpacked.
 */
status_t planning_make(const struct train_job *job, const struct planning_options *options,
                       Fsdpd__V1__Plan **plan) FSDPD_MUST_USE;

#endif
