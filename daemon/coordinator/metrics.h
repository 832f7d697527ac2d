/* What Prometheus reads: the text of /metrics, and the totals behind its counters. */
#ifndef FSDPD_COORDINATOR_METRICS_H
#define FSDPD_COORDINATOR_METRICS_H

#include "base/buf.h"
#include "coordinator/internal.h"

enum { JOB_TOTALS_OPS = 8 };

/* Of a job, since this coordinator took it; struct job has them. Steps are rank 0's. */
struct job_totals {
    uint64_t step;  /* up to which the rest counts */
    uint64_t steps; /* that were reported with a duration */
    double samples, seconds, exposed_seconds;
    uint64_t checkpoints;
    double checkpoint_seconds;
    struct {
        char kind[24]; /* "all_gather" */
        double bytes;  /* sent by all ranks */
    } ops[JOB_TOTALS_OPS];
    int op_count;
};

/* A report of rank 0: adds what has happened since the last one, under the job's present plan. */
void metrics_add(struct job_totals *totals, const job_message *job,
                 const Fsdpd__V1__Metrics *report);

/* The exposition, in Prometheus' text format 0.0.4. */
void metrics_write(const struct coordinator *c, struct buf *out);

/* Whether the coordinator can take work; if not, *why says why, in a word or two. */
bool metrics_is_ready(const struct coordinator *c, const char **why);

#endif
