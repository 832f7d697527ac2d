/* Placement; see queue.h. queue_decide is pure; queue_place carries its decisions out. */
#include "coordinator/queue.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/attempt.h"
#include "coordinator/supervisor.h"

static struct queue_fleet *find_fleet(struct queue_fleet *fleets, int count, const char *kind)
{
    for (int i = 0; i < count; i++)
        if (strcmp(fleets[i].kind, kind) == 0) return &fleets[i];
    return NULL;
}

void queue_decide(struct queue_item *items, int count, struct queue_fleet *fleets, int fleet_count)
{
    for (int i = 0; i < count; i++) {
        struct queue_item *item = &items[i];
        struct queue_fleet *fleet = find_fleet(fleets, fleet_count, item->kind);
        if (fleet == NULL || item->workers > fleet->expected) {
            item->decision = QUEUE_WAIT_WORKERS;
            continue;
        }
        bool starts = !fleet->taken && item->workers <= fleet->idle;
        item->decision = starts ? QUEUE_START : QUEUE_WAIT_TURN;
        if (starts) fleet->idle -= item->workers;
        else fleet->taken = true;
    }
}

static bool is_queued(const struct job *job)
{
    return job->message->state == FSDPD__V1__JOB_STATE__QUEUED && !job->unsaved;
}

static int compare_workers(const void *a, const void *b)
{
    const struct worker *const *first = a, *const *second = b;
    return strverscmp((*first)->id, (*second)->id);
}

/* Idle workers of the kind, in the order of their ids, so that ranks are where people expect them.
 */
static void start(struct job *job)
{
    struct coordinator *c = job->c;
    const job_spec *spec = job->message->spec;
    struct worker **idle = mem_alloc_array((size_t)c->worker_count, sizeof(struct worker *));
    int count = 0;
    for (int i = 0; i < c->worker_count; i++)
        if (c->workers[i]->job == NULL && worker_is_kind(c->workers[i]->device, spec->device))
            idle[count++] = c->workers[i];
    if (count >= (int)spec->workers) {
        qsort(idle, (size_t)count, sizeof *idle, compare_workers);
        attempt_begin(job, idle);
    }
    free(idle);
}

/* One fleet per kind of the attached workers; a kind without attached workers has supervised ones.
 */
static struct queue_fleet *count_fleets(struct coordinator *c, char ***kinds, int *count)
{
    struct queue_fleet *fleets =
        mem_alloc_array((size_t)c->worker_count + 1, sizeof(struct queue_fleet));
    *kinds = mem_alloc_array((size_t)c->worker_count + 1, sizeof(char *));
    *count = 0;
    for (int i = -1; i < c->worker_count; i++) {
        const char *device = i < 0 ? c->options.local_device : c->workers[i]->device;
        if (device == NULL) continue;
        char *kind = mem_strndup(device, strcspn(device, ":"));
        struct queue_fleet *fleet = find_fleet(fleets, *count, kind);
        if (fleet == NULL) {
            fleet = &fleets[*count];
            fleet->kind = (*kinds)[*count] = kind;
            ++*count;
        } else {
            free(kind);
        }
        if (i < 0) {
            fleet->expected += supervisor_starting(c);
        } else {
            fleet->attached++;
            fleet->expected++;
            fleet->idle += c->workers[i]->job == NULL;
        }
    }
    return fleets;
}

static void explain(struct job *job, const struct queue_item *item, const struct queue_fleet *fleet)
{
    int attached = fleet != NULL ? fleet->attached : 0;
    int idle = fleet != NULL ? fleet->idle : 0;
    if (item->workers > attached)
        job_set_reason(job, "WAITING_FOR_WORKERS", "needs %d %s worker%s, %d %s attached",
                       item->workers, item->kind, item->workers == 1 ? "" : "s", attached,
                       attached == 1 ? "is" : "are");
    else if (item->workers > idle)
        job_set_reason(job, "QUEUED", "waits for its turn: needs %d of %d %s worker%s",
                       item->workers, attached, item->kind, attached == 1 ? "" : "s");
    else job_set_reason(job, "QUEUED", "waits for its turn behind an earlier job");
}

void queue_place(struct coordinator *c)
{
    if (c->draining) return;
    struct job **jobs = mem_alloc_array((size_t)c->job_count, sizeof(struct job *));
    struct queue_item *items = mem_alloc_array((size_t)c->job_count, sizeof(struct queue_item));
    int count = 0;
    for (int i = 0; i < c->job_count; i++) {
        struct job *job = c->jobs[i];
        if (!is_queued(job)) continue;
        jobs[count] = job;
        items[count++] = (struct queue_item){.kind = job->message->spec->device,
                                             .workers = (int)job->message->spec->workers};
    }
    if (count > 0) {
        char **kinds = NULL;
        int fleet_count = 0;
        struct queue_fleet *fleets = count_fleets(c, &kinds, &fleet_count);
        queue_decide(items, count, fleets, fleet_count);
        for (int i = 0; i < count; i++) {
            if (items[i].decision == QUEUE_START) start(jobs[i]);
            else explain(jobs[i], &items[i], find_fleet(fleets, fleet_count, items[i].kind));
        }
        for (int i = 0; i < fleet_count; i++) free(kinds[i]);
        free(kinds);
        free(fleets);
    }
    free(items);
    free(jobs);
}
