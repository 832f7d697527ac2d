/* Diagnoses; see diagnoses.h. */
#include "coordinator/jobs/diagnoses.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/threads.h"
#include "coordinator/workers/supervisor.h"
#include "proto/message.h"
#include "proto/threads.h"

/* A rank answers at once, or takes a second if many of its threads hang. Then a diagnosis is
 * taken again after as long as half a deadline, at the earliest. */
enum { ANSWER_MS = 3000, KEPT_BYTES = 256 << 10 };

void diagnoses_ask(struct job *job, bool stacks)
{
    struct attempt *attempt = job->attempt;
    struct diagnosing *own = &attempt->diagnosing;
    if (own->answers != NULL) return;
    own->number = ++job->c->last_number;
    own->stacks = stacks;
    own->due = coordinator_now() + ANSWER_MS;
    own->answers = mem_alloc_array((size_t)attempt->world, sizeof *own->answers);
    Fsdpd__V1__DiagnosisOrder order = FSDPD__V1__DIAGNOSIS_ORDER__INIT;
    order.number = own->number;
    order.job = job->message->id;
    order.attempt = job->message->attempt;
    order.stacks = stacks;
    for (int r = 0; r < attempt->world; r++)
        if (attempt->ranks[r].worker != NULL)
            worker_send(attempt->ranks[r].worker, FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_DIAGNOSIS,
                        &order);
    coordinator_tick_soon(job->c);
}

/* The process of a local worker; '\0': there is none, or it is elsewhere. */
static int64_t local_pid(const struct job *job, const struct rank *rank)
{
    int64_t pid = rank->worker != NULL ? rank->worker->pid : rank->pid;
    return supervisor_has_slot(job->c, rank->worker_id) ? pid : 0;
}

/* It has missed heartbeats, too: a process that is stopped for a moment answers soon. */
static bool is_stopped(const struct job *job, const struct rank *rank, int64_t now)
{
    int64_t pid = local_pid(job, rank);
    if (now - rank->worker->heard_at < 2 * (int64_t)job->c->options.limits.heartbeat_ms)
        return false;
    char state = pid > 0 ? process_state(pid) : 'S';
    return state == 'T' || state == 't' || state == 'Z' || state == '\0';
}

/* ---- the conclusion ---- */

/* What is known of a rank that did not answer. */
static Fsdpd__V1__RankDiagnosis *describe_silent(const struct job *job, const struct rank *rank)
{
    Fsdpd__V1__RankDiagnosis *message = MESSAGE_NEW(message, fsdpd__v1__rank_diagnosis__init);
    message->step = rank->step;
    message->collectives = rank->collectives;
    message->waits = rank->waits;
    int64_t pid = local_pid(job, rank);
    if (pid <= 0) return message;
    struct thread_list list;
    threads_look_at(&list, (int)pid);
    threads_to_message(&list, message);
    return message;
}

static const char *process_name(const struct job *job, const struct rank *rank)
{
    int64_t pid = local_pid(job, rank);
    if (pid <= 0) return "";
    char state = process_state(pid);
    return state == '\0' ? "gone" : thread_state_name(state);
}

static const char *describe_link(const struct rank *rank)
{
    if (rank->worker != NULL) return "attached";
    /* Its message is for the case that it does not come back. */
    if (rank->state == RANK_AWAY && rank->since_start)
        return "has not attached again since fsdpd was restarted";
    return rank->message != NULL ? rank->message : "has ended";
}

static Fsdpd__V1__RankDiagnosis *conclude_rank(struct job *job, int number, int64_t now)
{
    struct attempt *attempt = job->attempt;
    const struct rank *rank = &attempt->ranks[number];
    Fsdpd__V1__RankDiagnosis *message = attempt->diagnosing.answers[number];
    attempt->diagnosing.answers[number] = NULL;
    if (message == NULL) message = describe_silent(job, rank);
    int64_t heard = rank->worker != NULL ? rank->worker->heard_at : rank->heard_at;
    message->rank = (uint32_t)number;
    if (attempt->paces != NULL) {
        message->own_step_seconds = attempt->paces[number].step_seconds;
        message->slowdown = attempt->paces[number].slowdown;
    }
    message_set_text(&message->worker, rank->worker_id);
    message->pid = rank->worker != NULL ? rank->worker->pid : rank->pid;
    message->silent_seconds = heard > 0 ? (double)(now - heard) / 1000.0 : 0;
    message_set_text(&message->process, process_name(job, rank));
    message_set_text(&message->link, describe_link(rank));
    return message;
}

/* Shortens what goes to the store: first the stacks of ranks that are not to blame, then all of
 * them, then the other ranks. */
static void drop_frames(Fsdpd__V1__RankDiagnosis *rank)
{
    for (size_t t = 0; t < rank->n_threads; t++) message_free(rank->threads[t]);
    rank->n_threads = 0;
    for (size_t i = 0; i < rank->n_connections; i++) message_free(rank->connections[i]);
    rank->n_connections = 0;
}

static bool is_blamed(const Fsdpd__V1__Diagnosis *d, uint32_t rank)
{
    for (size_t i = 0; i < d->n_ranks_to_blame; i++)
        if (d->ranks_to_blame[i] == rank) return true;
    return false;
}

static bool is_long(Fsdpd__V1__Diagnosis *d)
{
    if (fsdpd__v1__diagnosis__get_packed_size(d) <= KEPT_BYTES) return false;
    d->shortened = true;
    return true;
}

static void shorten(Fsdpd__V1__Diagnosis *d)
{
    for (size_t r = 0; r < d->n_ranks && is_long(d); r++)
        if (!is_blamed(d, d->ranks[r]->rank)) drop_frames(d->ranks[r]);
    for (size_t r = d->n_ranks; r-- > 1 && is_long(d);) drop_frames(d->ranks[r]);
    while (d->n_ranks > 1 && is_long(d)) message_free(d->ranks[--d->n_ranks]);
}

/* The job's step is rank 0's last one that was heard of. */
static void add_rank(Fsdpd__V1__Diagnosis *diagnosis, Fsdpd__V1__RankDiagnosis *rank)
{
    if (rank->step > diagnosis->step) diagnosis->step = rank->step;
    diagnosis->ranks[diagnosis->n_ranks++] = rank;
}

static void conclude(struct job *job, int64_t now)
{
    struct attempt *attempt = job->attempt;
    struct diagnosing *own = &attempt->diagnosing;
    Fsdpd__V1__Diagnosis *diagnosis = MESSAGE_NEW(diagnosis, fsdpd__v1__diagnosis__init);
    message_set_time(&diagnosis->time, clock_wall_ms());
    diagnosis->attempt = job->message->attempt;
    diagnosis->step = job->message->step;
    diagnosis->step_age_seconds = stalls_quiet_seconds(job);
    diagnosis->usual_step_seconds = stalls_usual_ms(job) / 1000.0;
    diagnosis->ranks = mem_alloc_array((size_t)attempt->world, sizeof *diagnosis->ranks);
    for (int r = 0; r < attempt->world; r++) add_rank(diagnosis, conclude_rank(job, r, now));
    free(own->answers);
    own->answers = NULL;
    blame(diagnosis);
    shorten(diagnosis);
    message_free(own->kept);
    own->kept = diagnosis;
    own->kept_at = now;
    AUTO_FREE char *quoted = log_quote(diagnosis->verdict);
    log_event(LOG_INFO, "diagnosed", "job=%s attempt=%u verdict=%s", job->message->id,
              job->message->attempt, quoted);
    job->c->clients->diagnosed(job);
}

static bool is_complete(const struct job *job, int64_t now)
{
    const struct attempt *attempt = job->attempt;
    const struct diagnosing *own = &attempt->diagnosing;
    if (now >= own->due) return true;
    for (int r = 0; r < attempt->world; r++) {
        const struct rank *rank = &attempt->ranks[r];
        if (own->answers[r] == NULL && rank->worker != NULL && !is_stopped(job, rank, now))
            return false;
    }
    return true;
}

void diagnoses_answer(struct worker *worker, Fsdpd__V1__DiagnosisReport *report)
{
    struct job *job = jobs_find(worker->c, report->job);
    struct rank *rank = job != NULL ? attempt_find_rank(job, worker->attempt, worker->id) : NULL;
    if (rank == NULL || report->rank == NULL) return;
    struct diagnosing *own = &job->attempt->diagnosing;
    size_t number = (size_t)(rank - job->attempt->ranks);
    if (own->answers == NULL || own->number != report->number || own->answers[number] != NULL)
        return;
    own->answers[number] = report->rank;
    report->rank = NULL;
    int64_t now = coordinator_now();
    if (is_complete(job, now)) conclude(job, now);
}

/* ---- before a deadline ---- */

/* A rank has waited, or has been silent, for half of what ends the attempt. */
static bool is_near_deadline(const struct job *job, int64_t now)
{
    const struct attempt *attempt = job->attempt;
    const struct coordinator_limits *limits = &job->c->options.limits;
    for (int r = 0; r < attempt->world; r++) {
        const struct rank *rank = &attempt->ranks[r];
        if (rank->waits && rank->collectives_at > 0 &&
            now - rank->collectives_at > limits->peer_timeout_ms / 2)
            return true;
        if (rank->worker != NULL && now - rank->worker->heard_at > limits->silence_ms / 2)
            return true;
    }
    return attempt->stall.before != NULL; /* it is STALLED */
}

static int64_t pause_ms(const struct job *job)
{
    const struct coordinator_limits *limits = &job->c->options.limits;
    int least =
        limits->silence_ms < limits->peer_timeout_ms ? limits->silence_ms : limits->peer_timeout_ms;
    return least / 2 > limits->heartbeat_ms ? least / 2 : limits->heartbeat_ms;
}

void diagnoses_tick(struct job *job, int64_t now)
{
    struct attempt *attempt = job->attempt;
    if (attempt == NULL) return;
    struct diagnosing *own = &attempt->diagnosing;
    if (own->answers != NULL) {
        if (is_complete(job, now)) conclude(job, now);
        return;
    }
    if (attempt->ending || job->message->state != FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING) return;
    bool fresh = diagnoses_current(job) != NULL && now - own->kept_at < pause_ms(job);
    if (!fresh && is_near_deadline(job, now)) diagnoses_ask(job, true);
}

const Fsdpd__V1__Diagnosis *diagnoses_current(const struct job *job)
{
    const struct attempt *attempt = job->attempt;
    if (attempt == NULL || attempt->diagnosing.kept == NULL) return NULL;
    const Fsdpd__V1__Diagnosis *kept = attempt->diagnosing.kept;
    return kept->step >= job->message->step ? kept : NULL;
}
