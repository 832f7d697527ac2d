/* Jobs: the table, states and events; see jobs.h. Everything runs on the loop's thread. */
#include "coordinator/jobs/jobs.h"

#include <math.h>
#include <search.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "coordinator/jobs/attempt.h"
#include "coordinator/jobs/job_record.h"
#include "coordinator/jobs/tensorboard.h"
#include "proto/message.h"
#include "spec/metric_table.h"
#include "spec/spec.h"

enum { REASON_MAX = 4096 };

/* Cuts a long message between characters: invalid UTF-8 would make the job undecodable. */
static void format_reason(char text[static REASON_MAX], const char *format, va_list args)
{
    size_t length = REASON_MAX - 1;
    if (vsnprintf(text, REASON_MAX, format, args) < REASON_MAX) return;
    while (length > 0 && ((unsigned char)text[length - 1] & 0xc0) == 0x80) length--;
    if (length > 0 && (unsigned char)text[length - 1] >= 0x80) length--;
    text[length] = '\0';
}

bool job_id_is_valid(const char *id)
{
    size_t length = strlen(id);
    if (length == 0 || length > 64 || id[0] == '-') return false;
    return strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789-") == length;
}

/* A tree, since every report of a worker looks up its job, and ten thousand may be queued. */
static int compare_ids(const void *a, const void *b)
{
    const struct job *first = a, *second = b;
    return strcmp(first->message->id, second->message->id);
}

struct job *jobs_find(struct coordinator *c, const char *id)
{
    job_message message = {.id = (char *)id};
    const struct job key = {.message = &message};
    if (c->job_found != NULL && compare_ids(&key, c->job_found) == 0) return c->job_found;
    struct job *const *found = tfind(&key, &c->jobs_by_id, compare_ids);
    if (found != NULL) c->job_found = *found;
    return found != NULL ? *found : NULL;
}

void job_free(struct job *job)
{
    attempt_dispose(job->attempt);
    attempt_dispose(job->left);
    tensorboard_close(job->tensorboard);
    job_forget_backlog(job);
    free(job->backlog);
    free(job->elastic.by);
    free(job->preempted);
    free(job->elastic.leaves);
    if (job->array != NULL) free(job->array->indices);
    free(job->array);
    message_free(job->message);
    free(job);
}

void job_set_reason_text(job_message *message, const char *code, const char *text)
{
    if (message->reason == NULL)
        message->reason = MESSAGE_NEW(message->reason, fsdpd__v1__reason__init);
    message_set_text(&message->reason->code, code);
    message_set_text(&message->reason->message, text);
}

bool job_may_end_early(const job_message *message)
{
    const Fsdpd__V1__EarlyStopSpec *early = message->spec->train->early_stop;
    return early != NULL && early->patience > 0;
}

bool job_has_result(const struct job *job)
{
    return job->message->has_state_dict && !job->outdated;
}

struct job *job_add(struct coordinator *c, job_message *message)
{
    struct job *job = mem_alloc(sizeof *job);
    job->c = c;
    job->message = message;
    MEM_GROW(c->jobs, c->job_count, c->job_capacity);
    c->jobs[c->job_count++] = job;
    if (tsearch(job, &c->jobs_by_id, compare_ids) == NULL) abort(); /* out of memory */
    return job;
}

void job_state_event(const job_message *message, const char *by, job_event *event,
                     Fsdpd__V1__StateChange *change)
{
    fsdpd__v1__state_change__init(change);
    change->by = (char *)by;
    change->step = message->step;
    change->state = message->state;
    change->reason = message->reason;
    change->attempt = message->attempt;
    fsdpd__v1__job_event__init(event);
    event->sequence = 1;
    event->steps = message->steps;
    event->event_case = FSDPD__V1__JOB_EVENT__EVENT_STATE;
    event->state = change;
}

/* QUEUED → STARTING → RUNNING; from STARTING or RUNNING back to QUEUED or to PAUSED; from PAUSED to
 * QUEUED; from each of these to a final state. */
static bool change_is_allowed(int from, int to)
{
    if (job_state_is_over(from)) return false;
    if (job_state_is_over(to)) return true;
    return (from == JOB_QUEUED && to == JOB_STARTING) ||
           (from == JOB_STARTING && to == JOB_RUNNING) ||
           (job_is_in_attempt(from) && (to == JOB_QUEUED || to == JOB_PAUSED)) ||
           (from == JOB_PAUSED && to == JOB_QUEUED);
}

/* Lists the job for the end of the turn, which notifies all parts that depend on it. */
static void mark_ended(struct job *job)
{
    struct coordinator *c = job->c;
    if (job->ended) return;
    job->ended = true;
    MEM_GROW(c->ended, c->ended_count, c->ended_capacity);
    c->ended[c->ended_count++] = job;
}

static void leave_attempt(struct job *job)
{
    attempt_end(job);
    mark_ended(job);
}

void job_over(struct job *job)
{
    struct coordinator *c = job->c;
    job->over = true;
    c->jobs_finished[job->message->state - JOB_SUCCEEDED]++;
    tdelete(job, &c->jobs_by_id, compare_ids);
    c->job_found = NULL;
    leave_attempt(job);
}

struct job *jobs_take_ended(struct coordinator *c)
{
    if (c->ended_count == 0) return NULL;
    struct job *job = c->ended[0];
    LIST_REMOVE(c->ended, c->ended_count, 0);
    job->ended = false;
    for (int i = 0; job->over && i < c->job_count; i++)
        if (c->jobs[i] == job) LIST_REMOVE(c->jobs, c->job_count, i);
    attempt_dispose(job->left);
    job->left = NULL;
    return job;
}

/* The user who requested the change; "" for the daemon. */
static const char *actor(const struct job *job)
{
    return job->c->actor != NULL ? job->c->actor : "";
}

static void log_change(const struct job *job, const char *code, const char *text)
{
    const job_message *message = job->message;
    int state = (int)message->state;
    AUTO_FREE char *quoted = log_quote(text);
    log_event(state == JOB_FAILED ? LOG_WARNING : LOG_INFO, "job_state",
              "job=%s state=%s attempt=%u step=%llu by=%s reason=%s message=%s", message->id,
              job_state_name(state), message->attempt, (unsigned long long)message->step,
              actor(job)[0] != '\0' ? actor(job) : "fsdpd", code, quoted);
    AUTO_FREE char *line =
        mem_printf("job_state state=%s reason=%s message=%s", job_state_name(state), code, quoted);
    job_log_note(job->c, message->id, message->attempt, state == JOB_FAILED ? "WARNING" : "INFO",
                 line);
}

void job_forget_slow_ranks(job_message *message)
{
    for (size_t i = 0; i < message->n_slow_ranks; i++) message_free(message->slow_ranks[i]);
    free(message->slow_ranks);
    message->slow_ranks = NULL;
    message->n_slow_ranks = 0;
}

/* Sets the time, replaces the reason, and notifies the watchers. */
static void enter(struct job *job, int state, const char *code, const char *text, bool durable)
{
    job_message *message = job->message;
    if (state != (int)message->state) {
        if (!job_is_in_attempt(state)) queue_changed(job->c);
        job_forget_slow_ranks(message);
        int64_t now = clock_wall_ms();
        message_set_time(&message->state_time, now);
        if (state == JOB_RUNNING) message_set_time(&message->start_time, now);
        if (job_state_is_over(state)) message_set_time(&message->finish_time, now);
        if (!job_is_in_attempt(state) && message->metrics != NULL)
            message->metrics->seconds_left = 0;
        message->state = (Fsdpd__V1__JobState)state;
    }
    job_set_reason_text(message, code, text);
    job_event event;
    Fsdpd__V1__StateChange change;
    job_state_event(message, actor(job), &event, &change);
    change.diagnosis = (Fsdpd__V1__Diagnosis *)job->diagnosis;
    job_record(job, &event, durable);
    if (durable) log_change(job, code, text);
}

void job_set_state(struct job *job, enum job_state state, const char *code, const char *format, ...)
{
    char text[REASON_MAX];
    va_list args;
    va_start(args, format);
    format_reason(text, format, args);
    va_end(args);
    if (!change_is_allowed(job->message->state, state)) {
        log_event(LOG_ERROR, "job_state_refused", "job=%s from=%s to=%s", job->message->id,
                  job_state_name(job->message->state), job_state_name(state));
        return;
    }
    bool left = job_is_in_attempt(job->message->state) && !job_is_in_attempt(state);
    enter(job, state, code, text, true);
    if (left && !job_state_is_over(state)) leave_attempt(job);
    if (job_state_is_over(state) && !job->unsaved) job_over(job);
    else if (job_state_is_over(state)) attempt_end(job); /* the rest once this is stored */
}

void job_set_reason(struct job *job, const char *code, const char *format, ...)
{
    char text[REASON_MAX];
    va_list args;
    va_start(args, format);
    format_reason(text, format, args);
    va_end(args);
    const Fsdpd__V1__Reason *old = job->message->reason;
    if (strcmp(old->code, code) != 0 || strcmp(old->message, text) != 0)
        enter(job, job->message->state, code, text, true);
}

void job_set_waiting(struct job *job, const char *code, const char *text)
{
    enter(job, job->message->state, code, text, false);
}

void job_note_change(struct job *job, bool durable, const char *code, const char *format, ...)
{
    char text[REASON_MAX];
    va_list args;
    va_start(args, format);
    format_reason(text, format, args);
    va_end(args);
    Fsdpd__V1__Reason reason = FSDPD__V1__REASON__INIT;
    reason.code = (char *)code;
    reason.message = (char *)text;
    job_event event;
    Fsdpd__V1__StateChange change;
    job_state_event(job->message, actor(job), &event, &change);
    change.reason = &reason;
    job_record(job, &event, durable);
    log_change(job, code, text);
}

/* A job that is over exists in the store alone. */
static status_t note_stored(struct coordinator *c, const char *id, const char *code,
                            const char *text)
{
    job_message *message = NULL;
    uint64_t last = 0, metrics = 0;
    TRY(store_get_job(c->store, id, &message));
    Fsdpd__V1__Reason reason = FSDPD__V1__REASON__INIT;
    reason.code = (char *)code;
    reason.message = (char *)text;
    job_event event;
    Fsdpd__V1__StateChange change;
    Google__Protobuf__Timestamp now;
    job_state_event(message, "", &event, &change);
    change.reason = &reason;
    event.time = message_time(&now, clock_wall_ms());
    event.attempt = message->attempt;
    status_t status = store_count_events(c->store, id, &last, &metrics);
    event.sequence = last + 1;
    if (status == NULL) status = store_update_job(c->store, message, &event, false);
    message_free(message);
    return status;
}

void job_note_later(struct coordinator *c, const char *id, const char *code, const char *text)
{
    struct job *job = jobs_find(c, id);
    if (job != NULL) {
        job_note_change(job, true, code, "%s", text);
        return;
    }
    AUTO_FREE char *quoted = log_quote(text);
    log_event(LOG_INFO, "job_note", "job=%s code=%s message=%s", id, code, quoted);
    status_t status = note_stored(c, id, code, text);
    if (status_code(status) == STATUS_NOT_FOUND) status_free(status);
    else log_status(LOG_ERROR, "store_failed", status);
}

/* Updates the job's latest figures: those that this report lacks stay as they were. */
static void merge_metrics(job_message *message, const Fsdpd__V1__Metrics *report)
{
    Fsdpd__V1__Metrics *merged = message_copy(report);
    if (message->metrics != NULL) metric_merge(merged, message->metrics);
    message_free(message->metrics);
    message->metrics = merged;
}

/* Replaces the latest figures with those of the last report up to `step`. */
static void replace_metrics(struct job *job, uint64_t step)
{
    static const Fsdpd__V1__Metrics none = FSDPD__V1__METRICS__INIT;
    job_event *event = NULL;
    status_t status =
        step > 0 ? store_find_metrics(job->c->store, job->message->id, step, &event) : NULL;
    log_status(LOG_ERROR, "store_failed", status); /* on error: none until the next report */
    merge_metrics(job->message, event != NULL ? event->metrics : &none);
    message_free(event);
}

void job_rewind(struct job *job, uint64_t step)
{
    Fsdpd__V1__Metrics *metrics = job->message->metrics;
    job->message->step = step;
    if (metrics == NULL) return;
    if (metrics->epoch_step > step) {
        static const char *const tested[] = {"train_loss", "test_loss", "accuracy", "epoch_step"};
        for (size_t i = 0; i < COUNT_OF(tested); i++) metric_set(&metrics->base, tested[i], NAN);
        message_free(metrics->test_scores);
        metrics->test_scores = NULL;
    }
    if (metrics->val_step > step) {
        metric_set(&metrics->base, "val_loss", NAN);
        metric_set(&metrics->base, "val_step", NAN);
        message_free(metrics->val_scores);
        metrics->val_scores = NULL;
    }
    size_t kept = 0;
    for (size_t i = 0; i < metrics->n_held_out; i++) {
        if (metrics->held_out[i]->step > step) message_free(metrics->held_out[i]);
        else metrics->held_out[kept++] = metrics->held_out[i];
    }
    metrics->n_held_out = kept;
    if (metrics->step > step) replace_metrics(job, step);
}

/*
 * Thins in batches, which keeps the cost per event low. If the store refuses, it has more metrics
 * than it should, but nothing is lost: the job continues, and the next batch tries again. So only
 * the log reports it, to the operator, and at most once per batch.
 */
static void thin_metrics(struct job *job)
{
    uint64_t keep = (uint64_t)job->c->options.limits.metrics_kept, batch = keep / 8 + 1;
    if (job->metrics_events <= keep + batch || job->metrics_events < job->thin_from) return;
    if (job->unsaved) return; /* it refuses writes, which was logged; job_record.c retries first */
    status_t status =
        store_thin_metrics(job->c->store, job->message->id, keep, &job->metrics_events);
    job->thin_from = job->metrics_events + batch;
    if (status != NULL)
        log_status(LOG_ERROR, "store_failed",
                   status_wrap(status, "thinning the metrics of job %s", job->message->id));
}

static void record(struct job *job, Fsdpd__V1__JobEvent__EventCase kind, const void *body,
                   bool durable)
{
    job_event event = FSDPD__V1__JOB_EVENT__INIT;
    event.event_case = kind;
    event.metrics = (Fsdpd__V1__Metrics *)body; /* the place of every kind's body */
    job_record(job, &event, durable);
}

void job_add_metrics(struct job *job, const Fsdpd__V1__Metrics *metrics)
{
    merge_metrics(job->message, metrics);
    job_totals_add(&job->totals, job->message, metrics);
    if (metrics->step > job->message->step) job->message->step = metrics->step;
    record(job, FSDPD__V1__JOB_EVENT__EVENT_METRICS, metrics, false);
    job->metrics_events++;
    thin_metrics(job);
}

void job_add_dropped(struct job *job, uint64_t metrics)
{
    job->sequence += metrics; /* a gap shows how many are missing; see watch.c */
    log_event(LOG_WARNING, "metrics_dropped", "job=%s count=%llu", job->message->id,
              (unsigned long long)metrics);
}

void job_add_epoch(struct job *job, const Fsdpd__V1__EpochEnd *epoch)
{
    Fsdpd__V1__Metrics report = FSDPD__V1__METRICS__INIT;
    if (job->message->metrics != NULL) report = *job->message->metrics;
    metric_set_mean(&report.base, "train_loss", epoch->train_loss);
    metric_set(&report.base, "epoch_step", (double)epoch->step);
    if (epoch->_test_loss_case != 0) {
        metric_set_mean(&report.base, "test_loss", epoch->test_loss);
        metric_set_mean(&report.base, "accuracy", epoch->accuracy);
        report.test_scores = epoch->scores;
    }
    merge_metrics(job->message, &report);
    record(job, FSDPD__V1__JOB_EVENT__EVENT_EPOCH, epoch, true);
}

/* Replaces the last one of the same held-out set. */
static void merge_held_out(struct job *job, Fsdpd__V1__Metrics *report,
                           const Fsdpd__V1__Validation *validation)
{
    size_t count = report->n_held_out, at = 0;
    AUTO_FREE Fsdpd__V1__Validation **held_out = mem_alloc_array(count + 1, sizeof *held_out);
    for (size_t i = 0; i < count; i++) held_out[i] = report->held_out[i];
    while (at < count && strcmp(held_out[at]->set, validation->set) != 0) at++;
    held_out[at] = (Fsdpd__V1__Validation *)validation; /* copied */
    report->held_out = held_out;
    report->n_held_out = at < count ? count : count + 1;
    merge_metrics(job->message, report);
}

void job_add_validation(struct job *job, const Fsdpd__V1__Validation *validation)
{
    Fsdpd__V1__Metrics report = FSDPD__V1__METRICS__INIT;
    if (job->message->metrics != NULL) report = *job->message->metrics;
    if (validation->set[0] != '\0') {
        merge_held_out(job, &report, validation);
    } else {
        metric_set_mean(&report.base, "val_loss", validation->loss);
        metric_set(&report.base, "val_step", (double)validation->step);
        report.val_scores = validation->scores;
        merge_metrics(job->message, &report);
    }
    record(job, FSDPD__V1__JOB_EVENT__EVENT_VALIDATION, validation, true);
}

void job_add_sampled(struct job *job, const Fsdpd__V1__Sampled *sampled)
{
    record(job, FSDPD__V1__JOB_EVENT__EVENT_SAMPLED, sampled, true);
}

void job_add_checkpoint(struct job *job, const Fsdpd__V1__CheckpointReport *report)
{
    if (report->code == STATUS_OK) {
        job->totals.checkpoints++;
        job->totals.checkpoint_seconds += report->checkpoint->seconds;
        job->totals.checkpoint_ms = message_time_ms(report->checkpoint->time);
    }
    Fsdpd__V1__CheckpointEvent body = FSDPD__V1__CHECKPOINT_EVENT__INIT;
    body.checkpoint = report->checkpoint;
    body.code = report->code;
    body.message = report->message;
    body.n_removed_steps = report->n_removed_steps;
    body.removed_steps = report->removed_steps;
    record(job, FSDPD__V1__JOB_EVENT__EVENT_CHECKPOINT, &body, true);
}

/* The units whose trial was the fastest; NULL: the report is not of fsdp.tune. */
static const Fsdpd__V1__TuneTrial *find_kept(const Fsdpd__V1__WrapReport *report)
{
    for (size_t i = 0; i < report->n_trials; i++)
        if (report->trials[i]->kept) return report->trials[i];
    return NULL;
}

static void choose_wrap(struct job *job, const Fsdpd__V1__WrapSpec *wrap,
                        const Fsdpd__V1__Plan *plan, const Fsdpd__V1__TuneTrial *kept)
{
    Fsdpd__V1__Chosen *chosen = job_choose(job);
    message_free(chosen->wrap);
    chosen->wrap = message_copy(wrap);
    chosen->by = kept != NULL ? FSDPD__V1__CHOOSER__CHOOSER_TUNE : FSDPD__V1__CHOOSER__CHOOSER_USER;
    message_set_text(&chosen->profile, plan->device);
    message_set_text(&chosen->description, kept != NULL ? kept->description : "");
    chosen->step_seconds = kept != NULL ? kept->expected_seconds : 0;
    chosen->peak_bytes = plan->peak_bytes;
    chosen->host_bytes = plan->host_bytes;
    message_free(job->message->plan);
    job->message->plan = message_copy(plan);
}

void job_set_wrap(struct job *job, const Fsdpd__V1__WrapSpec *wrap, const Fsdpd__V1__Plan *plan,
                  const Fsdpd__V1__WrapReport *report)
{
    const job_message *message = job->message;
    struct spec_settings with;
    if (wrap != NULL) choose_wrap(job, wrap, plan, find_kept(report));
    if (report->n_trials > 0) job_choose(job)->tuned = true;
    Fsdpd__V1__WrapChange change = FSDPD__V1__WRAP_CHANGE__INIT;
    change.step = report->step;
    change.wrap = spec_settings(message->spec, message->chosen, &with)->fsdp->wrap;
    change.n_units = message->plan->n_units;
    change.units = message->plan->units;
    change.peak_bytes = report->peak_bytes;
    change.seconds = report->seconds;
    change.n_trials = report->n_trials;
    change.trials = report->trials;
    change.stopped = report->stopped;
    record(job, FSDPD__V1__JOB_EVENT__EVENT_WRAP, &change, true);
}

void jobs_free_all(struct coordinator *c)
{
    c->job_found = NULL;
    for (int i = 0; i < c->job_count; i++) {
        tdelete(c->jobs[i], &c->jobs_by_id, compare_ids);
        job_free(c->jobs[i]);
    }
    free(c->jobs);
    free(c->ended);
}

void job_view(const job_message *message, job_message *view)
{
    *view = *message;
    if (message->plan != NULL) {
        view->n_units = message->plan->n_units;
        view->units = message->plan->units;
    }
    if (message->state == FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING) view->has_state_dict = true;
    if (message->array_jobs != NULL) view->steps = message->array_jobs->jobs; /* `step` are made */
}

void job_reply(struct rpc_call *call, const job_message *message)
{
    job_message view;
    job_view(message, &view);
    rpc_call_reply(call, &view.base);
}
