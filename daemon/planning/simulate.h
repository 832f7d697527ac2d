/* A job's step on a cluster that need not exist: time, communication, MFU. */
#ifndef FSDPD_PLANNING_SIMULATE_H
#define FSDPD_PLANNING_SIMULATE_H

#include "planning/cluster.h"
#include "planning/profile.h"
#include "setup/job.h"

struct simulated {
    struct plan_estimate step; /* a whole step, with all its batches, of most ranks */
    double undisturbed;        /* seconds of a step with no slow rank and no slow link */
    int kinds;                 /* of ranks that differ */
    double model_flops;        /* of a step on all ranks, without repetitions */
    double mfu;                /* 0 to 1 */
    double tokens;             /* of a step on all ranks; samples, if the model takes no tokens */
    bool has_tokens;
    uint32_t micro_steps;
};

/* INVALID_ARGUMENT for a cluster that does not match itself; the plan's errors. */
status_t planning_simulate(const struct train_job *job, const struct profile *profile,
                           const struct cluster *cluster,
                           struct simulated *simulated) FSDPD_MUST_USE;

#endif
