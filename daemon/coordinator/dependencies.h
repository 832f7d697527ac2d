/*
 * Jobs that wait for others (the spec's after and after_any). What a job still waits for is in its
 * message (waits_for), and shrinks as these jobs end. A job of `after` that does not succeed takes
 * along those that wait for it: CANCELLED, DEPENDENCY_FAILED.
 */
#ifndef FSDPD_COORDINATOR_DEPENDENCIES_H
#define FSDPD_COORDINATOR_DEPENDENCIES_H

#include "coordinator/jobs.h"

/* Of a spec that is being submitted under `id` (or ""): whether dependencies_find would refuse it. */
status_t dependencies_check(struct coordinator *c, const char *id,
                            const job_spec *spec) FSDPD_MUST_USE;

/* Fills in waits_for of a new job. NOT_FOUND for a job that does not exist; FAILED_PRECONDITION for
 * one of `after` that is over and did not succeed. */
status_t dependencies_find(struct coordinator *c, job_message *message) FSDPD_MUST_USE;

/* After a restart: fills in waits_for of queued jobs, and ends those that waited for what failed. */
status_t dependencies_recover(struct coordinator *c) FSDPD_MUST_USE;

/* `over` has ended, and is no longer in c->jobs. Jobs that waited for it may end, too. */
void dependencies_job_over(struct coordinator *c, const job_message *over);

#endif
