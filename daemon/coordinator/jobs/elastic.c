/* Elastic jobs; see elastic.h. */
#include "coordinator/jobs/elastic.h"

#include <string.h>

#include "coordinator/jobs/attempt.h"
#include "spec/spec.h"

bool elastic_is(const job_message *job)
{
    return job->spec->elastic != NULL && job->spec->elastic->max_workers > 0;
}

uint32_t elastic_wanted(const job_message *job)
{
    struct spec_settings with;
    return spec_settings(job->spec, job->chosen, &with)->workers;
}

static const Fsdpd__V1__PlanWorld *find_world(const job_message *job, uint32_t workers)
{
    for (size_t i = 0; job->plan != NULL && i < job->plan->n_worlds; i++)
        if (job->plan->worlds[i]->workers == workers) return job->plan->worlds[i];
    return NULL;
}

/* Whether its plan fits; one that was not made is refused where it is planned. */
static bool fits(const job_message *job, uint32_t workers)
{
    const Fsdpd__V1__PlanWorld *world = find_world(job, workers);
    return world == NULL || world->refused[0] == '\0';
}

status_t elastic_check(const job_message *job, uint32_t workers)
{
    const Fsdpd__V1__ElasticSpec *elastic = job->spec->elastic;
    if (!elastic_is(job))
        return status_with(status_new(STATUS_FAILED_PRECONDITION,
                                      "job %s is not elastic: its job file has no "
                                      "elastic.max_workers",
                                      job->id),
                           (struct status_details){.reason = "JOB_IS_NOT_ELASTIC",
                                                   .subject = job->id});
    if (workers < elastic->min_workers || workers > elastic->max_workers)
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "workers: expected %u to %u, found %u", elastic->min_workers,
                                      elastic->max_workers, workers),
                           (struct status_details){.field = "workers"});
    if (fits(job, workers)) return NULL;
    return status_with(status_new(STATUS_INVALID_ARGUMENT, "workers: %u: %s", workers,
                                  find_world(job, workers)->refused),
                       (struct status_details){.field = "workers"});
}

bool elastic_fits(const job_message *job, int workers)
{
    status_t status = elastic_check(job, (uint32_t)workers);
    bool refused = status != NULL;
    status_free(status);
    return !refused;
}

int elastic_choose(const job_message *job, int available)
{
    int wanted = (int)elastic_wanted(job);
    if (!elastic_is(job)) return available >= wanted ? wanted : 0;
    int least = (int)job->spec->elastic->min_workers;
    for (int workers = available < wanted ? available : wanted; workers >= least; workers--)
        if (fits(job, (uint32_t)workers)) return workers;
    return 0;
}

int elastic_least(const job_message *job, int expected)
{
    int wanted = (int)elastic_wanted(job);
    if (!elastic_is(job) || (job->attempt == 0 && expected >= wanted)) return wanted;
    for (int workers = (int)job->spec->elastic->min_workers; workers < wanted; workers++)
        if (fits(job, (uint32_t)workers)) return workers;
    return wanted;
}

bool elastic_is_redundant(const job_message *job)
{
    return elastic_is(job) &&
           job->spec->elastic->redundancy > FSDPD__V1__REDUNDANCY__REDUNDANCY_NONE;
}

void elastic_note_end(struct job *job)
{
    if (!elastic_is(job->message) || job->attempt == NULL) return;
    bool redundant = elastic_is_redundant(job->message);
    if (redundant)
        job->elastic.reserved_until = coordinator_now() + job->c->options.limits.reattach_ms;
    if (!job->attempt->begun) return;
    if (redundant && job->message->state == FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING)
        job->elastic.kept_since = job->message->attempt;
    job->elastic.world = job->attempt->world;
    job->elastic.step = job->message->step;
    job->elastic.ended_at = coordinator_now();
}

void elastic_attempt_over(struct job *job)
{
    int state = (int)job->message->state;
    if (state == JOB_QUEUED || state == JOB_STARTING || state == JOB_RUNNING) return;
    elastic_let_go(job);
}

void elastic_let_go(struct job *job)
{
    if (!elastic_is_redundant(job->message)) return;
    job->elastic.kept_since = 0;
    job->elastic.restarted = false;
    job->elastic.reserved_until = 0;
    for (int i = 0; i < job->c->worker_count; i++)
        worker_release(job->c->workers[i], job->message->id, 0);
}

void elastic_describe(const struct job *job, uint64_t resumed_step, struct buf *out)
{
    const struct job_elastic *before = &job->elastic;
    if (before->world == 0) return; /* the first attempt, or fsdpd was restarted */
    uint64_t again = before->step > resumed_step ? before->step - resumed_step : 0;
    buf_printf(out, "; %d worker%s before, %llu step%s lost, %.3g s without training",
               before->world, before->world == 1 ? "" : "s", (unsigned long long)again,
               again == 1 ? "" : "s", (double)(coordinator_now() - before->ended_at) / 1000);
}

bool elastic_repeats(const struct job *job)
{
    return job->elastic.lost_before && job->message->step <= job->elastic.lost_step;
}

bool elastic_continue(struct job *job, const char *why)
{
    if (!elastic_is(job->message) || job->attempt == NULL || !job->attempt->begun) return false;
    if (elastic_repeats(job)) return false;
    job->elastic.lost_before = true;
    job->elastic.lost_step = job->message->step;
    job->elastic.between = true;
    job_set_state(job, JOB_QUEUED, "RESIZING",
                  "attempt %u ended at step %llu (%s): the job continues with the workers that are "
                  "left",
                  job->message->attempt, (unsigned long long)job->message->step, why);
    return true;
}
