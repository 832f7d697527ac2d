/* Jobs: creation, recovery, states and events; see jobs.h. All on the loop's thread. */
#include "coordinator/jobs.h"

#include <search.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "coordinator/attempt.h"
#include "coordinator/checkpoints.h"
#include "coordinator/deadlines.h"
#include "coordinator/dependencies.h"
#include "coordinator/forget.h"
#include "coordinator/job_record.h"
#include "coordinator/logs.h"
#include "coordinator/pulls.h"
#include "coordinator/queue.h"
#include "coordinator/reattach.h"
#include "coordinator/retry.h"
#include "coordinator/rewrap.h"
#include "coordinator/sweeps.h"
#include "coordinator/tensorboard.h"
#include "coordinator/traces.h"
#include "coordinator/watch.h"

enum { REASON_MAX = 4096 };

/* Cuts a long sentence between characters: what is no UTF-8 would make the job unreadable. */
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

/* Every report of a worker looks its job up: by a tree, since ten thousand may be queued. */
static int compare_ids(const void *a, const void *b)
{
    const struct job *first = a, *second = b;
    return strcmp(first->message->id, second->message->id);
}

struct job *jobs_find(struct coordinator *c, const char *id)
{
    job_message message = {.id = (char *)id};
    const struct job key = {.message = &message};
    struct job *const *found = tfind(&key, &c->jobs_by_id, compare_ids);
    return found != NULL ? *found : NULL;
}

static void job_free(struct job *job)
{
    attempt_clear(job);
    tensorboard_close(job);
    job_forget_backlog(job);
    free(job->backlog);
    message_free(job->message);
    free(job->started_text);
    free(job);
}

static void set_reason_text(job_message *message, const char *code, const char *text)
{
    if (message->reason == NULL) {
        message->reason = mem_alloc(sizeof *message->reason);
        fsdpd__v1__reason__init(message->reason);
    }
    message_set_text(&message->reason->code, code);
    message_set_text(&message->reason->message, text);
}

static struct job *add_record(struct coordinator *c, job_message *message)
{
    struct job *job = mem_alloc(sizeof *job);
    job->c = c;
    job->message = message;
    MEM_GROW(c->jobs, c->job_count, c->job_capacity);
    c->jobs[c->job_count++] = job;
    if (tsearch(job, &c->jobs_by_id, compare_ids) == NULL) abort(); /* memory is gone */
    return job;
}

/* `by` is the user who did it; "" for the daemon. */
static void state_event(const job_message *message, const char *by, job_event *event,
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
    event->time_ms = clock_wall_ms();
    event->steps = message->steps;
    event->event_case = FSDPD__V1__JOB_EVENT__EVENT_STATE;
    event->state = change;
}

static status_t check_owner(const struct coordinator *c, const char *owner)
{
    int limit = c->options.limits.jobs_per_user, count = 0;
    for (int i = 0; i < c->job_count; i++) count += strcmp(c->jobs[i]->message->owner, owner) == 0;
    if (count < limit) return NULL;
    return status_new(STATUS_RESOURCE_EXHAUSTED,
                      "%d jobs of %s are queued or running already, which is the limit per user",
                      count, owner[0] != '\0' ? owner : "this user");
}

static job_message *make_message(const struct job_submission *submission, const char *id)
{
    const job_spec *spec = submission->spec;
    job_message *message = mem_alloc(sizeof *message);
    fsdpd__v1__job__init(message);
    message_set_text(&message->id, id);
    message_set_text(&message->name, spec->name);
    message_set_text(&message->owner, submission->owner);
    if (submission->hold) message_set_text(&message->held_by, submission->owner);
    message->priority = spec->priority;
    message->spec = message_copy(spec);
    message->plan = message_copy(submission->plan);
    message->state = (Fsdpd__V1__JobState)JOB_QUEUED;
    message->steps = submission->steps;
    message->submitted_ms = message->state_ms = clock_wall_ms();
    deadlines_resolve(message);
    char *held = submission->hold ? mem_printf("held by %s", submission->owner) : NULL;
    set_reason_text(message, held != NULL ? "HELD" : "QUEUED",
                    held != NULL ? held : "waiting for its turn");
    free(held);
    return message;
}

status_t jobs_create(struct coordinator *c, const struct job_submission *submission,
                     struct job **out)
{
    const job_spec *spec = submission->spec;
    if (c->job_count >= c->options.limits.jobs_active)
        return status_new(STATUS_RESOURCE_EXHAUSTED,
                          "%d jobs are queued or running already, which is the limit",
                          c->job_count);
    TRY(check_owner(c, submission->owner));
    char *made = NULL;
    if (submission->id[0] == '\0') TRY(store_next_id(c->store, spec->name, &made));
    job_message *message = make_message(submission, made != NULL ? made : submission->id);
    free(made);

    job_event event;
    Fsdpd__V1__StateChange change;
    state_event(message, submission->owner, &event, &change);
    status_t status = dependencies_find(c, message);
    if (status == NULL) status = store_insert_job(c->store, message, &event);
    if (status != NULL) {
        message_free(message);
        return status;
    }
    struct job *job = add_record(c, message);
    job->sequence = 1;
    deadlines_begin(job);
    queue_changed(c);
    log_event(LOG_INFO, "job_queued", "job=%s owner=%s workers=%u device=%s priority=%d",
              message->id, message->owner, spec->workers, spec->device, message->priority);
    logs_note(c, message->id, 0, "INFO", "job_state state=QUEUED reason=QUEUED");
    *out = job;
    return NULL;
}

/* QUEUED → STARTING → RUNNING, from these two back to QUEUED or to PAUSED, from there to QUEUED,
 * and from each of them to an end. */
static bool change_is_allowed(int from, int to)
{
    if (job_state_is_over(from)) return false;
    if (job_state_is_over(to)) return true;
    return (from == JOB_QUEUED && to == JOB_STARTING) ||
           (from == JOB_STARTING && to == JOB_RUNNING) ||
           (job_is_in_attempt(from) && (to == JOB_QUEUED || to == JOB_PAUSED)) ||
           (from == JOB_PAUSED && to == JOB_QUEUED);
}

/* Nobody waits any more for what the attempt would have done. */
static void leave_attempt(struct job *job)
{
    attempt_end(job);
    pulls_job_over(job);
    traces_job_over(job);
    rewrap_job_over(job);
    checkpoints_attempt_over(job);
}

void job_over(struct job *job)
{
    struct coordinator *c = job->c;
    c->jobs_finished[job->message->state - JOB_SUCCEEDED]++;
    leave_attempt(job);
    watch_over(job);
    logs_job_over(c, job->message->id);
    for (int i = 0; i < c->job_count; i++)
        if (c->jobs[i] == job) LIST_REMOVE(c->jobs, c->job_count, i);
    tdelete(job, &c->jobs_by_id, compare_ids);
    queue_changed(c);
    forget_hurry(c);
    sweeps_job_over(c, job->message);
    dependencies_job_over(c, job->message);
    job_free(job);
}

/* The user whose wish it is. */
static const char *actor(const struct job *job)
{
    return job->c->actor != NULL ? job->c->actor : "";
}

static void log_change(const struct job *job, const char *code, const char *text)
{
    const job_message *message = job->message;
    int state = (int)message->state;
    char *quoted = log_quote(text);
    log_event(state == JOB_FAILED ? LOG_WARNING : LOG_INFO, "job_state",
              "job=%s state=%s attempt=%u step=%llu by=%s reason=%s message=%s", message->id,
              job_state_name(state), message->attempt, (unsigned long long)message->step,
              actor(job)[0] != '\0' ? actor(job) : "fsdpd", code, quoted);
    char *line =
        mem_printf("job_state state=%s reason=%s message=%s", job_state_name(state), code, quoted);
    logs_note(job->c, message->id, message->attempt, state == JOB_FAILED ? "WARNING" : "INFO",
              line);
    free(line);
    free(quoted);
}

/* The time is set, the reason replaced, and everybody told. */
static void enter(struct job *job, int state, const char *code, const char *text, bool durable)
{
    job_message *message = job->message;
    if (state != (int)message->state) {
        queue_changed(job->c);
        message->state_ms = clock_wall_ms();
        if (state == JOB_RUNNING) message->started_ms = message->state_ms;
        if (job_state_is_over(state)) message->finished_ms = message->state_ms;
        message->state = (Fsdpd__V1__JobState)state;
    }
    set_reason_text(message, code, text);
    job_event event;
    Fsdpd__V1__StateChange change;
    state_event(message, actor(job), &event, &change);
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
    else if (job_state_is_over(state)) attempt_end(job); /* the rest when the store takes it */
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

void job_tell(struct job *job, const char *code, const char *format, ...)
{
    char text[REASON_MAX];
    va_list args;
    va_start(args, format);
    format_reason(text, format, args);
    va_end(args);
    Fsdpd__V1__Reason reason = FSDPD__V1__REASON__INIT;
    reason.code = (char *)code;
    reason.message = text;
    job_event event;
    Fsdpd__V1__StateChange change;
    state_event(job->message, actor(job), &event, &change);
    change.reason = &reason;
    job_record(job, &event, true);
    log_change(job, code, text);
}

/* They stay with the job until there are newer ones. */
static void take_op_times(Fsdpd__V1__Metrics *from, Fsdpd__V1__Metrics *to)
{
    to->op_times = from->op_times;
    to->n_op_times = from->n_op_times;
    to->op_times_step = from->op_times_step;
    from->op_times = NULL;
    from->n_op_times = 0;
}

/* The job's latest figures: what this report does not have stays as it was. */
static void merge_metrics(job_message *message, const Fsdpd__V1__Metrics *report)
{
    Fsdpd__V1__Metrics *merged = message_copy(report);
    const Fsdpd__V1__Metrics *old = message->metrics;
    if (old != NULL) {
        if (merged->train_loss == 0) merged->train_loss = old->train_loss;
        if (merged->epoch_step == 0) merged->epoch_step = old->epoch_step;
        if (!merged->evaluated) {
            merged->evaluated = old->evaluated;
            merged->test_loss = old->test_loss;
            merged->accuracy = old->accuracy;
        }
        if (!merged->validated) {
            merged->validated = old->validated;
            merged->val_loss = old->val_loss;
            merged->val_step = old->val_step;
        }
        if (merged->memory_peak_bytes < old->memory_peak_bytes)
            merged->memory_peak_bytes = old->memory_peak_bytes;
        if (merged->op_times_step == 0) take_op_times(message->metrics, merged);
    }
    message_free(message->metrics);
    message->metrics = merged;
}

/* The latest figures become those of the last report up to `step`. */
static void replace_metrics(struct job *job, uint64_t step)
{
    static const Fsdpd__V1__Metrics none = FSDPD__V1__METRICS__INIT;
    job_event *event = NULL;
    status_t status =
        step > 0 ? store_find_metrics(job->c->store, job->message->id, step, &event) : NULL;
    log_status(LOG_ERROR, "store_failed", status); /* then there are none until the next report */
    merge_metrics(job->message, event != NULL ? event->metrics : &none);
    message_free(event);
}

void job_go_back(struct job *job, uint64_t step)
{
    Fsdpd__V1__Metrics *metrics = job->message->metrics;
    job->message->step = step;
    if (metrics == NULL) return;
    /* When an epoch ended, an earlier fsdpd did not say: not after the last step it reported. */
    if ((metrics->epoch_step > 0 ? metrics->epoch_step : metrics->step) > step) {
        metrics->evaluated = false;
        metrics->train_loss = metrics->test_loss = metrics->accuracy = 0;
        metrics->epoch_step = 0;
    }
    if (metrics->val_step > step) {
        metrics->validated = false;
        metrics->val_loss = 0;
        metrics->val_step = 0;
    }
    if (metrics->step > step) replace_metrics(job, step);
}

/*
 * In batches, so that it costs little per event. If the store refuses, it has more metrics than it
 * should, and nobody is worse off: the job goes on, nothing is lost, and the next batch tries
 * again. So an operator is told, in the log, and nobody else; and no more often than once a batch.
 */
static void thin_metrics(struct job *job)
{
    uint64_t keep = (uint64_t)job->c->options.limits.metrics_kept, batch = keep / 8 + 1;
    if (job->metrics_events <= keep + batch || job->metrics_events < job->thin_from) return;
    if (job->unsaved) return; /* it takes nothing, which was logged, and tries that again first */
    status_t status =
        store_thin_metrics(job->c->store, job->message->id, keep, &job->metrics_events);
    job->thin_from = job->metrics_events + batch;
    if (status != NULL)
        log_status(LOG_ERROR, "store_failed",
                   status_wrap(status, "thinning the metrics of job %s", job->message->id));
}

void job_add_metrics(struct job *job, const Fsdpd__V1__Metrics *metrics)
{
    merge_metrics(job->message, metrics);
    metrics_add(&job->totals, job->message, metrics);
    if (metrics->step > job->message->step) job->message->step = metrics->step;
    job_event event = FSDPD__V1__JOB_EVENT__INIT;
    event.event_case = FSDPD__V1__JOB_EVENT__EVENT_METRICS;
    event.metrics = (Fsdpd__V1__Metrics *)metrics;
    job_record(job, &event, false);
    job->metrics_events++;
    thin_metrics(job);
}

void job_add_dropped(struct job *job, uint64_t metrics)
{
    job->sequence += metrics; /* a gap says how many are missing; see watch.c */
    log_event(LOG_WARNING, "metrics_dropped", "job=%s count=%llu", job->message->id,
              (unsigned long long)metrics);
}

void job_add_epoch(struct job *job, const Fsdpd__V1__EpochEnd *epoch)
{
    Fsdpd__V1__Metrics report = FSDPD__V1__METRICS__INIT;
    if (job->message->metrics != NULL) report = *job->message->metrics;
    report.train_loss = epoch->train_loss;
    report.epoch_step = epoch->step;
    if (epoch->evaluated) {
        report.evaluated = true;
        report.test_loss = epoch->test_loss;
        report.accuracy = epoch->accuracy;
    }
    merge_metrics(job->message, &report);
    job_event event = FSDPD__V1__JOB_EVENT__INIT;
    event.event_case = FSDPD__V1__JOB_EVENT__EVENT_EPOCH;
    event.epoch = (Fsdpd__V1__EpochEnd *)epoch;
    job_record(job, &event, true);
}

void job_add_validation(struct job *job, const Fsdpd__V1__Validation *validation)
{
    Fsdpd__V1__Metrics report = FSDPD__V1__METRICS__INIT;
    if (job->message->metrics != NULL) report = *job->message->metrics;
    report.validated = true;
    report.val_loss = validation->loss;
    report.val_step = validation->step;
    merge_metrics(job->message, &report);
    job_event event = FSDPD__V1__JOB_EVENT__INIT;
    event.event_case = FSDPD__V1__JOB_EVENT__EVENT_VALIDATION;
    event.validation = (Fsdpd__V1__Validation *)validation;
    job_record(job, &event, true);
}

void job_add_checkpoint(struct job *job, const Fsdpd__V1__CheckpointReport *report)
{
    if (report->code == STATUS_OK) {
        job->totals.checkpoints++;
        job->totals.checkpoint_seconds += report->checkpoint->seconds;
    }
    Fsdpd__V1__CheckpointEvent body = FSDPD__V1__CHECKPOINT_EVENT__INIT;
    body.checkpoint = report->checkpoint;
    body.code = report->code;
    body.message = report->message;
    body.n_removed_steps = report->n_removed_steps;
    body.removed_steps = report->removed_steps;
    job_event event = FSDPD__V1__JOB_EVENT__INIT;
    event.event_case = FSDPD__V1__JOB_EVENT__EVENT_CHECKPOINT;
    event.checkpoint = &body;
    job_record(job, &event, true);
}

void job_set_wrap(struct job *job, const Fsdpd__V1__WrapSpec *wrap, const Fsdpd__V1__Plan *plan,
                  const Fsdpd__V1__WrapReport *report)
{
    job_message *message = job->message;
    message_free(message->spec->fsdp->wrap);
    message->spec->fsdp->wrap = message_copy(wrap);
    message_free(message->plan);
    message->plan = message_copy(plan);
    job->replanned = true;
    Fsdpd__V1__WrapChange change = FSDPD__V1__WRAP_CHANGE__INIT;
    change.step = report->step;
    change.wrap = message->spec->fsdp->wrap;
    change.n_units = message->plan->n_units;
    change.units = message->plan->units;
    change.peak_bytes = report->peak_bytes;
    change.seconds = report->seconds;
    job_event event = FSDPD__V1__JOB_EVENT__INIT;
    event.event_case = FSDPD__V1__JOB_EVENT__EVENT_WRAP;
    event.wrap = &change;
    job_record(job, &event, true);
}

static status_t recover_one(void *user, const job_message *message)
{
    struct coordinator *c = user;
    add_record(c, message_copy(message));
    return NULL;
}

status_t jobs_recover(struct coordinator *c)
{
    struct store_job_query query = {.active_only = true, .visit = recover_one, .user = c};
    TRY(store_each_job(c->store, &query));
    for (int i = c->job_count - 1; i >= 0; i--) {
        struct job *job = c->jobs[i];
        TRY(store_count_events(c->store, job->message->id, &job->sequence, &job->metrics_events));
        deadlines_resolve(job->message);
        deadlines_begin(job);
        TRY(retry_recover(job));
        if (!job_is_in_attempt(job->message->state)) continue;
        char *path = coordinator_state_dict_path(c, job->message->id);
        char *half = mem_printf("%s.tmp", path); /* an upload that was cut off */
        unlink(half);
        free(half);
        free(path);
        TRY(store_get_report(c->store, job->message->id, &job->report));
        TRY(store_get_stop(c->store, job->message->id, &job->stop));
        job->report_kept = job->report;
        if (reattach_job(job)) continue;
        retry_attempt_failed(job, true, "COORDINATOR_RESTARTED",
                             "fsdpd ended while the job was %s, and its workers with it",
                             job_state_name(job->message->state));
    }
    return dependencies_recover(c);
}

void jobs_free_all(struct coordinator *c)
{
    for (int i = 0; i < c->job_count; i++) {
        tdelete(c->jobs[i], &c->jobs_by_id, compare_ids);
        job_free(c->jobs[i]);
    }
    free(c->jobs);
    c->jobs = NULL;
    c->job_count = c->job_capacity = 0;
}

void job_view(const job_message *message, job_message *view)
{
    *view = *message;
    if (message->plan != NULL) {
        view->n_units = message->plan->n_units;
        view->units = message->plan->units;
    }
    if (message->state == FSDPD__V1__JOB_STATE__RUNNING) view->has_state_dict = true;
}

void job_reply(struct rpc_call *call, const job_message *message)
{
    job_message view;
    job_view(message, &view);
    rpc_call_reply(call, &view.base);
}
