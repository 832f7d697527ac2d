/* hold and release: whether the daemon may start queued jobs. */
#include "jobs.h"

int verb_hold(struct client *client)
{
    return jobs_change(client, "queued", &control_hold_job, NULL, NULL);
}

int verb_release(struct client *client)
{
    return jobs_change(client, "queued", &control_release_job, NULL, NULL);
}
