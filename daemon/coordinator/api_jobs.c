/*
 * SubmitJob, PlanJob, GetJob, CancelJob. A submission is checked, planned by a worker,
 * and only then made a job: until it is in the store, nothing of it exists.
 */
#include "coordinator/api_jobs.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/access.h"
#include "coordinator/attempt.h"
#include "coordinator/deadlines.h"
#include "coordinator/dependencies.h"
#include "coordinator/planner.h"
#include "coordinator/queue.h"
#include "rpc/rpc.h"
#include "spec/queue.h"
#include "spec/spec.h"

/* A SubmitJob or PlanJob call whose plan is being made; the call's user pointer. */
struct planning {
    struct coordinator *c;
    struct rpc_call *call;
    uint64_t request;
    bool submit;
    char *id; /* SubmitJob: chosen by the client, or "" */
    bool hold;
};

static void drop_empty_deadline(job_spec *spec)
{
    const Fsdpd__V1__DeadlineSpec *deadline = spec->deadline;
    if (deadline != NULL && deadline->start[0] == '\0' && deadline->finish[0] == '\0')
        spec->deadline = NULL;
}

/*
 * Whether the job is the one that `spec` describes: a repeated submission may leave the device open
 * as the first one did, and what its model's directory held.
 */
static bool is_same(const job_spec *spec, const job_message *job)
{
    job_spec copy = *spec;
    Fsdpd__V1__ModelSpec model = *spec->model;
    copy.model = &model;
    /* Later keys: a message without them says the same as one with their defaults. */
    job_spec stored = *job->spec;
    drop_empty_deadline(&copy);
    drop_empty_deadline(&stored);
    if (copy.device[0] == '\0') copy.device = job->spec->device;
    if (model.hf[0] != '\0' && model.text[0] == '\0') {
        model.text = job->spec->model->text;
        model.hf_config = job->spec->model->hf_config;
    }
    return message_equal(&copy, &stored);
}

/* Answers a repeated submission. False if the id is new. */
static bool answer_repeated(struct coordinator *c, struct rpc_call *call, const char *id,
                            const job_spec *spec)
{
    if (id[0] == '\0') return false;
    struct job *job = jobs_find(c, id);
    job_message *stored = NULL;
    status_t status = job == NULL ? store_get_job(c->store, id, &stored) : NULL;
    const job_message *message = job != NULL ? job->message : stored;
    bool fresh = status_code(status) == STATUS_NOT_FOUND;
    if (fresh) {
        status_free(status);
    } else if (status != NULL) {
        rpc_call_finish(call, status);
    } else if (message->owner[0] != '\0' && strcmp(message->owner, access_user(call)) != 0) {
        rpc_call_finish(call, status_new(STATUS_ALREADY_EXISTS,
                                         "id: there is a job %s already, which %s submitted", id,
                                         message->owner));
    } else if (is_same(spec, message)) {
        if (job != NULL) queue_explain(job);
        job_reply(call, message);
    } else {
        rpc_call_finish(call, status_new(STATUS_ALREADY_EXISTS,
                                         "id: there is a job %s already, with another spec", id));
    }
    message_free(stored);
    return !fresh;
}

static void submit_planned(struct planning *planning, const job_spec *spec,
                           const Fsdpd__V1__PlanResult *result)
{
    struct coordinator *c = planning->c;
    if (answer_repeated(c, planning->call, planning->id, spec)) return;
    struct job *job = NULL;
    status_t status = NULL;
    const struct job_submission submission = {.id = planning->id,
                                              .owner = access_user(planning->call),
                                              .hold = planning->hold,
                                              .spec = spec,
                                              .plan = result->plan,
                                              .steps = result->steps};
    if (c->draining) status = status_new(STATUS_UNAVAILABLE, "fsdpd is shutting down");
    else status = deadlines_check(spec);
    if (status == NULL) status = jobs_create(c, &submission, &job);
    if (status != NULL) {
        rpc_call_finish(planning->call, status);
        return;
    }
    queue_place(c);
    queue_explain(job);
    job_reply(planning->call, job->message);
}

static void on_planned(void *user, status_t status, const job_spec *spec,
                       const Fsdpd__V1__PlanResult *result)
{
    struct planning *planning = user;
    planning->request = 0;
    if (status != NULL) rpc_call_finish(planning->call, status);
    else if (planning->submit) submit_planned(planning, spec, result);
    else rpc_call_reply(planning->call, &result->plan->base);
}

void api_planning_closed(struct rpc_call *call, bool cancelled, void *service)
{
    (void)cancelled;
    struct planning *planning = rpc_call_user(call);
    if (planning == NULL) return;
    if (planning->request != 0) planner_forget(service, planning->request);
    free(planning->id);
    free(planning);
}

static status_t check_size(const struct coordinator *c, const job_spec *spec)
{
    size_t size = protobuf_c_message_get_packed_size(&spec->base);
    if (size <= (size_t)c->options.limits.spec_bytes) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "spec: expected at most %d bytes, found %zu",
                      c->options.limits.spec_bytes, size);
}

/* Both calls: refuses what is plainly wrong, asks for the plan otherwise. */
static void plan(struct coordinator *c, struct rpc_call *call, job_spec *spec, bool dump,
                 const Fsdpd__V1__SubmitJobRequest *submit)
{
    status_t status = NULL;
    const char *id = submit != NULL ? submit->id : "";
    if (spec != NULL) spec_sort_labels(spec);
    if (c->draining) status = status_new(STATUS_UNAVAILABLE, "fsdpd is shutting down");
    else if (spec == NULL) status = status_new(STATUS_INVALID_ARGUMENT, "spec is missing");
    else if (id[0] != '\0' && !job_id_is_valid(id))
        status = status_new(STATUS_INVALID_ARGUMENT,
                            "id: 1 to 64 of a-z, 0-9 and - expected, not beginning with -");
    else status = check_size(c, spec);
    if (status == NULL) status = spec_validate(spec);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    if (submit != NULL) {
        if (answer_repeated(c, call, id, spec)) return;
        /* Before somebody plans it, which may take a while. */
        status = access_check_priority(c, call, spec->priority);
        if (status == NULL) status = deadlines_check(spec);
        if (status == NULL) status = dependencies_check(c, id, spec);
        if (status != NULL) {
            rpc_call_finish(call, status);
            return;
        }
    }
    struct planning *planning = mem_alloc(sizeof *planning);
    planning->c = c;
    planning->call = call;
    planning->submit = submit != NULL;
    planning->hold = submit != NULL && submit->hold;
    planning->id = mem_strdup(id);
    rpc_call_set_user(call, planning);
    planning->request = planner_ask(c, spec, submit == NULL, dump, on_planned, planning, &status);
    if (planning->request == 0) rpc_call_finish(call, status);
}

void api_submit_job(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    const Fsdpd__V1__SubmitJobRequest *request = (const void *)message;
    plan(service, call, request->spec, false, request);
}

void api_plan_job(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    const Fsdpd__V1__PlanJobRequest *request = (const void *)message;
    plan(service, call, request->spec, request->dump, NULL);
}

void api_get_job(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__GetJobRequest *request = (const void *)message;
    struct job *job = jobs_find(c, request->id);
    if (job != NULL) {
        queue_explain(job);
        job_reply(call, job->message);
        return;
    }
    job_message *stored = NULL;
    status_t status = store_get_job(c->store, request->id, &stored);
    if (status != NULL) rpc_call_finish(call, status);
    else job_reply(call, stored);
    message_free(stored);
}

void api_cancel_job(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__CancelJobRequest *request = (const void *)message;
    struct job *job = NULL;
    status_t status = access_find(c, call, request->id, "cancel", &job);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    const char *user = access_user(call);
    int state = job->message->state;
    c->actor = user;
    if (state == JOB_QUEUED || state == JOB_PAUSED) {
        job_message *after = NULL;
        if (job->message->attempt == 0)
            job_set_state(job, JOB_CANCELLED, "CANCELLED", "cancelled by %s before it started",
                          user);
        else
            job_set_state(job, JOB_CANCELLED, "CANCELLED",
                          "cancelled by %s while it was %s, at step %llu", user,
                          job_state_name(state), (unsigned long long)job->message->step);
        c->actor = NULL;
        status = store_get_job(c->store, request->id, &after);
        if (status != NULL) rpc_call_finish(call, status);
        else job_reply(call, after);
        message_free(after);
        queue_place(c);
        return;
    }
    attempt_cancel(job, user);
    c->actor = NULL;
    job_reply(call, job->message);
}
