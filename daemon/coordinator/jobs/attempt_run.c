/*
 * The life of attempts; see attempt_run.h. The verdict waits, for a bounded time, until every rank
 * has reported how it ended.
 */
#include "coordinator/jobs/attempt_run.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/jobs/checkpoint_place.h"
#include "coordinator/jobs/diagnoses.h"
#include "coordinator/jobs/elastic.h"
#include "coordinator/jobs/parts.h"
#include "coordinator/jobs/retry.h"
#include "coordinator/workers/rendezvous.h"
#include "coordinator/workers/supervisor.h"
#include "spec/spec.h"

/* Counts the job's ranks for which `share` holds with this one. */
static uint32_t count_sharers(const struct job *job, int rank,
                              bool (*share)(const struct worker *worker,
                                            const struct worker *other))
{
    const struct attempt *attempt = job->attempt;
    const struct worker *worker = attempt->ranks[rank].worker;
    uint32_t count = 0;
    for (int r = 0; r < attempt->world; r++) {
        const struct worker *other = attempt->ranks[r].worker;
        count += other != NULL && share(worker, other);
    }
    return count;
}

/* The units to try beside the job's own. The assignment borrows them; its list is the caller's. */
static void add_tune(const Fsdpd__V1__Plan *plan, Fsdpd__V1__Assignment *assignment)
{
    if (plan == NULL || plan->n_tune < 2) return;
    assignment->tune = mem_alloc_array(plan->n_tune - 1, sizeof *assignment->tune);
    for (size_t i = 1; i < plan->n_tune; i++)
        assignment->tune[assignment->n_tune++] = plan->tune[i]->wrap;
}

static void send_assignment(struct job *job, int rank, const char *store,
                            const struct checkpoint_place *place)
{
    struct worker *worker = job->attempt->ranks[rank].worker;
    Fsdpd__V1__Assignment assignment = FSDPD__V1__ASSIGNMENT__INIT;
    assignment.job = job->message->id;
    assignment.attempt = job->message->attempt;
    assignment.rank = (uint32_t)rank;
    assignment.world = (uint32_t)job->attempt->world;
    struct spec_settings with;
    job_spec spec = /* borrows everything */
        *spec_settings(job->message->spec, job->message->chosen, &with);
    spec.workers = assignment.world;
    assignment.spec = &spec;
    assignment.store = (char *)store;
    assignment.timeout_ms = (uint32_t)job->c->options.limits.peer_timeout_ms;
    assignment.address = worker->address;
    assignment.checkpoint_folder = place->folder;
    assignment.run = place->run;
    assignment.resume = place->resume;
    assignment.must_resume = place->must_resume;
    assignment.source = place->source;
    assignment.adapter_source = place->adapter_source;
    if (rank == 0) {
        assignment.n_listed_checkpoints = place->listed_count;
        assignment.listed_checkpoints = place->listed;
    }
    assignment.kept_since = job->elastic.kept_since;
    assignment.staged = attempt_is_staged(job);
    assignment.sharers = count_sharers(job, rank, worker_shares_memory);
    assignment.host_ranks = count_sharers(job, rank, worker_shares_host);
    if (worker->supervised) assignment.threads = (uint32_t)supervisor_threads(job->c);
    if (spec.fsdp->tune) add_tune(job->message->plan, &assignment);
    worker_send(worker, FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_ASSIGNMENT, &assignment);
    free(assignment.tune);
}

void attempt_begin(struct job *job, struct worker **workers, int count)
{
    job_message *message = job->message;
    status_t status = checkpoint_place_check(job, workers, count);
    if (status != NULL) {
        job_set_state(job, JOB_FAILED, "CHECKPOINT_DIRECTORY", "%s", status_message(status));
        status_free(status);
        return;
    }
    struct checkpoint_place place;
    status = checkpoint_place_find(job, workers, count, &place);
    if (status != NULL) {
        retry_start_later(job, status);
        return;
    }
    status = checkpoint_place_find_source(job, workers, count, &place);
    if (status != NULL) {
        checkpoint_place_deinit(&place);
        job_set_state(job, JOB_FAILED, "WEIGHTS_NOT_FOUND", "%s", status_message(status));
        status_free(status);
        return;
    }
    job->elastic.kept_since = parts_since(job); /* before the workers are assigned, and busy */
    message->attempt++;
    for (size_t i = 0; i < message->n_workers; i++) free(message->workers[i]);
    free(message->workers);
    struct attempt *attempt = attempt_new(job, count);
    message->n_workers = (size_t)attempt->world;
    message->workers = mem_alloc_array(message->n_workers, sizeof *message->workers);
    job->retry_at = 0;
    job->elastic.next = 0;
    free(job->preempted);
    job->preempted = NULL;
    for (int r = 0; r < attempt->world; r++) {
        struct worker *worker = workers[r];
        message->workers[r] = mem_strdup(worker->id);
        attempt->ranks[r] = (struct rank){.worker = worker,
                                          .worker_id = mem_strdup(worker->id),
                                          .pid = worker->pid};
        worker_assign(worker, message->id, message->attempt, r);
    }
    AUTO_FREE char *store = attempt_store_name(message);
    rendezvous_begin(job->c, store);
    job_set_state(job, JOB_STARTING, "STARTING", "%d worker%s set up the job", attempt->world,
                  attempt->world == 1 ? "" : "s");
    for (int r = 0; r < attempt->world; r++) send_assignment(job, r, store, &place);
    checkpoint_place_deinit(&place);
    coordinator_tick_soon(job->c);
}

bool attempt_is_local(const struct job *job)
{
    const struct attempt *attempt = job->attempt;
    for (int r = 0; attempt != NULL && r < attempt->world; r++)
        if (supervisor_has_slot(job->c, attempt->ranks[r].worker_id)) return true;
    return false;
}

/* A rank failed: the others cannot continue without it. */
void attempt_begin_ending(struct job *job, struct rank *rank)
{
    struct attempt *attempt = job->attempt;
    rank->failure = ++attempt->failures;
    if (attempt->ending) return;
    attempt->ending = true;
    attempt->settle_at = coordinator_now() + job->c->options.limits.settle_ms;
    coordinator_tick_soon(job->c);
    AUTO_FREE char *why =
        mem_printf("rank %d (%s) failed", (int)(rank - attempt->ranks), rank->worker_id);
    attempt_stop_at_once(job, why);
}

void attempt_stop_rest(struct job *job)
{
    attempt_stop_at_once(job, "another rank failed");
}

void attempt_check(struct job *job)
{
    struct attempt *attempt = job->attempt;
    if (attempt == NULL) return;
    bool all_succeeded = true;
    for (int r = 0; r < attempt->world; r++) {
        const struct rank *rank = &attempt->ranks[r];
        if (!attempt_rank_has_ended(rank)) return;
        if (rank->state != RANK_FINISHED || rank->code != STATUS_OK) all_succeeded = false;
    }
    if (!all_succeeded) {
        verdict_give(job);
        return;
    }
    const job_message *message = job->message;
    if (message->spec->save_model && !job_has_result(job)) {
        if (job->c->clients->is_uploading(job)) return; /* its end calls this function again */
        if (attempt->weights_refused != NULL)
            job_set_state(job, JOB_FAILED, "STATE_DICT_REFUSED",
                          "rank 0 (%s) reports success, but its weights were refused: "
                          "%s",
                          attempt->ranks[0].worker_id, attempt->weights_refused);
        else
            job_set_state(job, JOB_FAILED, "STATE_DICT_LOST",
                          "training finished, but the final state_dict did not arrive");
        return;
    }
    if (attempt->ranks[0].message != NULL && message->step < message->steps)
        job_set_state(job, JOB_SUCCEEDED, "EARLY_STOP", "stopped early after %llu steps: %s",
                      (unsigned long long)message->step, attempt->ranks[0].message);
    else
        job_set_state(job, JOB_SUCCEEDED, "DONE",
                      message->spec->train->only_evaluate ? "evaluated the weights after %llu steps"
                                                          : "trained %llu steps",
                      (unsigned long long)message->step);
}

void attempt_lose_rank(struct job *job, struct rank *rank, const char *how)
{
    MUST_OWN(&job->c->owner);
    char *message = mem_strdup(how); /* `how` may be the rank's own message */
    free(rank->message);
    rank->message = message;
    rank->worker = NULL;
    rank->state = RANK_LOST;
    coordinator_tick_soon(job->c);
    if (rank->failure == 0) attempt_begin_ending(job, rank);
    attempt_check(job);
}

/* The rank may come back; if something has failed already, only its exit status is awaited. */
static void await_return(struct job *job, struct rank *rank, const char *how)
{
    struct attempt *attempt = job->attempt;
    const struct coordinator_limits *limits = &job->c->options.limits;
    free(rank->message);
    rank->message = mem_strdup(how);
    rank->worker = NULL;
    rank->state = RANK_AWAY;
    rank->since_start = false;
    int64_t now = coordinator_now();
    bool awaited =
        !attempt->ending || elastic_is_redundant(job->message); /* it has a part of the state */
    rank->leave_by = now + (awaited ? limits->reattach_ms : limits->exit_wait_ms);
    /* A local worker whose link closed has usually ended, which is reported at once. */
    rank->show_at = now + (supervisor_has_slot(job->c, rank->worker_id) ? limits->exit_wait_ms : 0);
    reattach_update_reason(job, now);
    job->c->clients->rank_away(job, (int)(rank - attempt->ranks));
    coordinator_tick_soon(job->c);
}

void attempt_worker_lost(struct worker *worker, const char *how, bool certain)
{
    struct coordinator *c = worker->c;
    for (int i = 0; i < c->job_count; i++) {
        struct job *job = c->jobs[i];
        struct rank *rank = attempt_find_rank(job, job->message->attempt, worker->id);
        if (rank == NULL || attempt_rank_has_ended(rank)) continue;
        if (c->closing) { /* it continues without the coordinator */
            rank->worker = NULL;
            continue;
        }
        rank->cut_off = worker->overdue;
        if (certain) attempt_lose_rank(job, rank, how);
        else await_return(job, rank, how);
    }
}

void attempt_process_exited(struct coordinator *c, const char *worker_id, int64_t pid,
                            const char *how)
{
    for (int i = 0; i < c->job_count; i++) {
        struct job *job = c->jobs[i];
        const struct attempt *attempt = job->attempt;
        for (int r = 0; attempt != NULL && r < attempt->world; r++) {
            struct rank *rank = &attempt->ranks[r];
            /* After a restart the pid is unknown: match by worker. */
            bool same = rank->pid != 0 ? rank->pid == pid : strcmp(rank->worker_id, worker_id) == 0;
            if (rank->state != RANK_AWAY || !same) continue;
            attempt_lose_rank(job, rank, how);
            return;
        }
    }
}

/* A rank was away for too long: what happened to it is unknown. */
static void give_up(struct job *job, struct rank *rank)
{
    AUTO_FREE char *how =
        rank->since_start || job->attempt->ending
            ? mem_strdup(rank->message)
            : mem_printf("%s, and did not attach again within %g s", rank->message,
                         job->c->options.limits.reattach_ms / 1000.0);
    attempt_lose_rank(job, rank, how);
}

static void escalate(struct job *job, int64_t now)
{
    struct attempt *attempt = job->attempt;
    attempt->escalate_at = 0;
    attempt->escalated = true;
    if (attempt->stop.vacating && !attempt->stop.preempted) attempt_vacate_at_once(job);
    /* Ranks that are SAVING have no more step boundaries. */
    bool saves = attempt->saving != 0 && attempt->stop.message != NULL;
    attempt_stop_at_once(job, saves ? attempt->stop.message
                                    : "the order to end at a step boundary had no effect");
    for (int r = 0; r < attempt->world; r++)
        if (attempt->ranks[r].state == RANK_AWAY) attempt->ranks[r].leave_by = now;
}

/* The verdict is due, but a rank that still ends may have a part of the state that the next attempt
 * needs. */
static void settle(struct job *job, int64_t now)
{
    AUTO(buf_deinit) struct buf late = {0};
    if (!parts_wait(job, now, &late)) {
        verdict_give(job);
        return;
    }
    const struct coordinator_limits *limits = &job->c->options.limits;
    int most = limits->kill_ms > limits->reattach_ms ? limits->kill_ms : limits->reattach_ms;
    attempt_set_reason(job, "RESIZING",
                       "a rank failed; waits at most %g s for %s to end or to attach again, to "
                       "continue from the state "
                       "in memory",
                       most / 1000.0, buf_text(&late));
}

void attempt_tick(struct job *job, int64_t now)
{
    const struct attempt *attempt = job->attempt;
    for (int r = 0; attempt != NULL && r < attempt->world; r++) {
        struct rank *rank = &attempt->ranks[r];
        if (rank->state == RANK_AWAY && now >= rank->leave_by) give_up(job, rank);
    }
    if (attempt == NULL || job->attempt != attempt) return;
    reattach_update_reason(job, now);
    stalls_tick(job, now);
    diagnoses_tick(job, now);
    if (attempt->escalate_at != 0 && now >= attempt->escalate_at) escalate(job, now);
    if (attempt->ending && now >= attempt->settle_at) settle(job, now);
}
