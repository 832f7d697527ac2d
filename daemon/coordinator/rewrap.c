/*
 * SetWrapPolicy; see rewrap.h. A change belongs to its job until it is settled and to its client's
 * call until that is closed; whichever comes last frees it. A client that goes away does not stop a
 * change that was ordered.
 */
#include "coordinator/rewrap.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "coordinator/access.h"
#include "coordinator/attempt.h"
#include "coordinator/orders.h"
#include "coordinator/planner.h"
#include "spec/spec.h"

struct rewrap {
    struct coordinator *c;
    struct rpc_call *call; /* NULL once it is closed */
    struct job *job;       /* NULL once it is settled */
    uint64_t number;       /* of the order */
    uint64_t request;      /* of the planner, while it plans */
    Fsdpd__V1__WrapSpec *wrap;
    Fsdpd__V1__Plan *plan; /* NULL until it is made */
};

static void rewrap_free(struct rewrap *rewrap)
{
    message_free(rewrap->wrap);
    message_free(rewrap->plan);
    free(rewrap);
}

/* Lets go of the job and answers: with `status`, or the job if that is NULL. */
static void settle(struct rewrap *rewrap, status_t status)
{
    struct job *job = rewrap->job;
    job->rewrap = NULL;
    rewrap->job = NULL;
    if (rewrap->request != 0) planner_forget(rewrap->c, rewrap->request);
    rewrap->request = 0;
    struct rpc_call *call = rewrap->call;
    if (call == NULL) {
        status_free(status);
        rewrap_free(rewrap);
    } else if (status != NULL) {
        rpc_call_finish(call, status);
    } else {
        job_reply(call, job->message);
    }
}

static status_t check_running(const struct job *job)
{
    const job_message *message = job->message;
    if (message->state != FSDPD__V1__JOB_STATE__RUNNING)
        return status_new(STATUS_FAILED_PRECONDITION,
                          "job %s is %s: only a running job's wrap policy can be changed",
                          message->id, job_state_name(message->state));
    if (job->ending || job->cancel_ordered)
        return status_new(STATUS_FAILED_PRECONDITION, "job %s is ending", message->id);
    return NULL;
}

static void on_planned(void *user, status_t status, const job_spec *spec,
                       const Fsdpd__V1__PlanResult *result)
{
    (void)spec;
    struct rewrap *rewrap = user;
    rewrap->request = 0;
    if (status == NULL) status = check_running(rewrap->job);
    if (status != NULL) {
        settle(rewrap, status);
        return;
    }
    rewrap->plan = message_copy(result->plan);
    rewrap->number = attempt_order_wrap(rewrap->job, rewrap->wrap);
}

/* The job, if it can be changed now. */
static status_t find_job(struct coordinator *c, const struct rpc_call *call, const char *id,
                         struct job **out)
{
    struct job *job = NULL;
    TRY(access_find(c, call, id, "change", &job));
    TRY(check_running(job));
    if (job->rewrap != NULL)
        return status_new(STATUS_FAILED_PRECONDITION,
                          "another change of job %s's wrap policy is under way", id);
    *out = job;
    return NULL;
}

/* The job's spec with the new policy. Shallow: borrows from both. */
static status_t check_spec(const struct job *job, Fsdpd__V1__WrapSpec *wrap,
                           Fsdpd__V1__FsdpSpec *fsdp, job_spec *spec)
{
    if (wrap == NULL) return status_new(STATUS_INVALID_ARGUMENT, "wrap is missing");
    *spec = *job->message->spec;
    *fsdp = *spec->fsdp;
    fsdp->wrap = wrap;
    spec->fsdp = fsdp;
    return spec_validate(spec);
}

void rewrap_start(struct rpc_call *call, const Fsdpd__V1__SetWrapPolicyRequest *request,
                  struct coordinator *c)
{
    struct job *job = NULL;
    Fsdpd__V1__FsdpSpec fsdp;
    job_spec spec;
    status_t status = find_job(c, call, request->id, &job);
    if (status == NULL) status = check_spec(job, request->wrap, &fsdp, &spec);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    if (message_equal(request->wrap, job->message->spec->fsdp->wrap)) {
        job_reply(call, job->message);
        return;
    }
    struct rewrap *rewrap = mem_alloc(sizeof *rewrap);
    rewrap->c = c;
    rewrap->call = call;
    rewrap->job = job;
    rewrap->wrap = message_copy(request->wrap);
    job->rewrap = rewrap;
    rpc_call_set_user(call, rewrap);
    rewrap->request = planner_ask(c, &spec, false, false, on_planned, rewrap, &status);
    if (rewrap->request == 0) settle(rewrap, status);
}

void rewrap_closed(struct rpc_call *call)
{
    struct rewrap *rewrap = rpc_call_user(call);
    if (rewrap == NULL) return;
    rewrap->call = NULL;
    if (rewrap->job == NULL) rewrap_free(rewrap);
    else if (rewrap->number == 0) settle(rewrap, NULL); /* nobody was ordered anything yet */
}

/*
 * A change that the coordinator of before had ordered: its client is gone, but the job has other
 * units now, and its record must say so.
 */
struct adoption {
    struct coordinator *c;
    char *job;
    uint32_t attempt;
    Fsdpd__V1__WrapReport *report;
};

static void on_adoption_planned(void *user, status_t status, const job_spec *spec,
                                const Fsdpd__V1__PlanResult *result)
{
    struct adoption *adoption = user;
    struct job *job = jobs_find(adoption->c, adoption->job);
    if (status != NULL)
        log_status(LOG_ERROR, "wrap_not_recorded",
                   status_wrap(status, "job %s has another wrap policy now", adoption->job));
    else if (job != NULL && job->message->attempt == adoption->attempt)
        job_set_wrap(job, spec->fsdp->wrap, result->plan, adoption->report);
    message_free(adoption->report);
    free(adoption->job);
    free(adoption);
}

static void adopt(struct job *job, const Fsdpd__V1__WrapReport *report)
{
    const Fsdpd__V1__WrapSpec *wrap = orders_find_wrap(job, report->change);
    if (wrap == NULL || report->code != STATUS_OK || report->change == job->wrap_done) return;
    job->wrap_done = report->change;
    struct adoption *adoption = mem_alloc(sizeof *adoption);
    *adoption = (struct adoption){.c = job->c,
                                  .job = mem_strdup(job->message->id),
                                  .attempt = job->message->attempt,
                                  .report = message_copy(report)};
    Fsdpd__V1__FsdpSpec fsdp;
    job_spec spec;
    status_t status = check_spec(job, (Fsdpd__V1__WrapSpec *)wrap, &fsdp, &spec);
    if (status == NULL)
        planner_ask(job->c, &spec, false, false, on_adoption_planned, adoption, &status);
    if (status != NULL) on_adoption_planned(adoption, status, NULL, NULL);
}

void rewrap_report(struct job *job, const Fsdpd__V1__WrapReport *report)
{
    struct rewrap *rewrap = job->rewrap;
    if (rewrap == NULL || rewrap->number == 0 || rewrap->number != report->change) {
        adopt(job, report);
        return;
    }
    job->wrap_done = report->change;
    if (report->code != STATUS_OK) {
        bool known = report->code <= STATUS_UNAUTHENTICATED;
        settle(rewrap, status_new(known ? (enum status_code)report->code : STATUS_UNKNOWN, "%s",
                                  report->message));
        return;
    }
    if (rewrap->plan->hash != report->plan_hash)
        log_event(LOG_WARNING, "plan_changed", "job=%s", job->message->id);
    log_event(LOG_INFO, "wrap_changed", "job=%s step=%llu policy=%s units=%zu peak_bytes=%llu",
              job->message->id, (unsigned long long)report->step, rewrap->wrap->policy,
              rewrap->plan->n_units, (unsigned long long)report->peak_bytes);
    job_set_wrap(job, rewrap->wrap, rewrap->plan, report);
    settle(rewrap, NULL);
}

void rewrap_job_over(struct job *job)
{
    if (job->rewrap == NULL) return;
    settle(job->rewrap,
           status_new(STATUS_ABORTED, "job %s ended (%s) before its wrap policy was changed",
                      job->message->id, job_state_name(job->message->state)));
}
