/* Placement; see placement.h. */
#include "coordinator/scheduler/placement.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Consecutive workers of the sorted list on one host. */
struct group {
    int first, count;
    bool taken;
};

static int by_name(const void *a, const void *b)
{
    const struct placement_worker *first = a, *second = b;
    int order = strverscmp(first->host, second->host);
    return order != 0 ? order : strverscmp(first->id, second->id);
}

static int find_groups(const struct placement_worker *idle, int idle_count, struct group *groups)
{
    int count = 0;
    for (int i = 0; i < idle_count; i++) {
        if (i == 0 || strcmp(idle[i].host, idle[i - 1].host) != 0)
            groups[count++] = (struct group){.first = i};
        groups[count - 1].count++;
    }
    return count;
}

/* The smallest host that fits the `left` workers; the largest host if none fits them. */
static struct group *best(struct group *groups, int count, int left)
{
    struct group *found = NULL;
    for (int i = 0; i < count; i++) {
        struct group *group = &groups[i];
        if (group->taken) continue;
        bool fits = group->count >= left, found_fits = found != NULL && found->count >= left;
        bool better = found == NULL || (fits && !found_fits) ||
                      (fits && group->count < found->count) ||
                      (!fits && !found_fits && group->count > found->count);
        if (better) found = group;
    }
    return found;
}

void placement_choose(struct placement_worker *idle, int idle_count, int count)
{
    qsort(idle, (size_t)idle_count, sizeof *idle, by_name);
    AUTO_FREE struct group *groups = mem_alloc_array((size_t)idle_count + 1, sizeof *groups);
    int group_count = find_groups(idle, idle_count, groups);
    AUTO_FREE int *take = mem_alloc_array((size_t)group_count + 1, sizeof *take); /* per host */
    for (int left = count; left > 0;) {
        struct group *group = best(groups, group_count, left);
        group->taken = true;
        int part = group->count < left ? group->count : left;
        take[group - groups] = part;
        left -= part;
    }
    AUTO_FREE struct placement_worker *chosen =
        mem_alloc_array((size_t)idle_count + 1, sizeof *chosen);
    int front = 0, back = count;
    for (int g = 0; g < group_count; g++)
        for (int i = 0; i < groups[g].count; i++) {
            const struct placement_worker *worker = &idle[groups[g].first + i];
            if (i < take[g]) chosen[front++] = *worker;
            else chosen[back++] = *worker;
        }
    memcpy(idle, chosen, (size_t)idle_count * sizeof *idle);
}

/* ---- cuts ---- */

/* Tries of the search, after which it only makes the first choice. */
enum { TRIES_MAX = 1 << 14 };

/* Workers with the same cuts stay or leave together. */
struct side {
    int first;    /* of them */
    int64_t cost; /* of leaving them out */
};

struct apart {
    struct side *sides;
    bool *cut; /* (count, count) */
    int count, tries;
    bool *out, *best; /* (count) */
    int64_t best_cost;
};

static int count_cuts(const struct apart *apart, int side)
{
    int cuts = 0;
    for (int i = 0; i < apart->count; i++)
        cuts += !apart->out[i] && apart->cut[side * apart->count + i];
    return cuts;
}

static int find_most_cut(const struct apart *apart)
{
    int found = -1, most = 0;
    for (int i = 0; i < apart->count; i++) {
        int cuts = apart->out[i] ? 0 : count_cuts(apart, i);
        if (cuts > most) found = i;
        if (cuts > most) most = cuts;
    }
    return found;
}

/* Of the side with the most cuts: it stays, and what it cannot reach leaves; or it leaves. */
static void search(struct apart *apart, int64_t cost)
{
    if (cost >= apart->best_cost) return;
    int side = find_most_cut(apart), count = apart->count;
    if (side < 0) {
        apart->best_cost = cost;
        memcpy(apart->best, apart->out, (size_t)count * sizeof *apart->out);
        return;
    }
    AUTO_FREE bool *before = mem_dup(apart->out, (size_t)count * sizeof *apart->out);
    int64_t others = 0;
    for (int i = 0; i < count; i++) {
        if (apart->out[i] || !apart->cut[side * count + i]) continue;
        apart->out[i] = true;
        others += apart->sides[i].cost;
    }
    search(apart, cost + others);
    memcpy(apart->out, before, (size_t)count * sizeof *before);
    if (++apart->tries > TRIES_MAX) return;
    apart->out[side] = true;
    search(apart, cost + apart->sides[side].cost);
    apart->out[side] = false;
}

static bool same_cuts(const struct placement_worker *workers, int count, int one, int other,
                      placement_cut *is_cut)
{
    for (int i = 0; i < count; i++)
        if (is_cut(&workers[one], &workers[i]) != is_cut(&workers[other], &workers[i]))
            return false;
    return !is_cut(&workers[one], &workers[other]);
}

/* Writes each worker's side to `of`. */
static void find_sides(const struct placement_worker *workers, int count, int needed,
                       placement_cut *is_cut, struct apart *apart, int *of)
{
    for (int i = 0; i < count; i++) {
        int side = 0;
        while (side < apart->count &&
               !same_cuts(workers, count, apart->sides[side].first, i, is_cut))
            side++;
        if (side == apart->count) apart->sides[apart->count++] = (struct side){.first = i};
        apart->sides[side].cost += i < needed ? count + 1 : 1;
        of[i] = side;
    }
    for (int i = 0; i < apart->count; i++)
        for (int j = 0; j < apart->count; j++)
            apart->cut[i * apart->count + j] =
                is_cut(&workers[apart->sides[i].first], &workers[apart->sides[j].first]);
}

int placement_keep_apart(struct placement_worker *workers, int count, int *needed,
                         placement_cut *is_cut)
{
    size_t size = (size_t)count + 1;
    AUTO_FREE struct side *sides = mem_alloc_array(size, sizeof *sides);
    AUTO_FREE bool *flags = mem_alloc_array(size * (size + 2), sizeof *flags);
    AUTO_FREE int *of = mem_alloc_array(size, sizeof *of);
    struct apart apart = {.sides = sides,
                          .cut = flags + 2 * size,
                          .out = flags,
                          .best = flags + size,
                          .best_cost = INT64_MAX};
    find_sides(workers, count, *needed, is_cut, &apart, of);
    search(&apart, 0);
    int kept = 0, first = 0;
    for (int i = 0; i < count; i++) {
        if (apart.best[of[i]]) continue;
        first += i < *needed;
        workers[kept++] = workers[i];
    }
    *needed = first;
    return kept;
}
