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
#ifndef FSDPD_COORDINATOR_FORGET_H
#define FSDPD_COORDINATOR_FORGET_H

#include "coordinator/core/internal.h"

/* Completes or undoes what an earlier run left unfinished. Problems are logged. */
void forget_recover(struct coordinator *c);

/* Applies the limits, a few jobs at a time. */
void forget_tick(struct coordinator *c, int64_t now);

/* Applies the limits within a second or two: a job has ended, or the limits have changed. */
void forget_tick_soon(struct coordinator *c);

/* The handler of ForgetJob. */
void forget_start(struct rpc_call *call, const ProtobufCMessage *request, void *service);

#endif
