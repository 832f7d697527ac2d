/* hold and release: whether a queued job may be started. */
#include "client.h"

int verb_hold(struct client *client)
{
    Fsdpd__V1__HoldJobRequest request = FSDPD__V1__HOLD_JOB_REQUEST__INIT;
    request.id = (char *)client->options.arguments[0];
    return client_change_job(client, &control_hold_job, &request.base, NULL);
}

int verb_release(struct client *client)
{
    Fsdpd__V1__ReleaseJobRequest request = FSDPD__V1__RELEASE_JOB_REQUEST__INIT;
    request.id = (char *)client->options.arguments[0];
    return client_change_job(client, &control_release_job, &request.base, NULL);
}
