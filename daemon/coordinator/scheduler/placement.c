/* Placement; see placement.h. */
#include "coordinator/scheduler/placement.h"

#include <stdbool.h>
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
