/*
 * The job store over SQLite: opening it, and transactions; see store.h. Rows of jobs are in
 * store_jobs.c, events in store_events.c, copies of the whole in store_backup.c. Statements are
 * prepared once and reset after each use. The `synchronous` pragma is switched per transaction:
 * FULL syncs the log at the commit (and with it every earlier commit), NORMAL leaves that to the
 * next durable one.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "coordinator/migrations.h"
#include "coordinator/store_internal.h"

#define JOB_COLUMNS                                                                                \
    "id, name, spec, plan, state, reason_code, reason_message, attempt, step, steps, metrics, "    \
    "workers, submitted_ms, started_ms, finished_ms, state_ms, state_dict_step, "                  \
    "owner, priority, held_by"

static const char *const statements[STATEMENT_COUNT] = {
    [BEGIN] = "BEGIN IMMEDIATE",
    [COMMIT] = "COMMIT",
    [ROLLBACK] = "ROLLBACK",
    [SYNC_FULL] = "PRAGMA synchronous = FULL",
    [SYNC_NORMAL] = "PRAGMA synchronous = NORMAL",
    [INSERT_JOB] = "INSERT INTO jobs (" JOB_COLUMNS ") VALUES "
                   "(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, NULL, "
                   "?20, ?18, ?19)",
    [UPDATE_JOB] =
        "UPDATE jobs SET state = ?5, reason_code = ?6, reason_message = ?7, "
        "attempt = ?8, step = ?9, steps = ?10, metrics = ?11, workers = ?12, "
        "started_ms = ?14, finished_ms = ?15, state_ms = ?16, report = coalesce(?17, report), "
        "priority = ?18, held_by = ?19, stop = coalesce(?21, stop), "
        "stop_code = coalesce(?22, stop_code), stop_message = coalesce(?23, stop_message), "
        "stop_by = coalesce(?24, stop_by) "
        "WHERE id = ?1",
    [REPLAN_JOB] = "UPDATE jobs SET spec = ?2, plan = ?3 WHERE id = ?1",
    [GET_JOB] = "SELECT " JOB_COLUMNS " FROM jobs WHERE id = ?1",
    [LIST_JOBS] = "SELECT " JOB_COLUMNS " FROM jobs ORDER BY number",
    [LIST_IDS] = "SELECT id FROM jobs ORDER BY number DESC",
    [COUNT_STATES] = "SELECT state, count(*) FROM jobs GROUP BY state",
    [LIST_ACTIVE] = "SELECT " JOB_COLUMNS " FROM jobs WHERE state IN (1, 2, 3, 4) ORDER BY number",
    /* Ids that clients chose may lie in between; the caller goes on from here. Those of jobs that
     * were forgotten are not given again. */
    [COUNT_NAME] = "SELECT count(*) + coalesce((SELECT jobs FROM forgotten WHERE name = ?1), 0) "
                   "FROM jobs WHERE name = ?1",
    [HAS_ID] = "SELECT 1 FROM jobs WHERE id = ?1",
    [GET_REPORT] = "SELECT report FROM jobs WHERE id = ?1",
    [GET_STOP] = "SELECT stop, stop_code, stop_message, stop_by FROM jobs WHERE id = ?1",
    [SET_STATE_DICT] = "UPDATE jobs SET state_dict_step = ?2 WHERE id = ?1",
    [INSERT_EVENT] = "INSERT INTO events (job, sequence, metrics, event) VALUES (?1, ?2, ?3, ?4)",
    [READ_EVENTS] = "SELECT event FROM events WHERE job = ?1 AND sequence > ?2 AND "
                    "(metrics = 0 OR sequence > ?3) ORDER BY sequence LIMIT ?4",
    [COUNT_EVENTS] = "SELECT coalesce(max(sequence), 0), coalesce(sum(metrics), 0) FROM events "
                     "WHERE job = ?1",
    [LAST_METRICS] = "SELECT event FROM events WHERE job = ?1 AND metrics = 1 "
                     "ORDER BY sequence DESC",
    [SPAN_METRICS] = "SELECT min(sequence), (SELECT sequence FROM events WHERE job = ?1 AND "
                     "metrics = 1 ORDER BY sequence DESC LIMIT 1 OFFSET ?2), count(*) FROM events "
                     "WHERE job = ?1 AND metrics = 1",
    [THIN_METRICS] = "DELETE FROM events WHERE job = ?1 AND metrics = 1 AND sequence < ?2 AND "
                     "sequence NOT IN (SELECT min(sequence) FROM events WHERE job = ?1 AND "
                     "metrics = 1 AND sequence < ?2 GROUP BY sequence / ?3)",
    [ADD_DRAIN] = "INSERT OR IGNORE INTO drains (worker, by, time_ms) VALUES (?1, ?2, ?3)",
    [REMOVE_DRAIN] = "DELETE FROM drains WHERE worker = ?1",
    [LIST_DRAINS] = "SELECT worker, by, time_ms FROM drains ORDER BY worker",
    [COUNT_FORGOTTEN] = "INSERT INTO forgotten (name, jobs) SELECT name, 1 FROM jobs WHERE id = ?1 "
                        "ON CONFLICT (name) DO UPDATE SET jobs = jobs + 1",
    [DELETE_EVENTS] = "DELETE FROM events WHERE job = ?1",
    [DELETE_RETRIES] = "DELETE FROM retries WHERE job = ?1",
    [DELETE_CHECKPOINTS] = "DELETE FROM checkpoints WHERE job = ?1",
    [DELETE_JOB] = "DELETE FROM jobs WHERE id = ?1",
    [LIST_OLD] = "SELECT id FROM jobs WHERE state IN (5, 6, 7) AND finished_ms < ?1 "
                 "ORDER BY finished_ms",
    [LIST_BEYOND] = "SELECT id FROM jobs WHERE state IN (5, 6, 7) "
                    "ORDER BY finished_ms DESC, number DESC LIMIT -1 OFFSET ?1",
};

status_t store_sqlite_error(sqlite3 *database, const char *path, const char *doing)
{
    int code = sqlite3_errcode(database) & 0xff;
    enum status_code as = STATUS_INTERNAL;
    const char *advice = "";
    if (code == SQLITE_FULL) {
        as = STATUS_RESOURCE_EXHAUSTED;
    } else if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB) {
        as = STATUS_DATA_LOSS;
        advice = ". Nothing was changed. Restore a backup (fsdpd restore FILE), or move the file "
                 "away to start without jobs";
    } else if (code == SQLITE_BUSY || code == SQLITE_IOERR) {
        as = STATUS_UNAVAILABLE;
    } else if (code == SQLITE_READONLY || code == SQLITE_CANTOPEN || code == SQLITE_PERM) {
        as = STATUS_PERMISSION_DENIED;
    }
    return status_new(as, "cannot %s %s: %s%s", doing, path, sqlite3_errmsg(database), advice);
}

status_t store_error(const struct store *store, const char *doing)
{
    return store_sqlite_error(store->database, store->path, doing);
}

sqlite3_stmt *store_use(struct store *store, enum store_statement which)
{
    sqlite3_stmt *statement = store->prepared[which];
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    return statement;
}

status_t store_run(struct store *store, sqlite3_stmt *statement, const char *doing)
{
    int code = sqlite3_step(statement);
    status_t status = code == SQLITE_DONE || code == SQLITE_ROW ? NULL : store_error(store, doing);
    sqlite3_reset(statement);
    return status;
}

status_t store_begin(struct store *store, bool durable)
{
    TRY(store_run(store, store_use(store, durable ? SYNC_FULL : SYNC_NORMAL), "write"));
    return store_run(store, store_use(store, BEGIN), "write");
}

status_t store_end(struct store *store, status_t status)
{
    if (status == NULL) status = store_run(store, store_use(store, COMMIT), "write");
    if (status != NULL && !sqlite3_get_autocommit(store->database))
        status_free(store_run(store, store_use(store, ROLLBACK), "write"));
    return status;
}

void *store_unpack(sqlite3_stmt *row, int column, const ProtobufCMessageDescriptor *descriptor)
{
    const void *bytes = sqlite3_column_blob(row, column);
    size_t size = (size_t)sqlite3_column_bytes(row, column);
    return protobuf_c_message_unpack(descriptor, NULL, size,
                                     bytes != NULL ? bytes : (const void *)"");
}

status_t store_check(sqlite3 *database, const char *path)
{
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(database, "PRAGMA quick_check(1)", -1, &statement, NULL) != SQLITE_OK)
        return store_sqlite_error(database, path, "check");
    status_t status = NULL;
    if (sqlite3_step(statement) != SQLITE_ROW) {
        status = store_sqlite_error(database, path, "check");
    } else {
        const char *result = (const char *)sqlite3_column_text(statement, 0);
        if (result == NULL || strcmp(result, "ok") != 0)
            status = status_new(STATUS_DATA_LOSS,
                                "%s is damaged (%s). Nothing was changed. Restore a backup "
                                "(fsdpd restore FILE), or move the file away to start without jobs",
                                path, result != NULL ? result : "?");
    }
    sqlite3_finalize(statement);
    return status;
}

/* An older store is copied before it is changed: fsdpd of before the upgrade can have it back. */
static status_t migrate(struct store *store)
{
    int version = 0, latest = migrations_latest();
    TRY(migrations_version(store->database, store->path, &version));
    if (version == latest) return NULL;
    if (version > 0) {
        char *copy = mem_printf("%s.schema-%d", store->path, version);
        status_t status = store_copy(store->database, store->path, copy);
        if (status == NULL)
            log_event(LOG_INFO, "store_migrating", "from=%d to=%d backup=%s", version, latest,
                      copy);
        free(copy);
        if (status != NULL)
            return status_wrap(status, "a backup comes before the new schema version %d", latest);
    }
    return migrations_run(store->database, store->path, version, latest);
}

static status_t execute(struct store *store, const char *sql, const char *doing)
{
    int code = sqlite3_exec(store->database, sql, NULL, NULL, NULL);
    return code == SQLITE_OK ? NULL : store_error(store, doing);
}

/* Nothing is written before the file has been found whole, not even what its log holds. */
static status_t open_database(struct store *store)
{
    if (sqlite3_open_v2(store->path, &store->database,
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                        NULL) != SQLITE_OK)
        return store_error(store, "open");
    sqlite3_db_config(store->database, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    sqlite3_busy_timeout(store->database, 2000);
    TRY(execute(store, "PRAGMA trusted_schema = OFF; PRAGMA foreign_keys = ON;", "open"));
    TRY(store_check(store->database, store->path));
    TRY(execute(store, "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;", "open"));
    TRY(migrate(store));
    for (int i = 0; i < STATEMENT_COUNT; i++)
        if (sqlite3_prepare_v3(store->database, statements[i], -1, SQLITE_PREPARE_PERSISTENT,
                               &store->prepared[i], NULL) != SQLITE_OK)
            return store_error(store, "read");
    sqlite3_db_config(store->database, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, NULL);
    return NULL;
}

status_t store_open(const char *path, struct store **out)
{
    struct store *store = mem_alloc(sizeof *store);
    store->path = mem_strdup(path);
    status_t status = open_database(store);
    if (status != NULL) {
        store_close(store);
        return status;
    }
    *out = store;
    return NULL;
}

void store_close(struct store *store)
{
    if (store == NULL) return;
    for (int i = 0; i < STATEMENT_COUNT; i++) sqlite3_finalize(store->prepared[i]);
    sqlite3_close(store->database);
    free(store->path);
    free(store);
}
