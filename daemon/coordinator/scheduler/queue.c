/* The queue; see queue.h. queue_decide is pure; queue_place carries out its decisions. */
#include "coordinator/scheduler/queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "coordinator/jobs/attempt_run.h"
#include "coordinator/jobs/elastic.h"
#include "coordinator/jobs/parts.h"
#include "coordinator/jobs/retry.h"
#include "coordinator/scheduler/admission.h"
#include "coordinator/scheduler/arrays.h"
#include "coordinator/scheduler/placement.h"
#include "coordinator/scheduler/quotas.h"
#include "coordinator/workers/cuts.h"
#include "coordinator/workers/planner.h"
#include "coordinator/workers/supervisor.h"
#include "spec/spec.h"

/* Without a known change: the queue takes at most this part of the time, or waits for this time. */
enum { CHECK_PART = 100, CHECK_MS = 2000 };

int queue_compare(const struct queue_rank *first, const struct queue_rank *second)
{
    if (first->priority != second->priority) return first->priority > second->priority ? -1 : 1;
    if (first->usage != second->usage) return first->usage < second->usage ? -1 : 1;
    return first->number < second->number ? -1 : first->number > second->number;
}

/* Of a device, "cuda:0", or a kind of devices. */
static struct queue_fleet *find_fleet(struct queue_fleet *fleets, int count, const char *device)
{
    const char *colon = strchr(device, ':');
    size_t length = colon != NULL ? (size_t)(colon - device) : strlen(device);
    for (int i = 0; i < count; i++)
        if (strncmp(fleets[i].kind, device, length) == 0 && fleets[i].kind[length] == '\0')
            return &fleets[i];
    return NULL;
}

/* Jobs before it have taken the idle workers that cannot reach others, or leave them to it: so it may
 * find fewer when it starts, but not more. */
static int idle_for(const struct queue_item *item, const struct queue_fleet *fleet)
{
    int most = fleet->all_idle - fleet->cut_idle;
    return (fleet->idle < most ? fleet->idle : most) + item->reserved;
}

static enum queue_decision decide(const struct queue_item *item, struct queue_fleet *fleet)
{
    const struct queue_array *array = item->array;
    if (item->quota != NULL && item->workers > *item->quota) return QUEUE_WAIT_QUOTA;
    if (array != NULL && array->running >= array->at_once) return QUEUE_WAIT_ARRAY;
    if (item->workers > fleet->expected - fleet->cut) return QUEUE_WAIT_WORKERS;
    if (fleet->blocked || item->workers > idle_for(item, fleet)) return QUEUE_WAIT_TURN;
    return QUEUE_START;
}

static void take(struct queue_item *item, struct queue_fleet *fleet)
{
    int available = idle_for(item, fleet);
    if (item->most < item->workers) item->most = item->workers;
    if (item->quota != NULL && item->most > *item->quota) item->most = *item->quota;
    if (item->quota != NULL) *item->quota -= item->most < available ? item->most : available;
    int taken = item->most > item->reserved ? item->most - item->reserved : 0;
    fleet->idle -= taken < fleet->idle ? taken : fleet->idle;
}

void queue_decide(struct queue_item *items, int count, struct queue_fleet *fleets, int fleet_count)
{
    for (int i = 0; i < fleet_count; i++) {
        fleets[i].waiting = fleets[i].waiting_higher = 0;
        fleets[i].blocked = false;
        fleets[i].all_idle = fleets[i].idle;
    }
    for (int i = 0; i < count; i++) {
        struct queue_item *item = &items[i];
        struct queue_fleet *fleet = find_fleet(fleets, fleet_count, item->kind);
        item->standing = (struct standing){
            .decision = QUEUE_WAIT_WORKERS, .position = 1, .workers = item->workers};
        if (fleet == NULL) continue;
        if (fleet->waiting > 0 && item->priority < fleet->priority)
            fleet->waiting_higher = fleet->waiting;
        enum queue_decision decision = decide(item, fleet);
        item->standing = (struct standing){.decision = decision,
                                           .position = fleet->waiting + 1,
                                           .higher = fleet->waiting_higher,
                                           .behind = fleet->blocked,
                                           .workers = item->workers,
                                           .attached = fleet->attached,
                                           .idle = idle_for(item, fleet),
                                           .cut = fleet->cut,
                                           .drained = fleet->drained};
        if (decision == QUEUE_WAIT_QUOTA) item->standing.position = 0;
        if (decision == QUEUE_START) {
            take(item, fleet);
            if (item->array != NULL) item->array->running++;
        }
        bool passed = decision == QUEUE_WAIT_ARRAY || decision == QUEUE_WAIT_QUOTA;
        if (decision == QUEUE_START || passed) continue;
        fleet->waiting++;
        fleet->priority = item->priority;
        if (decision == QUEUE_WAIT_TURN) fleet->blocked = true;
    }
}

/* ---- reasons ---- */

const char *queue_ordinal(int number, char text[static 16])
{
    int tens = number % 100, ones = number % 10;
    const char *suffix = tens >= 11 && tens <= 13 ? "th"
                         : ones == 1              ? "st"
                         : ones == 2              ? "nd"
                         : ones == 3              ? "rd"
                                                  : "th";
    snprintf(text, 16, "%d%s", number, suffix);
    return text;
}

static const char *plural(int count)
{
    return count == 1 ? "" : "s";
}

/* The job, or its array, that is held; NULL: neither is. */
static const struct job *find_held(const struct job *job)
{
    if (job->message->held_by[0] != '\0') return job;
    const struct job *array = arrays_of(job);
    return array != NULL && array->message->held_by[0] != '\0' ? array : NULL;
}

static const char *waiting_code(const struct job *job)
{
    const job_message *message = job->message;
    if (find_held(job) != NULL) return "HELD";
    if (message->n_waits_for > 0) return "WAITING_FOR_JOB";
    if (deadlines_defer(job)) return "WAITING_FOR_TIME";
    if (unplanned_is(job)) return "WAITING_FOR_WORKERS";
    if (job->elastic.waits) return "RESIZING";
    if (job->standing.decision == QUEUE_WAIT_QUOTA) return "QUOTA";
    if (job->standing.decision == QUEUE_WAIT_ARRAY) return "ARRAY_LIMIT";
    if (job->standing.workers > job->standing.attached - job->standing.cut)
        return "WAITING_FOR_WORKERS";
    return job->preempted != NULL ? "PREEMPTED" : "QUEUED";
}

void queue_describe_turn(const struct standing *standing, const char *device, struct buf *out)
{
    int workers = standing->workers;
    char text[16];
    buf_printf(out, "%s; ", queue_ordinal(standing->position, text));
    if (workers > standing->attached) {
        buf_printf(out, "needs %d %s worker%s, %d %s attached", workers, device,
                   plural(workers), standing->attached, standing->attached == 1 ? "is" : "are");
        if (standing->drained > 0) buf_printf(out, " and %d drained", standing->drained);
    } else if (workers > standing->attached - standing->cut) {
        buf_printf(out, "needs %d %s workers, and of the %d that are attached only %d can reach "
                        "each other", workers, device, standing->attached,
                   standing->attached - standing->cut);
    } else if (!standing->behind) {
        buf_printf(out, "waits for %d of %d %s worker%s", workers - standing->idle, workers, device,
                   plural(workers));
    } else {
        int before = standing->position - 1;
        buf_printf(out, "%d job%s %s before it", before, plural(before),
                   before == 1 ? "is" : "are");
        if (standing->higher > 0) buf_printf(out, ", %d of higher priority", standing->higher);
    }
}

static void describe(const struct job *job, struct buf *out)
{
    const job_message *message = job->message;
    int waits = (int)message->n_waits_for;
    const struct job *held = find_held(job);
    if (held != NULL) {
        buf_printf(out, "held by %s", held->message->held_by);
        if (held != job) buf_printf(out, ", with its array %s", held->message->id);
    } else if (waits > 0) {
        buf_printf(out, "waits for %s", message->waits_for[0]);
        if (waits > 1) buf_printf(out, " and %d more job%s", waits - 1, plural(waits - 1));
    } else if (deadlines_defer(job)) {
        char text[32];
        buf_printf(out, "starts at %s at the earliest",
                   clock_format_wall(message_time_ms(message->start_at), text));
    } else if (job->planning) {
        buf_add_text(out, "a worker plans it");
    } else if (unplanned_is(job)) {
        if (message->plan != NULL) buf_printf(out, "planned for %s; ", message->plan->device);
        buf_printf(out, "no %s%sworker is attached; it is planned %swhen one comes",
                   message->spec->device, message->spec->device[0] != '\0' ? " " : "",
                   message->plan != NULL ? "again " : "");
    } else if (job->elastic.waits) {
        AUTO(buf_deinit) struct buf late = {0};
        parts_wait(job, coordinator_now(), &late);
        buf_printf(out,
                   "waits at most %g s after the restart of fsdpd for %s, which may have a part of "
                   "the state in memory",
                   job->c->options.limits.reattach_ms / 1000.0, buf_text(&late));
    } else if (job->standing.decision == QUEUE_WAIT_QUOTA) {
        int quota = job->c->options.limits.quota_workers;
        buf_printf(out,
                   "needs %d worker%s, and jobs of %s have %d of the %d that "
                   "queue.quota.workers allows",
                   job->standing.workers, plural(job->standing.workers),
                   message->owner[0] != '\0' ? message->owner : "this user",
                   quota - job->owner->left, quota);
    } else if (job->standing.decision == QUEUE_WAIT_ARRAY) {
        buf_printf(out, "array %s runs as many jobs as it may at once: %u",
                   message->spec->of_array->array, message->spec->of_array->at_once);
    } else {
        if (job->preempted != NULL) buf_printf(out, "%s; ", job->preempted);
        queue_describe_turn(&job->standing, message->spec->device, out);
        bool cut = job->standing.cut > 0 &&
                   (!job->standing.behind || strcmp(waiting_code(job), "WAITING_FOR_WORKERS") == 0);
        if (cut) buf_add_text(out, ": ");
        if (cut) cuts_describe(job->c, out);
    }
}

static bool is_queued(const struct job *job)
{
    return job->message->state == FSDPD__V1__JOB_STATE__JOB_STATE_QUEUED && !job->unsaved &&
           !retry_is_waiting(job) && job->array == NULL;
}

/* Whether it waits for nothing but its turn and its workers. */
static bool could_start(const struct job *job)
{
    return find_held(job) == NULL && job->message->n_waits_for == 0 && !deadlines_defer(job) &&
           !unplanned_is(job);
}

/* Records why a job waits, only when the kind of reason changes: positions change all the time, and
 * recording each change would fill the store and the history. */
static void note(struct job *job)
{
    const char *code = waiting_code(job);
    if (strcmp(code, job->message->reason->code) == 0) return;
    AUTO(buf_deinit) struct buf text = {0};
    describe(job, &text);
    job_set_waiting(job, code, buf_text(&text));
}

void queue_explain(struct job *job)
{
    job->message->queue_position = 0;
    if (job->array != NULL) arrays_explain(job);
    if (!is_queued(job)) return;
    bool stands = could_start(job);
    if (stands && job->standing.position == 0 && job->standing.decision != QUEUE_WAIT_QUOTA)
        return; /* not decided yet */
    if (stands && job->standing.decision != QUEUE_WAIT_ARRAY)
        job->message->queue_position = (uint32_t)job->standing.position;
    AUTO(buf_deinit) struct buf text = {0};
    describe(job, &text);
    message_set_text(&job->message->reason->code, waiting_code(job));
    message_set_text(&job->message->reason->message, buf_text(&text));
}

/* ---- placement ---- */

/* Whether the worker left the job's last attempt by order, and all that stay have their parts: so
 * they have its part, too. */
static bool has_left(const struct job *job, const struct worker *worker)
{
    bool left = false;
    for (size_t r = 0; r < job->message->n_workers; r++) {
        const struct worker *other = workers_find(job->c, job->message->workers[r]);
        if (handover_has_left(job, (int)r)) left = left || other == worker;
        else if (other == NULL || !parts_has(job, other)) return false;
    }
    return left;
}

/* A worker that has a part of the job's state takes part once more even if it is drained. */
static bool is_idle(const struct job *job, const struct worker *worker)
{
    if (worker->job != NULL || !worker_is_kind(worker->device, job->message->spec->device))
        return false;
    const struct job *reserver = parts_reserver(worker);
    if (reserver != NULL && reserver != job) return false;
    return !worker->drained ||
           (reserver == job && !job->elastic.saved && !has_left(job, worker));
}

/* How much a worker's memory is worth to the job: the lower, the more. */
enum standing_of_worker {
    HAS_ITS_PART, /* no other may have what it keeps */
    HAS_A_COPY,   /* it left by order: others have that, too */
    OWN_DEVICE,
    SHARED_DEVICE, /* groups with such workers are slow */
    STANDINGS
};

static enum standing_of_worker standing_of(const struct job *job, const struct worker *worker)
{
    if (parts_has(job, worker)) return has_left(job, worker) ? HAS_A_COPY : HAS_ITS_PART;
    return worker->shares_device ? SHARED_DEVICE : OWN_DEVICE;
}

static bool is_cut(const struct placement_worker *worker, const struct placement_worker *other)
{
    return cuts_between(worker->worker, other->worker);
}

int queue_keep_apart(struct coordinator *c, struct placement_worker *workers, int count,
                     int *needed)
{
    if (c->cut_count == 0) return count;
    int kept = placement_keep_apart(workers, count, needed, is_cut);
    if (kept < count) c->cuts_matter = true;
    return kept;
}

/* The idle workers among which a job's are chosen, in `idle`; returns their number. The first
 * *needed of them have a part of its state, which must not be left behind: then no more than the
 * job wants follow them. Shared devices come only if there are not enough others. */
static int find_idle(const struct job *job, struct placement_worker *idle, int *needed)
{
    struct coordinator *c = job->c;
    int wanted = (int)elastic_wanted(job->message), count = 0;
    for (int standing = 0; standing < STANDINGS; standing++) {
        for (int i = 0; i < c->worker_count; i++) {
            struct worker *worker = c->workers[i];
            if (!is_idle(job, worker) || (int)standing_of(job, worker) != standing) continue;
            idle[count++] = (struct placement_worker){worker->host, worker->id, worker};
        }
        if (standing == HAS_ITS_PART) *needed = count;
    }
    count = queue_keep_apart(c, idle, count, needed);
    int own = 0, most = *needed > wanted ? *needed : wanted;
    while (own < count && standing_of(job, idle[own].worker) != SHARED_DEVICE) own++;
    if (own >= wanted) count = own;
    return *needed > 0 && count > most ? most : count;
}

/* With at most that many workers, or those that stay after a change by order; returns their
 * number. */
static int start(struct job *job, int most)
{
    struct coordinator *c = job->c;
    AUTO_FREE struct placement_worker *idle =
        mem_alloc_array((size_t)c->worker_count + 1, sizeof *idle);
    int needed = 0, count = find_idle(job, idle, &needed);
    int world = elastic_choose(job->message, count < most ? count : most);
    /* All that have a part, whatever the job wants or may have: it shrinks at its next boundary. */
    if (needed > world && (needed == handover_staying(job) || elastic_fits(job->message, needed)))
        world = needed;
    job->elastic.keep = 0;
    if (world > 0) {
        AUTO_FREE struct worker **chosen =
            mem_alloc_array((size_t)world + 1, sizeof(struct worker *));
        if (needed > 0) count = world > needed ? world : needed;
        placement_choose(idle, count, world);
        for (int i = 0; i < world; i++) chosen[i] = idle[i].worker;
        attempt_begin(job, chosen, world);
    }
    return world;
}

/* One fleet per kind of device. */
struct fleets {
    struct queue_fleet *items;
    int count, capacity;
};

static struct queue_fleet *get_fleet(struct fleets *fleets, const char *device)
{
    struct queue_fleet *fleet = find_fleet(fleets->items, fleets->count, device);
    if (fleet != NULL) return fleet;
    MEM_GROW(fleets->items, fleets->count, fleets->capacity);
    fleet = &fleets->items[fleets->count++];
    *fleet = (struct queue_fleet){.kind = mem_strndup(device, strcspn(device, ":"))};
    return fleet;
}

static void count_workers(struct coordinator *c, struct fleets *fleets)
{
    if (c->options.local_device != NULL)
        get_fleet(fleets, c->options.local_device)->expected += supervisor_starting(c);
    for (int i = 0; i < c->worker_count; i++) {
        const struct worker *worker = c->workers[i];
        struct queue_fleet *fleet = get_fleet(fleets, worker->device);
        if (worker->drained) {
            fleet->drained++;
            continue;
        }
        fleet->attached++;
        fleet->expected++;
        fleet->idle += worker->job == NULL && parts_reserver(worker) == NULL;
    }
}

/* How many of the workers of a kind have to be left out. */
static int count_cut(struct coordinator *c, const char *kind, bool idle_only)
{
    AUTO_FREE struct placement_worker *found =
        mem_alloc_array((size_t)c->worker_count + 1, sizeof *found);
    int count = 0, needed = 0;
    for (int i = 0; i < c->worker_count; i++) {
        struct worker *worker = c->workers[i];
        bool idle = worker->job == NULL && parts_reserver(worker) == NULL;
        if (worker->drained || !worker_is_kind(worker->device, kind) || (idle_only && !idle))
            continue;
        found[count++] = (struct placement_worker){worker->host, worker->id, worker};
    }
    return count - queue_keep_apart(c, found, count, &needed);
}

static void count_cuts(struct coordinator *c, struct fleets *fleets)
{
    for (int i = 0; i < fleets->count && c->cut_count > 0; i++) {
        fleets->items[i].cut = count_cut(c, fleets->items[i].kind, false);
        fleets->items[i].cut_idle = count_cut(c, fleets->items[i].kind, true);
    }
}

static void fleets_deinit(struct fleets *fleets)
{
    for (int i = 0; i < fleets->count; i++) free((char *)fleets->items[i].kind);
    free(fleets->items);
}

struct queue_entry {
    struct job *job;
    struct queue_rank rank;
};

static int compare_entries(const void *a, const void *b)
{
    return queue_compare(&((const struct queue_entry *)a)->rank,
                         &((const struct queue_entry *)b)->rank);
}

/* The jobs that could start, in starting order. */
static struct queue_entry *sort_queue(struct coordinator *c, int *count)
{
    struct queue_entry *entries = mem_alloc_array((size_t)c->job_count + 1, sizeof *entries);
    *count = 0;
    for (int i = 0; i < c->job_count; i++) {
        struct job *job = c->jobs[i];
        if (!is_queued(job)) continue;
        if (could_start(job)) {
            double usage = c->options.limits.fair_share_ms > 0 ? job->owner->usage : 0;
            entries[(*count)++] = (struct queue_entry){job, {job->message->priority, usage, i}};
            continue;
        }
        job->elastic.between = false;
        note(job);
    }
    qsort(entries, (size_t)*count, sizeof *entries, compare_entries);
    return entries;
}

static bool is_of(struct fleets *fleets, const struct queue_fleet *fleet, const struct job *job)
{
    return get_fleet(fleets, job->message->spec->device) == fleet;
}

/* The workers that exist or soon will, as far as the job's user may have them. */
static int find_expected(const struct job *job, const struct queue_fleet *fleet)
{
    int quota = job->c->options.limits.quota_workers, expected = fleet->expected - fleet->cut;
    return quota > 0 && quota < expected ? quota : expected;
}

/* ---- arrays ---- */

struct queue_arrays {
    struct queue_array *items; /* one for each array of a queued job that has a limit */
    int count, capacity;
};

/* Whether a job takes one of its array's places: it has workers, or continues with those that it
 * had. */
static bool takes_place(const struct job *job)
{
    int state = (int)job->message->state;
    return job->attempt != NULL || state == JOB_STARTING || state == JOB_RUNNING ||
           (state == JOB_QUEUED &&
            (job->elastic.between || job->elastic.waits || parts_count(job) > 0));
}

static int count_running(struct coordinator *c, const char *array)
{
    int running = 0;
    for (int i = 0; i < c->job_count; i++)
        running += spec_is_of_array(c->jobs[i]->message->spec, array) && takes_place(c->jobs[i]);
    return running;
}

/* Whether a job that continues may do so now: fewer others of its array run than may. */
static bool array_has_room(const struct job *job)
{
    const Fsdpd__V1__ArrayPlace *place = job->message->spec->of_array;
    if (place == NULL || place->at_once == 0) return true;
    return count_running(job->c, place->array) - takes_place(job) < (int)place->at_once;
}

/* The jobs of one array are next to each other, mostly. */
static int get_array(struct queue_arrays *arrays, const struct job *job)
{
    const Fsdpd__V1__ArrayPlace *place = job->message->spec->of_array;
    if (place == NULL || place->at_once == 0) return -1;
    for (int i = arrays->count - 1; i >= 0; i--)
        if (strcmp(arrays->items[i].id, place->array) == 0) return i;
    MEM_GROW(arrays->items, arrays->count, arrays->capacity);
    arrays->items[arrays->count] =
        (struct queue_array){.id = place->array,
                             .at_once = (int)place->at_once,
                             .running = count_running(job->c, place->array)};
    return arrays->count++;
}

/* Gives the items their arrays, which stay where they are from then on. */
static void set_arrays(struct queue_arrays *arrays, const struct queue_entry *entries, int count,
                       struct queue_item *items)
{
    for (int i = 0; i < count; i++) get_array(arrays, entries[i].job);
    for (int i = 0; i < count; i++) {
        int found = get_array(arrays, entries[i].job);
        if (found < 0) continue;
        items[i].array = &arrays->items[found];
        /* A queued job that keeps its place does not wait for itself. */
        if (takes_place(entries[i].job)) items[i].array = NULL;
    }
}

/* How many workers a job may continue with: what jobs of higher priority do not wait for. */
static int find_most(const struct job *job, const struct queue_entry *entries, int count,
                     struct fleets *fleets)
{
    const job_message *message = job->message;
    const struct queue_fleet *fleet = get_fleet(fleets, message->spec->device);
    bool waits = false, higher = false;
    for (int i = 0; i < count; i++) {
        const struct job *other = entries[i].job;
        bool passed = other->standing.decision == QUEUE_WAIT_ARRAY;
        if (other->elastic.between || passed || !is_of(fleets, fleet, other)) continue;
        if (elastic_least(other->message, find_expected(other, fleet)) > other->owner->left)
            continue; /* it could not start */
        waits = true;
        higher = higher || other->message->priority > message->priority;
    }
    if (!waits) return (int)elastic_wanted(message);
    if (higher && job->elastic.keep > 0) return job->elastic.keep;
    /* A restarted coordinator has not decided. */
    bool shrinks = higher && job->c->options.shrink_elastic;
    return shrinks ? elastic_least(message, fleet->expected) : (int)message->n_workers;
}

/* Continues a job whose number of workers changes with those of its workers that it still has,
 * unless these are too few. */
static void place_again(struct job *job, const struct queue_entry *entries, int count,
                        struct fleets *fleets)
{
    struct queue_fleet *fleet = get_fleet(fleets, job->message->spec->device);
    int reserved = parts_count(job), idle = fleet->idle + reserved;
    if (!job->elastic.between && reserved == 0 && !job->elastic.restarted) return;
    if (!array_has_room(job)) return;
    AUTO(buf_deinit) struct buf late = {0};
    job->elastic.waits = parts_wait(job, coordinator_now(), &late);
    if (job->owner->left < idle) idle = job->owner->left;
    if (job->elastic.waits || elastic_least(job->message, fleet->expected) > idle) return;
    int most = find_most(job, entries, count, fleets);
    int world = start(job, most < idle ? most : idle), taken = world - reserved;
    job->owner->left -= world;
    if (taken > 0) fleet->idle -= taken < fleet->idle ? taken : fleet->idle;
}

/* Such jobs come before others start. Removes those from the entries that started or have to wait.
 */
static void place_resized(struct queue_entry *entries, int *count, struct fleets *fleets)
{
    for (int i = 0; i < *count; i++) {
        entries[i].job->elastic.waits = false;
        place_again(entries[i].job, entries, *count, fleets);
    }
    int left = 0;
    for (int i = 0; i < *count; i++) {
        struct job *job = entries[i].job;
        job->elastic.between = false;
        if (job->elastic.waits) note(job);
        else if (is_queued(job)) entries[left++] = entries[i];
    }
    *count = left;
}

/* The workers that are idle cannot reach each other, or those that were left to a job before this one:
 * it does not start before that one. */
static void wait_apart(struct standing *standing, struct queue_fleet *fleet)
{
    standing->decision = QUEUE_WAIT_TURN;
    standing->position += fleet->apart;
    standing->behind = standing->behind || fleet->apart > 0;
    if (standing->idle >= standing->workers) standing->idle = standing->workers - 1;
    fleet->apart++;
}

/* Decides for all that wait. */
static void place_all(struct coordinator *c)
{
    int count = 0;
    fair_share_advance(c);
    AUTO_FREE struct queue_entry *entries = sort_queue(c, &count);
    c->jobs_waiting = count;
    if (count > 0 && calibration_stop(c)) { /* its end changes the queue */
        return;
    }
    AUTO(fleets_deinit) struct fleets fleets = {0};
    count_workers(c, &fleets);
    quotas_count(c);
    for (int i = 0; i < count; i++) get_fleet(&fleets, entries[i].job->message->spec->device);
    place_resized(entries, &count, &fleets);
    if (count > 0) count_cuts(c, &fleets);
    AUTO_FREE struct queue_item *items = mem_alloc_array((size_t)count + 1, sizeof *items);
    for (int i = 0; i < count; i++) {
        const job_message *message = entries[i].job->message;
        const struct queue_fleet *fleet = get_fleet(&fleets, message->spec->device);
        items[i] =
            (struct queue_item){.kind = message->spec->device,
                                .workers =
                                    elastic_least(message, find_expected(entries[i].job, fleet)),
                                .quota = &entries[i].job->owner->left,
                                .reserved = parts_count(entries[i].job),
                                .most = (int)elastic_wanted(message),
                                .priority = message->priority};
    }
    struct queue_arrays arrays = {0};
    set_arrays(&arrays, entries, count, items);
    queue_decide(items, count, fleets.items, fleets.count);
    free(arrays.items);
    for (int i = 0; i < count; i++) {
        struct job *job = entries[i].job;
        struct queue_fleet *fleet = get_fleet(&fleets, job->message->spec->device);
        bool starts = items[i].standing.decision == QUEUE_START;
        job->standing = starts ? (struct standing){0} : items[i].standing;
        if (starts && fleet->apart == 0 && start(job, items[i].most) > 0) continue;
        if (starts && fleet->cut == 0) continue;
        if (starts) wait_apart(&items[i].standing, fleet);
        job->standing = items[i].standing;
        note(job);
        bool next = items[i].standing.decision == QUEUE_WAIT_TURN && !items[i].standing.behind;
        int starting = fleet->expected - fleet->attached;
        if (next) resizing_make_room(job, items[i].workers - items[i].standing.idle - starting);
    }
    for (int i = 0; i < c->job_count; i++)
        if (elastic_is(c->jobs[i]->message))
            resizing_check(c->jobs[i], get_fleet(&fleets, c->jobs[i]->message->spec->device));
    fair_share_note_busy(c);
}

void queue_place(struct coordinator *c)
{
    MUST_OWN(&c->owner);
    if (c->draining || !c->queue_changed) return;
    c->queue_changed = c->cuts_matter = false;
    const int64_t began = clock_monotonic_ns();
    place_all(c);
    c->queue_placed_ns = clock_monotonic_ns();
    c->queue_took_ns = c->queue_placed_ns - began;
}

bool queue_check(struct coordinator *c)
{
    const int64_t since = clock_monotonic_ns() - c->queue_placed_ns;
    const bool due = since >= CHECK_MS * 1000000LL || since >= CHECK_PART * c->queue_took_ns;
    if (due || c->queue_continues) queue_changed(c);
    c->queue_continues = false;
    return due;
}
