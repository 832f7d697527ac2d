/*
 * SubmitJob, PlanJob, GetJob, CancelJob. A submission is checked, then planned by a worker, and
 * only then becomes a job: no part of it exists until it is in the store. Without any worker it is
 * checked, planned for known devices, and planned again later (coordinator/scheduler/queue.h).
 */
#include "coordinator/api/handlers.h"

#include <string.h>

#include "coordinator/calls/access.h"
#include "coordinator/calls/calls.h"
#include "coordinator/calls/job_call.h"
#include "coordinator/jobs/attempt_run.h"
#include "coordinator/monitor/notices.h"
#include "coordinator/scheduler/admission.h"
#include "coordinator/scheduler/arrays.h"
#include "coordinator/scheduler/dependencies.h"
#include "coordinator/scheduler/queue.h"
#include "coordinator/scheduler/quotas.h"
#include "coordinator/workers/planner.h"
#include "rpc/rpc.h"
#include "spec/queue.h"
#include "spec/spec.h"

/* A SubmitJob or PlanJob call that waits for its plan. Its id is the one that the client of
 * SubmitJob chose, or "". */
struct planning {
    struct job_call base;
    bool submit, hold;
    Fsdpd__V1__JobFile *file; /* a copy, for the places of errors; NULL: a spec was sent */
};

static void planning_closed(struct job_call *own)
{
    struct planning *planning = (struct planning *)own;
    message_free(planning->file);
    job_call_free(own);
}

static const struct job_call_type planning_calls = {.size = sizeof(struct planning),
                                                    .closed = planning_closed};

/* The same weights, with what the daemon filled in. */
static void take_settled(Fsdpd__V1__JobWeights **from, const Fsdpd__V1__JobWeights *asked,
                         Fsdpd__V1__JobWeights *copy)
{
    if (*from == NULL || asked == NULL) return;
    *copy = **from;
    copy->step = asked->step;
    copy->_step_case = asked->_step_case;
    copy->model = asked->model;
    *from = copy;
}

static void take_contents(Fsdpd__V1__ModelSpec *model, const Fsdpd__V1__ModelSpec *asked)
{
    if (model->hf[0] == '\0' || model->text[0] != '\0') return;
    model->text = asked->text;
    model->hf_config = asked->hf_config;
    model->hf_family = asked->hf_family;
}

/* Whether the job is what `spec` asks for, which may leave open what the job's plan completed. */
static bool is_asked(const job_spec *spec, const job_spec *asked)
{
    job_spec copy = *spec;
    Fsdpd__V1__ModelSpec model = *spec->model, teacher;
    copy.model = &model;
    if (copy.device[0] == '\0') copy.device = asked->device;
    take_contents(&model, asked->model);
    if (model.teacher != NULL && asked->model->teacher != NULL) {
        teacher = *model.teacher;
        take_contents(&teacher, asked->model->teacher);
        model.teacher = &teacher;
    }
    if (model.job[0] != '\0' && model._checkpoint_case == 0) {
        model.checkpoint = asked->model->checkpoint;
        model._checkpoint_case = asked->model->_checkpoint_case;
    }
    bool adapter = model.adapter[0] != '\0' || model.adapter_from != NULL;
    if (adapter && model.lora == NULL) model.lora = asked->model->lora;
    Fsdpd__V1__JobWeights weights[2];
    take_settled(&model.weights_from, asked->model->weights_from, &weights[0]);
    take_settled(&model.adapter_from, asked->model->adapter_from, &weights[1]);
    if (model.weights_from != NULL || model.adapter_from != NULL) {
        copy.after = asked->after; /* with what it waits for */
        copy.n_after = asked->n_after;
    }
    return message_equal(&copy, asked);
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
        rpc_call_finish(call, status_with(status_new(STATUS_ALREADY_EXISTS,
                                                     "id: job %s already exists; %s submitted it",
                                                     id, message->owner),
                                          (struct status_details){.reason = "ID_IS_IN_USE",
                                                                  .subject = id,
                                                                  .field = "id"}));
    } else if (is_asked(spec, message->spec)) {
        if (job != NULL) queue_explain(job);
        job_reply(call, message);
    } else {
        rpc_call_finish(call,
                        status_with(status_new(STATUS_ALREADY_EXISTS,
                                               "id: job %s already exists with a different spec",
                                               id),
                                    (struct status_details){.reason = "ID_IS_IN_USE",
                                                            .subject = id,
                                                            .field = "id"}));
    }
    message_free(stored);
    return !fresh;
}

/* Without `result` the job is planned when a worker comes. */
static void submit_planned(struct planning *planning, const job_spec *spec,
                           const Fsdpd__V1__PlanResult *result)
{
    const Fsdpd__V1__Plan *plan = result != NULL ? result->plan : NULL;
    uint64_t steps = result != NULL ? result->steps : 0;
    struct coordinator *c = planning->base.c;
    struct rpc_call *call = planning->base.call;
    if (answer_repeated(c, call, planning->base.id, spec)) return;
    struct job *job = NULL;
    status_t status = NULL;
    const struct job_submission submission = {.id = planning->base.id,
                                              .owner = access_user(call),
                                              .hold = planning->hold,
                                              .spec = spec,
                                              .plan = plan,
                                              .steps = steps};
    if (c->draining) status = status_new(STATUS_UNAVAILABLE, "fsdpd is shutting down");
    else status = deadlines_check(spec);
    if (status == NULL) status = room_check(c, spec, plan, steps);
    if (status == NULL)
        status = quotas_check_kept(c, &(struct quotas_job){.id = "",
                                                           .owner = submission.owner,
                                                           .spec = spec,
                                                           .plan = plan,
                                                           .steps = steps});
    if (status == NULL) status = jobs_create(c, &submission, &job);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    queue_explain(job);
    job_reply(call, job->message);
}

static void on_planned(void *user, status_t status, const job_spec *spec,
                       const Fsdpd__V1__PlanResult *result)
{
    struct planning *planning = user;
    bool waits = planning->submit && planner_lacks_worker(status);
    if (waits) {
        status_free(status);
        submit_planned(planning, spec, NULL);
    } else if (status != NULL) {
        job_call_finish(&planning->base, spec_place(planning->file, status));
    } else if (planning->submit) {
        submit_planned(planning, spec, result);
    } else {
        job_call_reply(&planning->base, &result->plan->base);
    }
}

status_t api_check_size(const struct coordinator *c, const job_spec *spec)
{
    size_t size = protobuf_c_message_get_packed_size(&spec->base);
    if (size <= (size_t)c->options.limits.spec_bytes) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "spec: expected at most %d bytes, found %zu",
                      c->options.limits.spec_bytes, size);
}

status_t api_accept_spec(job_spec *spec)
{
    message_free(spec->of_array); /* the daemon's */
    spec->of_array = NULL;
    spec_sort_labels(spec);
    spec_complete(spec);
    return spec_validate(spec);
}

/* ---- arrays ---- */

struct array_check {
    struct coordinator *c;
    struct rpc_call *call;
    const char *id;
};

/* What a submission of this job alone would be refused for, before its plan. */
static status_t check_one(void *user, uint32_t index, job_spec *spec)
{
    const struct array_check *check = user;
    if (check->id[0] != '\0') {
        AUTO_FREE char *id = arrays_job_id(check->id, index);
        if (!job_id_is_valid(id))
            return status_new(STATUS_INVALID_ARGUMENT,
                              "id: expected at most 64 characters, found "
                              "%s",
                              id);
    }
    TRY(access_check_priority(check->c, check->call, spec->priority));
    TRY(quotas_check_workers(check->c, spec));
    TRY(deadlines_check(spec));
    TRY(notices_check(check->c, spec));
    return dependencies_check(check->c, "", spec);
}

/* Every job of an array that is submitted as a job file. */
static status_t check_array(struct coordinator *c, struct rpc_call *call, const job_spec *spec,
                            const Fsdpd__V1__JobFile *file, const char *id)
{
    if (spec->array == NULL) return NULL;
    if (file == NULL)
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "array: expected a job file, found a spec: an array is made "
                                      "of the values of a file"),
                           (struct status_details){.field = "array"});
    struct array_check check = {.c = c, .call = call, .id = id};
    const struct spec_array_part all = {.count = SPEC_ARRAY_MAX};
    return spec_array_each(file, &all, check_one, &check);
}

/* What a plan is to have, and to fit in. */
struct asked {
    unsigned parts;
    uint64_t memory_bytes; /* 0: what the device has */
};

/* Common to both calls: refuses an obviously invalid spec, otherwise requests the plan. */
static void plan(struct coordinator *c, struct rpc_call *call, job_spec *spec,
                 const Fsdpd__V1__JobFile *file, const struct asked *asked,
                 const Fsdpd__V1__SubmitJobRequest *submit)
{
    status_t status = NULL;
    const char *id = submit != NULL ? submit->id : "";
    if (c->draining) status = status_new(STATUS_UNAVAILABLE, "fsdpd is shutting down");
    else if (spec == NULL)
        status = status_with(status_new(STATUS_INVALID_ARGUMENT,
                                        "spec: expected this or job_file, found neither"),
                             (struct status_details){.field = "spec"});
    else if (id[0] != '\0' && !job_id_is_valid(id))
        status = status_with(
            status_new(STATUS_INVALID_ARGUMENT,
                       "id: expected 1 to 64 characters of a-z, 0-9 and -, not beginning with -"),
            (struct status_details){.field = "id"});
    else status = api_check_size(c, spec);
    if (status == NULL) status = api_accept_spec(spec);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    if (submit != NULL && answer_repeated(c, call, id, spec)) return;
    bool evaluates = spec->model->job[0] != '\0';
    if (submit != NULL || !evaluates) status = spec_place(file, sources_settle(c, call, spec));
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    if (submit != NULL) {
        /* Before a worker plans it, which may take a while. */
        status = room_refusal(c);
        if (status == NULL) status = check_array(c, call, spec, file, id);
        if (status == NULL) status = access_check_priority(c, call, spec->priority);
        if (status == NULL) status = quotas_check_workers(c, spec);
        if (status == NULL) status = deadlines_check(spec);
        if (status == NULL) status = spec_place(file, notices_check(c, spec));
        if (status == NULL) status = dependencies_check(c, id, spec);
        if (status != NULL) {
            rpc_call_finish(call, status);
            return;
        }
    }
    struct planning *planning = job_call_begin(&planning_calls, call, c, id);
    planning->submit = submit != NULL;
    planning->file = file != NULL ? message_copy(file) : NULL;
    planning->hold = submit != NULL && submit->hold;
    status = planner_request_within(c, spec, access_user(call), asked->parts, asked->memory_bytes,
                                    on_planned, planning);
    if (status != NULL) job_call_finish(&planning->base, status);
}

status_t api_read_file(const job_spec *spec, const Fsdpd__V1__JobFile *file, job_spec **read)
{
    if (spec == NULL) return spec_read_sent(file, read);
    return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                  "job_file: expected this or spec, found both"),
                       (struct status_details){.field = "job_file"});
}

/* The same for either form of the job. */
static void plan_either(struct coordinator *c, struct rpc_call *call, job_spec *spec,
                        const Fsdpd__V1__JobFile *file, const struct asked *asked,
                        const Fsdpd__V1__SubmitJobRequest *submit)
{
    if (file == NULL) {
        plan(c, call, spec, NULL, asked, submit);
        return;
    }
    job_spec *read = NULL;
    status_t status = api_read_file(spec, file, &read);
    if (status != NULL) rpc_call_finish(call, status);
    else plan(c, call, read, file, asked, submit);
    spec_free(read);
}

void api_submit_job(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    const Fsdpd__V1__SubmitJobRequest *request = (const void *)message;
    plan_either(service, call, request->spec, request->job_file, &(struct asked){0}, request);
}

void api_plan_job(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    const Fsdpd__V1__PlanJobRequest *request = (const void *)message;
    const struct asked asked = {.parts = PLANNER_DETAILS | (request->dump ? PLANNER_DUMP : 0) |
                                         (request->choose ? PLANNER_CHOOSE : 0),
                                .memory_bytes = request->memory_bytes};
    plan_either(service, call, request->spec, request->job_file, &asked, NULL);
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

void api_reply_changed(struct rpc_call *call, struct job *job)
{
    if (job->unsaved) {
        rpc_call_finish(call,
                        status_new(STATUS_UNAVAILABLE,
                                   "job %s was changed, but the store could not be written: the "
                                   "change is lost if fsdpd ends before the store recovers",
                                   job->message->id));
        return;
    }
    queue_explain(job);
    job_reply(call, job->message);
}

void api_cancel_job(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__CancelJobRequest *request = (const void *)message;
    struct job *job = NULL;
    status_t status = access_find_any(c, call, request->id, "cancel", &job);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    c->actor = access_user(call);
    if (job->array != NULL) arrays_cancel(job, c->actor);
    else job_cancel(job, c->actor);
    c->actor = NULL;
    api_reply_changed(call, job);
}
