/*
 * Orders to an attempt: taken from the coordinator by the loop's thread, numbered from 1, and
 * carried out by the training thread, at the step boundary that all ranks agree on.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "proto/message.h"
#include "worker/attempt_internal.h"
#include "worker/job_message.h"

/* For an answer of a coordinator that is there. */
enum { CONFIRM_MS = 1 };

uint64_t attempt_latest_order(void *user)
{
    struct worker_attempt *attempt = user;
    pthread_mutex_lock(&attempt->lock);
    uint64_t latest = (uint64_t)attempt->order_count;
    pthread_mutex_unlock(&attempt->lock);
    return latest;
}

/* Waits until order `sequence` is here; a copy of its plain fields, and its message, owned. */
static status_t take_order(struct worker_attempt *attempt, uint64_t sequence,
                           struct queued_order *order)
{
    int64_t until = clock_monotonic_ns() + attempt->assignment->timeout_ms * INT64_C(1000000);
    status_t status = NULL;
    pthread_mutex_lock(&attempt->lock);
    while ((uint64_t)attempt->order_count < sequence && attempt->aborted == NULL && status == NULL)
        if (!condition_wait(&attempt->changed, &attempt->lock, until))
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

void attempt_note_wrap(void *user, uint64_t step, const struct train_wrap_change *change)
{
    struct worker_attempt *attempt = user;
    if (change->refused != NULL) {
        log_status(LOG_WARNING, "wrap_refused", status_copy(change->refused));
        return;
    }
    tracer_end(&attempt->tracer); /* their executor has been freed */
    op_times_end(&attempt->op_times);
    const struct plan *plan = train_session_plan(attempt->session);
    if (plan->peak_bytes > attempt->memory_planned) attempt->memory_planned = plan->peak_bytes;
    if (change->planned_bytes > attempt->memory_planned)
        attempt->memory_planned = change->planned_bytes;
    char peak[32];
    log_event(LOG_INFO, "wrap_changed", "step=%llu units=%d seconds=%.3f peak=\"%s\"",
              (unsigned long long)step, plan->units->unit_count, change->seconds,
              text_format_bytes(change->peak_bytes, peak));
}

static status_t set_wrap(struct worker_attempt *attempt, const Fsdpd__V1__SetWrapOrder *order,
                         uint64_t step)
{
    struct wrap_policy policy;
    AUTO_FREE struct wrap_unit_spec *units = NULL;
    job_wrap_policy_init(&policy, &units, order->wrap, (int)attempt->assignment->world);
    struct train_wrap_change change = {0};
    if (attempt->streams_final)
        change.refused =
            status_new(STATUS_FAILED_PRECONDITION,
                       "the job has trained its last step: its weights are being kept");
    else TRY(train_session_set_wrap(attempt->session, &policy, &change));
    attempt_note_wrap(attempt, step, &change);
    if (attempt->assignment->rank == 0) attempt_report_wrap(attempt, order->change, step, &change);
    status_free(change.refused);
    return NULL;
}

static status_t evaluate(struct worker_attempt *attempt, const Fsdpd__V1__EvaluateOrder *order)
{
    struct held_out held = {0};
    status_t refused = NULL, found = NULL;
    struct train_validation result;
    uint64_t outer = attempt->evaluating;
    if (order->set != NULL)
        found =
            job_find_held_out(attempt->assignment->spec->data, order->set, attempt->options, &held);
    attempt->evaluating = order->number;
    status_t status = train_session_evaluate(attempt->session, order->set != NULL ? &held : NULL,
                                             found, &result, &refused);
    attempt->evaluating = outer;
    if (status == NULL && attempt->assignment->rank == 0)
        attempt_report_evaluation(attempt, order->number, &result, refused);
    status_free(refused);
    free((char *)held.path);
    free((char *)held.root);
    return status;
}

/* The order's prompts; both arrays are the caller's. */
static struct decoder_prompt *prompts_of(const Fsdpd__V1__Sample *message, int32_t **tokens)
{
    size_t total = 0, at = 0;
    for (size_t i = 0; i < message->n_prompts; i++) total += message->prompts[i]->n_tokens;
    struct decoder_prompt *prompts = mem_alloc_array(message->n_prompts + 1, sizeof *prompts);
    *tokens = mem_alloc_array(total + 1, sizeof **tokens);
    for (size_t i = 0; i < message->n_prompts; i++) {
        const Fsdpd__V1__Tokens *prompt = message->prompts[i];
        prompts[i] = (struct decoder_prompt){*tokens + at, (int64_t)prompt->n_tokens};
        for (size_t k = 0; k < prompt->n_tokens; k++)
            (*tokens)[at++] = prompt->tokens[k] <= INT32_MAX ? (int32_t)prompt->tokens[k] : -1;
    }
    return prompts;
}

/* Whether one of the orders that wait ends the attempt, or the order that runs. While fsdpd is away
 * its client is, too. */
static bool sample_stopped(void *user)
{
    struct worker_attempt *attempt = user;
    bool stopped = !link_is_attached(attempt->link);
    pthread_mutex_lock(&attempt->lock);
    for (int i = (int)attempt->orders_done; i < attempt->order_count; i++) {
        const struct queued_order *order = &attempt->orders[i];
        const Fsdpd__V1__EvaluateOrder *evaluate = order->evaluate;
        stopped = stopped || order->cancel_message != NULL ||
                  (evaluate != NULL && evaluate->stop && evaluate->number == attempt->evaluating);
    }
    pthread_mutex_unlock(&attempt->lock);
    return stopped;
}

static status_t sample(struct worker_attempt *attempt, const Fsdpd__V1__EvaluateOrder *order)
{
    uint64_t outer = attempt->evaluating;
    const Fsdpd__V1__Sample *message = order->sample;
    AUTO_FREE int32_t *tokens = NULL;
    AUTO_FREE int32_t *stops = mem_alloc_array(message->n_stop + 1, sizeof *stops);
    AUTO_FREE struct decoder_prompt *prompts = prompts_of(message, &tokens);
    for (size_t i = 0; i < message->n_stop; i++) stops[i] = (int32_t)message->stop[i];
    const struct train_sample wanted = {
        .prompts = prompts,
        .count = (int)message->n_prompts,
        .max_tokens = message->max_tokens,
        .stops = stops,
        .stop_count = (int)message->n_stop,
        .draw = {.temperature = message->temperature,
                 .top_k = message->top_k,
                 .top_p = message->_top_p_case != 0 ? message->top_p : 1,
                 .min_p = message->min_p,
                 .repetition_penalty =
                     message->_repetition_penalty_case != 0 ? message->repetition_penalty : 1,
                 .seed = message->seed},
        .waited_seconds = order->waited_seconds,
        .stopped = sample_stopped,
        .drawn = order->stream ? attempt_report_drawn : NULL,
        .user = attempt,
        .scored = message->_logprobs_case != 0,
        .alternatives = message->logprobs <= INT32_MAX ? (int)message->logprobs : INT32_MAX,
        .score_prompts = message->score_prompts,
    };
    status_t refused = NULL;
    struct train_sampled sampled;
    attempt->evaluating = order->number;
    status_t status = train_session_sample(attempt->session, &wanted, &sampled, &refused);
    attempt->evaluating = outer;
    if (status == NULL && attempt->assignment->rank == 0)
        attempt_report_sample(attempt, order->number, &sampled, &wanted, refused);
    status_free(refused);
    train_sampled_deinit(&sampled);
    return status;
}

static struct capture *capture(void *user)
{
    struct worker_attempt *attempt = user;
    return train_session_capture(attempt->session);
}

status_t attempt_take_checkpoint(void *user)
{
    struct worker_attempt *attempt = user;
    return checkpointer_add(attempt->checkpointer, 0, capture, attempt);
}

status_t attempt_save_last(void *user, int round, bool taken, status_t *outcome)
{
    struct worker_attempt *attempt = user;
    if (round > 0 && !link_pause(attempt->link, &attempt->gate, round - 1))
        return status_new(STATUS_ABORTED, "%s", attempt->gate.closed);
    if (round > 0 || !taken) TRY(checkpointer_add_last(attempt->checkpointer, capture, attempt));
    return checkpointer_wait(attempt->checkpointer, outcome);
}

status_t attempt_take_last(void *user, struct executor *executor, uint64_t step, int round,
                           status_t *outcome)
{
    struct worker_attempt *attempt = user;
    if (*outcome != NULL) {
        log_status(LOG_WARNING, "weights_not_copied", status_copy(*outcome));
        if (attempt->side.rank == 0) puller_report(&attempt->side, 0, *outcome);
        status_free(*outcome);
        *outcome = NULL;
    }
    if (round > 0 && !link_pause(attempt->link, &attempt->gate, round - 1))
        return status_new(STATUS_ABORTED, "%s", attempt->gate.closed);
    /* Of an earlier round, in which another rank failed: an order may have replaced the executor.
     */
    snapshot_free(attempt->final);
    attempt->final = snapshot_borrow(executor, step);
    status_t failed = snapshot_failure(attempt->final);
    if (!status_lacks(failed)) { /* another failure is that of the upload */
        status_free(failed);
        return NULL;
    }
    snapshot_free(attempt->final);
    attempt->final = NULL;
    *outcome = failed;
    return NULL;
}

/* Rank 0 asks the coordinator whether the next attempt will follow at once. */
struct confirmation {
    struct worker_attempt *attempt;
    const char *key;
};

static status_t confirm(void *user)
{
    const struct confirmation *own = user;
    const struct rendezvous *store = &own->attempt->rendezvous;
    void *value = NULL;
    size_t size = 0;
    if (!link_is_attached(own->attempt->link))
        return status_new(STATUS_UNAVAILABLE, "fsdpd is away");
    status_t status = store->get(store->user, own->key, CONFIRM_MS, &value, &size);
    bool allowed = status == NULL && size == 1 && *(char *)value == '1';
    free(value);
    if (status_code(status) == STATUS_ABORTED || allowed) return status;
    const char *why = status == NULL                            ? "fsdpd is shutting down"
                      : status_code(status) == STATUS_NOT_FOUND ? "fsdpd was restarted"
                                                                : "fsdpd is away";
    status_free(status);
    return status_new(STATUS_UNAVAILABLE, "%s", why);
}

/* *refused: why the state has to be on the disk; NULL: it is in memory. */
static status_t hand_over(struct worker_attempt *attempt, const Fsdpd__V1__CheckpointOrder *order,
                          status_t *refused)
{
    const uint32_t world = attempt->assignment->world;
    AUTO_FREE bool *leaves = mem_alloc_array(world, sizeof *leaves);
    for (size_t i = 0; i < order->n_leaving; i++)
        if (order->leaving[i] < world) leaves[order->leaving[i]] = true;
    struct confirmation confirmation = {attempt, order->memory};
    return train_session_hand_over(attempt->session, leaves, confirm, &confirmation, refused);
}

/* Ends the attempt, if its state can be in memory; *why is the reason if not. An earlier checkpoint
 * that is being written is complete first. */
static status_t leave_in_memory(struct worker_attempt *attempt, const struct queued_order *order,
                                uint64_t step, status_t *why)
{
    status_t outcome = NULL;
    if (attempt->checkpointer != NULL) TRY(checkpointer_wait(attempt->checkpointer, &outcome));
    status_free(outcome);
    TRY(hand_over(attempt, order->memory, why));
    if (*why != NULL) {
        log_status(LOG_INFO, "not_in_memory", status_copy(*why));
        return NULL;
    }
    attempt->paused = true;
    return status_new(STATUS_CANCELLED, "continues from step %llu in memory",
                      (unsigned long long)step);
}

/* With `pause` all ranks wait until they know whether it is on the disk, and leave only if it is.
 */
static status_t order_checkpoint(struct worker_attempt *attempt, const struct queued_order *order,
                                 uint64_t step)
{
    if (attempt->checkpointer == NULL) {
        status_t nowhere = status_new(STATUS_FAILED_PRECONDITION,
                                      "checkpoint.directory: is missing; the job's workers are not "
                                      "all on the coordinator's host, and it names no directory "
                                      "that they share");
        if (attempt->assignment->rank == 0)
            checkpointer_refuse(&attempt->side, order->checkpoint, step, nowhere);
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
    status_free(outcome); /* already reported; training continues */
    return NULL;
}

/* In memory if the order allows that and it is possible, otherwise on the disk. */
static status_t leave_state(struct worker_attempt *attempt, const struct queued_order *order,
                            uint64_t step)
{
    status_t why = NULL;
    if (order->memory != NULL) TRY(leave_in_memory(attempt, order, step, &why));
    status_t status = order_checkpoint(attempt, order, step);
    if (why != NULL && attempt->paused) {
        status_free(status);
        status = status_new(STATUS_CANCELLED, "continues from step %llu with a checkpoint (%s)",
                            (unsigned long long)step, status_message(why));
    }
    status_free(why);
    return status;
}

status_t attempt_run_orders(void *user, uint64_t sequence, struct executor *executor, uint64_t step)
{
    struct worker_attempt *attempt = user;
    (void)executor; /* an order may replace it */
    while (attempt->orders_done < sequence) {
        struct queued_order order;
        TRY(take_order(attempt, attempt->orders_done + 1, &order));
        attempt->orders_done++;
        if (order.wrap != NULL) {
            TRY(set_wrap(attempt, order.wrap, step));
            continue;
        }
        if (order.evaluate != NULL && order.evaluate->stop) {
            if (attempt->evaluating == order.evaluate->number)
                train_session_stop_evaluation(attempt->session);
            continue;
        }
        if (order.evaluate != NULL) {
            TRY(order.evaluate->sample != NULL ? sample(attempt, order.evaluate)
                                               : evaluate(attempt, order.evaluate));
            continue;
        }
        if (order.checkpoint != 0) {
            TRY(leave_state(attempt, &order, step));
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
        struct executor *now = train_session_executor(attempt->session);
        puller_add(attempt->puller, order.pull,
                   order.average ? snapshot_take_average(now, step) : snapshot_take(now, step));
    }
    return NULL;
}

static void keep_in_tail(struct worker_attempt *attempt, const Fsdpd__V1__Order *order)
{
    Fsdpd__V1__Order **slot = &attempt->tail[order->sequence % TAIL_ORDERS];
    if (*slot != NULL) fsdpd__v1__order__free_unpacked(*slot, NULL);
    *slot = message_copy(order);
}

static void free_messages(struct queued_order *order)
{
    if (order->wrap != NULL) fsdpd__v1__set_wrap_order__free_unpacked(order->wrap, NULL);
    if (order->evaluate != NULL) fsdpd__v1__evaluate_order__free_unpacked(order->evaluate, NULL);
    if (order->memory != NULL) fsdpd__v1__checkpoint_order__free_unpacked(order->memory, NULL);
}

void attempt_order(struct worker_attempt *attempt, const Fsdpd__V1__Order *order)
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
        queued.average = order->pull->average;
    } else if (order->order_case == FSDPD__V1__ORDER__ORDER_TRACE && order->trace->trace != 0) {
        queued.trace = order->trace->trace;
        queued.steps = order->trace->steps;
    } else if (order->order_case == FSDPD__V1__ORDER__ORDER_EVALUATE &&
               order->evaluate->number != 0) {
        queued.evaluate = message_copy(order->evaluate);
    } else if (order->order_case == FSDPD__V1__ORDER__ORDER_WRAP && order->wrap->wrap != NULL) {
        queued.wrap = message_copy(order->wrap);
    } else if (order->order_case == FSDPD__V1__ORDER__ORDER_CHECKPOINT &&
               order->checkpoint->number != 0) {
        queued.checkpoint = order->checkpoint->number;
        queued.pause = order->checkpoint->pause;
        if (order->checkpoint->memory[0] != '\0') queued.memory = message_copy(order->checkpoint);
    } else {
        attempt_abort(attempt, "the coordinator sent an order of an unknown kind");
        return;
    }
    pthread_mutex_lock(&attempt->lock);
    if (order->sequence == (uint64_t)attempt->order_count + 1) {
        MEM_GROW(attempt->orders, attempt->order_count, attempt->order_capacity);
        attempt->orders[attempt->order_count++] = queued;
        keep_in_tail(attempt, order);
        queued.cancel_message = NULL;
        queued.wrap = NULL;
        queued.evaluate = NULL;
        queued.memory = NULL;
    }
    pthread_cond_broadcast(&attempt->changed);
    pthread_mutex_unlock(&attempt->lock);
    free(queued.cancel_message); /* a repetition */
    free_messages(&queued);
}

void attempt_describe_orders(const struct worker_attempt *attempt, Fsdpd__V1__HeldAttempt *held)
{
    held->orders = (uint64_t)attempt->order_count;
    held->tail = mem_alloc_array(TAIL_ORDERS, sizeof *held->tail);
    uint64_t first = held->orders > TAIL_ORDERS ? held->orders - TAIL_ORDERS + 1 : 1;
    for (uint64_t n = first; n <= held->orders; n++)
        held->tail[held->n_tail++] = message_copy(attempt->tail[n % TAIL_ORDERS]);
}

void attempt_free_orders(struct worker_attempt *attempt)
{
    for (int i = 0; i < attempt->order_count; i++) {
        free(attempt->orders[i].cancel_message);
        free_messages(&attempt->orders[i]);
    }
    free(attempt->orders);
    for (int i = 0; i < TAIL_ORDERS; i++)
        if (attempt->tail[i] != NULL) fsdpd__v1__order__free_unpacked(attempt->tail[i], NULL);
}
