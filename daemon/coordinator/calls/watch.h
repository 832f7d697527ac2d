/* WatchJob: a job's events from the store, then live, each watcher at its own pace. */
#ifndef FSDPD_COORDINATOR_WATCH_H
#define FSDPD_COORDINATOR_WATCH_H

#include "coordinator/jobs/jobs.h"

/* The handler of WatchJob; the service is the coordinator. */
void watch_start(struct rpc_call *call, const ProtobufCMessage *request, void *service);

/* Number of watching clients. */
int watch_count(const struct coordinator *c);

/* An event was recorded. */
void watch_send_event(struct job *job, const job_event *event);

/* Events that could not be sent to watchers are in the store now. */
void watch_wake(struct job *job);

#endif
