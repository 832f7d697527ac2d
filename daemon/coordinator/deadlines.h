/*
 * Deadlines of jobs. A point in time is compared with the wall clock, as whoever wrote it does; a
 * duration is measured with the monotonic clock as long as the coordinator runs, so that a clock
 * that is set meanwhile changes nothing.
 */
#ifndef FSDPD_COORDINATOR_DEADLINES_H
#define FSDPD_COORDINATOR_DEADLINES_H

#include "coordinator/jobs.h"

/* Sets start_by_ms and finish_by_ms from the spec and the time of submission. */
void deadlines_resolve(job_message *message);

/* Of a spec that is being submitted now: INVALID_ARGUMENT for a time that has passed. */
status_t deadlines_check(const job_spec *spec) FSDPD_MUST_USE;

/* The job was made, or read from the store. */
void deadlines_begin(struct job *job);

/* Ends what is late: a queued job at once, a running one at its next step boundary. */
void deadlines_tick(struct coordinator *c);

#endif
