/*
 * Attempts that outlive their coordinator, and links that break during an attempt: restores
 * attempts from what the store records as running and what workers report that they run.
 */
#ifndef FSDPD_COORDINATOR_REATTACH_H
#define FSDPD_COORDINATOR_REATTACH_H

#include "coordinator/jobs/attempt.h"

/* Restores the attempt of a job that was STARTING or RUNNING when the last coordinator ended, as
 * the store recorded it: its ranks are AWAY and have limits.reattach_ms to attach again. Creates no
 * attempt if the record does not name the ranks. */
status_t reattach_job(struct job *job) FSDPD_MUST_USE;

/* Names the ranks that are away in the job's reason as soon as one of them is due
 * (rank.show_at). */
void reattach_update_reason(struct job *job, int64_t now);

/* Handles what a worker that has just been added reports that it runs: takes back attempts that
 * continue, releases others, and declares lost the ranks that the worker should run but does
 * not. */
void reattach_worker(struct worker *worker, const Fsdpd__V1__Hello *hello);

/* Whether a job waits for this worker: one of the attempts in its hello has a rank on a worker with
 * this id. Then the worker is taken back even if its version of fsdpd differs. */
bool reattach_is_wanted(struct coordinator *c, const Fsdpd__V1__Hello *hello);

#endif
