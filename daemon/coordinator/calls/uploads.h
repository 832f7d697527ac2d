/*
 * UploadState: a state_dict that rank 0 sends. It is either the answer to a pull order, which is
 * relayed (pulls.h), or a job's final state_dict, which is kept in the state directory: temporary
 * file, fsync, rename.
 */
#ifndef FSDPD_COORDINATOR_UPLOADS_H
#define FSDPD_COORDINATOR_UPLOADS_H

#include "coordinator/jobs/jobs.h"

struct upload;

/* The handlers of UploadState; the service is the coordinator. */
void uploads_start(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void uploads_message(struct rpc_call *call, const ProtobufCMessage *message, void *service);

/* Whether a final state_dict of this job is arriving. */
bool uploads_has(const struct job *job);

/* At a start: ends replacements of kept files that a crash left unfinished. */
void uploads_recover(struct coordinator *c);

/* For a relayed upload: requests its next chunk; ends it because no client waits for it any
 * more. */
void upload_read(struct upload *upload);
void upload_reject(struct upload *upload, status_t status);

#endif
