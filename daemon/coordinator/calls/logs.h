/*
 * GetLogs: reads and follows the logs of jobs. A reader is a position in the log on the disk, so a
 * slow reader costs nothing. All on the loop's thread.
 */
#ifndef FSDPD_COORDINATOR_LOGS_H
#define FSDPD_COORDINATOR_LOGS_H

#include "coordinator/core/internal.h"

/* Lines were added to the log of this job. */
void logs_wake(struct coordinator *c, const char *job);

/* The handler of GetLogs; the service is the coordinator. */
void logs_start(struct rpc_call *call, const ProtobufCMessage *request, void *service);

#endif
