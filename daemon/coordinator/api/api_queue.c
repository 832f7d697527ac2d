/*
 * What users ask about jobs in the queue, why, and change: hold, release, priority, and how
 * many workers an elastic job has. Each change is in the store, and in
 * the job's history with the user's name, before the call is answered.
 */
#include "coordinator/api/handlers.h"

#include <string.h>

#include "coordinator/calls/access.h"
#include "coordinator/jobs/elastic.h"
#include "coordinator/jobs/jobs.h"
#include "coordinator/scheduler/arrays.h"
#include "coordinator/scheduler/quotas.h"
#include "coordinator/scheduler/why.h"
#include "spec/spec.h"

void api_explain_job(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__ExplainJobRequest *request = (const void *)message;
    struct job *job = jobs_find(c, request->id);
    job_message *stored = NULL;
    status_t status = job == NULL ? store_get_job(c->store, request->id, &stored) : NULL;
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    AUTO(buf_deinit) struct buf text = {0};
    if (job != NULL) why_explain(job, &text);
    else why_describe(&(struct why){.job = stored}, &text);
    message_free(stored);
    Fsdpd__V1__ExplainJobResponse response = FSDPD__V1__EXPLAIN_JOB_RESPONSE__INIT;
    response.text = (char *)buf_text(&text);
    rpc_call_reply(call, &response.base);
}

static status_t check_queued(const struct job *job, const char *doing)
{
    const job_message *message = job->message;
    if (arrays_is_cancelled(job))
        return status_new(STATUS_FAILED_PRECONDITION, "array %s is %s", message->id,
                          message->reason->message);
    if (message->state == FSDPD__V1__JOB_STATE__JOB_STATE_QUEUED) return NULL;
    return status_with(status_new(STATUS_FAILED_PRECONDITION,
                                  "job %s is %s: only a queued job can be %s%s", message->id,
                                  job_state_name(message->state), doing,
                                  message->state == FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING
                                      ? "; fsdpctl pause stops one that runs"
                                      : ""),
                       (struct status_details){.reason = "JOB_IS_NOT_QUEUED",
                                               .subject = message->id});
}

void api_hold_job(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__HoldJobRequest *request = (const void *)message;
    struct job *job = NULL;
    status_t status = access_find_any(c, call, request->id, "hold", &job);
    if (status == NULL) status = check_queued(job, "held");
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    if (job->message->held_by[0] == '\0') {
        c->actor = access_user(call);
        message_set_text(&job->message->held_by, c->actor);
        job_set_reason(job, "HELD", "held by %s", c->actor);
        c->actor = NULL;
        queue_changed(c);
    }
    api_reply_changed(call, job);
}

/* An owner cannot release a job that an operator holds. */
static status_t check_holder(const struct rpc_call *call, const job_message *job)
{
    const char *user = access_user(call);
    if (access_is_operator(call) || strcmp(job->held_by, user) == 0) return NULL;
    return status_new(STATUS_PERMISSION_DENIED,
                      "job %s is held by %s: only an operator may release it, and you are %s",
                      job->id, job->held_by, user);
}

static void release(struct job *job)
{
    message_set_text(&job->message->held_by, "");
    job_set_reason(job, "QUEUED", "released by %s", job->c->actor);
    queue_changed(job->c);
}

/* Jobs of an array that are held by themselves, as far as the user may. */
static void release_jobs(const struct rpc_call *call, const struct job *array)
{
    struct coordinator *c = array->c;
    c->actor = access_user(call);
    for (int i = 0; i < c->job_count; i++) {
        struct job *job = c->jobs[i];
        if (job->message->held_by[0] == '\0' ||
            !spec_is_of_array(job->message->spec, array->message->id))
            continue;
        status_t status = check_holder(call, job->message);
        if (status == NULL) release(job);
        status_free(status);
    }
    c->actor = NULL;
}

void api_release_job(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__ReleaseJobRequest *request = (const void *)message;
    struct job *job = NULL;
    status_t status = access_find_any(c, call, request->id, "release", &job);
    if (status == NULL) status = check_queued(job, "released");
    bool held = status == NULL && job->message->held_by[0] != '\0';
    if (held) status = check_holder(call, job->message);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    if (held) {
        c->actor = access_user(call);
        release(job);
        c->actor = NULL;
    }
    if (job->array != NULL) release_jobs(call, job);
    api_reply_changed(call, job);
}

/* The jobs of an array, each in its own history. The record's change, which follows, is durable,
 * and so are these then. */
static void set_priorities(struct coordinator *c, const job_message *array, int priority)
{
    for (int i = 0; i < c->job_count; i++) {
        struct job *job = c->jobs[i];
        int before = job->message->priority;
        if (before == priority || job_state_is_over((int)job->message->state) ||
            !spec_is_of_array(job->message->spec, array->id))
            continue;
        job->message->priority = priority;
        job_note_change(job, false, "PRIORITY", "priority %d, was %d", priority, before);
    }
}

void api_set_priority(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__SetPriorityRequest *request = (const void *)message;
    struct job *job = NULL;
    status_t status = access_find_any(c, call, request->id, "change", &job);
    if (status == NULL) status = access_check_priority(c, call, request->priority);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    int before = job->message->priority;
    if (before != request->priority || job->array != NULL) {
        c->actor = access_user(call);
        job->message->priority = request->priority;
        if (job->array != NULL) set_priorities(c, job->message, request->priority);
        job_note_change(job, true, "PRIORITY", "priority %d, was %d", request->priority, before);
        c->actor = NULL;
        queue_changed(c);
    }
    api_reply_changed(call, job);
}

/* The queue carries it out at the end of the turn, or as soon as there are workers. */
static void set_workers(struct job *job, uint32_t workers)
{
    struct coordinator *c = job->c;
    uint32_t before = elastic_wanted(job->message);
    Fsdpd__V1__Chosen *chosen = job_choose(job);
    chosen->workers = workers;
    chosen->by = FSDPD__V1__CHOOSER__CHOOSER_USER;
    message_set_text(&job->elastic.by, c->actor);
    job_note_change(job, true, "RESIZE", "%u worker%s wanted, %u before", workers,
                    workers == 1 ? "" : "s", before);
    queue_changed(c);
}

void api_resize_job(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__ResizeJobRequest *request = (const void *)message;
    struct job *job = NULL;
    status_t status = access_find(c, call, request->id, "resize", &job);
    if (status == NULL) status = elastic_check(job->message, request->workers);
    if (status == NULL) status = quotas_check_count(c, "workers", request->workers);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    if (elastic_wanted(job->message) != request->workers) {
        c->actor = access_user(call);
        set_workers(job, request->workers);
        c->actor = NULL;
    }
    api_reply_changed(call, job);
}
