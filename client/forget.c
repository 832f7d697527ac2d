/* forget: removes jobs that are over and all their data. */
#include "jobs.h"

int verb_forget(struct client *client)
{
    return jobs_change(client, "over", &control_forget_job, NULL, NULL);
}
