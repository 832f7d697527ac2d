/*
 * Verdicts; see attempt_run.h. When one rank dies, the others often report the broken connection first;
 * the reason must name the rank that died.
 */
#include "coordinator/jobs/attempt_run.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "coordinator/jobs/attempt.h"
#include "coordinator/jobs/diagnoses.h"
#include "coordinator/jobs/elastic.h"
#include "coordinator/jobs/retry.h"
#include "coordinator/workers/workers.h"

/* Why a rank ended, from the least to the most likely root cause of the attempt's failure. */
enum cause {
    CAUSE_NONE,        /* it did not fail */
    CAUSE_CUT_OFF,     /* it was killed because it did not stop after another had failed */
    CAUSE_CONSEQUENCE, /* it reports that a peer, or its link to one, failed */
    CAUSE_OWN_ERROR,
    CAUSE_AWAY, /* its link closed, and it has not attached again */
    CAUSE_LOST,
};

static enum cause cause_of(const struct rank *rank)
{
    switch (rank->state) {
    case RANK_ASSIGNED:
    case RANK_STARTED: return CAUSE_NONE;
    case RANK_AWAY: return rank->cut_off ? CAUSE_CUT_OFF : CAUSE_AWAY;
    case RANK_LOST: return rank->cut_off ? CAUSE_CUT_OFF : CAUSE_LOST;
    case RANK_FINISHED: break;
    }
    switch (rank->code) {
    case STATUS_OK: return CAUSE_NONE;
    case STATUS_ABORTED:
    case STATUS_CANCELLED:
    case STATUS_UNAVAILABLE:
    case STATUS_DEADLINE_EXCEEDED: return CAUSE_CONSEQUENCE;
    default: return CAUSE_OWN_ERROR;
    }
}

static const struct rank *find_culprit(const struct job *job)
{
    const struct attempt *attempt = job->attempt;
    const struct rank *culprit = NULL;
    for (int r = 0; r < attempt->world; r++) {
        const struct rank *rank = &attempt->ranks[r];
        enum cause mine = cause_of(rank);
        enum cause best = culprit != NULL ? cause_of(culprit) : CAUSE_NONE;
        if (mine > best || (mine != CAUSE_NONE && mine == best && rank->failure < culprit->failure))
            culprit = rank;
    }
    return culprit;
}

static const struct rank *find_paused(const struct job *job)
{
    const struct attempt *attempt = job->attempt;
    for (int r = 0; r < attempt->world; r++) {
        const struct rank *rank = &attempt->ranks[r];
        if (rank->state == RANK_FINISHED && rank->reason != NULL &&
            strcmp(rank->reason, "PAUSED") == 0)
            return rank;
    }
    return NULL;
}

bool verdict_has_paused(const struct job *job)
{
    return find_paused(job) != NULL;
}

static bool has_drained(const struct job *job)
{
    for (int r = 0; r < job->attempt->world; r++) {
        const struct worker *worker = workers_find(job->c, job->attempt->ranks[r].worker_id);
        if (worker != NULL && worker->drained) return true;
    }
    return false;
}

/* The job waits for its turn again. */
static void preempted(struct job *job, bool saved)
{
    const char *why = job->attempt->stop.message;
    free(job->preempted);
    job->preempted = mem_strdup(why);
    job->preempted_at = coordinator_now();
    job->c->preemptions++;
    if (saved)
        job_set_state(job, JOB_QUEUED, "PREEMPTED", "%s; continues from step %llu", why,
                      (unsigned long long)job->message->step);
    else
        job_set_state(job, JOB_QUEUED, "PREEMPTED",
                      "%s; its checkpoint took longer than limits.save_seconds (%g): continues "
                      "from the one before, if there is one",
                      why, job->c->options.limits.save_ms / 1000.0);
    elastic_let_go(job);
}

/* The job continues on other workers, or another number of them. */
static void vacated(struct job *job)
{
    const job_message *message = job->message;
    const char *why = job->attempt->stop.message;
    bool resizes = elastic_is(message) && !has_drained(job);
    const char *code = resizes ? "RESIZING" : "WORKER_DRAINED";
    job->elastic.between = elastic_is(message);
    if (elastic_is_redundant(message)) /* the ranks say where the state is */
        job_set_state(job, JOB_QUEUED, code, "%s; %s", why, find_paused(job)->message);
    else
        job_set_state(job, JOB_QUEUED, code, "%s; continues from step %llu", why,
                      (unsigned long long)message->step);
}

/* Whether the machine is at fault, rather than the job. */
static bool is_machine_failure(const struct rank *culprit)
{
    enum cause cause = cause_of(culprit);
    return cause == CAUSE_LOST || cause == CAUSE_AWAY || cause == CAUSE_CUT_OFF ||
           (cause == CAUSE_CONSEQUENCE && culprit->code != STATUS_CANCELLED);
}

/* The checkpoint was not on disk in time, and the ranks were ordered to end at once. */
static bool is_overdue_pause(const struct job *job)
{
    const struct attempt *attempt = job->attempt;
    return attempt->stop.pausing && attempt->escalated;
}

/* With its checkpoint, or overdue. */
static bool is_preempted(const struct job *job)
{
    const struct attempt *attempt = job->attempt;
    return attempt->stop.preempted && (verdict_has_paused(job) || attempt->escalated);
}

/* Its worker is drained, the checkpoint failed, and the ranks were ordered to end without one: by a
 * coordinator that could not store that, as the disk was full, and has started again. */
static bool ended_without_checkpoint(const struct job *job, const struct rank *culprit)
{
    return job->attempt->stop.vacating && culprit != NULL && culprit->state == RANK_FINISHED &&
           culprit->code == STATUS_CANCELLED;
}

/* The diagnosis that was taken before a deadline ended the attempt; NULL: something else did, or
 * the deadline came too soon. */
static const Fsdpd__V1__Diagnosis *find_diagnosis(const struct job *job)
{
    const struct rank *culprit = find_culprit(job);
    const Fsdpd__V1__Diagnosis *diagnosis = diagnoses_current(job);
    if (culprit == NULL || diagnosis == NULL) return NULL;
    bool late = culprit->state != RANK_FINISHED || culprit->code == STATUS_DEADLINE_EXCEEDED;
    bool stuck = diagnosis->cause != FSDPD__V1__DIAGNOSIS__CAUSE__CAUSE_NONE &&
                 diagnosis->cause != FSDPD__V1__DIAGNOSIS__CAUSE__CAUSE_SLOW;
    return late && stuck ? diagnosis : NULL;
}

static void fail(struct job *job, const struct rank *culprit)
{
    bool finished = culprit->state == RANK_FINISHED;
    bool restarted = culprit->state == RANK_AWAY && culprit->since_start;
    const char *what =
        restarted ? "has not attached again since fsdpd was restarted" : culprit->message;
    const char *said = job->diagnosis != NULL ? job->diagnosis->verdict : "";
    retry_attempt_failed(job, is_machine_failure(culprit),
                         finished ? culprit->reason : "WORKER_LOST", "rank %d (%s)%s %s%s%s",
                         (int)(culprit - job->attempt->ranks), culprit->worker_id,
                         finished ? ":" : "", what, said[0] != '\0' ? "; diagnosis: " : "", said);
}

/* Ends the attempt or the job according to what its ranks reported. */
static void decide(struct job *job)
{
    const struct attempt *attempt = job->attempt;
    const struct rank *culprit = find_culprit(job);
    const job_message *message = job->message;
    unsigned long long step = (unsigned long long)message->step;
    if (attempt->stop.cancelled) {
        job_set_state(job, JOB_CANCELLED, "CANCELLED", "%s at step %llu", attempt->stop.message,
                      step);
    } else if (is_preempted(job)) {
        preempted(job, verdict_has_paused(job));
    } else if (verdict_has_paused(job) && attempt->stop.vacating) {
        vacated(job);
    } else if (verdict_has_paused(job) && attempt->stop.shut_down) {
        job_set_state(job, JOB_QUEUED, "SHUTDOWN",
                      "fsdpd was stopped; the job continues from step %llu when fsdpd is back",
                      step);
    } else if (verdict_has_paused(job)) {
        job_set_state(job, JOB_PAUSED, "PAUSED", "paused at step %llu: fsdpctl resume %s", step,
                      message->id);
    } else if (is_overdue_pause(job)) {
        bool saved = false;
        log_status(LOG_ERROR, "store_failed",
                   store_has_checkpoint(job->c->store, message->id, &saved));
        job_set_state(job, JOB_PAUSED, "PAUSED",
                      "paused at step %llu without a checkpoint, as it took longer than "
                      "limits.save_seconds (%g): fsdpctl resume %s continues from %s",
                      step, job->c->options.limits.save_ms / 1000.0, message->id,
                      saved ? "the last one" : "the start");
    } else if (attempt->stop.shut_down) {
        retry_attempt_interrupted(job, "SHUTDOWN",
                                  "fsdpd was stopped while the job ran (step %llu)", step);
    } else if (attempt->stop.code != NULL && attempt->stop.machine) {
        retry_attempt_failed(job, true, attempt->stop.code, "%s; it ended at step %llu",
                             attempt->stop.message, step);
    } else if (attempt->stop.code != NULL) {
        job_set_state(job, JOB_FAILED, attempt->stop.code, "%s; it ended at step %llu",
                      attempt->stop.message, step);
    } else if (ended_without_checkpoint(job, culprit)) {
        retry_attempt_failed(job, true, "WORKER_DRAINED", "%s; it ended at step %llu",
                             attempt->stop.message, step);
    } else if (culprit == NULL) {
        retry_attempt_failed(job, true, "ABORTED", "the attempt ended without a result");
    } else if (culprit->lacks) {
        retry_attempt_lacked(job, "rank %d (%s): %s", (int)(culprit - attempt->ranks),
                             culprit->worker_id, culprit->message);
    } else if (culprit->state == RANK_FINISHED && attempt->world == 1) {
        retry_attempt_failed(job, is_machine_failure(culprit), culprit->reason, "%s",
                             culprit->message);
    } else {
        fail(job, culprit);
    }
}

/* Whether it ends because a user requested that, and not because of something else that
 * happened. */
static bool is_requested(const struct job *job)
{
    const struct store_stop *stop = &job->attempt->stop;
    return stop->cancelled || verdict_has_paused(job) || is_overdue_pause(job) ||
           is_preempted(job) || (stop->vacating && stop->machine) ||
           ended_without_checkpoint(job, find_culprit(job));
}

void verdict_give(struct job *job)
{
    struct attempt *attempt = job->attempt;
    struct coordinator *c = job->c;
    const char *actor = c->actor;
    c->actor = is_requested(job) ? attempt->stop.by : NULL;
    job->diagnosis = is_requested(job) ? NULL : find_diagnosis(job);
    elastic_note_end(job);
    handover_end(job,
                 verdict_has_paused(job) && attempt->stop.vacating && !attempt->stop.preempted);
    decide(job);
    job->diagnosis = NULL;
    c->actor = actor;
}
