/* SetWrapPolicy; see calls.h. An ordered change proceeds even if its client disconnects: the
 * call's struct is freed once the change is settled. */
#include "coordinator/calls/calls.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "coordinator/calls/access.h"
#include "coordinator/calls/job_call.h"
#include "coordinator/jobs/attempt_run.h"
#include "coordinator/jobs/orders.h"
#include "coordinator/workers/planner.h"
#include "spec/spec.h"

struct wrap_call {
    struct job_call base;
    uint64_t number; /* of the order; 0: not ordered yet */
    Fsdpd__V1__WrapSpec *wrap;
    Fsdpd__V1__Plan *plan; /* NULL until the planner answers */
};

static void rewrap_free(struct wrap_call *rewrap)
{
    message_free(rewrap->wrap);
    message_free(rewrap->plan);
    job_call_free(&rewrap->base);
}

/* Answers the call, and frees it if its client is gone. */
static void end(struct job_call *own, status_t status)
{
    job_call_finish(own, status);
    if (own->call == NULL) rewrap_free((struct wrap_call *)own);
}

static void on_attempt_over(struct job_call *own, struct job *job)
{
    end(own, job_call_error_of_end(job, "its wrap policy was changed"));
}

static void on_closed(struct job_call *own)
{
    struct wrap_call *rewrap = (struct wrap_call *)own;
    if (own->over || rewrap->number == 0) rewrap_free(rewrap);
}

static const struct job_call_type wrap_calls = {.size = sizeof(struct wrap_call),
                                                .attempt_over = on_attempt_over,
                                                .end = end,
                                                .closed = on_closed};

static status_t check_running(const struct job *job)
{
    const job_message *message = job->message;
    if (message->state != FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING)
        return status_with(
            status_new(STATUS_FAILED_PRECONDITION,
                       "job %s is %s: only a running job's wrap policy can be changed", message->id,
                       job_state_name(message->state)),
            (struct status_details){.reason = "JOB_IS_NOT_RUNNING", .subject = message->id});
    if (!attempt_is_active(job))
        return status_with(status_new(STATUS_FAILED_PRECONDITION, "the attempt of job %s is ending",
                                      message->id),
                           (struct status_details){.reason = "JOB_IS_ENDING",
                                                   .subject = message->id});
    return saving_refuse(job);
}

static void on_planned(void *user, status_t status, const job_spec *spec,
                       const Fsdpd__V1__PlanResult *result)
{
    (void)spec;
    struct wrap_call *rewrap = user;
    struct job *job = rewrap->base.job;
    if (status == NULL) status = check_running(job);
    if (status != NULL) {
        job_call_finish(&rewrap->base, status);
        return;
    }
    rewrap->plan = message_copy(result->plan);
    rewrap->number = attempt_order_wrap(job, rewrap->wrap);
}

/* Finds the job if its units can be changed now. */
static status_t find_job(struct coordinator *c, const struct rpc_call *call, const char *id,
                         struct job **out)
{
    struct job *job = NULL;
    TRY(access_find(c, call, id, "change", &job));
    TRY(check_running(job));
    if (job_calls_next(c, &wrap_calls, job, NULL) != NULL)
        return status_with(status_new(STATUS_FAILED_PRECONDITION,
                                      "another change of job %s's wrap policy is under way", id),
                           (struct status_details){.reason = "JOB_IS_BEING_CHANGED",
                                                   .subject = id});
    *out = job;
    return NULL;
}

/* The job's settings with the new policy; they borrow from both. */
static status_t check_spec(const struct job *job, Fsdpd__V1__WrapSpec *wrap,
                           struct spec_settings *with, const job_spec **spec)
{
    if (wrap == NULL) return status_new(STATUS_INVALID_ARGUMENT, "wrap is missing");
    Fsdpd__V1__Chosen chosen = FSDPD__V1__CHOSEN__INIT;
    if (job->message->chosen != NULL) chosen = *job->message->chosen;
    chosen.wrap = wrap;
    chosen.tuned = true; /* or the plan would look for more */
    *spec = spec_settings(job->message->spec, &chosen, with);
    return spec_validate(*spec);
}

static const Fsdpd__V1__FsdpSpec *fsdp_of(const job_message *message, struct spec_settings *with)
{
    return spec_settings(message->spec, message->chosen, with)->fsdp;
}

void rewrap_start(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__SetWrapPolicyRequest *request = (const void *)message;
    struct job *job = NULL;
    struct spec_settings with;
    const job_spec *spec = NULL;
    status_t status = find_job(c, call, request->id, &job);
    if (status == NULL && request->wrap != NULL) spec_complete_wrap(request->wrap);
    if (status == NULL) status = check_spec(job, request->wrap, &with, &spec);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    struct spec_settings now;
    if (message_equal(request->wrap, fsdp_of(job->message, &now)->wrap)) {
        job_reply(call, job->message);
        return;
    }
    struct wrap_call *rewrap = job_call_begin(&wrap_calls, call, c, request->id);
    rewrap->wrap = message_copy(request->wrap);
    status = planner_request(c, spec, access_user(call), 0, on_planned, rewrap);
    if (status != NULL) job_call_finish(&rewrap->base, status);
}

/*
 * A change that a previous coordinator ordered: its client is gone, but the job has other units
 * now, so its record must change, too.
 */
struct adoption {
    struct coordinator *c;
    char *job;
    uint32_t attempt;
    uint64_t wrap_done; /* the attempt's when this began: a later change counts more */
    Fsdpd__V1__WrapReport *report;
};

static void record_adoption(struct job *job, const struct adoption *adoption,
                            const Fsdpd__V1__WrapSpec *wrap, const Fsdpd__V1__Plan *plan)
{
    bool latest = job->attempt == NULL || job->attempt->wrap_done == adoption->wrap_done;
    if (latest) job_set_wrap(job, wrap, plan, adoption->report);
    else if (adoption->report->n_trials > 0) job_set_wrap(job, NULL, NULL, adoption->report);
}

static void on_adoption_planned(void *user, status_t status, const job_spec *spec,
                                const Fsdpd__V1__PlanResult *result)
{
    struct adoption *adoption = user;
    struct job *job = jobs_find(adoption->c, adoption->job);
    if (status != NULL)
        log_status(LOG_ERROR, "wrap_not_recorded",
                   status_wrap(status, "job %s has another wrap policy now", adoption->job));
    else if (job != NULL && job->message->attempt == adoption->attempt)
        record_adoption(job, adoption, spec->fsdp->wrap, result->plan);
    message_free(adoption->report);
    free(adoption->job);
    free(adoption);
}

static void plan_adoption(struct job *job, const Fsdpd__V1__WrapSpec *wrap,
                          const Fsdpd__V1__WrapReport *report)
{
    struct adoption *adoption = mem_alloc(sizeof *adoption);
    *adoption = (struct adoption){.c = job->c,
                                  .job = mem_strdup(job->message->id),
                                  .attempt = job->message->attempt,
                                  .wrap_done = job->attempt != NULL ? job->attempt->wrap_done : 0,
                                  .report = message_copy(report)};
    struct spec_settings with;
    const job_spec *spec = NULL;
    status_t status = check_spec(job, (Fsdpd__V1__WrapSpec *)wrap, &with, &spec);
    if (status == NULL)
        status = planner_request(job->c, spec, NULL, 0, on_adoption_planned, adoption);
    if (status != NULL) on_adoption_planned(adoption, status, NULL, NULL);
}

static void adopt(struct job *job, const Fsdpd__V1__WrapReport *report)
{
    const Fsdpd__V1__WrapSpec *wrap = orders_find_wrap(job, report->change);
    if (wrap == NULL || report->code != STATUS_OK || report->change == job->attempt->wrap_done)
        return;
    job->attempt->wrap_done = report->change;
    plan_adoption(job, wrap, report);
}

/* Adds what the plan says of the trials, and finds the one that was kept; 0 if none was. */
static size_t complete_trials(const Fsdpd__V1__Plan *plan, Fsdpd__V1__WrapReport *report)
{
    size_t kept = 0;
    for (size_t i = 0; i < report->n_trials && i < plan->n_tune; i++) {
        message_set_text(&report->trials[i]->description, plan->tune[i]->description);
        report->trials[i]->expected_seconds = plan->tune[i]->step_seconds;
        if (report->trials[i]->kept) kept = i;
    }
    return kept;
}

/* The end of fsdp.tune. A job that keeps its own units needs no other plan. */
static void tuned(struct job *job, const Fsdpd__V1__WrapReport *sent)
{
    const job_message *message = job->message;
    struct spec_settings with;
    if (!fsdp_of(message, &with)->tune || message->plan == NULL) return;
    Fsdpd__V1__WrapReport *report = message_copy(sent);
    const size_t kept = complete_trials(message->plan, report);
    if (kept > 0) plan_adoption(job, message->plan->tune[kept]->wrap, report);
    else job_set_wrap(job, NULL, NULL, report);
    message_free(report);
}

void rewrap_report(struct job *job, const Fsdpd__V1__WrapReport *report)
{
    if (report->n_trials > 0) {
        tuned(job, report);
        return;
    }
    struct wrap_call *rewrap = job_calls_next(job->c, &wrap_calls, job, NULL);
    if (rewrap == NULL || rewrap->number == 0 || rewrap->number != report->change) {
        adopt(job, report);
        return;
    }
    job->attempt->wrap_done = report->change;
    if (report->code != STATUS_OK) {
        bool known = report->code <= STATUS_UNAUTHENTICATED;
        end(&rewrap->base, status_new(known ? (enum status_code)report->code : STATUS_UNKNOWN, "%s",
                                      report->message));
        return;
    }
    if (rewrap->plan->hash != report->plan_hash)
        log_event(LOG_WARNING, "plan_changed", "job=%s", job->message->id);
    log_event(LOG_INFO, "wrap_changed", "job=%s step=%llu policy=%s units=%zu peak_bytes=%llu",
              job->message->id, (unsigned long long)report->step,
              spec_word(&fsdpd__v1__wrap_policy__descriptor, (int)rewrap->wrap->policy),
              rewrap->plan->n_units, (unsigned long long)report->peak_bytes);
    job_set_wrap(job, rewrap->wrap, rewrap->plan, report);
    job_call_reply_job(&rewrap->base, job->message);
    end(&rewrap->base, NULL);
}
