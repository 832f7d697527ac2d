/* What comes of a job whose attempt failed: another one, after a while, or its end. */
#ifndef FSDPD_COORDINATOR_RETRY_H
#define FSDPD_COORDINATOR_RETRY_H

#include "coordinator/jobs.h"

/*
 * The attempt of a job that is not over has failed: by what it does itself, or, with `machine`, by
 * what it runs on. As long as the job's budget for this has something left, it is QUEUED again, and
 * placed after a pause that grows from attempt to attempt; then it is FAILED with the code and the
 * sentence. The job may be freed by this.
 */
void retry_attempt_failed(struct job *job, bool machine, const char *code, const char *format, ...)
    FSDPD_PRINTF(4, 5);

/*
 * The attempt was ended because fsdpd stops, which is nobody's failure: the job is QUEUED again
 * with this code, at no cost of its budget; FAILED, if machines may not fail it at all. The job may
 * be freed by this.
 */
void retry_attempt_interrupted(struct job *job, const char *code, const char *format, ...)
    FSDPD_PRINTF(3, 4);

/* What must be known to start the job's next attempt cannot be read: it stays QUEUED, and is placed
 * again after a pause. Takes `why`. */
void retry_start_later(struct job *job, status_t why);

/* Whether the pause before the next attempt is not over yet. */
bool retry_is_waiting(const struct job *job);

/* Jobs whose pause is over may be placed. */
void retry_tick(struct coordinator *c);

/* What was used of the budget, from the store. */
status_t retry_recover(struct job *job) FSDPD_MUST_USE;

#endif
