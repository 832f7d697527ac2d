/* Plans for several numbers of workers; see worlds.h. No state. */
#include "print/worlds.h"

#include <string.h>

#include "base/mem.h"
#include "base/text.h"

/* Rates that differ by less are equal. */
static const double TIE = 0.005;

status_t worlds_read(const char *text, uint32_t most, struct worlds *worlds)
{
    int64_t first = 0, last = 0;
    const char *dots = strstr(text, "..");
    AUTO_FREE char *low =
        dots != NULL ? mem_strndup(text, (size_t)(dots - text)) : mem_strdup(text);
    bool good = text_parse_i64(low, &first) && first > 0;
    last = first;
    if (good && dots != NULL) good = text_parse_i64(dots + 2, &last);
    if (!good || last < first || last > (int64_t)most)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "expected a number of workers or a range, such as 8..64, up to %u, found "
                          "'%s'",
                          most, text);
    worlds->count = 0;
    for (int64_t n = first; n < last && worlds->count < WORLDS_MAX - 1; n *= 2)
        worlds->workers[worlds->count++] = (uint32_t)n;
    worlds->workers[worlds->count++] = (uint32_t)last;
    return NULL;
}

/* Of a step with all its batches. */
static double step_seconds(const Fsdpd__V1__Plan *plan)
{
    if (plan->n_choices > 0) return plan->choices[0]->step_seconds;
    double seconds = plan->programs[0]->estimate->step_seconds;
    if (plan->micro_steps > 1 && plan->n_programs > 1 && plan->programs[1]->estimate != NULL)
        seconds += (plan->micro_steps - 1) * plan->programs[1]->estimate->step_seconds;
    return seconds;
}

/* `plan` or `refused` may be NULL. */
static Fsdpd__V1__PlanWorld *world_new(uint32_t workers, const Fsdpd__V1__Plan *plan,
                                       const char *refused)
{
    Fsdpd__V1__PlanWorld *world = mem_alloc(sizeof *world);
    fsdpd__v1__plan_world__init(world);
    world->workers = workers;
    if (refused != NULL) world->refused = mem_strdup(refused);
    if (plan == NULL) return world;
    world->peak_bytes = plan->peak_bytes;
    if (plan->n_programs == 0 || plan->programs[0]->estimate == NULL) return world;
    const Fsdpd__V1__Estimate *estimate = plan->programs[0]->estimate;
    world->step_seconds = step_seconds(plan);
    /* The estimate's rates are of a batch, the last of a step. */
    double batches = plan->micro_steps > 1 ? plan->micro_steps : 1;
    double of_step = batches * estimate->step_seconds / world->step_seconds;
    world->samples_per_second = estimate->samples_per_second * of_step;
    world->tokens_per_second = estimate->tokens_per_second * of_step;
    return world;
}

/* Keeps the better plan in *best, and frees the other. */
static void keep_better(Fsdpd__V1__Plan *made, double rate, Fsdpd__V1__Plan **best, double *highest)
{
    bool better = *best == NULL || rate > *highest * (1 + TIE);
    Fsdpd__V1__Plan *other = better ? *best : made;
    if (other != NULL) fsdpd__v1__plan__free_unpacked(other, NULL);
    if (!better) return;
    *best = made;
    *highest = rate;
}

/* Lists the worlds in `into`, instead of any that it has. */
static void move_worlds(Fsdpd__V1__Plan *from, Fsdpd__V1__Plan *into)
{
    Fsdpd__V1__PlanWorld **worlds = into->worlds;
    size_t count = into->n_worlds;
    into->worlds = from->worlds;
    into->n_worlds = from->n_worlds;
    from->worlds = worlds;
    from->n_worlds = count;
}

status_t worlds_plan(const struct worlds *worlds,
                     status_t (*plan)(void *user, uint32_t workers, Fsdpd__V1__Plan **made),
                     void *user, Fsdpd__V1__Plan **best)
{
    Fsdpd__V1__Plan *all = mem_alloc(sizeof *all), *fastest = NULL;
    double highest = 0;
    status_t status = NULL;
    fsdpd__v1__plan__init(all);
    all->worlds = mem_alloc_array((size_t)worlds->count, sizeof *all->worlds);
    for (int i = 0; i < worlds->count; i++) {
        Fsdpd__V1__Plan *made = NULL;
        status_free(status);
        status = plan(user, worlds->workers[i], &made);
        if (status != NULL && status_code(status) != STATUS_RESOURCE_EXHAUSTED) break;
        Fsdpd__V1__PlanWorld *world =
            world_new(worlds->workers[i], made, status != NULL ? status_message(status) : NULL);
        all->worlds[all->n_worlds++] = world;
        if (made != NULL) keep_better(made, world->samples_per_second, &fastest, &highest);
    }
    if (fastest != NULL && status_code(status) == STATUS_RESOURCE_EXHAUSTED) {
        status_free(status);
        status = NULL;
    }
    if (status == NULL) {
        move_worlds(all, fastest);
        *best = fastest;
    } else if (fastest != NULL) {
        fsdpd__v1__plan__free_unpacked(fastest, NULL);
    }
    fsdpd__v1__plan__free_unpacked(all, NULL);
    return status;
}
