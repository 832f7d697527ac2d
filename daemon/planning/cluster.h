/*
 * Simulates a step of a plan on a cluster of hosts with devices, of which some ranks or hosts'
 * links are slower. All ranks run the same instructions; a collective begins when the last rank of
 * its group has come. Ranks that cannot differ, because their speeds and those of all groups around
 * them are the same, are simulated once. Pure functions; any thread.
 */
#ifndef FSDPD_PLANNING_CLUSTER_H
#define FSDPD_PLANNING_CLUSTER_H

#include "planning/plan_estimate.h"
#include "planning/profile.h"
#include "setup/job.h"

enum { CLUSTER_RANKS_MAX = 65536, CLUSTER_SLOW_MAX = 64 };

/* A rank's, or a host's, fraction of its speed. */
struct cluster_slow {
    int index;
    double speed; /* above 0, at most 1 */
};

struct cluster {
    int hosts, devices;                          /* of each host; together the plan's world */
    struct cluster_slow ranks[CLUSTER_SLOW_MAX]; /* their arithmetic and memory */
    int rank_count;
    struct cluster_slow links[CLUSTER_SLOW_MAX]; /* a host's links to other hosts */
    int link_count;
};

/* The step of the largest set of equal ranks; `kinds` is the number of such sets. */
void cluster_simulate(const struct cluster *cluster, const struct plan *plan,
                      const struct plan_program *program, const struct plan_rates *rates,
                      struct plan_estimate *estimate, int *kinds);

/* ---- simulate.c ---- */

/* A job's step on a cluster that need not exist: time, communication, MFU. */

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
