/*
 * The job store over SQLite: opening, and transactions; see store.h. store_jobs.c has the rows of
 * jobs, store_events.c events, store_backup.c copies of the store. Statements are prepared once and
 * reset after each use. The `synchronous` pragma is switched per transaction: FULL syncs the log at
 * the commit (and with it every earlier commit), NORMAL leaves that to the next durable one.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/log.h"
#include "base/mem.h"
#include "coordinator/store/migrations.h"
#include "coordinator/store/store_internal.h"

#define JOB_COLUMNS                                                                                \
    "id, name, spec, plan, state, reason_code, reason_message, attempt, step, steps, metrics, "    \
    "workers, submitted_ms, started_ms, finished_ms, state_ms, state_dict_step, "                  \
    "owner, priority, held_by, chosen"

/* Plus whether the row is undamaged. */
#define READ_COLUMNS JOB_COLUMNS ", crc IS " JOB_CRC " AND state_crc IS " JOB_STATE_CRC

/* The values of JOB_STATE_CRC that every write of a job binds. */
#define BOUND_STATE "?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?14, ?15, ?16"

static const char *const statements[STATEMENT_COUNT] = {
    [BEGIN] = "BEGIN IMMEDIATE",
    [COMMIT] = "COMMIT",
    [ROLLBACK] = "ROLLBACK",
    [SYNC_FULL] = "PRAGMA synchronous = FULL",
    [SYNC_NORMAL] = "PRAGMA synchronous = NORMAL",
    [INSERT_JOB] = "INSERT INTO jobs (" JOB_COLUMNS ", crc, state_crc) VALUES "
                   "(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, NULL, "
                   "?20, ?18, ?19, ?21, record_crc(?1, ?2, ?3, ?4, ?13, ?20, ?21)" WIDE ", "
                   "record_crc(?1, " BOUND_STATE ", NULL, ?18, ?19, 0, 0, '', '', '')" WIDE ")",
    [UPDATE_JOB] =
        "UPDATE jobs SET state = ?5, reason_code = ?6, reason_message = ?7, "
        "attempt = ?8, step = ?9, steps = ?10, metrics = ?11, workers = ?12, "
        "started_ms = ?14, finished_ms = ?15, state_ms = ?16, report = coalesce(?17, report), "
        "priority = ?18, held_by = ?19, stop = coalesce(?21, stop), "
        "stop_code = coalesce(?22, stop_code), stop_message = coalesce(?23, stop_message), "
        "stop_by = coalesce(?24, stop_by), "
        "state_crc = record_crc(id, " BOUND_STATE ", state_dict_step, ?18, ?19, "
        "coalesce(?17, report), coalesce(?21, stop), coalesce(?22, stop_code), "
        "coalesce(?23, stop_message), coalesce(?24, stop_by))" WIDE " WHERE id = ?1",
    [PLAN_JOB] = "UPDATE jobs SET spec = ?2, plan = ?3, chosen = ?4, crc = "
                 "record_crc(id, name, ?2, ?3, submitted_ms, owner, ?4)" WIDE " WHERE id = ?1",
    [GET_JOB] = "SELECT " READ_COLUMNS " FROM jobs WHERE id = ?1",
    [LIST_JOBS] = "SELECT " READ_COLUMNS " FROM jobs ORDER BY number",
    [LIST_IDS] = "SELECT id FROM jobs ORDER BY number DESC",
    [LIST_OWNERS] = "SELECT id, owner FROM jobs WHERE state IN (5, 6, 7)",
    [COUNT_STATES] = "SELECT state, count(*) FROM jobs GROUP BY state",
    [LIST_ACTIVE] = "SELECT " READ_COLUMNS " FROM jobs WHERE state IN (1, 2, 3, 4) ORDER BY number",
    /* Clients may have chosen ids in this range; the caller continues from the result. Ids of
     * forgotten jobs are not reused. */
    [COUNT_NAME] = "SELECT count(*) + coalesce((SELECT jobs FROM forgotten WHERE name = ?1), 0) "
                   "FROM jobs WHERE name = ?1",
    [HAS_ID] = "SELECT 1 FROM jobs WHERE id = ?1",
    [GET_REPORT] = "SELECT report FROM jobs WHERE id = ?1",
    [GET_STOP] = "SELECT stop, stop_code, stop_message, stop_by FROM jobs WHERE id = ?1",
    [SET_STATE_DICT] =
        "UPDATE jobs SET state_dict_step = ?2, state_crc = record_crc(id, state, reason_code, "
        "reason_message, attempt, step, steps, metrics, workers, started_ms, finished_ms, "
        "state_ms, ?2, priority, held_by, report, stop, stop_code, stop_message, stop_by)" WIDE
        " WHERE id = ?1",
    [INSERT_EVENT] = "INSERT INTO events (job, sequence, metrics, event, crc) VALUES "
                     "(?1, ?2, ?3, ?4, " KEYED_CRC("?1, ?2", "?3, ?4") ")",
    [READ_EVENTS] =
        "SELECT event, crc IS " EVENT_CRC " FROM events WHERE job = ?1 AND sequence > ?2 AND "
        "(metrics = 0 OR sequence > ?3) ORDER BY sequence LIMIT ?4",
    [COUNT_EVENTS] = "SELECT coalesce(max(sequence), 0), coalesce(sum(metrics), 0) FROM events "
                     "WHERE job = ?1",
    [LAST_METRICS] =
        "SELECT event, crc IS " EVENT_CRC " FROM events WHERE job = ?1 AND metrics = 1 "
        "ORDER BY sequence DESC",
    [ADD_DRAIN] = "INSERT OR IGNORE INTO drains (worker, by, time_ms, crc) VALUES "
                  "(?1, ?2, ?3, record_crc(?1, ?2, ?3))",
    [REMOVE_DRAIN] = "DELETE FROM drains WHERE worker = ?1",
    [LIST_DRAINS] = "SELECT worker, by, time_ms FROM drains ORDER BY worker",
    [SET_USAGE] = "INSERT OR REPLACE INTO usage (user, worker_ms, time_ms, crc) VALUES "
                  "(?1, ?2, ?3, record_crc(?1, ?2, ?3))",
    [LIST_USAGE] = "SELECT user, worker_ms, time_ms FROM usage",
    [ADD_TOKEN] =
        "INSERT INTO tokens (hash, name, operator, by, issued_ms, expires_ms, observer, job, crc) "
        "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, record_crc(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8))",
    [FIND_TOKEN] =
        "SELECT name, operator, by, issued_ms, expires_ms, crc IS " TOKEN_CRC ", observer, job"
        " FROM tokens WHERE hash = ?1",
    [LIST_TOKENS] =
        "SELECT name, operator, by, issued_ms, expires_ms, crc IS " TOKEN_CRC ", observer, job"
        " FROM tokens ORDER BY name, issued_ms",
    [REMOVE_TOKENS] = "DELETE FROM tokens WHERE name = ?1",
    [EXPIRE_TOKENS] = "DELETE FROM tokens WHERE expires_ms <= ?1",
    [COUNT_FORGOTTEN] = "INSERT INTO forgotten (name, jobs, crc) "
                        "SELECT name, 1, record_crc(name, 1) FROM jobs WHERE id = ?1 "
                        "ON CONFLICT (name) DO UPDATE SET jobs = jobs + 1, "
                        "crc = record_crc(name, jobs + 1)",
    [DELETE_EVENT] = "DELETE FROM events WHERE job = ?1 AND sequence = ?2",
    [DELETE_EVENTS] = "DELETE FROM events WHERE job = ?1",
    [DELETE_RETRIES] = "DELETE FROM retries WHERE job = ?1",
    [DELETE_CHECKPOINTS] = "DELETE FROM checkpoints WHERE job = ?1",
    [SET_WEIGHTS] = "INSERT OR REPLACE INTO weights (job, sums, crc) VALUES "
                    "(?1, ?2, " KEYED_CRC("?1", "?2") ")",
    [GET_WEIGHTS] = "SELECT sums, crc IS " WEIGHTS_CRC " FROM weights WHERE job = ?1",
    [DELETE_WEIGHTS] = "DELETE FROM weights WHERE job = ?1",
    [DELETE_TOKENS] = "DELETE FROM tokens WHERE job = ?1",
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
    if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB)
        return store_damaged(path, "cannot %s it: %s", doing, sqlite3_errmsg(database));
    if (code == SQLITE_FULL) {
        as = STATUS_RESOURCE_EXHAUSTED;
    } else if (code == SQLITE_BUSY || code == SQLITE_IOERR) {
        as = STATUS_UNAVAILABLE;
    } else if (code == SQLITE_READONLY || code == SQLITE_CANTOPEN || code == SQLITE_PERM) {
        as = STATUS_PERMISSION_DENIED;
    }
    return status_new(as, "cannot %s %s: %s", doing, path, sqlite3_errmsg(database));
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
    MUST_ALONE(&store->user);
    int code = sqlite3_step(statement);
    status_t status = code == SQLITE_DONE || code == SQLITE_ROW ? NULL : store_error(store, doing);
    sqlite3_reset(statement);
    return status;
}

static status_t execute(struct store *store, const char *sql, const char *doing)
{
    int code = sqlite3_exec(store->database, sql, NULL, NULL, NULL);
    return code == SQLITE_OK ? NULL : store_error(store, doing);
}

status_t store_begin(struct store *store, bool durable)
{
    MUST_ALONE(&store->user);
    TRY(store_check_files(store));
    TRY(store_run(store, store_use(store, durable ? SYNC_FULL : SYNC_NORMAL), "write"));
    TRY(store_run(store, store_use(store, BEGIN), "write"));
    store->durable = durable;
    if (!durable) return NULL;
    AUTO_FREE char *sql =
        mem_printf("PRAGMA user_version = %d", (int32_t)(store->mark.changes + 1));
    status_t status = execute(store, sql, "write");
    return status == NULL ? NULL : store_end(store, status);
}

status_t store_end(struct store *store, status_t status)
{
    MUST_ALONE(&store->user);
    if (status == NULL) status = store_run(store, store_use(store, COMMIT), "write");
    if (status == NULL) store_note_commit(store);
    else if (!sqlite3_get_autocommit(store->database))
        status_free(store_run(store, store_use(store, ROLLBACK), "write"));
    return status;
}

void *store_unpack(sqlite3_stmt *row, int column, int whole,
                   const ProtobufCMessageDescriptor *descriptor)
{
    if (!sqlite3_column_int(row, whole)) return NULL;
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
            status = store_damaged(path, "%s", result != NULL ? result : "?");
    }
    sqlite3_finalize(statement);
    return status;
}

/* Copies an older store before changing it, so that a downgraded fsdpd can use it again. */
static status_t migrate(struct store *store, int version)
{
    int latest = migrations_latest();
    if (version == latest) return NULL;
    if (version > 0) {
        AUTO_FREE char *copy = mem_printf("%s.schema-%d", store->path, version);
        status_t status = store_copy(store->database, store->path, copy);
        if (status == NULL)
            log_event(LOG_INFO, "store_migrating", "from=%d to=%d backup=%s", version, latest,
                      copy);
        if (status != NULL)
            return status_wrap(status, "a backup comes before the new schema version %d", latest);
    }
    return migrations_run(store->database, store->path, version, latest);
}

static void log_damaged(const struct store *store, const char *event, const char *job)
{
    AUTO_FREE char *quoted = log_quote(job), *path = log_quote(store->path);
    log_event(LOG_ERROR, event, "job=%s store=%s", quoted, path);
}

static void note_events(void *user, const char *job)
{
    log_damaged(user, "events_damaged", job);
}

static void add_damaged(void *user, const char *job)
{
    struct store *store = user;
    log_damaged(store, "record_damaged", job);
    MEM_GROW(store->damaged, store->damaged_count, store->damaged_capacity);
    store->damaged[store->damaged_count++] = mem_strdup(job);
}

/* Sets mode 0640, also on files of an older fsdpd or a backup; SQLite gives a store's new files the
 * mode of the store. */
static status_t set_modes(const struct store *store)
{
    static const char *const endings[] = {"", "-wal", "-shm"};
    for (size_t i = 0; i < COUNT_OF(endings); i++) {
        AUTO_FREE char *path = mem_printf("%s%s", store->path, endings[i]);
        int error = chmod(path, 0640) == 0 || errno == ENOENT ? 0 : errno;
        TRY(error != 0 ? status_from_errno(error, "cannot set the mode of %s", path) : NULL);
    }
    return NULL;
}

/* Checks that all acknowledged changes exist. A store without its mark is accepted, with a log
 * entry: it takes the loss of two files to go unnoticed. */
static status_t verify_mark(struct store *store, bool fresh, bool *found)
{
    uint32_t changes = 0, copied = 0;
    status_t status = mark_read(store->path, &store->mark);
    bool lost = status_code(status) == STATUS_NOT_FOUND || status_code(status) == STATUS_DATA_LOSS;
    *found = !lost;
    if (lost && fresh) {
        status_free(status);
        return NULL;
    }
    if (lost) {
        log_status(LOG_WARNING, "store_mark_lost", status);
        store->mark = (struct store_mark){0};
        status = NULL;
    }
    TRY(status);
    TRY(store_read_changes(store->database, store->path, &changes, &copied));
    return mark_verify(store->path, &store->mark, changes, copied);
}

/* Before the first change: a new log will have another salt, so if there is no log, the mark
 * forgets its position. The mark is overwritten in place, which works on a full disk. */
static status_t begin_mark(struct store *store, bool found)
{
    struct stat info;
    bool has_log = stat(store->files[1].path, &info) == 0 && info.st_size > 0;
    if (!found) {
        store->mark = (struct store_mark){0};
        TRY(mark_replace(store->path, &store->mark));
    }
    TRY(mark_open(store->path, &store->mark_fd));
    if (!found || has_log) return NULL;
    store->mark.log = (struct log_place){0};
    return mark_write(store->mark_fd, &store->mark, true);
}

status_t store_prepare(struct store *store)
{
    sqlite3_stmt *statement = NULL;
    for (int i = 0; i < STATEMENT_COUNT; i++)
        if (sqlite3_prepare_v3(store->database, statements[i], -1, SQLITE_PREPARE_PERSISTENT,
                               &store->prepared[i], NULL) != SQLITE_OK)
            return store_error(store, "read");
    if (sqlite3_prepare_v2(store->database, "PRAGMA page_size", -1, &statement, NULL) !=
            SQLITE_OK ||
        sqlite3_step(statement) != SQLITE_ROW) {
        sqlite3_finalize(statement);
        return store_error(store, "read");
    }
    store->page_size = sqlite3_column_int(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_wal_hook(store->database, store_count_frames, store);
    return NULL;
}

/* Writes nothing before the store has been verified, not even its log's contents. */
static status_t open_database(struct store *store)
{
    const struct store_damage damage = {.job = add_damaged, .events = note_events, .user = store};
    TRY(mark_find_store(store->path));
    if (sqlite3_open_v2(store->path, &store->database,
                        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                        NULL) != SQLITE_OK)
        return store_error(store, "open");
    if (sqlite3_db_readonly(store->database, "main") ==
        1) /* SQLite's answer to any error of open */
        return status_new(STATUS_UNAVAILABLE, "%s can only be read; fsdpd needs to write it",
                          store->path);
    sqlite3_db_config(store->database, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    sqlite3_busy_timeout(store->database, 2000);
    TRY(execute(store, "PRAGMA trusted_schema = OFF; PRAGMA foreign_keys = ON;", "open"));
    TRY(store_add_sums(store->database, store->path));
    int version = 0;
    TRY(migrations_version(store->database, store->path, &version));
    bool found = false;
    TRY(verify_mark(store, version == 0, &found)); /* 0: the log may hold all of it */
    TRY(store_check(store->database, store->path));
    TRY(set_modes(store));
    if (version == migrations_latest())
        TRY(store_check_records(store->database, store->path, &damage));
    TRY(begin_mark(store, found));
    TRY(execute(store, "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;", "open"));
    TRY(migrate(store, version));
    uint32_t copied;
    TRY(store_read_changes(store->database, store->path, &store->mark.changes, &copied));
    TRY(store_prepare(store));
    store_note_files(store);
    sqlite3_db_config(store->database, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, NULL);
    return NULL;
}

/* Moves the mark to the log's end, with one empty change. On a full disk this fails and waits: the
 * store is readable, and the mark is correct. */
static void mark_log_end(struct store *store)
{
    status_t status = store_begin(store, true);
    if (status == NULL) status = store_end(store, NULL);
    log_status(LOG_WARNING, "store_failed", status);
}

status_t store_open(const char *path, struct store **out)
{
    static const char *const suffixes[STORE_FILES] = {"", "-wal", "-mark"};
    struct store *store = mem_alloc(sizeof *store);
    store->path = mem_strdup(path);
    store->mark_fd = -1;
    for (int i = 0; i < STORE_FILES; i++)
        store->files[i].path = mem_printf("%s%s", path, suffixes[i]);
    status_t status = open_database(store);
    if (status != NULL) {
        store_close(store);
        return status;
    }
    mark_log_end(store);
    *out = store;
    return NULL;
}

static bool store_is_there(const struct store *store)
{
    status_t status = store_check_files(store);
    status_free(status);
    return status == NULL;
}

void store_close(struct store *store)
{
    if (store == NULL) return;
    for (int i = 0; i < STATEMENT_COUNT; i++) sqlite3_finalize(store->prepared[i]);
    bool there = store->mark_fd >= 0 && store_is_there(store);
    /* SQLite would copy the log again, which the mark does not know, and remove it by name. */
    if (store->database != NULL && !(there && store_copy_log(store)))
        sqlite3_db_config(store->database, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    sqlite3_close(store->database);
    if (store->mark_fd >= 0) close(store->mark_fd);
    for (int i = 0; i < STORE_FILES; i++) free(store->files[i].path);
    for (int i = 0; i < store->damaged_count; i++) free(store->damaged[i]);
    free(store->damaged);
    free(store->path);
    free(store);
}

int64_t store_bytes(const struct store *store)
{
    static const char *const suffixes[] = {"", "-wal"};
    int64_t bytes = 0;
    for (size_t i = 0; i < COUNT_OF(suffixes); i++) {
        struct stat file;
        AUTO_FREE char *path = mem_printf("%s%s", store->path, suffixes[i]);
        if (stat(path, &file) == 0) bytes += file.st_size;
    }
    return bytes;
}
