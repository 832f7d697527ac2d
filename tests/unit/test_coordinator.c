/*
 * The coordinator's life with jobs: rendezvous, and a real coordinator in this process
 * with workers that exist only as links (test_coordinator_world.h).
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/jobs.h"
#include "coordinator/rendezvous.h"
#include "test_coordinator_world.h"

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
    got->value[0] = '\0';
    if (status == NULL) {
        memcpy(got->value, value, size);
        got->value[size] = '\0';
    }
    status_free(status);
}

START_TEST(test_rendezvous)
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
    ck_assert_int_eq(never.code, STATUS_NOT_FOUND);
    ck_assert_int_eq(later.count, 0);
    expect_ok(rendezvous_set(&c, "mnist-1/1", "rank1", "", 0));
    ck_assert_int_eq(later.count, 1);
    ck_assert_int_eq(later.code, STATUS_OK);
    ck_assert_int_eq(forgotten.count, 0);
    expect_ok(rendezvous_set(&c, "mnist-1/1", "rank0", "again", 5)); /* replaces */
    rendezvous_get(&c, "mnist-1/1", "rank0", 0, on_got, &now);
    ck_assert_str_eq(now.value, "again");

    /* Attempts do not see each other's. */
    rendezvous_begin(&c, "mnist-1/2");
    rendezvous_get(&c, "mnist-1/2", "rank0", 1000, on_got, &later);
    ck_assert_int_eq(later.count, 1);
    rendezvous_end(&c, "mnist-1/2");
    ck_assert_int_eq(later.count, 2);
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
END_TEST

START_TEST(test_ids)
{
    static const char *const good[] = {"a", "mnist-1", "0-1-a"};
    static const char *const bad[] = {"", "-a", "A", "a/b", "..", "a.b", "a b", "a\n", "ü"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) ck_assert(job_id_is_valid(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_msg(!job_id_is_valid(bad[i]), "%s", bad[i]);
    char longest[66];
    memset(longest, 'a', 65);
    longest[65] = '\0';
    ck_assert(!job_id_is_valid(longest));
    longest[64] = '\0';
    ck_assert(job_id_is_valid(longest));
}
END_TEST

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

START_TEST(test_a_job_from_submit_to_done)
{
    world_start(&world);
    struct fake fakes[2];
    fake_attach(&world, &fakes[0], "host/cpu:0", 1000);
    fake_attach(&world, &fakes[1], "host/cpu:1", 1001);
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(2);
    request.spec->save_model = false;
    void *response = NULL;
    expect_ok(world_call(&world, &test_submit, &request, &response));
    job_message *job = response;
    ck_assert_str_eq(job->id, "mnist-1");
    ck_assert_uint_eq(job->plan->hash, 42);
    ck_assert_uint_eq(job->steps, 100);
    ck_assert_uint_eq(job->n_units, 1);
    ck_assert_str_eq(job->units[0]->name, "(root)");
    ck_assert_str_eq(job->spec->device, "cpu"); /* was open: what the workers have */
    ck_assert_int_gt(job->submitted_ms, 1500000000000);
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
    expect_ok(world_call(&world, &test_store_set, &set, NULL));
    Fsdpd__V1__StoreGetRequest get = FSDPD__V1__STORE_GET_REQUEST__INIT;
    get.store = fakes[1].assignment->store;
    get.key = set.key;
    get.timeout_ms = 100;
    expect_ok(world_call(&world, &test_store_get, &get, &response));
    ck_assert_uint_eq(((Fsdpd__V1__StoreGetResponse *)response)->value.len, 7);
    message_free(response);
    get.key = (char *)"nothing";
    expect_status(world_call(&world, &test_store_get, &get, NULL), STATUS_NOT_FOUND, "nothing");

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
    fake_metrics(&fakes[0], 12, 0.5); /* which does not say them again */
    fake_heartbeat(&fakes[0], 17);
    fake_finished(&fakes[1], STATUS_OK, "");
    world_run(&world, 50);
    job = world_job(&world, "mnist-1");
    ck_assert_int_eq(job->state, JOB_RUNNING);
    ck_assert_uint_eq(job->step, 17);
    ck_assert_double_eq(job->metrics->loss, 0.5);
    ck_assert_double_eq(job->metrics->accuracy, 0.98);
    ck_assert(job->metrics->validated);
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
    ck_assert(job->submitted_ms <= job->started_ms && job->started_ms <= job->finished_ms);
    ck_assert(!job->has_state_dict);
    message_free(job);
    get.store = fakes[1].assignment->store;
    expect_status(world_call(&world, &test_store_get, &get, NULL), STATUS_ABORTED, "over");
    ck_assert_int_eq(fakes[0].cancels + fakes[0].cancels_at_once, 0);
    fake_deinit(&fakes[0]);
    fake_deinit(&fakes[1]);
}
END_TEST

START_TEST(test_refusals)
{
    world_start(&world);
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(2);
    /* Nobody can plan it. */
    expect_status(world_call(&world, &test_submit, &request, NULL), STATUS_UNAVAILABLE,
                  "no worker is attached");
    struct fake fake;
    fake_attach(&world, &fake, "host/cpu:0", 1000);
    request.spec->device = (char *)"cuda";
    expect_status(world_call(&world, &test_submit, &request, NULL), STATUS_FAILED_PRECONDITION,
                  "cuda");
    request.spec->device = (char *)"";
    fake.plan_code = STATUS_INVALID_ARGUMENT;
    expect_status(world_call(&world, &test_submit, &request, NULL), STATUS_INVALID_ARGUMENT,
                  "fc1: 9216");
    fake.plan_code = STATUS_OK;
    fake.silent_plans = true;
    world.options.limits.plan_ms = 500;
    expect_ok(coordinator_reload(world.coordinator, &world.options));
    expect_status(world_call(&world, &test_submit, &request, NULL), STATUS_DEADLINE_EXCEEDED,
                  "host/cpu:0");
    fake.silent_plans = false;
    world.options.limits.plan_ms = 20000;
    expect_ok(coordinator_reload(world.coordinator, &world.options));
    int plans = fake.plans;
    request.spec->workers = 0; /* not worth a plan */
    expect_status(world_call(&world, &test_submit, &request, NULL), STATUS_INVALID_ARGUMENT,
                  "workers");
    request.spec->workers = 2;
    request.id = (char *)"../etc";
    expect_status(world_call(&world, &test_submit, &request, NULL), STATUS_INVALID_ARGUMENT, "id");
    request.spec = NULL;
    expect_status(world_call(&world, &test_submit, &request, NULL), STATUS_INVALID_ARGUMENT,
                  "spec");
    ck_assert_int_eq(fake.plans, plans);

    Fsdpd__V1__GetJobRequest get = FSDPD__V1__GET_JOB_REQUEST__INIT;
    get.id = (char *)"mnist-1";
    expect_status(world_call(&world, &test_get, &get, NULL), STATUS_NOT_FOUND, "mnist-1");
    Fsdpd__V1__CancelJobRequest cancel = FSDPD__V1__CANCEL_JOB_REQUEST__INIT;
    cancel.id = get.id;
    expect_status(world_call(&world, &test_cancel, &cancel, NULL), STATUS_NOT_FOUND, "mnist-1");

    Fsdpd__V1__PlanJobRequest plan = FSDPD__V1__PLAN_JOB_REQUEST__INIT;
    plan.spec = world_spec(2);
    plan.dump = true;
    void *response = NULL;
    expect_ok(world_call(&world, &test_plan, &plan, &response));
    ck_assert_str_eq(((Fsdpd__V1__Plan *)response)->dump, "all of it");
    message_free(response);
    expect_ok(world_call(&world, &test_list,
                         &(Fsdpd__V1__ListJobsRequest)FSDPD__V1__LIST_JOBS_REQUEST__INIT,
                         &response));
    ck_assert_uint_eq(((Fsdpd__V1__ListJobsResponse *)response)->n_jobs, 0);
    message_free(response);
    fake_deinit(&fake);
}
END_TEST

START_TEST(test_hello_is_checked)
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
    listener_open(&world, &link, &test_attach, NULL, false);
    Fsdpd__V1__WorkerMessage message = FSDPD__V1__WORKER_MESSAGE__INIT;
    rpc_stream_send(link.stream, &message.base);
    WAIT(&world, link.closed);
    ck_assert_int_eq(status_code(link.status), STATUS_INVALID_ARGUMENT);
    listener_deinit(&link);
    fake_deinit(&first);
}
END_TEST

START_TEST(test_repeated_submission)
{
    world_start(&world);
    struct fake fake;
    fake_attach(&world, &fake, "host/cpu:0", 1000);
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(1);
    request.id = (char *)"mine";
    void *response = NULL;
    for (int i = 0; i < 2; i++) {
        expect_ok(world_call(&world, &test_submit, &request, &response));
        ck_assert_str_eq(((job_message *)response)->id, "mine");
        message_free(response);
    }
    request.spec->train->seed = 2;
    expect_status(world_call(&world, &test_submit, &request, NULL), STATUS_ALREADY_EXISTS, "mine");
    WAIT(&world, fake.assignments == 1);
    fake_finished(&fake, STATUS_OK, "");
    request.spec->train->seed = 1;
    WAIT(&world, world_job_is(&world, "mine", JOB_SUCCEEDED));
    expect_ok(world_call(&world, &test_submit, &request, &response)); /* also when it is over */
    ck_assert_int_eq(((job_message *)response)->state, JOB_SUCCEEDED);
    message_free(response);
    ck_assert_int_eq(fake.plans, 1);
    ck_assert_int_eq(fake.assignments, 1);
    fake_deinit(&fake);
}
END_TEST

START_TEST(test_queue_of_jobs)
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
    world_run(&world, 50);
    /* The rank that is done is free for others although its job goes on. */
    world_check_reason(&world, second, JOB_STARTING, "STARTING", "1 worker");
    ck_assert_str_eq(fakes[0].assignment->job, second);
    fake_finished(&fakes[1], STATUS_OK, "");
    WAIT(&world, fakes[1].assignments == 2);
    ck_assert_str_eq(fakes[1].assignment->job, third);
    world_check_reason(&world, first, JOB_SUCCEEDED, "DONE", "");
    world_check_reason(&world, third, JOB_STARTING, "STARTING", ""); /* beside the second */
    world_check_reason(&world, large, JOB_QUEUED, "WAITING_FOR_WORKERS", "");

    void *response = NULL;
    expect_ok(world_call(&world, &test_list,
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
    expect_ok(world_call(&world, &test_workers,
                         &(Fsdpd__V1__ListWorkersRequest)FSDPD__V1__LIST_WORKERS_REQUEST__INIT,
                         &response));
    Fsdpd__V1__ListWorkersResponse *workers = response;
    ck_assert_uint_eq(workers->n_workers, 2);
    ck_assert_str_eq(workers->workers[1]->state, "busy");
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
END_TEST

START_TEST(test_cancel_jobs)
{
    world_start(&world);
    struct fake fakes[2];
    char *id = world_start_running(&world, fakes), *queued = world_submit(&world, 2);
    expect_ok(world_cancel(&world, queued));
    world_check_reason(&world, queued, JOB_CANCELLED, "CANCELLED", "before it started");
    expect_status(world_cancel(&world, queued), STATUS_FAILED_PRECONDITION, "CANCELLED");

    expect_ok(world_cancel(&world, id));
    expect_ok(world_cancel(&world, id)); /* asking twice changes nothing */
    world_check_reason(&world, id, JOB_RUNNING, "CANCELLING", "step boundary");
    for (int r = 0; r < 2; r++) {
        WAIT(&world, fakes[r].cancels == 1);
        ck_assert_uint_eq(fakes[r].order_sequence, 1);
        fake_finished(&fakes[r], STATUS_CANCELLED, "cancelled by a user");
    }
    WAIT(&world, world_job_is(&world, id, JOB_CANCELLED));
    world_check_reason(&world, id, JOB_CANCELLED, "CANCELLED", "step");
    free(id);

    /* One that does not obey is told again, then cut off; the job is cancelled all the same. */
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
END_TEST

START_TEST(test_lost_worker)
{
    world_start(&world);
    struct fake fakes[2];
    char *id = world_start_running(&world, fakes);
    /* The survivor notices the broken connection first; the reason must still be the lost one. */
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
    /* The other way round: lost while starting, and the survivor is told at once. */
    fake_detach(&fakes[1]);
    WAIT(&world, fakes[0].cancels_at_once >= 1);
    ck_assert(!world_job_is(&world, next, JOB_SUCCEEDED));
    fake_finished(&fakes[0], STATUS_ABORTED, "");
    WAIT(&world, world_job_is(&world, next, JOB_FAILED));
    world_check_reason(&world, next, JOB_FAILED, "WORKER_LOST", "rank 1");
    ck_assert(!fakes[0].closed);
    free(id), free(next);
    for (int r = 0; r < 2; r++) fake_deinit(&fakes[r]);
}
END_TEST

START_TEST(test_failing_ranks)
{
    world_start(&world);
    struct fake fakes[2];
    char *id = world_start_running(&world, fakes);
    /* Of several reports the one that is no consequence counts. */
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
        fake_finished(&fakes[r], STATUS_ABORTED, "told to");
    }
    WAIT(&world, world_job_is(&world, id, JOB_FAILED));
    world_check_reason(&world, id, JOB_FAILED, "PLAN_MISMATCH", "rank 1");
    free(id);

    /* A rank that says nothing after the other failed: the job is failed in bounded time all the
     * same, and the rank is cut off later. */
    id = world_submit(&world, 2);
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].assignments == 3);
    fake_finished(&fakes[0], STATUS_INTERNAL, "a mistake");
    WAIT(&world, world_job_is(&world, id, JOB_FAILED));
    world_check_reason(&world, id, JOB_FAILED, "INTERNAL", "rank 0 (host/cpu:0): a mistake");
    WAIT(&world, fakes[1].closed);
    free(id);
    for (int r = 0; r < 2; r++) fake_deinit(&fakes[r]);
}
END_TEST

START_TEST(test_silent_worker)
{
    /* Of a stall of more than 3 s a coordinator knows, so none makes the other one silent. */
    world.options.limits.silence_ms = 4000;
    world.options.limits.reattach_ms = 50;
    world_start(&world);
    struct fake fakes[2];
    fake_attach(&world, &fakes[0], "host/cpu:0", 1000);
    fake_attach(&world, &fakes[1], "host/cpu:1", 1001);
    char *id = world_submit(&world, 2);
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
END_TEST

static void on_refused(status_t status, const ProtobufCMessage *response, void *user)
{
    (void)response;
    *(enum status_code *)user = status_code(status);
    status_free(status);
}

START_TEST(test_client_that_gives_up_has_submitted_nothing)
{
    world_start(&world);
    struct fake fake;
    fake_attach(&world, &fake, "host/cpu:0", 1000);
    fake.silent_plans = true;
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(1);
    enum status_code code = STATUS_OK;
    rpc_channel_call(world.channel, &test_submit, &request.base, 100, false, on_refused, &code);
    WAIT(&world, code != STATUS_OK);
    ck_assert_int_eq(code, STATUS_DEADLINE_EXCEEDED);
    world_run(&world, 50); /* the server hears of it; then the plan comes, too late */
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
    expect_ok(world_call(&world, &test_list,
                         &(Fsdpd__V1__ListJobsRequest)FSDPD__V1__LIST_JOBS_REQUEST__INIT,
                         &response));
    ck_assert_uint_eq(((Fsdpd__V1__ListJobsResponse *)response)->n_jobs, 0);
    message_free(response);
    ck_assert_int_eq(fake.assignments, 0);
    fake_deinit(&fake);
}
END_TEST

START_TEST(test_long_reasons_stay_text)
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
             world_job_is(&world, id, JOB_FAILED)); /* our client refuses what is no UTF-8 */
        job_message *job = world_job(&world, id);
        size_t length = strlen(job->reason->message);
        ck_assert_uint_gt(length, 4000);
        ck_assert_uint_eq((length - (size_t)shift) % 4, 0);
        message_free(job);
        free(id);
    }
    fake_deinit(&fake);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator");
    TCase *parts = tcase_create("parts");
    tcase_set_timeout(parts, 60);
    tcase_add_test(parts, test_rendezvous);
    tcase_add_test(parts, test_ids);
    suite_add_tcase(suite, parts);
    TCase *whole = tcase_create("whole");
    tcase_add_checked_fixture(whole, set_up, tear_down);
    tcase_set_timeout(whole, 60);
    tcase_add_test(whole, test_a_job_from_submit_to_done);
    tcase_add_test(whole, test_refusals);
    tcase_add_test(whole, test_hello_is_checked);
    tcase_add_test(whole, test_repeated_submission);
    tcase_add_test(whole, test_queue_of_jobs);
    tcase_add_test(whole, test_cancel_jobs);
    tcase_add_test(whole, test_lost_worker);
    tcase_add_test(whole, test_failing_ranks);
    tcase_add_test(whole, test_silent_worker);
    tcase_add_test(whole, test_client_that_gives_up_has_submitted_nothing);
    tcase_add_test(whole, test_long_reasons_stay_text);
    suite_add_tcase(suite, whole);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
