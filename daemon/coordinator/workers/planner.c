/* Plan requests; see planner.h. A request waits for a worker, then for that worker's answer. */
#include "coordinator/workers/planner.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/workers/workers.h"

enum {
    PLANS_MAX = 256,
    LOSSES_MAX = 2, /* a request that loses this many workers fails: it may be the cause */
};

struct plan_request {
    struct list_node node;
    struct coordinator *c;
    uint64_t number;
    job_spec *spec;
    unsigned parts;
    uint64_t memory_bytes; /* 0: no limit */
    struct worker *worker; /* NULL while none has been asked */
    int losses;            /* workers that were lost while they planned it */
    int64_t deadline;
    planner_done *done;
    void *user;
};

static struct plan_request *item(struct list_node *node)
{
    return LIST_ITEM(node, struct plan_request, node);
}

/* Removes the request from the list, answers it and frees it. */
static void answer(struct plan_request *request, status_t status,
                   const Fsdpd__V1__PlanResult *result)
{
    list_remove(&request->c->plans, &request->node);
    if (request->worker != NULL) request->worker->plans--;
    if (request->done != NULL) request->done(request->user, status, request->spec, result);
    else status_free(status);
    message_free(request->spec);
    free(request);
}

/* Prefers a worker that answers in time, then an idle one, then the one with fewer plans to
 * make. */
static bool is_better(const struct worker *worker, const struct worker *best)
{
    if (worker->plans_late != best->plans_late) return worker->plans_late < best->plans_late;
    if ((worker->job == NULL) != (best->job == NULL)) return worker->job == NULL;
    return worker->plans < best->plans;
}

static struct worker *choose(struct coordinator *c, const char *kind)
{
    struct worker *best = NULL;
    for (int i = 0; i < c->worker_count; i++) {
        struct worker *worker = c->workers[i];
        if (kind[0] != '\0' && !worker_is_kind(worker->device, kind)) continue;
        if (best == NULL || is_better(worker, best)) best = worker;
    }
    return best;
}

bool planner_has_worker(struct coordinator *c, const char *kind)
{
    return choose(c, kind) != NULL;
}

static void send_order(struct plan_request *request)
{
    struct coordinator *c = request->c;
    struct worker *worker = choose(c, request->spec->device);
    if (worker == NULL) return;
    request->worker = worker;
    worker->plans++;
    request->deadline = coordinator_now() + c->options.limits.plan_ms;
    if (request->spec->device[0] == '\0') {
        char *kind = mem_strndup(worker->device, strcspn(worker->device, ":"));
        message_set_text(&request->spec->device, kind);
        free(kind);
    }
    Fsdpd__V1__PlanOrder order = FSDPD__V1__PLAN_ORDER__INIT;
    order.request = request->number;
    order.spec = request->spec;
    order.dump = (request->parts & PLANNER_DUMP) != 0;
    order.details = (request->parts & PLANNER_DETAILS) != 0;
    order.choose = (request->parts & PLANNER_CHOOSE) != 0;
    order.memory_bytes = request->memory_bytes;
    order.staged = request->spec->workers > 1 &&
                   workers_must_share(c, request->spec->device, (int)request->spec->workers);
    uint32_t sharers = (uint32_t)worker_sharers(worker);
    order.sharers = sharers < request->spec->workers ? sharers : request->spec->workers;
    order.host_workers = (uint32_t)worker_host_workers(worker);
    Fsdpd__V1__CoordinatorMessage message = FSDPD__V1__COORDINATOR_MESSAGE__INIT;
    message.message_case = FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_PLAN;
    message.plan = &order;
    worker_send(worker, &message);
}

status_t planner_request_within(struct coordinator *c, const job_spec *spec, unsigned parts,
                                uint64_t memory_bytes, planner_done *done, void *user)
{
    if (c->plans.count >= PLANS_MAX)
        return status_new(STATUS_RESOURCE_EXHAUSTED, "%d plans are in progress already",
                          c->plans.count);
    struct plan_request *request = mem_alloc(sizeof *request);
    request->c = c;
    request->number = ++c->last_number;
    request->spec = message_copy(spec);
    request->parts = parts;
    request->memory_bytes = memory_bytes;
    request->deadline = coordinator_now() + c->options.limits.plan_wait_ms;
    request->done = done;
    request->user = user;
    list_append(&c->plans, &request->node);
    send_order(request);
    coordinator_tick_soon(c);
    return NULL;
}

status_t planner_request(struct coordinator *c, const job_spec *spec, unsigned parts,
                         planner_done *done, void *user)
{
    return planner_request_within(c, spec, parts, 0, done, user);
}

void planner_forget(struct coordinator *c, const void *user)
{
    LIST_EACH(node, &c->plans)
    if (item(node)->user == user) item(node)->done = NULL;
}

void planner_worker_attached(struct coordinator *c)
{
    LIST_EACH(node, &c->plans)
    if (item(node)->worker == NULL) send_order(item(node));
}

/* An answer may end other requests as well, so each search starts again. */
static struct plan_request *find_of(struct coordinator *c, const struct worker *worker)
{
    LIST_EACH(node, &c->plans)
    if (item(node)->worker == worker) return item(node);
    return NULL;
}

void planner_worker_lost(struct worker *worker)
{
    struct coordinator *c = worker->c;
    struct plan_request *request;
    while ((request = find_of(c, worker)) != NULL) {
        if (++request->losses == LOSSES_MAX) {
            answer(request,
                   status_new(STATUS_UNAVAILABLE,
                              "%d workers were lost while they planned the job, the last one %s",
                              request->losses, worker->id),
                   NULL);
            continue;
        }
        request->worker = NULL;
        request->deadline = coordinator_now() + c->options.limits.plan_wait_ms;
        send_order(request);
    }
}

/* The job is planned once with settings of its own; from now on these are the job's. */
static void take_chosen(struct plan_request *request, const job_spec *chosen)
{
    message_free(request->spec->fsdp);
    message_free(request->spec->train);
    request->spec->fsdp = message_copy(chosen->fsdp);
    request->spec->train = message_copy(chosen->train);
}

void planner_result(struct worker *worker, const Fsdpd__V1__PlanResult *result)
{
    struct coordinator *c = worker->c;
    worker->plans_late = 0; /* even if the answer is late */
    LIST_EACH(node, &c->plans)
    {
        struct plan_request *request = item(node);
        if (request->number != result->request || request->worker != worker) continue;
        status_t status = NULL;
        if (result->code != STATUS_OK)
            status =
                status_new(result->code <= STATUS_UNAUTHENTICATED ? (enum status_code)result->code
                                                                  : STATUS_UNKNOWN,
                           "%s", result->message);
        else if (result->plan == NULL)
            status = status_new(STATUS_INTERNAL, "worker %s sent no plan", worker->id);
        if (status == NULL && request->spec->model->hf[0] != '\0') {
            message_set_text(&request->spec->model->text, result->model_text);
            message_set_text(&request->spec->model->hf_config, result->hf_config);
            message_set_text(&request->spec->model->hf_family, result->hf_family);
        }
        if (status == NULL && result->chosen != NULL) take_chosen(request, result->chosen);
        answer(request, status, status == NULL ? result : NULL);
        return;
    }
}

/* Why no worker could be asked. */
static status_t no_worker_error(struct coordinator *c, const char *kind)
{
    if (c->worker_count == 0)
        return status_new(STATUS_FAILED_PRECONDITION,
                          "no worker is attached, so the job cannot be planned; start fsdpd with "
                          "--workers, or fsdpd worker --coordinator %s",
                          c->address);
    return status_with(
        status_new(STATUS_FAILED_PRECONDITION,
                   "device: no %s worker is attached (%d with other devices, such as %s)", kind,
                   c->worker_count, c->workers[0]->device),
        (struct status_details){.reason = "NO_WORKER_OF_THE_DEVICE", .field = "device"});
}

static struct plan_request *find_late(struct coordinator *c, int64_t now)
{
    LIST_EACH(node, &c->plans)
    if (now >= item(node)->deadline) return item(node);
    return NULL;
}

void planner_tick(struct coordinator *c)
{
    int64_t now = coordinator_now();
    struct plan_request *request;
    while ((request = find_late(c, now)) != NULL) {
        if (request->worker != NULL) request->worker->plans_late++;
        status_t status =
            request->worker == NULL
                ? no_worker_error(c, request->spec->device)
                : status_new(STATUS_DEADLINE_EXCEEDED, "worker %s did not plan the job within %g s",
                             request->worker->id, c->options.limits.plan_ms / 1000.0);
        answer(request, status, NULL);
    }
}

void planner_close(struct coordinator *c)
{
    while (c->plans.first != NULL)
        answer(item(c->plans.first), status_new(STATUS_UNAVAILABLE, "fsdpd is shutting down"),
               NULL);
}
