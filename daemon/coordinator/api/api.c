/*
 * The tables of the API: which function serves which method, and who may call it. A method's own
 * roles apply where it has any, else its service's (at the end of this file). common/rpc refuses
 * all other callers before a handler runs. The handlers of jobs' calls are in api_jobs.c; the
 * others are thin and are here.
 */
#include "coordinator/api/api.h"

#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "config.h"
#include "coordinator/api/handlers.h"
#include "coordinator/calls/access.h"
#include "coordinator/calls/calls.h"
#include "coordinator/calls/checkpoints.h"
#include "coordinator/calls/evaluations.h"
#include "coordinator/calls/job_call.h"
#include "coordinator/calls/pulls.h"
#include "coordinator/jobs/jobs.h"
#include "coordinator/monitor/monitor.h"
#include "coordinator/retention/retention.h"
#include "coordinator/scheduler/admission.h"
#include "coordinator/workers/rendezvous.h"
#include "fsdpd/v1/methods.h"
#include "proto/message.h"

/* The largest request that carries no job spec, in bytes. */
enum { REQUEST_MAX = 1 << 20 };

/* ---- Control: version ---- */

static void get_version(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    (void)request;
    struct coordinator *c = service;
    Fsdpd__V1__GetVersionResponse version = FSDPD__V1__GET_VERSION_RESPONSE__INIT;
    version.version = (char *)PACKAGE_VERSION;
    version.api = (char *)"fsdpd.v1";
    Google__Protobuf__Timestamp started;
    version.start_time = message_time(&started, c->started_ms);
    version.jobs_active = (uint32_t)c->job_count;
    version.workers = (uint32_t)c->worker_count;
    status_t refusal = room_refusal(c);
    if (refusal != NULL) version.refuses = (char *)status_message(refusal);
    AUTO(buf_deinit) struct buf warning = {0};
    certificate_describe(c, &warning);
    if (warning.length > 0 && scrubber_damaged(c) > 0) buf_add_text(&warning, "; ");
    scrubber_describe(c, &warning);
    if (warning.length > 0) version.warning = (char *)buf_text(&warning);
    rpc_call_reply(call, &version.base);
    status_free(refusal);
}

/* ---- WorkerLink ---- */

/* Checks the caller of a store. A store is named after its attempt: "<job>/<attempt>". */
static status_t check_store(struct coordinator *c, const struct rpc_call *call, const char *store)
{
    AUTO_FREE char *job = mem_strndup(store, strcspn(store, "/"));
    return access_check_rank(c, call, job);
}

static void store_set(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    const Fsdpd__V1__StoreSetRequest *request = (const void *)message;
    status_t status = check_store(service, call, request->store);
    const ProtobufCBinaryData *value = &request->value;
    if (status == NULL && request->failed) {
        AUTO_FREE char *why =
            mem_strndup(value->len > 0 ? (const char *)value->data : "", value->len);
        status = rendezvous_fail(service, request->store, request->key, why);
    } else if (status == NULL) {
        status = rendezvous_set(service, request->store, request->key, value->data, value->len);
    }
    Fsdpd__V1__StoreSetResponse response = FSDPD__V1__STORE_SET_RESPONSE__INIT;
    if (status != NULL) rpc_call_finish(call, status);
    else rpc_call_reply(call, &response.base);
}

static void store_got(void *user, status_t status, const void *value, size_t size)
{
    struct rpc_call *call = user;
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    Fsdpd__V1__StoreGetResponse response = FSDPD__V1__STORE_GET_RESPONSE__INIT;
    response.value.data = (uint8_t *)value;
    response.value.len = size;
    rpc_call_reply(call, &response.base);
}

static void store_get(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    const Fsdpd__V1__StoreGetRequest *request = (const void *)message;
    status_t status = check_store(service, call, request->store);
    if (status != NULL) rpc_call_finish(call, status);
    else
        rendezvous_get(service, request->store, request->key, request->timeout_ms, store_got, call);
}

static void store_get_closed(struct rpc_call *call, bool cancelled, void *service)
{
    (void)cancelled;
    rendezvous_forget(service, call);
}

/* ---- the tables ---- */

/* Calls that wait for something of a job, and those of them that stream what they find. */
#define WAITS .on_closed = job_call_closed
#define STREAMS .on_writable = job_call_writable, .on_closed = job_call_closed

static const struct rpc_handler control_handlers[] = {
    {.method = &control_submit_job,
     .on_start = api_submit_job,
     WAITS,
     .message_max = COORDINATOR_JOB_MAX},
    {.method = &control_get_job, .on_start = api_get_job},
    {.method = &control_list_jobs, .on_start = api_list_jobs},
    {.method = &control_get_history, .on_start = api_get_history},
    {.method = &control_explain_job, .on_start = api_explain_job},
    {.method = &control_hold_job, .on_start = api_hold_job},
    {.method = &control_release_job, .on_start = api_release_job},
    {.method = &control_set_priority, .on_start = api_set_priority},
    {.method = &control_resize_job, .on_start = api_resize_job},
    {.method = &control_forget_job, .on_start = forget_start},
    {.method = &control_cancel_job, .on_start = api_cancel_job},
    {.method = &control_watch_job, .on_start = watch_start, STREAMS},
    {.method = &control_plan_job,
     .on_start = api_plan_job,
     WAITS,
     .message_max = COORDINATOR_JOB_MAX},
    {.method = &control_pull_state_dict, .on_start = pulls_start, STREAMS},
    {.method = &control_get_model_file, .on_start = sources_get_file, WAITS},
    {.method = &control_trace_job, .on_start = traces_start, WAITS},
    {.method = &control_evaluate_job, .on_start = evaluations_start, WAITS},
    {.method = &control_sample_job, .on_start = evaluations_sample, STREAMS},
    {.method = &control_diagnose_job, .on_start = diagnose_start, WAITS},
    {.method = &control_set_wrap_policy, .on_start = rewrap_start, WAITS},
    {.method = &control_get_logs, .on_start = logs_start, STREAMS},
    {.method = &control_get_metrics, .on_start = get_metrics_start, STREAMS},
    {.method = &control_create_checkpoint, .on_start = checkpoints_create, WAITS},
    {.method = &control_list_checkpoints, .on_start = checkpoints_list},
    {.method = &control_pause_job, .on_start = checkpoints_pause, WAITS},
    {.method = &control_resume_job,
     .on_start = resume_start,
     WAITS,
     .message_max = COORDINATOR_JOB_MAX},
    {.method = &control_list_workers, .on_start = api_list_workers},
    {.method = &control_drain_workers, .on_start = api_drain_workers, .roles = RPC_OPERATOR},
    {.method = &control_undrain_workers, .on_start = api_undrain_workers, .roles = RPC_OPERATOR},
    {.method = &control_issue_token, .on_start = tokens_issue, .roles = RPC_OPERATOR},
    {.method = &control_list_tokens, .on_start = tokens_list, .roles = RPC_OPERATOR},
    {.method = &control_revoke_tokens, .on_start = tokens_revoke, .roles = RPC_OPERATOR},
    {.method = &control_get_version, .on_start = get_version},
    {.method = &control_list_families, .on_start = api_list_families},
};

static const struct rpc_handler link_handlers[] = {
    {.method = &worker_link_attach,
     .on_start = attach_start,
     .on_message = attach_message,
     .on_closed = attach_closed},
    {.method = &worker_link_store_set, .on_start = store_set},
    {.method = &worker_link_store_get, .on_start = store_get, .on_closed = store_get_closed},
    {.method = &worker_link_upload_state,
     .on_start = uploads_start,
     .on_message = uploads_message,
     .on_closed = job_call_closed},
    {.method = &worker_link_pull_source, .on_start = sources_pull, STREAMS},
};

_Static_assert(COUNT_OF(control_handlers) == CONTROL_METHODS &&
                   COUNT_OF(link_handlers) == WORKER_LINK_METHODS,
               "each rpc of the .proto files has one row");

void api_services(void *user, struct rpc_service services[API_SERVICES])
{
    services[0] = (struct rpc_service){
        .name = "fsdpd.v1.Control",
        .handlers = control_handlers,
        .handler_count = COUNT_OF(control_handlers),
        .user = user,
        .roles = RPC_USER | RPC_OPERATOR,
        .message_max = REQUEST_MAX,
    };
    services[1] = (struct rpc_service){
        .name = "fsdpd.v1.WorkerLink",
        .handlers = link_handlers,
        .handler_count = COUNT_OF(link_handlers),
        .user = user,
        .roles = RPC_WORKER,
    };
}
