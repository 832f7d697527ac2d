/* A job's totals since this coordinator accepted or loaded it: those behind the
 * Prometheus counters. */
#ifndef FSDPD_COORDINATOR_JOB_TOTALS_H
#define FSDPD_COORDINATOR_JOB_TOTALS_H

#include "coordinator/store/message.h"

enum { JOB_TOTALS_OPS = 8 };

/* Steps are rank 0's. */
struct job_totals {
    uint64_t step;  /* the step up to which the totals count */
    uint64_t steps; /* steps reported with a duration */
    double samples, seconds, exposed_seconds;
    uint64_t checkpoints;
    double checkpoint_seconds;
    int64_t checkpoint_ms; /* when the newest was complete, also before this coordinator; 0: none */
    struct {
        char kind[24]; /* "all_gather" */
        double bytes;  /* sent by all ranks */
    } ops[JOB_TOTALS_OPS];
    int op_count;
};

/* Adds what has happened since rank 0's last report, under the job's current plan. */
void job_totals_add(struct job_totals *totals, const job_message *job,
                    const Fsdpd__V1__Metrics *report);

#endif
