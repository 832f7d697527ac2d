/*
 * Arrays: a record whose spec has an array, and a job for each of its indices. The record stays
 * QUEUED until all of its jobs are over, and never runs itself. Its `step` counts the indices whose
 * jobs are made: a transaction that inserts jobs raises it, so each index has its job once,
 * whenever fsdpd ends. A job's id is that of the array, "-" and the index.
 */
#ifndef FSDPD_COORDINATOR_ARRAYS_H
#define FSDPD_COORDINATOR_ARRAYS_H

#include "coordinator/jobs/jobs.h"

/* How many jobs of an array are inserted, or cancelled, in a turn. */
enum { ARRAYS_AT_ONCE = 50 };

/* The id of the array's job; the caller frees it. */
char *arrays_job_id(const char *array, uint32_t index);

/* The array of a job, if it has one that is not over. */
struct job *arrays_of(const struct job *job);

/* A record that is new, or was read from the store: what its jobs did is counted. Does nothing for
 * other jobs. */
void arrays_begin(struct job *job);
status_t arrays_recover(struct job *job) FSDPD_MUST_USE;

/* Makes jobs, cancels those of cancelled arrays, and ends arrays whose jobs are over. Only turn.c
 * calls it. */
void arrays_place(struct coordinator *c);

/* A job is over, or is revived: its record counts it. */
void arrays_job_over(struct coordinator *c, const job_message *message);
void arrays_job_revived(struct coordinator *c, const job_message *message);

/* Cancels the array: no more jobs are made, and those that there are end. */
void arrays_cancel(struct job *array, const char *by);

bool arrays_is_cancelled(const struct job *job);

/* Counts its jobs in the message of the array, for a reply, and says it in the reason. */
void arrays_explain(struct job *array);

/* Whether the id is that of a job of an array that is not over: it is not removed before. */
bool arrays_keep(struct coordinator *c, const char *id);

#endif
