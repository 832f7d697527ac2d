/* DiagnoseJob: what every rank does now, and who is to blame. jobs/diagnoses.h takes the diagnosis;
 * calls that come while it does share it. */
#ifndef FSDPD_COORDINATOR_DIAGNOSE_H
#define FSDPD_COORDINATOR_DIAGNOSE_H

#include "coordinator/jobs/jobs.h"

void diagnose_start(struct rpc_call *call, const ProtobufCMessage *request, void *service);

/* The job's attempt has a new diagnosis. */
void diagnose_done(struct job *job);

#endif
