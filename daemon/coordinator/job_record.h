/*
 * What jobs.c and the writing of jobs to the store share; for these two only. What others use of
 * the latter (jobs_save_again and so on) is in jobs.h.
 */
#ifndef FSDPD_COORDINATOR_JOB_RECORD_H
#define FSDPD_COORDINATOR_JOB_RECORD_H

#include "coordinator/jobs.h"

/* Takes the next sequence number, writes the job and the event, and hands the event to watchers. */
void job_record(struct job *job, job_event *event, bool durable);

/* The events that the store refused, freed. */
void job_forget_backlog(struct job *job);

/* Whether a job in this state has an attempt. */
bool job_is_in_attempt(int state);

/* Takes a job that is over, and that the store knows to be, from the lists, and frees it. */
void job_over(struct job *job);

#endif
