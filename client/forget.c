/* forget: removes jobs that are over and all their data. */
#include "jobs.h"

static status_t call_forget(struct jobs_call *call)
{
    Fsdpd__V1__ForgetJobRequest request = FSDPD__V1__FORGET_JOB_REQUEST__INIT;
    request.id = (char *)call->id;
    return session_call(call->session, &control_forget_job, &request.base, false, &call->response);
}

int verb_forget(struct client *client)
{
    return jobs_change(client, "over", call_forget, NULL);
}
