/* Slow ranks; see diagnoses.h. */
#include "coordinator/jobs/diagnoses.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { STEPS = 50, HEARTBEATS = 5 };

static const double RECOVERED = 1.3;

static void begin(struct attempt *attempt)
{
    attempt->paces_at = coordinator_now();
    for (int r = 0; r < attempt->world; r++) {
        attempt->paces[r].from_us = attempt->ranks[r].own_us;
        attempt->paces[r].from_step = attempt->ranks[r].step;
    }
}

static bool is_measured(const struct job *job)
{
    const struct attempt *attempt = job->attempt;
    if (coordinator_now() - attempt->paces_at <
        (int64_t)HEARTBEATS * job->c->options.limits.heartbeat_ms)
        return false;
    for (int r = 0; r < attempt->world; r++)
        if (attempt->ranks[r].step < attempt->paces[r].from_step + STEPS) return false;
    return true;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double measure(struct attempt *attempt)
{
    AUTO_FREE double *times = mem_alloc_array((size_t)attempt->world, sizeof *times);
    for (int r = 0; r < attempt->world; r++) {
        const struct rank *rank = &attempt->ranks[r];
        struct rank_pace *pace = &attempt->paces[r];
        double us = rank->own_us > pace->from_us ? (double)(rank->own_us - pace->from_us) : 0;
        times[r] = pace->step_seconds = us * 1e-6 / (double)(rank->step - pace->from_step);
    }
    qsort(times, (size_t)attempt->world, sizeof *times, compare);
    return times[(attempt->world - 1) / 2];
}

/* Whether that changed. */
static bool judge(struct rank_pace *pace, double median)
{
    bool before = pace->slow;
    pace->slowdown = median > 0 ? pace->step_seconds / median : 0;
    pace->slow = pace->slowdown >= (before ? RECOVERED : BLAME_SLOWDOWN);
    return pace->slow != before;
}

static void note(struct job *job, int number)
{
    const struct rank_pace *pace = &job->attempt->paces[number];
    const char *worker = job->attempt->ranks[number].worker_id;
    if (pace->slow)
        job_note_change(job, true, "SLOW_RANK",
                        "rank %d (%s) takes %.3g s for its own part of a step, %.2f times as long "
                        "as the median rank",
                        number, worker, pace->step_seconds, pace->slowdown);
    else
        job_note_change(job, true, "SLOW_RANK_RECOVERED",
                        "rank %d (%s) takes %.3g s for its own part of a step again, %.2f times "
                        "the median rank's time",
                        number, worker, pace->step_seconds, pace->slowdown);
}

static void show(struct job *job)
{
    const struct attempt *attempt = job->attempt;
    job_message *message = job->message;
    job_forget_slow_ranks(message);
    message->slow_ranks = mem_alloc_array((size_t)attempt->world, sizeof *message->slow_ranks);
    for (int r = 0; r < attempt->world; r++) {
        if (!attempt->paces[r].slow) continue;
        Fsdpd__V1__SlowRank *slow = mem_alloc(sizeof *slow);
        fsdpd__v1__slow_rank__init(slow);
        slow->rank = (uint32_t)r;
        slow->worker = mem_strdup(attempt->ranks[r].worker_id);
        slow->slowdown = attempt->paces[r].slowdown;
        slow->own_step_seconds = attempt->paces[r].step_seconds;
        message->slow_ranks[message->n_slow_ranks++] = slow;
    }
}

void stragglers_heartbeat(struct job *job)
{
    struct attempt *attempt = job->attempt;
    if (attempt->world < 2) return;
    if (attempt->paces == NULL) {
        for (int r = 0; r < attempt->world; r++)
            if (attempt->ranks[r].own_us == 0) return;
        attempt->paces = mem_alloc_array((size_t)attempt->world, sizeof *attempt->paces);
        begin(attempt);
        return;
    }
    if (!is_measured(job)) return;
    double median = measure(attempt);
    AUTO_FREE bool *changed = mem_alloc_array((size_t)attempt->world, sizeof *changed);
    for (int r = 0; r < attempt->world; r++) changed[r] = judge(&attempt->paces[r], median);
    show(job);
    for (int r = 0; r < attempt->world; r++)
        if (changed[r]) note(job, r);
    begin(attempt);
}
