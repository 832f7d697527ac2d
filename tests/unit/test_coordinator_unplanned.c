/* coordinator: jobs that are submitted while no worker is attached. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/jobs/jobs.h"
#include "test_coordinator_world.h"
#include "tests/testing.h"

static struct world world;

static void set_up(void)
{
    world_init(&world);
    world_start(&world);
}

static void tear_down(void)
{
    world_deinit(&world);
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

static bool is_planned(const char *id)
{
    job_message *job = world_job(&world, id);
    bool planned = job->plan != NULL;
    message_free(job);
    return planned;
}

/* It is queued, says why, survives a restart, and is planned and started when workers come. */
TEST(a_job_waits_for_a_worker_to_plan_it)
{
    char *id = world_submit(&world, 2);
    world_check_reason(&world, id, JOB_QUEUED, "WAITING_FOR_WORKERS",
                       "no worker is attached; it is planned when one comes");
    ck_assert(!is_planned(id));
    job_message *job = world_job(&world, id);
    ck_assert_uint_eq(job->steps, 0);
    ck_assert_uint_eq(job->queue_position, 0);
    message_free(job);
    world_stop(&world);
    world_start(&world);
    ck_assert(!is_planned(id));

    struct fake fakes[2];
    fake_attach(&world, &fakes[0], "host/cpu:0", 1000);
    WAIT(&world, is_planned(id));
    job = world_job(&world, id);
    ck_assert_uint_eq(job->steps, FAKE_STEPS);
    ck_assert_uint_eq(job->n_units, 1);
    ck_assert_str_eq(job->spec->device, "cpu");
    ck_assert_int_eq(fakes[0].plans, 1);
    message_free(job);
    world_check_reason(&world, id, JOB_QUEUED, "WAITING_FOR_WORKERS", "needs 2 cpu workers");
    /* The plan is in the store. */
    fake_deinit(&fakes[0]);
    world_stop(&world);
    world_start(&world);
    ck_assert(is_planned(id));
    fake_attach(&world, &fakes[0], "host/cpu:0", 1000);
    fake_attach(&world, &fakes[1], "host/cpu:1", 1001);
    WAIT(&world, fakes[0].assignment != NULL && fakes[1].assignment != NULL);
    ck_assert_int_eq(fakes[0].plans + fakes[1].plans, 0);
    fake_deinit(&fakes[0]);
    fake_deinit(&fakes[1]);
    free(id);
}

/* What its submission would have been refused with ends it. */
TEST(a_job_that_cannot_be_planned_fails)
{
    char *id = world_submit(&world, 1);
    struct fake fake;
    world.plan_code = STATUS_INVALID_ARGUMENT;
    fake_attach(&world, &fake, "host/cpu:0", 1000);
    WAIT(&world, world_job_is(&world, id, JOB_FAILED));
    world_check_reason(&world, id, JOB_FAILED, "INVALID_ARGUMENT", "fc1: 9216 expected");
    fake_deinit(&fake);
    free(id);
}

/* A worker that leaves while it plans is no reason to give up, nor is one of another kind. */
TEST(a_job_waits_for_the_next_worker)
{
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(1);
    request.spec->device = (char *)"cuda";
    void *response = NULL;
    expect_ok(world_call(&world, &control_submit_job, &request, &response));
    char *id = mem_strdup(((job_message *)response)->id);
    message_free(response);
    request.spec->device = (char *)"";
    struct fake cpu, cuda;
    fake_attach(&world, &cpu, "host/cpu:0", 1000);
    world_run(&world, 500); /* more than limits.plan_wait_seconds */
    world_check_reason(&world, id, JOB_QUEUED, "WAITING_FOR_WORKERS", "no cuda worker is attached");
    ck_assert_int_eq(cpu.plans, 0);
    fake_attach_device(&world, &cuda, "host/cuda:0", 1001, "cuda:0", false);
    WAIT(&world, cuda.assignment != NULL);
    fake_deinit(&cpu);
    fake_deinit(&cuda);
    free(id);
}

TEST(a_cancelled_job_is_not_planned)
{
    char *id = world_submit(&world, 1);
    expect_ok(world_cancel(&world, id));
    ck_assert(world_job_is(&world, id, JOB_CANCELLED));
    struct fake fake;
    fake_attach(&world, &fake, "host/cpu:0", 1000);
    char *next = world_submit(&world, 1);
    WAIT(&world, fake.assignment != NULL);
    ck_assert_int_eq(fake.plans, 1); /* that of the next job */
    fake_deinit(&fake);
    free(next);
    free(id);
}
