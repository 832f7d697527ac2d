/*
 * The search; see search.h. Small spaces are enumerated. In larger ones it descends from several
 * starts: it changes one dimension at a time, then two, as long as that improves the best point. A
 * point that does not fit is worse than any that does; among those, less memory is better.
 *
 * Graphs depend on the batch and on what is computed again, so there is one session for each pair
 * of these. No state outside of a search; any thread.
 */
#include "planning/search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "train/outside.h"

/* Times that differ by less are a tie, which less memory decides. */
static const double TIE = 0.005;
/* Estimates miss what ranks wait for each other in every batch: of plans whose times differ by less
 * than this, those with the fewest batches win. */
static const double BATCHES_TIE = 0.02;

enum {
    CANDIDATES_MAX = 12,
    /* full plans */ WORK_OF_POINT = 50, /* the fixed cost of a sketch */
    RESTARTS_MAX = 256
};

struct evaluation {
    uint64_t key;
    bool known, possible; /* possible: it can be planned */
    uint32_t batches;     /* of a step */
    struct point point;
    double seconds;
    uint64_t peak, host, outside;
};

struct searching {
    struct advisor *advisor;
    const struct space *space;
    uint64_t work, evaluated;
    struct train_session **sessions; /* by batch and recomputation; NULL: not made */
    bool *impossible;                /* likewise: has no session */
    struct evaluation *outcomes;     /* hash table by key */
    uint64_t capacity;               /* a power of two */
    status_t first_error;
    bool frugal;  /* the goal is least memory */
    uint64_t gap; /* by which a full plan needs more than its sketch said */
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

static struct train_session *find_session(struct searching *search, struct point point)
{
    int index = point.at[DIMENSION_BATCH] * space_size(search->space, DIMENSION_RECOMPUTE) +
                point.at[DIMENSION_RECOMPUTE];
    if (search->sessions[index] != NULL || search->impossible[index])
        return search->sessions[index];
    struct train_job job;
    struct point base = {.at = {[DIMENSION_BATCH] = point.at[DIMENSION_BATCH],
                                [DIMENSION_RECOMPUTE] = point.at[DIMENSION_RECOMPUTE]}};
    space_apply(search->space, base, &job);
    job.weights = NULL;
    job.evaluate = false;
    status_t status =
        train_session_new_unplanned(&job, search->advisor->device, &search->sessions[index]);
    if (status == NULL) return search->sessions[index];
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
    struct train_job job;
    struct unit_set *units;
    struct plan *plan;
    struct plan_estimate estimate;
    space_apply(search->space, point, &job);
    status_t status = train_session_sketch(session, &job, &units, &plan);
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
                    (uint64_t)plan->accumulate.instruction_count + WORK_OF_POINT;
    search->work = search->work > work ? search->work - work : 0;
    plan_free(plan);
    units_free(units);
}

static const struct evaluation *evaluate(struct searching *search, struct point point)
{
    grow(search);
    uint64_t key = space_key(search->space, point);
    struct evaluation *outcome = find_outcome(search, key);
    if (outcome->known) return outcome;
    *outcome = (struct evaluation){.key = key, .known = true, .point = point};
    search->evaluated++;
    sketch(search, point, outcome);
    return outcome;
}

/* ---- Comparison ---- */

static bool fits(const struct searching *search, const struct evaluation *outcome)
{
    const struct advisor *advisor = search->advisor;
    uint64_t ranks = (uint64_t)advisor_host_ranks(advisor, advisor->job);
    if (!outcome->possible ||
        outcome->peak + outcome->outside + search->gap > advisor->memory_bytes)
        return false;
    return advisor->host_memory_bytes == 0 || outcome->host <= advisor->host_memory_bytes / ranks;
}

/* Whether the search prefers `a`. Only exact comparisons: with ties, an order of improvements might
 * go around in a circle. */
static bool is_better(const struct searching *search, const struct evaluation *a,
                      const struct evaluation *b)
{
    if (a->possible != b->possible) return a->possible;
    bool a_fits = fits(search, a), b_fits = fits(search, b);
    if (a_fits != b_fits) return a_fits;
    if (!a_fits || search->frugal)
        return a->peak != b->peak ? a->peak < b->peak : a->seconds < b->seconds;
    return a->seconds != b->seconds ? a->seconds < b->seconds : a->peak < b->peak;
}

/* ---- Search ---- */

/* Tries all options of a dimension; returns whether *best has improved. */
static bool vary(struct searching *search, struct point from, enum dimension dimension,
                 struct evaluation *best)
{
    bool improved = false;
    for (int i = 0; i < space_size(search->space, dimension) && search->work > 0; i++) {
        from.at[dimension] = i;
        const struct evaluation *outcome = evaluate(search, from);
        if (!is_better(search, outcome, best)) continue;
        *best = *outcome;
        improved = true;
    }
    return improved;
}

static void descend(struct searching *search, struct point start, struct evaluation *best)
{
    *best = *evaluate(search, start);
    for (bool improved = true; improved && search->work > 0;) {
        improved = false;
        for (int d = 0; d < DIMENSION_COUNT; d++)
            improved = vary(search, best->point, d, best) || improved;
    }
}

/* Pairs of dimensions whose options depend on each other, the closest first. */
static const enum dimension PAIRS[][2] = {
    {DIMENSION_BATCH, DIMENSION_RECOMPUTE},  {DIMENSION_SHARDING, DIMENSION_RECOMPUTE},
    {DIMENSION_SHARDING, DIMENSION_BATCH},   {DIMENSION_SHARDING, DIMENSION_FETCH},
    {DIMENSION_UNITS, DIMENSION_SHARDING},   {DIMENSION_UNITS, DIMENSION_FETCH},
    {DIMENSION_OFFLOAD, DIMENSION_SHARDING}, {DIMENSION_OFFLOAD, DIMENSION_RECOMPUTE},
    {DIMENSION_OFFLOAD, DIMENSION_BATCH},    {DIMENSION_UNITS, DIMENSION_RECOMPUTE},
    {DIMENSION_UNITS, DIMENSION_BATCH},      {DIMENSION_RECOMPUTE, DIMENSION_FETCH},
};

/* One round over all pairs; returns whether *best has improved. */
static bool vary_pairs(struct searching *search, struct evaluation *best)
{
    bool improved = false;
    for (size_t p = 0; p < COUNT_OF(PAIRS); p++) {
        struct point point = best->point;
        for (int i = 0; i < space_size(search->space, PAIRS[p][0]) && search->work > 0; i++) {
            point.at[PAIRS[p][0]] = i;
            improved = vary(search, point, PAIRS[p][1], best) || improved;
        }
    }
    return improved;
}

static struct point frugal_point(const struct space *space)
{
    struct point point;
    for (int d = 0; d < DIMENSION_COUNT; d++) point.at[d] = space_frugal(space, d);
    return point;
}

/* The same points in every search: advances a linear congruential generator (Knuth's MMIX). */
static struct point random_point(const struct space *space, uint64_t *state)
{
    struct point point;
    for (int d = 0; d < DIMENSION_COUNT; d++) {
        *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        point.at[d] = (int)((*state >> 33) % (uint64_t)space_size(space, d));
    }
    return point;
}

static void explore(struct searching *search, struct evaluation *best)
{
    const struct space *space = search->space;
    descend(search, (struct point){0}, best);
    struct point starts[3] = {frugal_point(space), frugal_point(space)};
    starts[1].at[DIMENSION_OFFLOAD] = 0;
    for (int i = 0; i < 3 && search->work > 0; i++) {
        struct evaluation other;
        starts[2].at[DIMENSION_SHARDING] = space_size(space, DIMENSION_SHARDING) - 1;
        descend(search, starts[i], &other);
        if (is_better(search, &other, best)) *best = other;
    }
    while (search->work > 0 && vary_pairs(search, best)) {}
    uint64_t random = 1;
    for (int i = 0; i < RESTARTS_MAX && search->work > 0; i++) {
        struct evaluation other;
        descend(search, random_point(space, &random), &other);
        if (!is_better(search, &other, best)) continue;
        *best = other;
        while (search->work > 0 && vary_pairs(search, best)) {}
    }
}

static void enumerate(struct searching *search, struct evaluation *best)
{
    const struct space *space = search->space;
    struct point point = {0};
    for (int d = 0; d < DIMENSION_COUNT && search->work > 0;) {
        const struct evaluation *outcome = evaluate(search, point);
        if (is_better(search, outcome, best)) *best = *outcome;
        for (d = 0; d < DIMENSION_COUNT && ++point.at[d] == space_size(space, d); d++)
            point.at[d] = 0;
    }
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
    struct train_job job;
    struct train_session *session = NULL;
    space_apply(search->space, point, &job);
    job.weights = NULL;
    *found = (struct found){.point = point};
    status_t status = train_session_new(&job, search->advisor->device, 0, true, &session);
    if (status == NULL) {
        describe(search, train_session_plan(session), found);
        found->outside = train_session_outside_bytes(session);
        if (!anyway) status = advisor_check_fits(search->advisor, &job, session);
    }
    train_session_free(session);
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
    return fits(order->search, outcome) && outcome->batches == order->batches &&
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
    if (is_better(order->search, x, y)) return -1;
    return is_better(order->search, y, x) ? 1 : (x->key > y->key) - (x->key < y->key);
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
        if (fabs(best->seconds - outcome->seconds) <= TIE * best->seconds &&
            rounded_log(best->peak) == rounded_log(outcome->peak))
            return true;
    }
    return false;
}

/* All points that can be planned; returns their number. */
static size_t sort_points(const struct searching *search, const struct evaluation **sorted)
{
    struct order order = {search, UINT32_MAX, INFINITY};
    size_t count = 0;
    double fastest = INFINITY;
    for (uint64_t i = 0; i < search->capacity; i++) {
        const struct evaluation *outcome = &search->outcomes[i];
        if (!outcome->known || !outcome->possible) continue;
        sorted[count++] = outcome;
        if (fits(search, outcome)) fastest = fmin(fastest, outcome->seconds);
    }
    for (size_t i = 0; i < count; i++)
        if (fits(search, sorted[i]) && sorted[i]->seconds <= fastest * (1 + BATCHES_TIE) &&
            sorted[i]->batches < order.batches)
            order.batches = sorted[i]->batches;
    for (size_t i = 0; i < count; i++)
        if (fits(search, sorted[i]) && sorted[i]->batches == order.batches)
            order.tied = fmin(order.tied, sorted[i]->seconds * (1 + TIE));
    qsort_r(sorted, count, sizeof *sorted, compare, &order);
    return count;
}

/* Plans the best points in full, in order, until there are enough that fit. Returns by how much a
 * point that does not fit needs more than its sketch said. */
static uint64_t select_best(struct searching *search, struct search_result *result)
{
    const struct evaluation **sorted = mem_alloc_array(search->capacity, sizeof *sorted);
    size_t count = sort_points(search, sorted);
    int tries = CANDIDATES_MAX;
    uint64_t gap = 0;
    for (size_t i = 0; i < count && result->count < SEARCH_BEST_MAX && tries > 0; i++) {
        struct found found;
        if (!fits(search, sorted[i])) break;
        if (is_known(result, sorted[i])) continue;
        tries--;
        uint64_t sketched = sorted[i]->peak + sorted[i]->outside;
        if (plan_fully(search, sorted[i]->point, false, &found))
            result->best[result->count++] = found;
        else if (found.peak + found.outside > sketched + gap)
            gap = found.peak + found.outside - sketched;
    }
    free(sorted);
    return gap;
}

/* Sketches say too little where evaluation, or fragments, need the most memory: if no candidate
 * fits, others are taken that leave room for that. */
static void select_with_room(struct searching *search, struct search_result *result)
{
    uint64_t gap;
    while ((gap = select_best(search, result)) > search->gap && result->count == 0)
        search->gap = gap;
    search->gap = 0;
}

/* The settings that need least, whether they fit or not. */
static void select_frugal(struct searching *search, uint64_t work, struct evaluation *best,
                          struct search_result *result)
{
    search->frugal = true;
    search->work = work / 4;
    descend(search, frugal_point(search->space), best);
    if (plan_fully(search, best->point, false, &result->best[0])) result->count = 1;
    else plan_fully(search, best->point, true, &result->best[0]);
}

static void search_deinit(struct searching *search)
{
    int sessions =
        space_size(search->space, DIMENSION_BATCH) * space_size(search->space, DIMENSION_RECOMPUTE);
    for (int i = 0; i < sessions; i++) train_session_free(search->sessions[i]);
    free(search->sessions);
    free(search->impossible);
    free(search->outcomes);
    status_free(search->first_error);
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
                               .impossible = mem_alloc_array(sessions, sizeof *search.impossible)};
    struct evaluation best = {0};
    *result = (struct search_result){.points = space_points(space)};
    evaluate(&search, (struct point){0}); /* what points cost */
    uint64_t cost = work - search.work + WORK_OF_POINT;
    if (result->points <= work / cost) enumerate(&search, &best);
    else explore(&search, &best);
    if (best.possible) select_with_room(&search, result);
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
