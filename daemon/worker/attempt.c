/*
 * An attempt; see attempt.h. The training thread owns the session and the communicators. What the
 * loop hands over (orders, an abort) is guarded by one lock; aborting reaches into whatever the
 * training thread is doing at that moment: a wait for the store, a collective, a step, a pull.
 */
#include "worker/attempt.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "planning/profile.h"
#include "runtime/backend.h"
#include "worker/checkpointer.h"
#include "worker/job_message.h"
#include "worker/logs.h"
#include "worker/pull.h"
#include "worker/trace.h"

struct queued_order {
    uint64_t sequence;
    uint64_t pull;                 /* of a pull, else 0 */
    uint64_t trace;                /* of a trace, else 0 */
    uint32_t steps;                /* of a trace */
    char *cancel_message;          /* of a cancel */
    Fsdpd__V1__SetWrapOrder *wrap; /* another policy, else NULL; lives as long as the attempt */
    uint64_t checkpoint;           /* of a checkpoint, else 0 */
    bool pause;                    /* the attempt ends with it */
};

/* Orders that other ranks may have missed when the coordinator went. */
enum { TAIL_ORDERS = 32 };

struct attempt {
    struct link *link;
    struct mailbox *mailbox;
    const struct worker_options *options;
    Fsdpd__V1__Assignment *assignment; /* a copy */
    void (*ended)(void *user);
    void *user;
    pthread_t thread;

    struct gate gate; /* for everything that waits for the coordinator */
    struct rendezvous rendezvous;
    struct pull_context pull_context;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct queued_order *orders; /* by sequence, from 1 */
    int order_count, order_capacity;
    Fsdpd__V1__Order
        *tail[TAIL_ORDERS];    /* copies of the last ones; order n is at n % TAIL_ORDERS */
    uint64_t plan_hash, steps; /* once it has started */
    char *aborted;             /* why; NULL if not */
    struct train_session *session;
    struct comm *comm;
    struct puller *puller;
    struct checkpointer *checkpointer; /* NULL without a place for checkpoints */

    char *resumed_name, *resumed_note; /* training thread, as is what follows */
    uint64_t resumed_step;
    Fsdpd__V1__UnrecordedReports *unrecorded; /* of the checkpoint, until they are told; or NULL */
    bool paused;                              /* that is why it ends */
    uint64_t orders_done;
    struct tracer tracer;
    uint64_t memory_planned, memory_peak;
    double peak_flops; /* of all ranks' devices; 0 if it is not known */
    uint64_t step;     /* that it came to, when it is over */
};

/* Telling the coordinator. */

static void post_event(struct attempt *attempt, Fsdpd__V1__AttemptEvent *event)
{
    event->job = mem_strdup(attempt->assignment->job);
    event->attempt = attempt->assignment->attempt;
    Fsdpd__V1__WorkerMessage *message = mem_alloc(sizeof *message);
    fsdpd__v1__worker_message__init(message);
    message->message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_EVENT;
    message->event = event;
    link_post(attempt->link, message);
}

static Fsdpd__V1__AttemptEvent *attempt_event_new(void)
{
    Fsdpd__V1__AttemptEvent *event = mem_alloc(sizeof *event);
    fsdpd__v1__attempt_event__init(event);
    return event;
}

static void note_resumed(void *user, uint64_t step, const char *name, const char *note)
{
    struct attempt *attempt = user;
    attempt->resumed_step = step;
    attempt->resumed_name = name != NULL ? mem_strdup(name) : NULL;
    attempt->resumed_note = note != NULL ? mem_strdup(note) : NULL;
    char *quoted = note != NULL ? log_quote(note) : NULL;
    log_event(note != NULL ? LOG_WARNING : LOG_INFO, "resumed", "step=%llu checkpoint=%s%s%s",
              (unsigned long long)step, name != NULL ? name : "none", note != NULL ? " note=" : "",
              note != NULL ? quoted : "");
    free(quoted);
}

static void log_note(void *user, const char *note)
{
    char *quoted = log_quote(note);
    (void)user;
    log_event(LOG_INFO, "steps_not_recorded", "note=%s", quoted);
    free(quoted);
}

/* What cannot be understood is of another version: it is missing in the curve, and nowhere else. */
static void note_reports(void *user, const void *bytes, size_t size)
{
    struct attempt *attempt = user;
    attempt->unrecorded = fsdpd__v1__unrecorded_reports__unpack(NULL, size, bytes);
    if (attempt->unrecorded == NULL)
        log_event(LOG_WARNING, "unrecorded_metrics_lost", "bytes=%zu", size);
    else log_event(LOG_INFO, "unrecorded_metrics", "count=%zu", attempt->unrecorded->n_metrics);
}

static void tell_started(void *user, uint64_t plan_hash, uint64_t steps)
{
    struct attempt *attempt = user;
    pthread_mutex_lock(&attempt->lock);
    attempt->plan_hash = plan_hash;
    attempt->steps = steps;
    pthread_mutex_unlock(&attempt->lock);
    Fsdpd__V1__AttemptEvent *event = attempt_event_new();
    event->event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_STARTED;
    event->started = mem_alloc(sizeof *event->started);
    fsdpd__v1__started__init(event->started);
    event->started->plan_hash = plan_hash;
    event->started->steps = steps;
    log_event(LOG_INFO, "training_started", "steps=%llu", (unsigned long long)steps);
    event->started->resumed_step = attempt->resumed_step;
    if (attempt->resumed_name != NULL)
        event->started->resumed_name = mem_strdup(attempt->resumed_name);
    if (attempt->resumed_note != NULL)
        event->started->resumed_note = mem_strdup(attempt->resumed_note);
    event->started->unrecorded = attempt->unrecorded;
    attempt->unrecorded = NULL;
    post_event(attempt, event);
}

/* Of all ranks' devices, if something is known of this worker's; else 0. */
static double peak_flops(const struct attempt *attempt, const struct device *device)
{
    const Fsdpd__V1__JobSpec *spec = attempt->assignment->spec;
    struct profile profile;
    char model[128];
    status_t status = profile_of_device(device, &profile, model, sizeof model);
    if (status != NULL) {
        log_event(LOG_INFO, "mfu_unknown", "reason=\"%s\"", status_message(status));
        status_free(status);
        return 0;
    }
    bool low = spec->precision != NULL && strcmp(spec->precision->param_dtype, "bf16") == 0;
    double flops = low ? profile.peak_flops_bf16 : profile.peak_flops_f32;
    if (profile.here) flops *= attempt->options->threads > 0 ? attempt->options->threads : 1;
    return flops * attempt->assignment->world;
}

static void tell_metrics(void *user, const struct train_metrics *metrics)
{
    struct attempt *attempt = user;
    if (attempt->assignment->rank != 0) return;
    logs_progress(metrics);
    Fsdpd__V1__AttemptEvent *event = attempt_event_new();
    event->event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_METRICS;
    Fsdpd__V1__Metrics *message = event->metrics = mem_alloc(sizeof *message);
    fsdpd__v1__metrics__init(message);
    message->step = metrics->step;
    message->epoch = metrics->epoch;
    message->loss = metrics->loss;
    message->learning_rate = metrics->learning_rate;
    message->gradient_norm_known = metrics->gradient_norm_known;
    message->gradient_norm = metrics->gradient_norm;
    message->skipped_steps = metrics->skipped_steps;
    message->samples_per_second = metrics->samples_per_second;
    message->tokens_per_second = metrics->tokens_per_second;
    message->flops_per_second = metrics->flops_per_second;
    message->validated = metrics->validated;
    message->val_loss = metrics->validation_loss;
    message->val_step = metrics->validation_step;
    message->mfu_known = attempt->peak_flops > 0;
    if (message->mfu_known) message->mfu = metrics->flops_per_second / attempt->peak_flops;
    message->step_seconds = metrics->step_seconds;
    message->seconds_left = metrics->seconds_left;
    message->train_seconds = metrics->train_seconds;
    message->communicated_bytes = metrics->communicated_bytes;
    message->memory_bytes = metrics->memory_bytes;
    message->memory_peak_bytes = metrics->memory_peak_bytes;
    message->compute_seconds = metrics->compute_seconds;
    message->communication_seconds = metrics->communication_seconds;
    message->exposed_communication_seconds = metrics->exposed_communication_seconds;
    post_event(attempt, event);
}

static void tell_epoch(void *user, const struct train_epoch *epoch)
{
    struct attempt *attempt = user;
    if (attempt->assignment->rank != 0) return;
    logs_epoch(epoch);
    Fsdpd__V1__AttemptEvent *event = attempt_event_new();
    event->event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_EPOCH;
    Fsdpd__V1__EpochEnd *message = event->epoch = mem_alloc(sizeof *message);
    fsdpd__v1__epoch_end__init(message);
    message->epoch = epoch->epoch;
    message->train_loss = epoch->train_loss;
    message->test_loss = epoch->test_loss;
    message->accuracy = epoch->accuracy;
    message->correct = epoch->correct;
    message->test_samples = epoch->test_samples;
    message->seconds = epoch->seconds;
    message->evaluated = epoch->evaluated;
    message->step = epoch->step;
    message->epochs_done = epoch->epochs_done;
    post_event(attempt, event);
}

static void tell_validation(void *user, const struct train_validation *validation)
{
    struct attempt *attempt = user;
    if (attempt->assignment->rank != 0) return;
    log_event(LOG_INFO, "validated", "step=%llu loss=%.6g seconds=%.3f",
              (unsigned long long)validation->step, validation->loss, validation->seconds);
    Fsdpd__V1__AttemptEvent *event = attempt_event_new();
    event->event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_VALIDATION;
    Fsdpd__V1__Validation *message = event->validation = mem_alloc(sizeof *message);
    fsdpd__v1__validation__init(message);
    message->step = validation->step;
    message->epoch = validation->epoch;
    message->loss = validation->loss;
    message->tokens = validation->tokens;
    message->seconds = validation->seconds;
    post_event(attempt, event);
}

/* Takes ownership of `status`. */
static void tell_finished(struct attempt *attempt, status_t status)
{
    Fsdpd__V1__AttemptEvent *event = attempt_event_new();
    event->event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_FINISHED;
    Fsdpd__V1__Finished *message = event->finished = mem_alloc(sizeof *message);
    fsdpd__v1__finished__init(message);
    message->code = (uint32_t)status_code(status);
    message->reason = mem_strdup(status == NULL ? "DONE"
                                 : attempt->paused && status_code(status) == STATUS_CANCELLED
                                     ? "PAUSED"
                                     : status_code_name(status_code(status)));
    message->message = mem_strdup(status == NULL ? "trained to the end" : status_message(status));
    message->step = attempt->step;
    message->memory_planned_bytes = attempt->memory_planned;
    message->memory_peak_bytes = attempt->memory_peak;
    char *quoted = log_quote(message->message);
    log_event(status == NULL ? LOG_INFO : LOG_WARNING, "attempt_ended",
              "code=%s message=%s step=%llu memory_peak=%llu memory_planned=%llu", message->reason,
              quoted, (unsigned long long)message->step,
              (unsigned long long)message->memory_peak_bytes,
              (unsigned long long)message->memory_planned_bytes);
    free(quoted);
    status_free(status);
    post_event(attempt, event);
}

/* Orders. */

static uint64_t latest_order(void *user)
{
    struct attempt *attempt = user;
    pthread_mutex_lock(&attempt->lock);
    uint64_t latest = (uint64_t)attempt->order_count;
    pthread_mutex_unlock(&attempt->lock);
    return latest;
}

/* Waits until order `sequence` is here; a copy of its plain fields, and its message, owned. */
static status_t take_order(struct attempt *attempt, uint64_t sequence, struct queued_order *order)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += attempt->assignment->timeout_ms / 1000 + 1;
    status_t status = NULL;
    pthread_mutex_lock(&attempt->lock);
    while ((uint64_t)attempt->order_count < sequence && attempt->aborted == NULL && status == NULL)
        if (pthread_cond_timedwait(&attempt->changed, &attempt->lock, &until) != 0)
            status =
                status_new(STATUS_DEADLINE_EXCEEDED, "order %llu, which rank 0 has, did not arrive",
                           (unsigned long long)sequence);
    if (status == NULL && attempt->aborted != NULL)
        status = status_new(STATUS_ABORTED, "%s", attempt->aborted);
    if (status == NULL) {
        *order = attempt->orders[sequence - 1];
        if (order->cancel_message != NULL)
            order->cancel_message = mem_strdup(order->cancel_message);
    }
    pthread_mutex_unlock(&attempt->lock);
    return status;
}

/* Rank 0 tells how it went. */
static void tell_wrap(struct attempt *attempt, uint64_t number, uint64_t step,
                      const struct train_wrap_change *change)
{
    Fsdpd__V1__AttemptEvent *event = attempt_event_new();
    event->event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_WRAP;
    Fsdpd__V1__WrapReport *report = event->wrap = mem_alloc(sizeof *report);
    fsdpd__v1__wrap_report__init(report);
    report->change = number;
    report->step = step;
    if (change->refused != NULL) {
        report->code = (uint32_t)status_code(change->refused);
        report->message = mem_strdup(status_message(change->refused));
    } else {
        report->peak_bytes = change->peak_bytes;
        report->seconds = change->seconds;
        report->plan_hash = train_session_plan(attempt->session)->hash;
    }
    post_event(attempt, event);
}

static void note_wrap(struct attempt *attempt, uint64_t step,
                      const struct train_wrap_change *change)
{
    if (change->refused != NULL) {
        log_status(LOG_WARNING, "wrap_refused", status_copy(change->refused));
        return;
    }
    const struct plan *plan = train_session_plan(attempt->session);
    if (plan->peak_bytes > attempt->memory_planned) attempt->memory_planned = plan->peak_bytes;
    if (change->peak_bytes > attempt->memory_planned) attempt->memory_planned = change->peak_bytes;
    char peak[32];
    log_event(LOG_INFO, "wrap_changed", "step=%llu units=%d seconds=%.3f peak=\"%s\"",
              (unsigned long long)step, plan->units->unit_count, change->seconds,
              text_format_bytes(change->peak_bytes, peak));
}

static status_t set_wrap(struct attempt *attempt, const Fsdpd__V1__SetWrapOrder *order,
                         uint64_t step)
{
    struct wrap_policy policy;
    struct wrap_unit_spec *units;
    job_wrap_policy_init(&policy, &units, order->wrap, (int)attempt->assignment->world);
    struct train_wrap_change change;
    status_t status = train_session_set_wrap(attempt->session, &policy, &change);
    free(units);
    if (status != NULL) return status;
    if (change.refused == NULL) tracer_end(&attempt->tracer); /* its executor is gone */
    note_wrap(attempt, step, &change);
    if (attempt->assignment->rank == 0) tell_wrap(attempt, order->change, step, &change);
    status_free(change.refused);
    return NULL;
}

static struct capture *capture(void *user)
{
    struct attempt *attempt = user;
    return train_session_capture(attempt->session);
}

static status_t take_checkpoint(void *user)
{
    struct attempt *attempt = user;
    return checkpointer_add(attempt->checkpointer, 0, capture, attempt);
}

/* With `pause` all ranks wait until they know whether it is on the disk, and leave only if it is.
 */
static status_t order_checkpoint(struct attempt *attempt, const struct queued_order *order,
                                 uint64_t step)
{
    if (attempt->checkpointer == NULL) {
        status_t nowhere = status_new(STATUS_FAILED_PRECONDITION,
                                      "checkpoint.directory: is missing; the job's workers are not "
                                      "all on the coordinator's host, and it names no directory "
                                      "that they share");
        if (attempt->assignment->rank == 0)
            checkpointer_refuse(&attempt->pull_context, order->checkpoint, step, nowhere);
        status_free(nowhere);
        return NULL;
    }
    TRY(checkpointer_add(attempt->checkpointer, order->checkpoint, capture, attempt));
    if (!order->pause) return NULL;
    status_t outcome = NULL;
    TRY(checkpointer_wait(attempt->checkpointer, &outcome));
    attempt->paused = outcome == NULL;
    if (outcome == NULL)
        return status_new(STATUS_CANCELLED, "paused at step %llu", (unsigned long long)step);
    status_free(outcome); /* was told; training goes on */
    return NULL;
}

static status_t run_orders(void *user, uint64_t sequence, struct executor *executor, uint64_t step)
{
    struct attempt *attempt = user;
    (void)executor; /* an order may replace it */
    while (attempt->orders_done < sequence) {
        struct queued_order order;
        TRY(take_order(attempt, attempt->orders_done + 1, &order));
        attempt->orders_done++;
        if (order.wrap != NULL) {
            TRY(set_wrap(attempt, order.wrap, step));
            continue;
        }
        if (order.checkpoint != 0) {
            TRY(order_checkpoint(attempt, &order, step));
            continue;
        }
        if (order.trace != 0) {
            tracer_begin(&attempt->tracer, train_session_executor(attempt->session), order.trace,
                         order.steps, step);
            continue;
        }
        if (order.pull == 0) {
            status_t status = status_new(STATUS_CANCELLED, "%s", order.cancel_message);
            free(order.cancel_message);
            return status;
        }
        puller_add(attempt->puller, order.pull,
                   snapshot_take(train_session_executor(attempt->session), step));
    }
    return NULL;
}

static Fsdpd__V1__SetWrapOrder *wrap_order_copy(const Fsdpd__V1__SetWrapOrder *order)
{
    size_t size = fsdpd__v1__set_wrap_order__get_packed_size(order);
    uint8_t *bytes = mem_alloc(size + 1);
    fsdpd__v1__set_wrap_order__pack(order, bytes);
    Fsdpd__V1__SetWrapOrder *copy = fsdpd__v1__set_wrap_order__unpack(NULL, size, bytes);
    free(bytes);
    return copy;
}

static Fsdpd__V1__Order *order_copy(const Fsdpd__V1__Order *order)
{
    size_t size = fsdpd__v1__order__get_packed_size(order);
    uint8_t *bytes = mem_alloc(size + 1);
    fsdpd__v1__order__pack(order, bytes);
    Fsdpd__V1__Order *copy = fsdpd__v1__order__unpack(NULL, size, bytes);
    free(bytes);
    return copy;
}

static void keep_in_tail(struct attempt *attempt, const Fsdpd__V1__Order *order)
{
    Fsdpd__V1__Order **slot = &attempt->tail[order->sequence % TAIL_ORDERS];
    if (*slot != NULL) fsdpd__v1__order__free_unpacked(*slot, NULL);
    *slot = order_copy(order);
}

void attempt_order(struct attempt *attempt, const Fsdpd__V1__Order *order)
{
    const Fsdpd__V1__Assignment *assignment = attempt->assignment;
    if (strcmp(order->job, assignment->job) != 0 || order->attempt != assignment->attempt) return;
    struct queued_order queued = {.sequence = order->sequence};
    if (order->order_case == FSDPD__V1__ORDER__ORDER_CANCEL) {
        const char *why = order->cancel->message[0] ? order->cancel->message : "cancelled";
        if (order->cancel->at_once) {
            attempt_abort(attempt, why);
            return;
        }
        queued.cancel_message = mem_strdup(why);
    } else if (order->order_case == FSDPD__V1__ORDER__ORDER_PULL && order->pull->pull != 0) {
        queued.pull = order->pull->pull;
    } else if (order->order_case == FSDPD__V1__ORDER__ORDER_TRACE && order->trace->trace != 0) {
        queued.trace = order->trace->trace;
        queued.steps = order->trace->steps;
    } else if (order->order_case == FSDPD__V1__ORDER__ORDER_WRAP && order->wrap->wrap != NULL) {
        queued.wrap = wrap_order_copy(order->wrap);
    } else if (order->order_case == FSDPD__V1__ORDER__ORDER_CHECKPOINT &&
               order->checkpoint->number != 0) {
        queued.checkpoint = order->checkpoint->number;
        queued.pause = order->checkpoint->pause;
    } else {
        attempt_abort(attempt, "the coordinator sent an order that this worker does not know");
        return;
    }
    pthread_mutex_lock(&attempt->lock);
    if (order->sequence == (uint64_t)attempt->order_count + 1) {
        MEM_GROW(attempt->orders, attempt->order_count, attempt->order_capacity);
        attempt->orders[attempt->order_count++] = queued;
        keep_in_tail(attempt, order);
        queued.cancel_message = NULL;
        queued.wrap = NULL;
    }
    pthread_cond_broadcast(&attempt->changed);
    pthread_mutex_unlock(&attempt->lock);
    free(queued.cancel_message); /* a repetition */
    if (queued.wrap != NULL) fsdpd__v1__set_wrap_order__free_unpacked(queued.wrap, NULL);
}

void attempt_abort(struct attempt *attempt, const char *why)
{
    pthread_mutex_lock(&attempt->lock);
    if (attempt->aborted == NULL) attempt->aborted = mem_strdup(why);
    if (attempt->session != NULL) train_session_abort(attempt->session, why);
    if (attempt->comm != NULL) comm_abort(attempt->comm, why);
    if (attempt->puller != NULL) puller_abort(attempt->puller, why);
    if (attempt->checkpointer != NULL) checkpointer_abort(attempt->checkpointer, why);
    pthread_cond_broadcast(&attempt->changed);
    pthread_mutex_unlock(&attempt->lock);
    link_close_gate(attempt->link, &attempt->gate, why);
}

uint64_t attempt_step(const struct attempt *attempt)
{
    struct attempt *mutable = (struct attempt *)attempt; /* only for its lock */
    pthread_mutex_lock(&mutable->lock);
    uint64_t step = attempt->session != NULL ? train_session_step(attempt->session) : 0;
    pthread_mutex_unlock(&mutable->lock);
    return step;
}

bool attempt_is(const struct attempt *attempt, const char *job, uint32_t number)
{
    return attempt->assignment->attempt == number && strcmp(attempt->assignment->job, job) == 0;
}

void attempt_describe(struct attempt *attempt, Fsdpd__V1__HeldAttempt *held)
{
    held->job = mem_strdup(attempt->assignment->job);
    held->attempt = attempt->assignment->attempt;
    held->rank = attempt->assignment->rank;
    held->world = attempt->assignment->world;
    held->running = true;
    held->step = attempt_step(attempt);
    pthread_mutex_lock(&attempt->lock);
    held->plan_hash = attempt->plan_hash;
    held->steps = attempt->steps;
    held->orders = (uint64_t)attempt->order_count;
    held->tail = mem_alloc_array(TAIL_ORDERS, sizeof *held->tail);
    uint64_t first = held->orders > TAIL_ORDERS ? held->orders - TAIL_ORDERS + 1 : 1;
    for (uint64_t n = first; n <= held->orders; n++)
        held->tail[held->n_tail++] = order_copy(attempt->tail[n % TAIL_ORDERS]);
    pthread_mutex_unlock(&attempt->lock);
}

/* The rendezvous that communicators see: the attempt's store at the coordinator. */

static status_t rendezvous_set(void *user, const char *key, const void *value, size_t size)
{
    struct attempt *attempt = user;
    return link_store_set(attempt->link, &attempt->gate, attempt->assignment->store, key, value,
                          size);
}

static status_t rendezvous_get(void *user, const char *key, int64_t timeout_ms, void **value,
                               size_t *size)
{
    struct attempt *attempt = user;
    return link_store_get(attempt->link, &attempt->gate, attempt->assignment->store, key,
                          timeout_ms, value, size);
}

/* The training thread. */

/* Publishes what an abort must reach; the error if the abort came first. */
static status_t publish(struct attempt *attempt, struct train_session *session, struct comm *comm,
                        struct puller *puller, struct checkpointer *checkpointer)
{
    pthread_mutex_lock(&attempt->lock);
    attempt->session = session;
    attempt->comm = comm;
    attempt->puller = puller;
    attempt->checkpointer = checkpointer;
    status_t status = NULL;
    if (attempt->aborted != NULL) status = status_new(STATUS_ABORTED, "%s", attempt->aborted);
    pthread_mutex_unlock(&attempt->lock);
    return status;
}

static void on_progress(void *user, uint64_t step)
{
    (void)step;
    struct attempt *attempt = user;
    tracer_step(&attempt->tracer, train_session_executor(attempt->session));
}

static status_t keep_state_dict(void *user, struct executor *executor, uint64_t step)
{
    struct attempt *attempt = user;
    if (attempt->assignment->spec->save_model)
        puller_add(attempt->puller, 0, snapshot_take(executor, step));
    return NULL;
}

static status_t new_checkpointer(struct attempt *attempt, const struct job_settings *settings,
                                 struct checkpointer **checkpointer)
{
    const Fsdpd__V1__CheckpointSpec *spec = attempt->assignment->spec->checkpoint;
    const struct checkpoint_settings *own = &settings->job.checkpoints;
    if (own->folder == NULL) return NULL;
    return checkpointer_new(&attempt->pull_context, own->root, own->folder,
                            spec != NULL ? spec->keep : JOB_CHECKPOINTS_KEPT, checkpointer);
}

static status_t join_and_train(struct attempt *attempt, struct device *device,
                               struct train_session *session, const struct job_settings *settings)
{
    const Fsdpd__V1__Assignment *assignment = attempt->assignment;
    const struct plan *plan = train_session_plan(session);
    const int world = (int)assignment->world;
    attempt->memory_planned = plan->peak_bytes;
    log_event(LOG_INFO, "planned", "units=%d peak_bytes=%llu hash=%016llx", plan->units->unit_count,
              (unsigned long long)plan->peak_bytes, (unsigned long long)plan->hash);
    struct comm *comm = NULL;
    if (world > 1)
        TRY(backend_join(device, (int)assignment->rank, world, assignment->address, "train",
                         &attempt->rendezvous, assignment->timeout_ms, assignment->staged, &comm));
    if (world > 1)
        log_event(LOG_INFO, "group_joined", "world=%d through_host_memory=%d", world,
                  assignment->staged);
    struct puller *puller = NULL;
    status_t status = puller_new(&attempt->pull_context, &puller);
    struct checkpointer *checkpointer = NULL;
    if (status == NULL) status = new_checkpointer(attempt, settings, &checkpointer);
    if (status == NULL) status = publish(attempt, session, comm, puller, checkpointer);
    const struct train_hooks hooks = {
        .started = tell_started,
        .metrics = tell_metrics,
        .epoch = tell_epoch,
        .validation = tell_validation,
        .progress = on_progress,
        .latest_order = latest_order,
        .run_orders = run_orders,
        .user = attempt,
        .checkpoint = checkpointer != NULL ? take_checkpoint : NULL,
        .resumed = note_resumed,
        .noted = log_note,
        .reports = note_reports,
    };
    if (status == NULL)
        status = train_session_run(session, comm, assignment->timeout_ms, &hooks, keep_state_dict);
    attempt->memory_peak = train_session_memory_peak(session);
    tracer_end(&attempt->tracer);
    /* Somebody else's pull does not outlive a run that failed; it would wait for ranks that are
     * gone. */
    if (status != NULL && puller != NULL) puller_abort(puller, status_message(status));
    if (status != NULL && checkpointer != NULL)
        checkpointer_abort(checkpointer, status_message(status));
    checkpointer_finish(checkpointer);
    status_t pulled = puller_finish(puller);
    status_t published = publish(attempt, session, NULL, NULL, NULL);
    puller_free(puller); /* not before: an abort may have been reaching into it */
    checkpointer_free(checkpointer);
    comm_free(comm);
    return status_first(status, status_first(pulled, published));
}

static status_t check_assignment(const Fsdpd__V1__Assignment *assignment)
{
    if (assignment->rank < assignment->world && assignment->spec != NULL &&
        assignment->spec->workers == assignment->world)
        return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "the assignment makes no sense: rank %u of %u, for a job of %u workers",
                      assignment->rank, assignment->world,
                      assignment->spec ? assignment->spec->workers : 0);
}

static status_t set_up_and_train(struct attempt *attempt)
{
    const Fsdpd__V1__Assignment *assignment = attempt->assignment;
    TRY(check_assignment(assignment));
    struct job_settings settings;
    TRY(job_settings_init(&settings, assignment->spec, assignment->job, attempt->options));
    job_settings_set_attempt(&settings, assignment);
    struct device *device = NULL;
    struct train_session *session = NULL;
    status_t status = device_open(attempt->options->device, attempt->options->threads, &device);
    if (status == NULL) {
        attempt->peak_flops = peak_flops(attempt, device);
        device_share_memory(device, (int)assignment->sharers);
    }
    if (status == NULL)
        status = train_session_new(&settings.job, device, (int)assignment->rank, false, &session);
    for (int i = 0; status == NULL && device_note(device, i) != NULL; i++)
        log_event(LOG_INFO, "device_note", "device=%s note=\"%s\"", device_name(device),
                  device_note(device, i));
    if (status == NULL) status = publish(attempt, session, NULL, NULL, NULL);
    if (status == NULL) status = join_and_train(attempt, device, session, &settings);
    if (session != NULL) attempt->step = train_session_step(session);
    status_free(publish(attempt, NULL, NULL, NULL, NULL));
    train_session_free(session);
    device_close(device);
    job_settings_deinit(&settings);
    return status;
}

static void *attempt_thread(void *argument)
{
    struct attempt *attempt = argument;
    /* Told last, and through the same mailbox: who hears of it may assign another at once. */
    tell_finished(attempt, set_up_and_train(attempt));
    mailbox_post(attempt->mailbox, attempt->ended, attempt->user);
    return NULL;
}

static Fsdpd__V1__Assignment *assignment_copy(const Fsdpd__V1__Assignment *assignment)
{
    size_t size = fsdpd__v1__assignment__get_packed_size(assignment);
    uint8_t *bytes = mem_alloc(size);
    fsdpd__v1__assignment__pack(assignment, bytes);
    Fsdpd__V1__Assignment *copy = fsdpd__v1__assignment__unpack(NULL, size, bytes);
    free(bytes);
    return copy;
}

struct attempt *attempt_start(struct link *link, struct mailbox *mailbox,
                              const struct worker_options *options,
                              const Fsdpd__V1__Assignment *assignment, void (*ended)(void *user),
                              void *user)
{
    struct attempt *attempt = mem_alloc(sizeof *attempt);
    attempt->link = link;
    attempt->mailbox = mailbox;
    attempt->options = options;
    attempt->assignment = assignment_copy(assignment);
    attempt->ended = ended;
    attempt->user = user;
    attempt->rendezvous = (struct rendezvous){rendezvous_set, rendezvous_get, attempt};
    attempt->tracer = (struct tracer){.link = link,
                                      .job = attempt->assignment->job,
                                      .attempt = assignment->attempt,
                                      .rank = (int)assignment->rank};
    attempt->pull_context = (struct pull_context){
        .link = link,
        .job = attempt->assignment->job,
        .attempt = assignment->attempt,
        .rank = (int)assignment->rank,
        .world = (int)assignment->world,
        .store = attempt->assignment->store,
        .address = attempt->assignment->address,
        .timeout_ms = assignment->timeout_ms,
    };
    pthread_mutex_init(&attempt->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&attempt->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    if (pthread_create(&attempt->thread, NULL, attempt_thread, attempt) != 0)
        abort(); /* no thread at all: nothing that this process could still do */
    return attempt;
}

void attempt_free(struct attempt *attempt)
{
    if (attempt == NULL) return;
    pthread_join(attempt->thread, NULL);
    for (int i = 0; i < attempt->order_count; i++) {
        free(attempt->orders[i].cancel_message);
        if (attempt->orders[i].wrap != NULL)
            fsdpd__v1__set_wrap_order__free_unpacked(attempt->orders[i].wrap, NULL);
    }
    free(attempt->orders);
    free(attempt->resumed_name);
    free(attempt->resumed_note);
    if (attempt->unrecorded != NULL)
        fsdpd__v1__unrecorded_reports__free_unpacked(attempt->unrecorded, NULL);
    for (int i = 0; i < TAIL_ORDERS; i++)
        if (attempt->tail[i] != NULL) fsdpd__v1__order__free_unpacked(attempt->tail[i], NULL);
    free(attempt->aborted);
    gate_deinit(&attempt->gate);
    pthread_cond_destroy(&attempt->changed);
    pthread_mutex_destroy(&attempt->lock);
    fsdpd__v1__assignment__free_unpacked(attempt->assignment, NULL);
    free(attempt);
}
