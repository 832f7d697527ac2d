/* ListJobs and GetHistory. */
#ifndef FSDPD_COORDINATOR_API_LIST_H
#define FSDPD_COORDINATOR_API_LIST_H

#include "coordinator/internal.h"

void api_list_jobs(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void api_get_history(struct rpc_call *call, const ProtobufCMessage *request, void *service);

#endif
