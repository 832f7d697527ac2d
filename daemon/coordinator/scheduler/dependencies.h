/*
 * Jobs that wait for others (the spec's after and after_any). A job's message lists those it still
 * waits for (waits_for); the list shrinks as they end. When a job in `after` does not succeed, the
 * jobs that wait for it end, too: CANCELLED, DEPENDENCY_FAILED.
 */
#ifndef FSDPD_COORDINATOR_DEPENDENCIES_H
#define FSDPD_COORDINATOR_DEPENDENCIES_H

#include "coordinator/jobs/jobs.h"

/* Checks a spec that is being submitted under `id` (or ""): whether dependencies_find would refuse
 * it. */
status_t dependencies_check(struct coordinator *c, const char *id,
                            const job_spec *spec) FSDPD_MUST_USE;

/* Fills in waits_for of a new job. NOT_FOUND for a job that does not exist; FAILED_PRECONDITION for
 * a job in `after` that is over and did not succeed. */
status_t dependencies_find(struct coordinator *c, job_message *message) FSDPD_MUST_USE;

/* The same for a job that is in the store already, one of an array: a job that does not exist any
 * more is no obstacle, and one that has failed ends it. */
status_t dependencies_adopt(struct job *job) FSDPD_MUST_USE;

/* After a restart: fills in waits_for of queued jobs, and ends those that waited for a failed
 * job. */
status_t dependencies_recover(struct coordinator *c) FSDPD_MUST_USE;

/* `over` has ended. Jobs that waited for it may end, too. */
void dependencies_job_over(struct coordinator *c, const job_message *over);

#endif
