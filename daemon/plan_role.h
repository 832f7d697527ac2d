/*
 * The plan role: `fsdpd plan job.yaml` prints the job's plan for a profile, without a daemon. The
 * same text and the same JSON as `fsdpctl plan`, which asks a worker.
 */
#ifndef FSDPD_PLAN_ROLE_H
#define FSDPD_PLAN_ROLE_H

#include <stdbool.h>

#include "spec/spec.h"

enum { PLAN_ROLE_DATA_ROOTS_MAX = 16 };

struct plan_role_options {
    const char *job_file;
    const char *profile; /* NULL: the cpu's */
    int world;           /* 0: as the profile says, or the job */
    int threads;         /* of the cpu, per rank; 0: 1 */
    bool dump, json;
    const char *data_roots[PLAN_ROLE_DATA_ROOTS_MAX];
    int data_root_count;
    struct spec_override *overrides; /* owned by whoever fills this in */
    int override_count, override_capacity;
};

/* Prints the plan, or one sentence about what is wrong; returns the exit code. */
int plan_role_main(const struct plan_role_options *options);

#endif
