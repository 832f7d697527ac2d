/* Decides what follows a failed attempt: another one, after a pause, or the end of the job. */
#ifndef FSDPD_COORDINATOR_RETRY_H
#define FSDPD_COORDINATOR_RETRY_H

#include "coordinator/jobs/jobs.h"

/*
 * The attempt of a job that is not over has failed: because of the job itself or, with `machine`,
 * of what it runs on. If no rank has begun and the machine is at fault, the job is QUEUED again
 * without using its budget, up to five times in a row. Otherwise, while its budget for this lasts,
 * it is QUEUED again and placed after a pause that grows from attempt to attempt; after that, it is
 * FAILED with the code and the message.
 */
void retry_attempt_failed(struct job *job, bool machine, const char *code, const char *format, ...)
    FSDPD_PRINTF(4, 5);

/* A host had no space, memory or descriptor, or its disk failed, which is not a failure of the job: it is QUEUED again
 * without using its budget, and placed after a pause that grows. */
void retry_attempt_lacked(struct job *job, const char *format, ...) FSDPD_PRINTF(2, 3);

/*
 * The attempt was ended because fsdpd stops, which is not a failure: the job is QUEUED again with
 * this code, without using its budget. It is FAILED if its budget allows no machine failure and a
 * rank has begun.
 */
void retry_attempt_interrupted(struct job *job, const char *code, const char *format, ...)
    FSDPD_PRINTF(3, 4);

/* The store cannot read what the job's next attempt needs to start: the job stays QUEUED and is
 * placed again after a pause. Takes ownership of `why`. */
void retry_start_later(struct job *job, status_t why);

/* Whether the pause before the next attempt still lasts. */
bool retry_is_waiting(const struct job *job);

/* Makes jobs whose pause is over available for placement. */
void retry_tick(struct coordinator *c);

/* Reads from the store how much of the budget is used. */
status_t retry_recover(struct job *job) FSDPD_MUST_USE;

#endif
