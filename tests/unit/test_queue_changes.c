/*
 * User actions on jobs and workers: hold, release, priorities, ownership, drains; and how jobs are
 * forgotten, one by one or for their age and number. A real coordinator with workers that exist
 * only as links (test_coordinator_world.h).
 */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "coordinator/calls/access.h"
#include "test_queue_world.h"
#include "tests/testing.h"

static struct world world;

static void set_up(void)
{
    world_init(&world);
}

static void tear_down(void)
{
    world_deinit(&world);
}

static status_t hold(const char *id, void **response)
{
    Fsdpd__V1__HoldJobRequest request = FSDPD__V1__HOLD_JOB_REQUEST__INIT;
    request.id = (char *)id;
    return world_call(&world, &control_hold_job, &request, response);
}

static status_t release(const char *id)
{
    Fsdpd__V1__ReleaseJobRequest request = FSDPD__V1__RELEASE_JOB_REQUEST__INIT;
    request.id = (char *)id;
    return world_call(&world, &control_release_job, &request, NULL);
}

static status_t set_priority(const char *id, int priority)
{
    Fsdpd__V1__SetPriorityRequest request = FSDPD__V1__SET_PRIORITY_REQUEST__INIT;
    request.id = (char *)id;
    request.priority = priority;
    return world_call(&world, &control_set_priority, &request, NULL);
}

TEST(ownership)
{
    job_message job = FSDPD__V1__JOB__INIT;
    struct rpc_peer peer = {.kind = RPC_PEER_UNIX, .name = "bob", .roles = RPC_USER};
    job.id = (char *)"mnist-1";
    job.owner = (char *)"alice";
    expect_status(access_check(&peer, &job, "hold"), STATUS_PERMISSION_DENIED,
                  "job mnist-1 belongs to alice: only its owner or an operator may hold it, and "
                  "you are bob");
    peer.name = "alice";
    expect_ok(access_check(&peer, &job, "hold"));
    peer.name = "bob";
    peer.roles = RPC_USER | RPC_OPERATOR;
    expect_ok(access_check(&peer, &job, "hold"));
    peer.roles = RPC_WORKER;
    expect_status(access_check(&peer, &job, "hold"), STATUS_PERMISSION_DENIED, "alice");
    job.owner = (char *)""; /* of an older fsdpd */
    peer.roles = RPC_USER;
    peer.name = "";
    expect_status(access_check(&peer, &job, "hold"), STATUS_PERMISSION_DENIED, "operator");
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

TEST(hold_and_release)
{
    struct fake fake;
    void *response = NULL;
    world_start(&world);
    fake_attach(&world, &fake, "host/cpu:0", 1);
    char *running = queue_submit_priority(&world, 1, 0);
    queue_expect_start(&world, &fake, 1, running);
    expect_status(hold(running, NULL), STATUS_FAILED_PRECONDITION, "only a queued job can be held");
    char *first = queue_submit_priority(&world, 1, 0),
         *second = queue_submit_priority(&world, 1, 0);
    expect_ok(hold(first, &response));
    job_message *job = response;
    ck_assert_str_ne(job->owner, "");
    ck_assert_str_eq(job->held_by, job->owner); /* this process did both */
    ck_assert_str_eq(job->reason->code, "HELD");
    ck_assert_uint_eq(job->queue_position, 0);
    char *reason = mem_printf("held by %s", job->owner);
    message_free(job);
    expect_ok(hold(first, NULL)); /* again */
    queue_expect_position(&world, second, 1);

    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(1);
    request.hold = true;
    expect_ok(world_call(&world, &control_submit_job, &request, NULL));
    world_check_reason(&world, "mnist-4", JOB_QUEUED, "HELD", reason);

    /* It stays held through a restart, and the reason remains. */
    queue_end_job(&world, &fake, running, STATUS_OK);
    queue_expect_start(&world, &fake, 2, second);
    queue_end_job(&world, &fake, second, STATUS_OK);
    fake_deinit(&fake);
    world_stop(&world);
    world_start(&world);
    fake_attach(&world, &fake, "host/cpu:0", 1);
    world_check_reason(&world, first, JOB_QUEUED, "HELD", reason);
    ck_assert_int_eq(fake.assignments, 0);
    expect_ok(release("mnist-4"));
    queue_expect_start(&world, &fake, 1, "mnist-4");
    expect_ok(release(first));
    expect_ok(release(first)); /* again */
    queue_expect_position(&world, first, 1);
    queue_end_job(&world, &fake, "mnist-4", STATUS_OK);
    queue_expect_start(&world, &fake, 2, first);
    queue_end_job(&world, &fake, first, STATUS_OK);
    expect_status(hold(first, NULL), STATUS_FAILED_PRECONDITION, "is over already");
    expect_status(hold("nothing-1", NULL), STATUS_NOT_FOUND, "nothing-1");

    Fsdpd__V1__GetHistoryRequest asked = FSDPD__V1__GET_HISTORY_REQUEST__INIT;
    asked.id = first;
    expect_ok(world_call(&world, &control_get_history, &asked, &response));
    const Fsdpd__V1__GetHistoryResponse *history = response;
    struct buf codes = {0};
    for (size_t i = 0; i < history->n_entries; i++) {
        buf_printf(&codes, "%s ", history->entries[i]->reason->code);
        bool users = i <= 2; /* submitted, held, released */
        ck_assert_msg((history->entries[i]->by[0] != '\0') == users, "%zu", i);
    }
    ck_assert_str_eq(buf_text(&codes), "QUEUED HELD QUEUED STARTING RUNNING DONE ");
    buf_deinit(&codes);
    message_free(response);
    fake_deinit(&fake);
    free(running), free(first), free(second), free(reason);
}

TEST(changed_priority)
{
    struct fake fake;
    world_start(&world);
    fake_attach(&world, &fake, "host/cpu:0", 1);
    char *running = queue_submit_priority(&world, 1, 0);
    queue_expect_start(&world, &fake, 1, running);
    char *first = queue_submit_priority(&world, 1, 0),
         *second = queue_submit_priority(&world, 1, 0);
    expect_ok(set_priority(second, 9));
    queue_expect_position(&world, second, 1);
    queue_expect_position(&world, first, 2);
    expect_status(set_priority(second, 1001), STATUS_INVALID_ARGUMENT, "-1000 to 1000, found 1001");
    expect_ok(set_priority(running, 3)); /* counts if it is queued again */
    world_check_reason(&world, running, JOB_RUNNING, "RUNNING", "training");
    fake_deinit(&fake);
    world_stop(&world);
    world_start(&world);
    job_message *job = world_job(&world, second);
    ck_assert_int_eq(job->priority, 9);
    ck_assert_int_eq(job->spec->priority, 0); /* as it was submitted */
    ck_assert_uint_eq(job->queue_position, 1);
    message_free(job);
    free(running), free(first), free(second);
}

static status_t drain(const char *worker, bool now)
{
    Fsdpd__V1__DrainWorkersRequest request = FSDPD__V1__DRAIN_WORKERS_REQUEST__INIT;
    request.worker = (char *)worker;
    request.now = now;
    return world_call(&world, &control_drain_workers, &request, NULL);
}

static status_t undrain(const char *worker)
{
    Fsdpd__V1__UndrainWorkersRequest request = FSDPD__V1__UNDRAIN_WORKERS_REQUEST__INIT;
    request.worker = (char *)worker;
    return world_call(&world, &control_undrain_workers, &request, NULL);
}

static void expect_worker(const char *id, Fsdpd__V1__WorkerState state)
{
    Fsdpd__V1__ListWorkersRequest request = FSDPD__V1__LIST_WORKERS_REQUEST__INIT;
    void *response = NULL;
    expect_ok(world_call(&world, &control_list_workers, &request, &response));
    const Fsdpd__V1__ListWorkersResponse *list = response;
    bool found = false;
    for (size_t i = 0; i < list->n_workers; i++) {
        const Fsdpd__V1__Worker *worker = list->workers[i];
        if (strcmp(worker->id, id) != 0) continue;
        found = true;
        ck_assert_int_eq(worker->state, state);
        bool drained = state != FSDPD__V1__WORKER_STATE__WORKER_STATE_BUSY;
        ck_assert_int_eq(worker->drained, drained);
        ck_assert_int_eq(worker->drained_by[0] != '\0', drained);
        ck_assert_int_eq(worker->drain_time != NULL, drained);
    }
    ck_assert_msg(found, "there is no worker %s", id);
    message_free(response);
}

/* A worker that got SIGTERM while it trains: the job continues on the other one, although this one
 * is still attached when its attempt has ended. */
TEST(a_worker_that_leaves_gets_no_work)
{
    struct fake fakes[2];
    world_start(&world);
    fake_attach(&world, &fakes[0], "a/cpu:0", 1);
    char *id = queue_submit_priority(&world, 1, 0);
    queue_expect_start(&world, &fakes[0], 1, id);
    fake_leave(&fakes[0]);
    fake_finished(&fakes[0], STATUS_ABORTED, "the worker was ordered to stop");
    WAIT(&world, world_job_is(&world, id, JOB_QUEUED) || world_job_is(&world, id, JOB_FAILED));
    char *other = queue_submit_priority(&world, 1, 0);
    world_run(&world, 50);
    ck_assert_int_eq(fakes[0].assignments, 1);
    fake_attach(&world, &fakes[1], "a/cpu:1", 2);
    WAIT(&world, fakes[1].assignments == 1);
    ck_assert_int_eq(fakes[0].assignments, 1);
    for (int i = 0; i < 2; i++) fake_deinit(&fakes[i]);
    free(other);
    free(id);
}

/* An assignment that crossed its message: it is not expected back. */
TEST(a_worker_that_leaves_does_not_come_back)
{
    struct fake fake;
    world.options.limits.reattach_ms = 3600000;
    world_start(&world);
    fake_attach(&world, &fake, "a/cpu:0", 1);
    char *id = queue_submit_priority(&world, 1, 0);
    WAIT(&world, fake.assignments == 1);
    fake_leave(&fake);
    fake_detach(&fake);
    WAIT(&world, world_job_is(&world, id, JOB_QUEUED));
    fake_deinit(&fake);
    free(id);
}

TEST(drains)
{
    struct fake fakes[3];
    static const char *const ids[] = {"a/cpu:0", "b/cpu:0", "b/cpu:1"};
    world_start(&world);
    for (int i = 0; i < 3; i++) fake_attach(&world, &fakes[i], ids[i], i + 1);
    expect_status(drain("c", false), STATUS_NOT_FOUND, "no worker c is attached");
    expect_status(drain("", false), STATUS_INVALID_ARGUMENT, "worker: expected the id");
    char *first = queue_submit_priority(&world, 1, 0);
    queue_expect_start(&world, &fakes[0], 1, first);
    expect_ok(drain("a/cpu:0", false));
    expect_ok(drain("a/cpu:0", false)); /* again */
    expect_worker("a/cpu:0", FSDPD__V1__WORKER_STATE__WORKER_STATE_DRAINING);
    char *second = queue_submit_priority(&world, 2, 0),
         *third = queue_submit_priority(&world, 1, 0);
    WAIT(&world, fakes[1].assignments == 1 && fakes[2].assignments == 1);
    world_check_reason(&world, third, JOB_QUEUED, "QUEUED", "1st; waits for 1 of 1 cpu worker");
    queue_end_job(&world, &fakes[0], first, STATUS_OK);
    expect_worker("a/cpu:0", FSDPD__V1__WORKER_STATE__WORKER_STATE_DRAINED);
    world_run(&world, 50);
    ck_assert_int_eq(fakes[0].assignments, 1);

    /* Through a restart; and a host, with what attaches later. */
    expect_ok(drain("b", false));
    for (int i = 0; i < 3; i++) fake_deinit(&fakes[i]);
    world_stop(&world);
    world_start(&world);
    fake_attach(&world, &fakes[0], "a/cpu:0", 1);
    fake_attach(&world, &fakes[1], "b/cpu:7", 2);
    expect_worker("a/cpu:0", FSDPD__V1__WORKER_STATE__WORKER_STATE_DRAINED);
    expect_worker("b/cpu:7", FSDPD__V1__WORKER_STATE__WORKER_STATE_DRAINED);
    world_check_reason(&world, third, JOB_QUEUED, "WAITING_FOR_WORKERS",
                       "1st; needs 1 cpu worker, 0 are attached and 2 drained");
    expect_status(undrain("b/cpu:7"), STATUS_FAILED_PRECONDITION, "undrain b");
    expect_ok(undrain("b"));
    expect_ok(undrain("b")); /* again */
    queue_expect_start(&world, &fakes[1], 1, third);
    expect_worker("b/cpu:7", FSDPD__V1__WORKER_STATE__WORKER_STATE_BUSY);

    /* At once: fsdpd orders a checkpoint, and the attempt ends even if there is none. */
    expect_ok(drain("b", true));
    WAIT(&world, fakes[1].pauses == 1);
    world_check_reason(&world, third, JOB_RUNNING, "VACATING", "worker b/cpu:7 was drained by");
    fake_checkpoint(&fakes[1], fakes[1].checkpoint, 4, STATUS_RESOURCE_EXHAUSTED, "disk full",
                    NULL);
    WAIT(&world, fakes[1].cancels == 1);
    fake_finished(&fakes[1], STATUS_CANCELLED, "");
    WAIT(&world, !world_job_is(&world, third, JOB_RUNNING));
    Fsdpd__V1__GetHistoryRequest asked = FSDPD__V1__GET_HISTORY_REQUEST__INIT;
    asked.id = third;
    void *response = NULL;
    expect_ok(world_call(&world, &control_get_history, &asked, &response));
    const Fsdpd__V1__GetHistoryResponse *history = response;
    bool recorded = false;
    for (size_t i = 0; i < history->n_entries; i++)
        recorded = recorded || strcmp(history->entries[i]->reason->code, "WORKER_DRAINED") == 0;
    ck_assert(recorded);
    message_free(response);

    /* With one, the job is queued again, and continues when there is a worker for it. */
    expect_ok(undrain("b"));
    char *fourth = queue_submit_priority(&world, 1, 0);
    queue_expect_start(&world, &fakes[1], 2, fourth);
    expect_ok(drain("b/cpu:7", true));
    WAIT(&world, fakes[1].pauses == 2);
    fake_checkpoint(&fakes[1], fakes[1].checkpoint, 6, STATUS_OK, "", NULL);
    fake_ended(&fakes[1], STATUS_CANCELLED, "PAUSED", "paused at step 6");
    WAIT(&world, world_job_is(&world, fourth, JOB_QUEUED));
    expect_worker("b/cpu:7", FSDPD__V1__WORKER_STATE__WORKER_STATE_DRAINED);
    expect_ok(undrain("b/cpu:7"));
    queue_expect_start(&world, &fakes[1], 3, fourth);
    ck_assert_uint_eq(fakes[1].assignment->attempt, 2);

    /* A repeated drain waits for nothing. */
    expect_ok(drain("b", true));
    WAIT(&world, fakes[1].pauses == 3);
    expect_ok(drain("b", true));
    WAIT(&world, fakes[1].cancels == 2);
    free(fourth);
    fake_deinit(&fakes[0]);
    fake_deinit(&fakes[1]);
    free(first), free(second), free(third);
}

/* ---- forgetting ---- */

static status_t forget(const char *id)
{
    Fsdpd__V1__ForgetJobRequest request = FSDPD__V1__FORGET_JOB_REQUEST__INIT;
    request.id = (char *)id;
    return world_call(&world, &control_forget_job, &request, NULL);
}

static bool exists(const char *name)
{
    char *path = world_path(&world, name);
    bool is = access(path, F_OK) == 0;
    free(path);
    return is;
}

static void make_file(const char *directory, const char *name)
{
    char *parent = world_path(&world, directory), *path = file_path_join(parent, name);
    expect_ok(file_make_directory(parent, 0700));
    expect_ok(file_write_atomic(path, "weights", 7, 0600));
    free(path);
    free(parent);
}

static int count_files(const char *name)
{
    char *path = world_path(&world, name);
    DIR *directory = opendir(path);
    int count = 0;
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;)
        count += entry->d_name[0] != '.';
    if (directory != NULL) closedir(directory);
    free(path);
    return count;
}

static bool is_known(const char *id)
{
    Fsdpd__V1__GetJobRequest request = FSDPD__V1__GET_JOB_REQUEST__INIT;
    request.id = (char *)id;
    status_t status = world_call(&world, &control_get_job, &request, NULL);
    bool known = status == NULL;
    status_free(status);
    return known;
}

TEST(forget_one)
{
    struct fake fake;
    world_start(&world);
    fake_attach(&world, &fake, "host/cpu:0", 1);
    char *first = queue_submit_priority(&world, 1, 0);
    queue_expect_start(&world, &fake, 1, first);
    expect_status(forget(first), STATUS_FAILED_PRECONDITION, "is RUNNING: only a job that is over");
    queue_end_job(&world, &fake, first, STATUS_OK);
    make_file("state/jobs/mnist-1/tensorboard", "events");
    expect_ok(forget(first));
    ck_assert(!exists("state/jobs/mnist-1"));
    WAIT(&world, count_files("state/forgotten") == 0);
    expect_status(forget(first), STATUS_NOT_FOUND, "mnist-1");
    ck_assert(!is_known(first));
    Fsdpd__V1__GetHistoryRequest asked = FSDPD__V1__GET_HISTORY_REQUEST__INIT;
    asked.id = first;
    expect_status(world_call(&world, &control_get_history, &asked, NULL), STATUS_NOT_FOUND,
                  "mnist-1");
    char *second = queue_submit_priority(&world, 1, 0);
    ck_assert_str_eq(second, "mnist-2"); /* the old name is not used again */
    fake_deinit(&fake);
    free(first), free(second);
}

/* A job's files in a directory of its settings are removed, too: its own, never through a link. */
TEST(forget_elsewhere)
{
    struct fake fake;
    char *root = world_path(&world, "data"), *shared = world_path(&world, "data/shared");
    make_file("data/shared", "notes");
    make_file("data/precious", "weights");
    world.options.data_roots[world.options.data_root_count++] = root;
    world_start(&world);
    fake_attach(&world, &fake, "host/cpu:0", 1);
    for (int linked = 0; linked < 2; linked++) {
        Fsdpd__V1__CheckpointSpec checkpoint = FSDPD__V1__CHECKPOINT_SPEC__INIT;
        checkpoint.directory = shared;
        job_spec spec = *world_spec(1);
        spec.checkpoint = &checkpoint;
        char *id = queue_submit(&world, &spec, NULL);
        queue_expect_start(&world, &fake, linked + 1, id);
        char *own = mem_printf("data/shared/%s", fake.assignment->run);
        char *step = mem_printf("%s/step-000000000003", own);
        char *other = mem_printf("data/shared/%s@1", id), *plain = mem_printf("data/shared/%s", id);
        make_file(other, "weights");
        make_file(plain, "weights");
        char *from = world_path(&world, own), *to = world_path(&world, "data/precious");
        if (linked) ck_assert_int_eq(symlink(to, from), 0);
        else make_file(step, "manifest.json");
        queue_end_job(&world, &fake, id, STATUS_OK);
        expect_ok(forget(id));
        struct stat info;
        WAIT(&world, lstat(from, &info) != 0);
        ck_assert(exists("data/precious/weights"));
        ck_assert(exists(other) && exists(plain) && exists("data/shared/notes"));
        free(from), free(to), free(own), free(step), free(other), free(plain), free(id);
    }
    fake_deinit(&fake);
    free(root), free(shared);
}

/* Killed between the steps of forgetting: files without a record are removed, and a job with one
 * comes back. */
TEST(forget_after_a_crash)
{
    struct fake fake;
    world_start(&world);
    fake_attach(&world, &fake, "host/cpu:0", 1);
    char *id = queue_submit_priority(&world, 1, 0);
    queue_expect_start(&world, &fake, 1, id);
    queue_end_job(&world, &fake, id, STATUS_OK);
    fake_deinit(&fake);
    world_stop(&world);
    make_file("state/forgotten/mnist-1.12", "weights");
    make_file("state/forgotten/mnist-7.34/deeper", "weights");
    make_file("state/forgotten/not a job", "of another program");
    char *own = world_path(&world, "state/jobs/mnist-1"); /* the log of fsdpd's own lines */
    char *command = mem_printf("rm -rf %s", own);
    ck_assert_int_eq(system(command), 0);
    free(command);
    free(own);
    world_start(&world);
    WAIT(&world, !exists("state/forgotten/mnist-7.34"));
    ck_assert(exists("state/jobs/mnist-1/weights"));
    ck_assert(exists("state/forgotten/not a job/of another program"));
    free(id);
}

/* A job that ended this number of days ago, and was to start after another, or NULL. */
static void leave_job(struct store *store, const char *id, int state, int days, char *after)
{
    job_message job = FSDPD__V1__JOB__INIT;
    job_event event = FSDPD__V1__JOB_EVENT__INIT;
    Fsdpd__V1__Reason reason = FSDPD__V1__REASON__INIT;
    job.id = (char *)id;
    job.name = (char *)"old";
    job_spec spec = *world_spec(9);
    spec.after = &after;
    spec.n_after = after != NULL;
    spec.device = (char *)"cpu";
    job.spec = &spec;
    job.state = (Fsdpd__V1__JobState)state;
    job.reason = &reason;
    Google__Protobuf__Timestamp submitted;
    job.submit_time = message_time(&submitted, clock_wall_ms() - days * INT64_C(86400000));
    if (job_state_is_over(state)) job.finish_time = job.submit_time;
    event.sequence = 1;
    expect_ok(store_insert_job(store, &job, &event));
}

static void leave_jobs(bool with_dependent)
{
    char *directory = world_path(&world, "state"), *path = file_path_join(directory, "store.db");
    struct store *store = NULL;
    expect_ok(file_make_directory(directory, 0700));
    expect_ok(store_open(path, &store));
    leave_job(store, "queued", JOB_QUEUED, 100, NULL);
    leave_job(store, "ancient", JOB_SUCCEEDED, 50, NULL);
    leave_job(store, "old", JOB_FAILED, 11, NULL);
    leave_job(store, "recent", JOB_CANCELLED, 9, NULL);
    leave_job(store, "new", JOB_SUCCEEDED, 1, NULL);
    if (with_dependent) leave_job(store, "after-new", JOB_QUEUED, 1, (char *)"new");
    if (with_dependent) leave_job(store, "after-old", JOB_QUEUED, 1, (char *)"old");
    store_close(store);
    free(path);
    free(directory);
}

/* Killed between the end of a job and of those that depend on it. */
TEST(dependencies_that_ended_before_a_crash)
{
    leave_jobs(true);
    world_start(&world);
    world_check_reason(&world, "after-old", JOB_CANCELLED, "DEPENDENCY_FAILED",
                       "job old, which it depends on, is FAILED");
    world_check_reason(&world, "after-new", JOB_QUEUED, "WAITING_FOR_WORKERS", "");
}

TEST(retention_by_age)
{
    leave_jobs(false);
    make_file("state/jobs/ancient", "state_dict.safetensors");
    world.options.limits.retention_days = 10;
    world_start(&world);
    WAIT(&world, !is_known("ancient") && !is_known("old"));
    ck_assert(is_known("recent") && is_known("new") && is_known("queued"));
    WAIT(&world, count_files("state/forgotten") == 0);
    ck_assert(!exists("state/jobs/ancient"));
}

TEST(retention_by_number)
{
    leave_jobs(false);
    world_start(&world);
    world_run(&world, 300);
    ck_assert(is_known("ancient")); /* without limits fsdpd keeps everything */
    world.options.limits.retention_jobs = 1;
    world_reload(&world, &world.options);
    WAIT(&world, !is_known("ancient") && !is_known("old") && !is_known("recent"));
    ck_assert(is_known("new") && is_known("queued"));
}

TEST(size_of_specs)
{
    struct fake fake;
    world.options.limits.spec_bytes = 4096;
    world_start(&world);
    fake_attach(&world, &fake, "host/cpu:0", 1);
    free(queue_submit_priority(&world, 9, 0));
    job_spec spec = *world_spec(1);
    Fsdpd__V1__ModelSpec model = *spec.model;
    char text[5000];
    memset(text, '#', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    model.text = text;
    spec.model = &model;
    status_t refused = NULL;
    queue_submit(&world, &spec, &refused);
    expect_status(refused, STATUS_INVALID_ARGUMENT, "spec: expected at most 4096 bytes, found 5");
    fake_deinit(&fake);
}

static char *submit_at(const char *at, const char *start_by, status_t *refused)
{
    job_spec spec = *world_spec(1);
    Fsdpd__V1__StartSpec start = FSDPD__V1__START_SPEC__INIT;
    Fsdpd__V1__DeadlineSpec deadline = FSDPD__V1__DEADLINE_SPEC__INIT;
    start.at = (char *)at;
    deadline.start = (char *)start_by;
    spec.start = &start;
    spec.deadline = &deadline;
    return queue_submit(&world, &spec, refused);
}

/* It delays no job before its time, and a restart changes nothing. */
TEST(starts_later)
{
    struct fake fake;
    char at[32];
    world_start(&world);
    status_t refused = NULL;
    submit_at("2h", "1h", &refused);
    expect_status(refused, STATUS_INVALID_ARGUMENT,
                  "start.at: expected a time before deadline.start (1h), found 2h");
    char *late = submit_at("1h", "2h", NULL), *past = submit_at("2001-01-01T00:00:00Z", "", NULL);
    world_check_reason(&world, late, JOB_QUEUED, "WAITING_FOR_TIME", "starts at 20");
    queue_expect_position(&world, late, 0);
    world_stop(&world);
    world_start(&world);
    world_check_reason(&world, late, JOB_QUEUED, "WAITING_FOR_TIME", "Z at the earliest");
    fake_attach(&world, &fake, "host/cpu:0", 1);
    queue_expect_start(&world, &fake, 1, past);
    queue_end_job(&world, &fake, past, STATUS_OK);
    int64_t begun = clock_wall_ms();
    char *soon = submit_at(clock_format_wall(begun + 300, at), "", NULL);
    queue_expect_start(&world, &fake, 2, soon);
    ck_assert_int_ge(clock_wall_ms(), begun + 300);
    queue_end_job(&world, &fake, soon, STATUS_OK);
    char *other = queue_submit_priority(&world, 1, -5);
    queue_expect_start(&world, &fake, 3, other);
    queue_end_job(&world, &fake, other, STATUS_OK);
    world_check_reason(&world, late, JOB_QUEUED, "WAITING_FOR_TIME", "at the earliest");
    fake_deinit(&fake);
    free(soon), free(late), free(other), free(past);
}
