/*
 * PullStateDict. For a running job, a pull is an order to all ranks; rank 0 answers with an upload,
 * which is relayed chunk by chunk, read only as fast as the client reads. For a job that is over,
 * it is the kept file. For a job that has neither, or on request, it is a checkpoint, read on other
 * threads, a chunk at a time, as fast as the client reads. One order per job is in progress at a
 * time, because each costs the ranks a snapshot; other pulls wait.
 */
#ifndef FSDPD_COORDINATOR_PULLS_H
#define FSDPD_COORDINATOR_PULLS_H

#include "coordinator/calls/calls.h"
#include "coordinator/jobs/jobs.h"

enum { STATE_DICT_CHUNK = 1 << 20 };

struct pull;

/* The handler of PullStateDict; the service is the coordinator. */
void pulls_start(struct rpc_call *call, const ProtobufCMessage *request, void *service);

/* Pulls in progress. */
int pulls_count(const struct coordinator *c);

/* Orders the job's next pull if none is in progress. */
void pulls_advance(struct job *job);

/* The job is SAVING and carries out no more orders: ordered pulls wait for pull_accept_final. */
void pulls_wait_for_upload(struct job *job);

/* A rank could not carry out the pull; pull 0, of the final state_dict, will be tried again. */
void pulls_failed(struct job *job, const Fsdpd__V1__PullFailed *failed);

/* The upload that answers a pull order begins: CANCELLED if no client waits for it any more. */
status_t pull_accept(struct coordinator *c, const Fsdpd__V1__UploadStateRequest *first,
                     struct upload *upload, struct pull **pull) FSDPD_MUST_USE;

/* Rank 0 uploads the final state_dict of a job that is SAVING: one of the job's waiting pulls takes
 * it. False if none waits. */
bool pull_accept_final(struct job *job, const Fsdpd__V1__UploadStateRequest *first,
                       struct upload *upload, struct pull **pull);

/* Relays one chunk, also the first; the pull requests the next with upload_read. */
status_t pull_relay(struct pull *pull, const ProtobufCBinaryData *data) FSDPD_MUST_USE;

/* The upload's end: DATA_LOSS if bytes are missing, also for the client. */
status_t pull_finish(struct pull *pull) FSDPD_MUST_USE;

/* The upload was interrupted; takes ownership of `status`, for the client. */
void pull_break(struct pull *pull, status_t status);

#endif
