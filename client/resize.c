/* resize: how many workers an elastic job has. */
#include "client.h"
#include "spec/spec.h"

int verb_resize(struct client *client)
{
    Fsdpd__V1__ResizeJobRequest request = FSDPD__V1__RESIZE_JOB_REQUEST__INIT;
    int64_t workers;
    status_t status = option_integer(client->options.arguments[1], 1, SPEC_WORKERS_MAX, &workers);
    if (status != NULL) return output_usage_error(status_wrap(status, "resize"));
    request.id = (char *)client->options.arguments[0];
    request.workers = (uint32_t)workers;
    return client_change_job(client, &control_resize_job, &request.base, NULL);
}
