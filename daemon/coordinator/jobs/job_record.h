/*
 * Shared by jobs.c, admission.c, arrays.c and the code that writes jobs to the store; for these
 * only. Functions of the latter that others use (jobs_save_again and so on) are in jobs.h.
 */
#ifndef FSDPD_COORDINATOR_JOB_RECORD_H
#define FSDPD_COORDINATOR_JOB_RECORD_H

#include "coordinator/jobs/jobs.h"

/* Takes the next sequence number, writes the job and the event, and passes the event to the
 * watchers. */
void job_record(struct job *job, job_event *event, bool durable);

/* Adds a job with this record, of which it takes ownership, to the tables. */
struct job *job_add(struct coordinator *c, job_message *message);

/* Fills in the event that reports the job's entry into its state. Borrows from `message` and `by`,
 * the user who caused it; "" for the daemon. */
void job_state_event(const job_message *message, const char *by, job_event *event,
                     Fsdpd__V1__StateChange *change);
void job_set_reason_text(job_message *message, const char *code, const char *text);

/* Frees the events that the store refused. */
void job_forget_backlog(struct job *job);

/* Whether a job in this state has an attempt. */
bool job_is_in_attempt(int state);

/* Finishes a job that is over once the store has recorded that: jobs_find no longer finds it, and
 * the end of the turn frees it. */
void job_over(struct job *job);

#endif
