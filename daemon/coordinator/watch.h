/* WatchJob: a job's events from the store, then live, each watcher at its own pace. */
#ifndef FSDPD_COORDINATOR_WATCH_H
#define FSDPD_COORDINATOR_WATCH_H

#include "coordinator/jobs.h"

void watch_start(struct rpc_call *call, const Fsdpd__V1__WatchJobRequest *request,
                 struct coordinator *c);
void watch_writable(struct rpc_call *call);
void watch_closed(struct coordinator *c, struct rpc_call *call);

/* An event was recorded. */
void watch_tell(struct job *job, const job_event *event);

/* Events that watchers could not be given are in the store now. */
void watch_wake(struct job *job);

/* The job is over, and about to be freed. */
void watch_over(struct job *job);

/* Ends all watchers: the coordinator is going. */
void watch_close(struct coordinator *c);

#endif
