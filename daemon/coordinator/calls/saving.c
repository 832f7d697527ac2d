/* Jobs that are SAVING; see calls.h. */
#include "coordinator/calls/calls.h"

#include <string.h>

#include "coordinator/calls/pulls.h"
#include "coordinator/jobs/attempt.h"

static const char saving[] = "SAVING";

static bool is_shown(const struct job *job)
{
    return strcmp(attempt_reason_code(job), saving) == 0;
}

/* Sets the reason once: attempts to save, every few seconds, must not fill the history. */
void saving_failed(struct job *job, enum saving what, const char *why)
{
    struct attempt *attempt = job->attempt;
    const char *id = job->message->id;
    attempt->saving |= (unsigned)what;
    if (what == SAVING_STATE_DICT) pulls_wait_for_upload(job);
    pulls_advance(job);
    if (is_shown(job) || !attempt_is_active(job) || attempt->stop.shut_down) return;
    attempt_set_reason(
        job, saving,
        "SAVING: %s. The workers keep the weights and try again until that succeeds; "
        "fsdpctl pull %s takes them as soon as the ranks can send them, fsdpctl cancel %s gives "
        "them up",
        why, id, id);
}

void saving_done(struct job *job, enum saving what)
{
    struct attempt *attempt = job->attempt;
    if ((attempt->saving & (unsigned)what) == 0) return;
    attempt->saving &= ~(unsigned)what;
    if (attempt->saving == 0 && is_shown(job))
        attempt_set_reason(job, "RUNNING", "saved; the workers end");
    pulls_advance(job);
}

static bool is_begun(const struct job *job)
{
    return job->attempt != NULL && job->attempt->saving != 0;
}

status_t saving_refuse(const struct job *job)
{
    if (!is_begun(job)) return NULL;
    return status_with(status_new(STATUS_FAILED_PRECONDITION,
                                  "job %s has done all its steps and is being saved: %s",
                                  job->message->id, job->message->reason->message),
                       (struct status_details){.reason = "JOB_IS_BEING_SAVED",
                                               .subject = job->message->id});
}
