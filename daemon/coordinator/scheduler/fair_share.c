/* Fair share; see queue.h. On the loop's thread. */
#include "coordinator/scheduler/queue.h"

#include <math.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "coordinator/jobs/attempt.h"
#include "coordinator/jobs/owners.h"

enum { SAVE_MS = 10000 };

double fair_share_use(double usage, int workers, double ms, double half_life)
{
    double left = exp2(-ms / half_life);
    return usage * left + workers * half_life / log(2) * (1 - left);
}

void fair_share_note_busy(struct coordinator *c)
{
    for (int i = 0; i < c->owner_count; i++) c->owners[i]->busy = 0;
    for (int i = 0; i < c->job_count; i++)
        if (c->jobs[i]->attempt != NULL) c->jobs[i]->owner->busy += c->jobs[i]->attempt->world;
}

/* Up to now; jobs that ran through a restart of fsdpd count in between. */
static void load_one(void *user, const struct store_usage *stored)
{
    struct coordinator *c = user;
    struct job_owner *owner = owners_get(c, stored->user);
    int64_t ago = clock_wall_ms() - stored->time_ms;
    owner->usage = fair_share_use((double)stored->worker_ms, owner->busy, ago > 0 ? (double)ago : 0,
                                  (double)c->options.limits.fair_share_ms);
}

static void load(struct coordinator *c)
{
    c->usage_loaded = true;
    c->usage_at = c->usage_saved_at = coordinator_now();
    fair_share_note_busy(c);
    log_status(LOG_WARNING, "store_failed", store_each_usage(c->store, load_one, c));
}

void fair_share_advance(struct coordinator *c)
{
    double half_life = (double)c->options.limits.fair_share_ms;
    if (half_life == 0) return;
    if (!c->usage_loaded) load(c);
    int64_t now = coordinator_now();
    for (int i = 0; i < c->owner_count; i++) {
        struct job_owner *owner = c->owners[i];
        c->usage_changed = c->usage_changed || owner->busy > 0;
        owner->usage =
            fair_share_use(owner->usage, owner->busy, (double)(now - c->usage_at), half_life);
    }
    c->usage_at = now;
}

void fair_share_save(struct coordinator *c)
{
    if (c->options.limits.fair_share_ms == 0 || !c->usage_loaded || c->store == NULL) return;
    fair_share_advance(c);
    c->usage_saved_at = c->usage_at;
    if (!c->usage_changed) return; /* what decays alone is computed again */
    c->usage_changed = false;
    AUTO_FREE struct store_usage *rows = mem_alloc_array((size_t)c->owner_count + 1, sizeof *rows);
    for (int i = 0; i < c->owner_count; i++)
        rows[i] = (struct store_usage){.user = c->owners[i]->name,
                                       .worker_ms = llround(c->owners[i]->usage),
                                       .time_ms = clock_wall_ms()};
    log_status(LOG_WARNING, "store_failed", store_set_usage(c->store, rows, c->owner_count));
}

void fair_share_tick(struct coordinator *c)
{
    if (coordinator_now() - c->usage_saved_at >= SAVE_MS) fair_share_save(c);
}
