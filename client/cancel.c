/* cancel: ends jobs at their next step boundary. */
#include "jobs.h"

static status_t call_cancel(struct jobs_call *call)
{
    Fsdpd__V1__CancelJobRequest request = FSDPD__V1__CANCEL_JOB_REQUEST__INIT;
    request.id = (char *)call->id;
    return session_call(call->session, &control_cancel_job, &request.base, false, &call->response);
}

int verb_cancel(struct client *client)
{
    /* The response contains the step at which the job ends. */
    return jobs_change(client, "active", call_cancel, "next");
}
