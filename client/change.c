/* Verbs that change a job and have no options of their own: cancel, forget, hold, release, priority,
 * resize. */
#include "client.h"
#include "jobs.h"
#include "spec/queue.h"
#include "spec/spec.h"

/* Ends jobs at their next step boundary. */
int verb_cancel(struct client *client)
{
    /* The response contains the step at which the job ends. */
    return jobs_change(client, "active", &control_cancel_job, NULL, "next");
}

/* Removes jobs that are over and all their data. */
int verb_forget(struct client *client)
{
    return jobs_change(client, "over", &control_forget_job, NULL, NULL);
}

/* Whether the daemon may start queued jobs. */
int verb_hold(struct client *client)
{
    return jobs_change(client, "queued", &control_hold_job, NULL, NULL);
}

int verb_release(struct client *client)
{
    return jobs_change(client, "queued", &control_release_job, NULL, NULL);
}

/* Which queued job starts first. */
int verb_priority(struct client *client)
{
    Fsdpd__V1__SetPriorityRequest request = FSDPD__V1__SET_PRIORITY_REQUEST__INIT;
    int64_t priority;
    status_t status = option_integer(client->options.arguments[1], -SPEC_PRIORITY_MAX,
                                     SPEC_PRIORITY_MAX, &priority);
    if (status != NULL) return output_usage_error(status_wrap(status, "priority"));
    request.id = (char *)client->options.arguments[0];
    request.priority = (int32_t)priority;
    return client_change_job(client, &control_set_priority, &request.base, NULL);
}

/* How many workers an elastic job has. */
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
