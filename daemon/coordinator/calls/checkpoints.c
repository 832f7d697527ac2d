/*
 * Checkpoints; see checkpoints.h. An ordered checkpoint is taken even if its client disconnects.
 * One order per job is in progress at a time; calls that arrive meanwhile share the next one.
 */
#include "coordinator/calls/checkpoints.h"

#include <stdlib.h>

#include "base/mem.h"
#include "coordinator/calls/access.h"
#include "coordinator/calls/calls.h"
#include "coordinator/calls/job_call.h"
#include "coordinator/core/list_page.h"
#include "coordinator/jobs/attempt_run.h"
#include "coordinator/jobs/elastic.h"

struct checkpoint_call {
    struct job_call base;
    bool pause;
    uint64_t number; /* of the order; 0: not ordered yet */
};

/* Answers the calls that still wait: PauseJob with the job if it is paused. */
static void on_attempt_over(struct job_call *own, struct job *job)
{
    const job_message *message = job->message;
    bool paused = message->state == FSDPD__V1__JOB_STATE__JOB_STATE_PAUSED;
    if (paused && ((struct checkpoint_call *)own)->pause) job_call_reply_job(own, message);
    else job_call_finish(own, job_call_error_of_end(job, "the checkpoint was taken"));
}

static const struct job_call_type checkpoint_calls = {.size = sizeof(struct checkpoint_call),
                                                      .attempt_over = on_attempt_over};

static struct checkpoint_call *next_of(const struct job *job, struct checkpoint_call *after)
{
    return job_calls_next(job->c, &checkpoint_calls, job, after);
}

/* ---- the clients' calls ---- */

/* Finds the caller's job if it runs or is about to. */
static status_t find_job(struct coordinator *c, const struct rpc_call *call, const char *id,
                         bool pause, struct job **out)
{
    struct job *job = NULL;
    TRY(access_find(c, call, id, pause ? "pause" : "take checkpoints of", &job));
    int state = job->message->state;
    if (pause && state == JOB_QUEUED)
        return status_with(
            status_new(STATUS_FAILED_PRECONDITION,
                       "job %s is QUEUED and has nothing to pause: fsdpctl hold keeps it from "
                       "starting",
                       id),
            (struct status_details){.reason = "JOB_IS_NOT_RUNNING", .subject = id});
    if (pause && state == JOB_PAUSED)
        return status_with(status_new(STATUS_FAILED_PRECONDITION, "job %s is PAUSED already", id),
                           (struct status_details){.reason = "JOB_IS_PAUSED", .subject = id});
    if (state != JOB_STARTING && state != JOB_RUNNING)
        return status_with(status_new(STATUS_FAILED_PRECONDITION,
                                      "job %s is %s: only a running job takes checkpoints", id,
                                      job_state_name(state)),
                           (struct status_details){.reason = "JOB_IS_NOT_RUNNING", .subject = id});
    if (!attempt_is_active(job))
        return status_with(status_new(STATUS_FAILED_PRECONDITION, "the attempt of job %s is ending",
                                      id),
                           (struct status_details){.reason = "JOB_IS_ENDING", .subject = id});
    TRY(saving_refuse(job));
    *out = job;
    return NULL;
}

static void begin(struct rpc_call *call, const char *id, bool pause, struct coordinator *c)
{
    struct job *job = NULL;
    status_t status = find_job(c, call, id, pause, &job);
    int count = job_calls_count(c, &checkpoint_calls);
    if (status == NULL && count >= c->options.limits.watchers)
        status =
            status_new(STATUS_RESOURCE_EXHAUSTED, "%d calls wait for checkpoints already", count);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    struct checkpoint_call *own = job_call_begin(&checkpoint_calls, call, c, id);
    own->pause = pause;
    checkpoints_advance(job);
}

void checkpoints_create(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    begin(call, ((const Fsdpd__V1__CreateCheckpointRequest *)request)->id, false, service);
}

void checkpoints_pause(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    begin(call, ((const Fsdpd__V1__PauseJobRequest *)request)->id, true, service);
}

/* The pause is stored before its order is sent: its requester or fsdpd may be gone when it is
 * done. */
static void order_pause(struct job *job, const char *user)
{
    struct attempt *attempt = job->attempt;
    struct coordinator *c = job->c;
    const char *actor = c->actor;
    message_set_text(&attempt->stop.by, user);
    attempt->stop.pausing = true;
    attempt_end_by(job);
    c->actor = attempt->stop.by;
    attempt_set_reason(job, "PAUSING", "takes a checkpoint at its next step boundary, then ends");
    c->actor = actor;
    attempt->checkpoint_order = ++c->last_number;
    attempt_order_checkpoint(job, attempt->checkpoint_order, true);
}

void checkpoints_advance(struct job *job)
{
    struct attempt *attempt = job->attempt;
    if (job->message->state != FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING || !attempt_is_active(job) ||
        attempt->checkpoint_order != 0)
        return;
    const struct checkpoint_call *pause = NULL;
    uint64_t number = job->c->last_number + 1;
    bool any = false;
    for (struct checkpoint_call *own = NULL; (own = next_of(job, own)) != NULL;) {
        if (own->number != 0) continue;
        own->number = number;
        any = true;
        if (own->pause) pause = own;
    }
    if (!any) return;
    if (pause != NULL) {
        order_pause(job, access_user(pause->base.call));
        return;
    }
    attempt->checkpoint_order = job->c->last_number = number;
    attempt_order_checkpoint(job, number, false);
}

/* ---- the job's side ---- */

static void order_vacating(struct job *job)
{
    struct attempt *attempt = job->attempt;
    attempt_end_by(job);
    bool elastic = elastic_is(job->message), preempted = attempt->stop.preempted;
    const char *how = elastic_is_redundant(job->message) && !preempted
                          ? "hands its state over in memory"
                          : "takes a checkpoint";
    attempt_set_reason(job,
                       preempted ? "PREEMPTING"
                       : elastic ? "RESIZING"
                                 : "VACATING",
                       "%s: %s at its next step boundary, then %s", attempt->stop.message, how,
                       preempted ? "waits for its turn"
                       : elastic ? "continues"
                                 : "continues on other workers");
    attempt->checkpoint_order = attempt->vacate_order = ++job->c->last_number;
    attempt_order_checkpoint(job, attempt->checkpoint_order, true);
}

void checkpoints_vacate(struct job *job, const char *by, const char *why)
{
    struct attempt *attempt = job->attempt;
    if (!attempt_is_active(job) || attempt->stop.pausing || attempt->stop.preempted)
        return; /* it is ending already */
    message_set_text(&attempt->stop.by, by);
    message_set_text(&attempt->stop.message, why);
    bool can_save =
        !attempt->stop.vacating && job->message->state == FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING;
    attempt->stop.vacating = true;
    if (!can_save) attempt_vacate_at_once(job);
    else if (attempt->saving != 0) job_sync_soon(job); /* it leaves when its last write is done */
    else if (attempt->checkpoint_order == 0) order_vacating(job);
    else {
        /* It vacates after the current checkpoint; the store must record this, too. */
        attempt_end_by(job);
        job_sync_soon(job);
    }
}

void checkpoints_preempt(struct job *job, const char *why)
{
    struct attempt *attempt = job->attempt;
    if (!attempt_is_active(job) || attempt->stop.pausing || attempt->stop.vacating) return;
    message_set_text(&attempt->stop.message, why);
    attempt->stop.vacating = attempt->stop.preempted = true;
    if (attempt->checkpoint_order == 0) {
        order_vacating(job);
    } else { /* after the current checkpoint */
        attempt_end_by(job);
        job_sync_soon(job);
    }
}

/* The checkpoint failed: the job trains on, and is left alone for a while. */
static void call_off_preemption(struct job *job, const char *why)
{
    struct attempt *attempt = job->attempt;
    attempt->stop.vacating = attempt->stop.preempted = false;
    attempt->vacate_order = 0;
    job->preempted_at = coordinator_now();
    if (attempt->cancel_ordered) return;
    attempt->escalate_at = 0;
    attempt_set_reason(job, "RUNNING", "could not be preempted: %s", why);
    if (job->c->draining && attempt_is_local(job)) attempt_shut_down(job, "fsdpd is shutting down");
}

void checkpoints_resume(struct job *job)
{
    struct attempt *attempt = job->attempt;
    if (job->message->state != FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING || !attempt_is_active(job) ||
        attempt->checkpoint_order != 0)
        return;
    if (attempt->stop.vacating) order_vacating(job);
    else if (attempt->stop.pausing) order_pause(job, attempt->stop.by);
}

/* Continues after a checkpoint of a job that vacates its workers was taken, or failed. */
static void resume_vacating(struct job *job, const Fsdpd__V1__CheckpointReport *report)
{
    if (report->number != job->attempt->vacate_order) order_vacating(job);
    else if (report->code == STATUS_OK) return;
    else if (job->attempt->stop.preempted) call_off_preemption(job, report->message);
    else attempt_vacate_at_once(job);
}

/* Answers the order's calls. A PauseJob that succeeds is answered when the attempt has ended. */
static void answer(struct job *job, const Fsdpd__V1__CheckpointReport *report)
{
    bool known = report->code <= STATUS_UNAUTHENTICATED;
    for (struct checkpoint_call *own = NULL; (own = next_of(job, own)) != NULL;) {
        if (own->number != report->number) continue;
        if (report->code != STATUS_OK)
            job_call_finish(&own->base,
                            status_new(known ? (enum status_code)report->code : STATUS_UNKNOWN,
                                       "%s", report->message));
        else if (!own->pause) job_call_reply(&own->base, &report->checkpoint->base);
    }
}

void checkpoints_report(struct job *job, const Fsdpd__V1__CheckpointReport *report)
{
    struct attempt *attempt = job->attempt;
    if (report->checkpoint == NULL) return;
    if (report->again) { /* repeated every few seconds; recorded once */
        if ((attempt->saving & SAVING_CHECKPOINT) == 0) job_add_checkpoint(job, report);
        saving_failed(job, SAVING_CHECKPOINT, report->message);
        return;
    }
    job_add_checkpoint(job, report);
    if (report->number == 0) {
        saving_done(job, SAVING_CHECKPOINT);
        return;
    }
    if (report->number == attempt->checkpoint_order) {
        attempt->checkpoint_order = 0;
        bool pause_failed = report->code != STATUS_OK && attempt->stop.pausing;
        if (pause_failed) {
            attempt->stop.pausing = false;
            message_set_text(&attempt->stop.by, "");
        }
        if (pause_failed && !attempt->cancel_ordered) {
            attempt->escalate_at = 0;
            attempt_set_reason(job, "RUNNING", "could not be paused: %s", report->message);
        }
        if (attempt->stop.vacating) {
            answer(job, report);
            resume_vacating(job, report);
            return;
        }
        if (report->code != STATUS_OK) attempt_not_saved(job);
        if (pause_failed && job->c->draining && attempt_is_local(job))
            attempt_shut_down(job, "fsdpd is shutting down");
    }
    answer(job, report);
    checkpoints_advance(job);
}

/* ---- listing ---- */

/* Of the steps before those of the pages that the client has. */
struct checkpoint_rows {
    struct list_page page; /* by step */
    Fsdpd__V1__Checkpoint **rows;
    size_t count, capacity;
    uint64_t best; /* the step of the best one; 0: none is */
};

static status_t add_to_list(void *user, const Fsdpd__V1__Checkpoint *checkpoint)
{
    struct checkpoint_rows *list = user;
    if (checkpoint->_best_case != 0) list->best = checkpoint->step;
    if (list->page.after != NULL && (int64_t)checkpoint->step >= list->page.after_number)
        return NULL;
    MEM_GROW(list->rows, list->count, list->capacity);
    list->rows[list->count++] = message_copy(checkpoint);
    return NULL;
}

/* With the newest ones that the page takes. */
static void reply_checkpoints(struct rpc_call *call, struct checkpoint_rows *list)
{
    Fsdpd__V1__ListCheckpointsResponse response = FSDPD__V1__LIST_CHECKPOINTS_RESPONSE__INIT;
    for (size_t i = list->count; i-- > 0;) {
        Fsdpd__V1__Checkpoint *checkpoint = list->rows[i];
        if (checkpoint->step != list->best)
            checkpoint->_best_case = FSDPD__V1__CHECKPOINT___BEST__NOT_SET;
        list_page_take(&list->page, &checkpoint->base);
    }
    response.n_checkpoints = list->page.count;
    response.checkpoints = list->rows + (list->count - list->page.count);
    int64_t oldest = list->page.count > 0 ? (int64_t)response.checkpoints[0]->step : 0;
    response.next_page_token = list_page_next(&list->page, oldest, "");
    rpc_call_reply(call, &response.base);
    free(response.next_page_token);
}

void checkpoints_list(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__ListCheckpointsRequest *request = (const void *)message;
    struct checkpoint_rows list = {0};
    job_message *stored = NULL;
    status_t status = list_page_begin(&list.page, request->page_size, request->page_token, false);
    if (status == NULL) status = store_get_job(c->store, request->id, &stored);
    if (status == NULL) status = store_each_checkpoint(c->store, request->id, add_to_list, &list);
    if (status != NULL) rpc_call_finish(call, status);
    else reply_checkpoints(call, &list);
    for (size_t i = 0; i < list.count; i++) message_free(list.rows[i]);
    free(list.rows);
    message_free(stored);
}
