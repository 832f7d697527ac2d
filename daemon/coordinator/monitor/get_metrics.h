/*
 * GetMetrics: a job's events about its training, from the store, each with its attempt. A call is a
 * cursor into the events; it reads as fast as its client does.
 */
#ifndef FSDPD_COORDINATOR_GET_METRICS_H
#define FSDPD_COORDINATOR_GET_METRICS_H

#include "coordinator/core/internal.h"

/* The handler of GetMetrics; the service is the coordinator. */
void get_metrics_start(struct rpc_call *call, const ProtobufCMessage *request, void *service);

#endif
