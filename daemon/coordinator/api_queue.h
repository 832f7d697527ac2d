/* HoldJob, ReleaseJob, SetPriority. */
#ifndef FSDPD_COORDINATOR_API_QUEUE_H
#define FSDPD_COORDINATOR_API_QUEUE_H

#include "rpc/server.h"

void api_hold_job(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void api_release_job(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void api_set_priority(struct rpc_call *call, const ProtobufCMessage *request, void *service);

#endif
