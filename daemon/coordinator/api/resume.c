/* ResumeJob; see handlers.h. A call with other settings waits for their plan first. */
#include "coordinator/api/handlers.h"

#include "base/clock.h"
#include "coordinator/calls/access.h"
#include "coordinator/calls/job_call.h"
#include "coordinator/monitor/notices.h"
#include "coordinator/scheduler/admission.h"
#include "coordinator/scheduler/quotas.h"
#include "coordinator/workers/planner.h"
#include "spec/spec.h"

/* The job to resume: `job` if it is PAUSED, `stored` if it is over. */
struct resumable {
    struct job *job;
    job_message *stored;
    const job_message *message; /* of either */
    uint64_t step;              /* of the newest checkpoint; 0: none is recorded */
};

/* ---- checks ---- */

static status_t take_step(void *user, const Fsdpd__V1__Checkpoint *checkpoint)
{
    uint64_t *step = user;
    *step = checkpoint->step;
    return NULL;
}

static bool has_succeeded(const job_message *message)
{
    return message->state == FSDPD__V1__JOB_STATE__JOB_STATE_SUCCEEDED;
}

static status_t check_state(struct coordinator *c, struct resumable *found, bool changes)
{
    const job_message *message = found->message;
    if (c->draining) return status_new(STATUS_UNAVAILABLE, "fsdpd is shutting down");
    bool paused = found->job != NULL && message->state == FSDPD__V1__JOB_STATE__JOB_STATE_PAUSED;
    bool failed = found->job == NULL && message->state == FSDPD__V1__JOB_STATE__JOB_STATE_FAILED;
    bool succeeded = found->job == NULL && has_succeeded(message);
    if (!paused && !failed && !(succeeded && changes))
        return status_with(
            status_new(STATUS_FAILED_PRECONDITION,
                       "job %s is %s: only a PAUSED job, or a FAILED one that has a checkpoint, "
                       "resumes, or a SUCCEEDED one with a checkpoint and a larger "
                       "train.max_steps or train.epochs",
                       message->id, job_state_name(message->state)),
            (struct status_details){.reason = "JOB_CANNOT_RESUME", .subject = message->id});
    TRY(store_each_checkpoint(c->store, message->id, take_step, &found->step));
    if (!paused && found->step == 0)
        return status_with(status_new(STATUS_FAILED_PRECONDITION,
                                      "job %s is %s and has no checkpoint to resume from",
                                      message->id, job_state_name(message->state)),
                           (struct status_details){.reason = "JOB_HAS_NO_CHECKPOINT",
                                                   .subject = message->id});
    return NULL;
}

static status_t find(struct coordinator *c, const struct rpc_call *call, const char *id,
                     bool changes, struct resumable *found)
{
    *found = (struct resumable){.job = jobs_find(c, id)};
    if (found->job == NULL) TRY(store_get_job(c->store, id, &found->stored));
    found->message = found->job != NULL ? found->job->message : found->stored;
    status_t status = access_check(rpc_call_peer(call), found->message, "resume");
    if (status == NULL) status = access_refuse_array(found->message, "resume");
    if (status == NULL) status = check_state(c, found, changes);
    if (status == NULL) return NULL;
    message_free(found->stored);
    found->stored = NULL;
    return status;
}

static status_t refuse(const char *key, const char *why)
{
    return status_with(status_new(STATUS_FAILED_PRECONDITION,
                                  "%s: cannot change when a job resumes: %s", key, why),
                       (struct status_details){.reason = "SETTING_IS_FIXED",
                                               .subject = key,
                                               .field = key});
}

/* Refuses changes to settings that the checkpoints, or their position in the data, depend on. */
static status_t check_fit(const struct resumable *found, const job_spec *spec)
{
    static const char *const queued[] = {"name", "priority", "after", "after_any", NULL};
    static const char *const kind[] = {"train.only_evaluate", NULL};
    static const char *const states[] = {"model.",
                                         "optimizer.type",
                                         "optimizer.others.type",
                                         "optimizer.state_dtype",
                                         "precision.master_dtype",
                                         NULL};
    static const char *const chosen[] = {"optimizer.groups", NULL}; /* which of two optimizers */
    static const char *const place[] = {"data.format",
                                        "data.normalize.",
                                        "data.context",
                                        "data.encoding",
                                        "data.tokenizer",
                                        "data.objective",
                                        "data.mask_probability",
                                        "data.mask_token",
                                        "data.validation_fraction",
                                        "train.seed",
                                        "train.shuffle",
                                        NULL};
    static const char *const directory[] = {"checkpoint.directory", NULL};
    static const char *const best[] = {"checkpoint.best.", NULL};
    const job_spec *old = found->message->spec;
    const char *key = spec_find_change(old, spec, queued);
    if (key != NULL) return refuse(key, "it identifies the job and determines its start");
    key = spec_find_change(old, spec, kind);
    if (key != NULL) return refuse(key, "a job that trains does not become one that evaluates");
    key = spec_find_change(old, spec, states);
    if (key == NULL && !message_equal(old->model, spec->model)) key = "model";
    if (key == NULL && spec_has_others(spec->optimizer)) key = spec_find_change(old, spec, chosen);
    int before = spec_optimizer_slots(old->optimizer); /* SGD without momentum has one less */
    if (key == NULL && spec_optimizer_slots(spec->optimizer) != before) key = "optimizer.momentum";
    if (key != NULL) return refuse(key, "its checkpoints would not match");
    key = spec_find_change(old, spec, place);
    if (key != NULL) return refuse(key, "the rows already read would be different ones");
    key = spec_find_change(old, spec, directory);
    if (key != NULL) return refuse(key, "the job's checkpoints are there");
    key = spec_keeps_best(old->checkpoint) ? spec_find_change(old, spec, best) : NULL;
    if (key != NULL) return refuse(key, "its checkpoints say which of them is the best one by it");
    uint64_t most = spec->train->max_steps;
    if (most == 0 || most >= found->step) return NULL;
    return status_with(
        status_new(STATUS_FAILED_PRECONDITION,
                   "train.max_steps: expected at least %llu, the step of the newest checkpoint, "
                   "found %llu",
                   (unsigned long long)found->step, (unsigned long long)most),
        (struct status_details){.reason = "SETTING_IS_FIXED",
                                .subject = "train.max_steps",
                                .field = "train.max_steps"});
}

/* ---- resuming ---- */

/* Asked for as by a new submission: nothing is chosen yet. */
static void set_spec(job_message *message, const job_spec *spec,
                     const Fsdpd__V1__PlanResult *result)
{
    message_free(message->spec);
    message->spec = message_copy(spec);
    message_free(message->chosen);
    message->chosen = NULL;
    message->steps = result->steps;
    message_set_time(&message->start_at, 0);
    message_set_time(&message->start_by, 0);
    message_set_time(&message->finish_by, 0);
}

/* Refuses to train a job that has trained all its steps, unless it has more now. */
static status_t check_longer(const job_message *message, const Fsdpd__V1__PlanResult *result)
{
    if (!has_succeeded(message) || result->steps > message->step) return NULL;
    return status_with(
        status_new(STATUS_FAILED_PRECONDITION,
                   "job %s has trained %llu steps, and would have %llu: raise train.max_steps or "
                   "train.epochs",
                   message->id, (unsigned long long)message->step,
                   (unsigned long long)result->steps),
        (struct status_details){.reason = "SETTING_IS_FIXED",
                                .subject = "train.max_steps",
                                .field = "train.max_steps"});
}

/* Refuses a deadline that has passed: the job would fail again at once. */
static status_t check_deadline(const job_message *message)
{
    int64_t finish_by = message_time_ms(message->finish_by);
    if (finish_by == 0 || finish_by > clock_wall_ms()) return NULL;
    return status_with(status_new(STATUS_FAILED_PRECONDITION,
                                  "deadline.finish: %s has passed for job %s; set a later one",
                                  message->spec->deadline->finish, message->id),
                       (struct status_details){.reason = "DEADLINE_HAS_PASSED",
                                               .subject = message->id,
                                               .field = "deadline.finish"});
}

/* Revives the job, with `spec` and its plan or (NULL) unchanged; takes ownership of what was
 * found. */
static status_t revive(struct coordinator *c, struct resumable *found, const job_spec *spec,
                       const Fsdpd__V1__PlanResult *result)
{
    bool paused = found->job != NULL;
    job_message *message = paused ? found->job->message : found->stored;
    status_t status = spec != NULL ? check_longer(message, result) : NULL;
    if (status == NULL && spec != NULL) set_spec(message, spec, result);
    if (status == NULL) deadlines_resolve(message);
    if (status != NULL) {
        message_free(message);
    } else if (paused) {
        found->job->start_at = found->job->start_by = found->job->finish_by = 0;
        deadlines_begin(found->job);
    } else if ((status = check_deadline(message)) != NULL) {
        message_free(message);
    } else {
        status = jobs_revive(c, message, &found->job);
    }
    found->stored = NULL;
    TRY(status);
    if (spec != NULL) job_set_plan(found->job, planner_chosen(spec, result->plan), result->plan);
    return NULL;
}

/* As for a submission; releases what was found if that is refused. */
static status_t check_quota(struct coordinator *c, struct resumable *found, const job_spec *spec,
                            const Fsdpd__V1__PlanResult *result)
{
    const struct quotas_job job = {.id = found->message->id,
                                   .owner = found->message->owner,
                                   .spec = spec,
                                   .plan = result->plan,
                                   .steps = result->steps};
    status_t status = quotas_check_workers(c, spec);
    if (status == NULL) status = quotas_check_kept(c, &job);
    if (status != NULL) message_free(found->stored);
    return status;
}

static void resume(struct coordinator *c, struct rpc_call *call, const char *id,
                   const job_spec *spec, const Fsdpd__V1__PlanResult *result)
{
    struct resumable found;
    status_t status = find(c, call, id, spec != NULL, &found);
    if (status == NULL && spec != NULL) status = check_quota(c, &found, spec, result);
    if (status == NULL) status = revive(c, &found, spec, result);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    const job_message *message = found.job->message;
    c->actor = access_user(call);
    job_set_state(found.job, JOB_QUEUED, "RESUMED", "resumed by %s%s; continues from step %llu",
                  c->actor, spec != NULL ? " with other settings" : "",
                  (unsigned long long)(found.step != 0 ? found.step : message->step));
    c->actor = NULL;
    job_reply(call, message);
}

/* ---- the call ---- */

/* Calls with other settings, which wait for their plan. */
static const struct job_call_type resume_calls = {.size = sizeof(struct job_call)};

static void on_planned(void *user, status_t status, const job_spec *spec,
                       const Fsdpd__V1__PlanResult *result)
{
    struct job_call *own = user;
    if (status != NULL) job_call_finish(own, status);
    else resume(own->c, own->call, own->id, spec, result);
}

static status_t check_spec(struct coordinator *c, struct rpc_call *call, const char *id,
                           job_spec *spec)
{
    TRY(api_check_size(c, spec));
    TRY(api_accept_spec(spec));
    TRY(notices_check(c, spec));
    struct resumable found;
    TRY(find(c, call, id, true, &found));
    status_t status = check_fit(&found, spec);
    message_free(spec->array);
    spec->array = NULL;
    const Fsdpd__V1__ArrayPlace *place = found.message->spec->of_array;
    if (place != NULL) spec->of_array = message_copy(place); /* it stays one of its array */
    message_free(found.stored);
    return status;
}

static void resume_with(struct coordinator *c, struct rpc_call *call, const char *id,
                        job_spec *spec)
{
    status_t status = check_spec(c, call, id, spec);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    struct job_call *own = job_call_begin(&resume_calls, call, c, id);
    status = planner_request(c, spec, access_user(call), 0, on_planned, own);
    if (status != NULL) job_call_finish(own, status);
}

void resume_start(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    const Fsdpd__V1__ResumeJobRequest *request = (const void *)message;
    if (request->job_file != NULL) {
        job_spec *read = NULL;
        status_t status = api_read_file(request->spec, request->job_file, &read);
        if (status != NULL) rpc_call_finish(call, status);
        else resume_with(service, call, request->id, read);
        spec_free(read);
    } else if (request->spec != NULL) {
        resume_with(service, call, request->id, request->spec);
    } else {
        resume(service, call, request->id, NULL, NULL);
    }
}
