/* cancel: ends a job at its next step boundary. */
#include "client.h"

int verb_cancel(struct client *client)
{
    Fsdpd__V1__CancelJobRequest request = FSDPD__V1__CANCEL_JOB_REQUEST__INIT;
    request.id = (char *)client->options.arguments[0];
    /* The answer says when it ends. */
    return client_change_job(client, &control_cancel_job, &request.base, "next");
}
