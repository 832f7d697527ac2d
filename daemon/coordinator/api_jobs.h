/* The handlers of the calls about jobs; the tables are in api.c. */
#ifndef FSDPD_COORDINATOR_API_JOBS_H
#define FSDPD_COORDINATOR_API_JOBS_H

#include "rpc/server.h"

void api_submit_job(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void api_plan_job(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void api_planning_closed(struct rpc_call *call, bool cancelled, void *service);
void api_get_job(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void api_cancel_job(struct rpc_call *call, const ProtobufCMessage *request, void *service);

#endif
