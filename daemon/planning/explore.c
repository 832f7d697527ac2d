/*
 * Which points a search evaluates. Small spaces are enumerated. In larger ones it descends from
 * several starts: it changes one dimension at a time, then two, as long as that improves the best
 * point; then it gives some units settings of their own. A point that does not fit is worse than
 * any that does; among those, less memory is better. No state; any thread.
 */
#include <string.h>

#include "base/array.h"
#include "planning/search_internal.h"

enum {
    WORK_OWN = 4,       /* the part of the work for units' own settings */
    WORK_OWN_SMALL = 2, /* the same for small plans */
    REPAIRS_MAX = 16,
    RESTARTS_MAX = 256
};

/* Tries all options of a dimension; returns whether *best has improved. */
static bool vary(struct searching *search, struct point from, enum dimension dimension,
                 struct evaluation *best)
{
    bool improved = false;
    for (int i = 0; i < space_size(search->space, dimension) && search->work > 0; i++) {
        from.at[dimension] = i;
        const struct evaluation *outcome = search_evaluate(search, from);
        if (!search_prefers(search, outcome, best)) continue;
        *best = *outcome;
        improved = true;
    }
    return improved;
}

/* Changes the dimensions before `end` that follow `from`. */
static void improve(struct searching *search, enum dimension from, enum dimension end,
                    struct evaluation *best)
{
    for (bool improved = true; improved && search->work > 0;) {
        improved = false;
        for (int d = from; d < (int)end; d++)
            improved = vary(search, best->point, d, best) || improved;
    }
}

static void descend(struct searching *search, struct point start, struct evaluation *best)
{
    *best = *search_evaluate(search, start);
    improve(search, 0, DIMENSION_OWN, best);
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

/* Tries all options of two dimensions, those of units' own settings for every share of the units.
 */
static bool vary_pair(struct searching *search, enum dimension first, enum dimension second,
                      struct evaluation *best)
{
    struct point point = best->point;
    int shares = second == DIMENSION_OWN ? space_size(search->space, DIMENSION_SHARE) : 1;
    bool improved = false;
    for (int i = 0; i < space_size(search->space, first) && search->work > 0; i++) {
        point.at[first] = i;
        for (int share = 0; share < shares; share++) {
            if (shares > 1) point.at[DIMENSION_SHARE] = share;
            improved = vary(search, point, second, best) || improved;
        }
    }
    return improved;
}

/* Varies all pairs as long as that improves *best; without units' own settings. */
static void vary_pairs(struct searching *search, struct evaluation *best)
{
    for (bool improved = true; improved && search->work > 0;) {
        improved = false;
        for (size_t p = 0; p < COUNT_OF(PAIRS); p++)
            improved = vary_pair(search, PAIRS[p][0], PAIRS[p][1], best) || improved;
    }
}

/* Whether both divide the batch and the model in the same way. */
static bool is_alike(const struct evaluation *a, const struct evaluation *b)
{
    return a->point.at[DIMENSION_BATCH] == b->point.at[DIMENSION_BATCH] &&
           a->point.at[DIMENSION_UNITS] == b->point.at[DIMENSION_UNITS] &&
           a->point.at[DIMENSION_OFFLOAD] == b->point.at[DIMENSION_OFFLOAD];
}

/* The fastest points that do not fit, without units' own settings, none alike; returns their
 * number. */
static int find_misfits(const struct searching *search, const struct evaluation *best,
                        struct evaluation misfits[static REPAIRS_MAX])
{
    int count = 0;
    for (uint64_t i = 0; i < search->capacity; i++) {
        const struct evaluation *outcome = &search->outcomes[i];
        if (!outcome->known || !outcome->possible || search_fits(search, outcome) ||
            outcome->seconds >= best->seconds || outcome->point.at[DIMENSION_OWN] != 0)
            continue;
        int at = 0; /* where it would replace another */
        while (at < count && !is_alike(&misfits[at], outcome)) at++;
        if (at == count && count < REPAIRS_MAX) count++;
        else if (at == count) at--;
        if (misfits[at].known && misfits[at].seconds <= outcome->seconds) continue;
        for (; at > 0 && misfits[at - 1].seconds > outcome->seconds; at--)
            misfits[at] = misfits[at - 1];
        misfits[at] = *outcome;
    }
    return count;
}

/* Points that are faster than the best one may fit if some of their units have other settings, with
 * or without less prefetching. Returns whether *best has improved. */
static bool repair(struct searching *search, struct evaluation *best)
{
    struct evaluation misfits[REPAIRS_MAX] = {0};
    bool improved = false;
    int count = search->frugal ? 0 : find_misfits(search, best, misfits);
    for (int i = 0; i < 2 * count; i++) {
        struct point point = misfits[i / 2].point;
        if (i % 2 == 1) point.at[DIMENSION_FETCH] = space_frugal(search->space, DIMENSION_FETCH);
        for (int share = 0; share < space_size(search->space, DIMENSION_SHARE); share++) {
            point.at[DIMENSION_SHARE] = share;
            improved = vary(search, point, DIMENSION_OWN, best) || improved;
        }
    }
    return improved;
}

/* For each option of a dimension: the best strategy, and the best settings of some units, with it.
 * Returns whether *best has improved. */
static bool vary_with_own(struct searching *search, enum dimension dimension,
                          struct evaluation *best)
{
    const struct point from = best->point;
    bool improved = false;
    for (int i = 0; i < space_size(search->space, dimension) && search->work > 0; i++) {
        struct point point = from;
        point.at[dimension] = i;
        struct evaluation other = *search_evaluate(search, point);
        vary_pair(search, DIMENSION_SHARDING, DIMENSION_OWN, &other);
        improve(search, 0, DIMENSION_COUNT, &other);
        if (!search_prefers(search, &other, best)) continue;
        *best = other;
        improved = true;
    }
    return improved;
}

/* The best point for every division into batches, offloaded and not: what another batch needs in
 * order to fit may be several changes. Returns whether *best has improved. */
static bool vary_batches(struct searching *search, struct evaluation *best)
{
    const struct point from = best->point;
    const int offloads = space_size(search->space, DIMENSION_OFFLOAD);
    bool improved = false;
    for (int i = 0; i < offloads * space_size(search->space, DIMENSION_BATCH); i++) {
        if (search->work == 0) break;
        struct point point = from;
        point.at[DIMENSION_BATCH] = i / offloads;
        point.at[DIMENSION_OFFLOAD] = i % offloads;
        struct evaluation other = *search_evaluate(search, point);
        for (int round = 0; round < 2; round++) {
            improve(search, DIMENSION_RECOMPUTE, DIMENSION_OFFLOAD, &other);
            improve(search, DIMENSION_OWN, DIMENSION_COUNT, &other);
        }
        if (!search_prefers(search, &other, best)) continue;
        *best = other;
        improved = true;
    }
    return improved;
}

/* Gives some units settings of their own, as long as that improves *best. */
static void vary_own(struct searching *search, struct evaluation *best)
{
    for (bool improved = true; improved && search->work > 0;) {
        improve(search, DIMENSION_OWN, DIMENSION_COUNT, best);
        improved = vary_batches(search, best);
        improved = repair(search, best) || improved;
        improved = vary_with_own(search, DIMENSION_UNITS, best) || improved;
        improved = vary_with_own(search, DIMENSION_OFFLOAD, best) || improved;
        if (improved) vary_pairs(search, best);
    }
}

static struct point frugal_point(const struct space *space)
{
    struct point point;
    for (int d = 0; d < DIMENSION_COUNT; d++) point.at[d] = space_frugal(space, d);
    return point;
}

/* Without units' own settings; the same points in every search: advances a linear congruential
 * generator (Knuth's MMIX). */
static struct point random_point(const struct space *space, uint64_t *state)
{
    struct point point = {0};
    for (int d = 0; d < DIMENSION_OWN; d++) {
        *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        point.at[d] = (int)((*state >> 33) % (uint64_t)space_size(space, d));
    }
    return point;
}

/* Evaluates all combinations of the options that stand for the others. */
static void survey(struct searching *search, struct evaluation *best)
{
    int options[DIMENSION_COUNT][SPACE_SURVEY_MAX], counts[DIMENSION_COUNT], at[DIMENSION_COUNT];
    for (int d = 0; d < DIMENSION_COUNT; d++) {
        counts[d] = space_survey(search->space, d, options[d]);
        at[d] = 0;
    }
    for (int d = 0; d < DIMENSION_COUNT && search->work > 0;) {
        struct point point;
        for (int k = 0; k < DIMENSION_COUNT; k++) point.at[k] = options[k][at[k]];
        const struct evaluation *outcome = search_evaluate(search, point);
        if (search_prefers(search, outcome, best)) *best = *outcome;
        for (d = 0; d < DIMENSION_COUNT && ++at[d] == counts[d]; d++) at[d] = 0;
    }
}

/* Settings of all units first; the reserve is for those of some. A large plan leaves time for one
 * descent, which must begin at a good point. */
void search_explore(struct searching *search, struct evaluation *best)
{
    const struct space *space = search->space;
    uint64_t reserve = search->work / (search->evaluates ? WORK_OWN_SMALL : WORK_OWN), random = 1;
    search->work -= reserve;
    *best = *search_evaluate(search, (struct point){0});
    survey(search, best);
    improve(search, 0, DIMENSION_OWN, best);
    struct point starts[4] = {{{0}}, frugal_point(space), frugal_point(space)};
    starts[1].at[DIMENSION_FETCH] = starts[2].at[DIMENSION_FETCH] = 0;
    starts[2].at[DIMENSION_OFFLOAD] = 0;
    starts[3].at[DIMENSION_SHARDING] = space_size(space, DIMENSION_SHARDING) - 1;
    for (size_t i = 0; i < COUNT_OF(starts) && search->work > 0; i++) {
        struct evaluation other;
        descend(search, starts[i], &other);
        if (search_prefers(search, &other, best)) *best = other;
    }
    vary_pairs(search, best);
    for (int i = 0; i < RESTARTS_MAX && search->work > 0; i++) {
        struct evaluation other;
        descend(search, random_point(space, &random), &other);
        if (!search_prefers(search, &other, best)) continue;
        *best = other;
        vary_pairs(search, best);
    }
    search->work += reserve;
    vary_own(search, best);
}

void search_enumerate(struct searching *search, struct evaluation *best)
{
    const struct space *space = search->space;
    struct point point = {0};
    for (int d = 0; d < DIMENSION_COUNT && search->work > 0;) {
        const struct evaluation *outcome = search_evaluate(search, point);
        if (search_prefers(search, outcome, best)) *best = *outcome;
        for (d = 0; d < DIMENSION_COUNT && ++point.at[d] == space_size(space, d); d++)
            point.at[d] = 0;
    }
}

void search_explore_more(struct searching *search)
{
    struct evaluation best = {0};
    for (uint64_t i = 0; i < search->capacity; i++)
        if (search->outcomes[i].known && search_prefers(search, &search->outcomes[i], &best))
            best = search->outcomes[i];
    if (!best.possible) return;
    improve(search, 0, DIMENSION_OWN, &best);
    vary_pairs(search, &best);
    vary_own(search, &best);
}

void search_explore_frugal(struct searching *search, struct evaluation *best)
{
    descend(search, frugal_point(search->space), best);
    vary_pairs(search, best);
    vary_own(search, best);
}
