/* Steps that do not advance; see diagnoses.h. */
#include "coordinator/jobs/diagnoses.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"

enum { USUAL_STEPS = 10, HEARTBEATS = 5, FIRST_HEARTBEATS = 60, SILENT_HEARTBEATS = 3 };

static const char stalled[] = "STALLED";

static void end(struct job *job);

/* Whether the rank is at another batch of an evaluation than in its last heartbeat. */
static bool evaluates_on(const struct rank *rank, const Fsdpd__V1__Heartbeat *heartbeat)
{
    if (!heartbeat->evaluates) return false;
    return !rank->evaluates || heartbeat->evaluated_batch == 0 ||
           heartbeat->evaluated_batch != rank->evaluated_batch;
}

void stalls_heartbeat(struct job *job, struct rank *rank, const Fsdpd__V1__Heartbeat *heartbeat)
{
    rank->step = heartbeat->step;
    bool same =
        heartbeat->waits && rank->collectives_at > 0 && rank->collectives == heartbeat->collectives;
    if (!same) rank->collectives_at = heartbeat->waits ? coordinator_now() : 0;
    rank->collectives = heartbeat->collectives;
    rank->waits = heartbeat->waits;
    rank->own_us = heartbeat->own_us;
    rank->heard_at = coordinator_now();
    /* An evaluation takes as long as many steps, so its batches count as progress. */
    if (evaluates_on(rank, heartbeat)) {
        job->attempt->stall.since = rank->heard_at;
        if (job->attempt->stall.before != NULL) end(job);
    }
    rank->evaluates = heartbeat->evaluates;
    rank->evaluated_batch = heartbeat->evaluated_batch;
}

static bool is_silent(const struct job *job, const struct rank *rank, int64_t now)
{
    return now - rank->heard_at > (int64_t)SILENT_HEARTBEATS * job->c->options.limits.heartbeat_ms;
}

/* Whether the others wait for this rank, as far as that is known: it does not wait for them, or it
 * is a collective behind. */
static bool is_waited_for(const struct job *job, const struct rank *rank, int64_t now)
{
    const struct attempt *attempt = job->attempt;
    uint64_t most = 0, least = UINT64_MAX;
    bool all_wait = true;
    for (int r = 0; r < attempt->world; r++) {
        const struct rank *other = &attempt->ranks[r];
        uint64_t done = other->collectives > 0 ? other->collectives : other->step;
        if (done > most) most = done;
        if (done < least) least = done;
        if (!other->waits || is_silent(job, other, now)) all_wait = false;
    }
    if (is_silent(job, rank, now)) return true;
    bool behind = (rank->collectives > 0 ? rank->collectives : rank->step) < most;
    if (rank->collectives == 0) return behind; /* such ranks do not report whether they wait */
    return all_wait ? behind : !rank->waits;
}

static char *describe(const struct job *job, int64_t now)
{
    const struct attempt *attempt = job->attempt;
    struct buf text = {0};
    int count = 0;
    for (int r = 0; r < attempt->world; r++) {
        const struct rank *rank = &attempt->ranks[r];
        if (!is_waited_for(job, rank, now)) continue;
        buf_printf(&text, "%srank %d (%s)%s", count++ > 0 ? ", " : "waits for ", r, rank->worker_id,
                   is_silent(job, rank, now) ? ", which is silent" : "");
    }
    if (count == 0) buf_add_text(&text, "which rank the others wait for is unknown");
    else if (count == attempt->world && count > 1)
        buf_add_text(&text, ", of which none waits for another");
    return buf_take(&text);
}

static bool evaluates(const struct attempt *attempt)
{
    for (int r = 0; r < attempt->world; r++)
        if (attempt->ranks[r].evaluates) return true;
    return false;
}

static void begin(struct job *job, int64_t now)
{
    struct attempt *attempt = job->attempt;
    char when[32];
    clock_format_wall(clock_wall_ms() - (now - attempt->stall.since), when);
    AUTO_FREE char *ranks = describe(job, now);
    AUTO_FREE char *usual =
        attempt->stall.usual_ms > 0
            ? mem_printf("; a step usually takes %.3g s", attempt->stall.usual_ms / 1000.0)
            : mem_strdup("");
    attempt->stall.before = mem_strdup(job->message->reason->message);
    attempt_set_reason(job, stalled, "%sstep %llu has not advanced since %s: %s%s",
                       evaluates(attempt) ? "the evaluation after " : "",
                       (unsigned long long)job->message->step, when, ranks, usual);
}

static void end(struct job *job)
{
    struct attempt *attempt = job->attempt;
    if (strcmp(attempt_reason_code(job), stalled) == 0)
        attempt_set_reason(job, "RUNNING", "%s", attempt->stall.before);
    free(attempt->stall.before);
    attempt->stall.before = NULL;
}

static int64_t patience_ms(const struct job *job)
{
    const struct attempt *attempt = job->attempt;
    int64_t heartbeat = job->c->options.limits.heartbeat_ms;
    if (attempt->stall.usual_ms <= 0) return FIRST_HEARTBEATS * heartbeat;
    int64_t steps = (int64_t)(USUAL_STEPS * attempt->stall.usual_ms);
    return steps > HEARTBEATS * heartbeat ? steps : HEARTBEATS * heartbeat;
}

/* The first interval includes what came before the first step, so it is not used as a duration. */
static void note_step(struct job *job, int64_t now)
{
    struct stall *stall = &job->attempt->stall;
    uint64_t step = job->message->step;
    if (stall->steps_seen > 0 && step > stall->step) {
        double each = (double)(now - stall->since) / (double)(step - stall->step);
        stall->usual_ms = stall->usual_ms > 0 ? 0.8 * stall->usual_ms + 0.2 * each : each;
    }
    stall->steps_seen++;
    stall->step = step;
    stall->since = stall->step_at = now;
    if (stall->before != NULL) end(job);
}

void stalls_tick(struct job *job, int64_t now)
{
    struct attempt *attempt = job->attempt;
    const job_message *message = job->message;
    if (attempt == NULL || message->state != FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING) return;
    if (attempt->stall.step_at == 0) {
        attempt->stall.step = message->step;
        attempt->stall.since = attempt->stall.step_at = now;
    }
    if (message->step != attempt->stall.step) note_step(job, now);
    bool usual = strcmp(message->reason->code, "RUNNING") == 0;
    if (!usual || attempt->ending || message->step == message->steps) return;
    if (now - attempt->stall.since > patience_ms(job)) begin(job, now);
}

double stalls_usual_ms(const struct job *job)
{
    return job->attempt != NULL ? job->attempt->stall.usual_ms : 0;
}

double stalls_age_seconds(const struct job *job)
{
    const struct attempt *attempt = job->attempt;
    if (attempt == NULL || attempt->stall.step_at == 0) return NAN;
    return (double)(coordinator_now() - attempt->stall.step_at) / 1000.0;
}

double stalls_quiet_seconds(const struct job *job)
{
    const struct attempt *attempt = job->attempt;
    if (attempt == NULL || attempt->stall.step_at == 0)
        return (double)(clock_wall_ms() - message_time_ms(job->message->state_time)) / 1000.0;
    return (double)(coordinator_now() - attempt->stall.since) / 1000.0;
}
