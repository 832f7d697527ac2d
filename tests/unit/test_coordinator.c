/*
 * Jobs in the coordinator: rendezvous, and a real coordinator in this process with workers that
 * exist only as links (test_coordinator_world.h).
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "coordinator/jobs/jobs.h"
#include "coordinator/workers/rendezvous.h"
#include "test_coordinator_world.h"
#include "tests/testing.h"

/* ---- rendezvous ---- */

struct got {
    int count;
    enum status_code code;
    char value[32];
};

static void on_got(void *user, status_t status, const void *value, size_t size)
{
    struct got *got = user;
    got->count++;
    got->code = status_code(status);
    snprintf(got->value, sizeof got->value, "%s", status_message(status));
    if (status == NULL) {
        memcpy(got->value, value, size);
        got->value[size] = '\0';
    }
    status_free(status);
}

TESTS_BELOW(.timeout = 60);

TEST(rendezvous)
{
    struct coordinator c = {0};
    struct got now = {0}, later = {0}, never = {0}, forgotten = {0};
    rendezvous_begin(&c, "mnist-1/1");
    expect_ok(rendezvous_set(&c, "mnist-1/1", "rank0", "here", 4));
    rendezvous_get(&c, "mnist-1/1", "rank0", 1000, on_got, &now);
    ck_assert_int_eq(now.count, 1);
    ck_assert_str_eq(now.value, "here");

    rendezvous_get(&c, "mnist-1/1", "rank1", 1000, on_got, &later);
    rendezvous_get(&c, "mnist-1/1", "rank1", 0, on_got, &never);
    rendezvous_get(&c, "mnist-1/1", "rank1", 1000, on_got, &forgotten);
    rendezvous_forget(&c, &forgotten);
    rendezvous_tick(&c);
    ck_assert_int_eq(never.count, 1);
    ck_assert_int_eq(never.code, STATUS_DEADLINE_EXCEEDED);
    ck_assert_int_eq(later.count, 0);
    expect_ok(rendezvous_set(&c, "mnist-1/1", "rank1", "", 0));
    ck_assert_int_eq(later.count, 1);
    ck_assert_int_eq(later.code, STATUS_OK);
    ck_assert_int_eq(forgotten.count, 0);
    expect_ok(rendezvous_set(&c, "mnist-1/1", "rank0", "again", 5)); /* replaces */
    rendezvous_get(&c, "mnist-1/1", "rank0", 0, on_got, &now);
    ck_assert_str_eq(now.value, "again");

    /* A failed group: waits for its ranks, now or later, get the reason. Others continue. */
    rendezvous_get(&c, "mnist-1/1", "pull-1/0", 1000, on_got, &later);
    rendezvous_get(&c, "mnist-1/1", "pull-10/0", 1000, on_got, &never);
    expect_ok(rendezvous_set(&c, "mnist-1/1", "pull-1/1", "here", 4));
    expect_ok(rendezvous_fail(&c, "mnist-1/1", "pull-1", "rank 1 is ill"));
    expect_ok(rendezvous_fail(&c, "mnist-1/1", "pull-1", "rank 0 heard of it"));
    ck_assert_int_eq(later.count, 2);
    ck_assert_int_eq(later.code, STATUS_ABORTED);
    ck_assert_str_eq(later.value, "rank 1 is ill");
    rendezvous_get(&c, "mnist-1/1", "pull-1/1", 1000, on_got, &later);
    ck_assert_str_eq(later.value, "rank 1 is ill");
    expect_status(rendezvous_set(&c, "mnist-1/1", "pull-1/0", "", 0), STATUS_ABORTED, "ill");
    ck_assert_int_eq(never.count, 1);
    expect_ok(rendezvous_set(&c, "mnist-1/1", "pull-10/0", "here", 4));
    ck_assert_int_eq(never.count, 2);
    ck_assert_str_eq(never.value, "here");
    later.count = 0;

    /* Attempts have separate stores. */
    rendezvous_begin(&c, "mnist-1/2");
    rendezvous_get(&c, "mnist-1/2", "rank0", 1000, on_got, &later);
    ck_assert_int_eq(later.count, 0);
    rendezvous_end(&c, "mnist-1/2");
    ck_assert_int_eq(later.count, 1);
    ck_assert_int_eq(later.code, STATUS_ABORTED);
    rendezvous_get(&c, "mnist-1/2", "rank0", 1000, on_got, &later);
    ck_assert_int_eq(later.code, STATUS_ABORTED);
    expect_status(rendezvous_set(&c, "mnist-1/2", "a", "b", 1), STATUS_ABORTED, "mnist-1/2");

    char *large = mem_alloc(RENDEZVOUS_VALUE_MAX + 1);
    memset(large, 'k', RENDEZVOUS_KEY_MAX + 1);
    expect_status(rendezvous_set(&c, "mnist-1/1", large, "b", 1), STATUS_INVALID_ARGUMENT, "256");
    expect_status(rendezvous_set(&c, "mnist-1/1", "", "b", 1), STATUS_INVALID_ARGUMENT, "key");
    expect_status(rendezvous_set(&c, "mnist-1/1", "k", large, RENDEZVOUS_VALUE_MAX + 1),
                  STATUS_INVALID_ARGUMENT, "value");
    int stored = 0;
    status_t status = NULL;
    while (status == NULL && stored < 1000) {
        char key[16];
        snprintf(key, sizeof key, "%d", stored++);
        status = rendezvous_set(&c, "mnist-1/1", key, large, RENDEZVOUS_VALUE_MAX);
    }
    expect_status(status, STATUS_RESOURCE_EXHAUSTED, "mnist-1/1");
    ck_assert_int_ge(stored, 200);
    free(large);
    rendezvous_close(&c);
}

TEST(ids)
{
    static const char *const good[] = {"a", "mnist-1", "0-1-a"};
    static const char *const bad[] = {"", "-a", "A", "a/b", "..", "a.b", "a b", "a\n", "ü"};
    for (size_t i = 0; i < COUNT_OF(good); i++) ck_assert(job_id_is_valid(good[i]));
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        ck_assert_msg(!job_id_is_valid(bad[i]), "%s", bad[i]);
    char longest[66];
    memset(longest, 'a', 65);
    longest[65] = '\0';
    ck_assert(!job_id_is_valid(longest));
    longest[64] = '\0';
    ck_assert(job_id_is_valid(longest));
}

/* ---- a real one ---- */

static struct world world;

static void set_up(void)
{
    world_init(&world);
}

static void tear_down(void)
{
    world_deinit(&world);
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

/* Whether rank 0 has reported that step, and another rank has finished. */
static bool has_reports(const char *id, uint64_t step)
{
    job_message *job = world_job(&world, id);
    bool has = job->step == FAKE_STEPS && job->metrics != NULL && job->metrics->step == step;
    message_free(job);
    return has;
}

TEST(a_job_from_submit_to_done)
{
    world_start(&world);
    struct fake fakes[2];
    fake_attach(&world, &fakes[0], "host/cpu:0", 1000);
    fake_attach(&world, &fakes[1], "host/cpu:1", 1001);
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(2);
    request.spec->save_model = false;
    void *response = NULL;
    expect_ok(world_call(&world, &control_submit_job, &request, &response));
    job_message *job = response;
    ck_assert_str_eq(job->id, "mnist-1");
    ck_assert_uint_eq(job->plan->hash, 42);
    ck_assert_uint_eq(job->steps, 100);
    ck_assert_uint_eq(job->n_units, 1);
    ck_assert_str_eq(job->units[0]->name, "(root)");
    ck_assert_str_eq(job->spec->device, "cpu"); /* was open: the workers' device */
    ck_assert_int_gt(message_time_ms(job->submit_time), 1500000000000);
    message_free(job);
    ck_assert_int_eq(fakes[0].plans + fakes[1].plans, 1);

    for (int r = 0; r < 2; r++) {
        WAIT(&world, fakes[r].assignments == 1);
        ck_assert_uint_eq(fakes[r].assignment->rank, (unsigned)r);
        ck_assert_uint_eq(fakes[r].assignment->world, 2);
        ck_assert_str_eq(fakes[r].assignment->job, "mnist-1");
        ck_assert_str_eq(fakes[r].assignment->spec->name, "mnist");
        ck_assert_str_eq(fakes[r].assignment->address, "127.0.0.1");
    }
    world_check_reason(&world, "mnist-1", JOB_STARTING, "STARTING", "2 workers");

    /* The ranks find each other through the attempt's store. */
    Fsdpd__V1__StoreSetRequest set = FSDPD__V1__STORE_SET_REQUEST__INIT;
    set.store = fakes[0].assignment->store;
    set.key = (char *)"address";
    set.value = (ProtobufCBinaryData){.data = (uint8_t *)"rank0:1", .len = 7};
    expect_ok(world_call(&world, &worker_link_store_set, &set, NULL));
    Fsdpd__V1__StoreGetRequest get = FSDPD__V1__STORE_GET_REQUEST__INIT;
    get.store = fakes[1].assignment->store;
    get.key = set.key;
    get.timeout_ms = 100;
    expect_ok(world_call(&world, &worker_link_store_get, &get, &response));
    ck_assert_uint_eq(((Fsdpd__V1__StoreGetResponse *)response)->value.len, 7);
    message_free(response);
    get.key = (char *)"nothing";
    expect_status(world_call(&world, &worker_link_store_get, &get, NULL), STATUS_DEADLINE_EXCEEDED,
                  "nothing");

    fake_started(&fakes[1], 42);
    world_run(&world, 50);
    world_check_reason(&world, "mnist-1", JOB_STARTING, "STARTING", ""); /* one rank is not all */
    fake_started(&fakes[0], 42);
    WAIT(&world, world_job_is(&world, "mnist-1", JOB_RUNNING));
    fake_metrics(&fakes[0], 10, 0.5);
    fake_metrics(&fakes[1], 99, 9.9); /* only rank 0 reports */
    fake_epoch(&fakes[0], 1);
    fake_validation(&fakes[0], 10, 1.25);
    fake_validation(&fakes[1], 11, 9.9);
    fake_op_times(&fakes[0], 11);
    fake_metrics(&fakes[0], 12, 0.5); /* without repeating them */
    fake_heartbeat(&fakes[0], 17);
    fake_finished(&fakes[1], STATUS_OK, "");
    WAIT(&world, has_reports("mnist-1", 12));
    job = world_job(&world, "mnist-1");
    ck_assert_int_eq(job->state, JOB_RUNNING);
    ck_assert_uint_eq(job->step, FAKE_STEPS);
    ck_assert_double_eq(job->metrics->loss, 0.5);
    ck_assert(job->metrics->seconds_left > 0);
    ck_assert_double_eq(job->metrics->accuracy, 0.98);
    ck_assert(job->metrics->_val_loss_case != 0);
    ck_assert_double_eq(job->metrics->val_loss, 1.25);
    ck_assert_uint_eq(job->metrics->val_step, 10);
    ck_assert_uint_eq(job->metrics->op_times_step, 11);
    ck_assert_uint_eq(job->metrics->n_op_times, 1);
    ck_assert_str_eq(job->metrics->op_times[0]->op, "linear");
    ck_assert(job->has_state_dict); /* it runs, so it can be pulled */
    message_free(job);
    fake_finished(&fakes[0], STATUS_OK, "");
    WAIT(&world, world_job_is(&world, "mnist-1", JOB_SUCCEEDED));
    job = world_job(&world, "mnist-1");
    ck_assert_str_eq(job->reason->code, "DONE");
    ck_assert_uint_eq(job->attempt, 1);
    ck_assert_uint_eq(job->n_workers, 2);
    ck_assert_str_eq(job->workers[1], "host/cpu:1");
    ck_assert_uint_eq(job->metrics->memory_peak_bytes, 4096);
    ck_assert_double_eq(job->metrics->seconds_left, 0);
    int64_t started = message_time_ms(job->start_time);
    ck_assert(message_time_ms(job->submit_time) <= started);
    ck_assert(started <= message_time_ms(job->finish_time));
    ck_assert(!job->has_state_dict);
    message_free(job);
    get.store = fakes[1].assignment->store;
    expect_status(world_call(&world, &worker_link_store_get, &get, NULL), STATUS_ABORTED, "over");
    ck_assert_int_eq(fakes[0].cancels + fakes[0].cancels_at_once, 0);
    fake_deinit(&fakes[0]);
    fake_deinit(&fakes[1]);
}

TEST(refusals)
{
    world_start(&world);
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(2);
    Fsdpd__V1__PlanJobRequest unplanned = FSDPD__V1__PLAN_JOB_REQUEST__INIT;
    unplanned.spec = request.spec;
    expect_status(world_call(&world, &control_plan_job, &unplanned, NULL),
                  STATUS_FAILED_PRECONDITION, "no worker is attached");
    struct fake fake;
    fake_attach(&world, &fake, "host/cpu:0", 1000);
    request.spec->device = (char *)"cuda";
    expect_status(world_call(&world, &control_submit_job, &request, NULL),
                  STATUS_FAILED_PRECONDITION, "cuda");
    request.spec->device = (char *)"";
    fake.plan_code = STATUS_INVALID_ARGUMENT;
    expect_status(world_call(&world, &control_submit_job, &request, NULL), STATUS_INVALID_ARGUMENT,
                  "fc1: 9216");
    fake.plan_code = STATUS_OK;
    fake.silent_plans = true;
    world.options.limits.plan_ms = 500;
    world_reload(&world, &world.options);
    expect_status(world_call(&world, &control_submit_job, &request, NULL), STATUS_DEADLINE_EXCEEDED,
                  "host/cpu:0");
    fake.silent_plans = false;
    world.options.limits.plan_ms = 20000;
    world_reload(&world, &world.options);
    int plans = fake.plans;
    request.spec->workers = 0; /* not worth a plan */
    expect_status(world_call(&world, &control_submit_job, &request, NULL), STATUS_INVALID_ARGUMENT,
                  "workers");
    request.spec->workers = 2;
    request.id = (char *)"../etc";
    expect_status(world_call(&world, &control_submit_job, &request, NULL), STATUS_INVALID_ARGUMENT,
                  "id");
    request.spec = NULL;
    expect_status(world_call(&world, &control_submit_job, &request, NULL), STATUS_INVALID_ARGUMENT,
                  "spec");
    ck_assert_int_eq(fake.plans, plans);

    Fsdpd__V1__GetJobRequest get = FSDPD__V1__GET_JOB_REQUEST__INIT;
    get.id = (char *)"mnist-1";
    expect_status(world_call(&world, &control_get_job, &get, NULL), STATUS_NOT_FOUND, "mnist-1");
    Fsdpd__V1__CancelJobRequest cancel = FSDPD__V1__CANCEL_JOB_REQUEST__INIT;
    cancel.id = get.id;
    expect_status(world_call(&world, &control_cancel_job, &cancel, NULL), STATUS_NOT_FOUND,
                  "mnist-1");

    Fsdpd__V1__PlanJobRequest plan = FSDPD__V1__PLAN_JOB_REQUEST__INIT;
    plan.spec = world_spec(2);
    plan.dump = true;
    void *response = NULL;
    expect_ok(world_call(&world, &control_plan_job, &plan, &response));
    ck_assert_str_eq(((Fsdpd__V1__Plan *)response)->dump, "all of it");
    message_free(response);
    expect_ok(world_call(&world, &control_list_jobs,
                         &(Fsdpd__V1__ListJobsRequest)FSDPD__V1__LIST_JOBS_REQUEST__INIT,
                         &response));
    ck_assert_uint_eq(((Fsdpd__V1__ListJobsResponse *)response)->n_jobs, 0);
    message_free(response);
    fake_deinit(&fake);
}

TEST(hello_is_checked)
{
    world_start(&world);
    struct fake first, second;
    fake_attach(&world, &first, "host/cpu:0", 1000);
    ck_assert(first.welcome);
    fake_attach(&world, &second, "host/cpu:0", 1001);
    ck_assert(second.closed);
    ck_assert_int_eq(status_code(second.status), STATUS_ALREADY_EXISTS);
    fake_deinit(&second);
    fake_attach(&world, &second, "a b", 1001);
    ck_assert_int_eq(status_code(second.status), STATUS_INVALID_ARGUMENT);
    fake_deinit(&second);
    /* The first message must be Hello. */
    struct listener link;
    listener_open(&world, &link, &worker_link_attach, NULL, false);
    Fsdpd__V1__WorkerMessage message = FSDPD__V1__WORKER_MESSAGE__INIT;
    rpc_stream_send(link.stream, &message.base);
    WAIT(&world, link.closed);
    ck_assert_int_eq(status_code(link.status), STATUS_INVALID_ARGUMENT);
    listener_deinit(&link);
    fake_deinit(&first);
}

TEST(repeated_submission)
{
    world_start(&world);
    struct fake fake;
    fake_attach(&world, &fake, "host/cpu:0", 1000);
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(1);
    request.id = (char *)"mine";
    void *response = NULL;
    for (int i = 0; i < 2; i++) {
        expect_ok(world_call(&world, &control_submit_job, &request, &response));
        ck_assert_str_eq(((job_message *)response)->id, "mine");
        message_free(response);
    }
    request.spec->train->seed = 2;
    expect_status(world_call(&world, &control_submit_job, &request, NULL), STATUS_ALREADY_EXISTS,
                  "mine");
    WAIT(&world, fake.assignments == 1);
    fake_finished(&fake, STATUS_OK, "");
    request.spec->train->seed = 1;
    WAIT(&world, world_job_is(&world, "mine", JOB_SUCCEEDED));
    expect_ok(
        world_call(&world, &control_submit_job, &request, &response)); /* also when it is over */
    ck_assert_int_eq(((job_message *)response)->state, JOB_SUCCEEDED);
    message_free(response);
    ck_assert_int_eq(fake.plans, 1);
    ck_assert_int_eq(fake.assignments, 1);
    fake_deinit(&fake);
}

TEST(queue_of_jobs)
{
    world_start(&world);
    struct fake fakes[2];
    fake_attach(&world, &fakes[0], "host/cpu:0", 1000);
    fake_attach(&world, &fakes[1], "host/cpu:1", 1001);
    char *large = world_submit(&world, 5), *first = world_submit(&world, 2);
    char *second = world_submit(&world, 1), *third = world_submit(&world, 1);
    world_check_reason(&world, large, JOB_QUEUED, "WAITING_FOR_WORKERS",
                       "needs 5 cpu workers, 2 are attached");
    world_check_reason(&world, first, JOB_STARTING, "STARTING", "");
    world_check_reason(&world, second, JOB_QUEUED, "QUEUED", "waits for");
    fake_finished(&fakes[0], STATUS_OK, "");
    WAIT(&world, fakes[0].assignments == 2);
    /* The finished rank is free for other jobs although its job continues. */
    world_check_reason(&world, second, JOB_STARTING, "STARTING", "1 worker");
    ck_assert_str_eq(fakes[0].assignment->job, second);
    fake_finished(&fakes[1], STATUS_OK, "");
    WAIT(&world, fakes[1].assignments == 2);
    ck_assert_str_eq(fakes[1].assignment->job, third);
    world_check_reason(&world, first, JOB_SUCCEEDED, "DONE", "");
    world_check_reason(&world, third, JOB_STARTING, "STARTING", ""); /* beside the second */
    world_check_reason(&world, large, JOB_QUEUED, "WAITING_FOR_WORKERS", "");

    void *response = NULL;
    expect_ok(world_call(&world, &control_list_jobs,
                         &(Fsdpd__V1__ListJobsRequest)FSDPD__V1__LIST_JOBS_REQUEST__INIT,
                         &response));
    Fsdpd__V1__ListJobsResponse *list = response;
    ck_assert_uint_eq(list->n_jobs, 4);
    ck_assert_str_eq(list->jobs[0]->id, large);
    ck_assert_str_eq(list->jobs[3]->id, third);
    ck_assert_int_eq(list->jobs[1]->state, JOB_SUCCEEDED);
    ck_assert_str_eq(list->jobs[0]->spec->model->text, ""); /* long texts are for GetJob */
    ck_assert_str_eq(list->jobs[0]->spec->model->file_name, "net.yaml");
    message_free(response);
    expect_ok(world_call(&world, &control_list_workers,
                         &(Fsdpd__V1__ListWorkersRequest)FSDPD__V1__LIST_WORKERS_REQUEST__INIT,
                         &response));
    Fsdpd__V1__ListWorkersResponse *workers = response;
    ck_assert_uint_eq(workers->n_workers, 2);
    ck_assert_int_eq(workers->workers[1]->state, FSDPD__V1__WORKER_STATE__WORKER_STATE_BUSY);
    ck_assert_str_eq(workers->workers[1]->job, third);
    ck_assert_int_eq(workers->workers[1]->rank, 0);
    message_free(response);

    struct fake more[3]; /* now there are five */
    fake_finished(&fakes[0], STATUS_OK, "");
    fake_finished(&fakes[1], STATUS_OK, "");
    fake_attach(&world, &more[0], "host/cpu:2", 1002);
    fake_attach(&world, &more[1], "host/cpu:3", 1003);
    fake_attach(&world, &more[2], "host/cpu:10", 1004);
    WAIT(&world, more[2].assignments == 1);
    ck_assert_uint_eq(more[2].assignment->rank, 4); /* ranks follow the ids' numbers */
    free(large), free(first), free(second), free(third);
    for (int i = 0; i < 3; i++) fake_deinit(&more[i]);
    for (int i = 0; i < 2; i++) fake_deinit(&fakes[i]);
}

TEST(cancel_jobs)
{
    world_start(&world);
    struct fake fakes[2];
    char *id = world_start_running(&world, fakes), *queued = world_submit(&world, 2);
    expect_ok(world_cancel(&world, queued));
    world_check_reason(&world, queued, JOB_CANCELLED, "CANCELLED", "before it started");
    expect_status(world_cancel(&world, queued), STATUS_FAILED_PRECONDITION, "CANCELLED");

    expect_ok(world_cancel(&world, id));
    expect_ok(world_cancel(&world, id)); /* a second request changes nothing */
    world_check_reason(&world, id, JOB_RUNNING, "CANCELLING", "step boundary");
    for (int r = 0; r < 2; r++) {
        WAIT(&world, fakes[r].cancels == 1);
        ck_assert_uint_eq(fakes[r].order_sequence, 1);
        fake_finished(&fakes[r], STATUS_CANCELLED, "cancelled by a user");
    }
    WAIT(&world, world_job_is(&world, id, JOB_CANCELLED));
    world_check_reason(&world, id, JOB_CANCELLED, "CANCELLED", "step");
    free(id);

    /* A worker that ignores the order gets it again, then loses its link; the job is cancelled
     * anyway. */
    id = world_submit(&world, 2);
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].assignments == 2);
    expect_ok(world_cancel(&world, id));
    WAIT(&world, fakes[0].cancels_at_once == 1);
    WAIT(&world, fakes[1].cancels_at_once == 1);
    fake_finished(&fakes[0], STATUS_ABORTED, "");
    WAIT(&world, fakes[1].closed);
    WAIT(&world, world_job_is(&world, id, JOB_CANCELLED));
    ck_assert(!fakes[0].closed);
    free(id), free(queued);
    for (int r = 0; r < 2; r++) fake_deinit(&fakes[r]);
}

TEST(lost_worker)
{
    world_start(&world);
    struct fake fakes[2];
    char *id = world_start_running(&world, fakes);
    /* The survivor notices the broken connection first; the reason must still name the lost
     * worker. */
    fake_finished(&fakes[0], STATUS_UNAVAILABLE, "connection reset by peer");
    world_run(&world, 30);
    ck_assert(world_job_is(&world, id, JOB_RUNNING));
    fake_detach(&fakes[1]);
    WAIT(&world, world_job_is(&world, id, JOB_FAILED));
    world_check_reason(&world, id, JOB_FAILED, "WORKER_LOST", "rank 1 (host/cpu:1) was lost");
    fake_deinit(&fakes[1]);

    /* The survivor is free, and with a new worker the next job runs. */
    fake_attach(&world, &fakes[1], "host/cpu:1", 1002);
    char *next = world_submit(&world, 2);
    WAIT(&world, fakes[0].assignments == 2);
    world_check_reason(&world, next, JOB_STARTING, "STARTING", "");
    /* Lost while it starts: the survivor gets the order to stop at once, and as no rank has begun,
     * the job restarts without a budget. A job whose ranks never begin ends after a few
     * attempts. */
    for (int lost = 1; lost <= 6; lost++) {
        fake_detach(&fakes[1]);
        WAIT(&world, fakes[0].cancels_at_once == lost);
        ck_assert(world_job_is(&world, next, JOB_STARTING));
        fake_finished(&fakes[0], STATUS_ABORTED, "");
        if (lost == 6) break;
        WAIT(&world, world_job_is(&world, next, JOB_QUEUED));
        world_check_reached(&world, next, "RETRYING", "before any rank began to train (rank 1");
        fake_deinit(&fakes[1]);
        fake_attach(&world, &fakes[1], "host/cpu:1", 1002 + lost);
        WAIT(&world, fakes[0].assignments == 2 + lost && fakes[1].assignments == 1);
        ck_assert_uint_eq(fakes[1].assignment->attempt, (uint32_t)lost + 1);
    }
    WAIT(&world, world_job_is(&world, next, JOB_FAILED));
    world_check_reason(&world, next, JOB_FAILED, "WORKER_LOST", "rank 1");
    ck_assert(!fakes[0].closed);
    free(id), free(next);
    for (int r = 0; r < 2; r++) fake_deinit(&fakes[r]);
}

TEST(failing_ranks)
{
    world_start(&world);
    struct fake fakes[2];
    char *id = world_start_running(&world, fakes);
    /* Of several reports the one that is not a consequence counts. */
    fake_finished(&fakes[0], STATUS_ABORTED, "a peer went away");
    fake_finished(&fakes[1], STATUS_DATA_LOSS, "train-images: truncated");
    WAIT(&world, world_job_is(&world, id, JOB_FAILED));
    world_check_reason(&world, id, JOB_FAILED, "DATA_LOSS",
                       "rank 1 (host/cpu:1): train-images: truncated");
    free(id);

    id = world_submit(&world, 2);
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].assignments == 2);
    fake_started(&fakes[0], 42);
    fake_started(&fakes[1], 43);
    for (int r = 0; r < 2; r++) {
        WAIT(&world, fakes[r].cancels_at_once >= 1);
        fake_finished(&fakes[r], STATUS_ABORTED, "was ordered to stop");
    }
    WAIT(&world, world_job_is(&world, id, JOB_FAILED));
    world_check_reason(&world, id, JOB_FAILED, "PLAN_MISMATCH", "rank 1");
    free(id);

    /* A rank that stays silent after the other failed: the job still fails in bounded time, and the
     * rank loses its link later. */
    id = world_submit(&world, 2);
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].assignments == 3);
    fake_finished(&fakes[0], STATUS_INTERNAL, "a mistake");
    WAIT(&world, world_job_is(&world, id, JOB_FAILED));
    world_check_reason(&world, id, JOB_FAILED, "INTERNAL", "rank 0 (host/cpu:0): a mistake");
    WAIT(&world, fakes[1].closed);
    free(id);
    for (int r = 0; r < 2; r++) fake_deinit(&fakes[r]);
}

/* A worker that did not answer one plan order gets the next one only if it is alone. */
TEST(worker_that_plans_nothing)
{
    world.options.limits.plan_ms = 300;
    world_start(&world);
    struct fake fakes[2];
    fake_attach(&world, &fakes[0], "host/cpu:0", 1000);
    fakes[0].silent_plans = true;
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(1);
    for (int i = 1; i <= 2; i++) {
        expect_status(world_call(&world, &control_submit_job, &request, NULL),
                      STATUS_DEADLINE_EXCEEDED,
                      "worker host/cpu:0 did not plan the job within 0.3 s");
        ck_assert_int_eq(fakes[0].plans, i);
    }
    world.options.limits.plan_ms = 60000; /* the other may take its time */
    world_reload(&world, &world.options);
    fake_attach(&world, &fakes[1], "host/cpu:1", 1001);
    for (int i = 1; i <= 3; i++) {
        void *response = NULL;
        expect_ok(world_call(&world, &control_submit_job, &request, &response));
        message_free(response);
        ck_assert_int_eq(fakes[0].plans, 2);
        ck_assert_int_eq(fakes[1].plans, i);
    }
    for (int r = 0; r < 2; r++) fake_deinit(&fakes[r]);
}

/* A worker lost while it plans costs the client nothing; a second one ends the request. */
TEST(worker_lost_while_it_plans)
{
    world_start(&world);
    struct fake fakes[3];
    fake_attach(&world, &fakes[0], "host/cpu:0", 1000);
    fake_attach(&world, &fakes[1], "host/cpu:1", 1001);
    fakes[0].leaves_plans = true;
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(1);
    void *response = NULL;
    expect_ok(world_call(&world, &control_submit_job, &request, &response));
    message_free(response);
    ck_assert_int_eq(fakes[0].plans, 1);
    ck_assert_int_eq(fakes[1].plans, 1);

    fake_attach(&world, &fakes[2], "host/cpu:2", 1002);
    fakes[1].leaves_plans = fakes[2].leaves_plans = true;
    expect_status(world_call(&world, &control_submit_job, &request, NULL), STATUS_UNAVAILABLE,
                  "2 workers were lost while they planned the job, the last one host/cpu:");
    ck_assert_int_eq(fakes[1].plans + fakes[2].plans, 3);
    for (int r = 0; r < 3; r++) fake_deinit(&fakes[r]);
}

TEST(silent_worker)
{
    /* A coordinator detects a stall of more than 3 s, so none makes the other one silent. */
    world.options.limits.silence_ms = 4000;
    world.options.limits.reattach_ms = 50;
    world_start(&world);
    struct fake fakes[2];
    fake_attach(&world, &fakes[0], "host/cpu:0", 1000);
    fake_attach(&world, &fakes[1], "host/cpu:1", 1001);
    char *id = world_submit(&world, 2);
    for (int r = 0; r < 2; r++) {
        WAIT(&world, fakes[r].assignments == 1);
        fake_started(&fakes[r], 42);
    }
    while (!fakes[1].closed) {
        fake_heartbeat(&fakes[0], 1);
        world_run(&world, 20);
    }
    fake_finished(&fakes[0], STATUS_ABORTED, "");
    WAIT(&world, world_job_is(&world, id, JOB_FAILED));
    world_check_reason(&world, id, JOB_FAILED, "WORKER_LOST",
                       "rank 1 (host/cpu:1) was lost: it was silent");
    ck_assert(!fakes[0].closed);
    free(id);
    for (int r = 0; r < 2; r++) fake_deinit(&fakes[r]);
}

static void on_refused(status_t status, const ProtobufCMessage *response, void *user)
{
    (void)response;
    *(enum status_code *)user = status_code(status);
    status_free(status);
}

/* The others are ordered when a worker has answered, also one that was to stop. */
TEST(one_owners_plans_wait_for_each_other)
{
    world.options.limits.plan_ms = 60000;
    world_start(&world);
    struct fake fake;
    fake_attach(&world, &fake, "host/cpu:0", 1000);
    fake.silent_plans = true;
    Fsdpd__V1__PlanJobRequest request = FSDPD__V1__PLAN_JOB_REQUEST__INIT;
    request.spec = world_spec(1);
    enum status_code codes[4] = {STATUS_OK};
    for (int i = 0; i < 4; i++)
        rpc_channel_call(world.channel, &control_plan_job, &request.base, i == 0 ? 100 : 60000,
                         false, on_refused, &codes[i]);
    WAIT(&world, codes[0] == STATUS_DEADLINE_EXCEEDED && fake.cancelled_plans == 1);
    WAIT(&world, fake.plans >= 2);
    world_run(&world, 50); /* no third one comes */
    ck_assert_int_eq(fake.plans, 2);
    Fsdpd__V1__PlanResult result = FSDPD__V1__PLAN_RESULT__INIT;
    Fsdpd__V1__WorkerMessage message = FSDPD__V1__WORKER_MESSAGE__INIT;
    message.message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_PLAN;
    message.plan = &result;
    result.code = STATUS_CANCELLED;
    result.message = (char *)"it was cancelled";
    uint64_t first = fake.plan_request - 1;
    for (int i = 1; i <= 4; i++) { /* the fourth is ordered when the second has its answer */
        result.request = first + (uint64_t)i - 1;
        rpc_stream_send(fake.stream, &message.base);
        WAIT(&world, fake.plans == (i + 2 < 4 ? i + 2 : 4));
    }
    for (int i = 1; i < 4; i++) WAIT(&world, codes[i] == STATUS_CANCELLED);
    fake_deinit(&fake);
}

TEST(client_that_gives_up_has_submitted_nothing)
{
    world_start(&world);
    struct fake fake;
    fake_attach(&world, &fake, "host/cpu:0", 1000);
    fake.silent_plans = true;
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(1);
    enum status_code code = STATUS_OK;
    rpc_channel_call(world.channel, &control_submit_job, &request.base, 100, false, on_refused,
                     &code);
    WAIT(&world, code != STATUS_OK);
    ck_assert_int_eq(code, STATUS_DEADLINE_EXCEEDED);
    WAIT(&world, fake.cancelled_plans == 1); /* then the plan comes, too late */
    Fsdpd__V1__Plan plan = FSDPD__V1__PLAN__INIT;
    Fsdpd__V1__PlanResult result = FSDPD__V1__PLAN_RESULT__INIT;
    result.request = 1;
    result.plan = &plan;
    Fsdpd__V1__WorkerMessage message = FSDPD__V1__WORKER_MESSAGE__INIT;
    message.message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_PLAN;
    message.plan = &result;
    rpc_stream_send(fake.stream, &message.base);
    world_run(&world, 50);
    void *response = NULL;
    expect_ok(world_call(&world, &control_list_jobs,
                         &(Fsdpd__V1__ListJobsRequest)FSDPD__V1__LIST_JOBS_REQUEST__INIT,
                         &response));
    ck_assert_uint_eq(((Fsdpd__V1__ListJobsResponse *)response)->n_jobs, 0);
    message_free(response);
    ck_assert_int_eq(fake.assignments, 0);
    fake_deinit(&fake);
}

TEST(long_reasons_stay_text)
{
    world_start(&world);
    struct fake fake;
    fake_attach(&world, &fake, "host/cpu:0", 1000);
    char message[6000] = "";
    for (int shift = 0; shift < 4; shift++) { /* cut at every place within a character */
        memset(message, 'a', (size_t)shift);
        message[shift] = '\0';
        for (int i = 0; i < 1400; i++) strcat(message, "\xf0\x9f\x98\x80");
        char *id = world_submit(&world, 1);
        WAIT(&world, fake.assignments == shift + 1);
        fake_finished(&fake, STATUS_INTERNAL, message);
        WAIT(&world,
             world_job_is(&world, id, JOB_FAILED)); /* our client refuses text with invalid UTF-8 */
        job_message *job = world_job(&world, id);
        size_t length = strlen(job->reason->message);
        ck_assert_uint_gt(length, 4000);
        ck_assert_uint_eq((length - (size_t)shift) % 4, 0);
        message_free(job);
        free(id);
    }
    fake_deinit(&fake);
}

static void write_family(const char *name, const char *text)
{
    char *path = file_path_join(world.options.families[0], name);
    expect_ok(file_write_atomic(path, text, strlen(text), 0600));
    free(path);
}

TEST(families_are_listed_also_those_that_cannot_be_used)
{
    char *directory = world_path(&world, "families"), *missing = world_path(&world, "none");
    world.options.families[0] = directory;
    world.options.family_count = 1;
    ck_assert_int_eq(mkdir(directory, 0700), 0);
    write_family("a.yaml", "name: tiny\nmodel_type: [tiny, small]\narchitecture: TinyLM\n"
                           "config: {width: {type: size, default: 8}}\nmodel: |\n  name: Tiny\n");
    write_family("b.yaml", "name: [broken");
    world_start(&world);
    Fsdpd__V1__ListFamiliesRequest request = FSDPD__V1__LIST_FAMILIES_REQUEST__INIT;
    void *response = NULL;
    expect_ok(world_call(&world, &control_list_families, &request, &response));
    const Fsdpd__V1__ListFamiliesResponse *list = response;
    ck_assert_uint_ge(list->n_families, 2);
    const Fsdpd__V1__Family *tiny = list->families[0], *broken = list->families[1];
    ck_assert_str_eq(tiny->name, "tiny");
    ck_assert_uint_eq(tiny->n_model_types, 2);
    ck_assert_str_eq(tiny->model_types[1], "small");
    ck_assert_uint_eq(tiny->n_keys, 1);
    ck_assert_str_eq(tiny->keys[0], "width");
    ck_assert_str_eq(tiny->error, "");
    ck_assert_ptr_nonnull(strstr(broken->path, "/b.yaml"));
    ck_assert_ptr_nonnull(strstr(broken->error, "b.yaml:"));
    request.page_size = 1;
    request.page_token = mem_printf("0:%s", tiny->path);
    void *second = NULL;
    expect_ok(world_call(&world, &control_list_families, &request, &second));
    const Fsdpd__V1__ListFamiliesResponse *page = second;
    ck_assert_uint_eq(page->n_families, 1);
    ck_assert_str_eq(page->families[0]->path, broken->path);
    message_free(second);
    free(request.page_token);
    request.page_token = (char *)"0:/none.yaml";
    expect_status(world_call(&world, &control_list_families, &request, NULL),
                  STATUS_INVALID_ARGUMENT, "page_token");
    request.page_token = (char *)"";
    message_free(response);
    world_stop(&world);
    world.options.families[0] = missing;
    world_start(&world);
    status_t status = world_call(&world, &control_list_families, &request, &response);
    ck_assert_int_eq(status_code(status), STATUS_NOT_FOUND);
    status_free(status);
    free(directory);
    free(missing);
}
