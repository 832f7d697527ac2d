/*
 * How a coordinator's processes and the coordinator itself begin and end: supervised workers,
 * draining, leftovers of an earlier run, a full disk, and starts that must fail.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "coordinator/store/store.h"
#include "test_coordinator_world.h"
#include "tests/testing.h"

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

/* Children that do nothing: the test acts for them, under their process ids. */
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
    expect_ok(world_call(&world, &control_list_workers,
                         &(Fsdpd__V1__ListWorkersRequest)FSDPD__V1__LIST_WORKERS_REQUEST__INIT,
                         &response));
    return response;
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

TEST(killed_child)
{
    supervise(2, "#!/bin/sh\nexec sleep 60\n");
    char ids[2][160];
    pid_t pids[2];
    Fsdpd__V1__ListWorkersResponse *workers = list_workers();
    ck_assert_uint_eq(workers->n_workers, 2);
    struct fake fakes[2];
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(workers->workers[i]->state,
                         FSDPD__V1__WORKER_STATE__WORKER_STATE_STARTING);
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

    /* As in practice: the link breaks first, the exit status comes a moment later. */
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
    ck_assert_int_eq(workers->workers[1]->state, FSDPD__V1__WORKER_STATE__WORKER_STATE_IDLE);
    message_free(workers);

    /* The other order: the exit is known while the link still looks alive. */
    free(id);
    id = world_submit(&world, 2);
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].assignments == (r == 0 ? 2 : 1));
    for (int r = 0; r < 2; r++) fake_started(&fakes[r], 42);
    WAIT(&world, world_job_is(&world, id, JOB_RUNNING));
    ck_assert_int_eq(kill(again, SIGSEGV), 0);
    WAIT(&world, fakes[1].closed);
    WAIT(&world, fakes[0].cancels_at_once == 2);
    fake_finished(&fakes[0], STATUS_ABORTED, "");
    WAIT(&world, world_job_is(&world, id, JOB_FAILED));
    world_check_reason(&world, id, JOB_FAILED, "WORKER_LOST", "was killed by signal 11 (SIGSEGV)");
    free(id);
    for (int r = 0; r < 2; r++) fake_deinit(&fakes[r]);
}

/* Writes a file like the kernel's with its count of OOM kills. */
static void write_kills(const char *path, int kills)
{
    char *text = mem_printf("low 0\noom 3\noom_kill %d\noom_group_kill 0\n", kills);
    expect_ok(file_write_atomic(path, text, strlen(text), 0600));
    free(text);
}

/* Attaches the only local worker once its process differs from `before`; returns that process. */
static pid_t attach_next_child(struct fake *fake, const char *worker, pid_t before)
{
    pid_t pid = before;
    while (pid == before || pid == 0) {
        world_run(&world, 20);
        Fsdpd__V1__ListWorkersResponse *workers = list_workers();
        pid = (pid_t)workers->workers[0]->pid;
        message_free(workers);
    }
    fake_attach(&world, fake, worker, pid);
    return pid;
}

/* The cause of a worker's kill: the kernel for lack of memory, certainly or most likely; an unknown
 * process; fsdpd. One count of the kernel's explains one end. */
TEST(killer_of_a_child_is_named)
{
    static const char *const words[] = {
        "was killed by the kernel's OOM killer (SIGKILL): the memory of fsdpd's cgroup ran out",
        "was killed by signal 9 (SIGKILL), most likely by the kernel's OOM killer: the system "
        "counted",
        "was killed by signal 9 (SIGKILL)",
        "was killed by fsdpd (SIGKILL): it was silent for ",
    };
    char *cgroup = world_path(&world, "memory.events"), *vmstat = world_path(&world, "vmstat");
    write_kills(cgroup, 7);
    write_kills(vmstat, 70);
    world.options.cgroup_events = cgroup;
    world.options.vmstat = vmstat;
    world.options.limits.silence_ms = 4000;
    supervise(1, "#!/bin/sh\nexec sleep 60\n");
    Fsdpd__V1__ListWorkersResponse *workers = list_workers();
    char worker[160];
    snprintf(worker, sizeof worker, "%s", workers->workers[0]->id);
    message_free(workers);
    pid_t pid = 0;
    for (int i = 0; i < 4; i++) {
        struct fake fake;
        pid = attach_next_child(&fake, worker, pid);
        char *id = world_submit(&world, 1);
        WAIT(&world, fake.assignments == 1);
        fake_started(&fake, 42);
        WAIT(&world, world_job_is(&world, id, JOB_RUNNING));
        if (i == 0) write_kills(cgroup, 8);
        if (i <= 1) write_kills(vmstat, 71 + i);
        if (i < 3) ck_assert_int_eq(kill(pid, SIGKILL), 0);
        WAIT(&world, world_job_is(&world, id, JOB_FAILED));
        world_check_reason(&world, id, JOB_FAILED, "WORKER_LOST", words[i]);
        job_message *job = world_job(&world, id);
        if (i == 2) ck_assert_ptr_null(strstr(job->reason->message, "OOM"));
        message_free(job);
        free(id);
        fake_deinit(&fake);
    }
    free(cgroup), free(vmstat);
}

/* A worker drained with its host stays drained while it starts: there is nothing to undrain. */
TEST(undrain_of_one_that_starts)
{
    supervise(1, "#!/bin/sh\nexec sleep 60\n");
    Fsdpd__V1__ListWorkersResponse *workers = list_workers();
    Fsdpd__V1__DrainWorkersRequest drain = FSDPD__V1__DRAIN_WORKERS_REQUEST__INIT;
    Fsdpd__V1__UndrainWorkersRequest undrain = FSDPD__V1__UNDRAIN_WORKERS_REQUEST__INIT;
    ck_assert_int_eq(workers->workers[0]->state, FSDPD__V1__WORKER_STATE__WORKER_STATE_STARTING);
    drain.worker = workers->workers[0]->host;
    undrain.worker = workers->workers[0]->id;
    expect_ok(world_call(&world, &control_undrain_workers, &undrain, NULL)); /* it is not drained */
    expect_ok(world_call(&world, &control_drain_workers, &drain, NULL));
    expect_status(world_call(&world, &control_undrain_workers, &undrain, NULL),
                  STATUS_FAILED_PRECONDITION, "is drained with its host: undrain ");
    undrain.worker = drain.worker;
    expect_ok(world_call(&world, &control_undrain_workers, &undrain, NULL));
    message_free(workers);
}

TEST(child_that_does_not_obey_is_killed)
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

TEST(failing_child_restarts_with_growing_pauses)
{
    supervise(1, "#!/bin/sh\nexit 3\n");
    int64_t begin = clock_monotonic_ns();
    uint32_t restarts = 0;
    while (restarts < 4) {
        world_run(&world, 20);
        Fsdpd__V1__ListWorkersResponse *workers = list_workers();
        ck_assert_int_eq(workers->workers[0]->state,
                         FSDPD__V1__WORKER_STATE__WORKER_STATE_STARTING);
        restarts = workers->workers[0]->restarts;
        message_free(workers);
    }
    /* At 0.1, 0.3, 0.7 and 1.5 s at the earliest. */
    ck_assert_int_ge((clock_monotonic_ns() - begin) / 1000000, restarts == 4 ? 1500 : 3100);
}

/* Whether the latest child has begun with a level of the log. */
static bool has_begun(bool with_level)
{
    AUTO_FREE char *path = world_path(&world, "worker.sh.begun");
    AUTO(buf_deinit) struct buf lines = {0};
    if (access(path, F_OK) != 0) return false;
    expect_ok(file_read(path, 1 << 20, &lines));
    if (lines.length == 0 || lines.data[lines.length - 1] != '\n') return false;
    lines.data[lines.length - 1] = '\0';
    const char *last = strrchr(lines.data, '\n');
    const char *found = strstr(last != NULL ? last : lines.data, " --log-level debug");
    return (found != NULL) == with_level;
}

TEST(children_begin_with_the_level_of_the_log)
{
    world.options.log_level = "debug";
    supervise(1, "#!/bin/sh\necho \"$*\" >> \"$0.begun\"\nexit 3\n");
    WAIT(&world, has_begun(true));
    world.options.log_level = NULL;
    world_reload(&world, &world.options);
    WAIT(&world, has_begun(false));
}

TEST(program_that_is_missing)
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
    expect_ok(world_call(&world, &control_submit_job, &request, &response));
    char *id = mem_strdup(((job_message *)response)->id);
    message_free(response);
    return id;
}

/* An attempt on this coordinator's own workers ends with it: with a checkpoint (2), and the job
 * continues afterwards; without one (0, 1) only if machines may fail it (1). The queue stays. */
LOOP_TEST(stop, 0, 3)
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
    expect_status(world_call(&world, &control_submit_job, &request, NULL), STATUS_UNAVAILABLE,
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

/* An attempt that fails while fsdpd stops is retried when fsdpd is back. */
TEST(failure_while_stopping)
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
    /* On a separate worker, which fsdpd's end must not disturb. */
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

/* What a killed coordinator leaves: records of unfinished work. */
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

TEST(recovery)
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
    ck_assert(world_job_is(&world, "starting", JOB_QUEUED)); /* no rank had begun */
    job_message *job = world_job(&world, "running");
    ck_assert_double_eq(job->metrics->loss, 0.25);
    ck_assert_ptr_nonnull(job->finish_time);
    message_free(job);
    struct fake fake;
    fake_attach(&world, &fake, "host/cpu:0", 1000);
    WAIT(&world, fake.assignments == 1);
    ck_assert_str_eq(fake.assignment->job, "starting");
    fake_finished(&fake, STATUS_INTERNAL, "a mistake");
    WAIT(&world, fake.assignments == 2);
    ck_assert_str_eq(fake.assignment->job, "queued");
    ck_assert_uint_eq(fake.assignment->attempt, 1);
    fake_deinit(&fake);
}

/* Limits the size of files; for the store, this is a full disk. Check's own file of messages is one
 * of them: so there must be room for some thousand of its marks. */
static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

TEST(full_disk)
{
    signal(SIGXFSZ, SIG_IGN);
    log_set_level(LOG_ERROR + 1); /* expected messages are not worth a line */
    world_start(&world);
    struct fake fakes[2];
    char *id = world_start_running(&world, fakes), *queued = world_submit(&world, 2);
    char *log = world_path(&world, "state/store.db-wal");
    struct stat info;
    ck_assert_int_eq(stat(log, &info), 0);
    ck_assert_int_ge(info.st_size, FULL_BYTES_MIN);
    limit_files((rlim_t)info.st_size);
    free(log);
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(1);
    status_t status = world_call(&world, &control_submit_job, &request, NULL);
    ck_assert(status != NULL); /* what fsdpd cannot keep, it does not accept */
    ck_assert_ptr_nonnull(strstr(status_message(status), "store.db"));
    status_free(status);

    expect_status(world_cancel(&world, queued), STATUS_UNAVAILABLE, "could not be written");

    /* fsdpd keeps later events in memory, and writes them as soon as there is room. */
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
    world_check_reason(&world, queued, JOB_CANCELLED, "CANCELLED", "before it started");
    job_message *job = world_job(&world, id);
    ck_assert_double_eq(job->metrics->loss, 0.5);
    message_free(job);
    /* Every event that the disk refused is there. */
    struct listener all;
    Fsdpd__V1__WatchJobRequest watch = FSDPD__V1__WATCH_JOB_REQUEST__INIT;
    watch.id = id;
    listener_open(&world, &all, &control_watch_job, &watch, false);
    WAIT(&world, all.closed);
    int metrics = 0;
    for (int i = 0; i < all.count; i++) {
        const job_event *event = all.messages[i];
        ck_assert_uint_eq(event->sequence, (uint64_t)i + 1);
        metrics += event->event_case == FSDPD__V1__JOB_EVENT__EVENT_METRICS;
    }
    ck_assert_int_eq(metrics, 3);
    listener_deinit(&all);
    free(id), free(next), free(queued);
}

/* Starts another one; one that failed to start releases its locks a few turns later. */
static status_t start_after_another(const struct coordinator_options *options)
{
    struct coordinator *second = NULL;
    status_t status = coordinator_new(&world.loop, options, &second);
    for (int i = 0; i < 3000 && status_code(status) == STATUS_FAILED_PRECONDITION; i++) {
        status_free(status);
        world_run(&world, 10);
        status = coordinator_new(&world.loop, options, &second);
    }
    return status;
}

TEST(start_failures)
{
    world_start(&world);
    struct coordinator *second = NULL;
    char pid[32];
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    expect_status(coordinator_new(&world.loop, &world.options, &second), STATUS_FAILED_PRECONDITION,
                  pid);
    struct coordinator_options other = world.options;
    other.runtime_dir = world_path(&world, "elsewhere"); /* the state directory is in use, too */
    expect_status(coordinator_new(&world.loop, &other, &second), STATUS_FAILED_PRECONDITION,
                  "store.lock");
    other.state_dir = world_path(&world, "other-state");
    other.listen[0] = "127.0.0.1:0";
    other.listen_count = 1;
    expect_status(coordinator_new(&world.loop, &other, &second), STATUS_PERMISSION_DENIED,
                  "--insecure-tcp");
    other.listen[0] = "not an address";
    expect_status(start_after_another(&other), STATUS_INVALID_ARGUMENT, "not an address");
    other.listen_count = 0;
    free((char *)other.runtime_dir);
    char name[160];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    other.runtime_dir = world_path(&world, name);
    expect_status(start_after_another(&other), STATUS_INVALID_ARGUMENT, "--runtime-dir");
    world_run(&world, 50);
    struct stat info;
    char *path = world_path(&world, "run/fsdpd.sock");
    ck_assert_int_eq(stat(path, &info), 0); /* the first one's still exists */
    ck_assert_uint_eq(info.st_mode & 0777, 0660);
    void *response = NULL;
    expect_ok(world_call(&world, &control_get_version,
                         &(Fsdpd__V1__GetVersionRequest)FSDPD__V1__GET_VERSION_REQUEST__INIT,
                         &response));
    ck_assert_str_eq(((Fsdpd__V1__GetVersionResponse *)response)->api, "fsdpd.v1");
    message_free(response);
    world_stop(&world);
    ck_assert_int_ne(stat(path, &info), 0);
    free(path);
    free((char *)other.runtime_dir);
    free((char *)other.state_dir);
}
