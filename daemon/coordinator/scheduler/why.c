/* The paragraph of `fsdpctl why`; see why.h. why_describe is pure, why_explain gathers its facts.
 */
#include "coordinator/scheduler/why.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "coordinator/jobs/owners.h"
#include "coordinator/jobs/parts.h"
#include "coordinator/jobs/retry.h"
#include "coordinator/scheduler/queue.h"
#include "coordinator/workers/workers.h"

enum { NAMED_MAX = 3 }; /* jobs that a list names; the others are counted */

static const char *plural(int count)
{
    return count == 1 ? "" : "s";
}

static void add_job(const struct why_job *job, struct buf *out)
{
    buf_printf(out, "%s%s%s", job->id, job->owner[0] != '\0' ? " of " : "", job->owner);
}

/* "a of alice, b of bob and 4 more": each with what `describe` adds. */
static void add_jobs(const struct why_jobs *jobs,
                     void (*describe)(const struct why_job *job, struct buf *out), struct buf *out)
{
    int named = jobs->count <= NAMED_MAX ? jobs->count : NAMED_MAX, rest = jobs->count - named;
    for (int i = 0; i < named; i++) {
        bool last = i + 1 == named && rest == 0;
        buf_add_text(out, i == 0 ? "" : last ? " and " : ", ");
        add_job(&jobs->items[i], out);
        describe(&jobs->items[i], out);
    }
    if (rest > 0) buf_printf(out, " and %d more job%s", rest, plural(rest));
}

static void add_workers(const struct why_job *job, struct buf *out)
{
    if (job->workers > 0) buf_printf(out, " (%d)", job->workers);
    else buf_printf(out, " (%d, idle, with a part of its state)", job->reserved);
}

static void add_priority(const struct why_job *job, struct buf *out)
{
    if (job->priority != 0) buf_printf(out, " (priority %d)", job->priority);
}

static void add_state(const struct why_job *job, struct buf *out)
{
    if (job->state != 0) buf_printf(out, " (%s)", job_state_name(job->state));
}

/* ---- jobs in the queue ---- */

static void add_fleet(const struct why *why, struct buf *out)
{
    const struct standing *standing = &why->standing;
    const char *kind = why->job->spec->device;
    if (why->holders.count == 0) return;
    buf_printf(out, " Of the %d %s worker%s that %s attached, these jobs have some: ",
               standing->attached, kind, plural(standing->attached),
               standing->attached == 1 ? "is" : "are");
    add_jobs(&why->holders, add_workers, out);
    buf_add_char(out, '.');
}

static void explain_held(const struct why *why, struct buf *out)
{
    const Fsdpd__V1__ArrayPlace *place = why->job->spec->of_array;
    if (why->job->held_by[0] == '\0' && place != NULL) {
        buf_printf(out, " It is %s: it starts only after fsdpctl release %s.",
                   why->job->reason->message, place->array);
        return;
    }
    buf_printf(out, " %s holds it: it starts only after fsdpctl release %s.", why->job->held_by,
               why->job->id);
}

static void explain_awaited(const struct why *why, struct buf *out)
{
    buf_add_text(out, " It has no place in the queue yet, as it waits for ");
    add_jobs(&why->awaited, add_state, out);
    buf_add_text(out, ": jobs of after must succeed, jobs of after_any only end.");
}

static void explain_workers(const struct why *why, struct buf *out)
{
    if (why->standing.position == 0) {
        buf_printf(out, " %s.", why->job->reason->message);
        return;
    }
    buf_printf(out,
               " It waits for workers: %s. Until then it is passed over, and delays no other "
               "job.",
               why->job->reason->message);
    add_fleet(why, out);
}

static void add_usage(double usage, struct buf *out)
{
    buf_printf(out, "%.2f worker hours", usage / 3600e3);
}

/* What orders jobs of equal priority: the usage of its user, and of those who come before. */
static void explain_share(const struct why *why, struct buf *out)
{
    const char *named[NAMED_MAX], *owner = why->job->owner;
    int count = 0;
    if (why->half_life_ms <= 0 || owner[0] == '\0') return;
    buf_printf(out, " By fair share (half-life %.3g h), jobs of %s have used ",
               why->half_life_ms / 3600e3, owner);
    add_usage(why->usage, out);
    for (int i = 0; i < why->before.count && count < NAMED_MAX; i++) {
        const struct why_job *job = &why->before.items[i];
        bool shown = job->priority != why->job->priority || strcmp(job->owner, owner) == 0;
        for (int n = 0; n < count; n++) shown |= strcmp(named[n], job->owner) == 0;
        if (shown || job->owner[0] == '\0') continue;
        buf_printf(out, "%s%s ", count == 0 ? ", those of " : ", of ", job->owner);
        add_usage(job->usage, out);
        named[count++] = job->owner;
    }
    buf_add_char(out, '.');
}

static void explain_turn(const struct why *why, struct buf *out)
{
    const struct standing *standing = &why->standing;
    const char *kind = why->job->spec->device;
    char text[16];
    if (standing->position == 0) {
        buf_printf(out, " %s.", why->job->reason->message);
        return;
    }
    buf_printf(out, " It is the %s of the jobs that wait for %s workers",
               queue_ordinal(standing->position, text), kind);
    if (why->before.count > 0) {
        buf_add_text(out, ", after ");
        add_jobs(&why->before, add_priority, out);
    }
    buf_printf(out, ". It needs %d worker%s at once", standing->workers, plural(standing->workers));
    if (standing->behind) {
        buf_add_text(out, ", and starts after the jobs before it, even if it would fit sooner.");
    } else {
        buf_printf(out, ", and %d %s idle for it", standing->idle,
                   standing->idle == 1 ? "is" : "are");
        buf_add_text(out, standing->idle > 0 ? ": those are kept until it has enough." : ".");
    }
    add_fleet(why, out);
    if (standing->drained > 0)
        buf_printf(out, " %d more %s drained.", standing->drained,
                   standing->drained == 1 ? "is" : "are");
    explain_share(why, out);
}

static void explain_array_limit(const struct why *why, struct buf *out)
{
    buf_printf(out,
               " It starts when a job of its array is over, whatever workers are idle: %s "
               "(array.at_once). It delays no other job.",
               why->job->reason->message);
}

static void explain_quota(const struct why *why, struct buf *out)
{
    buf_printf(out,
               " It %s: it starts when enough of these jobs are over, whatever workers are idle. "
               "It delays no other job.",
               why->job->reason->message);
}

static void explain_preempted(const struct why *why, struct buf *out)
{
    buf_add_text(out, " It was preempted for a job of higher priority, and continues from its "
                      "last checkpoint.");
    explain_turn(why, out);
}

static void explain_time(const struct why *why, struct buf *out)
{
    buf_printf(out, " It has no place in the queue yet: it %s (start.at).",
               why->job->reason->message);
}

/* Of an array's record, which has no workers and no place. */
static void explain_array(const job_message *job, struct buf *out)
{
    buf_printf(out, " It is an array, and is over when all of its jobs are: %s.",
               job->reason->message);
    if (job->held_by[0] != '\0')
        buf_printf(out, " While %s holds it, none of them starts: fsdpctl release %s.",
                   job->held_by, job->id);
}

/* What a queued job waits for, by the code of its reason. Each new reason gets a row, and a
 * sentence that names who can do something about it. Of other codes the reason is the sentence. */
static const struct {
    const char *code;
    void (*explain)(const struct why *why, struct buf *out);
} reasons[] = {
    {"HELD", explain_held},
    {"WAITING_FOR_JOB", explain_awaited},
    {"WAITING_FOR_WORKERS", explain_workers},
    {"WAITING_FOR_TIME", explain_time},
    {"QUOTA", explain_quota},
    {"PREEMPTED", explain_preempted},
    {"ARRAY_LIMIT", explain_array_limit},
    {"QUEUED", explain_turn},
};

static void explain_queued(const struct why *why, struct buf *out)
{
    const Fsdpd__V1__Reason *reason = why->job->reason;
    if (why->draining) {
        buf_add_text(out, " fsdpd shuts down, and starts nothing until it is back.");
        return;
    }
    if (why->unsaved) {
        buf_add_text(out, " fsdpd could not write its last change to the store, whose disk may be "
                          "full: it starts once that succeeds.");
        return;
    }
    if (why->retry_seconds > 0) {
        buf_printf(out, " %s. It can start again in %.0f s.", reason->message, why->retry_seconds);
        return;
    }
    if (why->job->spec->array != NULL) {
        explain_array(why->job, out);
        return;
    }
    for (size_t i = 0; i < COUNT_OF(reasons); i++)
        if (strcmp(reasons[i].code, reason->code) == 0) {
            reasons[i].explain(why, out);
            return;
        }
    buf_printf(out, " %s.", reason->message);
}

/* ---- all jobs ---- */

static void explain_attempt(const job_message *job, struct buf *out)
{
    int workers = (int)job->n_workers;
    buf_printf(out, " Attempt %u has %d worker%s", job->attempt, workers, plural(workers));
    if (workers > 0) buf_printf(out, ", the first of them %s", job->workers[0]);
    buf_printf(out, "; %llu of %llu steps are done.", (unsigned long long)job->step,
               (unsigned long long)job->steps);
    if (strcmp(job->reason->code, job_state_name((int)job->state)) != 0)
        buf_printf(out, " %s.", job->reason->message);
}

static void explain_rest(const job_message *job, struct buf *out)
{
    int state = (int)job->state;
    bool failed = state == JOB_FAILED || state == JOB_CANCELLED;
    if (state == JOB_PAUSED)
        buf_printf(out,
                   " %s. It keeps %llu of %llu steps in its checkpoint, has no workers, and "
                   "waits for fsdpctl resume %s.",
                   job->reason->message, (unsigned long long)job->step,
                   (unsigned long long)job->steps, job->id);
    else if (job->spec != NULL && job->spec->array != NULL)
        buf_printf(out, " It is an array, whose jobs are over: %s.", job->reason->message);
    else if (job->attempt == 0) buf_printf(out, " It never started: %s.", job->reason->message);
    else
        buf_printf(out, " It ended in attempt %u after %llu of %llu steps%s%s.", job->attempt,
                   (unsigned long long)job->step, (unsigned long long)job->steps,
                   failed ? ": " : "", failed ? job->reason->message : "");
}

void why_describe(const struct why *why, struct buf *out)
{
    const job_message *job = why->job;
    int state = (int)job->state;
    buf_add_text(out, job->id);
    if (job->owner[0] != '\0') buf_printf(out, " of %s", job->owner);
    buf_printf(out, " is %s", job_state_name(state));
    if (state == JOB_QUEUED) buf_printf(out, " with priority %d", job->priority);
    buf_add_char(out, '.');
    if (state == JOB_QUEUED) explain_queued(why, out);
    else if (state == JOB_STARTING || state == JOB_RUNNING) explain_attempt(job, out);
    else explain_rest(job, out);
}

/* ---- gathering ---- */

static struct why_job *add(struct why_jobs *jobs, const char *id)
{
    for (int i = 0; i < jobs->count; i++)
        if (strcmp(jobs->items[i].id, id) == 0) return &jobs->items[i];
    MEM_GROW(jobs->items, jobs->count, jobs->capacity);
    struct why_job *job = &jobs->items[jobs->count++];
    *job = (struct why_job){.id = id, .owner = ""};
    return job;
}

static struct why_job *add_known(struct why_jobs *jobs, const job_message *message)
{
    struct why_job *job = add(jobs, message->id);
    job->owner = message->owner;
    job->priority = message->priority;
    job->state = (int)message->state;
    return job;
}

/* A worker keeps its job's name until it has left it: that job may be over. */
static void add_holder(struct why *why, struct coordinator *c, const struct worker *worker)
{
    const struct job *reserver = parts_reserver(worker);
    const struct job *job = worker->job != NULL ? jobs_find(c, worker->job) : reserver;
    if (worker->job == NULL && reserver == NULL) return;
    struct why_job *holder =
        job != NULL ? add_known(&why->holders, job->message) : add(&why->holders, worker->job);
    if (worker->job != NULL) holder->workers++;
    else holder->reserved++;
}

static int compare_places(const void *a, const void *b)
{
    const struct job *first = *(struct job *const *)a, *second = *(struct job *const *)b;
    return first->standing.position - second->standing.position;
}

static void gather_before(struct why *why, const struct job *own)
{
    struct coordinator *c = own->c;
    AUTO_FREE struct job **found = mem_alloc_array((size_t)c->job_count + 1, sizeof(struct job *));
    size_t count = 0;
    for (int i = 0; i < c->job_count; i++) {
        struct job *job = c->jobs[i];
        if (job == own || job->over) continue;
        queue_explain(job);
        bool before = job->message->queue_position > 0 &&
                      job->standing.position < own->standing.position &&
                      strcmp(job->message->spec->device, own->message->spec->device) == 0;
        if (before) found[count++] = job;
    }
    qsort(found, count, sizeof *found, compare_places);
    for (size_t i = 0; i < count; i++)
        add_known(&why->before, found[i]->message)->usage = found[i]->owner->usage;
}

static void gather(struct why *why, const struct job *job)
{
    struct coordinator *c = job->c;
    const job_message *message = job->message;
    for (int i = 0; i < c->worker_count; i++)
        if (worker_is_kind(c->workers[i]->device, message->spec->device))
            add_holder(why, c, c->workers[i]);
    for (size_t i = 0; i < message->n_waits_for; i++) {
        const struct job *other = jobs_find(c, message->waits_for[i]);
        if (other != NULL) add_known(&why->awaited, other->message);
        else add(&why->awaited, message->waits_for[i]);
    }
    if (message->queue_position > 0) gather_before(why, job);
}

void why_explain(struct job *job, struct buf *out)
{
    queue_explain(job);
    bool pauses = retry_is_waiting(job);
    struct why why = {.job = job->message,
                      .standing =
                          job->message->queue_position > 0 ? job->standing : (struct standing){0},
                      .half_life_ms = (double)job->c->options.limits.fair_share_ms,
                      .usage = job->owner->usage,
                      .retry_seconds =
                          pauses ? (double)(job->retry_at - coordinator_now()) / 1000.0 : 0,
                      .unsaved = job->unsaved,
                      .draining = job->c->draining};
    if (job->message->state == FSDPD__V1__JOB_STATE__JOB_STATE_QUEUED) gather(&why, job);
    why_describe(&why, out);
    free(why.holders.items);
    free(why.before.items);
    free(why.awaited.items);
}
