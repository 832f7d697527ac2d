/*
 * What a worker's process keeps of a job between its attempts: state (redundancy/kept.h), the group
 * of devices, and the last metrics of the steps, which the process of rank 0 may not have sent
 * before it died. An attempt's thread uses it while it runs, and the loop's thread otherwise.
 */
#ifndef FSDPD_WORKER_SPARE_H
#define FSDPD_WORKER_SPARE_H

#include "fsdpd/v1/worker.pb-c.h"
#include "redundancy/kept.h"

enum { SPARE_METRICS = 64 };

struct spare {
    char *job; /* NULL: nothing is kept */
    struct kept kept;
    struct comm *group; /* of its last attempt, for the next one (comm_keep), or NULL */
    Fsdpd__V1__Metrics *metrics[SPARE_METRICS]; /* the newest of a step at number % SPARE_METRICS */
    uint64_t metrics_count;
};

/* An attempt begins: frees what is stale, and all of another job's. Without redundancy in memory
 * nothing remains. */
void spare_begin(struct spare *spare, const Fsdpd__V1__Assignment *assignment);
/* Whether the assignment's job uses it. */
bool spare_is_used(const Fsdpd__V1__Assignment *assignment);
void spare_clear(struct spare *spare);

/* What is kept, for the coordinator; NULL: nothing. The caller frees it. Not while an attempt's
 * thread uses it. */
Fsdpd__V1__KeptState *spare_describe(const struct spare *spare);

/* Keeps a copy. */
void spare_add_metrics(struct spare *spare, const Fsdpd__V1__Metrics *metrics);
/* Appends the metrics up to `step` that are kept: UnrecordedReports. */
void spare_pack_metrics(const struct spare *spare, uint64_t step, struct buf *out);

#endif
