/*
 * What users do to jobs in the queue: hold, release, priority. Each change is in the store, and in
 * the job's history with the user's name, before it is answered.
 */
#include "coordinator/api_queue.h"

#include <string.h>

#include "coordinator/access.h"
#include "coordinator/queue.h"

/* Answers with the job as it now is; a change that the store refused is not acknowledged. */
static void reply(struct rpc_call *call, struct job *job)
{
    if (job->unsaved) {
        rpc_call_finish(call,
                        status_new(STATUS_UNAVAILABLE,
                                   "job %s is changed, but the store could not be written: if fsdpd "
                                   "ends before it can, the change is lost",
                                   job->message->id));
        return;
    }
    queue_explain(job);
    job_reply(call, job->message);
}

static status_t check_queued(const struct job *job, const char *doing)
{
    const job_message *message = job->message;
    if (message->state == FSDPD__V1__JOB_STATE__QUEUED) return NULL;
    return status_new(STATUS_FAILED_PRECONDITION, "job %s is %s: only a queued job can be %s%s",
                      message->id, job_state_name(message->state), doing,
                      message->state == FSDPD__V1__JOB_STATE__RUNNING
                          ? "; fsdpctl pause stops one that runs"
                          : "");
}

void api_hold_job(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__HoldJobRequest *request = (const void *)message;
    struct job *job = NULL;
    status_t status = access_find(c, call, request->id, "hold", &job);
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
        queue_place(c);
    }
    reply(call, job);
}

/* What an operator holds, its owner cannot release. */
static status_t check_holder(const struct rpc_call *call, const job_message *job)
{
    const char *user = access_user(call);
    if (access_is_operator(call) || strcmp(job->held_by, user) == 0) return NULL;
    return status_new(STATUS_PERMISSION_DENIED,
                      "job %s is held by %s: only an operator may release it, and you are %s", job->id,
                      job->held_by, user);
}

void api_release_job(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__ReleaseJobRequest *request = (const void *)message;
    struct job *job = NULL;
    status_t status = access_find(c, call, request->id, "release", &job);
    if (status == NULL) status = check_queued(job, "released");
    bool held = status == NULL && job->message->held_by[0] != '\0';
    if (held) status = check_holder(call, job->message);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    if (held) {
        c->actor = access_user(call);
        message_set_text(&job->message->held_by, "");
        job_set_reason(job, "QUEUED", "released by %s", c->actor);
        c->actor = NULL;
        queue_changed(c);
        queue_place(c);
    }
    reply(call, job);
}

void api_set_priority(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__SetPriorityRequest *request = (const void *)message;
    struct job *job = NULL;
    status_t status = access_find(c, call, request->id, "change", &job);
    if (status == NULL) status = access_check_priority(c, call, request->priority);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    int before = job->message->priority;
    if (before != request->priority) {
        c->actor = access_user(call);
        job->message->priority = request->priority;
        job_tell(job, "PRIORITY", "priority %d, was %d", request->priority, before);
        c->actor = NULL;
        queue_changed(c);
        queue_place(c);
    }
    reply(call, job);
}
