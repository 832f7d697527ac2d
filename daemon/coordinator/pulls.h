/*
 * PullStateDict. Of a running job: an order to all ranks, which rank 0 answers with an upload that
 * is relayed chunk by chunk, read only as fast as the client reads. Of a job that is over: its
 * file. Of one that has neither, or if it is asked for: a checkpoint, read on other threads, a
 * chunk at a time, as fast as the client reads. One order of a job is under way at a time, because
 * each costs the ranks a snapshot; others wait.
 */
#ifndef FSDPD_COORDINATOR_PULLS_H
#define FSDPD_COORDINATOR_PULLS_H

#include "coordinator/jobs.h"
#include "coordinator/uploads.h"

enum { STATE_DICT_CHUNK = 1 << 20 };

struct pull;

void pulls_start(struct rpc_call *call, const Fsdpd__V1__PullStateDictRequest *request,
                 struct coordinator *c);
void pulls_writable(struct rpc_call *call);
void pulls_closed(struct coordinator *c, struct rpc_call *call);

/* Orders the job's next pull if none is under way. */
void pulls_advance(struct job *job);

/* A rank could not do it. */
void pulls_failed(struct job *job, const Fsdpd__V1__PullFailed *failed);

/* The attempt is over: pulls that have got nothing yet go on with the kept file or, of a job
 * without one, with its newest checkpoint, or fail. */
void pulls_job_over(struct job *job);

/* The upload that answers a pull order begins: CANCELLED if nobody waits for it any more. */
status_t pull_accept(struct coordinator *c, const Fsdpd__V1__UploadStateRequest *first,
                     struct upload *upload, struct pull **pull) FSDPD_MUST_USE;

/* One chunk, also the first; the pull asks for the next with upload_read. */
status_t pull_relay(struct pull *pull, const ProtobufCBinaryData *data) FSDPD_MUST_USE;

/* The upload's end: DATA_LOSS if bytes are missing, which the client is told too. */
status_t pull_finish(struct pull *pull) FSDPD_MUST_USE;

/* The upload broke off; takes `status` for the client. */
void pull_break(struct pull *pull, status_t status);

void pulls_tick(struct coordinator *c);
void pulls_close(struct coordinator *c);

#endif
