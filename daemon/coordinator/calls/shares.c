/* The share of other users; see calls.h. */
#include "coordinator/calls/calls.h"

#include "coordinator/calls/access.h"
#include "coordinator/jobs/diagnoses.h"

/* Other users get one in every PART milliseconds. Each use counts as at least LEAST_MS plus a usual
 * step, even a pull whose client disconnects at once. */
enum { PART = 10, LEAST_MS = 100 };

/* Samples may be that far ahead of their share. */
enum { SAMPLE_BURST_MS = 1000 };

bool share_is_others(const struct rpc_call *call, const job_message *job)
{
    status_t status = access_check(rpc_call_peer(call), job, "pull");
    bool others = status != NULL;
    status_free(status);
    return others;
}

status_t share_check(const struct job *job)
{
    int64_t left = job->share_at - coordinator_now();
    if (!job->share_taken && left <= 0) return NULL;
    if (job->share_taken)
        return status_new(STATUS_RESOURCE_EXHAUSTED,
                          "job %s belongs to %s: another user pulls or traces it already",
                          job->message->id, job->message->owner);
    return status_new(STATUS_RESOURCE_EXHAUSTED,
                      "job %s belongs to %s: others may pull and trace it for a tenth of the time, "
                      "again in %.1f s",
                      job->message->id, job->message->owner, (double)left / 1000.0);
}

void share_take(struct job *job)
{
    job->share_taken = true;
}

void share_give_back(struct job *job, int64_t busy_ms)
{
    int64_t least = LEAST_MS + (int64_t)stalls_usual_ms(job);
    if (busy_ms < least) busy_ms = least;
    job->share_taken = false;
    job->share_at = coordinator_now() + (PART - 1) * busy_ms;
}

void share_add_sample(struct job *job, int64_t busy_ms)
{
    int64_t began = coordinator_now() - busy_ms;
    if (job->sample_due < began) job->sample_due = began;
    job->sample_due += busy_ms * 100 / job->c->options.limits.sample_share;
}

int64_t share_sample_left_ms(const struct job *job)
{
    int64_t left = job->sample_due - SAMPLE_BURST_MS - coordinator_now();
    return left > 0 ? left : 0;
}
