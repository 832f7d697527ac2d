/* hold and release: whether the daemon may start queued jobs. */
#include "jobs.h"

static status_t call_hold(struct jobs_call *call)
{
    Fsdpd__V1__HoldJobRequest request = FSDPD__V1__HOLD_JOB_REQUEST__INIT;
    request.id = (char *)call->id;
    return session_call(call->session, &control_hold_job, &request.base, false, &call->response);
}

int verb_hold(struct client *client)
{
    return jobs_change(client, "queued", call_hold, NULL);
}

static status_t call_release(struct jobs_call *call)
{
    Fsdpd__V1__ReleaseJobRequest request = FSDPD__V1__RELEASE_JOB_REQUEST__INIT;
    request.id = (char *)call->id;
    return session_call(call->session, &control_release_job, &request.base, false, &call->response);
}

int verb_release(struct client *client)
{
    return jobs_change(client, "queued", call_release, NULL);
}
