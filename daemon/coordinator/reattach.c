/* Taking attempts back; see reattach.h. */
#include "coordinator/reattach.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "coordinator/checkpoints.h"
#include "coordinator/orders.h"
#include "coordinator/pulls.h"
#include "coordinator/rendezvous.h"

static const char reattaching[] = "REATTACHING";

bool reattach_job(struct job *job)
{
    job_message *message = job->message;
    const struct coordinator_limits *limits = &job->c->options.limits;
    if (message->n_workers == 0 || message->n_workers != message->spec->workers) return false;
    job->world = (int)message->n_workers;
    job->ranks = mem_alloc_array(message->n_workers, sizeof *job->ranks);
    int64_t leave_by = coordinator_now() + limits->reattach_ms;
    for (int r = 0; r < job->world; r++)
        job->ranks[r] = (struct rank){
            .worker_id = mem_strdup(message->workers[r]),
            .state = RANK_AWAY,
            .leave_by = leave_by,
            .since_start = true,
            .message = mem_printf("did not attach again within %g s after fsdpd was restarted",
                                  limits->reattach_ms / 1000.0)};
    job->ranks[0].report = job->report;
    char *store = attempt_store_name(message);
    rendezvous_begin(job->c, store);
    free(store);
    /* That it is to end was said to people, so it is kept, and done when the ranks are back. */
    const struct store_stop *stop = &job->stop;
    if (!stop->cancelled && !stop->vacating && !stop->pausing && stop->code == NULL)
        job_set_reason(job, reattaching,
                       "fsdpd was restarted, and waits for the %d worker%s of the job to attach "
                       "again",
                       job->world, job->world == 1 ? "" : "s");
    coordinator_hurry(job->c);
    return true;
}

static bool all_run(const struct job *job)
{
    for (int r = 0; r < job->world; r++)
        if (job->ranks[r].worker == NULL) return false;
    return true;
}

/* What the attempt was to end for, if the order was given before the restart, or is given now. */
static void go_on_ending(struct job *job)
{
    struct store_stop *stop = &job->stop;
    const char *why = stop->message != NULL ? stop->message : "it was to end";
    /* A daemon that is there again orders nobody to stop; those who had the order end by it. */
    if (stop->shut_down && all_run(job) && !orders_have_end(job)) stop->shut_down = false;
    if (orders_have_cancel(job) && !job->cancel_ordered) {
        job->cancel_ordered = true;
        job->escalate_at = coordinator_now() + job->c->options.limits.cancel_ms;
    } else if (stop->cancelled) {
        attempt_cancel(job, stop->by != NULL ? stop->by : "");
    } else if (stop->code != NULL) {
        attempt_stop(job, stop->code, stop->machine, why);
    }
}

void reattach_release(struct worker *worker, const char *job, uint32_t attempt)
{
    Fsdpd__V1__Release release = FSDPD__V1__RELEASE__INIT;
    release.job = (char *)job;
    release.attempt = attempt;
    Fsdpd__V1__CoordinatorMessage message = FSDPD__V1__COORDINATOR_MESSAGE__INIT;
    message.message_case = FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_RELEASE;
    message.release = &release;
    worker_send(worker, &message);
}

/* The last rank is back: the job goes on as if nothing had happened. */
static void complete(struct job *job)
{
    for (int r = 0; r < job->world; r++)
        if (job->ranks[r].state == RANK_AWAY) return;
    log_event(LOG_INFO, "job_resumed", "job=%s attempt=%u step=%llu", job->message->id,
              job->message->attempt, (unsigned long long)job->message->step);
    if (strcmp(job->message->reason->code, reattaching) == 0 &&
        job->message->state == FSDPD__V1__JOB_STATE__RUNNING)
        job_set_reason(job, "RUNNING", "training on %d worker%s", job->world,
                       job->world == 1 ? "" : "s");
    go_on_ending(job);
    orders_give_held(job);
    pulls_advance(job);
    checkpoints_go_on(job);
    checkpoints_advance(job);
    attempt_check_started(job);
}

static void take_back(struct job *job, struct rank *rank, struct worker *worker,
                      const Fsdpd__V1__HeldAttempt *held)
{
    int number = (int)(rank - job->ranks);
    rank->pid = worker->pid;
    rank->state = RANK_STARTED; /* also one that has ended: it says so next */
    free(rank->message);
    rank->message = NULL;
    if (held->running) {
        rank->worker = worker;
        rank->plan_hash = held->plan_hash;
        if (held->plan_hash == 0) rank->state = RANK_ASSIGNED;
        if (held->steps > 0) job->message->steps = held->steps;
        if (number == 0) job->message->step = held->step;
        worker_assign(worker, job->message->id, job->message->attempt, number);
        orders_compare(job, rank, held);
    }
    log_event(LOG_INFO, "rank_back", "job=%s attempt=%u rank=%d worker=%s step=%llu running=%d",
              job->message->id, job->message->attempt, number, worker->id,
              (unsigned long long)held->step, held->running);
    if (number == 0) attempt_acknowledge(job);
    if (job->ending) attempt_stop_rest(job);
    complete(job);
}

static const Fsdpd__V1__HeldAttempt *find_held(const Fsdpd__V1__Hello *hello, const char *job,
                                               uint32_t attempt)
{
    for (size_t i = 0; i < hello->n_attempts; i++)
        if (hello->attempts[i]->attempt == attempt && strcmp(hello->attempts[i]->job, job) == 0)
            return hello->attempts[i];
    return NULL;
}

/* Told to end what nobody wants any more; it is busy until it says that it has. */
static void turn_away(struct worker *worker, const Fsdpd__V1__HeldAttempt *held)
{
    log_event(LOG_INFO, "attempt_released", "job=%s attempt=%u worker=%s running=%d", held->job,
              held->attempt, worker->id, held->running);
    if (held->running) {
        worker_assign(worker, held->job, held->attempt, (int)held->rank);
        worker_stop_by(worker, worker->c->options.limits.kill_ms);
    }
    reattach_release(worker, held->job, held->attempt);
}

bool reattach_is_wanted(struct coordinator *c, const Fsdpd__V1__Hello *hello)
{
    for (size_t i = 0; i < hello->n_attempts; i++) {
        const Fsdpd__V1__HeldAttempt *held = hello->attempts[i];
        struct job *job = jobs_find(c, held->job);
        if (job != NULL && attempt_find_rank(job, held->attempt, hello->id) != NULL) return true;
    }
    return false;
}

void reattach_worker(struct worker *worker, const Fsdpd__V1__Hello *hello)
{
    struct coordinator *c = worker->c;
    for (size_t i = 0; i < hello->n_attempts; i++) {
        const Fsdpd__V1__HeldAttempt *held = hello->attempts[i];
        struct job *job = jobs_find(c, held->job);
        struct rank *rank = job != NULL ? attempt_find_rank(job, held->attempt, worker->id) : NULL;
        if (rank != NULL && !attempt_rank_has_ended(rank)) take_back(job, rank, worker, held);
        else turn_away(worker, held);
    }
    /* From the end: a job that loses its last rank is over, and leaves the list. */
    for (int i = c->job_count - 1; i >= 0; i--) {
        struct job *job = i < c->job_count ? c->jobs[i] : NULL;
        if (job == NULL || job->ranks == NULL) continue;
        struct rank *rank = attempt_find_rank(job, job->message->attempt, worker->id);
        if (rank == NULL || attempt_rank_has_ended(rank) || rank->worker == worker) continue;
        if (find_held(hello, job->message->id, job->message->attempt) != NULL) continue;
        attempt_lose_rank(job, rank, "was lost: it was started anew while its link was down");
    }
}
