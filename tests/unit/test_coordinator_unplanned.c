/* coordinator: jobs that are submitted while no worker is attached. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/file.h"
#include "base/mem.h"
#include "coordinator/jobs/jobs.h"
#include "fsdpd/v1/worker.pb-c.h"
#include "proto/message.h"
#include "test_coordinator_world.h"
#include "tests/testing.h"

static struct world world;

static void set_up(void)
{
    signal(SIGPIPE, SIG_IGN); /* as fsdpd does: the script may end before it has read its order */
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

/* ---- planned for known devices: a script stands for the process that plans ---- */

static void write_text(const char *name, const void *bytes, size_t size, mode_t mode)
{
    char *path = world_path(&world, name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, size, file), size);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(chmod(path, mode), 0);
    free(path);
}

/* Lets the coordinator of this world plan with `script`, which finds its files beside itself. */
static void restart_with(const char *script, const char *profile)
{
    static char program[128];
    char *text =
        mem_printf("#!/bin/sh\ncd '%s'\necho \"$@\" > arguments\n%s\n", world.directory, script);
    write_text("planner", text, strlen(text), 0700);
    free(text);
    snprintf(program, sizeof program, "%s/planner", world.directory);
    world_stop(&world);
    world.options.program = program;
    world.options.profile = profile;
    world.options.profile_kind = "cuda";
    world.options.limits.plan_wait_ms = 3600 * 1000; /* nothing waits for that */
    world_start(&world);
}

static void write_result(enum status_code code, const char *message)
{
    Fsdpd__V1__Plan plan = FSDPD__V1__PLAN__INIT;
    plan.offline = true;
    plan.device = (char *)"h100";
    Fsdpd__V1__PlanResult result = FSDPD__V1__PLAN_RESULT__INIT;
    result.code = code;
    result.message = (char *)message;
    result.steps = 7;
    if (code == STATUS_OK) result.plan = &plan;
    size_t size;
    uint8_t *bytes = message_pack(&result, &size);
    write_text("result", bytes, size, 0600);
    free(bytes);
}

/* The arguments that the script was started with. */
static void check_arguments(const char *words)
{
    char *path = world_path(&world, "arguments");
    struct buf text = {0};
    expect_ok(file_read(path, 4096, &text));
    ck_assert_msg(strstr(buf_text(&text), words) != NULL, "%s", buf_text(&text));
    buf_deinit(&text);
    free(path);
}

static status_t submit(void)
{
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(1);
    return world_call(&world, &control_submit_job, &request, NULL);
}

TEST(a_job_is_planned_for_known_devices_until_a_worker_comes)
{
    write_result(STATUS_OK, "");
    restart_with("cat > order; cat result", "h100");
    char *id = world_submit(&world, 1);
    world_check_reason(
        &world, id, JOB_QUEUED, "WAITING_FOR_WORKERS",
        "planned for h100; no worker is attached; it is planned again when one comes");
    check_arguments("plan --order --profile h100");
    world_stop(&world);
    world_start(&world);
    job_message *job = world_job(&world, id);
    ck_assert(job->plan->offline);
    ck_assert_uint_eq(job->steps, 7);
    ck_assert_str_eq(job->spec->device, "");
    message_free(job);

    struct fake fake;
    fake_attach(&world, &fake, "host/cpu:0", 1000);
    WAIT(&world, fake.assignment != NULL);
    job = world_job(&world, id);
    ck_assert(!job->plan->offline);
    ck_assert_uint_eq(job->steps, FAKE_STEPS);
    message_free(job);
    fake_deinit(&fake);
    free(id);
}

/* Of a worker that only planned, and is gone. */
TEST(a_job_is_planned_for_the_device_of_the_last_plan)
{
    struct fake fake;
    Fsdpd__V1__PlanJobRequest request = FSDPD__V1__PLAN_JOB_REQUEST__INIT;
    job_spec spec = *world_spec(1);
    write_result(STATUS_OK, "");
    restart_with("cat > order; cat result", NULL);
    fake_attach(&world, &fake, "host/cpu:0", 1000);
    spec.device = (char *)"cpu";
    request.spec = &spec;
    expect_ok(world_call(&world, &control_plan_job, &request, NULL));
    fake_detach(&fake);
    expect_ok(submit());
    AUTO_FREE char *words =
        mem_printf("plan --order --profile cpu --memory %" PRIu64, (uint64_t)FAKE_MEMORY);
    check_arguments(words);
    fake_deinit(&fake);
}

TEST(a_job_that_does_not_fit_known_devices_is_refused)
{
    write_result(STATUS_RESOURCE_EXHAUSTED, "needs 90 GB");
    restart_with("cat > order; cat result", "h100");
    expect_status(submit(), STATUS_RESOURCE_EXHAUSTED,
                  "no worker is attached; planned for h100, the configured profile: needs 90 GB");
    write_result(STATUS_INVALID_ARGUMENT, "fc1: 9216 expected");
    expect_status(submit(), STATUS_INVALID_ARGUMENT, "fc1: 9216 expected");
}

/* Only the workers' hosts may have what it names, and a broken process is not the job's fault. */
TEST(a_job_that_cannot_be_planned_without_workers_is_queued)
{
    static const char *const scripts[] = {"cat > order; cat result", "exit 3", "echo nonsense",
                                          "kill -9 $$", "exec sleep 600"};
    write_result(STATUS_NOT_FOUND, "no such directory");
    for (size_t i = 0; i < COUNT_OF(scripts); i++) {
        world.options.limits.plan_ms = i == 4 ? 200 : 60000;
        restart_with(scripts[i], "h100");
        char *id = world_submit(&world, 1);
        ck_assert(!is_planned(id));
        free(id);
    }
    char *program = mem_printf("%s/none", world.directory);
    world_stop(&world);
    world.options.program = program;
    world_start(&world);
    char *id = world_submit(&world, 1);
    ck_assert(!is_planned(id));
    free(id);
    free(program);
}

/* A worker that attaches while a process plans the job plans it, unless the process has a plan. */
TEST(a_worker_that_comes_during_a_plan_is_asked)
{
    static const char *const ends[] = {"exit 3", "cat result", "exec sleep 600"};
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(1);
    write_result(STATUS_NOT_FOUND, "no such directory");
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        char *script = mem_printf("while [ ! -e go$1 ]; do sleep 0.01; done; %s", ends[i]);
        world.options.limits.plan_ms = i == 2 ? 1000 : 60000;
        restart_with(script, "h100");
        struct listener call;
        listener_open(&world, &call, &control_submit_job, &request, false);
        char *started = world_path(&world, "arguments");
        WAIT(&world, access(started, F_OK) == 0);
        struct fake fake;
        fake_attach(&world, &fake, "host/cpu:0", 1000);
        write_text("goplan", "", 0, 0600);
        WAIT(&world, call.closed);
        expect_ok(call.status);
        WAIT(&world, fake.assignment != NULL);
        ck_assert_int_eq(fake.plans, 1);
        listener_deinit(&call);
        fake_deinit(&fake);
        char *go = world_path(&world, "goplan");
        ck_assert_int_eq(unlink(go), 0);
        ck_assert_int_eq(unlink(started), 0);
        free(go);
        free(started);
        free(script);
    }
}

/* While an owner's other plans take a worker's time. */
TEST(a_plan_that_gets_no_turn)
{
    struct listener calls[2];
    struct fake fake;
    fake_attach(&world, &fake, "host/cpu:0", 1000);
    fake.silent_plans = true;
    Fsdpd__V1__PlanJobRequest request = FSDPD__V1__PLAN_JOB_REQUEST__INIT;
    request.spec = world_spec(1);
    for (int i = 0; i < 2; i++)
        listener_open(&world, &calls[i], &control_plan_job, &request, false);
    WAIT(&world, fake.plans == 2);
    world.options.limits.plan_ms = 100; /* of later ones */
    world_reload(&world, &world.options);
    expect_status(world_call(&world, &control_plan_job, &request, NULL), STATUS_DEADLINE_EXCEEDED,
                  "other plans took the time of this one, 0.1 s");
    ck_assert_int_eq(fake.plans, 2);
    Fsdpd__V1__PlanResult result = FSDPD__V1__PLAN_RESULT__INIT;
    Fsdpd__V1__WorkerMessage message = FSDPD__V1__WORKER_MESSAGE__INIT;
    message.message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_PLAN;
    message.plan = &result;
    result.code = STATUS_INVALID_ARGUMENT;
    result.message = (char *)"fc1: 9216 expected";
    for (int i = 0; i < 2; i++) {
        result.request = fake.plan_request - (uint64_t)i;
        rpc_stream_send(fake.stream, &message.base);
    }
    for (int i = 0; i < 2; i++) {
        WAIT(&world, calls[i].closed);
        ck_assert_int_eq(status_code(calls[i].status), STATUS_INVALID_ARGUMENT);
        listener_deinit(&calls[i]);
    }
    fake_deinit(&fake);
}

/* Those of one owner that processes could not plan take turns with a worker that has come, as
 * others do. */
TEST(plans_that_processes_leave_take_turns)
{
    enum { CALLS = 4, AT_A_TIME = 2 };
    restart_with("touch begun.$$; while [ ! -e go ]; do sleep 0.01; done; exit 3", "h100");
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    struct listener calls[CALLS];
    request.spec = world_spec(1);
    for (int i = 0; i < CALLS; i++)
        listener_open(&world, &calls[i], &control_submit_job, &request, false);
    char *begun = mem_printf("set -- '%s'/begun.*; test $# -eq %d", world.directory, AT_A_TIME);
    WAIT(&world, system(begun) == 0);
    free(begun);
    struct fake fake;
    fake_attach(&world, &fake, "host/cpu:0", 1000);
    fake.silent_plans = true;
    WAIT(&world, fake.plans == AT_A_TIME); /* of those that no process plans */
    write_text("go", "", 0, 0600);
    world_run(&world, 200); /* their processes end; both wait for their turn */
    for (int i = 0; i < CALLS; i++)
        ck_assert_msg(!calls[i].closed, "%s", status_message(calls[i].status));
    ck_assert_int_eq(fake.plans, AT_A_TIME);
    Fsdpd__V1__PlanResult result = FSDPD__V1__PLAN_RESULT__INIT;
    Fsdpd__V1__WorkerMessage message = FSDPD__V1__WORKER_MESSAGE__INIT;
    message.message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_PLAN;
    message.plan = &result;
    result.code = STATUS_INVALID_ARGUMENT;
    result.message = (char *)"fc1: 9216 expected";
    for (int round = 0; round < 2; round++) {
        for (int i = -CALLS; i <= CALLS; i++) { /* whichever it has */
            result.request = fake.plan_request + (uint64_t)i;
            rpc_stream_send(fake.stream, &message.base);
        }
        WAIT(&world, fake.plans == CALLS);
    }
    for (int i = 0; i < CALLS; i++) {
        WAIT(&world, calls[i].closed);
        ck_assert_int_eq(status_code(calls[i].status), STATUS_INVALID_ARGUMENT);
        listener_deinit(&calls[i]);
    }
    ck_assert_int_eq(fake.plans, CALLS);
    fake_deinit(&fake);
}

/* Without a profile the job is checked, and planned for what the last worker had. */
TEST(devices_of_the_last_worker_are_remembered)
{
    write_result(STATUS_OK, "");
    restart_with("cat > order; cat result", NULL);
    free(world_submit(&world, 1));
    check_arguments("plan --order\n");
    struct fake fake;
    fake_attach(&world, &fake, "host/cpu:0", 1000);
    WAIT(&world, fake.assignment != NULL);
    fake_deinit(&fake);
    char *expected = mem_printf("plan --order --profile cpu --memory %d\n", FAKE_MEMORY);
    for (int restarts = 0; restarts < 2; restarts++) {
        free(world_submit(&world, 1));
        check_arguments(expected);
        world_stop(&world);
        world_start(&world);
    }
    free(expected);
}

/* Many at once wait for their turn; those that do not answer end with the coordinator. */
TEST(the_end_does_not_wait_for_plans)
{
    restart_with("exec sleep 600", "h100");
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    struct listener calls[5];
    request.spec = world_spec(1);
    for (int i = 0; i < 5; i++)
        listener_open(&world, &calls[i], &control_submit_job, &request, false);
    world_run(&world, 50);
    world_stop(&world);
    for (int i = 0; i < 5; i++) {
        WAIT(&world, calls[i].closed);
        ck_assert_int_eq(status_code(calls[i].status), STATUS_UNAVAILABLE);
        listener_deinit(&calls[i]);
    }
    world_start(&world);
}

/* ---- not planned ---- */

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
