/* cancel: ends jobs at their next step boundary. */
#include "jobs.h"

int verb_cancel(struct client *client)
{
    /* The response contains the step at which the job ends. */
    return jobs_change(client, "active", &control_cancel_job, NULL, "next");
}
