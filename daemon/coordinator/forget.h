/*
 * How jobs that are over leave: one by one when somebody asks (ForgetJob), or by themselves when
 * they are too old or too many (retention.days, retention.jobs). With the record go the events, the
 * metrics, the logs, the weights and whatever else is in jobs/ID of the state directory.
 *
 * Files are moved aside (forgotten/ID.N) before the record is deleted, and removed by a thread
 * afterwards. After a crash in between, the next start finishes it, or puts the files back if the
 * record is still there. Checkpoints in a directory of the job's own settings are removed by that
 * thread, too; of these a crash leaves what it had not come to.
 */
#ifndef FSDPD_COORDINATOR_FORGET_H
#define FSDPD_COORDINATOR_FORGET_H

#include "coordinator/internal.h"

/* Settles what an earlier run left half done. Problems are logged. */
void forget_recover(struct coordinator *c);

/* Applies the limits, a few jobs at a time. */
void forget_tick(struct coordinator *c, int64_t now);

/* Within a second or two: a job has ended, or the limits have changed. */
void forget_hurry(struct coordinator *c);

/* The handler of ForgetJob. */
void forget_start(struct rpc_call *call, const ProtobufCMessage *request, void *service);

#endif
