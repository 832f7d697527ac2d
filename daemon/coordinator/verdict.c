/*
 * Verdicts; see verdict.h. When one rank dies, the others often report the broken connection first:
 * the reason must name the one that died.
 */
#include "coordinator/verdict.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/attempt.h"
#include "coordinator/retry.h"

/* How telling a rank's end is; 0: it did not fail. */
static int weight(const struct rank *rank)
{
    if (rank->state == RANK_FINISHED && rank->code == STATUS_OK) return 0;
    if (rank->state == RANK_ASSIGNED || rank->state == RANK_STARTED) return 0;
    bool lost = rank->state == RANK_LOST || rank->state == RANK_AWAY;
    if (lost && !rank->cut_off) return 4;
    bool consequence = rank->code == STATUS_ABORTED || rank->code == STATUS_CANCELLED ||
                       rank->code == STATUS_UNAVAILABLE || rank->code == STATUS_DEADLINE_EXCEEDED;
    if (!lost && !consequence) return 3;
    return lost ? 1 : 2;
}

static const struct rank *find_culprit(const struct job *job)
{
    const struct rank *culprit = NULL;
    for (int r = 0; r < job->world; r++) {
        const struct rank *rank = &job->ranks[r];
        int mine = weight(rank), best = culprit != NULL ? weight(culprit) : 0;
        if (mine > best || (mine > 0 && mine == best && rank->failure < culprit->failure))
            culprit = rank;
    }
    return culprit;
}

bool verdict_has_paused(const struct job *job)
{
    for (int r = 0; r < job->world; r++) {
        const struct rank *rank = &job->ranks[r];
        if (rank->state == RANK_FINISHED && rank->reason != NULL &&
            strcmp(rank->reason, "PAUSED") == 0)
            return true;
    }
    return false;
}

/* Whether what it runs on is to blame, rather than the job. */
static bool is_machine_failure(const struct rank *culprit)
{
    int telling = weight(culprit);
    return telling == 4 || telling == 1 || (telling == 2 && culprit->code != STATUS_CANCELLED);
}

/* Ends the attempt, or the job, by what its ranks said. The job may be freed. */
static void decide(struct job *job)
{
    const struct rank *culprit = find_culprit(job);
    const job_message *message = job->message;
    unsigned long long step = (unsigned long long)message->step;
    if (job->stop.cancelled) {
        job_set_state(job, JOB_CANCELLED, "CANCELLED", "%s at step %llu", job->stop.message, step);
    } else if (verdict_has_paused(job) && job->stop.vacating) {
        job_set_state(job, JOB_QUEUED, "WORKER_DRAINED", "%s; goes on from step %llu",
                      job->stop.message, step);
    } else if (verdict_has_paused(job) && job->stop.shut_down) {
        job_set_state(job, JOB_QUEUED, "SHUTDOWN",
                      "fsdpd was stopped; the job goes on from step %llu when it is back", step);
    } else if (verdict_has_paused(job)) {
        job_set_state(job, JOB_PAUSED, "PAUSED", "paused at step %llu: fsdpctl resume %s", step,
                      message->id);
    } else if (job->stop.shut_down) {
        retry_attempt_interrupted(job, "SHUTDOWN",
                                  "fsdpd was stopped while the job ran (step %llu)", step);
    } else if (job->stop.code != NULL && job->stop.machine) {
        retry_attempt_failed(job, true, job->stop.code, "%s; it ended at step %llu",
                             job->stop.message, step);
    } else if (job->stop.code != NULL) {
        job_set_state(job, JOB_FAILED, job->stop.code, "%s; it ended at step %llu",
                      job->stop.message, step);
    } else if (culprit == NULL) {
        retry_attempt_failed(job, true, "ABORTED", "the attempt ended without a result");
    } else if (culprit->state == RANK_FINISHED && job->world == 1) {
        retry_attempt_failed(job, is_machine_failure(culprit), culprit->reason, "%s",
                             culprit->message);
    } else {
        bool finished = culprit->state == RANK_FINISHED;
        retry_attempt_failed(job, is_machine_failure(culprit),
                             finished ? culprit->reason : "WORKER_LOST",
                             finished ? "rank %d (%s): %s" : "rank %d (%s) %s",
                             (int)(culprit - job->ranks), culprit->worker_id, culprit->message);
    }
}

/* Whether it ends because a user wanted that, and not for what else happened meanwhile. */
static bool is_wish(const struct job *job)
{
    const struct store_stop *stop = &job->stop;
    return stop->cancelled || verdict_has_paused(job) || (stop->vacating && stop->machine);
}

void verdict_give(struct job *job)
{
    struct coordinator *c = job->c;
    const char *actor = c->actor;
    char *by = mem_strdup(is_wish(job) && job->stop.by != NULL ? job->stop.by : "");
    c->actor = by;
    decide(job);
    c->actor = actor;
    free(by);
}
