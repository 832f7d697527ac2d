/* How jobs enter the coordinator: submitted by a user, revived to be resumed, or read from the
 * store. */
#ifndef FSDPD_COORDINATOR_ADMISSION_H
#define FSDPD_COORDINATOR_ADMISSION_H

#include "coordinator/core/internal.h"
#include "coordinator/jobs/jobs.h"

/* A job to create; all of it is copied. */
struct job_submission {
    const char *id; /* "" to generate one */
    const char *owner;
    bool hold;                   /* by the owner, from the start */
    const job_spec *spec;        /* checked */
    const Fsdpd__V1__Plan *plan; /* NULL: no worker could plan it yet */
    uint64_t steps;
};

/* The record of a queued job, which the caller puts into the store. */
job_message *jobs_make(const struct job_submission *submission, const char *id);

/* Takes a job that is in the store into c->jobs; `message` becomes its own. */
struct job *jobs_adopt(struct coordinator *c, job_message *message);

/* How many more jobs of this user may be queued or running; the records of arrays do not count. */
int jobs_room(const struct coordinator *c, const char *owner);

/* Creates a queued job, in the store. It is in c->jobs when this returns. */
status_t jobs_create(struct coordinator *c, const struct job_submission *submission,
                     struct job **job) FSDPD_MUST_USE;

/*
 * Revives a job that is over: it is then PAUSED in memory, with all its retries, and in c->jobs.
 * The caller queues it next, which also updates the store. Takes ownership of `message`, also on
 * failure.
 */
status_t jobs_revive(struct coordinator *c, job_message *message, struct job **job) FSDPD_MUST_USE;

/* Reads the jobs that were not over from the store: queued ones are queued again, those that ran
 * wait for their workers. */
status_t jobs_recover(struct coordinator *c) FSDPD_MUST_USE;

/* ---- room.c ---- */

/* Room on the disks of the state directory: it must hold what jobs will write. */

/*
 * Checks that the store and the jobs' directory have room for what this job will write, in addition
 * to what the jobs accepted before it have yet to write. RESOURCE_EXHAUSTED names the directory,
 * the bytes needed, and the bytes free.
 */
status_t room_check(struct coordinator *c, const job_spec *spec, const Fsdpd__V1__Plan *plan,
                    uint64_t steps) FSDPD_MUST_USE;

/* The bytes that a job with these settings writes there at most. */
double room_needed(const job_spec *spec, const Fsdpd__V1__Plan *plan, uint64_t steps);

/* RESOURCE_EXHAUSTED with the reason if no new jobs are accepted at all, else NULL. */
status_t room_refusal(const struct coordinator *c) FSDPD_MUST_USE;

/* ---- deadlines.c ---- */

/*
 * Deadlines of jobs, and their earliest starts. A point in time is compared with the wall clock,
 * which its author used; a duration is measured with the monotonic clock while the coordinator
 * runs, so that setting the clock does not affect it.
 */

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
