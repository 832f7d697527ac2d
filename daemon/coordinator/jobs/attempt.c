/* Attempts; see attempt.h. */
#include "coordinator/jobs/attempt.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/workers/rendezvous.h"

char *attempt_store_name(const job_message *message)
{
    return mem_printf("%s/%u", message->id, message->attempt);
}

bool attempt_rank_has_ended(const struct rank *rank)
{
    return rank->state == RANK_FINISHED || rank->state == RANK_LOST;
}

struct attempt *attempt_new(struct job *job, int world)
{
    struct attempt *attempt = mem_alloc(sizeof *attempt);
    attempt->world = world;
    attempt->ranks = mem_alloc_array((size_t)world, sizeof *attempt->ranks);
    job->c->attempt_count++;
    return job->attempt = attempt;
}

static void order_log_deinit(struct order_log *log)
{
    for (int i = 0; i < log->count; i++) message_free(log->kept[i]);
    for (int i = 0; i < log->held_count; i++) message_free(log->held[i]);
    free(log->kept);
    free(log->held);
}

static void diagnosing_deinit(struct diagnosing *diagnosing, int world)
{
    for (int r = 0; diagnosing->answers != NULL && r < world; r++)
        message_free(diagnosing->answers[r]);
    free(diagnosing->answers);
    message_free(diagnosing->kept);
}

void attempt_dispose(struct attempt *attempt)
{
    if (attempt == NULL) return;
    for (int r = 0; r < attempt->world; r++) {
        free(attempt->ranks[r].worker_id);
        free(attempt->ranks[r].reason);
        free(attempt->ranks[r].message);
    }
    free(attempt->ranks);
    free(attempt->paces);
    free(attempt->started_text);
    store_stop_deinit(&attempt->stop);
    free(attempt->code_after);
    free(attempt->text_after);
    free(attempt->weights_refused);
    free(attempt->stall.before);
    diagnosing_deinit(&attempt->diagnosing, attempt->world);
    order_log_deinit(&attempt->orders);
    free(attempt);
}

bool attempt_is_active(const struct job *job)
{
    const struct attempt *attempt = job->attempt;
    return attempt != NULL && !attempt->ending && !attempt->cancel_ordered;
}

/* NCCL rejects a group that contains a device twice; all ranks must use the same transport. */
bool attempt_is_staged(const struct job *job)
{
    const struct attempt *attempt = job->attempt;
    for (int r = 0; r < attempt->world; r++) {
        const struct worker *worker = attempt->ranks[r].worker;
        if (attempt->world > 1 && worker != NULL && worker->shares_device) return true;
    }
    return false;
}

void attempt_stop_at_once(struct job *job, const char *why)
{
    struct attempt *attempt = job->attempt;
    Fsdpd__V1__CancelOrder cancel = FSDPD__V1__CANCEL_ORDER__INIT;
    cancel.at_once = true;
    cancel.message = (char *)why;
    Fsdpd__V1__Order order = FSDPD__V1__ORDER__INIT;
    order.order_case = FSDPD__V1__ORDER__ORDER_CANCEL;
    order.cancel = &cancel;
    order.sequence = attempt->orders.last + 1; /* outside the sequence: no order follows */
    for (int r = 0; r < attempt->world; r++) {
        struct rank *rank = &attempt->ranks[r];
        if (rank->worker == NULL || rank->stopped) continue;
        rank->stopped = true;
        attempt_send_order(job, rank, &order);
        worker_stop_by(rank->worker, job->c->options.limits.kill_ms);
    }
}

void attempt_end(struct job *job)
{
    struct attempt *attempt = job->attempt;
    if (attempt == NULL) return;
    attempt_stop_at_once(job, "the attempt is over");
    for (int r = 0; r < attempt->world; r++) attempt->ranks[r].worker = NULL;
    if (!job->unsaved) attempt_release(job);
    AUTO_FREE char *store = attempt_store_name(job->message);
    rendezvous_end(job->c, store);
    job->left = attempt;
    job->attempt = NULL;
    job->c->attempt_count--;
}

void attempt_release(struct job *job)
{
    const job_message *message = job->message;
    for (size_t r = 0; r < message->n_workers; r++) {
        struct worker *worker = workers_find(job->c, message->workers[r]);
        if (worker != NULL) worker_release(worker, message->id, message->attempt);
    }
}

struct rank *attempt_find_rank(const struct job *job, uint32_t number, const char *worker_id)
{
    const struct attempt *attempt = job->attempt;
    if (attempt == NULL || job->message->attempt != number) return NULL;
    for (int r = 0; r < attempt->world; r++)
        if (strcmp(attempt->ranks[r].worker_id, worker_id) == 0) return &attempt->ranks[r];
    return NULL;
}
