/*
 * The tables of the API: which function serves which method, and who may call it: a method's roles
 * where it has any, else its service's (at the end of this file). common/rpc refuses everybody else
 * before a handler hears of them. The handlers of jobs' calls are in
 * api_jobs.c, the others are thin and here.
 */
#include "coordinator/api.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "config.h"
#include "coordinator/access.h"
#include "coordinator/api_jobs.h"
#include "coordinator/api_list.h"
#include "coordinator/api_queue.h"
#include "coordinator/attach.h"
#include "coordinator/checkpoints.h"
#include "coordinator/drains.h"
#include "coordinator/forget.h"
#include "coordinator/history.h"
#include "coordinator/jobs.h"
#include "coordinator/logs.h"
#include "coordinator/pulls.h"
#include "coordinator/rendezvous.h"
#include "coordinator/rewrap.h"
#include "coordinator/supervisor.h"
#include "coordinator/traces.h"
#include "coordinator/uploads.h"
#include "coordinator/watch.h"
#include "coordinator/workers.h"

/* What users ask for but jobs. In bytes. */
enum { REQUEST_MAX = 1 << 20 };

/* ---- Control: workers and version ---- */

struct worker_rows {
    struct coordinator *c;
    const char *only; /* an id or a host; NULL: all */
    Fsdpd__V1__Worker *rows;
    Fsdpd__V1__Worker **pointers;
    char **texts; /* by row: the host of a slot that is starting, or NULL */
    size_t count;
};

static Fsdpd__V1__Worker *add_row(struct worker_rows *list, const char *id, const char *host)
{
    if (list->only != NULL && strcmp(list->only, id) != 0 && strcmp(list->only, host) != 0)
        return NULL;
    Fsdpd__V1__Worker *row = &list->rows[list->count];
    fsdpd__v1__worker__init(row);
    row->id = (char *)id;
    row->host = (char *)host;
    row->rank = -1;
    const struct drain *drain = drains_find(list->c, id, host);
    row->drained = drain != NULL;
    if (drain != NULL) row->drained_by = drain->by;
    if (drain != NULL) row->drained_ms = drain->time_ms;
    list->pointers[list->count++] = row;
    return row;
}

static void add_starting(void *user, const char *id, int64_t pid, uint32_t restarts)
{
    struct worker_rows *list = user;
    char *host = mem_strndup(id, strcspn(id, "/"));
    list->texts[list->count] = host;
    Fsdpd__V1__Worker *row = add_row(list, id, host);
    if (row == NULL) {
        list->texts[list->count] = NULL;
        free(host);
        return;
    }
    row->device = (char *)list->c->options.local_device;
    row->state = (char *)"starting";
    row->pid = pid;
    row->restarts = restarts;
}

static void add_worker(struct worker_rows *list, const struct worker *worker)
{
    Fsdpd__V1__Worker *row = add_row(list, worker->id, worker->host);
    if (row == NULL) return;
    bool busy = worker->job != NULL;
    row->device = worker->device;
    row->state = (char *)(row->drained ? busy ? "draining" : "drained" : busy ? "busy" : "idle");
    if (busy) row->job = worker->job;
    row->rank = worker->rank;
    row->memory_bytes = worker->memory_bytes;
    row->attached_ms = worker->attached_ms;
    row->pid = worker->pid;
    row->version = worker->version;
    row->shares_device = worker->shares_device;
    row->restarts = supervisor_restarts(list->c, worker->id);
}

void api_reply_workers(struct rpc_call *call, struct coordinator *c, const char *only)
{
    size_t most = (size_t)(c->worker_count + c->options.local_workers);
    struct worker_rows list = {.c = c,
                               .only = only,
                               .rows = mem_alloc_array(most + 1, sizeof *list.rows),
                               .pointers = mem_alloc_array(most + 1, sizeof *list.pointers),
                               .texts = mem_alloc_array(most + 1, sizeof *list.texts)};
    for (int i = 0; i < c->worker_count; i++) add_worker(&list, c->workers[i]);
    supervisor_each_starting(c, add_starting, &list);
    Fsdpd__V1__ListWorkersResponse response = FSDPD__V1__LIST_WORKERS_RESPONSE__INIT;
    response.n_workers = list.count;
    response.workers = list.pointers;
    rpc_call_reply(call, &response.base);
    for (size_t i = 0; i < list.count; i++) free(list.texts[i]);
    free(list.rows);
    free(list.pointers);
    free(list.texts);
}

static void list_workers(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    (void)request;
    api_reply_workers(call, service, NULL);
}

static void get_version(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    (void)request;
    struct coordinator *c = service;
    Fsdpd__V1__Version version = FSDPD__V1__VERSION__INIT;
    version.version = (char *)PACKAGE_VERSION;
    version.api = (char *)"fsdpd.v1";
    version.started_ms = c->started_ms;
    version.jobs_active = (uint32_t)c->job_count;
    version.workers = (uint32_t)c->worker_count;
    rpc_call_reply(call, &version.base);
}

/* ---- Control: streams ---- */

static void watch_job(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    watch_start(call, (const Fsdpd__V1__WatchJobRequest *)request, service);
}

static void watch_job_writable(struct rpc_call *call, void *service)
{
    (void)service;
    watch_writable(call);
}

static void watch_job_closed(struct rpc_call *call, bool cancelled, void *service)
{
    (void)cancelled;
    watch_closed(service, call);
}

static void pull_state_dict(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    pulls_start(call, (const Fsdpd__V1__PullStateDictRequest *)request, service);
}

static void pull_state_dict_writable(struct rpc_call *call, void *service)
{
    (void)service;
    pulls_writable(call);
}

static void pull_state_dict_closed(struct rpc_call *call, bool cancelled, void *service)
{
    (void)cancelled;
    pulls_closed(service, call);
}

static void trace_job(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    traces_start(call, (const Fsdpd__V1__TraceJobRequest *)request, service);
}

static void trace_job_closed(struct rpc_call *call, bool cancelled, void *service)
{
    (void)cancelled;
    traces_closed(service, call);
}

static void set_wrap_policy(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    rewrap_start(call, (const Fsdpd__V1__SetWrapPolicyRequest *)request, service);
}

static void set_wrap_policy_closed(struct rpc_call *call, bool cancelled, void *service)
{
    (void)cancelled;
    (void)service;
    rewrap_closed(call);
}

static void create_checkpoint(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    checkpoints_create(call, ((const Fsdpd__V1__CreateCheckpointRequest *)request)->id, false,
                       service);
}

static void pause_job(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    checkpoints_create(call, ((const Fsdpd__V1__PauseJobRequest *)request)->id, true, service);
}

static void checkpoint_closed(struct rpc_call *call, bool cancelled, void *service)
{
    (void)cancelled;
    checkpoints_closed(service, call);
}

static void list_checkpoints(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    checkpoints_list(call, ((const Fsdpd__V1__ListCheckpointsRequest *)request)->id, service);
}

static void resume_job(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    checkpoints_resume(call, ((const Fsdpd__V1__ResumeJobRequest *)request)->id, service);
}

/* ---- WorkerLink ---- */

static void link_start(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    (void)request;
    attach_start(service, call);
}

static void link_message(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    attach_message(service, call, (const Fsdpd__V1__WorkerMessage *)message);
}

static void link_closed(struct rpc_call *call, bool cancelled, void *service)
{
    attach_closed(service, call, cancelled);
}

/* Stores are named after the attempt: "<job>/<attempt>". */
static status_t check_store(struct coordinator *c, const struct rpc_call *call, const char *store)
{
    char *job = mem_strndup(store, strcspn(store, "/"));
    status_t status = access_check_rank(c, call, job);
    free(job);
    return status;
}

static void store_set(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    const Fsdpd__V1__StoreSetRequest *request = (const void *)message;
    status_t status = check_store(service, call, request->store);
    if (status == NULL)
        status = rendezvous_set(service, request->store, request->key, request->value.data,
                                request->value.len);
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

static void upload_state(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    (void)request;
    uploads_start(service, call);
}

static void upload_state_message(struct rpc_call *call, const ProtobufCMessage *message,
                                 void *service)
{
    (void)service;
    uploads_message(call, (const Fsdpd__V1__UploadStateRequest *)message);
}

static void upload_state_closed(struct rpc_call *call, bool cancelled, void *service)
{
    (void)cancelled;
    uploads_closed(service, call);
}

/* ---- the tables ---- */

#define METHOD(name, service, path_, kind_, request_, response_)                                   \
    static const struct rpc_method name = {.path = "/fsdpd.v1." service "/" path_,                 \
                                           .kind = kind_,                                          \
                                           .request = &fsdpd__v1__##request_##__descriptor,        \
                                           .response = &fsdpd__v1__##response_##__descriptor}

METHOD(submit_method, "Control", "SubmitJob", RPC_UNARY, submit_job_request, job);
METHOD(get_method, "Control", "GetJob", RPC_UNARY, get_job_request, job);
METHOD(list_method, "Control", "ListJobs", RPC_UNARY, list_jobs_request, list_jobs_response);
METHOD(history_method, "Control", "GetHistory", RPC_UNARY, get_history_request, history);
METHOD(hold_method, "Control", "HoldJob", RPC_UNARY, hold_job_request, job);
METHOD(release_method, "Control", "ReleaseJob", RPC_UNARY, release_job_request, job);
METHOD(priority_method, "Control", "SetPriority", RPC_UNARY, set_priority_request, job);
METHOD(forget_method, "Control", "ForgetJob", RPC_UNARY, forget_job_request,
       forget_job_response);
METHOD(cancel_method, "Control", "CancelJob", RPC_UNARY, cancel_job_request, job);
METHOD(watch_method, "Control", "WatchJob", RPC_SERVER_STREAM, watch_job_request, job_event);
METHOD(plan_method, "Control", "PlanJob", RPC_UNARY, plan_job_request, plan);
METHOD(pull_method, "Control", "PullStateDict", RPC_SERVER_STREAM, pull_state_dict_request,
       state_dict_chunk);
METHOD(trace_method, "Control", "TraceJob", RPC_SERVER_STREAM, trace_job_request, trace_chunk);
METHOD(wrap_method, "Control", "SetWrapPolicy", RPC_UNARY, set_wrap_policy_request, job);
METHOD(logs_method, "Control", "GetLogs", RPC_SERVER_STREAM, get_logs_request, log_chunk);
METHOD(metrics_method, "Control", "GetMetrics", RPC_SERVER_STREAM, get_metrics_request,
       metrics_chunk);
METHOD(checkpoint_method, "Control", "CreateCheckpoint", RPC_UNARY, create_checkpoint_request,
       checkpoint);
METHOD(checkpoints_method, "Control", "ListCheckpoints", RPC_UNARY, list_checkpoints_request,
       list_checkpoints_response);
METHOD(pause_method, "Control", "PauseJob", RPC_UNARY, pause_job_request, job);
METHOD(resume_method, "Control", "ResumeJob", RPC_UNARY, resume_job_request, job);
METHOD(workers_method, "Control", "ListWorkers", RPC_UNARY, list_workers_request,
       list_workers_response);
METHOD(drain_method, "Control", "DrainWorkers", RPC_UNARY, drain_workers_request,
       list_workers_response);
METHOD(undrain_method, "Control", "UndrainWorkers", RPC_UNARY, undrain_workers_request,
       list_workers_response);
METHOD(version_method, "Control", "GetVersion", RPC_UNARY, get_version_request, version);
METHOD(attach_method, "WorkerLink", "Attach", RPC_BIDIRECTIONAL, worker_message,
       coordinator_message);
METHOD(set_method, "WorkerLink", "StoreSet", RPC_UNARY, store_set_request, store_set_response);
METHOD(wait_method, "WorkerLink", "StoreGet", RPC_UNARY, store_get_request, store_get_response);
METHOD(upload_method, "WorkerLink", "UploadState", RPC_CLIENT_STREAM, upload_state_request,
       upload_state_response);

static const struct rpc_handler control_handlers[] = {
    {.method = &submit_method,
     .on_start = api_submit_job,
     .on_closed = api_planning_closed,
     .message_max = COORDINATOR_JOB_MAX},
    {.method = &get_method, .on_start = api_get_job},
    {.method = &list_method, .on_start = api_list_jobs},
    {.method = &history_method, .on_start = api_get_history},
    {.method = &hold_method, .on_start = api_hold_job},
    {.method = &release_method, .on_start = api_release_job},
    {.method = &priority_method, .on_start = api_set_priority},
    {.method = &forget_method, .on_start = forget_start},
    {.method = &cancel_method, .on_start = api_cancel_job},
    {.method = &watch_method,
     .on_start = watch_job,
     .on_writable = watch_job_writable,
     .on_closed = watch_job_closed},
    {.method = &plan_method,
     .on_start = api_plan_job,
     .on_closed = api_planning_closed,
     .message_max = COORDINATOR_JOB_MAX},
    {.method = &pull_method,
     .on_start = pull_state_dict,
     .on_writable = pull_state_dict_writable,
     .on_closed = pull_state_dict_closed},
    {.method = &trace_method, .on_start = trace_job, .on_closed = trace_job_closed},
    {.method = &wrap_method, .on_start = set_wrap_policy, .on_closed = set_wrap_policy_closed},
    {.method = &logs_method,
     .on_start = logs_start,
     .on_writable = logs_writable,
     .on_closed = logs_closed},
    {.method = &metrics_method,
     .on_start = history_start,
     .on_writable = history_writable,
     .on_closed = history_closed},
    {.method = &checkpoint_method, .on_start = create_checkpoint, .on_closed = checkpoint_closed},
    {.method = &checkpoints_method, .on_start = list_checkpoints},
    {.method = &pause_method, .on_start = pause_job, .on_closed = checkpoint_closed},
    {.method = &resume_method, .on_start = resume_job},
    {.method = &workers_method, .on_start = list_workers},
    {.method = &drain_method, .on_start = drains_drain, .roles = RPC_OPERATOR},
    {.method = &undrain_method, .on_start = drains_undrain, .roles = RPC_OPERATOR},
    {.method = &version_method, .on_start = get_version},
};

static const struct rpc_handler link_handlers[] = {
    {.method = &attach_method,
     .on_start = link_start,
     .on_message = link_message,
     .on_closed = link_closed},
    {.method = &set_method, .on_start = store_set},
    {.method = &wait_method, .on_start = store_get, .on_closed = store_get_closed},
    {.method = &upload_method,
     .on_start = upload_state,
     .on_message = upload_state_message,
     .on_closed = upload_state_closed},
};

void api_services(void *user, struct rpc_service services[API_SERVICES])
{
    services[0] = (struct rpc_service){
        .name = "fsdpd.v1.Control",
        .handlers = control_handlers,
        .handler_count = sizeof control_handlers / sizeof control_handlers[0],
        .user = user,
        .roles = RPC_USER | RPC_OPERATOR,
        .message_max = REQUEST_MAX,
    };
    services[1] = (struct rpc_service){
        .name = "fsdpd.v1.WorkerLink",
        .handlers = link_handlers,
        .handler_count = sizeof link_handlers / sizeof link_handlers[0],
        .user = user,
        .roles = RPC_WORKER,
    };
}
