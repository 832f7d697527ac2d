/* Elastic jobs that grow and shrink; see queue.h. */
#include "coordinator/scheduler/queue.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/jobs/attempt.h"
#include "coordinator/jobs/checkpoint_place.h"
#include "coordinator/jobs/elastic.h"
#include "coordinator/jobs/owners.h"
#include "coordinator/jobs/parts.h"
#include "coordinator/scheduler/placement.h"
#include "coordinator/scheduler/preempting.h"

static bool is_attached(const struct job *job)
{
    for (int r = 0; r < job->attempt->world; r++)
        if (job->attempt->ranks[r].worker == NULL) return false;
    return true;
}

/* Whether the attempt trains, and can leave what it has to the next one. */
static bool can_change(const struct job *job)
{
    const struct attempt *attempt = job->attempt;
    return elastic_is(job->message) &&
           job->message->state == FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING &&
           attempt_is_active(job) && !attempt->stop.pausing && !attempt->stop.vacating &&
           attempt->saving == 0 &&
           (checkpoint_place_exists(job) ||
            (elastic_is_redundant(job->message) && is_attached(job)));
}

/* Where there is no place for checkpoints, redundancy has to suffice, which is certain for one
 * worker less: the others follow. 0: no such step is possible. */
static int shorten(const struct job *job, int next)
{
    int world = job->attempt->world;
    bool copies =
        job->message->spec->elastic->redundancy == FSDPD__V1__REDUNDANCY__REDUNDANCY_REPLICA;
    if (next >= world - 1 || copies || checkpoint_place_exists(job)) return next;
    return elastic_fits(job->message, world - 1) ? world - 1 : 0;
}

/* A drained worker took part once more, as it had a part of the state: it leaves now, if the job can
 * do without it. False: there is none. */
static bool leave_drained(struct job *job, int idle)
{
    int stay = 0;
    for (int r = 0; r < job->attempt->world; r++) {
        const struct worker *worker = job->attempt->ranks[r].worker;
        stay += worker != NULL && !worker->drained;
    }
    for (int r = 0; r < job->attempt->world; r++) {
        const struct worker *worker = job->attempt->ranks[r].worker;
        if (worker == NULL || !worker->drained) continue;
        if (elastic_choose(job->message, stay + idle) == 0) return false;
        AUTO_FREE char *why = mem_printf("worker %s is drained", worker->id);
        job->c->clients->resize(job, "", why);
        return true;
    }
    return false;
}

/* Of that many idle workers, those that the job's own workers can reach. */
static int count_reachable(const struct job *job, int idle)
{
    struct coordinator *c = job->c;
    if (c->cut_count == 0 || idle == 0) return idle;
    AUTO_FREE struct placement_worker *found =
        mem_alloc_array((size_t)c->worker_count + 1, sizeof *found);
    int count = 0;
    for (int r = 0; r < job->attempt->world; r++) {
        struct worker *worker = job->attempt->ranks[r].worker;
        if (worker != NULL)
            found[count++] = (struct placement_worker){worker->host, worker->id, worker};
    }
    int needed = count, own = count;
    for (int i = 0; i < c->worker_count; i++) {
        struct worker *worker = c->workers[i];
        if (worker->job == NULL && !worker->drained && parts_reserver(worker) == NULL &&
            worker_is_kind(worker->device, job->message->spec->device))
            found[count++] = (struct placement_worker){worker->host, worker->id, worker};
    }
    int more = queue_keep_apart(c, found, count, &needed) - own;
    return more < idle ? (more > 0 ? more : 0) : idle;
}

void resizing_check(struct job *job, struct queue_fleet *fleet)
{
    if (!can_change(job) || leave_drained(job, count_reachable(job, fleet->idle))) return;
    int world = job->attempt->world, wanted = (int)elastic_wanted(job->message);
    /* A job that cannot save loses steps where it grows: it must not do so again and again. */
    bool may_grow = wanted > world && fleet->waiting == 0 && !elastic_repeats(job);
    int more = may_grow ? count_reachable(job, fleet->idle) : 0;
    if (more > job->owner->left) more = job->owner->left > 0 ? job->owner->left : 0;
    int next = elastic_choose(job->message, may_grow ? world + more : wanted);
    if (next > 0) next = shorten(job, next);
    if (next == 0 || next == world || (next > world && !may_grow)) return;
    if (next > world) {
        fleet->idle -= next - world;
        job->owner->left -= next - world;
        job->elastic.next = next;
    }
    job->elastic.keep = next < world ? next : world;
    const char *by = job->elastic.by != NULL ? job->elastic.by : "";
    AUTO_FREE char *why = mem_printf(by[0] != '\0' ? "resized from %d to %d workers by %s"
                                                   : "resized from %d to %d workers%s",
                                     world, next, by);
    job->c->clients->resize(job, by, why);
    free(job->elastic.by); /* later changes are not this user's */
    job->elastic.by = NULL;
}

/* ---- room for a waiting job ---- */

/* Workers of an attempt that is about to end without it having to shrink. */
static int count_coming(const struct job *job)
{
    const struct attempt *attempt = job->attempt;
    if (attempt == NULL ||
        (attempt_is_active(job) && !attempt->stop.pausing && !attempt->stop.vacating))
        return 0;
    int count = 0;
    for (int r = 0; r < attempt->world; r++) count += attempt->ranks[r].worker != NULL;
    if (!elastic_is(job->message) || !attempt->stop.vacating || attempt->stop.preempted)
        return count;
    int kept = job->elastic.keep;
    if (kept == 0) kept = elastic_least(job->message, 0); /* fsdpd was restarted */
    return count > kept ? count - kept : 0;
}

struct lender {
    struct job *job;
    int number; /* in order of submission */
    int left;
};

/* The lowest priority first; of equals, the one that was submitted last. */
static int compare_lenders(const void *a, const void *b)
{
    const struct lender *first = a, *second = b;
    int first_priority = first->job->message->priority;
    int second_priority = second->job->message->priority;
    if (first_priority != second_priority) return first_priority < second_priority ? -1 : 1;
    return first->number > second->number ? -1 : 1;
}

static struct lender *find_lenders(const struct job *waiting, int *count)
{
    struct coordinator *c = waiting->c;
    struct lender *lenders = mem_alloc_array((size_t)c->job_count + 1, sizeof *lenders);
    for (int i = 0; i < c->job_count; i++) {
        struct job *job = c->jobs[i];
        if (!preempting_is_same_kind(waiting, job) ||
            job->message->priority >= waiting->message->priority || !can_change(job) ||
            !checkpoint_place_exists(job))
            continue;
        lenders[(*count)++] = (struct lender){job, i, job->attempt->world};
    }
    qsort(lenders, (size_t)*count, sizeof *lenders, compare_lenders);
    return lenders;
}

/* Takes workers from the lenders until there are enough. */
static bool take_workers(struct lender *lenders, int count, int workers)
{
    for (int i = 0; i < count && workers > 0; i++) {
        const job_message *message = lenders[i].job->message;
        int world = lenders[i].left, least = elastic_least(message, 0);
        int left = elastic_choose(message, world - workers > least ? world - workers : least);
        if (left == 0 || left >= world) continue;
        lenders[i].left = left;
        workers -= world - left;
    }
    return workers <= 0;
}

static void shrink(const struct lender *lender, const struct job *waiting)
{
    struct job *job = lender->job;
    AUTO_FREE char *why =
        mem_printf("shrunk from %d to %d worker%s for %s, which has a higher priority",
                   job->attempt->world, lender->left, lender->left == 1 ? "" : "s",
                   waiting->message->id);
    job->elastic.keep = lender->left;
    job->c->clients->resize(job, "", why);
}

static struct lender *find_lender(struct lender *lenders, int count, const struct job *job)
{
    for (int i = 0; i < count; i++)
        if (lenders[i].job == job) return &lenders[i];
    return NULL;
}

/* What all lenders can give up is not enough: preempts jobs. The lenders that are left give up the
 * rest. False: that is not enough, either. */
static bool preempt(struct job *waiting, struct lender *lenders, int *count, int workers)
{
    int victim_count = 0, lent = 0;
    AUTO_FREE struct preempting_victim *victims = preempting_find(waiting, &victim_count);
    for (int i = 0; i < *count; i++) lent += lenders[i].job->attempt->world - lenders[i].left;
    for (int v = 0; v < victim_count; v++) {
        const struct lender *lender = find_lender(lenders, *count, victims[v].job);
        if (lender != NULL) victims[v].workers = lender->left;
    }
    victim_count = preempting_choose(victims, victim_count, workers - lent);
    if (victim_count == 0 || !preempting_is_enough(waiting, victims, victim_count)) return false;
    for (int v = 0; v < victim_count; v++) {
        struct lender *lender = find_lender(lenders, *count, victims[v].job);
        workers -= lender != NULL ? victims[v].job->attempt->world : victims[v].workers;
        if (lender != NULL) *lender = lenders[--*count];
        preempting_begin(&victims[v], waiting);
    }
    for (int i = 0; i < *count; i++) lenders[i].left = lenders[i].job->attempt->world;
    if (*count > 0) qsort(lenders, (size_t)*count, sizeof *lenders, compare_lenders);
    return take_workers(lenders, *count, workers);
}

void resizing_make_room(struct job *waiting, int workers)
{
    struct coordinator *c = waiting->c;
    if (!c->options.shrink_elastic && !c->options.preempt) return;
    for (int i = 0; i < c->job_count; i++)
        if (preempting_is_same_kind(waiting, c->jobs[i])) workers -= count_coming(c->jobs[i]);
    if (workers <= 0) return;
    int count = 0;
    AUTO_FREE struct lender *lenders = NULL;
    if (c->options.shrink_elastic) lenders = find_lenders(waiting, &count);
    bool enough = take_workers(lenders, count, workers);
    if (!enough && !(c->options.preempt && preempt(waiting, lenders, &count, workers))) return;
    for (int i = 0; i < count; i++)
        if (lenders[i].left < lenders[i].job->attempt->world) shrink(&lenders[i], waiting);
}
