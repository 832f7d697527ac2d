/* Restoring attempts; see attempt_run.h. */
#include "coordinator/jobs/attempt_run.h"
#include "coordinator/jobs/elastic.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "coordinator/jobs/orders.h"
#include "coordinator/jobs/parts.h"
#include "coordinator/workers/rendezvous.h"

static const char reattaching[] = "REATTACHING";

/* Sets the default reason, for an attempt about which nothing else is known. */
static void set_usual_reason(struct job *job)
{
    struct attempt *attempt = job->attempt;
    bool running = job->message->state == FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING;
    if (attempt->stop.cancelled) {
        attempt->code_after = mem_strdup("CANCELLING");
        attempt->text_after =
            mem_printf("%s; it ends at its next step boundary", attempt->stop.message);
        return;
    }
    attempt->code_after = mem_strdup(running ? "RUNNING" : "STARTING");
    attempt->text_after =
        mem_printf(running ? "training on %d worker%s" : "%d worker%s set up the job",
                   attempt->world, attempt->world == 1 ? "" : "s");
}

/* Stores the reason to show when all ranks are back. */
static void keep_reason(struct job *job)
{
    struct attempt *attempt = job->attempt;
    const Fsdpd__V1__Reason *reason = job->message->reason;
    if (attempt->code_after != NULL) return;
    if (strcmp(reason->code, reattaching) == 0 || attempt->stop.shut_down) {
        set_usual_reason(job);
        return;
    }
    attempt->code_after = mem_strdup(reason->code);
    attempt->text_after = mem_strdup(reason->message);
}

/* "rank 1 (host/cpu:1), rank 3 (host/cpu:3)" */
static void list_away(const struct job *job, struct buf *out)
{
    const struct attempt *attempt = job->attempt;
    for (int r = 0; r < attempt->world; r++)
        if (attempt->ranks[r].state == RANK_AWAY)
            buf_printf(out, "%srank %d (%s)", out->length > 0 ? ", " : "", r,
                       attempt->ranks[r].worker_id);
}

static bool is_usual(const char *code)
{
    return strcmp(code, "RUNNING") == 0 || strcmp(code, "STARTING") == 0;
}

static void update_reason(struct job *job)
{
    struct attempt *attempt = job->attempt;
    AUTO(buf_deinit) struct buf away = {0};
    list_away(job, &away);
    bool restarted = true;
    for (int r = 0; r < attempt->world; r++)
        if (attempt->ranks[r].state == RANK_AWAY && !attempt->ranks[r].since_start)
            restarted = false;
    bool usual = is_usual(attempt->code_after);
    job_set_reason(job, reattaching, "%s for %s to attach again%s%s",
                   restarted ? "fsdpd was restarted, and waits" : "waits", buf_text(&away),
                   usual ? "" : "; then: ", usual ? "" : attempt->text_after);
}

void reattach_update_reason(struct job *job, int64_t now)
{
    struct attempt *attempt = job->attempt;
    bool due = false;
    for (int r = 0; r < attempt->world; r++) {
        struct rank *rank = &attempt->ranks[r];
        if (rank->state != RANK_AWAY || rank->show_at == 0 || now < rank->show_at) continue;
        rank->show_at = 0;
        due = true;
    }
    if (!due || attempt->ending) return;
    keep_reason(job);
    update_reason(job);
}

const char *attempt_reason_code(const struct job *job)
{
    const struct attempt *attempt = job->attempt;
    return attempt->code_after != NULL ? attempt->code_after : job->message->reason->code;
}

void attempt_set_reason(struct job *job, const char *code, const char *format, ...)
{
    struct attempt *attempt = job->attempt;
    va_list args;
    va_start(args, format);
    char *text = mem_vprintf(format, args);
    va_end(args);
    if (attempt->code_after == NULL) {
        job_set_reason(job, code, "%s", text);
        free(text);
        return;
    }
    free(attempt->code_after);
    free(attempt->text_after);
    attempt->code_after = mem_strdup(code);
    attempt->text_after = text;
    update_reason(job);
}

status_t reattach_job(struct job *job)
{
    job_message *message = job->message;
    const struct coordinator_limits *limits = &job->c->options.limits;
    if (message->n_workers == 0 ||
        (message->n_workers != elastic_wanted(message) && !elastic_is(message)))
        return NULL;
    struct attempt *attempt = attempt_new(job, (int)message->n_workers);
    int64_t now = coordinator_now(), leave_by = now + limits->reattach_ms;
    for (int r = 0; r < attempt->world; r++)
        attempt->ranks[r] = (struct rank){
            .worker_id = mem_strdup(message->workers[r]),
            .state = RANK_AWAY,
            .leave_by = leave_by,
            .since_start = true,
            .heard_at = now, /* when it was is not known */
            .message = mem_printf("did not attach again within %g s after fsdpd was restarted",
                                  limits->reattach_ms / 1000.0)};
    TRY(store_get_report(job->c->store, message->id, &attempt->report));
    TRY(store_get_stop(job->c->store, message->id, &attempt->stop));
    attempt->report_kept = attempt->ranks[0].report = attempt->report;
    if (message->state == FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING) attempt_note_begun(job);
    AUTO_FREE char *store = attempt_store_name(message);
    rendezvous_begin(job->c, store);
    keep_reason(job);
    update_reason(job);
    coordinator_tick_soon(job->c);
    return NULL;
}

static bool all_run(const struct job *job)
{
    const struct attempt *attempt = job->attempt;
    for (int r = 0; r < attempt->world; r++)
        if (attempt->ranks[r].worker == NULL) return false;
    return true;
}

/* Ends the attempt for its recorded reason, whether the order was given before the restart or has
 * to be given now. */
static void resume_ending(struct job *job)
{
    struct attempt *attempt = job->attempt;
    struct store_stop *stop = &attempt->stop;
    const char *why = stop->message != NULL ? stop->message : "it was ordered to end";
    /* A restarted daemon does not order ranks to stop; ranks that already have the order end by
     * it. */
    if (stop->shut_down && all_run(job) && !orders_have_end(job)) stop->shut_down = false;
    if (orders_have_cancel(job) && !attempt->cancel_ordered) {
        attempt->cancel_ordered = true;
        attempt->escalate_at = coordinator_now() + job->c->options.limits.cancel_ms;
    } else if (stop->cancelled) {
        attempt_cancel(job, stop->by != NULL ? stop->by : "");
    } else if (stop->code != NULL) {
        attempt_stop(job, stop->code, stop->machine, why);
    }
}

/* Shows the stored reason again; a user's request is attributed to that user again. */
static void restore_reason(struct job *job)
{
    struct attempt *attempt = job->attempt;
    struct coordinator *c = job->c;
    const char *actor = c->actor;
    c->actor = is_usual(attempt->code_after) ? NULL : attempt->stop.by;
    job_set_reason(job, attempt->code_after, "%s", attempt->text_after);
    c->actor = actor;
    free(attempt->code_after);
    free(attempt->text_after);
    attempt->code_after = attempt->text_after = NULL;
}

/* The last rank is back: the job continues as if nothing had happened. */
static void complete(struct job *job)
{
    struct attempt *attempt = job->attempt;
    for (int r = 0; r < attempt->world; r++)
        if (attempt->ranks[r].state == RANK_AWAY) return;
    log_event(LOG_INFO, "job_resumed", "job=%s attempt=%u step=%llu", job->message->id,
              job->message->attempt, (unsigned long long)job->message->step);
    if (attempt->code_after != NULL) restore_reason(job);
    resume_ending(job);
    orders_give_held(job);
    job->c->clients->ready(job);
    attempt_check_started(job);
}

static void take_back(struct job *job, struct rank *rank, struct worker *worker,
                      const Fsdpd__V1__HeldAttempt *held)
{
    struct attempt *attempt = job->attempt;
    int number = (int)(rank - attempt->ranks);
    rank->pid = worker->pid;
    rank->state = RANK_STARTED; /* even if it has ended: it reports that next */
    free(rank->message);
    rank->message = NULL;
    if (held->running) {
        rank->worker = worker;
        rank->plan_hash = held->plan_hash;
        if (held->plan_hash == 0) rank->state = RANK_ASSIGNED;
        else attempt_note_begun(job);
        if (held->steps > 0) job->message->steps = held->steps;
        if (number == 0) job->message->step = held->step;
        worker_assign(worker, job->message->id, job->message->attempt, number);
        orders_compare(job, rank, held);
    }
    log_event(LOG_INFO, "rank_back", "job=%s attempt=%u rank=%d worker=%s step=%llu running=%d",
              job->message->id, job->message->attempt, number, worker->id,
              (unsigned long long)held->step, held->running);
    if (number == 0) attempt_acknowledge(job);
    if (attempt->ending) attempt_stop_rest(job);
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

/* Releases an attempt that is no longer wanted; the worker is busy until it reports the end. */
static void turn_away(struct worker *worker, const Fsdpd__V1__HeldAttempt *held)
{
    log_event(LOG_INFO, "attempt_released", "job=%s attempt=%u worker=%s running=%d", held->job,
              held->attempt, worker->id, held->running);
    if (held->running) {
        worker_assign(worker, held->job, held->attempt, (int)held->rank);
        worker_stop_by(worker, worker->c->options.limits.kill_ms);
    }
    worker_release(worker, held->job, held->attempt);
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

/* Why a worker does not run an attempt that it should run. */
static const char *why_without(const struct job *job, const struct rank *rank,
                               const struct worker *worker)
{
    if (rank->pid == worker->pid) return "had not received its assignment when its link broke";
    return job->attempt->begun
               ? "was lost: it restarted while its link was down"
               : "was lost: it restarted while its link was down, or had not received "
                 "its assignment";
}

void reattach_worker(struct worker *worker, const Fsdpd__V1__Hello *hello)
{
    struct coordinator *c = worker->c;
    parts_report(worker, hello->kept);
    for (size_t i = 0; i < hello->n_attempts; i++) {
        const Fsdpd__V1__HeldAttempt *held = hello->attempts[i];
        struct job *job = jobs_find(c, held->job);
        struct rank *rank = job != NULL ? attempt_find_rank(job, held->attempt, worker->id) : NULL;
        if (rank != NULL && !attempt_rank_has_ended(rank)) take_back(job, rank, worker, held);
        else turn_away(worker, held);
    }
    for (int i = 0; i < c->job_count; i++) {
        struct job *job = c->jobs[i];
        struct rank *rank = attempt_find_rank(job, job->message->attempt, worker->id);
        if (rank == NULL || attempt_rank_has_ended(rank) || rank->worker == worker) continue;
        if (find_held(hello, job->message->id, job->message->attempt) != NULL) continue;
        attempt_lose_rank(job, rank, why_without(job, rank, worker));
    }
}
