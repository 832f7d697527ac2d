/* Parts of redundant jobs; see parts.h. */
#include "coordinator/jobs/parts.h"

#include <string.h>

#include "base/mem.h"
#include "coordinator/jobs/attempt.h"
#include "coordinator/jobs/elastic.h"

/* ---- pure ---- */

bool parts_begin(const enum part_holder *holders, int count, bool whole, int64_t now,
                 int64_t settle_at, int64_t until)
{
    bool late = false;
    for (int i = 0; i < count; i++) late = late || holders[i] == PART_LATE;
    return !late || now >= until || (whole && now >= settle_at);
}

static bool is_of(const Fsdpd__V1__KeptPart *part, const Fsdpd__V1__KeptPart *generation)
{
    return part->attempt == generation->attempt && part->step == generation->step &&
           part->distance == generation->distance && part->world == generation->world;
}

/* The pieces of one generation that are here, by rank. */
struct part_pieces {
    const Fsdpd__V1__KeptPart *generation;
    bool *own, *other;
    int world;
};

static void collect(const Fsdpd__V1__KeptPart *const *parts, int count, struct part_pieces *pieces)
{
    pieces->own = mem_alloc_array((size_t)pieces->world, sizeof *pieces->own);
    pieces->other = mem_alloc_array((size_t)pieces->world, sizeof *pieces->other);
    for (int i = 0; i < count; i++) {
        if (!is_of(parts[i], pieces->generation) || parts[i]->rank >= parts[i]->world) continue;
        pieces->own[parts[i]->rank] |= parts[i]->own;
        pieces->other[parts[i]->rank] |= parts[i]->other;
    }
}

/* Whether the other members of the rank's parity group have their shards and the parity. */
static bool can_rebuild(const struct part_pieces *pieces, int rank)
{
    int groups = (int)pieces->generation->groups, others = 0;
    for (int r = rank % groups; r < pieces->world; r += groups) {
        if (r == rank) continue;
        if (!pieces->own[r] || !pieces->other[r]) return false;
        others++;
    }
    return others > 0;
}

static bool has_replica(const struct part_pieces *pieces, int rank)
{
    int spread = (int)pieces->generation->spread;
    for (int r = rank % spread; r < pieces->world; r += spread)
        if (pieces->own[r]) return true;
    return false;
}

static bool has_shards(const struct part_pieces *pieces, int rank)
{
    const Fsdpd__V1__KeptPart *generation = pieces->generation;
    if (pieces->own[rank]) return true;
    switch (generation->kind) {
    case FSDPD__V1__REDUNDANCY__REDUNDANCY_MIRROR:
        return pieces->other[((uint32_t)rank + generation->distance) % generation->world];
    case FSDPD__V1__REDUNDANCY__REDUNDANCY_PARITY:
        return generation->groups > 0 && can_rebuild(pieces, rank);
    case FSDPD__V1__REDUNDANCY__REDUNDANCY_REPLICA:
        return generation->spread > 0 && has_replica(pieces, rank);
    default: return false;
    }
}

static bool is_whole(const Fsdpd__V1__KeptPart *const *parts, int count,
                     const Fsdpd__V1__KeptPart *generation)
{
    if (generation->world == 0 || generation->world > INT16_MAX) return false;
    struct part_pieces pieces = {.generation = generation, .world = (int)generation->world};
    collect(parts, count, &pieces);
    bool whole = true;
    for (int r = 0; r < pieces.world && whole; r++) whole = has_shards(&pieces, r);
    free(pieces.own);
    free(pieces.other);
    return whole;
}

bool parts_are_whole(const Fsdpd__V1__KeptPart *const *parts, int count, uint32_t since)
{
    for (int i = 0; i < count; i++)
        if (since > 0 && parts[i]->valid >= since && is_whole(parts, count, parts[i])) return true;
    return false;
}

/* ---- who has what ---- */

static bool keeps(const struct worker *worker, const struct job *job)
{
    return worker->kept != NULL && strcmp(worker->kept->job, job->message->id) == 0;
}

uint32_t parts_since(const struct job *job)
{
    uint32_t since = job->elastic.kept_since;
    if (since > 0 || !job->elastic.restarted) return since;
    /* The last attempt that trained a step whose state is kept: all of its ranks had begun. */
    for (int i = 0; i < job->c->worker_count; i++) {
        const struct worker *worker = job->c->workers[i];
        for (size_t p = 0; keeps(worker, job) && p < worker->kept->n_parts; p++)
            if (worker->kept->parts[p]->attempt > since) since = worker->kept->parts[p]->attempt;
    }
    return since;
}

/* The same at the end of an attempt, whose own parts count if all of its ranks have begun. */
static uint32_t since_now(const struct job *job)
{
    bool trains =
        job->attempt != NULL && job->message->state == FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING;
    return trains ? job->message->attempt : parts_since(job);
}

bool parts_has(const struct job *job, const struct worker *worker)
{
    if (!keeps(worker, job) || worker->job != NULL) return false;
    uint32_t since = since_now(job);
    for (size_t p = 0; p < worker->kept->n_parts; p++)
        if (since > 0 && worker->kept->parts[p]->valid >= since) return true;
    return false;
}

/* Whether the job is between two attempts, or the next one has not begun on all of its ranks. */
static bool is_between(const struct job *job)
{
    if (!elastic_is_redundant(job->message) || job->unsaved) return false;
    if (job->attempt != NULL)
        return job->attempt->ending ||
               job->message->state == FSDPD__V1__JOB_STATE__JOB_STATE_STARTING;
    return job->message->state == FSDPD__V1__JOB_STATE__JOB_STATE_QUEUED &&
           coordinator_now() < job->elastic.reserved_until;
}

const struct job *parts_reserver(const struct worker *worker)
{
    if (worker->kept == NULL || worker->job != NULL) return NULL;
    const struct job *job = jobs_find(worker->c, worker->kept->job);
    if (job == NULL || !elastic_is_redundant(job->message) || !parts_has(job, worker)) return NULL;
    /* Its rank has ended, the attempt has not: the verdict says whether the next one needs it. */
    bool ends = attempt_find_rank(job, job->message->attempt, worker->id) != NULL;
    return ends || is_between(job) ? job : NULL;
}

int parts_count(const struct job *job)
{
    int count = 0;
    if (!is_between(job)) return 0;
    for (int i = 0; i < job->c->worker_count; i++) count += parts_has(job, job->c->workers[i]);
    return count;
}

static bool are_whole(const struct job *job)
{
    const struct coordinator *c = job->c;
    int count = 0;
    AUTO_FREE const Fsdpd__V1__KeptPart **parts =
        mem_alloc_array(2 * (size_t)c->worker_count + 1, sizeof *parts);
    for (int i = 0; i < c->worker_count; i++) {
        const struct worker *worker = c->workers[i];
        for (size_t p = 0; parts_has(job, worker) && p < worker->kept->n_parts && p < 2; p++)
            parts[count++] = worker->kept->parts[p];
    }
    return parts_are_whole(parts, count, since_now(job));
}

static enum part_holder holder_of(const struct job *job, int rank)
{
    const char *id = job->message->workers[rank];
    if (job->attempt != NULL)
        return attempt_rank_has_ended(&job->attempt->ranks[rank]) ? PART_HERE : PART_LATE;
    const struct worker *worker = workers_find(job->c, id);
    if (worker == NULL) return job->elastic.restarted ? PART_LATE : PART_GONE;
    bool ends = worker->job != NULL && strcmp(worker->job, job->message->id) == 0;
    return ends ? PART_LATE : PART_HERE; /* it has reported what it keeps */
}

/* Whether what the workers that are here lack may be with one that had left by order, which a restarted
 * fsdpd does not know. */
static bool others_may_attach(const struct job *job, bool whole, int64_t now)
{
    return job->elastic.restarted && !whole && now < job->elastic.back_by && parts_since(job) > 0;
}

bool parts_wait(const struct job *job, int64_t now, struct buf *late)
{
    const struct attempt *attempt = job->attempt;
    if (!is_between(job) || (attempt != NULL && (attempt->stop.cancelled || job->c->draining)))
        return false;
    bool trained = attempt != NULL && attempt->begun;
    if (!trained && job->elastic.kept_since == 0 && !job->elastic.restarted) return false;
    int count = (int)job->message->n_workers;
    AUTO_FREE enum part_holder *holders = mem_alloc_array((size_t)count + 1, sizeof *holders);
    for (int r = 0; r < count; r++) holders[r] = holder_of(job, r);
    bool whole = are_whole(job), others = others_may_attach(job, whole, now);
    holders[count] = others ? PART_LATE : PART_GONE;
    int64_t settle_at = attempt != NULL ? attempt->settle_at : job->elastic.settle_at;
    int64_t until = attempt != NULL ? INT64_MAX : job->elastic.reserved_until;
    if (parts_begin(holders, count + 1, whole, now, settle_at, until)) return false;
    for (int r = 0; r < count; r++)
        if (holders[r] == PART_LATE)
            buf_printf(late, "%srank %d (%s)", late->length > 0 ? ", " : "", r,
                       job->message->workers[r]);
    if (others) buf_printf(late, "%sa worker that had left", late->length > 0 ? " or " : "");
    return true;
}

/* ---- what changes ---- */

static void discard(struct worker *worker, const char *job)
{
    worker_release(worker, job, 0);
}

void parts_report(struct worker *worker, const Fsdpd__V1__KeptState *kept)
{
    message_free(worker->kept);
    worker->kept = NULL;
    if (kept == NULL) return;
    const struct job *job = jobs_find(worker->c, kept->job);
    int state = job != NULL ? (int)job->message->state : JOB_FAILED;
    bool lives = state == JOB_QUEUED || state == JOB_STARTING || state == JOB_RUNNING;
    if (lives && elastic_is_redundant(job->message)) worker->kept = message_copy(kept);
    else discard(worker, kept->job);
}

void parts_attempt_begun(struct job *job)
{
    job->elastic.restarted = false;
    for (int i = 0; i < job->c->worker_count; i++) {
        struct worker *worker = job->c->workers[i];
        if (worker->job == NULL && keeps(worker, job)) {
            discard(worker, job->message->id);
            parts_report(worker, NULL);
        }
    }
}

void parts_recover(struct job *job)
{
    if (!elastic_is_redundant(job->message) || job->message->attempt == 0) return;
    const struct coordinator_limits *limits = &job->c->options.limits;
    job->elastic.restarted = true;
    job->elastic.settle_at = coordinator_now() + limits->settle_ms;
    job->elastic.reserved_until = job->elastic.back_by = coordinator_now() + limits->reattach_ms;
}
