/*
 * The search; see search.h. explore.c decides which points are evaluated.
 *
 * Graphs depend on the batch and on what is computed again, so there is one session for each pair
 * of these. No state outside of a search; any thread.
 */
#include "planning/search_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "setup/outside.h"

/* Times that differ by less are a tie, which less memory decides. */
static const double TIE = 0.001;
/* Alternatives that differ by less, with the same memory, are not worth a line each. */
static const double ALIKE = 0.005;
/* Estimates miss what ranks wait for each other in every batch: of plans whose times differ by less
 * than this, those with the fewest batches win. */
static const double BATCHES_TIE = 0.02;

/* Plans that take that much longer than a sketch are worth another search. */
static const double SLOWER = 0.02;

enum {
    TRIES_MIN = 12, /* full plans */
    TRIES_MAX = 100,
    ROOM_MAX = 6,          /* quarters of what a full plan needs more than its sketch said */
    TRIES_WORK = 20000,    /* the instructions of them all */
    WORK_OF_POINT = 80,    /* the fixed cost of a sketch */
    EVALUATED_WORK = 1000, /* of a sketch that includes evaluation */
    SESSIONS_MIN = 16,
    SESSIONS_WORK = 100000, /* the instructions of the sessions that are kept, about 100 MB */
};

/* ---- Evaluation ---- */

static struct evaluation *find_outcome(struct searching *search, uint64_t key)
{
    uint64_t slot = key * UINT64_C(0x9e3779b97f4a7c15);
    for (;; slot++) {
        struct evaluation *outcome = &search->outcomes[slot & (search->capacity - 1)];
        if (!outcome->known || outcome->key == key) return outcome;
    }
}

static void grow(struct searching *search)
{
    if (search->evaluated * 2 < search->capacity) return;
    struct evaluation *before = search->outcomes;
    uint64_t count = search->capacity;
    search->capacity = count == 0 ? 1024 : count * 2;
    search->outcomes = mem_alloc_array(search->capacity, sizeof *search->outcomes);
    for (uint64_t i = 0; i < count; i++)
        if (before[i].known) *find_outcome(search, before[i].key) = before[i];
    free(before);
}

/* Keeps the first error: it says why nothing can be planned. */
static void note_error(struct searching *search, status_t status)
{
    if (search->first_error == NULL) search->first_error = status;
    else status_free(status);
}

/* Makes the session the latest one, and frees the one that was used least recently. */
static void keep_session(struct searching *search, int index)
{
    int at = 0, last = search->recent_count;
    while (at < last && search->recent[at] != index) at++;
    if (at == search->recent_max) {
        at--;
        train_session_free(search->sessions[search->recent[at]]);
        search->sessions[search->recent[at]] = NULL;
    } else if (at == last) {
        search->recent_count++;
    }
    memmove(&search->recent[1], &search->recent[0], (size_t)at * sizeof *search->recent);
    search->recent[0] = index;
}

static struct train_session *find_session(struct searching *search, struct point point)
{
    int index = point.at[DIMENSION_BATCH] * space_size(search->space, DIMENSION_RECOMPUTE) +
                point.at[DIMENSION_RECOMPUTE];
    if (search->impossible[index]) return NULL;
    if (search->sessions[index] != NULL) {
        keep_session(search, index);
        return search->sessions[index];
    }
    struct space_job base_job;
    struct point base = {.at = {[DIMENSION_BATCH] = point.at[DIMENSION_BATCH],
                                [DIMENSION_RECOMPUTE] = point.at[DIMENSION_RECOMPUTE]}};
    space_apply(search->space, base, &base_job);
    base_job.job.weights = NULL;
    base_job.job.evaluate = base_job.job.evaluate && search->evaluates;
    status_t status = train_session_new_unplanned(&base_job.job, search->advisor->device,
                                                  &search->sessions[index]);
    space_job_deinit(&base_job);
    if (status == NULL) {
        keep_session(search, index);
        return search->sessions[index];
    }
    search->impossible[index] = true;
    note_error(search, status);
    return NULL;
}

/* Adds the times of one program, `count` times. */
static void add_program(const struct plan *plan, const struct plan_program *program,
                        const struct plan_rates *rates, double count, struct plan_estimate *sum)
{
    struct plan_timing *timings = mem_alloc_array(program->instruction_count, sizeof *timings);
    struct plan_estimate estimate;
    plan_estimate_program(plan, program, rates, timings, &estimate);
    free(timings);
    sum->step_seconds += count * estimate.step_seconds;
    sum->compute_seconds += count * estimate.compute_seconds;
    sum->communication_seconds += count * estimate.communication_seconds;
    sum->copy_seconds += count * estimate.copy_seconds;
    sum->download_seconds += count * estimate.download_seconds;
    sum->host_seconds += count * estimate.host_seconds;
    sum->exposed_seconds += count * estimate.exposed_seconds;
    sum->flops += count * estimate.flops;
}

void search_estimate(const struct plan *plan, const struct plan_rates *rates,
                     struct plan_estimate *estimate)
{
    *estimate = (struct plan_estimate){0};
    add_program(plan, &plan->train, rates, 1, estimate);
    if (plan->options.accumulation != ACCUMULATION_NONE)
        add_program(plan, &plan->accumulate, rates, (double)plan->options.micro_steps - 1,
                    estimate);
}

static void sketch(struct searching *search, struct point point, struct evaluation *outcome)
{
    struct train_session *session = find_session(search, point);
    if (session == NULL) return;
    struct space_job job;
    struct unit_set *units;
    struct plan *plan;
    struct plan_estimate estimate;
    space_apply(search->space, point, &job);
    status_t status = train_session_sketch(session, &job.job, &units, &plan);
    space_job_deinit(&job);
    if (status != NULL) {
        note_error(search, status);
        return;
    }
    search_estimate(plan, &search->advisor->profile->rates, &estimate);
    outcome->possible = true;
    outcome->seconds = plan_message_round(estimate.step_seconds);
    outcome->batches =
        plan->options.accumulation != ACCUMULATION_NONE ? (uint32_t)plan->options.micro_steps : 1;
    outcome->peak = plan->peak_bytes;
    outcome->host = plan->host_bytes;
    outcome->outside = train_session_outside_bytes(session);
    uint64_t work = (uint64_t)plan->train.instruction_count +
                    (uint64_t)plan->accumulate.instruction_count +
                    (uint64_t)plan->evaluate.instruction_count + WORK_OF_POINT;
    search->work = search->work > work ? search->work - work : 0;
    plan_free(plan);
    units_free(units);
}

const struct evaluation *search_evaluate(struct searching *search, struct point point)
{
    grow(search);
    point = space_canonical(search->space, point);
    uint64_t key = space_key(search->space, point);
    struct evaluation *outcome = find_outcome(search, key);
    if (outcome->known) return outcome;
    *outcome = (struct evaluation){.key = key, .known = true, .point = point};
    search->evaluated++;
    sketch(search, point, outcome);
    return outcome;
}

/* ---- Comparison ---- */

bool search_fits(const struct searching *search, const struct evaluation *outcome)
{
    const struct advisor *advisor = search->advisor;
    uint64_t ranks = (uint64_t)advisor_host_ranks(advisor, advisor->job);
    if (!outcome->possible ||
        outcome->peak + outcome->outside + search->gap > advisor->memory_bytes)
        return false;
    return advisor->host_memory_bytes == 0 || outcome->host <= advisor->host_memory_bytes / ranks;
}

bool search_prefers(const struct searching *search, const struct evaluation *a,
                    const struct evaluation *b)
{
    if (a->possible != b->possible) return a->possible;
    bool a_fits = search_fits(search, a), b_fits = search_fits(search, b);
    if (a_fits != b_fits) return a_fits;
    if (!a_fits || search->frugal)
        return a->peak != b->peak ? a->peak < b->peak : a->seconds < b->seconds;
    return a->seconds != b->seconds ? a->seconds < b->seconds : a->peak < b->peak;
}

/* ---- Full plans ---- */

static bool spans_hosts(const struct advisor *advisor)
{
    return advisor->job->world > advisor->profile->rates.devices_per_host;
}

static void find_largest_op(const struct graph *graph, struct found *found)
{
    for (int i = 0; i < graph->op_count; i++) {
        struct op_desc desc;
        graph_describe_op(graph, i, &desc);
        uint64_t bytes = op_desc_bytes(&desc);
        if (bytes <= found->op_bytes) continue;
        found->op_bytes = bytes;
        snprintf(found->op, sizeof found->op, "%s", graph->ops[i].name);
    }
}

/* Describes a point by its full plan. */
static void describe(struct searching *search, const struct plan *plan, struct found *found)
{
    const struct plan_program *program = &plan->train;
    struct plan_rates rates = search->advisor->profile->rates;
    struct plan_estimate unlimited;
    search_estimate(plan, &rates, &found->estimate);
    rates.tables = NULL;
    rates.memory_bandwidth = 1e30;
    rates.op_seconds = 0;
    search_estimate(plan, &rates, &unlimited);
    found->arithmetic_seconds = unlimited.compute_seconds;
    found->seconds = plan_message_round(found->estimate.step_seconds);
    found->peak = plan->peak_bytes;
    found->host = plan->host_bytes;
    found->across_hosts = spans_hosts(search->advisor);
    find_largest_op(program->graph, found);
    for (int c = 0; c < BUFFER_CLASS_COUNT; c++) {
        if (program->class_bytes_at_peak[c] <= found->largest_bytes) continue;
        found->largest = (enum buffer_class)c;
        found->largest_bytes = program->class_bytes_at_peak[c];
    }
}

/* Whether the point's full plan fits, or with `anyway` exists. */
static bool plan_fully(struct searching *search, struct point point, bool anyway,
                       struct found *found)
{
    struct space_job applied;
    struct train_session *session = NULL;
    space_apply(search->space, point, &applied);
    struct train_job *job = &applied.job;
    job->weights = NULL;
    *found = (struct found){.point = point};
    status_t status = train_session_new(job, search->advisor->device, 0, true, &session);
    if (status == NULL) {
        describe(search, train_session_plan(session), found);
        found->outside = train_session_outside_bytes(session);
        if (!anyway) status = advisor_check_fits(search->advisor, job, session);
    }
    train_session_free(session);
    space_job_deinit(&applied);
    bool good = status == NULL;
    status_free(status);
    return good;
}

struct order {
    const struct searching *search;
    uint32_t batches; /* points with this number of batches per step */
    double tied; /* and at most these seconds are equally fast */
};

static bool is_tied(const struct order *order, const struct evaluation *outcome)
{
    return search_fits(order->search, outcome) && outcome->batches == order->batches &&
           outcome->seconds <= order->tied;
}

/* The number of dimensions in which a point is not PyTorch's default. */
static int count_changes(const struct searching *search, struct point point)
{
    int count = 0;
    for (int d = 0; d < DIMENSION_COUNT; d++)
        count += space_words(search->space, d, point.at[d])[0] != '\0';
    return count;
}

/* Sizes that differ by about a percent are the same. */
static int64_t rounded_log(uint64_t bytes)
{
    return (int64_t)floor(log((double)bytes) * 100);
}

/* Points that fit come first: those tied for the fastest by memory and simplicity, then the others
 * by time. */
static int compare(const void *a, const void *b, void *user)
{
    const struct order *order = user;
    const struct evaluation *x = *(const struct evaluation *const *)a;
    const struct evaluation *y = *(const struct evaluation *const *)b;
    bool x_tied = is_tied(order, x), y_tied = is_tied(order, y);
    if (x_tied != y_tied) return x_tied ? -1 : 1;
    int64_t memory = x_tied ? rounded_log(x->peak) - rounded_log(y->peak) : 0;
    if (memory != 0) return memory < 0 ? -1 : 1;
    int changes =
        x_tied ? count_changes(order->search, x->point) - count_changes(order->search, y->point)
               : 0;
    if (changes != 0) return changes;
    if (search_prefers(order->search, x, y)) return -1;
    return search_prefers(order->search, y, x) ? 1 : (x->key > y->key) - (x->key < y->key);
}

/* Whether the result has a point that differs only in how units are fetched, or that takes as long
 * and needs as much memory. */
static bool is_known(const struct search_result *result, const struct evaluation *outcome)
{
    for (int i = 0; i < result->count; i++) {
        const struct found *best = &result->best[i];
        struct point point = best->point;
        point.at[DIMENSION_FETCH] = outcome->point.at[DIMENSION_FETCH];
        if (memcmp(&point, &outcome->point, sizeof point) == 0) return true;
        if (fabs(best->seconds - outcome->seconds) <= ALIKE * best->seconds &&
            rounded_log(best->peak) == rounded_log(outcome->peak))
            return true;
    }
    return false;
}

/* All points that can be planned; returns their number. `*promised` is the least time of those that
 * fit and have as few batches as the best one. */
static size_t sort_points(const struct searching *search, struct evaluation **sorted,
                          double *promised)
{
    struct order order = {search, UINT32_MAX, INFINITY};
    size_t count = 0;
    double fastest = INFINITY;
    for (uint64_t i = 0; i < search->capacity; i++) {
        struct evaluation *outcome = &search->outcomes[i];
        if (!outcome->known || !outcome->possible) continue;
        sorted[count++] = outcome;
        if (search_fits(search, outcome)) fastest = fmin(fastest, outcome->seconds);
    }
    for (size_t i = 0; i < count; i++)
        if (search_fits(search, sorted[i]) && sorted[i]->seconds <= fastest * (1 + BATCHES_TIE) &&
            sorted[i]->batches < order.batches)
            order.batches = sorted[i]->batches;
    *promised = INFINITY;
    for (size_t i = 0; i < count; i++)
        if (search_fits(search, sorted[i]) && sorted[i]->batches == order.batches)
            *promised = fmin(*promised, sorted[i]->seconds);
    order.tied = *promised * (1 + TIE);
    qsort_r(sorted, count, sizeof *sorted, compare, &order);
    return count;
}

/* Plans the best points in full, in order, until there are enough that fit; notes what the others
 * need, and in `*excess` the least by which one needs more than its sketch said. Returns whether
 * the fastest is as fast as sketches promised. */
static bool select_best(struct searching *search, struct search_result *result, uint64_t *excess)
{
    struct evaluation **sorted = mem_alloc_array(search->capacity, sizeof *sorted);
    double promised;
    size_t count = sort_points(search, sorted, &promised);
    int tries = search->tries;
    result->count = 0;
    for (size_t i = 0; i < count && result->count < SEARCH_BEST_MAX && tries > 0; i++) {
        struct evaluation *outcome = sorted[i];
        struct found found;
        if (!search_fits(search, outcome)) break;
        if (is_known(result, outcome)) continue;
        tries--;
        if (plan_fully(search, outcome->point, false, &found)) {
            result->best[result->count++] = found;
            continue;
        }
        uint64_t sketched = outcome->peak + outcome->outside, needed = found.peak + found.outside;
        if (needed > sketched && needed - sketched < *excess) *excess = needed - sketched;
        outcome->possible = needed > search->advisor->memory_bytes;
        outcome->peak = found.peak;
        outcome->outside = found.outside;
    }
    free(sorted);
    return result->count > 0 && result->best[0].seconds <= promised * (1 + SLOWER);
}

/* Sketches say too little where evaluation, or fragments, need the most memory. If what fits is
 * slower than sketches promised, the search continues for points that leave room, more and more. */
static void select_with_room(struct searching *search, uint64_t work, struct search_result *result)
{
    uint64_t excess = UINT64_MAX;
    bool done = select_best(search, result, &excess) || excess == UINT64_MAX;
    for (uint64_t quarters = 1; !done && quarters <= ROOM_MAX; quarters++) {
        struct search_result other = *result;
        search->gap = excess / 4 * quarters;
        search->work = work / 8;
        search_explore_more(search);
        done = select_best(search, &other, &excess);
        if (other.count > 0 &&
            (result->count == 0 || other.best[0].seconds < result->best[0].seconds))
            *result = other;
    }
    search->gap = 0;
}

/* The settings that need least, whether they fit or not. */
static void select_frugal(struct searching *search, uint64_t work, struct evaluation *best,
                          struct search_result *result)
{
    search->frugal = true;
    search->work = work / 4;
    search_explore_frugal(search, best);
    if (plan_fully(search, best->point, false, &result->best[0])) result->count = 1;
    else plan_fully(search, best->point, true, &result->best[0]);
}

static void search_deinit(struct searching *search)
{
    int sessions =
        space_size(search->space, DIMENSION_BATCH) * space_size(search->space, DIMENSION_RECOMPUTE);
    for (int i = 0; i < sessions; i++) train_session_free(search->sessions[i]);
    free(search->sessions);
    free(search->recent);
    free(search->impossible);
    free(search->outcomes);
    status_free(search->first_error);
}

static void forget(struct searching *search)
{
    while (search->recent_count > 0) {
        int index = search->recent[--search->recent_count];
        train_session_free(search->sessions[index]);
        search->sessions[index] = NULL;
    }
    free(search->outcomes);
    search->outcomes = NULL;
    search->capacity = search->evaluated = 0;
}

status_t search_run(struct advisor *advisor, const struct space *space, uint64_t work,
                    struct search_result *result)
{
    size_t sessions =
        (size_t)space_size(space, DIMENSION_BATCH) * (size_t)space_size(space, DIMENSION_RECOMPUTE);
    struct searching search = {.advisor = advisor,
                               .space = space,
                               .work = work,
                               .sessions = mem_alloc_array(sessions, sizeof *search.sessions),
                               .impossible = mem_alloc_array(sessions, sizeof *search.impossible),
                               .recent = mem_alloc_array(sessions, sizeof *search.recent),
                               .recent_max = (int)sessions};
    struct evaluation best = {0};
    *result = (struct search_result){.points = space_points(space)};
    search_evaluate(&search, (struct point){0}); /* what points cost */
    uint64_t cost = work - search.work + WORK_OF_POINT;
    search.evaluates = cost <= EVALUATED_WORK;
    if (search.evaluates) forget(&search);
    search.tries = TRIES_WORK / cost < TRIES_MIN   ? TRIES_MIN
                   : TRIES_WORK / cost > TRIES_MAX ? TRIES_MAX
                                                   : (int)(TRIES_WORK / cost);
    if (SESSIONS_WORK / cost < sessions)
        search.recent_max = SESSIONS_WORK / cost > SESSIONS_MIN ? (int)(SESSIONS_WORK / cost)
                            : sessions < SESSIONS_MIN           ? (int)sessions
                                                                : SESSIONS_MIN;
    if (result->points <= work / cost) search_enumerate(&search, &best);
    else search_explore(&search, &best);
    if (best.possible) select_with_room(&search, work, result);
    if (best.possible && result->count == 0) select_frugal(&search, work, &best, result);
    result->evaluated = search.evaluated;
    status_t status = NULL;
    if (!best.possible) {
        status = search.first_error;
        search.first_error = NULL;
    }
    search_deinit(&search);
    return status;
}
