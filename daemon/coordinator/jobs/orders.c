/* Orders to the ranks of an attempt; see orders.h. */
#include "coordinator/jobs/orders.h"

#include "base/log.h"
#include "base/mem.h"

/* Orders kept for ranks that lack some: ranks differ only by orders in transit. */
enum { ORDERS_KEPT = 64 };

static void send_to(struct job *job, struct rank *rank, const Fsdpd__V1__Order *order)
{
    if (rank->worker == NULL) return;
    rank->orders = order->sequence;
    attempt_send_order(job, rank, order);
}

static void keep(struct job *job, Fsdpd__V1__Order *order)
{
    struct order_log *log = &job->attempt->orders;
    if (log->count == ORDERS_KEPT) {
        message_free(log->kept[0]);
        LIST_REMOVE(log->kept, log->count, 0);
    }
    MEM_GROW(log->kept, log->count, log->capacity);
    log->kept[log->count++] = order;
    log->last = order->sequence;
}

static bool is_complete(const struct job *job)
{
    const struct attempt *attempt = job->attempt;
    for (int r = 0; r < attempt->world; r++)
        if (attempt->ranks[r].state == RANK_AWAY) return false;
    return true;
}

static void give(struct job *job, Fsdpd__V1__Order *order)
{
    struct attempt *attempt = job->attempt;
    order->sequence = attempt->orders.last + 1;
    keep(job, order);
    for (int r = 0; r < attempt->world; r++) send_to(job, &attempt->ranks[r], order);
}

void orders_give(struct job *job, Fsdpd__V1__Order__OrderCase kind, const void *body)
{
    struct order_log *log = &job->attempt->orders;
    Fsdpd__V1__Order order = FSDPD__V1__ORDER__INIT;
    order.order_case = kind;
    order.cancel = (Fsdpd__V1__CancelOrder *)body; /* the place of every kind's body */
    Fsdpd__V1__Order *copy = message_copy(&order);
    if (is_complete(job)) {
        give(job, copy);
        return;
    }
    MEM_GROW(log->held, log->held_count, log->held_capacity);
    log->held[log->held_count++] = copy;
}

void orders_give_held(struct job *job)
{
    struct order_log *log = &job->attempt->orders;
    for (int i = 0; i < log->held_count; i++) give(job, log->held[i]);
    log->held_count = 0;
}

/* Sends the rank the orders that it lacks. */
static void catch_up(struct job *job, struct rank *rank)
{
    struct order_log *log = &job->attempt->orders;
    if (rank->worker == NULL) return;
    for (int i = 0; i < log->count; i++)
        if (log->kept[i]->sequence == rank->orders + 1) send_to(job, rank, log->kept[i]);
    if (rank->orders < log->last)
        log_event(LOG_ERROR, "orders_lost", "job=%s worker=%s has=%llu of=%llu", job->message->id,
                  rank->worker_id, (unsigned long long)rank->orders, (unsigned long long)log->last);
}

void orders_compare(struct job *job, struct rank *rank, const Fsdpd__V1__HeldAttempt *held)
{
    struct attempt *attempt = job->attempt;
    struct order_log *log = &attempt->orders;
    rank->orders = held->orders;
    bool news = false;
    for (size_t i = 0; i < held->n_tail; i++) {
        const Fsdpd__V1__Order *order = held->tail[i];
        bool first = log->last == 0 && log->count == 0;
        if (!first && order->sequence != log->last + 1) continue;
        keep(job, message_copy(order));
        news = true;
    }
    for (int r = 0; r < attempt->world; r++)
        if (news || &attempt->ranks[r] == rank) catch_up(job, &attempt->ranks[r]);
}

const Fsdpd__V1__WrapSpec *orders_find_wrap(const struct job *job, uint64_t change)
{
    const struct attempt *attempt = job->attempt;
    for (int i = 0; i < attempt->orders.count; i++) {
        const Fsdpd__V1__Order *order = attempt->orders.kept[i];
        if (order->order_case == FSDPD__V1__ORDER__ORDER_WRAP && order->wrap->change == change)
            return order->wrap->wrap;
    }
    return NULL;
}

bool orders_have_cancel(const struct job *job)
{
    const struct attempt *attempt = job->attempt;
    for (int i = 0; i < attempt->orders.count; i++)
        if (attempt->orders.kept[i]->order_case == FSDPD__V1__ORDER__ORDER_CANCEL) return true;
    return false;
}

bool orders_have_end(const struct job *job)
{
    const struct attempt *attempt = job->attempt;
    for (int i = 0; i < attempt->orders.count; i++) {
        const Fsdpd__V1__Order *order = attempt->orders.kept[i];
        if (order->order_case == FSDPD__V1__ORDER__ORDER_CHECKPOINT && order->checkpoint->pause)
            return true;
    }
    return orders_have_cancel(job);
}
