/* Helpers of the queue's tests; see test_queue_world.h. */
#include "test_queue_world.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Submits `spec`; NULL for a refusal, whose status is in *refused. */
char *queue_submit(struct world *world, const job_spec *spec, status_t *refused)
{
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = (job_spec *)spec;
    void *response = NULL;
    status_t status = world_call(world, &control_submit_job, &request, &response);
    if (refused != NULL) *refused = status;
    else expect_ok(status);
    if (status != NULL) return NULL;
    char *id = mem_strdup(((job_message *)response)->id);
    message_free(response);
    return id;
}

char *queue_submit_priority(struct world *world, uint32_t workers, int priority)
{
    job_spec spec = *world_spec(workers);
    spec.priority = priority;
    return queue_submit(world, &spec, NULL);
}

/* The fake has this job's assignment, and starts it. */
void queue_expect_start(struct world *world, struct fake *fake, int assignments, const char *id)
{
    WAIT(world, fake->assignments == assignments);
    ck_assert_str_eq(fake->assignment->job, id);
    fake_started(fake, 42);
    WAIT(world, world_job_is(world, id, JOB_RUNNING));
}

void queue_end_job(struct world *world, struct fake *fake, const char *id, enum status_code code)
{
    fake_finished(fake, code, code == STATUS_OK ? "" : "it broke");
    WAIT(world, world_job_is(world, id, code == STATUS_OK ? JOB_SUCCEEDED : JOB_FAILED));
}

void queue_expect_position(struct world *world, const char *id, uint32_t position)
{
    job_message *job = world_job(world, id);
    ck_assert_msg(job->queue_position == position, "%s is %u: %s", id, job->queue_position,
                  job->reason->message);
    message_free(job);
}

void queue_expect_why(struct world *world, const char *id, const char *words)
{
    Fsdpd__V1__ExplainJobRequest request = FSDPD__V1__EXPLAIN_JOB_REQUEST__INIT;
    request.id = (char *)id;
    void *response = NULL;
    expect_ok(world_call(world, &control_explain_job, &request, &response));
    const Fsdpd__V1__ExplainJobResponse *explained = response;
    ck_assert_msg(strstr(explained->text, words) != NULL, "%s", explained->text);
    message_free(response);
}
