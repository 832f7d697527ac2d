/*
 * The worker's lifecycle; see settings.h. Everything here runs on the loop's thread, except planning,
 * which runs on libuv's pool because it builds whole graphs.
 */
#include "worker/settings.h"

#include <malloc.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/host.h"
#include "base/interrupt.h"
#include "base/list.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/stacks.h"
#include "hf/hf.h"
#include "planning/planning.h"
#include "planning/profile.h"
#include "proto/message.h"
#include "runtime/backend.h"
#include "spec/spec.h"
#include "worker/attempt.h"
#include "worker/job_message.h"
#include "worker/logs.h"
#include "worker/probe.h"

/* How long an attempt may take to end when the worker leaves; after that the process ends anyhow.
 */
enum { LEAVE_MS = 5000 };

/* Plans that are made side by side: a large one is no small one's wait. The coordinator orders at
 * most as many. */
#define PLAN_THREADS "16"

struct worker_process {
    const struct worker_options *options;
    uv_loop_t loop;
    struct mailbox *mailbox;
    struct link *link;
    struct worker_attempt *attempt; /* NULL when idle */
    struct measuring *calibration;  /* NULL: none runs */
    struct prober prober;
    struct spare spare;
    bool discards; /* `spare`, when the attempt has ended */
    uv_signal_t sigterm, sigint;
    uv_timer_t leave_timer;
    char *make;                 /* of the device; see backend_describe */
    uint64_t memory_bytes;      /* of the device, when nothing ran on it */
    uint64_t host_memory_bytes; /* likewise */
    struct list plans;          /* that are being made, each by a thread */
    bool leaving;
    enum status_code last_loss; /* of the link, as it was logged */
    int exit_code;
};

/* Leaving: end the attempt, wait for plans, close the link, close the handles. */

static void on_link_closed(void *user)
{
    struct worker_process *worker = user;
    worker->link = NULL;
    mailbox_close(worker->mailbox);
    uv_close((uv_handle_t *)&worker->sigterm, NULL);
    uv_close((uv_handle_t *)&worker->sigint, NULL);
    uv_close((uv_handle_t *)&worker->leave_timer, NULL);
    prober_close(&worker->prober);
}

static void leave(struct worker_process *worker, const char *why, int exit_code);

static void leave_if_idle(struct worker_process *worker)
{
    if (device_is_lost()) leave(worker, "the device is lost", 1);
    if (!worker->leaving || worker->attempt != NULL || worker->plans.count > 0) return;
    if (worker->calibration != NULL || worker->prober.running > 0) return;
    if (worker->link == NULL) return;
    struct link *link = worker->link;
    link_close(link, on_link_closed, worker);
}

static void on_leave_timeout(uv_timer_t *timer)
{
    struct worker_process *worker = timer->data;
    log_event(LOG_WARNING, "worker_stuck", "after_ms=%d", LEAVE_MS);
    _exit(worker->exit_code ? worker->exit_code : 1);
}

static void leave(struct worker_process *worker, const char *why, int exit_code)
{
    if (worker->leaving) return;
    worker->leaving = true;
    worker->exit_code = exit_code;
    uv_timer_start(&worker->leave_timer, on_leave_timeout, LEAVE_MS, 0);
    if (worker->link != NULL) link_post_leave(worker->link);
    if (worker->attempt != NULL) attempt_abort(worker->attempt, why);
    if (worker->calibration != NULL) measuring_stop(worker->calibration);
    leave_if_idle(worker);
}

static void on_signal(uv_signal_t *handle, int signal_number)
{
    struct worker_process *worker = handle->data;
    if (worker->leaving) _exit(128 + signal_number);
    log_event(LOG_INFO, "worker_stopping", "signal=%d", signal_number);
    leave(worker, "the worker was ordered to stop", 0);
}

/* Planning. */

static status_t device_memory(const struct worker_options *options, uint64_t *bytes)
{
    struct device *device;
    TRY(device_open(options->device, options->threads, &device));
    *bytes = device_memory_bytes(device);
    device_close(device);
    return NULL;
}

struct worker_plan {
    struct list_node node;
    uv_work_t work;
    atomic_bool cancelled;
    struct worker_process *worker;
    Fsdpd__V1__PlanOrder *order;
    Fsdpd__V1__PlanResult *result;
};

/* Plans the job for another number of workers. */
static status_t plan_world(const struct worker_plan *request, uint32_t workers,
                           struct planning_options planning, Fsdpd__V1__Plan **plan)
{
    const struct worker_options *options = request->worker->options;
    const Fsdpd__V1__JobSpec *asked = request->order->spec;
    const Fsdpd__V1__Plan *made = request->result->plan;
    struct spec_settings with;
    struct job_settings settings;
    Fsdpd__V1__JobSpec spec = /* borrows everything */
        *spec_settings(asked, asked->fsdp->choose ? made->choices[0] : NULL, &with);
    spec.workers = workers;
    TRY(job_settings_init(&settings, &spec, "plan", options));
    planning.details = planning.choose = planning.tune = planning.dump = false;
    status_t status = planning_make(&settings.job, &planning, plan);
    job_settings_deinit(&settings);
    return status;
}

/* An elastic job's plans for all numbers of workers in its range: what they need, or why the job
 * will not run with them. */
static void plan_worlds(const struct worker_plan *request, const struct planning_options *planning)
{
    const Fsdpd__V1__ElasticSpec *elastic = request->order->spec->elastic;
    Fsdpd__V1__Plan *made = request->result->plan;
    if (elastic == NULL || elastic->max_workers == 0) return;
    size_t count = elastic->max_workers - elastic->min_workers + 1;
    made->worlds = mem_alloc_array(count, sizeof(Fsdpd__V1__PlanWorld *));
    for (uint32_t n = elastic->min_workers; n <= elastic->max_workers; n++) {
        Fsdpd__V1__PlanWorld *world = made->worlds[made->n_worlds++] =
            MESSAGE_NEW(world, fsdpd__v1__plan_world__init);
        world->workers = n;
        world->peak_bytes = made->peak_bytes;
        if (n == made->world) continue;
        Fsdpd__V1__Plan *plan = NULL;
        status_t status = plan_world(request, n, *planning, &plan);
        world->peak_bytes = plan != NULL ? plan->peak_bytes : 0;
        if (status != NULL) world->refused = mem_strdup(status_message(status));
        status_free(status);
        message_free(plan);
    }
}

/* The profile that was measured on devices as this one, for the order; without a message, or with a
 * broken one, what is known of the device is used. */
static const struct profile *read_measured(const struct worker_plan *request,
                                           struct profile *profile)
{
    const char *text = request->order->profile;
    if (text[0] == '\0') return NULL;
    status_t status = profile_parse(text, strlen(text), "the measured profile", profile);
    if (status == NULL) return profile;
    log_status(LOG_WARNING, "profile_unusable", status);
    return NULL;
}

static status_t make_plan_for(struct worker_plan *request, const struct profile *measured)
{
    const struct worker_options *options = request->worker->options;
    /* The memory used by the current job will be free again: so the memory free at this worker's
     * start counts, or the memory free now if that is more. When the attempt begins, the memory
     * free then must suffice. */
    const uint32_t sharers = request->order->sharers > 0 ? request->order->sharers : 1;
    uint64_t memory_bytes = request->worker->memory_bytes;
    if (strcmp(options->device, "cpu") == 0) {
        uint64_t free_now;
        TRY(device_memory(options, &free_now));
        if (free_now > memory_bytes) memory_bytes = free_now;
    }
    if (strcmp(options->device, "cpu") == 0 && host_memory_most() < memory_bytes)
        memory_bytes = host_memory_most(); /* a limit that is lower than at the start */
    uint64_t share = memory_bytes / sharers, most = request->order->memory_bytes;
    if (most > 0 && most < share) share = most;
    struct job_settings settings;
    TRY(job_settings_init(&settings, request->order->spec, "plan", options));
    status_t differs = job_from_check(&settings);
    if (differs != NULL) {
        job_settings_deinit(&settings);
        return differs;
    }
    const struct planning_options planning = {.device = options->device,
                                              .measured = measured,
                                              .memory_bytes = share,
                                              .host_memory_bytes =
                                                  request->worker->host_memory_bytes,
                                              .host_workers = (int)request->order->host_workers,
                                              .staged = request->order->staged,
                                              .threads = options->threads,
                                              .details = request->order->details,
                                              .choose = request->order->choose ||
                                                        request->order->spec->fsdp->choose,
                                              .tune = request->order->spec->fsdp->tune,
                                              .dump = request->order->dump};
    status_t status = planning_make(&settings.job, &planning, &request->result->plan);
    if (status == NULL) {
        request->result->steps = request->result->plan->steps;
        plan_worlds(request, &planning);
        if (settings.spec->model->hf[0] != '\0') {
            request->result->model_text = mem_strdup(settings.spec->model->text);
            request->result->hf_config = mem_strdup(settings.spec->model->hf_config);
            request->result->hf_family = mem_strdup(settings.spec->model->hf_family);
        }
    }
    if (status == NULL && settings.spec->model->teacher != NULL)
        request->result->teacher = message_copy(settings.spec->model->teacher);
    if (status == NULL && settings.spec->model->adapter[0] != '\0')
        request->result->lora = message_copy(settings.spec->model->lora);
    job_settings_deinit(&settings);
    return status;
}

static status_t make_plan(struct worker_plan *request)
{
    struct profile profile;
    const struct profile *measured = read_measured(request, &profile);
    status_t status = make_plan_for(request, measured);
    if (measured != NULL) profile_deinit(&profile);
    return status;
}

static void run_plan(uv_work_t *work)
{
    struct worker_plan *request = work->data;
    interrupt_watch(&request->cancelled);
    status_t status =
        request->order->file == NULL
            ? make_plan(request)
            : job_files_read(request->order, request->worker->options, &request->result->file);
    interrupt_watch(NULL);
    if (status == NULL) return;
    request->result->code = (uint32_t)status_code(status);
    request->result->message = mem_strdup(status_message(status));
    status_free(status);
}

static void on_plan_done(uv_work_t *work, int cancelled)
{
    (void)cancelled;
    struct worker_plan *request = work->data;
    struct worker_process *worker = request->worker;
    Fsdpd__V1__WorkerMessage *message = MESSAGE_NEW(message, fsdpd__v1__worker_message__init);
    message->message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_PLAN;
    message->plan = request->result;
    link_post(worker->link, message);
    fsdpd__v1__plan_order__free_unpacked(request->order, NULL);
    list_remove(&worker->plans, &request->node);
    free(request);
    if (worker->plans.count == 0) malloc_trim(0); /* a large plan's memory is the system's again */
    leave_if_idle(worker);
}

static void on_plan(void *user, const Fsdpd__V1__PlanOrder *order)
{
    struct worker_process *worker = user;
    if (worker->leaving) return;
    struct worker_plan *request = mem_alloc(sizeof *request);
    request->work.data = request;
    request->worker = worker;
    request->order = message_copy(order);
    request->result = MESSAGE_NEW(request->result, fsdpd__v1__plan_result__init);
    request->result->request = order->request;
    list_append(&worker->plans, &request->node);
    uv_queue_work(&worker->loop, &request->work, run_plan, on_plan_done);
}

/* `number` 0: all. */
static void cancel_plans(struct worker_process *worker, uint64_t number)
{
    LIST_EACH(node, &worker->plans)
    {
        struct worker_plan *request = LIST_ITEM(node, struct worker_plan, node);
        if (number == 0 || request->order->request == number)
            atomic_store_explicit(&request->cancelled, true, memory_order_relaxed);
    }
}

static void on_plan_cancelled(void *user, uint64_t request)
{
    cancel_plans(user, request);
}

/* Calibrations. */

static void on_calibration_done(void *user, Fsdpd__V1__Calibration *report)
{
    struct worker_process *worker = user;
    Fsdpd__V1__WorkerMessage *message = MESSAGE_NEW(message, fsdpd__v1__worker_message__init);
    message->message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_CALIBRATION;
    message->calibration = report;
    link_post(worker->link, message);
    worker->calibration = NULL;
    leave_if_idle(worker);
}

static void on_calibration(void *user, const Fsdpd__V1__CalibrationOrder *order)
{
    struct worker_process *worker = user;
    if (order->stop) {
        if (worker->calibration != NULL) measuring_stop(worker->calibration);
    } else if (!worker->leaving && worker->attempt == NULL && worker->calibration == NULL) {
        worker->calibration =
            measuring_start(&worker->loop, worker->options, order, on_calibration_done, worker);
    }
}

/* Probes. */

static void on_probed(void *user, Fsdpd__V1__ProbeReport *report)
{
    struct worker_process *worker = user;
    Fsdpd__V1__WorkerMessage *message = MESSAGE_NEW(message, fsdpd__v1__worker_message__init);
    message->message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_PROBE;
    message->probe = report;
    link_post(worker->link, message);
    leave_if_idle(worker);
}

static void on_probe(void *user, const Fsdpd__V1__ProbeOrder *order)
{
    struct worker_process *worker = user;
    if (!worker->leaving) probe_start(&worker->prober, order);
}

/* Attempts. */

static void on_attempt_ended(void *user)
{
    struct worker_process *worker = user;
    logs_end();
    attempt_free(worker->attempt);
    worker->attempt = NULL;
    if (worker->discards) spare_clear(&worker->spare);
    worker->discards = false;
    link_forget_keys(worker->link);
    leave_if_idle(worker);
}

static void on_assignment(void *user, const Fsdpd__V1__Assignment *assignment)
{
    struct worker_process *worker = user;
    if (worker->leaving) return;
    if (worker->attempt != NULL) {
        /* The coordinator believes that this worker is idle: its picture is wrong, start afresh. */
        log_event(LOG_ERROR, "assignment_while_busy", "job=%s", assignment->job);
        leave(worker, "assigned while busy", 1);
        return;
    }
    logs_begin(worker->link, assignment->job, assignment->attempt);
    log_event(LOG_INFO, "attempt_started", "job=%s attempt=%u rank=%u world=%u threads=%u",
              assignment->job, assignment->attempt, assignment->rank, assignment->world,
              assignment->threads);
    spare_begin(&worker->spare, assignment);
    worker->attempt = attempt_start(worker->link, worker->mailbox, worker->options, assignment,
                                    &worker->spare, on_attempt_ended, worker);
}

static void on_order(void *user, const Fsdpd__V1__Order *order)
{
    struct worker_process *worker = user;
    if (worker->attempt != NULL) attempt_order(worker->attempt, order);
}

static void on_diagnosis(void *user, const Fsdpd__V1__DiagnosisOrder *order)
{
    struct worker_process *worker = user;
    if (worker->attempt == NULL || !attempt_is(worker->attempt, order->job, order->attempt)) return;
    Fsdpd__V1__DiagnosisReport *report = MESSAGE_NEW(report, fsdpd__v1__diagnosis_report__init);
    report->number = order->number;
    report->job = mem_strdup(order->job);
    report->rank = attempt_diagnose(worker->attempt, order->stacks);
    Fsdpd__V1__WorkerMessage *message = MESSAGE_NEW(message, fsdpd__v1__worker_message__init);
    message->message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_DIAGNOSIS;
    message->diagnosis = report;
    link_post(worker->link, message);
}

static void on_drain(void *user)
{
    leave(user, "the daemon is stopping", 0);
}

static void discard(struct worker_process *worker, const char *job)
{
    if (worker->spare.job == NULL || strcmp(worker->spare.job, job) != 0) return;
    if (worker->attempt != NULL) worker->discards = true;
    else spare_clear(&worker->spare);
}

static void on_release(void *user, const Fsdpd__V1__Release *release)
{
    struct worker_process *worker = user;
    if (release->attempt == 0) discard(worker, release->job);
    if (worker->attempt != NULL && attempt_is(worker->attempt, release->job, release->attempt))
        attempt_abort(worker->attempt, "the coordinator has ended this attempt");
}

/* Whether it would be a loss if this process ended. */
static bool is_needed(const struct worker_process *worker)
{
    return worker->attempt != NULL || link_has_reports(worker->link) ||
           kept_bytes(&worker->spare.kept) > 0;
}

/* Retries fail until the certificate or the id changes. */
static bool is_refusal(status_t status)
{
    return status_code(status) == STATUS_PERMISSION_DENIED ||
           status_code(status) == STATUS_UNAUTHENTICATED;
}

/*
 * A supervised worker continues its job, which its next coordinator takes over; one that does
 * nothing ends, as that coordinator would start another one anyway.
 */
static void on_lost(void *user, status_t status, bool attached)
{
    struct worker_process *worker = user;
    if (worker->leaving) {
        status_free(status);
        return;
    }
    if (worker->calibration != NULL) measuring_stop(worker->calibration);
    cancel_plans(worker, 0);
    /* link is not set yet when the very first connection fails at once */
    bool needed = worker->link != NULL && is_needed(worker);
    if (worker->options->supervised && !needed) {
        log_status(LOG_WARNING, "coordinator_lost", status);
        leave(worker, "the coordinator is gone", 1);
        return;
    }
    bool news = attached || worker->last_loss != status_code(status);
    worker->last_loss = status_code(status);
    if (attached) log_status(LOG_WARNING, "coordinator_lost", status);
    else if (news && is_refusal(status)) log_status(LOG_ERROR, "attach_refused", status);
    else if (news) log_status(LOG_INFO, "coordinator_unreachable", status);
    else status_free(status);
}

static void on_away(void *user, int64_t away_ms)
{
    struct worker_process *worker = user;
    if (worker->leaving || (!is_needed(worker) && !worker->options->supervised)) return;
    log_event(LOG_ERROR, "coordinator_away", "seconds=%.0f", (double)away_ms / 1000);
    leave(worker, "the coordinator was unreachable for too long", 1);
}

static bool describe_attempt(void *user, Fsdpd__V1__HeldAttempt *held)
{
    struct worker_process *worker = user;
    if (worker->attempt == NULL) return false;
    attempt_describe(worker->attempt, held);
    return true;
}

static Fsdpd__V1__KeptState *describe_kept(void *user)
{
    const struct worker_process *worker = user;
    return worker->attempt == NULL ? spare_describe(&worker->spare) : NULL;
}

static void beat(void *user, Fsdpd__V1__Heartbeat *heartbeat)
{
    struct worker_process *worker = user;
    if (worker->attempt != NULL) attempt_beat(worker->attempt, heartbeat);
}

/* Starting. */

/*
 * NODE/DEVICE, or NODE/ID for an id without a slash. Over TLS, NODE is the certificate's name: the
 * coordinator accepts no other.
 */
static char *make_id(const struct worker_options *options)
{
    if (options->id != NULL && strchr(options->id, '/') != NULL) return mem_strdup(options->id);
    char host[HOST_NAME_SIZE];
    bool local = strncmp(options->coordinator, "unix:", 5) == 0;
    AUTO_FREE char *node = local ? NULL : rpc_tls_worker_name(&options->security.tls);
    if (node == NULL) node = mem_strdup(host_name(host));
    const char *name = options->id != NULL ? options->id : options->device;
    return options->id == NULL && options->share_device
               ? mem_printf("%s/%s@%d", node, name, (int)getpid())
               : mem_printf("%s/%s", node, name);
}

static void add_signal(struct worker_process *worker, uv_signal_t *handle, int signal_number)
{
    uv_signal_init(&worker->loop, handle);
    handle->data = worker;
    uv_signal_start(handle, on_signal, signal_number);
}

static status_t examine_device(struct worker_process *worker)
{
    struct device *device;
    TRY(device_open(worker->options->device, worker->options->threads, &device));
    worker->memory_bytes = device_memory_bytes(device);
    worker->host_memory_bytes = device_host_memory_bytes(device);
    backend_log_faults(device);
    status_t status = backend_describe(device, worker->options->threads, &worker->make);
    device_close(device);
    return status;
}

static status_t start(struct worker_process *worker, const char *id)
{
    TRY(examine_device(worker));
    if (!worker->options->supervised) /* otherwise the coordinator reports the same ones */
        hf_families_report(worker->options->families, worker->options->family_count);
    TRY(mailbox_new(&worker->loop, &worker->mailbox));
    add_signal(worker, &worker->sigterm, SIGTERM);
    add_signal(worker, &worker->sigint, SIGINT);
    uv_timer_init(&worker->loop, &worker->leave_timer);
    prober_init(&worker->prober, &worker->loop, on_probed, worker);
    worker->leave_timer.data = worker;
    const struct link_callbacks callbacks = {
        .on_plan = on_plan,
        .on_plan_cancelled = on_plan_cancelled,
        .on_assignment = on_assignment,
        .on_order = on_order,
        .on_drain = on_drain,
        .on_diagnosis = on_diagnosis,
        .on_calibration = on_calibration,
        .on_probe = on_probe,
        .on_release = on_release,
        .on_lost = on_lost,
        .on_away = on_away,
        .held = describe_attempt,
        .kept = describe_kept,
        .beat = beat,
        .user = worker,
    };
    const struct link_self self = {.id = id,
                                   .make = worker->make,
                                   .memory_bytes = worker->memory_bytes};
    return link_new(&worker->loop, worker->mailbox, worker->options, &self, &callbacks,
                    &worker->link);
}

int worker_main(const struct worker_options *options)
{
    static struct worker_process worker; /* so that nothing leaks where a start fails half way */
    worker = (struct worker_process){.options = options};
    char *id = make_id(options);
    AUTO_FREE char *quoted = log_quote(id);
    AUTO_FREE char *context = mem_printf("worker=%s", quoted);
    log_set_context(context);
    signal(SIGPIPE, SIG_IGN);
    resident_return_freed();
    setenv("UV_THREADPOOL_SIZE", PLAN_THREADS, 0); /* before the first use of the pool */
    stacks_open();
    int error = uv_loop_init(&worker.loop);
    status_t status =
        error != 0 ? status_from_errno(-error, "cannot open an event loop") : start(&worker, id);
    if (status != NULL) {
        log_status(LOG_ERROR, "worker_failed", status);
        free(worker.make);
        free(id);
        /* Does nothing if some handles are open already; the end of the process closes those. */
        if (error == 0) uv_loop_close(&worker.loop);
        return 1;
    }
    uv_run(&worker.loop, UV_RUN_DEFAULT);
    uv_loop_close(&worker.loop);
    spare_clear(&worker.spare);
    free(worker.make);
    free(id);
    return worker.exit_code;
}
