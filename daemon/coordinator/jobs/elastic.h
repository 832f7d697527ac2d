/*
 * Elastic jobs: with how many workers the next attempt may run, and when a loss of workers is no
 * failure. Worlds whose plans do not fit are never chosen (Plan.worlds, made at the submission).
 */
#ifndef FSDPD_COORDINATOR_ELASTIC_H
#define FSDPD_COORDINATOR_ELASTIC_H

#include "base/buf.h"
#include "coordinator/jobs/jobs.h"

bool elastic_is(const job_message *job);

/* The number of workers that it wants. */
uint32_t elastic_wanted(const job_message *job);

/* Whether its workers keep its state in memory. */
bool elastic_is_redundant(const job_message *job);

/* FAILED_PRECONDITION or INVALID_ARGUMENT says why the job may not have this number of workers. */
status_t elastic_check(const job_message *job, uint32_t workers) FSDPD_MUST_USE;

/* The same without the reason. */
bool elastic_fits(const job_message *job, int workers);

/* The largest number of workers, at most `available` and the job's `workers`, that the next attempt
 * may have; 0: none. A job that is not elastic has all of its workers or none. */
int elastic_choose(const job_message *job, int available);

/* The least number of workers with which the job starts, where `expected` exist or soon will. The
 * first attempt waits for all of its workers if there are enough of them. */
int elastic_least(const job_message *job, int expected);

/* The attempt is over: for the next one's report. */
void elastic_note_end(struct job *job);

/* If the job waits for a user or is over, workers need not keep its state in memory any more. */
void elastic_attempt_over(struct job *job);

/* Workers need not keep the job's state in memory any more: a checkpoint has it, or it is over. */
void elastic_let_go(struct job *job);

/* Appends what changed since that attempt; nothing if the job is not elastic. */
void elastic_describe(const struct job *job, uint64_t resumed_step, struct buf *out);

/* Whether the running attempt repeats steps that an earlier one had done when it lost workers. */
bool elastic_repeats(const struct job *job);

/* Queues a job whose attempt lost workers again, at once and without using its retry budget. False
 * if the job is not elastic, or made no progress since the last time: the budget then counts. */
bool elastic_continue(struct job *job, const char *why);

#endif
