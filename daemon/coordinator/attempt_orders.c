/* What is asked of a running attempt; see attempt.h. How orders reach all ranks is in orders.c. */
#include <stdlib.h>

#include "base/mem.h"
#include "coordinator/attempt.h"
#include "coordinator/orders.h"

/* Ends the attempt at a step boundary; whose wish it is, the caller has noted. */
static void order_end(struct job *job, const char *why)
{
    if (job->cancel_ordered) return;
    job->cancel_ordered = true;
    job->escalate_at = coordinator_now() + job->c->options.limits.cancel_ms;
    coordinator_hurry(job->c);
    Fsdpd__V1__CancelOrder cancel = FSDPD__V1__CANCEL_ORDER__INIT;
    cancel.message = (char *)why;
    Fsdpd__V1__Order order = FSDPD__V1__ORDER__INIT;
    order.order_case = FSDPD__V1__ORDER__ORDER_CANCEL;
    order.cancel = &cancel;
    orders_give(job, &order);
    job_set_reason(job, "CANCELLING", "%s; it ends at its next step boundary", why);
}

void attempt_cancel(struct job *job, const char *by)
{
    if (job->ranks == NULL || job->ending) return; /* it has failed already */
    job->stop.cancelled = true;
    job->stop.pausing = false;
    message_set_text(&job->stop.by, by); /* which may be the old one */
    free(job->stop.message);
    by = job->stop.by;
    job->stop.message = mem_printf(by[0] != '\0' ? "cancelled by %s" : "cancelled%s", by);
    order_end(job, job->stop.message);
}

void attempt_shut_down(struct job *job, const char *why)
{
    struct coordinator *c = job->c;
    if (job->ranks == NULL || job->ending || job->cancel_ordered) return; /* it ends anyway */
    if (job->stop.pausing || job->stop.vacating) return;                  /* so, too */
    job->stop.shut_down = true;
    message_set_text(&job->stop.message, why);
    if (job->message->state != FSDPD__V1__JOB_STATE__RUNNING) {
        order_end(job, job->stop.message);
        return;
    }
    job->checkpoint_order = ++c->last_checkpoint;
    job->escalate_at = coordinator_now() + c->options.limits.save_ms;
    coordinator_hurry(c);
    attempt_order_checkpoint(job, job->checkpoint_order, true);
    job_set_reason(job, "STOPPING", "%s: takes a checkpoint at its next step boundary, then ends",
                   why);
}

void attempt_not_saved(struct job *job)
{
    if (job->stop.shut_down && job->ranks != NULL && !job->ending)
        order_end(job, job->stop.message);
}

void attempt_stop(struct job *job, const char *code, bool machine, const char *why)
{
    if (job->ranks == NULL || job->ending || job->cancel_ordered) return;
    message_set_text(&job->stop.code, code);
    job->stop.machine = machine;
    message_set_text(&job->stop.message, why);
    order_end(job, job->stop.message);
}

void attempt_order_pull(struct job *job, uint64_t pull)
{
    Fsdpd__V1__PullOrder body = FSDPD__V1__PULL_ORDER__INIT;
    body.pull = pull;
    Fsdpd__V1__Order order = FSDPD__V1__ORDER__INIT;
    order.order_case = FSDPD__V1__ORDER__ORDER_PULL;
    order.pull = &body;
    orders_give(job, &order);
}

void attempt_order_trace(struct job *job, uint64_t trace, uint32_t steps)
{
    Fsdpd__V1__TraceOrder body = FSDPD__V1__TRACE_ORDER__INIT;
    body.trace = trace;
    body.steps = steps;
    Fsdpd__V1__Order order = FSDPD__V1__ORDER__INIT;
    order.order_case = FSDPD__V1__ORDER__ORDER_TRACE;
    order.trace = &body;
    orders_give(job, &order);
}

void attempt_order_checkpoint(struct job *job, uint64_t number, bool pause)
{
    Fsdpd__V1__CheckpointOrder body = FSDPD__V1__CHECKPOINT_ORDER__INIT;
    body.number = number;
    body.pause = pause;
    Fsdpd__V1__Order order = FSDPD__V1__ORDER__INIT;
    order.order_case = FSDPD__V1__ORDER__ORDER_CHECKPOINT;
    order.checkpoint = &body;
    orders_give(job, &order);
}

uint64_t attempt_order_wrap(struct job *job, const Fsdpd__V1__WrapSpec *wrap)
{
    Fsdpd__V1__SetWrapOrder body = FSDPD__V1__SET_WRAP_ORDER__INIT;
    body.change = ++job->c->last_wrap;
    body.wrap = (Fsdpd__V1__WrapSpec *)wrap;
    Fsdpd__V1__Order order = FSDPD__V1__ORDER__INIT;
    order.order_case = FSDPD__V1__ORDER__ORDER_WRAP;
    order.wrap = &body;
    orders_give(job, &order);
    return body.change;
}

void attempt_send_order(struct job *job, struct rank *rank, const Fsdpd__V1__Order *kept)
{
    Fsdpd__V1__Order view = *kept, *order = &view;
    order->job = job->message->id;
    order->attempt = job->message->attempt;
    Fsdpd__V1__CoordinatorMessage message = FSDPD__V1__COORDINATOR_MESSAGE__INIT;
    message.message_case = FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_ORDER;
    message.order = order;
    worker_send(rank->worker, &message);
}
