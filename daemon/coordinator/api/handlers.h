/* The handlers of the API's methods (api.c has the tables), and what several of them share. */
#ifndef FSDPD_COORDINATOR_HANDLERS_H
#define FSDPD_COORDINATOR_HANDLERS_H

#include "coordinator/jobs/jobs.h"
#include "rpc/server.h"

/* INVALID_ARGUMENT for a spec that is larger than the limit. */
status_t api_check_size(const struct coordinator *c, const job_spec *spec) FSDPD_MUST_USE;

/* Fills in the defaults of a client's spec and checks it. */
status_t api_accept_spec(job_spec *spec) FSDPD_MUST_USE;

/* Reads the job file of a request, which must not have a spec, too. The caller frees *read. */
status_t api_read_file(const job_spec *spec, const Fsdpd__V1__JobFile *file,
                       job_spec **read) FSDPD_MUST_USE;

/* Answers with the job's current state; a change that the store refused is not acknowledged. */
void api_reply_changed(struct rpc_call *call, struct job *job);

/* ---- Control; the service is the coordinator ---- */

void api_submit_job(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void api_plan_job(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void api_get_job(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void api_cancel_job(struct rpc_call *call, const ProtobufCMessage *request, void *service);

void api_list_jobs(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void api_get_history(struct rpc_call *call, const ProtobufCMessage *request, void *service);

void api_explain_job(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void api_hold_job(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void api_release_job(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void api_resize_job(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void api_set_priority(struct rpc_call *call, const ProtobufCMessage *request, void *service);

/* Queues a job again that is PAUSED, or that FAILED and has a checkpoint. It continues from its
 * newest checkpoint, with other settings if the caller gives some that its checkpoints fit. */
void resume_start(struct rpc_call *call, const ProtobufCMessage *request, void *service);

/* Each answers with a list of workers. */
void api_list_workers(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void api_drain_workers(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void api_undrain_workers(struct rpc_call *call, const ProtobufCMessage *request, void *service);

/* The family files of this host (docs/families.md). */
void api_list_families(struct rpc_call *call, const ProtobufCMessage *request, void *service);

/* ---- WorkerLink: the Attach stream of a worker ---- */

void attach_start(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void attach_message(struct rpc_call *call, const ProtobufCMessage *message, void *service);
void attach_closed(struct rpc_call *call, bool cancelled, void *service);

#endif
