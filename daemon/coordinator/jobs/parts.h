/*
 * What workers keep in memory of the state of a job with elastic.redundancy, between its attempts.
 * A worker that has a part of it is not idle for other jobs, and the job's next attempt waits for
 * every worker that has one and lives.
 */
#ifndef FSDPD_COORDINATOR_PARTS_H
#define FSDPD_COORDINATOR_PARTS_H

#include "base/buf.h"
#include "coordinator/jobs/jobs.h"
#include "coordinator/workers/workers.h"

/* A worker of the last attempt, as the next one sees it. */
enum part_holder {
    PART_GONE, /* its process ended, or it has nothing */
    PART_HERE, /* idle: it can take part */
    PART_LATE, /* it ends its rank, or may attach again */
};

/* Whether the next attempt begins now: no worker is late, or those that are here have all shards
 * (`whole`) and the others have had until `settle_at` to end; or it is `until`. holders: (count).
 * Pure. */
bool parts_begin(const enum part_holder *holders, int count, bool whole, int64_t now,
                 int64_t settle_at, int64_t until);

/* Whether the parts have every shard of one generation, which attempt `since` or a later one used.
 * parts: (count). Pure. */
bool parts_are_whole(const Fsdpd__V1__KeptPart *const *parts, int count, uint32_t since);

/* The attempt since which parts count; see Assignment.kept_since. 0: none counts. */
uint32_t parts_since(const struct job *job);

/* Whether the job has to wait for a worker that is late; describes them then. */
bool parts_wait(const struct job *job, int64_t now, struct buf *late);

/* Whether the worker is idle and has a part of the job's state, which is of use. */
bool parts_has(const struct job *job, const struct worker *worker);

/* The job that has use for what this idle worker keeps, and for which it is therefore reserved;
 * NULL: none. */
const struct job *parts_reserver(const struct worker *worker);

/* The number of workers that are reserved for the job. */
int parts_count(const struct job *job);

/* The worker reports what it keeps, or nothing (NULL). Makes it discard what no job has use for. */
void parts_report(struct worker *worker, const Fsdpd__V1__KeptState *kept);

/* All ranks of the attempt have begun: what others keep is of no use any more. */
void parts_attempt_begun(struct job *job);

/* fsdpd was restarted: the workers of the last attempt have the usual time to attach again. */
void parts_recover(struct job *job);

#endif
