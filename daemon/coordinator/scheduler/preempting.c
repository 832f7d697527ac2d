/* Preemption; see preempting.h. On the loop's thread. */
#include "coordinator/scheduler/preempting.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "coordinator/jobs/attempt.h"
#include "coordinator/jobs/checkpoint_place.h"
#include "coordinator/jobs/elastic.h"
#include "coordinator/jobs/parts.h"
#include "coordinator/scheduler/placement.h"
#include "coordinator/scheduler/queue.h"
#include "spec/spec.h"

/* ---- pure ---- */

static int compare(const void *a, const void *b)
{
    const struct preempting_victim *first = a, *second = b;
    if (first->priority != second->priority) return first->priority < second->priority ? -1 : 1;
    return first->lost_ms < second->lost_ms ? -1 : first->lost_ms > second->lost_ms;
}

int preempting_choose(struct preempting_victim *victims, int count, int workers)
{
    int taken = 0, found = 0;
    qsort(victims, (size_t)count, sizeof *victims, compare);
    while (taken < count && found < workers) found += victims[taken++].workers;
    if (found < workers) return 0;
    for (int i = taken; i-- > 0;) {
        if (found - victims[i].workers < workers) continue;
        found -= victims[i].workers;
        struct preempting_victim spared = victims[i];
        taken--;
        memmove(&victims[i], &victims[i + 1], (size_t)(taken - i) * sizeof *victims);
        victims[taken] = spared;
    }
    return taken;
}

/* ---- the coordinator's jobs ---- */

bool preempting_is_same_kind(const struct job *job, const struct job *other)
{
    const char *kind = job->message->spec->device, *found = other->message->spec->device;
    size_t length = strcspn(kind, ":");
    return strncmp(kind, found, length) == 0 && strcspn(found, ":") == length;
}

/* A job whose settings ask for no checkpoints has said nothing about where it may be interrupted.
 */
static bool takes_checkpoints(const struct job *job)
{
    const Fsdpd__V1__CheckpointSpec *spec = job->message->spec->checkpoint;
    bool asks = spec_takes_checkpoints(spec) || (spec != NULL && spec->directory[0] != '\0');
    return asks && checkpoint_place_exists(job);
}

static bool may_be_preempted(const struct job *job, int64_t now)
{
    const struct attempt *attempt = job->attempt;
    if (attempt == NULL || job->message->state != FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING ||
        !attempt_is_active(job) || attempt->stop.pausing || attempt->stop.vacating ||
        attempt->saving != 0)
        return false;
    bool rests =
        job->preempted_at != 0 && now - job->preempted_at < job->c->options.limits.preempt_ms;
    return !rests && takes_checkpoints(job);
}

static int count_workers(const struct job *job)
{
    int count = 0;
    for (int r = 0; r < job->attempt->world; r++) {
        const struct worker *worker = job->attempt->ranks[r].worker;
        count += worker != NULL && !worker->drained;
    }
    return count;
}

static int64_t time_lost(const struct job *job)
{
    int64_t since = message_time_ms(job->message->start_time);
    if (job->totals.checkpoint_ms > since) since = job->totals.checkpoint_ms;
    return clock_wall_ms() - since;
}

struct preempting_victim *preempting_find(const struct job *waiting, int *count)
{
    struct coordinator *c = waiting->c;
    struct preempting_victim *victims = mem_alloc_array((size_t)c->job_count + 1, sizeof *victims);
    int64_t now = coordinator_now();
    *count = 0;
    for (int i = 0; i < c->job_count; i++) {
        struct job *job = c->jobs[i];
        if (job->message->priority >= waiting->message->priority ||
            !preempting_is_same_kind(waiting, job) || !may_be_preempted(job, now))
            continue;
        victims[(*count)++] = (struct preempting_victim){.job = job,
                                                         .priority = job->message->priority,
                                                         .lost_ms = time_lost(job),
                                                         .workers = count_workers(job)};
    }
    return victims;
}

static bool is_victim(const struct preempting_victim *victims, int count, const char *id)
{
    for (int i = 0; i < count; i++)
        if (strcmp(victims[i].job->message->id, id) == 0) return true;
    return false;
}

bool preempting_is_enough(struct job *waiting, const struct preempting_victim *victims, int count)
{
    struct coordinator *c = waiting->c;
    if (c->cut_count == 0) return true;
    AUTO_FREE struct placement_worker *found =
        mem_alloc_array((size_t)c->worker_count + 1, sizeof *found);
    int workers = 0, needed = 0;
    for (int i = 0; i < c->worker_count; i++) {
        struct worker *worker = c->workers[i];
        if (worker->drained || !worker_is_kind(worker->device, waiting->message->spec->device))
            continue;
        bool idle = worker->job == NULL && parts_reserver(worker) == NULL;
        if (idle || (worker->job != NULL && is_victim(victims, count, worker->job)))
            found[workers++] = (struct placement_worker){worker->host, worker->id, worker};
    }
    int most = queue_keep_apart(c, found, workers, &needed);
    return most >= elastic_least(waiting->message, most);
}

void preempting_begin(const struct preempting_victim *victim, const struct job *waiting)
{
    AUTO_FREE char *why =
        mem_printf("preempted for %s, which has a higher priority", waiting->message->id);
    victim->job->c->clients->preempt(victim->job, why);
}

/* ---- after a restart ---- */

struct last_preemption {
    int64_t time_ms;
    uint32_t attempt;
    char *why;
};

/* A later entry of the same attempt only says again that the job waits. */
static bool find_last(void *user, const job_event *event)
{
    struct last_preemption *last = user;
    if (event->event_case != FSDPD__V1__JOB_EVENT__EVENT_STATE) return true;
    const Fsdpd__V1__Reason *reason = event->state->reason;
    if (reason == NULL || strcmp(reason->code, "PREEMPTED") != 0 ||
        event->state->attempt == last->attempt)
        return true;
    free(last->why);
    *last = (struct last_preemption){.time_ms = message_time_ms(event->time),
                                     .attempt = event->state->attempt,
                                     .why = mem_strndup(reason->message,
                                                        strcspn(reason->message, ";"))};
    return true;
}

static status_t recover_one(struct job *job)
{
    struct last_preemption last = {0};
    const struct store_event_query query = {.job = job->message->id,
                                            .skip_metrics = INT64_MAX,
                                            .limit = INT32_MAX,
                                            .visit = find_last,
                                            .user = &last};
    if (job->message->attempt == 0) return NULL;
    status_t status = store_read_events(job->c->store, &query);
    if (status == NULL && last.why != NULL) {
        int64_t ago = clock_wall_ms() - last.time_ms, now = coordinator_now();
        job->preempted_at = now - (ago > 0 ? ago : 0);
        if (job->preempted_at == 0) job->preempted_at = -1;
        bool waits = job->message->state == FSDPD__V1__JOB_STATE__JOB_STATE_QUEUED &&
                     last.attempt == job->message->attempt;
        job->preempted = waits ? mem_strdup(last.why) : NULL;
    }
    free(last.why);
    return status;
}

status_t preempting_recover(struct coordinator *c)
{
    for (int i = 0; i < c->job_count; i++) TRY(recover_one(c->jobs[i]));
    return NULL;
}
