/* Plan requests; see planner.h. A request waits for a worker, then for that worker's answer, or for
 * that of a process that plans without one. */
#include "coordinator/workers/planner.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "coordinator/workers/supervisor.h"
#include "coordinator/workers/workers.h"

enum {
    PLANS_MAX = 256,
    PLANS_OF_OWNER = 2,   /* that workers make at a time; the others wait for these */
    PLANS_OF_WORKER = 16, /* the same of one worker, which makes them side by side */
    OFFLINE_MAX = 2,      /* processes at a time */
    LOSSES_MAX = 2,       /* a request that loses this many workers fails: it may be the cause */
};

struct plan_request {
    struct list_node node;
    struct coordinator *c;
    uint64_t number;
    job_spec *spec;
    unsigned parts;
    uint64_t memory_bytes;   /* 0: no limit */
    Fsdpd__V1__GetModelFileRequest *file; /* to read instead of a plan; NULL: none */
    char *owner;             /* NULL: fsdpd itself */
    struct worker *worker;   /* NULL while none has been asked */
    bool cancelled;          /* the worker has the order to stop; `done` is NULL */
    bool has_turn; /* a worker makes it, or will when its turn comes, until the deadline */
    struct offline *offline; /* the process that plans it without one; NULL: none */
    int losses;              /* workers that were lost while they planned it */
    bool waited;             /* long enough for a worker */
    int64_t deadline;
    planner_done *done;
    void *user;
};

static struct plan_request *item(struct list_node *node)
{
    return LIST_ITEM(node, struct plan_request, node);
}

static void stop_offline(struct plan_request *request)
{
    if (request->offline == NULL) return;
    offline_cancel(request->offline);
    request->offline = NULL;
    request->c->plans_offline--;
}

static void call_done(struct plan_request *request, status_t status,
                      const Fsdpd__V1__PlanResult *result)
{
    planner_done *done = request->done;
    request->done = NULL;
    if (done != NULL) done(request->user, status, request->spec, result);
    else status_free(status);
}

static void send_waiting(struct coordinator *c);

static bool has_result(const struct plan_request *request, const Fsdpd__V1__PlanResult *result)
{
    return request->file != NULL ? result->file != NULL : result->plan != NULL;
}

/* Removes the request from the list, answers it and frees it. */
static void answer(struct plan_request *request, status_t status,
                   const Fsdpd__V1__PlanResult *result)
{
    struct coordinator *c = request->c;
    list_remove(&c->plans, &request->node);
    if (request->worker != NULL) {
        request->worker->plans--;
        request->worker->idle_from = coordinator_now();
    }
    stop_offline(request);
    call_done(request, status, result);
    message_free(request->spec);
    message_free(request->file);
    free(request->owner);
    free(request);
    send_waiting(c);
}

/* Tells the worker to stop. The request counts until it has. */
static void cancel(struct plan_request *request)
{
    if (request->cancelled) return;
    request->cancelled = true;
    request->deadline = INT64_MAX;
    log_event(LOG_INFO, "plan_cancelled", "worker=%s owner=%s", request->worker->id,
              request->owner != NULL ? request->owner : "");
    Fsdpd__V1__PlanCancellation order = FSDPD__V1__PLAN_CANCELLATION__INIT;
    order.request = request->number;
    worker_send(request->worker, FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_PLAN_CANCELLATION, &order);
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
        if (worker->plans >= PLANS_OF_WORKER) continue;
        if (best == NULL || is_better(worker, best)) best = worker;
    }
    return best;
}

bool planner_has_worker(struct coordinator *c, const char *kind)
{
    for (int i = 0; i < c->worker_count; i++)
        if (kind[0] == '\0' || worker_is_kind(c->workers[i]->device, kind)) return true;
    return false;
}

static void fill_order(const struct plan_request *request, Fsdpd__V1__PlanOrder *order)
{
    fsdpd__v1__plan_order__init(order);
    order->request = request->number;
    order->spec = request->spec;
    order->dump = (request->parts & PLANNER_DUMP) != 0;
    order->details = (request->parts & PLANNER_DETAILS) != 0;
    order->choose = (request->parts & PLANNER_CHOOSE) != 0;
    order->memory_bytes = request->memory_bytes;
    order->file = request->file;
}

/* Whether its owner has as many plans with the workers as one may have. Those of a worker that does
 * not answer in time do not count. */
static bool waits_for_others(const struct plan_request *request)
{
    int count = 0;
    if (request->owner == NULL) return false;
    LIST_EACH(node, &request->c->plans)
    {
        const struct plan_request *other = item(node);
        bool counts =
            other->worker != NULL && other->worker->plans_late == 0 && other->owner != NULL;
        if (counts && strcmp(other->owner, request->owner) == 0) count++;
    }
    return count >= PLANS_OF_OWNER;
}

/* Asks a worker, unless there is none or others come first. */
static void send_order(struct plan_request *request)
{
    struct coordinator *c = request->c;
    if (waits_for_others(request)) return;
    struct worker *worker = choose(c, request->spec->device);
    if (worker == NULL) return;
    request->worker = worker;
    worker->plans++;
    request->deadline = coordinator_now() + c->options.limits.plan_ms;
    if (request->spec->device[0] == '\0') {
        AUTO_FREE char *kind = mem_strndup(worker->device, strcspn(worker->device, ":"));
        message_set_text(&request->spec->device, kind);
    }
    Fsdpd__V1__PlanOrder order;
    fill_order(request, &order);
    order.staged = request->spec->workers > 1 &&
                   workers_must_share(c, request->spec->device, (int)request->spec->workers);
    uint32_t sharers = (uint32_t)worker_sharers(worker);
    order.sharers = sharers < request->spec->workers ? sharers : request->spec->workers;
    order.host_workers = (uint32_t)worker_host_workers(worker);
    order.profile = (char *)calibration_profile(worker);
    worker_send(worker, FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_PLAN, &order);
}

/* Asks a worker, or lets the request wait for its turn at one. False: there is none of its kind. */
static bool ask_worker(struct plan_request *request)
{
    struct coordinator *c = request->c;
    if (!planner_has_worker(c, request->spec->device)) return false;
    if (!request->has_turn) request->deadline = coordinator_now() + c->options.limits.plan_ms;
    request->has_turn = true;
    send_order(request);
    return true;
}

/* Those that waited for others, in their order. */
static void send_waiting(struct coordinator *c)
{
    LIST_EACH(node, &c->plans)
    if (item(node)->worker == NULL && item(node)->offline == NULL) send_order(item(node));
}

/* Why no worker could be asked. */
static status_t no_worker_error(const struct plan_request *request)
{
    struct coordinator *c = request->c;
    const char *kind = request->spec->device;
    if (planner_has_worker(c, kind))
        return status_new(STATUS_DEADLINE_EXCEEDED,
                          "other plans took the time of this one, %g s (limits.plan_seconds)",
                          c->options.limits.plan_ms / 1000.0);
    if (c->worker_count == 0)
        return status_with(status_new(STATUS_FAILED_PRECONDITION,
                                      "no worker is attached, so %s; start fsdpd with "
                                      "--workers, or fsdpd worker --coordinator %s",
                                      request->file == NULL
                                          ? "the job cannot be planned"
                                          : "the files of its model cannot be read",
                                      c->address),
                           (struct status_details){.reason = "NO_WORKER"});
    return status_with(
        status_new(STATUS_FAILED_PRECONDITION,
                   "device: no %s worker is attached (%d with other devices, such as %s)", kind,
                   c->worker_count, c->workers[0]->device),
        (struct status_details){.reason = "NO_WORKER_OF_THE_DEVICE", .field = "device"});
}

bool planner_lacks_worker(status_t status)
{
    const char *reason = status_about(status).reason;
    return reason != NULL && strcmp(reason, "NO_WORKER") == 0;
}

/* ---- without a worker ---- */

static void start_waiting(struct coordinator *c);

/* What a job without a worker is refused with; other errors may not be the job's, such as a
 * directory that only workers have. */
static bool is_refusal(enum status_code code)
{
    return code == STATUS_INVALID_ARGUMENT || code == STATUS_RESOURCE_EXHAUSTED ||
           code == STATUS_UNIMPLEMENTED;
}

static status_t offline_refusal(struct plan_request *request, const Fsdpd__V1__PlanResult *result)
{
    struct offline_devices devices;
    const char *why = devices_find(request->c, request->spec->device, &devices);
    status_t status = status_new((enum status_code)result->code, "%s", result->message);
    if (result->code != STATUS_RESOURCE_EXHAUSTED || devices.profile == NULL) return status;
    return status_wrap(status, "no worker is attached; planned for %s, %s", devices.profile, why);
}

/* Without a plan, a worker that has attached meanwhile is asked, in the request's turn. */
static void on_offline(void *user, status_t status, Fsdpd__V1__PlanResult *result)
{
    struct plan_request *request = user;
    struct coordinator *c = request->c;
    bool planned = status == NULL && result->code == STATUS_OK && has_result(request, result);
    request->offline = NULL;
    c->plans_offline--;
    if (!planned && ask_worker(request)) {
        status_free(status);
        message_free(result);
        start_waiting(c);
        return;
    }
    if (status != NULL) {
        log_status(LOG_WARNING, "offline_plan_failed", status);
        status = no_worker_error(request);
    } else if (result->code != STATUS_OK) {
        status =
            is_refusal(result->code) ? offline_refusal(request, result) : no_worker_error(request);
    } else if (!planned) {
        status = no_worker_error(request);
    }
    answer(request, status, status == NULL ? result : NULL);
    message_free(result);
    start_waiting(c);
}

/* A local worker of the request's kind starts, so it is worth a wait. */
static bool expects_worker(const struct plan_request *request)
{
    struct coordinator *c = request->c;
    const char *kind = request->spec->device;
    if (kind[0] != '\0' && strcmp(kind, c->options.local_device) != 0) return false;
    return supervisor_starting(c) > 0;
}

/* Whether it is to be planned without a worker. */
static bool is_for_offline(const struct plan_request *request)
{
    return request->waited && request->worker == NULL && request->offline == NULL &&
           (request->parts & PLANNER_WORKER) == 0 && request->c->worker_count == 0 &&
           request->c->options.program != NULL;
}

/* A failure to start is answered at the next tick, as the caller may not expect an answer. */
static void plan_offline(struct plan_request *request)
{
    struct coordinator *c = request->c;
    struct offline_devices devices;
    devices_find(c, request->spec->device, &devices);
    Fsdpd__V1__PlanOrder order;
    fill_order(request, &order);
    status_t status = offline_start(c, &order, &devices, on_offline, request, &request->offline);
    request->deadline = coordinator_now() + (status == NULL ? c->options.limits.plan_ms : 0);
    request->has_turn = false;
    if (status == NULL) c->plans_offline++;
    else log_status(LOG_WARNING, "offline_plan_failed", status);
}

static void start_waiting(struct coordinator *c)
{
    LIST_EACH(node, &c->plans)
    if (c->plans_offline < OFFLINE_MAX && is_for_offline(item(node))) plan_offline(item(node));
}

/* Without a worker, and none to wait for: it is planned offline, or else answered at the next
 * tick. */
static void stop_waiting(struct plan_request *request)
{
    struct coordinator *c = request->c;
    request->waited = true;
    request->deadline = coordinator_now();
    if (!is_for_offline(request)) return;
    request->deadline += c->options.limits.plan_ms;
    start_waiting(c);
}

/* Appends a request to the list. */
static status_t add_request(struct coordinator *c, const job_spec *spec, const char *owner,
                            planner_done *done, void *user, struct plan_request **added)
{
    if (c->plans.count >= PLANS_MAX)
        return status_new(STATUS_RESOURCE_EXHAUSTED, "%d plans are in progress already",
                          c->plans.count);
    struct plan_request *request = mem_alloc(sizeof *request);
    request->c = c;
    request->number = ++c->last_number;
    request->spec = message_copy(spec);
    request->owner = owner != NULL ? mem_strdup(owner) : NULL;
    request->deadline = coordinator_now() + c->options.limits.plan_wait_ms;
    request->done = done;
    request->user = user;
    list_append(&c->plans, &request->node);
    *added = request;
    return NULL;
}

static void begin(struct plan_request *request)
{
    struct coordinator *c = request->c;
    if (!ask_worker(request) && c->worker_count == 0 && !expects_worker(request))
        stop_waiting(request);
    coordinator_tick_soon(c);
}

status_t planner_request_within(struct coordinator *c, const job_spec *spec, const char *owner,
                                unsigned parts, uint64_t memory_bytes, planner_done *done,
                                void *user)
{
    struct plan_request *request;
    TRY(add_request(c, spec, owner, done, user, &request));
    request->parts = parts;
    request->memory_bytes = memory_bytes;
    calibration_stop(c); /* the plan, and the job that may follow, need the processors */
    begin(request);
    return NULL;
}

status_t planner_read_file(struct coordinator *c, const job_spec *spec, const char *owner,
                           const Fsdpd__V1__GetModelFileRequest *file, planner_done *done,
                           void *user)
{
    struct plan_request *request;
    TRY(add_request(c, spec, owner, done, user, &request));
    request->file = message_copy(file);
    begin(request);
    return NULL;
}

status_t planner_request(struct coordinator *c, const job_spec *spec, const char *owner,
                         unsigned parts, planner_done *done, void *user)
{
    return planner_request_within(c, spec, owner, parts, 0, done, user);
}

/* The next request of this user whose answer is still expected. */
static struct plan_request *find_for(struct coordinator *c, const void *user)
{
    LIST_EACH(node, &c->plans)
    if (item(node)->user == user && item(node)->done != NULL) return item(node);
    return NULL;
}

void planner_forget(struct coordinator *c, const void *user)
{
    struct plan_request *request;
    while ((request = find_for(c, user)) != NULL) {
        request->done = NULL;
        if (request->worker != NULL) cancel(request);
        else answer(request, NULL, NULL);
    }
}

void planner_worker_attached(struct coordinator *c)
{
    LIST_EACH(node, &c->plans)
    if (item(node)->worker == NULL && item(node)->offline == NULL) ask_worker(item(node));
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
        if (request->cancelled) {
            answer(request, NULL, NULL);
            continue;
        }
        if (++request->losses == LOSSES_MAX) {
            answer(request,
                   status_new(STATUS_UNAVAILABLE,
                              "%d workers were lost while they planned the job, the last one %s",
                              request->losses, worker->id),
                   NULL);
            continue;
        }
        request->worker = NULL;
        request->has_turn = false;
        request->deadline = coordinator_now() + c->options.limits.plan_wait_ms;
        ask_worker(request);
    }
}

const Fsdpd__V1__Chosen *planner_chosen(const job_spec *spec, const Fsdpd__V1__Plan *plan)
{
    return spec->fsdp->choose && !plan->offline && plan->n_choices > 0 ? plan->choices[0] : NULL;
}

static void take_contents(Fsdpd__V1__ModelSpec *asked, const Fsdpd__V1__ModelSpec *planned)
{
    if (asked == NULL || planned == NULL || asked->hf[0] == '\0') return;
    if (strcmp(asked->hf, planned->hf) != 0) return;
    message_set_text(&asked->text, planned->text);
    message_set_text(&asked->hf_config, planned->hf_config);
    message_set_text(&asked->hf_family, planned->hf_family);
}

void planner_complete(Fsdpd__V1__ModelSpec *asked, const Fsdpd__V1__ModelSpec *planned)
{
    take_contents(asked, planned);
    take_contents(asked->teacher, planned->teacher);
}

void planner_result(struct worker *worker, const Fsdpd__V1__PlanResult *result)
{
    struct coordinator *c = worker->c;
    worker->plans_late = 0; /* even if the answer is late */
    LIST_EACH(node, &c->plans)
    {
        struct plan_request *request = item(node);
        if (request->number != result->request || request->worker != worker) continue;
        if (request->cancelled) {
            answer(request, NULL, NULL);
            return;
        }
        status_t status = NULL;
        if (result->code != STATUS_OK)
            status =
                status_new(result->code <= STATUS_UNAUTHENTICATED ? (enum status_code)result->code
                                                                  : STATUS_UNKNOWN,
                           "%s", result->message);
        else if (!has_result(request, result))
            status = status_new(STATUS_INTERNAL, "worker %s sent no %s", worker->id,
                                request->file != NULL ? "file" : "plan");
        if (status == NULL && result->plan != NULL) {
            Fsdpd__V1__ModelSpec planned = FSDPD__V1__MODEL_SPEC__INIT;
            planned.hf = request->spec->model->hf;
            planned.text = result->model_text;
            planned.hf_config = result->hf_config;
            planned.hf_family = result->hf_family;
            planned.teacher = result->teacher;
            planner_complete(request->spec->model, &planned);
        }
        if (status == NULL && result->lora != NULL) {
            message_free(request->spec->model->lora);
            request->spec->model->lora = message_copy(result->lora);
        }
        if (status == NULL && result->plan != NULL && request->memory_bytes == 0)
            devices_note(c, request->spec->device, result->plan);
        answer(request, status, status == NULL ? result : NULL);
        return;
    }
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
        bool queued = request->worker == NULL && request->offline == NULL &&
                      planner_has_worker(c, request->spec->device);
        if (request->worker == NULL && !request->waited && !queued) {
            stop_waiting(request);
            continue;
        }
        if (request->worker != NULL) {
            request->worker->plans_late++;
            call_done(request,
                      status_new(STATUS_DEADLINE_EXCEEDED,
                                 "worker %s did not plan the job within %g s", request->worker->id,
                                 c->options.limits.plan_ms / 1000.0),
                      NULL);
            cancel(request);
            continue;
        }
        if (!queued) {
            stop_offline(request);
            if (ask_worker(request)) continue; /* one may have attached meanwhile */
        }
        /* nor did a process plan it in time */
        answer(request, no_worker_error(request), NULL);
    }
}

void planner_close(struct coordinator *c)
{
    while (c->plans.first != NULL)
        answer(item(c->plans.first), status_new(STATUS_UNAVAILABLE, "fsdpd is shutting down"),
               NULL);
}
