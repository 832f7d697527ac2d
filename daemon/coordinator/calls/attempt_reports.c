/* Reports from the ranks of an attempt; see attempt.h. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "coordinator/calls/calls.h"
#include "coordinator/calls/checkpoints.h"
#include "coordinator/calls/evaluations.h"
#include "coordinator/calls/pulls.h"
#include "coordinator/jobs/attempt_run.h"
#include "coordinator/jobs/elastic.h"
#include "coordinator/jobs/jobs.h"
#include "coordinator/jobs/parts.h"
#include "coordinator/workers/cuts.h"

/*
 * Metrics that an earlier attempt had not reported when it took the checkpoint that this attempt
 * resumes from. Metrics that any attempt has recorded already are not recorded again.
 */
static void add_unrecorded(struct job *job, const Fsdpd__V1__UnrecordedReports *reports)
{
    const Fsdpd__V1__Metrics *last = job->message->metrics;
    uint64_t recorded = last != NULL ? last->step : 0;
    for (size_t i = 0; reports != NULL && i < reports->n_metrics; i++) {
        const Fsdpd__V1__UnrecordedMetrics *entry = reports->metrics[i];
        if (entry->metrics == NULL || entry->metrics->step <= recorded) continue;
        if (entry->thinned > 0) job_add_dropped(job, entry->thinned);
        job_add_metrics(job, entry->metrics);
    }
}

/* Notes the step that rank 0 resumes from. Later steps will be done again, so the job's step goes
 * back. */
static void note_start(struct job *job, const Fsdpd__V1__Started *started)
{
    struct attempt *attempt = job->attempt;
    struct buf text = {0};
    buf_printf(&text, "%s on %d worker%s",
               job->message->spec->train->only_evaluate ? "evaluating" : "training", attempt->world,
               attempt->world == 1 ? "" : "s");
    if (attempt_is_staged(job)) buf_add_text(&text, " that share devices, through host memory");
    if (started->resumed_name[0] != '\0')
        buf_printf(&text, ", continuing from step %llu", (unsigned long long)started->resumed_step);
    if (strcmp(started->resumed_name, "memory") == 0) buf_add_text(&text, " in memory");
    if (started->resumed_note[0] != '\0') buf_printf(&text, "; %s", started->resumed_note);
    elastic_describe(job, started->resumed_step, &text);
    job_rewind(job, started->resumed_step);
    free(attempt->started_text);
    attempt->started_text = buf_take(&text);
}

void attempt_note_begun(struct job *job)
{
    job->attempt->begun = true;
    job->not_begun = 0;
}

/* A rank that started while the coordinator was away is STARTED since it attached again, but only
 * its report says from which step. */
static void on_started(struct job *job, struct rank *rank, const Fsdpd__V1__Started *started)
{
    bool first = rank == job->attempt->ranks;
    if (rank->state != RANK_ASSIGNED && !(first && rank->state == RANK_STARTED)) return;
    rank->state = RANK_STARTED;
    attempt_note_begun(job);
    rank->plan_hash = started->plan_hash;
    if (first) {
        add_unrecorded(job, started->unrecorded);
        note_start(job, started);
        if (strcmp(attempt_reason_code(job), "RUNNING") == 0)
            attempt_set_reason(job, "RUNNING", "%s", job->attempt->started_text);
    }
    if (started->steps > 0) job->message->steps = started->steps;
    attempt_check_started(job);
}

static void note_connected(const struct attempt *attempt)
{
    for (int r = 0; r < attempt->world; r++)
        for (int other = 0; other < r; other++)
            if (attempt->ranks[r].worker != NULL && attempt->ranks[other].worker != NULL)
                cuts_mend(attempt->ranks[r].worker, attempt->ranks[other].worker);
}

/* The rank could not connect to that one, if that is still there. */
static void note_unreached(struct job *job, const struct rank *rank, uint32_t unreached)
{
    struct attempt *attempt = job->attempt;
    if (unreached == 0 || unreached > (uint32_t)attempt->world) return;
    struct worker *from = workers_find(job->c, rank->worker_id);
    struct worker *to = workers_find(job->c, attempt->ranks[unreached - 1].worker_id);
    if (from != NULL && to != NULL && from != to && cuts_add(from, to)) attempt->found_cut = true;
}

/* The first rank whose plan is known; a rank that had ended when it attached again names none. */
static const struct rank *find_planned(const struct attempt *attempt)
{
    for (int r = 0; r < attempt->world; r++)
        if (attempt->ranks[r].plan_hash != 0) return &attempt->ranks[r];
    return &attempt->ranks[0];
}

void attempt_check_started(struct job *job)
{
    struct attempt *attempt = job->attempt;
    if (job->message->state != FSDPD__V1__JOB_STATE__JOB_STATE_STARTING) return;
    for (int r = 0; r < attempt->world; r++)
        if (attempt->ranks[r].state != RANK_STARTED) return;
    const struct rank *planned = find_planned(attempt);
    for (int r = 0; r < attempt->world; r++) {
        struct rank *other = &attempt->ranks[r];
        if (other->plan_hash == 0 || other->plan_hash == planned->plan_hash) continue;
        free(other->reason);
        free(other->message);
        other->reason = mem_strdup("PLAN_MISMATCH");
        other->message = mem_printf("its plan (%016llx) is not that of rank %d (%016llx)",
                                    (unsigned long long)other->plan_hash,
                                    (int)(planned - attempt->ranks),
                                    (unsigned long long)planned->plan_hash);
        other->code = STATUS_FAILED_PRECONDITION;
        attempt_begin_ending(job, other);
        return;
    }
    if (attempt->ending) return;
    const Fsdpd__V1__Plan *plan = job->message->plan;
    if (plan != NULL && (int)plan->world == attempt->world && planned->plan_hash != 0 &&
        plan->hash != planned->plan_hash)
        log_event(LOG_WARNING, "plan_changed", "job=%s", job->message->id);
    job_set_state(job, JOB_RUNNING, "RUNNING", "%s",
                  attempt->started_text != NULL ? attempt->started_text : "training");
    if (attempt->cancel_ordered)
        attempt_set_reason(job, "CANCELLING", "ends at its next step boundary");
    parts_attempt_begun(job);
    note_connected(attempt);
    if (elastic_is(job->message)) queue_changed(job->c); /* it may get other workers */
    job->c->clients->ready(job);
}

/* A job that asks for it may end before its last step; its ranks say why. */
static bool ended_early(const struct job *job, struct rank *rank,
                        const Fsdpd__V1__Finished *finished)
{
    if (finished->code != STATUS_OK || rank->reason != NULL || !job_may_end_early(job->message) ||
        strcmp(finished->reason, "EARLY_STOP") != 0)
        return false;
    free(rank->message);
    rank->message = mem_strdup(finished->message);
    return true;
}

/* A rank that reports success must have completed every step. */
static void check_last_step(const struct job *job, struct rank *rank,
                            const Fsdpd__V1__Finished *finished)
{
    uint64_t steps = job->message->steps;
    if (ended_early(job, rank, finished)) return;
    if (finished->code != STATUS_OK || rank->reason != NULL || steps == 0 ||
        finished->step == steps)
        return;
    free(rank->message);
    rank->code = STATUS_DATA_LOSS;
    rank->reason = mem_strdup("WRONG_STEP");
    rank->message = mem_printf("it reports success at step %llu, but the job's last "
                               "step is %llu",
                               (unsigned long long)finished->step, (unsigned long long)steps);
}

/* Keeps the rank's report. A plan mismatch found earlier remains the reason. */
static void on_finished(struct job *job, struct rank *rank, const Fsdpd__V1__Finished *finished)
{
    struct attempt *attempt = job->attempt;
    if (attempt_rank_has_ended(rank)) return;
    rank->state = RANK_FINISHED;
    rank->worker = NULL;
    if (finished->step > job->message->step) job->message->step = finished->step;
    if (job->message->metrics == NULL) {
        job->message->metrics = mem_alloc(sizeof *job->message->metrics);
        fsdpd__v1__metrics__init(job->message->metrics);
    }
    if (finished->memory_peak_bytes > job->message->metrics->memory_peak_bytes)
        job->message->metrics->memory_peak_bytes = finished->memory_peak_bytes;
    if (finished->resident_peak_bytes > job->message->metrics->resident_peak_bytes)
        job->message->metrics->resident_peak_bytes = finished->resident_peak_bytes;
    if (finished->code != STATUS_OK && rank->reason == NULL) {
        rank->code = (int)finished->code;
        rank->lacks = finished->lacks;
        note_unreached(job, rank, finished->unreached);
        rank->reason = mem_strdup(finished->reason[0] != '\0'
                                      ? finished->reason
                                      : status_code_name((enum status_code)finished->code));
        rank->message =
            mem_strdup(finished->message[0] != '\0' ? finished->message : "it gave no message");
    }
    check_last_step(job, rank, finished);
    /* After an order to stop, such an end is no failure: the other ranks follow without a further
     * order. */
    bool ordered =
        attempt->cancel_ordered || attempt->stop.cancelled || attempt->checkpoint_order != 0;
    bool obeyed = (ordered || verdict_has_paused(job)) && rank->code == STATUS_CANCELLED;
    if (rank->code != STATUS_OK && rank->failure == 0 && !obeyed) attempt_begin_ending(job, rank);
    attempt_check(job);
}

/* Finds the rank that reports, unless its attempt is over; a repeated report counts once. */
static struct rank *take_report(struct worker *worker, const Fsdpd__V1__AttemptEvent *event,
                                struct job **job)
{
    *job = jobs_find(worker->c, event->job);
    struct rank *rank = *job != NULL ? attempt_find_rank(*job, event->attempt, worker->id) : NULL;
    bool finished = event->event_case == FSDPD__V1__ATTEMPT_EVENT__EVENT_FINISHED;
    if (finished && worker->job != NULL && strcmp(worker->job, event->job) == 0 &&
        worker->attempt == event->attempt) {
        worker_set_idle(worker);
        parts_report(worker, event->finished->kept);
    }
    if (rank == NULL) {
        if (event->report != 0) worker_release(worker, event->job, event->attempt);
        return NULL;
    }
    if (event->report == 0) return rank;
    if (event->report <= rank->report) return NULL;
    rank->report = event->report;
    if (rank != (*job)->attempt->ranks) return rank;
    if (event->thinned > 0) job_add_dropped(*job, event->thinned);
    (*job)->attempt->report = event->report;
    job_sync_soon(*job);
    return rank;
}

void attempt_answer_heartbeat(struct worker *worker)
{
    Fsdpd__V1__Ack ack = FSDPD__V1__ACK__INIT;
    struct job *job = worker->job != NULL ? jobs_find(worker->c, worker->job) : NULL;
    struct rank *rank = job != NULL ? attempt_find_rank(job, worker->attempt, worker->id) : NULL;
    /* Of ranks other than the first, only the fact that they started counts until they end. */
    if (rank != NULL && rank != job->attempt->ranks && rank->state == RANK_STARTED &&
        job->message->state == FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING) {
        ack.job = job->message->id;
        ack.attempt = job->message->attempt;
        ack.report = rank->report;
    }
    worker_send(worker, FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_ACK, &ack);
}

/* An elastic job that has caught up may grow. */
static void add_metrics(struct job *job, const Fsdpd__V1__Metrics *metrics)
{
    bool repeats = elastic_repeats(job);
    job_add_metrics(job, metrics);
    if (repeats && !elastic_repeats(job)) queue_changed(job->c);
}

void attempt_event(struct worker *worker, const Fsdpd__V1__AttemptEvent *event)
{
    struct job *job = NULL;
    struct rank *rank = take_report(worker, event, &job);
    if (event->event_case == FSDPD__V1__ATTEMPT_EVENT__EVENT_LOGS) {
        if (rank == NULL && job != NULL &&
            attempt_find_rank(job, event->attempt, worker->id) != NULL)
            return; /* a repeated report */
        bool mine = worker->job != NULL && strcmp(worker->job, event->job) == 0 &&
                    worker->attempt == event->attempt; /* also for an attempt that is over */
        int from = rank != NULL ? (int)(rank - job->attempt->ranks) : mine ? worker->rank : -1;
        if (from >= 0)
            job_log_report(worker->c, event->job, job != NULL, event->attempt, from, event->logs);
        return;
    }
    if (rank == NULL) return;
    int number = (int)(rank - job->attempt->ranks);
    switch (event->event_case) {
    case FSDPD__V1__ATTEMPT_EVENT__EVENT_STARTED: on_started(job, rank, event->started); break;
    case FSDPD__V1__ATTEMPT_EVENT__EVENT_METRICS:
        if (number == 0) add_metrics(job, event->metrics);
        break;
    case FSDPD__V1__ATTEMPT_EVENT__EVENT_EPOCH:
        if (number == 0) job_add_epoch(job, event->epoch);
        break;
    case FSDPD__V1__ATTEMPT_EVENT__EVENT_VALIDATION:
        if (number == 0) job_add_validation(job, event->validation);
        break;
    case FSDPD__V1__ATTEMPT_EVENT__EVENT_SAMPLED:
        if (number == 0) job_add_sampled(job, event->sampled);
        break;
    case FSDPD__V1__ATTEMPT_EVENT__EVENT_FINISHED: on_finished(job, rank, event->finished); break;
    case FSDPD__V1__ATTEMPT_EVENT__EVENT_PULL_FAILED: pulls_failed(job, event->pull_failed); break;
    case FSDPD__V1__ATTEMPT_EVENT__EVENT_TRACE: traces_report(job, number, event->trace); break;
    case FSDPD__V1__ATTEMPT_EVENT__EVENT_EVALUATION:
        if (number == 0) evaluations_report(job, event->evaluation);
        break;
    case FSDPD__V1__ATTEMPT_EVENT__EVENT_WRAP:
        if (number == 0) rewrap_report(job, event->wrap);
        break;
    case FSDPD__V1__ATTEMPT_EVENT__EVENT_CHECKPOINT:
        if (number == 0) checkpoints_report(job, event->checkpoint);
        break;
    default: break; /* from a later version */
    }
}

void attempt_acknowledge(struct job *job)
{
    if (job->attempt == NULL || job->attempt->report_kept == 0) return;
    struct worker *worker = workers_find(job->c, job->attempt->ranks[0].worker_id);
    if (worker == NULL) return;
    Fsdpd__V1__Ack ack = FSDPD__V1__ACK__INIT;
    ack.job = job->message->id;
    ack.attempt = job->message->attempt;
    ack.report = job->attempt->report_kept;
    worker_send(worker, FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_ACK, &ack);
}
