/*
 * Jobs and the store; see job_record.h. The copy in memory leads: if the store refuses a change
 * (because the disk is full, say), the change stands, is logged, and is written at every tick, with
 * the refused events, until that succeeds. Durable changes may use the store's reserve (internal.h).
 */
#include "coordinator/jobs/job_record.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "coordinator/core/internal.h"
#include "coordinator/jobs/attempt.h"
#include "coordinator/jobs/tensorboard.h"

enum { BACKLOG_MAX = 8192, SYNC_MS = 1000 };

bool job_is_in_attempt(int state)
{
    return state == JOB_STARTING || state == JOB_RUNNING;
}

void job_forget_backlog(struct job *job)
{
    for (int i = 0; i < job->backlog_count; i++) message_free(job->backlog[i]);
    job->backlog_count = 0;
}

/* Keeps an event that the store refused. If there are too many, drops every second metrics
 * event. */
static void add_to_backlog(struct job *job, const job_event *event)
{
    MEM_GROW(job->backlog, job->backlog_count, job->backlog_capacity);
    job->backlog[job->backlog_count++] = message_copy(event);
    if (job->backlog_count <= BACKLOG_MAX) return;
    int kept = 0, seen = 0;
    for (int i = 0; i < job->backlog_count; i++) {
        bool metrics = job->backlog[i]->event_case == FSDPD__V1__JOB_EVENT__EVENT_METRICS;
        if (metrics && seen++ % 2 == 0) message_free(job->backlog[i]);
        else job->backlog[kept++] = job->backlog[i];
    }
    job->backlog_count = kept;
}

Fsdpd__V1__Chosen *job_choose(struct job *job)
{
    job_message *message = job->message;
    job->settings_changed = true;
    if (message->chosen == NULL)
        message->chosen = MESSAGE_NEW(message->chosen, fsdpd__v1__chosen__init);
    return message->chosen;
}

void job_set_plan(struct job *job, const Fsdpd__V1__Chosen *chosen, const Fsdpd__V1__Plan *plan)
{
    job_message *message = job->message;
    uint32_t workers = message->chosen != NULL ? message->chosen->workers : 0;
    message_free(message->chosen);
    message->chosen = chosen != NULL ? message_copy(chosen) : NULL;
    message_free(message->plan);
    message->plan = message_copy(plan);
    job->settings_changed = true;
    if (workers > 0) job_choose(job)->workers = workers;
}

void job_sync_soon(struct job *job)
{
    if (job->sync_at == 0) job->sync_at = coordinator_now() + SYNC_MS;
}

static struct store_change change_of(const struct job *job, const job_event **events, int count,
                                     bool durable)
{
    const struct attempt *attempt = job->attempt;
    static const struct store_stop none;
    bool runs = job_is_in_attempt(job->message->state);
    return (struct store_change){.job = job->message,
                                 .events = events,
                                 .event_count = count,
                                 .durable = durable || job->settings_changed || job->unsaved,
                                 .settings_changed = job->settings_changed,
                                 .report = attempt != NULL ? (int64_t)attempt->report : -1,
                                 .retries = job->retried ? &job->retries : NULL,
                                 .stop = runs && attempt != NULL ? &attempt->stop : &none};
}

/* The store has every change. */
static void note_saved(struct job *job, bool durable)
{
    struct attempt *attempt = job->attempt;
    job->settings_changed = job->retried = job->unsaved = false;
    job_forget_backlog(job);
    if (!durable) {
        job_sync_soon(job);
        return;
    }
    job->sync_at = 0;
    if (attempt == NULL || attempt->report_kept == attempt->report) return;
    attempt->report_kept = attempt->report;
    attempt_acknowledge(job);
}

/* Writes the job, the events that the store refused earlier, and `event` unless it is NULL. */
static status_t save(struct job *job, const job_event *event, bool durable)
{
    int count = job->backlog_count;
    AUTO_FREE const job_event **events = mem_alloc_array((size_t)count + 1, sizeof *events);
    for (int i = 0; i < count; i++) events[i] = job->backlog[i];
    if (event != NULL) events[count++] = event;
    const struct store_change change = change_of(job, events, count, durable);
    status_t status = store_apply(job->c->store, &change);
    if (status == NULL) note_saved(job, change.durable);
    return status;
}

void job_record(struct job *job, job_event *event, bool durable)
{
    MUST_OWN(&job->c->owner);
    Google__Protobuf__Timestamp now;
    event->sequence = ++job->sequence;
    event->time = message_time(&now, clock_wall_ms());
    event->steps = job->message->steps;
    event->attempt = job->message->attempt;
    /* While the store refuses, changes that are not urgent wait for the tick that retries; urgent
     * changes may use the store's reserve. */
    if (!durable && reserve_is_begun(job->c)) job->unsaved = true;
    status_t status = job->unsaved && !durable ? NULL : save(job, event, durable);
    while (status != NULL && durable && reserve_give_up(job->c, status)) {
        status_free(status);
        status = save(job, event, durable);
    }
    if (status != NULL && !job->unsaved)
        log_status(LOG_ERROR, "store_failed",
                   status_wrap(status_copy(status), "job %s", job->message->id));
    if (status != NULL || job->unsaved) {
        job->unsaved = true;
        add_to_backlog(job, event);
    }
    status_free(status);
    job->c->clients->event(job, event);
    tensorboard_record(&job->tensorboard, job->c, job->message, event);
    event->time = NULL;
}

static void save_again(struct job *job)
{
    uint64_t last = job->sequence;
    status_t status = save(job, NULL, true);
    if (status != NULL) {
        status_free(status); /* logged when the store first refused */
        return;
    }
    log_event(LOG_INFO, "store_recovered", "job=%s sequence=%llu", job->message->id,
              (unsigned long long)last);
    job->c->clients->stored(job);
    if (job->attempt == NULL) attempt_release(job); /* its reports are stored now */
    if (job_state_is_over(job->message->state)) job_over(job);
}

static void sync_reports(struct job *job)
{
    status_t status = save(job, NULL, true);
    if (status == NULL) return;
    job->unsaved = true;
    log_status(LOG_ERROR, "store_failed", status_wrap(status, "job %s", job->message->id));
}

/* Reports are on disk within a second; until then, their rank keeps them. The reports of all jobs
 * are committed together, since committing one costs as much as committing a hundred. */
static void sync_all(struct coordinator *c)
{
    AUTO_FREE struct job **jobs = mem_alloc_array((size_t)c->job_count + 1, sizeof(struct job *));
    AUTO_FREE struct store_change *changes =
        mem_alloc_array((size_t)c->job_count + 1, sizeof *changes);
    int count = 0;
    for (int i = 0; i < c->job_count; i++) {
        struct job *job = c->jobs[i];
        if (job->sync_at == 0 || job->unsaved) continue;
        jobs[count] = job;
        changes[count++] = change_of(job, NULL, 0, true);
    }
    status_t status = count > 0 ? store_apply_all(c->store, changes, count) : NULL;
    for (int i = 0; i < count; i++)
        if (status == NULL) note_saved(jobs[i], true);
        else sync_reports(jobs[i]); /* one that the store refuses must not hold up the others */
    status_free(status);
}

void jobs_save_again(struct coordinator *c)
{
    int64_t now = coordinator_now();
    bool due = false;
    for (int i = 0; i < c->job_count; i++) {
        struct job *job = c->jobs[i];
        if (job->unsaved && !reserve_is_begun(c)) save_again(job);
        else due = due || (job->sync_at != 0 && now >= job->sync_at);
    }
    if (due) sync_all(c);
}

void jobs_sync(struct coordinator *c)
{
    for (int i = 0; i < c->job_count; i++)
        if (c->jobs[i]->unsaved) save_again(c->jobs[i]);
    sync_all(c);
}
