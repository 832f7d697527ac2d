/*
 * The plan role: `fsdpd plan job.yaml` prints the job's plan for a profile, without a daemon. The
 * output is that of `fsdpctl plan`, which asks a worker, as text and as JSON.
 */
#ifndef FSDPD_PLAN_ROLE_H
#define FSDPD_PLAN_ROLE_H

#include <stdbool.h>

#include "print/worlds.h"
#include "spec/spec.h"

enum { PLAN_ROLE_DATA_ROOTS_MAX = 16, PLAN_ROLE_FAMILIES_MAX = 16, PLAN_ROLE_SLOW_MAX = 64 };

struct plan_role_options {
    const char *job_file;
    const char *profile;  /* NULL: the cpu's */
    int world;            /* 0: from the profile or the job */
    struct worlds worlds; /* to compare; none: `world` alone */
    const char *simulate; /* hosts and devices: "1024x8"; NULL: none */
    const char *slow_ranks[PLAN_ROLE_SLOW_MAX], *slow_links[PLAN_ROLE_SLOW_MAX];
    int slow_rank_count, slow_link_count;
    int threads; /* for the cpu, per rank; 0: 1 */
    bool dump, json, choose;
    bool order;            /* see plan_order_main */
    uint64_t memory_bytes; /* of a device; 0: the profile's */
    const char *data_roots[PLAN_ROLE_DATA_ROOTS_MAX];
    int data_root_count;
    const char *families[PLAN_ROLE_FAMILIES_MAX]; /* directories of family files */
    int family_count;
    struct spec_override *overrides; /* owned by the caller that fills this in */
    int override_count, override_capacity;
};

/*
 * `fsdpd plan --order`: reads a PlanOrder from standard input and writes its PlanResult to standard
 * output, both packed. The coordinator asks so while no worker is attached
 * (coordinator/workers/offline.h). Without a profile the job is only checked, and the result has no
 * plan.
 */
int plan_order_main(const struct plan_role_options *options);

/* Prints the plan, or one sentence that explains the error; returns the exit code. */
int plan_role_main(const struct plan_role_options *options);

#endif
