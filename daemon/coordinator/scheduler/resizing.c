/* Elastic jobs that grow and shrink; see resizing.h. */
#include "coordinator/scheduler/resizing.h"

#include <stdlib.h>

#include "base/mem.h"
#include "coordinator/jobs/attempt.h"
#include "coordinator/jobs/checkpoint_place.h"
#include "coordinator/jobs/elastic.h"

/* Whether the attempt trains, and can save what it has for the next one. */
static bool can_change(const struct job *job)
{
    const struct attempt *attempt = job->attempt;
    return elastic_is(job->message) &&
           job->message->state == FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING &&
           attempt_is_active(job) && !attempt->stop.pausing && !attempt->stop.vacating &&
           attempt->saving == 0 && checkpoint_place_exists(job);
}

void resizing_check(struct job *job, struct queue_fleet *fleet)
{
    if (!can_change(job)) return;
    int world = job->attempt->world, wanted = (int)job->message->spec->workers;
    /* A job that cannot save loses steps where it grows: it must not do so again and again. */
    bool may_grow = wanted > world && fleet->waiting == 0 && !elastic_repeats(job);
    int next = elastic_choose(job->message, may_grow ? world + fleet->idle : wanted);
    if (next == 0 || next == world || (next > world && !may_grow)) return;
    if (next > world) fleet->idle -= next - world;
    const char *by = job->elastic.by != NULL ? job->elastic.by : "";
    char *why = mem_printf(by[0] != '\0' ? "resized from %d to %d workers by %s"
                                         : "resized from %d to %d workers%s",
                           world, next, by);
    job->c->clients->resize(job, by, why);
    free(why);
    free(job->elastic.by); /* later changes are not this user's */
    job->elastic.by = NULL;
}
