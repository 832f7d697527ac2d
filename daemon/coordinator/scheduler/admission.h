/* How jobs enter the coordinator: submitted by a user, revived to be resumed, or read from the
 * store. */
#ifndef FSDPD_COORDINATOR_ADMISSION_H
#define FSDPD_COORDINATOR_ADMISSION_H

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

#endif
