/* Jobs without a plan; see queue.h. */
#include "coordinator/scheduler/queue.h"

#include "coordinator/scheduler/admission.h"
#include "coordinator/workers/planner.h"
#include "spec/spec.h"

bool unplanned_is(const struct job *job)
{
    return job->message->plan == NULL || job->message->plan->offline;
}

static void take_plan(struct job *job, const job_spec *spec, const Fsdpd__V1__PlanResult *result)
{
    job_message *message = job->message;
    message_set_text(&message->spec->device, spec->device); /* which the submission left open */
    planner_complete(message->spec->model, spec->model);
    job_set_plan(job, planner_chosen(spec, result->plan), result->plan);
    message->steps = result->steps;
    job_set_reason(job, "QUEUED", "planned; waiting for its turn");
    queue_changed(job->c);
}

static void on_planned(void *user, status_t status, const job_spec *spec,
                       const Fsdpd__V1__PlanResult *result)
{
    struct job *job = user;
    struct coordinator *c = job->c;
    job->planning = false;
    if (status == NULL) status = room_check(c, spec, result->plan, result->steps);
    if (status == NULL) take_plan(job, spec, result);
    else if (!c->draining && planner_has_worker(c, spec->device))
        job_set_state(job, JOB_FAILED, status_code_name(status_code(status)), "%s",
                      status_message(status));
    status_free(status); /* the job waits for the next worker */
}

void unplanned_place(struct coordinator *c)
{
    if (c->draining || !c->queue_changed) return;
    for (int i = 0; i < c->job_count; i++) {
        struct job *job = c->jobs[i];
        const job_message *message = job->message;
        bool waits = message->state == FSDPD__V1__JOB_STATE__JOB_STATE_QUEUED &&
                     unplanned_is(job) && !job->planning && !job->unsaved && job->array == NULL;
        if (!waits || !planner_has_worker(c, message->spec->device)) continue;
        struct spec_settings with;
        status_t status = planner_request(c, spec_settings(message->spec, message->chosen, &with),
                                          message->owner, PLANNER_WORKER, on_planned, job);
        job->planning = status == NULL;
        status_free(status); /* too many at once: at the next change */
    }
}

void unplanned_job_over(struct job *job)
{
    if (job->planning) planner_forget(job->c, job);
}
