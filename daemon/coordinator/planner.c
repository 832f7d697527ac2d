/* Plan requests; see planner.h. A request waits for a worker, then for that worker's answer. */
#include "coordinator/planner.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/workers.h"

enum { PLANS_MAX = 256 };

struct plan_request {
    uint64_t number;
    job_spec *spec;
    bool details, dump;
    struct worker *worker; /* NULL while none was asked */
    int64_t deadline;
    planner_done *done;
    void *user;
};

/* Takes the request off the list, answers it and frees it. */
static void answer(struct coordinator *c, struct plan_request *request, status_t status,
                   const Fsdpd__V1__PlanResult *result)
{
    for (int i = 0; i < c->plan_count; i++)
        if (c->plans[i] == request) LIST_REMOVE(c->plans, c->plan_count, i);
    if (request->worker != NULL) request->worker->plans--;
    if (request->done != NULL) request->done(request->user, status, request->spec, result);
    else status_free(status);
    message_free(request->spec);
    free(request);
}

/* An idle worker rather than one that trains, and one with little to plan. */
static struct worker *choose(struct coordinator *c, const char *kind)
{
    struct worker *best = NULL;
    for (int i = 0; i < c->worker_count; i++) {
        struct worker *worker = c->workers[i];
        if (kind[0] != '\0' && !worker_is_kind(worker->device, kind)) continue;
        bool better = best == NULL || (best->job != NULL && worker->job == NULL);
        if (best != NULL && (best->job == NULL) == (worker->job == NULL))
            better = worker->plans < best->plans;
        if (better) best = worker;
    }
    return best;
}

static void send_order(struct coordinator *c, struct plan_request *request)
{
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
    order.dump = request->dump;
    order.details = request->details;
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

uint64_t planner_ask(struct coordinator *c, const job_spec *spec, bool details, bool dump,
                     planner_done *done, void *user, status_t *status)
{
    if (c->plan_count >= PLANS_MAX) {
        *status =
            status_new(STATUS_RESOURCE_EXHAUSTED, "%d plans are being made already", c->plan_count);
        return 0;
    }
    struct plan_request *request = mem_alloc(sizeof *request);
    request->number = ++c->last_plan_request;
    request->spec = message_copy(spec);
    request->details = details;
    request->dump = dump;
    request->deadline = coordinator_now() + c->options.limits.plan_wait_ms;
    request->done = done;
    request->user = user;
    MEM_GROW(c->plans, c->plan_count, c->plan_capacity);
    c->plans[c->plan_count++] = request;
    send_order(c, request);
    coordinator_hurry(c);
    return request->number;
}

void planner_forget(struct coordinator *c, uint64_t number)
{
    for (int i = 0; i < c->plan_count; i++)
        if (c->plans[i]->number == number) c->plans[i]->done = NULL;
}

void planner_worker_attached(struct coordinator *c)
{
    for (int i = 0; i < c->plan_count; i++)
        if (c->plans[i]->worker == NULL) send_order(c, c->plans[i]);
}

void planner_worker_lost(struct worker *worker)
{
    struct coordinator *c = worker->c;
    for (int i = c->plan_count - 1; i >= 0; i--) {
        if (i >= c->plan_count || c->plans[i]->worker != worker) continue;
        answer(c, c->plans[i],
               status_new(STATUS_UNAVAILABLE, "worker %s was lost while it planned the job",
                          worker->id),
               NULL);
    }
}

void planner_result(struct worker *worker, const Fsdpd__V1__PlanResult *result)
{
    struct coordinator *c = worker->c;
    for (int i = 0; i < c->plan_count; i++) {
        struct plan_request *request = c->plans[i];
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
        }
        answer(c, request, status, status == NULL ? result : NULL);
        return;
    }
}

/* Why no worker could be asked. */
static status_t nobody(struct coordinator *c, const char *kind)
{
    if (c->worker_count == 0)
        return status_new(STATUS_UNAVAILABLE,
                          "no worker is attached, so the job cannot be planned; start fsdpd with "
                          "--workers, or fsdpd worker --coordinator %s",
                          c->address);
    return status_new(STATUS_FAILED_PRECONDITION,
                      "device: no %s worker is attached (%d with other devices, such as %s)", kind,
                      c->worker_count, c->workers[0]->device);
}

void planner_tick(struct coordinator *c)
{
    int64_t now = coordinator_now();
    for (int i = c->plan_count - 1; i >= 0; i--) {
        if (i >= c->plan_count || now < c->plans[i]->deadline) continue;
        struct plan_request *request = c->plans[i];
        status_t status =
            request->worker == NULL
                ? nobody(c, request->spec->device)
                : status_new(STATUS_DEADLINE_EXCEEDED, "worker %s did not plan the job within %g s",
                             request->worker->id, c->options.limits.plan_ms / 1000.0);
        answer(c, request, status, NULL);
    }
}

void planner_close(struct coordinator *c)
{
    while (c->plan_count > 0)
        answer(c, c->plans[c->plan_count - 1],
               status_new(STATUS_UNAVAILABLE, "fsdpd is shutting down"), NULL);
    free(c->plans);
    c->plans = NULL;
    c->plan_capacity = 0;
}
