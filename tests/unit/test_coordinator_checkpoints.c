/* Checkpoints, pauses and retries as the coordinator sees them: orders and reports, calls that
 * wait, what the store keeps, the cause of a failure, and the next attempt's assignment. */
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "test_coordinator_world.h"
#include "tests/testing.h"

static struct world world;
static struct fake fakes[2];
static struct listener calls[4];
static char *id;

static void set_up(void)
{
    world_init(&world);
    world_start(&world);
}

static void tear_down(void)
{
    world_deinit_running(&world, fakes, 2, id);
}

/* Starts a job with these retry budgets. */
static void start_running(uint32_t failures, uint32_t machine_failures)
{
    Fsdpd__V1__RetrySpec *retry = world_spec(2)->retry; /* of all further specs */
    retry->failures = failures;
    retry->machine_failures = machine_failures;
    id = world_start_running(&world, fakes);
}

static void open_call(struct listener *call, const struct rpc_method *method, const char *job)
{
    Fsdpd__V1__PauseJobRequest request = FSDPD__V1__PAUSE_JOB_REQUEST__INIT;
    request.id = (char *)job;
    Fsdpd__V1__CreateCheckpointRequest create = FSDPD__V1__CREATE_CHECKPOINT_REQUEST__INIT;
    create.id = (char *)job;
    Fsdpd__V1__ResumeJobRequest resume = FSDPD__V1__RESUME_JOB_REQUEST__INIT;
    resume.id = (char *)job;
    *call = (struct listener){0};
    listener_open(&world, call, method,
                  method == &control_pause_job    ? (const void *)&request
                  : method == &control_resume_job ? (const void *)&resume
                                                  : (const void *)&create,
                  false);
}

static bool world_step(uint64_t step)
{
    job_message *job = world_job(&world, id);
    bool reached = job->step == step;
    message_free(job);
    return reached;
}

/* Makes sure that earlier calls have reached the coordinator: a later call has its answer. */
static void settle(void)
{
    for (int i = 0; i < 3; i++) message_free(world_job(&world, id));
    world_run(&world, 100);
}

static void expect_end(struct listener *call, enum status_code code, const char *words)
{
    WAIT(&world, call->closed);
    if (code == STATUS_OK) {
        expect_ok(call->status);
        ck_assert_int_eq(call->count, 1);
    } else {
        expect_status(call->status, code, words);
    }
    call->status = NULL;
    listener_deinit(call);
}

/* Puts the steps of a page before those found; returns the token of the next page. */
static char *read_page(uint32_t size, const char *token, char found[64])
{
    Fsdpd__V1__ListCheckpointsRequest request = FSDPD__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    request.id = id;
    request.page_size = size;
    request.page_token = (char *)token;
    void *answer = NULL;
    expect_ok(world_call(&world, &control_list_checkpoints, &request, &answer));
    const Fsdpd__V1__ListCheckpointsResponse *list = answer;
    char text[64] = "", *next = mem_strdup(list->next_page_token);
    for (size_t i = 0; i < list->n_checkpoints; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%llu ",
                 (unsigned long long)list->checkpoints[i]->step);
    if (size > 0) ck_assert_uint_le(list->n_checkpoints, size);
    message_free(answer);
    snprintf(text + strlen(text), sizeof text - strlen(text), "%s", found);
    strcpy(found, text);
    return next;
}

/* The steps that are kept, "3 5 ", whatever the size of the pages. */
static void expect_steps(const char *expected)
{
    for (uint32_t size = 0; size < 3; size++) {
        char found[64] = "", *token = mem_strdup("");
        do {
            char *next = read_page(size, token, found);
            free(token);
            token = next;
        } while (token[0] != '\0');
        free(token);
        ck_assert_str_eq(found, expected);
    }
}

/* Changes the store over another connection. */
static void change_store(const char *sql)
{
    char *path = world_path(&world, "state/store.db");
    sqlite3 *database = NULL;
    ck_assert_int_eq(sqlite3_open(path, &database), SQLITE_OK);
    sqlite3_busy_timeout(database, 10000);
    ck_assert_int_eq(sqlite3_exec(database, sql, NULL, NULL, NULL), SQLITE_OK);
    ck_assert_int_eq(sqlite3_close(database), SQLITE_OK);
    free(path);
}

/* Expects that the store has a number of metrics in this range. */
static void expect_metrics(int least, int most)
{
    char *path = world_path(&world, "state/store.db");
    sqlite3 *database = NULL;
    sqlite3_stmt *count = NULL;
    ck_assert_int_eq(sqlite3_open(path, &database), SQLITE_OK);
    ck_assert_int_eq(sqlite3_prepare_v2(database, "SELECT sum(metrics) FROM events", -1, &count,
                                        NULL),
                     SQLITE_OK);
    ck_assert_int_eq(sqlite3_step(count), SQLITE_ROW);
    int found = sqlite3_column_int(count, 0);
    sqlite3_finalize(count);
    ck_assert_int_eq(sqlite3_close(database), SQLITE_OK);
    free(path);
    ck_assert_int_ge(found, least);
    ck_assert_int_le(found, most);
}

/* Makes a table unreadable and unwritable, like a failing disk. */
static void hide_table(const char *name)
{
    char *sql = mem_printf("ALTER TABLE %s RENAME TO hidden", name);
    change_store(sql);
    free(sql);
    log_set_level(LOG_ERROR + 1); /* expected messages are not worth a line */
}

static void show_table(const char *name)
{
    char *sql = mem_printf("ALTER TABLE hidden RENAME TO %s", name);
    change_store(sql);
    free(sql);
}

/* Unlike a renamed table, a table whose trigger is dropped again is as fsdpd created it, which a
 * start checks. */
static void refuse_inserts(const char *table)
{
    char *sql = mem_printf("CREATE TRIGGER refuse BEFORE INSERT ON %s "
                           "BEGIN SELECT RAISE(ABORT, 'no'); END",
                           table);
    change_store(sql);
    free(sql);
    log_set_level(LOG_ERROR + 1); /* expected messages are not worth a line */
}

static void take_inserts(void)
{
    change_store("DROP TRIGGER refuse");
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

TEST(orders_and_reports)
{
    start_running(0, 0);
    open_call(&calls[0], &control_create_checkpoint, id);
    WAIT(&world, fakes[0].checkpoints == 1 && fakes[1].checkpoints == 1);
    ck_assert_uint_eq(fakes[0].checkpoint, fakes[1].checkpoint);
    uint64_t first = fakes[0].checkpoint;
    /* Two calls that arrive meanwhile share the next one. */
    open_call(&calls[1], &control_create_checkpoint, id);
    open_call(&calls[2], &control_create_checkpoint, id);
    settle();
    ck_assert_int_eq(fakes[0].checkpoints, 1);
    fake_checkpoint(&fakes[0], 0, 2, STATUS_OK, "", NULL); /* by the settings: no call waits */
    fake_checkpoint(&fakes[0], first, 3, STATUS_OK, "", NULL);
    WAIT(&world, calls[0].closed && fakes[0].checkpoints == 2);
    ck_assert_uint_eq(((Fsdpd__V1__Checkpoint *)calls[0].messages[0])->step, 3);
    expect_end(&calls[0], STATUS_OK, NULL);
    ck_assert(!calls[1].closed && !calls[2].closed);
    fake_checkpoint(&fakes[0], fakes[0].checkpoint, 5, STATUS_OK, "", (const uint64_t[]){2});
    for (int i = 1; i < 3; i++) expect_end(&calls[i], STATUS_OK, NULL);
    expect_steps("3 5 ");

    /* One that could not be written. */
    open_call(&calls[0], &control_create_checkpoint, id);
    WAIT(&world, fakes[0].checkpoints == 3);
    fake_checkpoint(&fakes[0], fakes[0].checkpoint, 7, STATUS_RESOURCE_EXHAUSTED, "disk full",
                    NULL);
    expect_end(&calls[0], STATUS_RESOURCE_EXHAUSTED, "disk full");
    expect_steps("3 5 ");
    ck_assert(world_job_is(&world, id, JOB_RUNNING));

    /* One whose client disconnected is still taken; one whose job ends is not. */
    open_call(&calls[0], &control_create_checkpoint, id);
    WAIT(&world, fakes[0].checkpoints == 4);
    rpc_stream_cancel(calls[0].stream);
    expect_end(&calls[0], STATUS_CANCELLED, "");
    settle();
    fake_checkpoint(&fakes[0], fakes[0].checkpoint, 8, STATUS_OK, "", NULL);
    open_call(&calls[3], &control_create_checkpoint, id);
    WAIT(&world, fakes[0].checkpoints == 5);
    expect_steps("3 5 8 ");
    for (int r = 0; r < 2; r++) fake_finished(&fakes[r], STATUS_INTERNAL, "a mistake");
    expect_end(&calls[3], STATUS_ABORTED, "before the checkpoint was taken");
    open_call(&calls[0], &control_create_checkpoint, id);
    expect_end(&calls[0], STATUS_FAILED_PRECONDITION, "is over");
    open_call(&calls[0], &control_create_checkpoint, "other-1");
    expect_end(&calls[0], STATUS_NOT_FOUND, "other-1");
}

/* The caller does not matter: the test is the only user. */
static void expect_pauses_by(int pausing, int paused)
{
    Fsdpd__V1__GetHistoryRequest request = FSDPD__V1__GET_HISTORY_REQUEST__INIT;
    request.id = id;
    void *response = NULL;
    expect_ok(world_call(&world, &control_get_history, &request, &response));
    const Fsdpd__V1__GetHistoryResponse *history = response;
    const char *owner = history->entries[0]->by; /* the submitter */
    ck_assert_str_ne(owner, "");
    for (size_t i = 0; i < history->n_entries; i++) {
        const Fsdpd__V1__HistoryEntry *entry = history->entries[i];
        bool is_pausing = strcmp(entry->reason->code, "PAUSING") == 0;
        bool is_paused = strcmp(entry->reason->code, "PAUSED") == 0;
        if (is_pausing || is_paused) ck_assert_str_eq(entry->by, owner);
        else if (strcmp(entry->reason->code, "RUNNING") == 0) ck_assert_str_eq(entry->by, "");
        pausing -= is_pausing;
        paused -= is_paused;
    }
    ck_assert_int_eq(pausing, 0);
    ck_assert_int_eq(paused, 0);
    message_free(response);
}

LOOP_TEST(pause_and_resume, 0, 3)
{
    start_running(0, 0);
    open_call(&calls[0], &control_pause_job, id);
    WAIT(&world, fakes[0].pauses == 1 && fakes[1].pauses == 1);
    world_check_reason(&world, id, JOB_RUNNING, "PAUSING", "checkpoint");
    fake_checkpoint(&fakes[0], fakes[0].checkpoint, 4, STATUS_RESOURCE_EXHAUSTED, "disk full",
                    NULL);
    expect_end(&calls[0], STATUS_RESOURCE_EXHAUSTED, "disk full");
    world_check_reason(&world, id, JOB_RUNNING, "RUNNING", "disk full");

    open_call(&calls[0], &control_pause_job, id);
    WAIT(&world, fakes[0].pauses == 2);
    if (_i == 2) { /* the caller gets no further answer */
        rpc_stream_cancel(calls[0].stream);
        WAIT(&world, calls[0].closed);
        listener_deinit(&calls[0]);
        settle();
    }
    fake_metrics(&fakes[0], 6, 1);
    fake_checkpoint(&fakes[0], fakes[0].checkpoint, 6, STATUS_OK, "", NULL);
    world_run(&world, 100);
    if (_i != 2) ck_assert(!calls[0].closed); /* it still runs */
    fake_ended(&fakes[0], STATUS_CANCELLED, "PAUSED", "paused at step 6");
    if (_i != 1) fake_ended(&fakes[1], STATUS_CANCELLED, "PAUSED", "paused at step 6");
    else fake_detach(&fakes[1]); /* it is lost, which costs nothing */
    if (_i == 2) {
        WAIT(&world, world_job_is(&world, id, JOB_PAUSED));
    } else {
        WAIT(&world, calls[0].closed);
        expect_end(&calls[0], STATUS_OK, NULL);
    }
    world_check_reason(&world, id, JOB_PAUSED, "PAUSED", "step 6");
    expect_pauses_by(2, 1);
    open_call(&calls[0], &control_pause_job, id);
    expect_end(&calls[0], STATUS_FAILED_PRECONDITION, "is PAUSED already");
    if (_i != 0) return;

    /* The same with another coordinator. */
    for (int r = 0; r < 2; r++) fake_deinit(&fakes[r]);
    world_stop(&world);
    world_start(&world);
    world_check_reason(&world, id, JOB_PAUSED, "PAUSED", "step 6");
    fakes[0] = fakes[1] = (struct fake){0};
    fake_attach(&world, &fakes[0], "host/cpu:0", 1000);
    fake_attach(&world, &fakes[1], "host/cpu:1", 1001);
    world_run(&world, 100);
    ck_assert_int_eq(fakes[0].assignments, 0);
    open_call(&calls[0], &control_resume_job, id);
    expect_end(&calls[0], STATUS_OK, NULL);
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].assignments == 1);
    ck_assert(fakes[0].assignment->resume && fakes[0].assignment->must_resume);
    ck_assert_uint_eq(fakes[0].assignment->attempt, 2);
    ck_assert_ptr_nonnull(strstr(fakes[0].assignment->checkpoint_folder, id));
    open_call(&calls[0], &control_resume_job, id);
    expect_end(&calls[0], STATUS_FAILED_PRECONDITION, "only a PAUSED job");
}

TEST(paused_is_cancelled)
{
    start_running(0, 0);
    open_call(&calls[0], &control_pause_job, id);
    WAIT(&world, fakes[0].pauses == 1 && fakes[1].pauses == 1);
    for (int r = 0; r < 2; r++) fake_ended(&fakes[r], STATUS_CANCELLED, "PAUSED", "");
    expect_end(&calls[0], STATUS_OK, NULL);
    expect_ok(world_cancel(&world, id));
    ck_assert(world_job_is(&world, id, JOB_CANCELLED));
}

static void count_failures(void *user, enum log_level level, const char *event, const char *fields)
{
    (void)level;
    int *failures = user;
    *failures += strcmp(event, "store_failed") == 0 && strstr(fields, "thinning") != NULL;
}

/* A store that deletes nothing keeps all metrics; fsdpd retries now and then, until it does
 * again. */
TEST(metrics_that_cannot_be_thinned)
{
    enum { KEPT = 40, BATCH = KEPT / 8 + 1, METRICS = 100 };
    int failures = 0;
    world_stop(&world);
    world.options.limits.metrics_kept = KEPT;
    world_start(&world);
    start_running(0, 0);
    change_store("CREATE TRIGGER refuse BEFORE DELETE ON events "
                 "BEGIN SELECT raise(ABORT, 'no'); END");
    log_set_tap(count_failures, &failures);
    for (int i = 1; i <= METRICS; i++) fake_metrics(&fakes[0], (uint64_t)i, 1);
    WAIT(&world, world_step(METRICS));
    ck_assert_int_gt(failures, 0);
    ck_assert_int_le(failures, (METRICS - KEPT) / BATCH);
    expect_metrics(METRICS, METRICS);
    change_store("DROP TRIGGER refuse");
    int before = failures;
    for (int i = METRICS + 1; i <= METRICS + BATCH; i++) fake_metrics(&fakes[0], (uint64_t)i, 1);
    WAIT(&world, world_step(METRICS + BATCH));
    ck_assert_int_eq(failures, before);
    log_set_tap(NULL, NULL);
    expect_metrics(KEPT / 2, KEPT + BATCH);
}

/* A lost worker is a failure of machines; an error that a rank reports is the job's. */
TEST(retries)
{
    start_running(1, 2);
    for (int lost = 0; lost < 2; lost++) {
        fake_detach(&fakes[1]);
        WAIT(&world, fakes[0].cancels_at_once == lost + 1);
        int64_t lost_ns = clock_monotonic_ns();
        fake_finished(&fakes[0], STATUS_ABORTED, "");
        WAIT(&world, world_job_is(&world, id, JOB_QUEUED));
        world_check_reason(&world, id, JOB_QUEUED, "RETRYING", "rank 1");
        fake_deinit(&fakes[1]);
        fakes[1] = (struct fake){0};
        fake_attach(&world, &fakes[1], "host/cpu:1", 1001);
        for (int r = 0; r < 2; r++) {
            WAIT(&world, fakes[r].assignments == (r == 0 ? lost + 2 : 1));
            ck_assert_uint_eq(fakes[r].assignment->attempt, (uint32_t)lost + 2);
            ck_assert(fakes[r].assignment->resume && !fakes[r].assignment->must_resume);
            fake_started(&fakes[r], 42);
        }
        /* After a pause, and one that is twice as long. */
        ck_assert_int_ge((clock_monotonic_ns() - lost_ns) / 1000000,
                         world.options.limits.retry_ms << lost);
        WAIT(&world, world_job_is(&world, id, JOB_RUNNING));
    }
    fake_finished(&fakes[0], STATUS_ABORTED, "a peer failed");
    fake_finished(&fakes[1], STATUS_FAILED_PRECONDITION, "the loss is nan");
    WAIT(&world, world_job_is(&world, id, JOB_QUEUED));
    world_check_reason(&world, id, JOB_QUEUED, "RETRYING", "failure 1 of 1 of its own");
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].assignments == (r == 0 ? 4 : 2));
    for (int r = 0; r < 2; r++) fake_finished(&fakes[r], STATUS_FAILED_PRECONDITION, "nan again");
    WAIT(&world, world_job_is(&world, id, JOB_FAILED));
    world_check_reason(&world, id, JOB_FAILED, "FAILED_PRECONDITION", "(attempt 4)");
}

/* Rank 0 died between the rename of step 7's checkpoint and its report: the next attempt's knows
 * which ones are listed, and reports the other and the one that was removed for it. */
TEST(unlisted_checkpoints)
{
    start_running(1, 2);
    const uint64_t steps[] = {3, 5};
    for (int i = 0; i < 2; i++) fake_checkpoint(&fakes[0], 0, steps[i], STATUS_OK, "", NULL);
    settle();
    expect_steps("3 5 ");
    for (int r = 0; r < 2; r++) fake_finished(&fakes[r], STATUS_UNAVAILABLE, "lost a rank");
    for (int r = 0; r < 2; r++) WAIT(&world, fakes[r].assignments == 2);
    const Fsdpd__V1__Assignment *assignment = fakes[0].assignment;
    ck_assert(assignment->resume && assignment->must_resume);
    ck_assert_uint_eq(assignment->n_listed_checkpoints, 2);
    ck_assert_str_eq(assignment->listed_checkpoints[0], "step-000000000003");
    ck_assert_str_eq(assignment->listed_checkpoints[1], "step-000000000005");
    ck_assert_uint_eq(fakes[1].assignment->n_listed_checkpoints, 0);
    ck_assert(world_job_is(&world, id, JOB_STARTING));
    fake_checkpoint(&fakes[0], 0, 7, STATUS_OK, "", (const uint64_t[]){3});
    settle();
    expect_steps("5 7 ");
    for (int r = 0; r < 2; r++) fake_started(&fakes[r], 42);
    WAIT(&world, world_job_is(&world, id, JOB_RUNNING));
}

/* The previous attempt's latest figures are those of steps that the next one does not repeat. */
LOOP_TEST(figures_behind_the_start, 0, 4)
{
    static const uint64_t starts[] = {0, 20, 25, 30};
    uint64_t start = starts[_i];
    start_running(0, 1);
    fake_metrics(&fakes[0], 10, 1);
    fake_epoch_at(&fakes[0], 1, 20);
    fake_validation(&fakes[0], 25, 0.3);
    fake_metrics(&fakes[0], 30, 0.5);
    WAIT(&world, world_step(30));
    job_message *job = world_job(&world, id);
    ck_assert(job->metrics->_test_loss_case != 0 && job->metrics->_val_loss_case != 0);
    ck_assert_uint_eq(job->metrics->epoch_step, 20);
    message_free(job);
    fake_detach(&fakes[1]);
    WAIT(&world, fakes[0].cancels_at_once == 1);
    fake_finished(&fakes[0], STATUS_ABORTED, "");
    WAIT(&world, world_job_is(&world, id, JOB_QUEUED));
    fake_deinit(&fakes[1]);
    fakes[1] = (struct fake){0};
    fake_attach(&world, &fakes[1], "host/cpu:1", 1001);
    for (int r = 0; r < 2; r++) {
        WAIT(&world, fakes[r].assignments == (r == 0 ? 2 : 1));
        fake_resumed(&fakes[r], 42, start);
    }
    WAIT(&world, world_job_is(&world, id, JOB_RUNNING));
    job = world_job(&world, id);
    const Fsdpd__V1__Metrics *metrics = job->metrics;
    bool epoch = start >= 20, validation = start >= 25;
    ck_assert_uint_eq(job->step, start);
    uint64_t report = start >= 30 ? 30 : start >= 10 ? 10 : 0;
    ck_assert_uint_eq(metrics->step, report);
    ck_assert(metrics->loss == (report == 30 ? 0.5 : report == 10 ? 1 : 0));
    ck_assert_int_eq(metrics->_test_loss_case != 0, epoch);
    ck_assert(metrics->accuracy == (epoch ? 0.98 : 0));
    ck_assert(metrics->test_loss == (epoch ? 0.1 : 0));
    ck_assert(metrics->train_loss == (epoch ? 0.2 : 0));
    ck_assert_int_eq(metrics->_val_loss_case != 0, validation);
    ck_assert_uint_eq(metrics->val_step, validation ? 25 : 0);
    message_free(job);
}

/* The store has the budget used so far, also (1) if it refused that at first. */
LOOP_TEST(budget_survives, 0, 2)
{
    start_running(0, 1);
    if (_i == 1) refuse_inserts("retries");
    fake_detach(&fakes[1]);
    WAIT(&world, fakes[0].cancels_at_once == 1);
    fake_finished(&fakes[0], STATUS_ABORTED, "");
    WAIT(&world, world_job_is(&world, id, JOB_QUEUED));
    if (_i == 1) {
        world_run(&world, 300);
        take_inserts();
    }
    for (int r = 0; r < 2; r++) fake_deinit(&fakes[r]);
    world_stop(&world);
    world_start(&world);
    fakes[0] = fakes[1] = (struct fake){0};
    fake_attach(&world, &fakes[0], "host/cpu:0", 1000);
    fake_attach(&world, &fakes[1], "host/cpu:1", 1001);
    for (int r = 0; r < 2; r++) {
        WAIT(&world, fakes[r].assignments == 1);
        fake_started(&fakes[r], 42);
    }
    WAIT(&world, world_job_is(&world, id, JOB_RUNNING));
    fake_detach(&fakes[1]);
    WAIT(&world, fakes[0].cancels_at_once == 1);
    fake_finished(&fakes[0], STATUS_ABORTED, "");
    WAIT(&world, world_job_is(&world, id, JOB_FAILED));
    world_check_reason(&world, id, JOB_FAILED, "WORKER_LOST", "(attempt 2)");
}

/* A checkpoint that the store refused at first is not lost. */
TEST(checkpoint_that_the_store_refused)
{
    start_running(0, 0);
    fake_checkpoint(&fakes[0], 0, 2, STATUS_OK, "", NULL);
    refuse_inserts("checkpoints");
    fake_checkpoint(&fakes[0], 0, 4, STATUS_OK, "", (const uint64_t[]){2});
    fake_metrics(&fakes[0], 4, 1);
    settle();
    take_inserts();
    fake_metrics(&fakes[0], 5, 1);
    WAIT(&world, fakes[0].acknowledged == fakes[0].report);
    expect_steps("4 ");
    world_stop(&world);
    world_start(&world);
    expect_steps("4 ");
}

static bool has_code(const char *code)
{
    job_message *job = world_job(&world, id);
    bool has = strcmp(job->reason->code, code) == 0;
    message_free(job);
    return has;
}

/* An unreadable list of checkpoints does not mean that there is none. */
TEST(checkpoints_that_cannot_be_read)
{
    start_running(0, 1);
    fake_checkpoint(&fakes[0], 0, 2, STATUS_OK, "", NULL);
    settle();
    hide_table("checkpoints");
    fake_detach(&fakes[1]);
    WAIT(&world, fakes[0].cancels_at_once == 1);
    fake_finished(&fakes[0], STATUS_ABORTED, "");
    fake_deinit(&fakes[1]);
    fakes[1] = (struct fake){0};
    fake_attach(&world, &fakes[1], "host/cpu:1", 1001);
    WAIT(&world, has_code("STORE_FAILED"));
    world_check_reason(&world, id, JOB_QUEUED, "STORE_FAILED", "checkpoints");
    ck_assert_int_eq(fakes[1].assignments, 0);
    show_table("checkpoints");
    WAIT(&world, fakes[0].assignments == 2 && fakes[1].assignments == 1);
    ck_assert(fakes[0].assignment->resume && fakes[0].assignment->must_resume);
    ck_assert_uint_eq(fakes[0].assignment->attempt, 2);
}

/* ---- what killed workers leave behind ---- */

/* Creates it below the world's directory and returns its path, which the caller frees. */
static char *make_half_written(const char *directory)
{
    char *name = mem_printf("%s/.writing-1-3", directory), *path = world_path(&world, name);
    expect_ok(file_make_directory(path, 0750));
    char *file = file_path_join(path, "rank-00000.safetensors");
    expect_ok(file_write_atomic(file, "half", 4, 0640));
    free(file);
    free(name);
    return path;
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static void end_after_loss(void)
{
    fake_detach(&fakes[1]);
    WAIT(&world, fakes[0].cancels_at_once == 1);
    fake_finished(&fakes[0], STATUS_ABORTED, "");
}

/* 0: in the state directory; 1: in the directory of the job's settings. */
LOOP_TEST(half_written_goes_with_the_job, 0, 2)
{
    char *shared = world_path(&world, "data/shared");
    expect_ok(file_make_directory(shared, 0750));
    world_stop(&world);
    char *root = world_path(&world, "data");
    world.options.data_roots[world.options.data_root_count++] = root;
    world.options.limits.kill_ms = 100;
    world.options.limits.retry_ms = 60000; /* no other attempt comes */
    world.options.limits.retry_max_ms = 60000;
    world_start(&world);
    if (_i == 1) world_spec(2)->checkpoint->directory = shared; /* of all further specs */
    start_running(0, 5);
    char *folder = _i == 0 ? mem_printf("state/jobs/%s/checkpoints", id)
                           : mem_printf("data/shared/%s", fakes[0].assignment->run);
    /* A job with this name of another fsdpd writes there, too. */
    char *foreign_name = mem_printf("data/shared/%s@1", id);
    char *foreign = make_half_written(foreign_name);
    char *half = make_half_written(folder);
    char *complete_name = mem_printf("%s/step-000000000003", folder);
    char *complete = world_path(&world, complete_name);
    expect_ok(file_make_directory(complete, 0750));
    end_after_loss();
    WAIT(&world, world_job_is(&world, id, JOB_QUEUED));
    ck_assert(exists(half)); /* left for the next attempt to remove */
    expect_ok(world_cancel(&world, id));
    ck_assert(world_job_is(&world, id, JOB_CANCELLED));
    WAIT(&world, !exists(half));
    ck_assert(exists(complete));
    free(half);
    /* Also those of a rank that wrote until it was killed. */
    half = make_half_written(folder);
    WAIT(&world, !exists(half));
    ck_assert(exists(complete));
    ck_assert(exists(foreign));
    free(foreign), free(foreign_name);
    free(complete), free(complete_name);
    free(half), free(folder), free(shared), free(root);
}

TEST(half_written_goes_at_the_start)
{
    world.options.limits.kill_ms = 60000;
    start_running(0, 5);
    char *over = make_half_written("state/jobs/over-1/checkpoints");
    char *folder = mem_printf("state/jobs/%s/checkpoints", id), *own = make_half_written(folder);
    for (int r = 0; r < 2; r++) fake_deinit(&fakes[r]);
    fakes[0] = fakes[1] = (struct fake){0};
    world_stop(&world);
    ck_assert(exists(over));
    world_start(&world);
    WAIT(&world, !exists(over));
    ck_assert(exists(own)); /* of a job that continues: its attempt may be writing it */
    free(over), free(own), free(folder);
}
