/* Drained workers; see drains.h. On the loop's thread. */
#include "coordinator/drains.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "coordinator/access.h"
#include "coordinator/api.h"
#include "coordinator/attempt.h"
#include "coordinator/checkpoints.h"
#include "coordinator/queue.h"
#include "coordinator/supervisor.h"

enum { DRAINS_MAX = 16384, NAME_MAX_LENGTH = 128 };

static int find(const struct coordinator *c, const char *worker)
{
    for (int i = 0; i < c->drain_count; i++)
        if (strcmp(c->drains[i]->worker, worker) == 0) return i;
    return -1;
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

static bool is_meant(const struct worker *worker, const char *name)
{
    return strcmp(worker->id, name) == 0 || strcmp(worker->host, name) == 0;
}

/* A slot of ours whose worker is just being started again. */
struct slot_search {
    const char *name;
    bool found;
};

static void look_at_slot(void *user, const char *id, uint32_t restarts)
{
    (void)restarts;
    struct slot_search *search = user;
    size_t host = strcspn(id, "/");
    bool is_host = strlen(search->name) == host && strncmp(id, search->name, host) == 0;
    search->found = search->found || strcmp(id, search->name) == 0 || is_host;
}

static status_t check_name(struct coordinator *c, const char *name)
{
    size_t length = strlen(name);
    if (length == 0 || length > NAME_MAX_LENGTH)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "worker: expected the id of a worker or the name of a host, found %zu "
                          "characters",
                          length);
    struct slot_search search = {.name = name};
    supervisor_each_slot(c, look_at_slot, &search);
    for (int i = 0; i < c->worker_count && !search.found; i++)
        search.found = is_meant(c->workers[i], name);
    if (search.found || find(c, name) >= 0) return NULL;
    return status_new(STATUS_NOT_FOUND, "no worker %s is attached, nor one of a host %s", name,
                      name);
}

/* Of a worker, also of one of our slots that is not attached now; NULL: there is no such worker.
 * The caller frees it. */
static char *find_host(struct coordinator *c, const char *id)
{
    const struct worker *worker = workers_find(c, id);
    if (worker != NULL) return mem_strdup(worker->host);
    return supervisor_has_slot(c, id) ? mem_strndup(id, strcspn(id, "/")) : NULL;
}

static void apply(struct coordinator *c)
{
    for (int i = 0; i < c->worker_count; i++) {
        struct worker *worker = c->workers[i];
        worker->drained = drains_find(c, worker->id, worker->host) != NULL;
    }
    queue_changed(c);
}

/* What runs on the worker goes on elsewhere. */
static void stop_attempt(struct worker *worker, const char *by)
{
    struct job *job = worker->job != NULL ? jobs_find(worker->c, worker->job) : NULL;
    if (job == NULL || job->ranks == NULL || job->message->attempt != worker->attempt) return;
    char *why = mem_printf("worker %s was drained by %s", worker->id, by);
    checkpoints_vacate(job, by, why);
    free(why);
}

void drains_drain(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__DrainWorkersRequest *request = (const void *)message;
    const char *name = request->worker, *by = access_user(call);
    int64_t now = clock_wall_ms();
    status_t status = check_name(c, name);
    bool known = find(c, name) >= 0;
    if (status == NULL && !known && c->drain_count >= DRAINS_MAX)
        status = status_new(STATUS_RESOURCE_EXHAUSTED, "%d workers and hosts are drained already",
                            c->drain_count);
    if (status == NULL && !known) status = store_add_drain(c->store, name, by, now);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    if (!known) {
        add(c, name, by, now);
        log_event(LOG_INFO, "worker_drained", "worker=%s by=%s", name, by);
    }
    apply(c);
    c->actor = by;
    for (int i = 0; request->now && i < c->worker_count; i++)
        if (is_meant(c->workers[i], name)) stop_attempt(c->workers[i], by);
    c->actor = NULL;
    queue_place(c);
    api_reply_workers(call, c, name);
}

void drains_undrain(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__UndrainWorkersRequest *request = (const void *)message;
    const char *name = request->worker;
    status_t status = check_name(c, name);
    int i = status == NULL ? find(c, name) : -1;
    char *host = find_host(c, name);
    if (status == NULL && i < 0 && host != NULL && find(c, host) >= 0)
        status = status_new(STATUS_FAILED_PRECONDITION,
                            "worker %s is drained with its host: undrain %s", name, host);
    free(host);
    if (status == NULL && i >= 0) status = store_remove_drain(c->store, name);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    if (i >= 0) {
        drop(c, i);
        log_event(LOG_INFO, "worker_undrained", "worker=%s by=%s", name, access_user(call));
    }
    apply(c);
    queue_place(c);
    api_reply_workers(call, c, name);
}
