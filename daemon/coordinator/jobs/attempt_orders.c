/* Orders to a running attempt; see attempt.h. orders.c delivers them to all ranks. */
#include <stdlib.h>

#include "base/mem.h"
#include "coordinator/jobs/attempt_run.h"
#include "coordinator/jobs/orders.h"

/* Ends the attempt at a step boundary; the caller has noted who requested it. The store has that
 * before a rank has the order: a coordinator that starts meanwhile must know why ranks end. */
static void order_end(struct job *job, const char *why)
{
    struct attempt *attempt = job->attempt;
    /* Ranks that are SAVING have no more step boundaries. */
    bool at_once = attempt->saving != 0;
    attempt_set_reason(job, "CANCELLING",
                       at_once ? "%s; it ends now, and its weights are lost"
                               : "%s; it ends at its next step boundary",
                       why);
    if (attempt->cancel_ordered || attempt->ending) return;
    attempt->cancel_ordered = true;
    attempt->escalate_at = coordinator_now() + (at_once ? 0 : job->c->options.limits.cancel_ms);
    coordinator_tick_soon(job->c);
    Fsdpd__V1__CancelOrder cancel = FSDPD__V1__CANCEL_ORDER__INIT;
    cancel.message = (char *)why;
    orders_give(job, FSDPD__V1__ORDER__ORDER_CANCEL, &cancel);
}

void attempt_end_by(struct job *job)
{
    struct attempt *attempt = job->attempt;
    if (attempt->escalate_at != 0) return;
    attempt->escalate_at = coordinator_now() + job->c->options.limits.save_ms;
    coordinator_tick_soon(job->c);
}

void attempt_cancel(struct job *job, const char *by)
{
    struct attempt *attempt = job->attempt;
    if (attempt == NULL) return;
    attempt->stop.cancelled = true;
    attempt->stop.pausing = false;
    message_set_text(&attempt->stop.by, by); /* `by` may be the old text */
    free(attempt->stop.message);
    by = attempt->stop.by;
    attempt->stop.message = mem_printf(by[0] != '\0' ? "cancelled by %s" : "cancelled%s", by);
    order_end(job, attempt->stop.message);
}

void job_cancel(struct job *job, const char *by)
{
    int state = (int)job->message->state;
    if (state != JOB_QUEUED && state != JOB_PAUSED) attempt_cancel(job, by);
    else if (job->message->attempt == 0)
        job_set_state(job, JOB_CANCELLED, "CANCELLED", "cancelled by %s before it started", by);
    else
        job_set_state(job, JOB_CANCELLED, "CANCELLED",
                      "cancelled by %s while it was %s, at step %llu", by, job_state_name(state),
                      (unsigned long long)job->message->step);
}

void attempt_shut_down(struct job *job, const char *why)
{
    struct attempt *attempt = job->attempt;
    struct coordinator *c = job->c;
    if (attempt_is_active(job)) handover_withdraw(job);
    if (!attempt_is_active(job) || attempt->stop.pausing || attempt->stop.vacating)
        return; /* it is ending already */
    attempt->stop.shut_down = true;
    message_set_text(&attempt->stop.message, why);
    if (job->message->state != FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING) {
        order_end(job, attempt->stop.message);
        return;
    }
    attempt_end_by(job);
    if (attempt->saving != 0) return; /* the ranks keep trying until then */
    attempt_set_reason(job, "STOPPING",
                       "%s: takes a checkpoint at its next step boundary, then ends", why);
    attempt->checkpoint_order = ++c->last_number;
    attempt_order_checkpoint(job, attempt->checkpoint_order, true);
}

void attempt_not_saved(struct job *job)
{
    struct attempt *attempt = job->attempt;
    if (attempt != NULL && attempt->stop.shut_down && !attempt->ending)
        order_end(job, attempt->stop.message);
}

void attempt_stop(struct job *job, const char *code, bool machine, const char *why)
{
    struct attempt *attempt = job->attempt;
    if (!attempt_is_active(job)) return;
    message_set_text(&attempt->stop.code, code);
    attempt->stop.machine = machine;
    message_set_text(&attempt->stop.message, why);
    order_end(job, attempt->stop.message);
}

void attempt_vacate_at_once(struct job *job)
{
    attempt_stop(job, "WORKER_DRAINED", true, job->attempt->stop.message);
}

void attempt_order_pull(struct job *job, uint64_t pull, bool average)
{
    Fsdpd__V1__PullOrder body = FSDPD__V1__PULL_ORDER__INIT;
    body.pull = pull;
    body.average = average;
    orders_give(job, FSDPD__V1__ORDER__ORDER_PULL, &body);
}

void attempt_order_trace(struct job *job, uint64_t trace, uint32_t steps)
{
    Fsdpd__V1__TraceOrder body = FSDPD__V1__TRACE_ORDER__INIT;
    body.trace = trace;
    body.steps = steps;
    orders_give(job, FSDPD__V1__ORDER__ORDER_TRACE, &body);
}

void attempt_order_evaluation(struct job *job, uint64_t number, Fsdpd__V1__HeldOutSet *set,
                              bool stop)
{
    Fsdpd__V1__EvaluateOrder body = FSDPD__V1__EVALUATE_ORDER__INIT;
    body.number = number;
    body.set = set;
    body.stop = stop;
    orders_give(job, FSDPD__V1__ORDER__ORDER_EVALUATE, &body);
}

void attempt_order_sample(struct job *job, const struct sample_order *order)
{
    Fsdpd__V1__EvaluateOrder body = FSDPD__V1__EVALUATE_ORDER__INIT;
    body.number = order->number;
    body.sample = order->sample;
    body.stream = order->stream;
    body.waited_seconds = order->waited_seconds;
    orders_give(job, FSDPD__V1__ORDER__ORDER_EVALUATE, &body);
}

void attempt_order_checkpoint(struct job *job, uint64_t number, bool pause)
{
    Fsdpd__V1__CheckpointOrder body = FSDPD__V1__CHECKPOINT_ORDER__INIT;
    body.number = number;
    body.pause = pause;
    char *none = body.memory;
    if (pause && job->attempt->stop.vacating && !job->attempt->stop.preempted)
        handover_begin(job, &body);
    orders_give(job, FSDPD__V1__ORDER__ORDER_CHECKPOINT, &body);
    if (body.memory != none) free(body.memory);
    free(body.leaving);
}

uint64_t attempt_order_wrap(struct job *job, const Fsdpd__V1__WrapSpec *wrap)
{
    Fsdpd__V1__SetWrapOrder body = FSDPD__V1__SET_WRAP_ORDER__INIT;
    body.change = ++job->c->last_number;
    body.wrap = (Fsdpd__V1__WrapSpec *)wrap;
    orders_give(job, FSDPD__V1__ORDER__ORDER_WRAP, &body);
    return body.change;
}

void attempt_send_order(struct job *job, struct rank *rank, const Fsdpd__V1__Order *kept)
{
    Fsdpd__V1__Order view = *kept, *order = &view;
    order->job = job->message->id;
    order->attempt = job->message->attempt;
    worker_send(rank->worker, FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_ORDER, order);
}
