/* pause: a checkpoint, and the workers are free; resume: on from there. */
#include "client.h"

int verb_pause(struct client *client)
{
    Fsdpd__V1__PauseJobRequest request = FSDPD__V1__PAUSE_JOB_REQUEST__INIT;
    request.id = (char *)client->options.arguments[0];
    return client_change_job(client, &control_pause_job, &request.base, NULL);
}

int verb_resume(struct client *client)
{
    Fsdpd__V1__ResumeJobRequest request = FSDPD__V1__RESUME_JOB_REQUEST__INIT;
    request.id = (char *)client->options.arguments[0];
    return client_change_job(client, &control_resume_job, &request.base, NULL);
}
