/*
 * GetMetrics: what a job's events say about its training, with the attempt that each belongs to,
 * from the store. A call is a cursor into the events; it reads as fast as its client does.
 */
#ifndef FSDPD_COORDINATOR_HISTORY_H
#define FSDPD_COORDINATOR_HISTORY_H

#include "coordinator/internal.h"

/* The handlers of GetMetrics; the service is the coordinator. */
void history_start(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void history_writable(struct rpc_call *call, void *service);
void history_closed(struct rpc_call *call, bool cancelled, void *service);

#endif
