/*
 * Deadlines of jobs, and their earliest starts. A point in time is compared with the wall clock,
 * which its author used; a duration is measured with the monotonic clock while the coordinator
 * runs, so that setting the clock does not affect it.
 */
#ifndef FSDPD_COORDINATOR_DEADLINES_H
#define FSDPD_COORDINATOR_DEADLINES_H

#include "coordinator/jobs/jobs.h"

/* Sets start_at, start_by and finish_by from the spec and the time of submission. */
void deadlines_resolve(job_message *message);

/* Checks a spec that is being submitted: INVALID_ARGUMENT for a time that has passed. */
status_t deadlines_check(const job_spec *spec) FSDPD_MUST_USE;

/* Starts the deadlines of a job that was created, or read from the store. */
void deadlines_begin(struct job *job);

/* Whether the job's earliest start (start.at) is still to come. The tick looks again. */
bool deadlines_defer(const struct job *job);

/* Ends jobs that are late: a queued job at once, a running one at its next step boundary. */
void deadlines_tick(struct coordinator *c);

#endif
