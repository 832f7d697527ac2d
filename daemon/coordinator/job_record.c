/*
 * Jobs and the store; see job_record.h. The memory copy leads: if the store refuses a change (a
 * full disk), the change stands, is logged, and is written, with the events that were refused, at
 * every tick until that succeeds.
 */
#include "coordinator/job_record.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "coordinator/attempt.h"
#include "coordinator/tensorboard.h"
#include "coordinator/watch.h"

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

/* The store refused it: kept in memory. Of very many, every second one of the metrics goes. */
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

void job_sync_soon(struct job *job)
{
    if (job->sync_at == 0) job->sync_at = coordinator_now() + SYNC_MS;
}

static struct store_change change_of(const struct job *job, const job_event **events, int count,
                                     bool durable)
{
    static const struct store_stop none;
    bool runs = job_is_in_attempt(job->message->state);
    return (struct store_change){.job = job->message,
                                 .events = events,
                                 .event_count = count,
                                 .durable = durable || job->replanned || job->unsaved,
                                 .replanned = job->replanned,
                                 .report = (int64_t)job->report,
                                 .retries = job->retried ? &job->retries : NULL,
                                 .stop = runs ? &job->stop : &none};
}

/* The store has it all. */
static void note_saved(struct job *job, bool durable)
{
    job->replanned = job->retried = job->unsaved = false;
    job_forget_backlog(job);
    if (!durable) {
        job_sync_soon(job);
        return;
    }
    job->sync_at = 0;
    if (job->report_kept == job->report) return;
    job->report_kept = job->report;
    attempt_acknowledge(job);
}

/* Writes the job, what the store refused before, and the event unless it is NULL. */
static status_t save(struct job *job, const job_event *event, bool durable)
{
    int count = job->backlog_count;
    const job_event **events = mem_alloc_array((size_t)count + 1, sizeof *events);
    for (int i = 0; i < count; i++) events[i] = job->backlog[i];
    if (event != NULL) events[count++] = event;
    const struct store_change change = change_of(job, events, count, durable);
    status_t status = store_apply(job->c->store, &change);
    free(events);
    if (status == NULL) note_saved(job, change.durable);
    return status;
}

void job_record(struct job *job, job_event *event, bool durable)
{
    event->sequence = ++job->sequence;
    event->time_ms = clock_wall_ms();
    event->steps = job->message->steps;
    event->attempt = job->message->attempt;
    /* While the store refuses, what is not urgent waits for the tick that tries again. */
    status_t status = job->unsaved && !durable ? NULL : save(job, event, durable);
    if (status != NULL && !job->unsaved)
        log_status(LOG_ERROR, "store_failed",
                   status_wrap(status_copy(status), "job %s", job->message->id));
    if (status != NULL || job->unsaved) {
        job->unsaved = true;
        add_to_backlog(job, event);
    }
    status_free(status);
    watch_tell(job, event);
    tensorboard_record(job, event);
}

static void save_again(struct job *job)
{
    uint64_t last = job->sequence;
    status_t status = save(job, NULL, true);
    if (status != NULL) {
        status_free(status); /* was logged when it began */
        return;
    }
    log_event(LOG_INFO, "store_recovered", "job=%s sequence=%llu", job->message->id,
              (unsigned long long)last);
    watch_wake(job);
    if (job->ranks == NULL) attempt_release(job); /* what it has reported is kept now */
    if (job_state_is_over(job->message->state)) job_over(job);
}

static void sync_reports(struct job *job)
{
    status_t status = save(job, NULL, true);
    if (status == NULL) return;
    job->unsaved = true;
    log_status(LOG_ERROR, "store_failed", status_wrap(status, "job %s", job->message->id));
}

/* Reports are on the disk within a second: before that, their rank keeps them. Those of all jobs go
 * there together, since one commit costs as much as a hundred. */
static void sync_all(struct coordinator *c)
{
    struct job **jobs = mem_alloc_array((size_t)c->job_count + 1, sizeof(struct job *));
    struct store_change *changes = mem_alloc_array((size_t)c->job_count + 1, sizeof *changes);
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
        else sync_reports(jobs[i]); /* one that the store refuses is not to keep the others */
    status_free(status);
    free(changes);
    free(jobs);
}

void jobs_save_again(struct coordinator *c)
{
    int64_t now = coordinator_now();
    bool due = false;
    for (int i = c->job_count - 1; i >= 0; i--) {
        struct job *job = c->jobs[i];
        if (job->unsaved) save_again(job);
        else due = due || (job->sync_at != 0 && now >= job->sync_at);
    }
    if (due) sync_all(c);
}

void jobs_sync(struct coordinator *c)
{
    for (int i = c->job_count - 1; i >= 0; i--)
        if (c->jobs[i]->unsaved) save_again(c->jobs[i]);
    sync_all(c);
}
