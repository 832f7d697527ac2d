/*
 * The logs of jobs: what ranks report and what fsdpd says about a job, kept beside its other files,
 * and GetLogs, which reads and follows them. A reader is a place in the log on the disk, so a slow
 * one costs nothing. All on the loop's thread.
 */
#ifndef FSDPD_COORDINATOR_LOGS_H
#define FSDPD_COORDINATOR_LOGS_H

#include "coordinator/internal.h"

/* What a rank of an attempt has logged. */
void logs_report(struct coordinator *c, const char *job, uint32_t attempt, int rank,
                 const Fsdpd__V1__LogReport *report);

/* A line of fsdpd's own. `level` is "INFO". */
void logs_note(struct coordinator *c, const char *job, uint32_t attempt, const char *level,
               const char *text);

/* The handlers of GetLogs; the service is the coordinator. */
void logs_start(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void logs_writable(struct rpc_call *call, void *service);
void logs_closed(struct rpc_call *call, bool cancelled, void *service);

/* The job is over: who follows it reads to the end. */
void logs_job_over(struct coordinator *c, const char *job);

/* The coordinator ends: so do all readers. */
void logs_close(struct coordinator *c);

#endif
