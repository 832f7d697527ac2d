/* Jobs and files that are removed. */
#ifndef FSDPD_COORDINATOR_RETENTION_H
#define FSDPD_COORDINATOR_RETENTION_H

#include "coordinator/core/internal.h"
#include "coordinator/jobs/jobs.h"

/*
 * Removes jobs that are over: one by one on request (ForgetJob), or automatically when they are too
 * old or too many (retention.days, retention.jobs). Removing a job deletes its record, events,
 * metrics, logs and weights, and everything else in jobs/ID of the state directory.
 *
 * Files are moved aside (forgotten/ID.N) before the record is deleted, and a thread removes them
 * afterwards. After a crash in between, the next start completes the removal, or restores the files
 * if the record still exists. The same thread removes checkpoints in a directory that the job's own
 * settings name; a crash leaves those that it has not reached.
 */
/* Completes or undoes what an earlier run left unfinished. Problems are logged. */
void forget_recover(struct coordinator *c);

/* Applies the limits, a few jobs at a time. */
void forget_tick(struct coordinator *c, int64_t now);

/* Applies the limits within a second or two: a job has ended, or the limits have changed. */
void forget_tick_soon(struct coordinator *c);

/* The handler of ForgetJob. */
void forget_start(struct rpc_call *call, const ProtobufCMessage *request, void *service);

/*
 * Removes the files that a worker leaves when it is killed while it writes or removes a checkpoint.
 * The job's next attempt sweeps them; a job that is over has no next attempt, so the coordinator
 * does it: when the job is over, again when ranks that had to be killed are gone, and at its start.
 * Checkpoints may be large: a libuv thread removes them. Problems are logged.
 */
struct sweep;

void sweeps_job_over(struct coordinator *c, const job_message *job);
void sweeps_tick(struct coordinator *c, int64_t now);

/* Sweeps all jobs that are over and keep their checkpoints in the state directory. */
void sweeps_recover(struct coordinator *c);

void sweeps_free(struct coordinator *c);

#endif
