/*
 * How a coordinator's processes and its own life begin and end: supervised workers, draining, what
 * an earlier run left, a full disk, and starts that must fail.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "coordinator/store.h"
#include "test_coordinator_world.h"

enum { FULL_BYTES_MIN = 64 << 10 };

static struct world world;

static void set_up(void)
{
    world_init(&world);
}

static void tear_down(void)
{
    world_deinit(&world);
}

/* ---- supervised processes ---- */

/* Children that do nothing: the test speaks for them, under their process ids. */
static void supervise(int count, const char *script)
{
    char *program = world_path(&world, "worker.sh");
    expect_ok(file_write_atomic(program, script, strlen(script), 0700));
    world.options.program = program;
    world.options.local_workers = count;
    world_start(&world);
    free(program);
}

static Fsdpd__V1__ListWorkersResponse *list_workers(void)
{
    void *response = NULL;
    expect_ok(world_call(&world, &test_workers,
                         &(Fsdpd__V1__ListWorkersRequest)FSDPD__V1__LIST_WORKERS_REQUEST__INIT,
                         &response));
    return response;
}

START_TEST(test_killed_child)
{
    supervise(2, "#!/bin/sh\nexec sleep 60\n");
    char ids[2][160];
    pid_t pids[2];
    Fsdpd__V1__ListWorkersResponse *workers = list_workers();
    ck_assert_uint_eq(workers->n_workers, 2);
    struct fake fakes[2];
    for (int i = 0; i < 2; i++) {
        ck_assert_str_eq(workers->workers[i]->state, "starting");
        snprintf(ids[i], sizeof ids[i], "%s", workers->workers[i]->id);
        pids[i] = (pid_t)workers->workers[i]->pid;
        ck_assert_int_gt(pids[i], 1);
        fake_attach(&world, &fakes[i], ids[i], pids[i]);
    }
    message_free(workers);
    char *id = world_submit(&world, 2);
    for (int r = 0; r < 2; r++) {
        WAIT(&world, fakes[r].assignments == 1);
        fake_started(&fakes[r], 42);
    }
    char words[256];
    snprintf(words, sizeof words, "rank 1 (%s) was killed by signal 9 (SIGKILL)", ids[1]);

    /* As in life: the link breaks first, the exit status comes a moment later. */
    fake_detach(&fakes[1]);
    world_run(&world, 50);
    ck_assert(!world_job_is(&world, id, JOB_FAILED));
    ck_assert_int_eq(kill(pids[1], SIGKILL), 0);
    WAIT(&world, fakes[0].cancels_at_once == 1);
    fake_finished(&fakes[0], STATUS_ABORTED, "");
    WAIT(&world, world_job_is(&world, id, JOB_FAILED));
    world_check_reason(&world, id, JOB_FAILED, "WORKER_LOST", words);
    fake_deinit(&fakes[1]);

    /* It is started again, as another process under the same name. */
    pid_t again = 0;
    while (again == 0 || again == pids[1]) {
        workers = list_workers();
        for (size_t i = 0; i < workers->n_workers; i++)
            if (strcmp(workers->workers[i]->id, ids[1]) == 0)
                again = (pid_t)workers->workers[i]->pid;
        message_free(workers);
        world_run(&world, 20);
    }
    fake_attach(&world, &fakes[1], ids[1], again);
    workers = list_workers();
    ck_assert_uint_eq(workers->workers[1]->restarts, 1);
    ck_assert_str_eq(workers->workers[1]->state, "idle");
    message_free(workers);

    /* The other order: the exit is known while the link still looks alive. */
    free(id);
    id = world_submit(&world, 2);
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].assignment != NULL);
    WAIT(&world, fakes[0].assignments == 2);
    ck_assert_int_eq(kill(again, SIGSEGV), 0);
    WAIT(&world, fakes[1].closed);
    WAIT(&world, fakes[0].cancels_at_once == 2);
    fake_finished(&fakes[0], STATUS_ABORTED, "");
    WAIT(&world, world_job_is(&world, id, JOB_FAILED));
    world_check_reason(&world, id, JOB_FAILED, "WORKER_LOST", "was killed by signal 11 (SIGSEGV)");
    free(id);
    for (int r = 0; r < 2; r++) fake_deinit(&fakes[r]);
}
END_TEST

/* A worker that is drained with its host is so while it starts, too: there is nothing to undrain.
 */
START_TEST(test_undrain_of_one_that_starts)
{
    supervise(1, "#!/bin/sh\nexec sleep 60\n");
    Fsdpd__V1__ListWorkersResponse *workers = list_workers();
    Fsdpd__V1__DrainWorkersRequest drain = FSDPD__V1__DRAIN_WORKERS_REQUEST__INIT;
    Fsdpd__V1__UndrainWorkersRequest undrain = FSDPD__V1__UNDRAIN_WORKERS_REQUEST__INIT;
    ck_assert_str_eq(workers->workers[0]->state, "starting");
    drain.worker = workers->workers[0]->host;
    undrain.worker = workers->workers[0]->id;
    expect_ok(world_call(&world, &test_undrain, &undrain, NULL)); /* it is not drained */
    expect_ok(world_call(&world, &test_drain, &drain, NULL));
    expect_status(world_call(&world, &test_undrain, &undrain, NULL), STATUS_FAILED_PRECONDITION,
                  "is drained with its host: undrain ");
    undrain.worker = drain.worker;
    expect_ok(world_call(&world, &test_undrain, &undrain, NULL));
    message_free(workers);
}
END_TEST

START_TEST(test_child_that_does_not_obey_is_killed)
{
    supervise(1, "#!/bin/sh\nexec sleep 60\n");
    Fsdpd__V1__ListWorkersResponse *workers = list_workers();
    char id[160];
    snprintf(id, sizeof id, "%s", workers->workers[0]->id);
    struct fake fake;
    pid_t pid = (pid_t)workers->workers[0]->pid;
    fake_attach(&world, &fake, id, pid);
    message_free(workers);
    char *job = world_submit(&world, 1);
    WAIT(&world, fake.assignments == 1);
    expect_ok(world_cancel(&world, job));
    WAIT(&world, world_job_is(&world, job, JOB_CANCELLED));
    world_check_by(&world, job, "CANCELLED", true);
    ck_assert_int_eq(fake.cancels, 1);
    ck_assert_int_eq(fake.cancels_at_once, 1);
    ck_assert_int_ne(kill(pid, 0), 0); /* and reaped */
    free(job);
    fake_deinit(&fake);
}
END_TEST

START_TEST(test_child_that_cannot_stay_is_started_less_and_less_often)
{
    supervise(1, "#!/bin/sh\nexit 3\n");
    int64_t begin = clock_monotonic_ns();
    uint32_t restarts = 0;
    while (restarts < 4) {
        world_run(&world, 20);
        Fsdpd__V1__ListWorkersResponse *workers = list_workers();
        ck_assert_str_eq(workers->workers[0]->state, "starting");
        restarts = workers->workers[0]->restarts;
        message_free(workers);
    }
    /* At 0.1, 0.3, 0.7 and 1.5 s at the earliest. */
    ck_assert_int_ge((clock_monotonic_ns() - begin) / 1000000, restarts == 4 ? 1500 : 3100);
}
END_TEST

START_TEST(test_program_that_is_missing)
{
    world.options.program = "/nonexistent/fsdpd";
    world.options.local_workers = 1;
    world_start(&world);
    world_run(&world, 100);
    Fsdpd__V1__ListWorkersResponse *workers = list_workers();
    ck_assert_uint_eq(workers->n_workers, 1);
    ck_assert_int_eq(workers->workers[0]->pid, 0);
    message_free(workers);
}
END_TEST

/* ---- ends and beginnings ---- */

static void on_flag(void *user)
{
    *(bool *)user = true;
}

static char *submit_with_budget(uint32_t machine_failures)
{
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(1);
    request.spec->retry->machine_failures = machine_failures;
    void *response = NULL;
    expect_ok(world_call(&world, &test_submit, &request, &response));
    char *id = mem_strdup(((job_message *)response)->id);
    message_free(response);
    return id;
}

/* An attempt on this coordinator's own workers ends with it: with a checkpoint (2), and the job
 * goes on afterwards; without one (0, 1) that is so if machines may fail it (1). The queue stays.
 */
START_TEST(test_stop)
{
    supervise(1, "#!/bin/sh\nexec sleep 60\n");
    Fsdpd__V1__ListWorkersResponse *workers = list_workers();
    char name[160];
    snprintf(name, sizeof name, "%s", workers->workers[0]->id);
    struct fake fake;
    fake_attach(&world, &fake, name, workers->workers[0]->pid);
    message_free(workers);
    char *id = submit_with_budget(_i == 1 ? 1 : 0), *queued = world_submit(&world, 1);
    WAIT(&world, fake.assignments == 1);
    fake_started(&fake, 42);
    WAIT(&world, world_job_is(&world, id, JOB_RUNNING));
    bool closed = false;
    coordinator_drain(world.coordinator, on_flag, &closed);
    WAIT(&world, fake.pauses == 1);
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(1);
    expect_status(world_call(&world, &test_submit, &request, NULL), STATUS_UNAVAILABLE,
                  "shutting down");
    world_check_reason(&world, id, JOB_RUNNING, "STOPPING", "shutting down");
    if (_i == 2) {
        fake_checkpoint(&fake, fake.checkpoint, 6, STATUS_OK, "", NULL);
        fake_ended(&fake, STATUS_CANCELLED, "PAUSED", "paused at step 6");
    } else { /* there is no room for one */
        fake_checkpoint(&fake, fake.checkpoint, 6, STATUS_RESOURCE_EXHAUSTED, "disk full", NULL);
        WAIT(&world, fake.cancels == 1);
        fake_finished(&fake, STATUS_CANCELLED, "");
    }
    WAIT(&world, fake.closed);
    WAIT(&world, closed);
    world.coordinator = NULL;
    fake_deinit(&fake);
    bool channel_closed = false;
    rpc_channel_close(world.channel, on_flag, &channel_closed);
    WAIT(&world, channel_closed);

    world.options.program = NULL;
    world.options.local_workers = 0;
    world_start(&world);
    if (_i == 0) world_check_reason(&world, id, JOB_FAILED, "SHUTDOWN", "fsdpd was stopped");
    else ck_assert(world_job_is(&world, id, JOB_QUEUED));
    job_message *job = world_job(&world, queued);
    ck_assert_int_eq(job->state, JOB_QUEUED);
    message_free(job);
    fake_attach(&world, &fake, "host/cpu:0", 1000);
    WAIT(&world, fake.assignments == 1);
    ck_assert_str_eq(fake.assignment->job, _i == 0 ? queued : id);
    ck_assert_uint_eq(fake.assignment->attempt, _i == 0 ? 1 : 2);
    ck_assert_int_eq(fake.assignment->must_resume, _i == 2);
    free(id), free(queued);
    fake_deinit(&fake);
}
END_TEST

/* An attempt that fails while fsdpd stops is tried again when it is back. */
START_TEST(test_failure_while_stopping)
{
    supervise(1, "#!/bin/sh\nexec sleep 60\n");
    Fsdpd__V1__ListWorkersResponse *workers = list_workers();
    char name[160];
    snprintf(name, sizeof name, "%s", workers->workers[0]->id);
    struct fake fake, other;
    fake_attach(&world, &fake, name, workers->workers[0]->pid);
    message_free(workers);
    char *own = world_submit(&world, 1);
    WAIT(&world, fake.assignments == 1);
    fake_started(&fake, 42);
    WAIT(&world, world_job_is(&world, own, JOB_RUNNING));
    /* On a worker of its own, which fsdpd's end is not to disturb. */
    fake_attach(&world, &other, "elsewhere/cpu:0", 1000);
    char *id = submit_with_budget(1);
    WAIT(&world, other.assignments == 1);
    fake_started(&other, 42);
    WAIT(&world, world_job_is(&world, id, JOB_RUNNING));
    bool closed = false;
    coordinator_drain(world.coordinator, on_flag, &closed);
    WAIT(&world, fake.pauses == 1);
    fake_finished(&other, STATUS_UNAVAILABLE, "its network is gone");
    WAIT(&world, !world_job_is(&world, id, JOB_RUNNING));
    world_check_reason(&world, id, JOB_QUEUED, "RETRYING", "failure 1 of 1 of machines");
    fake_checkpoint(&fake, fake.checkpoint, 6, STATUS_OK, "", NULL);
    fake_ended(&fake, STATUS_CANCELLED, "PAUSED", "paused at step 6");
    WAIT(&world, closed);
    world.coordinator = NULL;
    WAIT(&world, fake.closed && other.closed);
    fake_deinit(&fake);
    fake_deinit(&other);
    bool channel_closed = false;
    rpc_channel_close(world.channel, on_flag, &channel_closed);
    WAIT(&world, channel_closed);
    world.options.program = NULL;
    world.options.local_workers = 0;
    world_start(&world);
    ck_assert(world_job_is(&world, id, JOB_QUEUED));
    free(id), free(own);
}
END_TEST

/* What a coordinator that was killed leaves: records in the middle of things. */
static void leave_job(struct store *store, const char *id, enum job_state state)
{
    job_message job = FSDPD__V1__JOB__INIT;
    Fsdpd__V1__Reason reason = FSDPD__V1__REASON__INIT;
    Fsdpd__V1__StateChange change = FSDPD__V1__STATE_CHANGE__INIT;
    Fsdpd__V1__Metrics metrics = FSDPD__V1__METRICS__INIT;
    job_event event = FSDPD__V1__JOB_EVENT__INIT;
    metrics.loss = 0.25;
    reason.code = (char *)"BEFORE";
    job.id = (char *)id;
    job.name = (char *)"mnist";
    job.state = (Fsdpd__V1__JobState)state;
    job.reason = &reason;
    job.metrics = &metrics;
    job.spec = world_spec(1);
    job.spec->device = (char *)"cpu";
    job.attempt = state == JOB_QUEUED ? 0 : 1;
    event.sequence = 1;
    event.event_case = FSDPD__V1__JOB_EVENT__EVENT_STATE;
    event.state = &change;
    expect_ok(store_insert_job(store, &job, &event));
    job.spec->device = (char *)"";
}

START_TEST(test_recovery)
{
    char *path = world_path(&world, "state/store.db");
    char *directory = world_path(&world, "state");
    expect_ok(file_make_directory(directory, 0700));
    struct store *store = NULL;
    expect_ok(store_open(path, &store));
    leave_job(store, "done", JOB_SUCCEEDED);
    leave_job(store, "running", JOB_RUNNING);
    leave_job(store, "starting", JOB_STARTING);
    leave_job(store, "queued", JOB_QUEUED);
    store_close(store);
    free(path);
    free(directory);
    directory = world_path(&world, "state/jobs/running");
    path = world_path(&world, "state/jobs/running/state_dict.safetensors.tmp");
    expect_ok(file_make_directory(directory, 0700));
    expect_ok(file_write_atomic(path, "half", 4, 0600));
    free(directory);

    world_start(&world);
    ck_assert_int_ne(access(path, F_OK), 0);
    free(path);
    world_check_reason(&world, "done", JOB_SUCCEEDED, "BEFORE", "");
    world_check_reason(&world, "running", JOB_FAILED, "COORDINATOR_RESTARTED", "RUNNING");
    world_check_reason(&world, "starting", JOB_FAILED, "COORDINATOR_RESTARTED", "STARTING");
    job_message *job = world_job(&world, "running");
    ck_assert_double_eq(job->metrics->loss, 0.25);
    ck_assert_int_gt(job->finished_ms, 0);
    message_free(job);
    struct fake fake;
    fake_attach(&world, &fake, "host/cpu:0", 1000);
    WAIT(&world, fake.assignments == 1);
    ck_assert_str_eq(fake.assignment->job, "queued");
    ck_assert_uint_eq(fake.assignment->attempt, 1);
    fake_deinit(&fake);
}
END_TEST

/* Files may not grow beyond this; as a full disk, for the store. Check's own file of messages is
 * one of them: so there must be room for some thousand of its marks. */
static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

START_TEST(test_full_disk)
{
    signal(SIGXFSZ, SIG_IGN);
    log_set_level(LOG_ERROR + 1); /* what is expected is not worth a line */
    world_start(&world);
    struct fake fakes[2];
    char *id = world_start_running(&world, fakes);
    char *log = world_path(&world, "state/store.db-wal");
    struct stat info;
    ck_assert_int_eq(stat(log, &info), 0);
    ck_assert_int_ge(info.st_size, FULL_BYTES_MIN);
    limit_files((rlim_t)info.st_size);
    free(log);
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(1);
    status_t status = world_call(&world, &test_submit, &request, NULL);
    ck_assert(status != NULL); /* what cannot be kept is not accepted */
    ck_assert_ptr_nonnull(strstr(status_message(status), "store.db"));
    status_free(status);

    /* What happens meanwhile is known, and written as soon as there is room. */
    for (uint64_t step = 48; step <= 50; step++) fake_metrics(&fakes[0], step, 0.5);
    for (int r = 0; r < 2; r++) fake_finished(&fakes[r], STATUS_OK, "");
    WAIT(&world, world_job_is(&world, id, JOB_SUCCEEDED));
    world_run(&world, 300);
    world_check_reason(&world, id, JOB_SUCCEEDED, "DONE", "");
    expect_status(world_cancel(&world, id), STATUS_FAILED_PRECONDITION, id);
    limit_files(RLIM_INFINITY);
    world_run(&world, 300);
    char *next = world_submit(&world, 2);
    for (int r = 0; r < 2; r++) {
        WAIT(&world, fakes[r].assignments == 2);
        fake_finished(&fakes[r], STATUS_OK, "");
    }
    WAIT(&world, world_job_is(&world, next, JOB_SUCCEEDED));
    for (int r = 0; r < 2; r++) fake_deinit(&fakes[r]);
    world_stop(&world);
    world_start(&world);
    world_check_reason(&world, id, JOB_SUCCEEDED, "DONE", "");
    job_message *job = world_job(&world, id);
    ck_assert_double_eq(job->metrics->loss, 0.5);
    message_free(job);
    /* Every event that the disk refused is there. */
    struct listener all;
    Fsdpd__V1__WatchJobRequest watch = FSDPD__V1__WATCH_JOB_REQUEST__INIT;
    watch.id = id;
    listener_open(&world, &all, &test_watch, &watch, false);
    WAIT(&world, all.closed);
    int metrics = 0;
    for (int i = 0; i < all.count; i++) {
        const job_event *event = all.messages[i];
        ck_assert_uint_eq(event->sequence, (uint64_t)i + 1);
        metrics += event->event_case == FSDPD__V1__JOB_EVENT__EVENT_METRICS;
    }
    ck_assert_int_eq(metrics, 3);
    listener_deinit(&all);
    free(id), free(next);
}
END_TEST

START_TEST(test_start_failures)
{
    world_start(&world);
    struct coordinator *second = NULL;
    char pid[32];
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    expect_status(coordinator_new(&world.loop, &world.options, &second), STATUS_FAILED_PRECONDITION,
                  pid);
    struct coordinator_options other = world.options;
    other.runtime_dir = world_path(&world, "elsewhere"); /* the state directory is taken too */
    expect_status(coordinator_new(&world.loop, &other, &second), STATUS_FAILED_PRECONDITION,
                  "store.lock");
    other.state_dir = world_path(&world, "other-state");
    other.listen[0] = "127.0.0.1:0";
    other.listen_count = 1;
    expect_status(coordinator_new(&world.loop, &other, &second), STATUS_PERMISSION_DENIED,
                  "--insecure-tcp");
    world_run(&world, 100); /* what failed lets go of its locks */
    other.listen[0] = "not an address";
    expect_status(coordinator_new(&world.loop, &other, &second), STATUS_INVALID_ARGUMENT,
                  "not an address");
    world_run(&world, 100);
    other.listen_count = 0;
    free((char *)other.runtime_dir);
    char name[160];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    other.runtime_dir = world_path(&world, name);
    expect_status(coordinator_new(&world.loop, &other, &second), STATUS_INVALID_ARGUMENT,
                  "--runtime-dir");
    world_run(&world, 50);
    struct stat info;
    char *path = world_path(&world, "run/fsdpd.sock");
    ck_assert_int_eq(stat(path, &info), 0); /* the first one's is still there */
    ck_assert_uint_eq(info.st_mode & 0777, 0660);
    void *response = NULL;
    expect_ok(world_call(&world, &test_version,
                         &(Fsdpd__V1__GetVersionRequest)FSDPD__V1__GET_VERSION_REQUEST__INIT,
                         &response));
    ck_assert_str_eq(((Fsdpd__V1__Version *)response)->api, "fsdpd.v1");
    message_free(response);
    world_stop(&world);
    ck_assert_int_ne(stat(path, &info), 0);
    free(path);
    free((char *)other.runtime_dir);
    free((char *)other.state_dir);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coordinator ends");
    TCase *tests = tcase_create("ends");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_killed_child);
    tcase_add_test(tests, test_undrain_of_one_that_starts);
    tcase_add_test(tests, test_child_that_does_not_obey_is_killed);
    tcase_add_test(tests, test_child_that_cannot_stay_is_started_less_and_less_often);
    tcase_add_test(tests, test_program_that_is_missing);
    tcase_add_loop_test(tests, test_stop, 0, 3);
    tcase_add_test(tests, test_failure_while_stopping);
    tcase_add_test(tests, test_recovery);
    tcase_add_test(tests, test_full_disk);
    tcase_add_test(tests, test_start_failures);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
