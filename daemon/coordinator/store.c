/*
 * The job store over SQLite; see store.h. Statements are prepared once and reset after each use.
 * The `synchronous` pragma is switched per transaction: FULL syncs the log at the commit (and with
 * it every earlier commit), NORMAL leaves that to the next durable one.
 */
#include "coordinator/store.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

enum { SCHEMA_VERSION = 1 };

static const char schema[] = "CREATE TABLE schema (version INTEGER NOT NULL);"
                             "INSERT INTO schema VALUES (1);"
                             "CREATE TABLE jobs ("
                             "  number INTEGER PRIMARY KEY AUTOINCREMENT,"
                             "  id TEXT NOT NULL UNIQUE,"
                             "  name TEXT NOT NULL,"
                             "  spec BLOB NOT NULL,"
                             "  plan BLOB NOT NULL,"
                             "  state INTEGER NOT NULL,"
                             "  reason_code TEXT NOT NULL,"
                             "  reason_message TEXT NOT NULL,"
                             "  attempt INTEGER NOT NULL,"
                             "  step INTEGER NOT NULL,"
                             "  steps INTEGER NOT NULL,"
                             "  metrics BLOB,"
                             "  workers TEXT NOT NULL," /* one per line, by rank */
                             "  submitted_ms INTEGER NOT NULL,"
                             "  started_ms INTEGER NOT NULL,"
                             "  finished_ms INTEGER NOT NULL,"
                             "  state_ms INTEGER NOT NULL,"
                             "  state_dict_step INTEGER" /* NULL without a state_dict */
                             ");"
                             "CREATE INDEX jobs_by_state ON jobs (state);"
                             "CREATE INDEX jobs_by_name ON jobs (name);"
                             "CREATE TABLE events ("
                             "  job TEXT NOT NULL,"
                             "  sequence INTEGER NOT NULL,"
                             "  metrics INTEGER NOT NULL," /* 1 for events that may be thinned */
                             "  event BLOB NOT NULL,"
                             "  PRIMARY KEY (job, sequence)"
                             ") WITHOUT ROWID;";

#define JOB_COLUMNS                                                                                \
    "id, name, spec, plan, state, reason_code, reason_message, attempt, step, steps, metrics, "    \
    "workers, submitted_ms, started_ms, finished_ms, state_ms, state_dict_step"

enum statement {
    BEGIN,
    COMMIT,
    ROLLBACK,
    SYNC_FULL,
    SYNC_NORMAL,
    INSERT_JOB,
    UPDATE_JOB,
    REPLAN_JOB,
    GET_JOB,
    LIST_JOBS,
    LIST_NEWEST,
    LIST_ACTIVE,
    COUNT_NAME,
    HAS_ID,
    SET_STATE_DICT,
    INSERT_EVENT,
    READ_EVENTS,
    COUNT_EVENTS,
    THIN_METRICS,
    STATEMENT_COUNT,
};

static const char *const statements[STATEMENT_COUNT] = {
    [BEGIN] = "BEGIN IMMEDIATE",
    [COMMIT] = "COMMIT",
    [ROLLBACK] = "ROLLBACK",
    [SYNC_FULL] = "PRAGMA synchronous = FULL",
    [SYNC_NORMAL] = "PRAGMA synchronous = NORMAL",
    [INSERT_JOB] = "INSERT INTO jobs (" JOB_COLUMNS ") VALUES "
                   "(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, NULL)",
    [UPDATE_JOB] = "UPDATE jobs SET state = ?5, reason_code = ?6, reason_message = ?7, "
                   "attempt = ?8, step = ?9, steps = ?10, metrics = ?11, workers = ?12, "
                   "started_ms = ?14, finished_ms = ?15, state_ms = ?16 WHERE id = ?1",
    [REPLAN_JOB] = "UPDATE jobs SET spec = ?2, plan = ?3 WHERE id = ?1",
    [GET_JOB] = "SELECT " JOB_COLUMNS " FROM jobs WHERE id = ?1",
    [LIST_JOBS] = "SELECT " JOB_COLUMNS " FROM jobs ORDER BY number",
    [LIST_NEWEST] = "SELECT " JOB_COLUMNS " FROM jobs ORDER BY number DESC",
    [LIST_ACTIVE] = "SELECT " JOB_COLUMNS " FROM jobs WHERE state IN (1, 2, 3, 4) ORDER BY number",
    /* Ids that clients chose may lie in between; the caller goes on from here. */
    [COUNT_NAME] = "SELECT count(*) FROM jobs WHERE name = ?1",
    [HAS_ID] = "SELECT 1 FROM jobs WHERE id = ?1",
    [SET_STATE_DICT] = "UPDATE jobs SET state_dict_step = ?2 WHERE id = ?1",
    [INSERT_EVENT] = "INSERT INTO events (job, sequence, metrics, event) VALUES (?1, ?2, ?3, ?4)",
    [READ_EVENTS] = "SELECT event FROM events WHERE job = ?1 AND sequence > ?2 AND "
                    "(metrics = 0 OR sequence > ?3) ORDER BY sequence LIMIT ?4",
    [COUNT_EVENTS] = "SELECT coalesce(max(sequence), 0), coalesce(sum(metrics), 0) FROM events "
                     "WHERE job = ?1",
    [THIN_METRICS] = "DELETE FROM events WHERE job = ?1 AND metrics = 1 AND sequence <= "
                     "(SELECT sequence FROM events WHERE job = ?1 AND metrics = 1 "
                     "ORDER BY sequence DESC LIMIT 1 OFFSET ?2)",
};

struct store {
    sqlite3 *database;
    char *path;
    sqlite3_stmt *prepared[STATEMENT_COUNT];
};

static status_t store_error(const struct store *store, const char *doing)
{
    int code = sqlite3_errcode(store->database) & 0xff;
    enum status_code as = STATUS_INTERNAL;
    if (code == SQLITE_FULL) as = STATUS_RESOURCE_EXHAUSTED;
    else if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB) as = STATUS_DATA_LOSS;
    else if (code == SQLITE_BUSY || code == SQLITE_IOERR) as = STATUS_UNAVAILABLE;
    else if (code == SQLITE_READONLY || code == SQLITE_CANTOPEN || code == SQLITE_PERM)
        as = STATUS_PERMISSION_DENIED;
    return status_new(as, "cannot %s %s: %s", doing, store->path, sqlite3_errmsg(store->database));
}

/* The prepared statement, reset and without bindings. */
static sqlite3_stmt *use(struct store *store, enum statement which)
{
    sqlite3_stmt *statement = store->prepared[which];
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    return statement;
}

/* Runs a statement that yields no rows that matter. */
static status_t run(struct store *store, sqlite3_stmt *statement, const char *doing)
{
    int code = sqlite3_step(statement);
    status_t status = code == SQLITE_DONE || code == SQLITE_ROW ? NULL : store_error(store, doing);
    sqlite3_reset(statement);
    return status;
}

static status_t begin(struct store *store, bool durable)
{
    TRY(run(store, use(store, durable ? SYNC_FULL : SYNC_NORMAL), "write"));
    return run(store, use(store, BEGIN), "write");
}

/* Commits if `status` is NULL; else, or if that fails, rolls back. */
static status_t end(struct store *store, status_t status)
{
    if (status == NULL) status = run(store, use(store, COMMIT), "write");
    if (status != NULL && !sqlite3_get_autocommit(store->database))
        status_free(run(store, use(store, ROLLBACK), "write"));
    return status;
}

static status_t check_schema(struct store *store)
{
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(store->database,
                           "SELECT count(*) FROM sqlite_master WHERE name = 'schema'", -1,
                           &statement, NULL) != SQLITE_OK)
        return store_error(store, "read");
    bool exists = sqlite3_step(statement) == SQLITE_ROW && sqlite3_column_int(statement, 0) > 0;
    sqlite3_finalize(statement);
    if (!exists) {
        char *all = mem_printf("BEGIN IMMEDIATE; %s COMMIT;", schema);
        int code = sqlite3_exec(store->database, all, NULL, NULL, NULL);
        free(all);
        return code == SQLITE_OK ? NULL : store_error(store, "make the tables of");
    }
    if (sqlite3_prepare_v2(store->database, "SELECT version FROM schema", -1, &statement, NULL) !=
        SQLITE_OK)
        return store_error(store, "read");
    int version = sqlite3_step(statement) == SQLITE_ROW ? sqlite3_column_int(statement, 0) : 0;
    sqlite3_finalize(statement);
    if (version > SCHEMA_VERSION)
        return status_new(STATUS_FAILED_PRECONDITION,
                          "%s was written by a newer fsdpd (schema %d, this one knows %d)",
                          store->path, version, SCHEMA_VERSION);
    if (version < 1)
        return status_new(STATUS_DATA_LOSS, "%s holds no valid schema version", store->path);
    return NULL;
}

static status_t check_integrity(struct store *store)
{
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(store->database, "PRAGMA integrity_check(1)", -1, &statement, NULL) !=
        SQLITE_OK)
        return store_error(store, "check");
    status_t status = NULL;
    int code = sqlite3_step(statement);
    if (code != SQLITE_ROW) {
        status = store_error(store, "check");
    } else {
        const char *result = (const char *)sqlite3_column_text(statement, 0);
        if (result == NULL || strcmp(result, "ok") != 0)
            status = status_new(STATUS_DATA_LOSS,
                                "%s is damaged (%s): restore it, or move it away to start afresh",
                                store->path, result != NULL ? result : "?");
    }
    sqlite3_finalize(statement);
    return status;
}

static status_t open_database(struct store *store)
{
    if (sqlite3_open_v2(store->path, &store->database,
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                        NULL) != SQLITE_OK)
        return store_error(store, "open");
    sqlite3_busy_timeout(store->database, 2000);
    if (sqlite3_exec(store->database,
                     "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; "
                     "PRAGMA trusted_schema = OFF; PRAGMA foreign_keys = ON;",
                     NULL, NULL, NULL) != SQLITE_OK)
        return store_error(store, "open");
    TRY(check_integrity(store));
    TRY(check_schema(store));
    for (int i = 0; i < STATEMENT_COUNT; i++)
        if (sqlite3_prepare_v3(store->database, statements[i], -1, SQLITE_PREPARE_PERSISTENT,
                               &store->prepared[i], NULL) != SQLITE_OK)
            return store_error(store, "read");
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

static status_t has_id(struct store *store, const char *id, bool *exists)
{
    sqlite3_stmt *statement = use(store, HAS_ID);
    sqlite3_bind_text(statement, 1, id, -1, SQLITE_STATIC);
    int code = sqlite3_step(statement);
    status_t status = NULL;
    if (code == SQLITE_ROW || code == SQLITE_DONE) *exists = code == SQLITE_ROW;
    else status = store_error(store, "read");
    sqlite3_reset(statement);
    return status;
}

status_t store_next_id(struct store *store, const char *name, char **id)
{
    sqlite3_stmt *statement = use(store, COUNT_NAME);
    sqlite3_bind_text(statement, 1, name, -1, SQLITE_STATIC);
    int code = sqlite3_step(statement);
    long long number = code == SQLITE_ROW ? sqlite3_column_int64(statement, 0) + 1 : 0;
    status_t status = code == SQLITE_ROW ? NULL : store_error(store, "read");
    sqlite3_reset(statement);
    TRY(status);
    for (;; number++) {
        char *candidate = mem_printf("%s-%lld", name, number);
        bool exists = false;
        status = has_id(store, candidate, &exists);
        if (status == NULL && !exists) {
            *id = candidate;
            return NULL;
        }
        free(candidate);
        TRY(status);
    }
}

/* Binds ?1 to ?16, as far as the statement has them. The bound texts belong to `job` and `workers`.
 */
static void bind_job(sqlite3_stmt *statement, const job_message *job, const char *workers,
                     const void *metrics, size_t metrics_size)
{
    sqlite3_bind_text(statement, 1, job->id, -1, SQLITE_STATIC);
    sqlite3_bind_int(statement, 5, (int)job->state);
    sqlite3_bind_text(statement, 6, job->reason ? job->reason->code : "", -1, SQLITE_STATIC);
    sqlite3_bind_text(statement, 7, job->reason ? job->reason->message : "", -1, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 8, job->attempt);
    sqlite3_bind_int64(statement, 9, (sqlite3_int64)job->step);
    sqlite3_bind_int64(statement, 10, (sqlite3_int64)job->steps);
    if (metrics != NULL) sqlite3_bind_blob64(statement, 11, metrics, metrics_size, SQLITE_STATIC);
    sqlite3_bind_text(statement, 12, workers, -1, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 14, job->started_ms);
    sqlite3_bind_int64(statement, 15, job->finished_ms);
    sqlite3_bind_int64(statement, 16, job->state_ms);
}

static status_t write_job(struct store *store, enum statement which, const job_message *job)
{
    struct buf workers = {0};
    for (size_t i = 0; i < job->n_workers; i++)
        buf_printf(&workers, "%s%s", i > 0 ? "\n" : "", job->workers[i]);
    size_t metrics_size = 0, spec_size = 0, plan_size = 0;
    uint8_t *metrics = job->metrics ? message_pack(job->metrics, &metrics_size) : NULL;
    uint8_t *spec = NULL, *plan = NULL;
    sqlite3_stmt *statement = use(store, which);
    bind_job(statement, job, buf_text(&workers), metrics, metrics_size);
    if (which == INSERT_JOB) {
        static const Fsdpd__V1__Plan no_plan = FSDPD__V1__PLAN__INIT;
        spec = message_pack(job->spec, &spec_size);
        plan = message_pack(job->plan ? job->plan : &no_plan, &plan_size);
        sqlite3_bind_text(statement, 2, job->name, -1, SQLITE_STATIC);
        sqlite3_bind_blob64(statement, 3, spec, spec_size, SQLITE_STATIC);
        sqlite3_bind_blob64(statement, 4, plan, plan_size, SQLITE_STATIC);
        sqlite3_bind_int64(statement, 13, job->submitted_ms);
    }
    status_t status = run(store, statement, "write");
    sqlite3_clear_bindings(statement);
    free(spec);
    free(plan);
    free(metrics);
    buf_deinit(&workers);
    return status;
}

static status_t write_event(struct store *store, const char *job, const job_event *event)
{
    size_t size = 0;
    uint8_t *bytes = message_pack(event, &size);
    sqlite3_stmt *statement = use(store, INSERT_EVENT);
    sqlite3_bind_text(statement, 1, job, -1, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 2, (sqlite3_int64)event->sequence);
    sqlite3_bind_int(statement, 3, event->event_case == FSDPD__V1__JOB_EVENT__EVENT_METRICS);
    sqlite3_bind_blob64(statement, 4, bytes, size, SQLITE_STATIC);
    status_t status = run(store, statement, "write");
    sqlite3_clear_bindings(statement);
    free(bytes);
    return status;
}

status_t store_insert_job(struct store *store, const job_message *job, const job_event *event)
{
    TRY(begin(store, true));
    bool exists = false;
    status_t status = has_id(store, job->id, &exists);
    if (status == NULL && exists)
        status = status_new(STATUS_ALREADY_EXISTS, "there is a job %s already", job->id);
    if (status == NULL) status = write_job(store, INSERT_JOB, job);
    if (status == NULL) status = write_event(store, job->id, event);
    return end(store, status);
}

static status_t write_plan(struct store *store, const job_message *job)
{
    size_t spec_size = 0, plan_size = 0;
    uint8_t *spec = message_pack(job->spec, &spec_size);
    uint8_t *plan = message_pack(job->plan, &plan_size);
    sqlite3_stmt *statement = use(store, REPLAN_JOB);
    sqlite3_bind_text(statement, 1, job->id, -1, SQLITE_STATIC);
    sqlite3_bind_blob64(statement, 2, spec, spec_size, SQLITE_STATIC);
    sqlite3_bind_blob64(statement, 3, plan, plan_size, SQLITE_STATIC);
    status_t status = run(store, statement, "write");
    sqlite3_clear_bindings(statement);
    free(spec);
    free(plan);
    return status;
}

static status_t update_job(struct store *store, const job_message *job, const job_event *event,
                           bool durable, bool replan)
{
    TRY(begin(store, durable));
    status_t status = write_job(store, UPDATE_JOB, job);
    if (status == NULL && sqlite3_changes(store->database) != 1)
        status = status_new(STATUS_NOT_FOUND, "there is no job %s in the store", job->id);
    if (status == NULL && replan) status = write_plan(store, job);
    if (status == NULL && event != NULL) status = write_event(store, job->id, event);
    return end(store, status);
}

status_t store_update_job(struct store *store, const job_message *job, const job_event *event,
                          bool durable)
{
    return update_job(store, job, event, durable, false);
}

status_t store_replan_job(struct store *store, const job_message *job, const job_event *event)
{
    return update_job(store, job, event, true, true);
}

static void *unpack_column(sqlite3_stmt *row, int column,
                           const ProtobufCMessageDescriptor *descriptor)
{
    const void *bytes = sqlite3_column_blob(row, column);
    size_t size = (size_t)sqlite3_column_bytes(row, column);
    return protobuf_c_message_unpack(descriptor, NULL, size,
                                     bytes != NULL ? bytes : (const void *)"");
}

static const char *text_column(sqlite3_stmt *row, int column)
{
    const char *text = (const char *)sqlite3_column_text(row, column);
    return text != NULL ? text : "";
}

static void split_workers(const char *text, job_message *job)
{
    while (text[0] != '\0') {
        size_t length = strcspn(text, "\n");
        job->workers = mem_resize_array(job->workers, job->n_workers + 1, sizeof *job->workers);
        job->workers[job->n_workers++] = mem_strndup(text, length);
        text += length + (text[length] == '\n');
    }
}

/* The job of a row of JOB_COLUMNS. */
static status_t read_job(const struct store *store, sqlite3_stmt *row, job_message **out)
{
    job_message *job = mem_alloc(sizeof *job);
    fsdpd__v1__job__init(job);
    message_set_text(&job->id, text_column(row, 0));
    message_set_text(&job->name, text_column(row, 1));
    job->spec = unpack_column(row, 2, &fsdpd__v1__job_spec__descriptor);
    job->plan = unpack_column(row, 3, &fsdpd__v1__plan__descriptor);
    job->state = (Fsdpd__V1__JobState)sqlite3_column_int(row, 4);
    job->reason = mem_alloc(sizeof *job->reason);
    fsdpd__v1__reason__init(job->reason);
    message_set_text(&job->reason->code, text_column(row, 5));
    message_set_text(&job->reason->message, text_column(row, 6));
    job->attempt = (uint32_t)sqlite3_column_int64(row, 7);
    job->step = (uint64_t)sqlite3_column_int64(row, 8);
    job->steps = (uint64_t)sqlite3_column_int64(row, 9);
    bool has_metrics = sqlite3_column_type(row, 10) != SQLITE_NULL;
    if (has_metrics) job->metrics = unpack_column(row, 10, &fsdpd__v1__metrics__descriptor);
    split_workers(text_column(row, 11), job);
    job->submitted_ms = sqlite3_column_int64(row, 12);
    job->started_ms = sqlite3_column_int64(row, 13);
    job->finished_ms = sqlite3_column_int64(row, 14);
    job->state_ms = sqlite3_column_int64(row, 15);
    job->has_state_dict = sqlite3_column_type(row, 16) != SQLITE_NULL;
    if (job->spec == NULL || job->plan == NULL || (has_metrics && job->metrics == NULL)) {
        status_t status = status_new(STATUS_DATA_LOSS, "the record of job %s in %s is damaged",
                                     job->id, store->path);
        message_free(job);
        return status;
    }
    *out = job;
    return NULL;
}

status_t store_get_job(struct store *store, const char *id, job_message **job)
{
    sqlite3_stmt *statement = use(store, GET_JOB);
    sqlite3_bind_text(statement, 1, id, -1, SQLITE_STATIC);
    int code = sqlite3_step(statement);
    status_t status = NULL;
    if (code == SQLITE_ROW) status = read_job(store, statement, job);
    else if (code == SQLITE_DONE) status = status_new(STATUS_NOT_FOUND, "there is no job %s", id);
    else status = store_error(store, "read");
    sqlite3_reset(statement);
    return status;
}

status_t store_each_job(struct store *store, const struct store_job_query *query)
{
    sqlite3_stmt *statement = use(store, query->active_only    ? LIST_ACTIVE
                                         : query->newest_first ? LIST_NEWEST
                                                               : LIST_JOBS);
    status_t status = NULL;
    int code = SQLITE_DONE;
    while (status == NULL && (code = sqlite3_step(statement)) == SQLITE_ROW) {
        job_message *job = NULL;
        status = read_job(store, statement, &job);
        if (status == NULL) status = query->visit(query->user, job);
        message_free(job);
    }
    if (status == NULL && code != SQLITE_DONE) status = store_error(store, "read");
    sqlite3_reset(statement);
    return status;
}

status_t store_set_state_dict(struct store *store, const char *id, uint64_t step)
{
    TRY(begin(store, true));
    sqlite3_stmt *statement = use(store, SET_STATE_DICT);
    sqlite3_bind_text(statement, 1, id, -1, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 2, (sqlite3_int64)step);
    status_t status = run(store, statement, "write");
    if (status == NULL && sqlite3_changes(store->database) != 1)
        status = status_new(STATUS_NOT_FOUND, "there is no job %s in the store", id);
    return end(store, status);
}

status_t store_get_state_dict(struct store *store, const char *id, uint64_t *step)
{
    sqlite3_stmt *statement = use(store, GET_JOB);
    sqlite3_bind_text(statement, 1, id, -1, SQLITE_STATIC);
    int code = sqlite3_step(statement);
    status_t status = NULL;
    if (code == SQLITE_ROW && sqlite3_column_type(statement, 16) != SQLITE_NULL)
        *step = (uint64_t)sqlite3_column_int64(statement, 16);
    else if (code == SQLITE_ROW || code == SQLITE_DONE)
        status = status_new(STATUS_NOT_FOUND, "no state_dict of job %s is kept", id);
    else status = store_error(store, "read");
    sqlite3_reset(statement);
    return status;
}

status_t store_read_events(struct store *store, const struct store_event_query *query)
{
    sqlite3_stmt *statement = use(store, READ_EVENTS);
    sqlite3_bind_text(statement, 1, query->job, -1, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 2, (sqlite3_int64)query->after);
    sqlite3_bind_int64(statement, 3, (sqlite3_int64)query->skip_metrics);
    sqlite3_bind_int(statement, 4, query->limit);
    status_t status = NULL;
    bool more = true;
    int code = SQLITE_DONE;
    while (more && status == NULL && (code = sqlite3_step(statement)) == SQLITE_ROW) {
        job_event *event = unpack_column(statement, 0, &fsdpd__v1__job_event__descriptor);
        if (event == NULL)
            status = status_new(STATUS_DATA_LOSS, "an event of job %s in %s is damaged", query->job,
                                store->path);
        else more = query->visit(query->user, event);
        message_free(event);
    }
    if (status == NULL && more && code != SQLITE_DONE) status = store_error(store, "read");
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    return status;
}

status_t store_count_events(struct store *store, const char *job, uint64_t *last, uint64_t *metrics)
{
    sqlite3_stmt *statement = use(store, COUNT_EVENTS);
    sqlite3_bind_text(statement, 1, job, -1, SQLITE_STATIC);
    status_t status = NULL;
    if (sqlite3_step(statement) == SQLITE_ROW) {
        *last = (uint64_t)sqlite3_column_int64(statement, 0);
        *metrics = (uint64_t)sqlite3_column_int64(statement, 1);
    } else {
        status = store_error(store, "read");
    }
    sqlite3_reset(statement);
    return status;
}

status_t store_thin_metrics(struct store *store, const char *job, uint64_t keep)
{
    TRY(begin(store, false));
    sqlite3_stmt *statement = use(store, THIN_METRICS);
    sqlite3_bind_text(statement, 1, job, -1, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 2, (sqlite3_int64)keep);
    return end(store, run(store, statement, "write"));
}
