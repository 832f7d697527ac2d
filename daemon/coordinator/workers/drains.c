/* Drained workers; see drains.h. On the loop's thread. */
#include "coordinator/workers/drains.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

enum { DRAINS_MAX = 16384 };

static int find(const struct coordinator *c, const char *worker)
{
    for (int i = 0; i < c->drain_count; i++)
        if (strcmp(c->drains[i]->worker, worker) == 0) return i;
    return -1;
}

bool drains_has(const struct coordinator *c, const char *name)
{
    return find(c, name) >= 0;
}

const struct drain *drains_find(const struct coordinator *c, const char *id, const char *host)
{
    int i = find(c, id);
    if (i < 0) i = find(c, host);
    return i < 0 ? NULL : c->drains[i];
}

static void add(struct coordinator *c, const char *worker, const char *by, int64_t time_ms)
{
    struct drain *drain = mem_alloc(sizeof *drain);
    *drain = (struct drain){mem_strdup(worker), mem_strdup(by), time_ms};
    MEM_GROW(c->drains, c->drain_count, c->drain_capacity);
    c->drains[c->drain_count++] = drain;
}

static void drop(struct coordinator *c, int i)
{
    struct drain *drain = c->drains[i];
    LIST_REMOVE(c->drains, c->drain_count, i);
    free(drain->worker);
    free(drain->by);
    free(drain);
}

static void add_loaded(void *user, const char *worker, const char *by, int64_t time_ms)
{
    add(user, worker, by, time_ms);
}

status_t drains_load(struct coordinator *c)
{
    return store_each_drain(c->store, add_loaded, c);
}

void drains_free(struct coordinator *c)
{
    while (c->drain_count > 0) drop(c, c->drain_count - 1);
    free(c->drains);
    c->drains = NULL;
    c->drain_capacity = 0;
}

status_t drains_add(struct coordinator *c, const char *name, const char *by)
{
    int64_t now = clock_wall_ms();
    if (find(c, name) >= 0) return NULL;
    if (c->drain_count >= DRAINS_MAX)
        return status_new(STATUS_RESOURCE_EXHAUSTED, "%d workers and hosts are drained already",
                          c->drain_count);
    TRY(store_add_drain(c->store, name, by, now));
    add(c, name, by, now);
    log_event(LOG_INFO, "worker_drained", "worker=%s by=%s", name, by);
    return NULL;
}

status_t drains_remove(struct coordinator *c, const char *name, const char *by)
{
    int i = find(c, name);
    if (i < 0) return NULL;
    TRY(store_remove_drain(c->store, name));
    drop(c, i);
    log_event(LOG_INFO, "worker_undrained", "worker=%s by=%s", name, by);
    return NULL;
}
