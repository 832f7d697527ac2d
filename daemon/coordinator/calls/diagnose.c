/* DiagnoseJob; see calls.h. */
#include "coordinator/calls/calls.h"

#include "base/log.h"
#include "coordinator/calls/access.h"
#include "coordinator/calls/job_call.h"
#include "coordinator/jobs/diagnoses.h"

struct diagnose_call {
    struct job_call base;
    bool stacks;
};

static void on_attempt_over(struct job_call *own, struct job *job)
{
    job_call_finish(own, job_call_error_of_end(job, "it was diagnosed"));
}

static const struct job_call_type diagnose_calls = {.size = sizeof(struct diagnose_call),
                                                    .attempt_over = on_attempt_over};

static status_t check(struct coordinator *c, const char *id)
{
    TRY(job_call_check_id(c, id));
    const struct job *job = jobs_find(c, id);
    if (job != NULL && job->attempt != NULL) return NULL;
    return status_with(status_new(STATUS_FAILED_PRECONDITION,
                                  "job %s does not run; fsdpctl history %s has the diagnosis of an "
                                  "attempt that a deadline ended",
                                  id, id),
                       (struct status_details){.reason = "JOB_IS_NOT_RUNNING", .subject = id});
}

void diagnose_start(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__DiagnoseJobRequest *request = (const void *)message;
    status_t status = check(c, request->id);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    struct diagnose_call *own = job_call_begin(&diagnose_calls, call, c, request->id);
    own->stacks = !request->without_stacks;
    log_event(LOG_INFO, "diagnosis_ordered", "job=%s by=%s", request->id, access_user(call));
    diagnoses_ask(own->base.job, own->stacks);
}

void diagnose_done(struct job *job)
{
    const struct diagnosing *done = &job->attempt->diagnosing;
    bool again = false;
    struct diagnose_call *own = NULL;
    while ((own = job_calls_next(job->c, &diagnose_calls, job, own)) != NULL) {
        if (own->stacks && !done->stacks) again = true; /* it came while another was under way */
        else job_call_reply(&own->base, &done->kept->base);
    }
    if (again) diagnoses_ask(job, true);
}
