/*
 * UploadState: what rank 0 sends. Either the answer to a pull order, which is relayed (pulls.h), or
 * a job's final state_dict, which is kept in the state directory: temporary file, fsync, rename.
 */
#ifndef FSDPD_COORDINATOR_UPLOADS_H
#define FSDPD_COORDINATOR_UPLOADS_H

#include "coordinator/jobs.h"

struct upload;

void uploads_start(struct coordinator *c, struct rpc_call *call);
void uploads_message(struct rpc_call *call, const Fsdpd__V1__UploadStateRequest *message);
void uploads_closed(struct coordinator *c, struct rpc_call *call);

/* Whether a final state_dict of this job is arriving. */
bool uploads_has(const struct job *job);

/* For a relayed upload: asks for its next chunk; ends it, because nobody wants it any more. */
void upload_read(struct upload *upload);
void upload_reject(struct upload *upload, status_t status);

void uploads_close(struct coordinator *c);

#endif
