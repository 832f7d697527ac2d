/* ListWorkers, DrainWorkers, UndrainWorkers; see handlers.h. */
#include "coordinator/api/handlers.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/calls/access.h"
#include "coordinator/calls/checkpoints.h"
#include "coordinator/core/list_page.h"
#include "coordinator/jobs/attempt.h"
#include "coordinator/workers/cuts.h"
#include "coordinator/workers/drains.h"
#include "coordinator/workers/supervisor.h"
#include "coordinator/workers/workers.h"
#include "proto/message.h"

enum { NAME_MAX_LENGTH = 128 };

struct worker_rows {
    struct coordinator *c;
    const char *only; /* an id or a host; NULL: all */
    Fsdpd__V1__Worker *rows;
    Fsdpd__V1__Worker **pointers;
    Google__Protobuf__Timestamp (*times)[2]; /* by row: attached, drained */
    char **texts; /* by row: the host of a slot whose worker is starting, or NULL */
    size_t count;
};

static Fsdpd__V1__Worker *add_row(struct worker_rows *list, const char *id, const char *host)
{
    if (list->only != NULL && strcmp(list->only, id) != 0 && strcmp(list->only, host) != 0)
        return NULL;
    Fsdpd__V1__Worker *row = &list->rows[list->count];
    fsdpd__v1__worker__init(row);
    row->id = (char *)id;
    row->host = (char *)host;
    row->rank = -1;
    const struct drain *drain = drains_find(list->c, id, host);
    row->drained = drain != NULL;
    if (drain != NULL) row->drained_by = drain->by;
    Google__Protobuf__Timestamp *drained = &list->times[list->count][1];
    if (drain != NULL) row->drain_time = message_time(drained, drain->time_ms);
    list->pointers[list->count++] = row;
    return row;
}

static void add_starting(void *user, const char *id, int64_t pid, uint32_t restarts)
{
    struct worker_rows *list = user;
    char *host = mem_strndup(id, strcspn(id, "/"));
    list->texts[list->count] = host;
    Fsdpd__V1__Worker *row = add_row(list, id, host);
    if (row == NULL) {
        list->texts[list->count] = NULL;
        free(host);
        return;
    }
    row->device = (char *)list->c->options.local_device;
    row->state = FSDPD__V1__WORKER_STATE__WORKER_STATE_STARTING;
    row->pid = pid;
    row->restarts = restarts;
}

static Fsdpd__V1__WorkerState state_of(bool drained, bool busy)
{
    if (drained)
        return busy ? FSDPD__V1__WORKER_STATE__WORKER_STATE_DRAINING
                    : FSDPD__V1__WORKER_STATE__WORKER_STATE_DRAINED;
    return busy ? FSDPD__V1__WORKER_STATE__WORKER_STATE_BUSY
                : FSDPD__V1__WORKER_STATE__WORKER_STATE_IDLE;
}

static void add_worker(struct worker_rows *list, const struct worker *worker)
{
    Fsdpd__V1__Worker *row = add_row(list, worker->id, worker->host);
    if (row == NULL) return;
    bool busy = worker->job != NULL;
    row->device = worker->device;
    row->state = state_of(row->drained, busy);
    if (busy) row->job = worker->job;
    row->rank = worker->rank;
    row->memory_bytes = worker->memory_bytes;
    row->attach_time = message_time(&list->times[row - list->rows][0], worker->attached_ms);
    row->pid = worker->pid;
    row->version = worker->version;
    row->shares_device = worker->shares_device;
    row->unreachable = mem_alloc_array((size_t)list->c->cut_count + 1, sizeof *row->unreachable);
    row->n_unreachable = (size_t)cuts_of(worker, row->unreachable);
    row->restarts = supervisor_restarts(list->c, worker->id);
}

/* Orders cpu:2 before cpu:10. */
static int compare_rows(const void *a, const void *b)
{
    const Fsdpd__V1__Worker *const *first = a, *const *second = b;
    return strverscmp((*first)->id, (*second)->id);
}

/* `only`: an id or a host; NULL: all. */
static void collect(struct coordinator *c, const char *only, struct worker_rows *list)
{
    size_t most = (size_t)(c->worker_count + c->options.local_workers) + 1;
    *list = (struct worker_rows){.c = c,
                                 .only = only,
                                 .rows = mem_alloc_array(most, sizeof *list->rows),
                                 .pointers = mem_alloc_array(most, sizeof *list->pointers),
                                 .times = mem_alloc_array(most, sizeof *list->times),
                                 .texts = mem_alloc_array(most, sizeof *list->texts)};
    for (int i = 0; i < c->worker_count; i++) add_worker(list, c->workers[i]);
    supervisor_each_starting(c, add_starting, list);
    qsort(list->pointers, list->count, sizeof *list->pointers, compare_rows);
}

static void rows_deinit(struct worker_rows *list)
{
    for (size_t i = 0; i < list->count; i++) {
        free(list->texts[i]);
        free(list->rows[i].unreachable);
    }
    free(list->rows);
    free(list->pointers);
    free(list->times);
    free(list->texts);
}

/* Answers with the workers that are meant: fills in these fields of the response. */
static void reply_workers(struct rpc_call *call, struct coordinator *c, const char *only,
                          const ProtobufCMessage *response, size_t *count,
                          Fsdpd__V1__Worker ***workers)
{
    struct worker_rows list;
    collect(c, only, &list);
    *count = list.count;
    *workers = list.pointers;
    rpc_call_reply(call, response);
    rows_deinit(&list);
}

static void reply_page(struct rpc_call *call, struct list_page *page,
                       const struct worker_rows *list)
{
    Fsdpd__V1__ListWorkersResponse response = FSDPD__V1__LIST_WORKERS_RESPONSE__INIT;
    size_t first = 0;
    while (page->after != NULL && first < list->count &&
           strverscmp(list->pointers[first]->id, page->after) <= 0)
        first++;
    response.workers = list->pointers + first;
    for (size_t i = first; i < list->count; i++) list_page_take(page, &list->pointers[i]->base);
    response.n_workers = page->count;
    response.next_page_token =
        list_page_next(page, 0, page->count > 0 ? response.workers[page->count - 1]->id : "");
    rpc_call_reply(call, &response.base);
    free(response.next_page_token);
}

void api_list_workers(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    const Fsdpd__V1__ListWorkersRequest *request = (const void *)message;
    struct list_page page;
    status_t status = list_page_begin(&page, request->page_size, request->page_token, true);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    struct worker_rows list;
    collect(service, NULL, &list);
    reply_page(call, &page, &list);
    rows_deinit(&list);
}

/* ---- draining ---- */

static bool is_meant(const struct worker *worker, const char *name)
{
    return strcmp(worker->id, name) == 0 || strcmp(worker->host, name) == 0;
}

/* A search for a worker among our slots, as it may be restarting. */
struct slot_search {
    const char *name;
    bool found;
};

static void match_slot(void *user, const char *id, uint32_t restarts)
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
    supervisor_each_slot(c, match_slot, &search);
    for (int i = 0; i < c->worker_count && !search.found; i++)
        search.found = is_meant(c->workers[i], name);
    if (search.found || drains_has(c, name)) return NULL;
    return status_with(status_new(STATUS_NOT_FOUND,
                                  "no worker %s is attached, nor one of a host %s", name, name),
                       (struct status_details){.reason = "WORKER_NOT_FOUND", .subject = name});
}

/* The host of a worker, or of one of our slots that has no worker attached now; NULL if there is no
 * such worker. The caller frees it. */
static char *find_host(struct coordinator *c, const char *id)
{
    const struct worker *worker = workers_find(c, id);
    if (worker != NULL) return mem_strdup(worker->host);
    return supervisor_has_slot(c, id) ? mem_strndup(id, strcspn(id, "/")) : NULL;
}

/* Moves the job that runs on the worker to other workers. */
static void stop_attempt(struct worker *worker, const char *by)
{
    struct job *job = worker->job != NULL ? jobs_find(worker->c, worker->job) : NULL;
    if (job == NULL || job->attempt == NULL || job->message->attempt != worker->attempt) return;
    AUTO_FREE char *why = mem_printf("worker %s was drained by %s", worker->id, by);
    checkpoints_vacate(job, by, why);
}

void api_drain_workers(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__DrainWorkersRequest *request = (const void *)message;
    const char *name = request->worker, *by = access_user(call);
    status_t status = check_name(c, name);
    if (status == NULL) status = drains_add(c, name, by);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    workers_apply_drains(c);
    c->actor = by;
    for (int i = 0; request->now && i < c->worker_count; i++)
        if (is_meant(c->workers[i], name)) stop_attempt(c->workers[i], by);
    c->actor = NULL;
    Fsdpd__V1__DrainWorkersResponse response = FSDPD__V1__DRAIN_WORKERS_RESPONSE__INIT;
    reply_workers(call, c, name, &response.base, &response.n_workers, &response.workers);
}

void api_undrain_workers(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const char *name = ((const Fsdpd__V1__UndrainWorkersRequest *)message)->worker;
    status_t status = check_name(c, name);
    AUTO_FREE char *host = find_host(c, name);
    if (status == NULL && !drains_has(c, name) && host != NULL && drains_has(c, host))
        status =
            status_with(status_new(STATUS_FAILED_PRECONDITION,
                                   "worker %s is drained with its host: undrain %s", name, host),
                        (struct status_details){.reason = "HOST_IS_DRAINED", .subject = name});
    if (status == NULL) status = drains_remove(c, name, access_user(call));
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    workers_apply_drains(c);
    Fsdpd__V1__UndrainWorkersResponse response = FSDPD__V1__UNDRAIN_WORKERS_RESPONSE__INIT;
    reply_workers(call, c, name, &response.base, &response.n_workers, &response.workers);
}
