/*
 * The life of attempts; see attempt.h. The verdict waits, for a bounded time, until every rank has
 * said how it ended.
 */
#include "coordinator/attempt.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/checkpoints.h"
#include "coordinator/orders.h"
#include "coordinator/reattach.h"
#include "coordinator/rendezvous.h"
#include "coordinator/retry.h"
#include "coordinator/supervisor.h"
#include "coordinator/traces.h"
#include "coordinator/uploads.h"
#include "coordinator/verdict.h"

char *attempt_store_name(const job_message *message)
{
    return mem_printf("%s/%u", message->id, message->attempt);
}

bool attempt_rank_has_ended(const struct rank *rank)
{
    return rank->state == RANK_FINISHED || rank->state == RANK_LOST;
}

/* NCCL refuses a group with a device in it twice; all ranks go the same way. */
bool attempt_is_staged(const struct job *job)
{
    for (int r = 0; r < job->world; r++) {
        const struct worker *worker = job->ranks[r].worker;
        if (job->world > 1 && worker != NULL && worker->shares_device) return true;
    }
    return false;
}

/* As many ranks of the job `share` something with this one. */
static uint32_t count_sharers(const struct job *job, int rank,
                              bool (*share)(const struct worker *worker,
                                            const struct worker *other))
{
    const struct worker *worker = job->ranks[rank].worker;
    uint32_t count = 0;
    for (int r = 0; r < job->world; r++) {
        const struct worker *other = job->ranks[r].worker;
        count += other != NULL && share(worker, other);
    }
    return count;
}

static void send_assignment(struct job *job, int rank, const char *store,
                            const struct checkpoint_place *place)
{
    struct worker *worker = job->ranks[rank].worker;
    Fsdpd__V1__Assignment assignment = FSDPD__V1__ASSIGNMENT__INIT;
    assignment.job = job->message->id;
    assignment.attempt = job->message->attempt;
    assignment.rank = (uint32_t)rank;
    assignment.world = (uint32_t)job->world;
    assignment.spec = job->message->spec;
    assignment.store = (char *)store;
    assignment.timeout_ms = (uint32_t)job->c->options.limits.peer_timeout_ms;
    assignment.address = worker->address;
    assignment.checkpoint_folder = place->folder;
    assignment.run = place->run;
    assignment.resume = place->resume;
    assignment.must_resume = place->must_resume;
    assignment.staged = attempt_is_staged(job);
    assignment.sharers = count_sharers(job, rank, worker_shares_memory);
    assignment.host_ranks = count_sharers(job, rank, worker_shares_host);
    Fsdpd__V1__CoordinatorMessage message = FSDPD__V1__COORDINATOR_MESSAGE__INIT;
    message.message_case = FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_ASSIGNMENT;
    message.assignment = &assignment;
    worker_send(worker, &message);
}

void attempt_begin(struct job *job, struct worker **workers)
{
    job_message *message = job->message;
    status_t status = checkpoints_check_workers(job, workers, (int)message->spec->workers);
    if (status != NULL) {
        job_set_state(job, JOB_FAILED, "CHECKPOINT_DIRECTORY", "%s", status_message(status));
        status_free(status);
        return;
    }
    struct checkpoint_place place;
    status = checkpoints_find_place(job, workers, (int)message->spec->workers, &place);
    if (status != NULL) {
        retry_start_later(job, status);
        return;
    }
    message->attempt++;
    for (size_t i = 0; i < message->n_workers; i++) free(message->workers[i]);
    free(message->workers);
    job->world = (int)message->spec->workers;
    message->n_workers = (size_t)job->world;
    message->workers = mem_alloc_array(message->n_workers, sizeof *message->workers);
    job->ranks = mem_alloc_array((size_t)job->world, sizeof *job->ranks);
    job->report = job->report_kept = 0;
    job->failures = 0;
    job->retry_at = 0;
    for (int r = 0; r < job->world; r++) {
        struct worker *worker = workers[r];
        message->workers[r] = mem_strdup(worker->id);
        job->ranks[r] = (struct rank){.worker = worker,
                                      .worker_id = mem_strdup(worker->id),
                                      .pid = worker->pid};
        worker_assign(worker, message->id, message->attempt, r);
    }
    char *store = attempt_store_name(message);
    rendezvous_begin(job->c, store);
    job_set_state(job, JOB_STARTING, "STARTING", "%d worker%s set up the job", job->world,
                  job->world == 1 ? "" : "s");
    for (int r = 0; r < job->world; r++) send_assignment(job, r, store, &place);
    free(store);
    free(place.folder);
    free(place.run);
    coordinator_hurry(job->c);
}

void attempt_clear(struct job *job)
{
    for (int r = 0; job->ranks != NULL && r < job->world; r++) {
        free(job->ranks[r].worker_id);
        free(job->ranks[r].reason);
        free(job->ranks[r].message);
    }
    free(job->ranks);
    job->ranks = NULL;
    job->world = 0;
    job->ending = job->cancel_ordered = false;
    job->escalate_at = 0;
    store_stop_deinit(&job->stop);
    orders_clear(job);
    job->vacate_order = 0;
}

/* Orders all ranks that still run to stop, also without the agreement of the others. */
static void stop_at_once(struct job *job, const char *why)
{
    Fsdpd__V1__CancelOrder cancel = FSDPD__V1__CANCEL_ORDER__INIT;
    cancel.at_once = true;
    cancel.message = (char *)why;
    Fsdpd__V1__Order order = FSDPD__V1__ORDER__INIT;
    order.order_case = FSDPD__V1__ORDER__ORDER_CANCEL;
    order.cancel = &cancel;
    order.sequence = job->orders.last + 1; /* outside of the order of orders: nothing follows */
    for (int r = 0; r < job->world; r++) {
        struct rank *rank = &job->ranks[r];
        if (rank->worker == NULL || rank->stopped) continue;
        rank->stopped = true;
        attempt_send_order(job, rank, &order);
        worker_stop_by(rank->worker, job->c->options.limits.kill_ms);
    }
}

void attempt_end(struct job *job)
{
    if (job->ranks == NULL) return;
    stop_at_once(job, "the attempt is over");
    for (int r = 0; r < job->world; r++) job->ranks[r].worker = NULL;
    if (!job->unsaved) attempt_release(job);
    char *store = attempt_store_name(job->message);
    rendezvous_end(job->c, store);
    free(store);
    attempt_clear(job);
}

void attempt_release(struct job *job)
{
    const job_message *message = job->message;
    for (size_t r = 0; r < message->n_workers; r++) {
        struct worker *worker = workers_find(job->c, message->workers[r]);
        if (worker != NULL) reattach_release(worker, message->id, message->attempt);
    }
}

bool attempt_is_local(const struct job *job)
{
    for (int r = 0; r < job->world; r++)
        if (supervisor_has_slot(job->c, job->ranks[r].worker_id)) return true;
    return false;
}

struct rank *attempt_find_rank(const struct job *job, uint32_t attempt, const char *worker_id)
{
    if (job->ranks == NULL || job->message->attempt != attempt) return NULL;
    for (int r = 0; r < job->world; r++)
        if (strcmp(job->ranks[r].worker_id, worker_id) == 0) return &job->ranks[r];
    return NULL;
}

/* A rank failed: the others cannot go on without it. */
void attempt_begin_ending(struct job *job, struct rank *rank)
{
    rank->failure = ++job->failures;
    if (job->ending) return;
    job->ending = true;
    job->settle_at = coordinator_now() + job->c->options.limits.settle_ms;
    coordinator_hurry(job->c);
    char *why = mem_printf("rank %d (%s) failed", (int)(rank - job->ranks), rank->worker_id);
    stop_at_once(job, why);
    free(why);
}

void attempt_stop_rest(struct job *job)
{
    stop_at_once(job, "another rank failed");
}

void attempt_check(struct job *job)
{
    if (job->ranks == NULL) return;
    bool well = true;
    for (int r = 0; r < job->world; r++) {
        const struct rank *rank = &job->ranks[r];
        if (!attempt_rank_has_ended(rank)) return;
        if (rank->state != RANK_FINISHED || rank->code != STATUS_OK) well = false;
    }
    if (!well) {
        verdict_give(job);
        return;
    }
    const job_message *message = job->message;
    if (message->spec->save_model && !message->has_state_dict) {
        if (uploads_has(job)) return; /* comes back here when it has ended */
        job_set_state(job, JOB_FAILED, "STATE_DICT_LOST",
                      "training finished, but the final state_dict did not arrive");
        return;
    }
    job_set_state(job, JOB_SUCCEEDED, "DONE", "trained %llu steps",
                  (unsigned long long)message->step);
}

void attempt_lose_rank(struct job *job, struct rank *rank, const char *how)
{
    char *message = mem_strdup(how); /* which may be the rank's own */
    free(rank->message);
    rank->message = message;
    rank->worker = NULL;
    rank->state = RANK_LOST;
    coordinator_hurry(job->c);
    if (rank->failure == 0) attempt_begin_ending(job, rank);
    attempt_check(job);
}

/* It may come back; if something failed already, only its exit status is waited for. */
static void let_go(struct job *job, struct rank *rank, const char *how)
{
    const struct coordinator_limits *limits = &job->c->options.limits;
    free(rank->message);
    rank->message = mem_strdup(how);
    rank->worker = NULL;
    rank->state = RANK_AWAY;
    rank->since_start = false;
    rank->leave_by = coordinator_now() + (job->ending ? limits->exit_wait_ms : limits->reattach_ms);
    traces_rank_away(job, (int)(rank - job->ranks));
    coordinator_hurry(job->c);
}

void attempt_worker_lost(struct worker *worker, const char *how, bool certain)
{
    struct coordinator *c = worker->c;
    if (c->closing) return; /* it goes on without us */
    for (int i = c->job_count - 1; i >= 0; i--) {
        struct job *job = i < c->job_count ? c->jobs[i] : NULL;
        if (job == NULL || job->ranks == NULL) continue;
        struct rank *rank = attempt_find_rank(job, job->message->attempt, worker->id);
        if (rank == NULL || attempt_rank_has_ended(rank)) continue;
        rank->cut_off = worker->overdue;
        if (certain) attempt_lose_rank(job, rank, how);
        else let_go(job, rank, how);
    }
}

void attempt_process_exited(struct coordinator *c, const char *worker_id, int64_t pid,
                            const char *how)
{
    for (int i = c->job_count - 1; i >= 0; i--) {
        struct job *job = i < c->job_count ? c->jobs[i] : NULL;
        for (int r = 0; job != NULL && r < job->world; r++) {
            struct rank *rank = &job->ranks[r];
            /* Of a job of before a restart no process is known, only the worker's name. */
            bool same = rank->pid != 0 ? rank->pid == pid : strcmp(rank->worker_id, worker_id) == 0;
            if (rank->state != RANK_AWAY || !same) continue;
            attempt_lose_rank(job, rank, how); /* may free the job */
            return;
        }
    }
}

/* A rank that was away for too long: what happened to it is not known. */
static void give_up(struct job *job, struct rank *rank)
{
    char *how = rank->since_start || job->ending
                    ? mem_strdup(rank->message)
                    : mem_printf("%s, and did not attach again within %g s", rank->message,
                                 job->c->options.limits.reattach_ms / 1000.0);
    attempt_lose_rank(job, rank, how);
    free(how);
}

void attempt_tick(struct job *job, int64_t now)
{
    struct coordinator *c = job->c;
    for (int r = 0; job->ranks != NULL && r < job->world; r++) {
        struct rank *rank = &job->ranks[r];
        if (rank->state != RANK_AWAY || now < rank->leave_by) continue;
        char *id = mem_strdup(job->message->id);
        give_up(job, rank);
        bool over = jobs_find(c, id) != job;
        free(id);
        if (over) return;
    }
    if (job->ranks == NULL) return;
    if (job->escalate_at != 0 && now >= job->escalate_at) {
        job->escalate_at = 0;
        stop_at_once(job, "the order to end at a step boundary had no effect");
        for (int r = 0; r < job->world; r++)
            if (job->ranks[r].state == RANK_AWAY) job->ranks[r].leave_by = now;
    }
    if (job->ending && now >= job->settle_at) verdict_give(job);
}
