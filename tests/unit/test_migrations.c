/*
 * Stores of earlier versions of fsdpd (tests/unit/stores/schema-N.sql) become stores of this
 * version, with all their content; backups; and files that must not be changed.
 */
#include <errno.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "coordinator/store/migrations.h"
#include "coordinator/store/store.h"
#include "store_fixture.h"
#include "tests/testing.h"

static void execute(const char *file, const char *sql)
{
    sqlite3 *database = NULL;
    ck_assert_int_eq(sqlite3_open(file, &database), SQLITE_OK);
    char *error = NULL;
    int code = sqlite3_exec(database, sql, NULL, NULL, &error);
    ck_assert_msg(code == SQLITE_OK, "%s: %s", file, error != NULL ? error : "?");
    ck_assert_int_eq(sqlite3_close(database), SQLITE_OK);
}

/* All rows of a query as text, a line each. */
static char *query(const char *file, const char *sql)
{
    sqlite3 *database = NULL;
    sqlite3_stmt *statement = NULL;
    struct buf text = {0};
    ck_assert_int_eq(sqlite3_open(file, &database), SQLITE_OK);
    ck_assert_int_eq(sqlite3_prepare_v2(database, sql, -1, &statement, NULL), SQLITE_OK);
    while (sqlite3_step(statement) == SQLITE_ROW) {
        for (int i = 0; i < sqlite3_column_count(statement); i++) {
            const char *column = (const char *)sqlite3_column_text(statement, i);
            buf_printf(&text, "%s%s", i > 0 ? "|" : "", column != NULL ? column : "NULL");
        }
        buf_add_char(&text, '\n');
    }
    sqlite3_finalize(statement);
    ck_assert_int_eq(sqlite3_close(database), SQLITE_OK);
    char *rows = mem_strdup(buf_text(&text));
    buf_deinit(&text);
    return rows;
}

static void expect_rows(const char *file, const char *sql, const char *rows)
{
    char *found = query(file, sql);
    ck_assert_str_eq(found, rows);
    free(found);
}

/* Creates a store as version `version` left it. */
static void make_old(const char *file, int version)
{
    const char *source = getenv("srcdir") != NULL ? getenv("srcdir") : ".";
    char *name = mem_printf("%s/tests/unit/stores/schema-%d.sql", source, version);
    struct buf sql = {0};
    status_t status = file_read(name, 1 << 24, &sql);
    ck_assert_msg(status == NULL,
                  "every schema version before the latest has a store among the tests "
                  "(sqlite3 store.db .dump): %s",
                  status_message(status));
    execute(file, buf_text(&sql));
    buf_deinit(&sql);
    free(name);
}

/* Counts jobs and their events, and reads all of it. */
struct content {
    struct store *store;
    int jobs, events;
};

static bool count_event(void *user, const job_event *event)
{
    ck_assert_uint_gt(event->sequence, 0);
    ck_assert_int_gt(message_time_ms(event->time), INT64_C(1700000000000));
    ((struct content *)user)->events++;
    return true;
}

static status_t count_job(void *user, const job_message *job)
{
    struct content *content = user;
    content->jobs++;
    ck_assert_ptr_nonnull(job->spec);
    ck_assert_str_eq(job->spec->name, job->name);
    ck_assert_int_eq(job->spec->fsdp->strategy, FSDPD__V1__STRATEGY__STRATEGY_FULL_SHARD);
    ck_assert_int_ne(job->spec->fsdp->wrap->policy, 0);
    ck_assert_int_ne(job->spec->optimizer->type, 0);
    ck_assert_int_ne(job->spec->data->format, 0);
    ck_assert_int_eq(job->plan->strategy, FSDPD__V1__STRATEGY__STRATEGY_FULL_SHARD);
    struct store_event_query query = {.job = job->id,
                                      .limit = 1000000,
                                      .visit = count_event,
                                      .user = content};
    return store_read_events(content->store, &query);
}

static struct content read_all(struct store *store)
{
    struct content content = {.store = store};
    struct store_job_query query = {.visit = count_job, .user = &content};
    expect_ok(store_each_job(store, &query));
    return content;
}

/* The parts of a store, however it was created. */
static const char shape[] =
    "SELECT m.name, c.name, c.type, c.\"notnull\", c.dflt_value, c.pk FROM sqlite_master m, "
    "pragma_table_info(m.name) c WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%' "
    "UNION ALL SELECT name, type, tbl_name, '', '', '' FROM sqlite_master WHERE type = 'index' "
    "ORDER BY 1, 2";

static void quiet_log(void)
{
    log_set_level(LOG_WARNING);
}

TESTS_BELOW(.set_up_once = quiet_log, .timeout = 60, .set_up = store_set_up,
            .tear_down = store_tear_down);

TEST(every_older_version)
{
    char *fresh_path = file_path_join(store_directory, "fresh.db");
    struct store *store = NULL;
    expect_ok(store_open(fresh_path, &store));
    store_close(store);
    char *fresh = query(fresh_path, shape);

    for (int version = 1; version < migrations_latest(); version++) {
        char *old = mem_printf("%s/old-%d.db", store_directory, version);
        make_old(old, version);
        char *jobs = query(old, "SELECT count(*) FROM jobs");
        char *events = query(old, "SELECT count(*) FROM events");
        ck_assert_int_gt(atoi(jobs), 0);
        ck_assert_int_gt(atoi(events), atoi(jobs));
        char *states = query(old, "SELECT id, state, reason_code, step, attempt FROM jobs");

        store = NULL;
        expect_ok(store_open(old, &store));
        struct content content = read_all(store);
        ck_assert_int_eq(content.jobs, atoi(jobs));
        ck_assert_int_eq(content.events, atoi(events));
        store_close(store);
        expect_rows(old, "SELECT id, state, reason_code, step, attempt FROM jobs", states);
        char *migrated = query(old, shape);
        ck_assert_str_eq(migrated, fresh);

        /* Unchanged, for the previous version of fsdpd. */
        char *backup = mem_printf("%s.schema-%d", old, version);
        char *was = mem_printf("%d\n", version);
        expect_rows(backup, "SELECT version FROM schema", was);
        expect_rows(backup, "SELECT id, state, reason_code, step, attempt FROM jobs", states);
        /* The second time there is nothing to do. */
        ck_assert_int_eq(unlink(backup), 0);
        expect_ok(store_open(old, &store));
        store_close(store);
        ck_assert_int_ne(access(backup, F_OK), 0);
        free(was);
        free(backup);
        free(migrated);
        free(states);
        free(events);
        free(jobs);
        free(old);
    }
    free(fresh);
    free(fresh_path);
}

TEST(a_failed_migration_leaves_the_old_store)
{
    make_old(store_path, 1);
    /* The table that the second step is about to add exists already. */
    execute(store_path, "CREATE TABLE weights (other INTEGER)");
    execute(store_path, "INSERT INTO weights VALUES (7)");
    struct store *store = NULL;
    expect_error(store_open(store_path, &store), STATUS_INTERNAL, "cannot bring");
    ck_assert_ptr_null(store);
    expect_rows(store_path, "SELECT version FROM schema", "1\n");
    expect_rows(store_path, "SELECT other FROM weights", "7\n");
}

TEST(no_room_for_the_backup)
{
    make_old(store_path, 1);
    struct rlimit before, small;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 2048; /* less than a page */
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    struct store *store = NULL;
    status_t status = store_open(store_path, &store);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    ck_assert_ptr_nonnull(status);
    ck_assert_ptr_null(store);
    status_free(status);
    expect_rows(store_path, "SELECT version FROM schema", "1\n");
    expect_ok(store_open(store_path, &store));
    store_close(store);
}

static void expect_same_bytes(const char *file, const struct buf *bytes)
{
    struct buf now = {0};
    expect_ok(file_read(file, 1 << 26, &now));
    ck_assert_uint_eq(now.length, bytes->length);
    ck_assert_int_eq(memcmp(now.data, bytes->data, now.length), 0);
    buf_deinit(&now);
}

TEST(what_is_refused_is_not_touched)
{
    static const char *const changes[] = {"UPDATE schema SET version = 4711", "DELETE FROM schema",
                                          "DROP TABLE schema"};
    static const enum status_code codes[] = {STATUS_FAILED_PRECONDITION, STATUS_DATA_LOSS,
                                             STATUS_DATA_LOSS};
    static const char *const words[] = {"newer fsdpd: its schema is version 4711",
                                        "not an fsdpd store", "not an fsdpd store"};
    for (int i = 0; i < 3; i++) {
        unlink(store_path);
        make_old(store_path, 1);
        execute(store_path, "PRAGMA journal_mode = WAL");
        execute(store_path, changes[i]);
        struct buf bytes = {0};
        expect_ok(file_read(store_path, 1 << 26, &bytes));
        struct store *store = NULL;
        expect_error(store_open(store_path, &store), codes[i], words[i]);
        expect_same_bytes(store_path, &bytes);
        buf_deinit(&bytes);
    }
}

TEST(damage_says_what_to_do_and_writes_nothing)
{
    make_old(store_path, 1);
    execute(store_path, "PRAGMA journal_mode = WAL");
    struct buf bytes = {0};
    expect_ok(file_read(store_path, 1 << 26, &bytes));
    ck_assert_uint_gt(bytes.length, 3 * 4096);
    memset(bytes.data + 4096, 0x5a, 4096);
    expect_ok(file_write_atomic(store_path, bytes.data, bytes.length, 0600));
    struct store *store = NULL;
    expect_error(store_open(store_path, &store), STATUS_DATA_LOSS, "fsdpd restore");
    expect_same_bytes(store_path, &bytes);
    expect_error(store_backup(store_path, "/dev/null/never"), STATUS_DATA_LOSS, store_path);

    /* A backup replaces it; the damaged store is kept. */
    char *good = file_path_join(store_directory, "good.db"), *kept = NULL;
    make_old(good, 1);
    expect_ok(store_restore(good, store_path, &kept));
    ck_assert_ptr_nonnull(kept);
    expect_same_bytes(kept, &bytes);
    expect_ok(store_open(store_path, &store));
    ck_assert_int_gt(read_all(store).jobs, 0);
    store_close(store);
    free(kept);
    free(good);
    buf_deinit(&bytes);
}

/* While a coordinator writes, a backup is a snapshot of its store: it has at least the content at
 * its start. */
TEST(backup_of_a_store_in_use)
{
    make_old(store_path, 1);
    struct store *store = NULL;
    expect_ok(store_open(store_path, &store));
    struct content before = read_all(store);
    job_message *job = NULL;
    char *first = query(store_path, "SELECT id FROM jobs ORDER BY number LIMIT 1");
    first[strcspn(first, "\n")] = '\0';
    expect_ok(store_get_job(store, first, &job));
    job->step = 4242;
    expect_ok(store_update_job(store, job, NULL, true)); /* in the log alone */
    char *backup = file_path_join(store_directory, "backup.db");
    expect_ok(store_backup(store_path, backup));
    struct stat info;
    ck_assert_int_eq(stat(backup, &info), 0);
    ck_assert_uint_eq(info.st_mode & 0777, 0600);
    job->step = 4243;
    expect_ok(store_update_job(store, job, NULL, true)); /* it is still in use */
    store_close(store);

    char *kept = NULL;
    expect_ok(store_restore(backup, store_path, &kept));
    expect_ok(store_open(store_path, &store));
    struct content after = read_all(store);
    ck_assert_int_eq(after.jobs, before.jobs);
    ck_assert_int_eq(after.events, before.events);
    message_free(job);
    expect_ok(store_get_job(store, first, &job));
    ck_assert_uint_eq(job->step, 4242);
    store_close(store);
    char *other = query(kept, "SELECT max(step) FROM jobs");
    ck_assert_str_eq(other, "4243\n");

    expect_error(store_backup("/nonexistent/store.db", backup), STATUS_NOT_FOUND, "/nonexistent");
    expect_error(store_backup(store_path, "/nonexistent/backup.db"), STATUS_NOT_FOUND,
                 "/nonexistent");
    free(other);
    free(kept);
    free(first);
    free(backup);
    message_free(job);
}

/* The replaced store's file is complete before its log is removed: an interrupted restore leaves a
 * store with all its content. */
TEST(restore_takes_no_transaction)
{
    make_old(store_path, 1);
    char *backup = file_path_join(store_directory, "backup.db"), *kept = NULL;
    expect_ok(store_backup(store_path, backup));
    char *first = query(store_path, "SELECT id FROM jobs ORDER BY number LIMIT 1");
    first[strcspn(first, "\n")] = '\0';
    pid_t child = fork();
    if (child == 0) { /* killed before its log is written back */
        struct store *store = NULL;
        job_message *job = NULL;
        if (store_open(store_path, &store) != NULL || store_get_job(store, first, &job) != NULL)
            _exit(1);
        job->step = 4242;
        _exit(store_update_job(store, job, NULL, true) == NULL ? 0 : 1);
    }
    int how = 0;
    ck_assert_int_eq(waitpid(child, &how, 0), child);
    ck_assert_int_eq(how, 0);
    struct stat info;
    char *log = mem_printf("%s-wal", store_path);
    ck_assert(stat(log, &info) == 0 && info.st_size > 0);
    free(log);
    expect_ok(store_restore(backup, store_path, &kept));
    log = mem_printf("%s-wal", kept);
    ck_assert(unlink(log) == 0 || errno == ENOENT);
    char *step = query(kept, "SELECT max(step) FROM jobs");
    ck_assert_str_eq(step, "4242\n");
    free(step);
    free(log);
    free(kept);
    free(first);
    free(backup);
}

TEST(what_is_no_backup_is_not_restored)
{
    make_old(store_path, 1);
    char *bad = file_path_join(store_directory, "bad.db"), *kept = NULL;
    struct buf bytes = {0};
    expect_ok(file_read(store_path, 1 << 26, &bytes));
    expect_ok(file_write_atomic(bad, "", 0, 0600));
    expect_error(store_restore(bad, store_path, &kept), STATUS_DATA_LOSS, "bad.db");
    expect_ok(file_write_atomic(bad, "hello, this is some text", 24, 0600));
    expect_error(store_restore(bad, store_path, &kept), STATUS_DATA_LOSS, "bad.db");
    unlink(bad);
    execute(bad, "CREATE TABLE something (else_ INTEGER)");
    expect_error(store_restore(bad, store_path, &kept), STATUS_DATA_LOSS, "not an fsdpd store");
    unlink(bad);
    make_old(bad, 1);
    execute(bad, "UPDATE schema SET version = 4711");
    expect_error(store_restore(bad, store_path, &kept), STATUS_FAILED_PRECONDITION, "4711");
    ck_assert_ptr_null(kept);
    expect_same_bytes(store_path, &bytes);
    buf_deinit(&bytes);
    free(bad);
}

TEST(stops)
{
    make_old(store_path, 1);
    struct store *store = NULL;
    expect_ok(store_open(store_path, &store));
    struct store_stop stop;
    expect_ok(store_get_stop(store, "mnist-2", &stop));
    ck_assert(stop.cancelled && !stop.vacating && !stop.shut_down && !stop.machine);
    ck_assert_str_eq(stop.message, "cancelled by root");
    ck_assert_str_eq(stop.by, "root");
    ck_assert_ptr_null(stop.code);
    store_stop_deinit(&stop);
    expect_ok(store_get_stop(store, "mnist-3", &stop));
    ck_assert(stop.vacating && !stop.cancelled);
    ck_assert_str_eq(stop.message, "worker node1/cpu:1 was drained by root");
    ck_assert_str_eq(stop.by, "root");
    store_stop_deinit(&stop);
    expect_ok(store_get_stop(store, "mnist-1", &stop));
    ck_assert(!stop.vacating && !stop.cancelled);
    ck_assert_ptr_null(stop.message);
    ck_assert_ptr_null(stop.by);
    expect_error(store_get_stop(store, "nobody", &stop), STATUS_NOT_FOUND, "nobody");

    job_message *job = NULL;
    expect_ok(store_get_job(store, "mnist-2", &job));
    stop = (struct store_stop){.shut_down = true,
                               .pausing = true,
                               .machine = true,
                               .by = (char *)"ada",
                               .code = (char *)"WORKER_DRAINED",
                               .message = (char *)"a: b; c"};
    expect_ok(store_apply(store, &(struct store_change){.job = job, .report = -1, .stop = &stop}));
    expect_ok(store_update_job(store, job, NULL, false)); /* leaves it unchanged */
    struct store_stop read;
    expect_ok(store_get_stop(store, "mnist-2", &read));
    ck_assert(read.shut_down && read.pausing && read.machine && !read.vacating && !read.cancelled);
    ck_assert_str_eq(read.by, "ada");
    ck_assert_str_eq(read.code, "WORKER_DRAINED");
    ck_assert_str_eq(read.message, "a: b; c");
    store_stop_deinit(&read);
    ck_assert(!read.pausing && read.by == NULL && read.code == NULL && read.message == NULL);
    message_free(job);
    store_close(store);
}

TEST(reports)
{
    make_old(store_path, 1);
    struct store *store = NULL;
    expect_ok(store_open(store_path, &store));
    char *first = query(store_path, "SELECT id FROM jobs ORDER BY number LIMIT 1");
    first[strcspn(first, "\n")] = '\0';
    uint64_t report = 99;
    expect_ok(store_get_report(store, first, &report));
    ck_assert_uint_eq(report, 14);
    job_message *job = NULL;
    expect_ok(store_get_job(store, first, &job));
    expect_ok(store_apply(store, &(struct store_change){.job = job, .report = 12}));
    expect_ok(store_update_job(store, job, NULL, false)); /* leaves it unchanged */
    expect_ok(store_get_report(store, first, &report));
    ck_assert_uint_eq(report, 12);
    expect_error(store_get_report(store, "nobody", &report), STATUS_NOT_FOUND, "nobody");
    store_close(store);
    message_free(job);
    free(first);
}
