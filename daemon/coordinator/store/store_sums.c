/*
 * Checksums of records. SQLite finds pages that do not fit together, but not a byte that has
 * changed within one, so each row has a CRC-32 of its values, which every read compares. A job has
 * two: one of the values that stay as submitted, and one of those that change with every report.
 */
#include <string.h>
#include <zlib.h>

#include "base/buf.h"
#include "base/mem.h"
#include "coordinator/store/migrations.h"
#include "coordinator/store/store_internal.h"

static uLong add_integer(uLong crc, char kind, sqlite3_int64 value)
{
    uint8_t bytes[9] = {(uint8_t)kind};
    for (int i = 0; i < 8; i++) bytes[1 + i] = (uint8_t)((uint64_t)value >> (8 * i));
    return crc32(crc, bytes, sizeof bytes);
}

/* record_crc(VALUE, ...): covers the values with their types and lengths. */
static void record_crc(sqlite3_context *context, int count, sqlite3_value **values)
{
    uLong crc = crc32(0, NULL, 0);
    for (int i = 0; i < count; i++) {
        int type = sqlite3_value_type(values[i]);
        if (type == SQLITE_NULL) {
            crc = add_integer(crc, 'N', 0);
        } else if (type == SQLITE_INTEGER) {
            crc = add_integer(crc, 'I', sqlite3_value_int64(values[i]));
        } else {
            const void *bytes =
                type == SQLITE_BLOB ? sqlite3_value_blob(values[i]) : sqlite3_value_text(values[i]);
            int size = sqlite3_value_bytes(values[i]);
            crc = add_integer(crc, type == SQLITE_BLOB ? 'B' : 'T', size);
            if (size > 0) crc = crc32(crc, bytes, (unsigned)size);
        }
    }
    sqlite3_result_int64(context, (sqlite3_int64)crc);
}

status_t store_add_sums(sqlite3 *database, const char *path)
{
    int flags = SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_INNOCUOUS;
    int code = sqlite3_create_function_v2(database, "record_crc", -1, flags, NULL, record_crc, NULL,
                                          NULL, NULL);
    return code == SQLITE_OK ? NULL : store_sqlite_error(database, path, "open");
}

/* Calls `visit` with the first column of each row, as text. */
static status_t each_text(sqlite3 *database, const char *path, const char *sql,
                          void (*visit)(void *user, const char *text), void *user)
{
    sqlite3_stmt *statement = NULL;
    int code = sqlite3_prepare_v2(database, sql, -1, &statement, NULL);
    while (code == SQLITE_OK || code == SQLITE_ROW) {
        code = sqlite3_step(statement);
        const char *text = NULL;
        if (code == SQLITE_ROW) text = (const char *)sqlite3_column_text(statement, 0);
        if (text != NULL) visit(user, text);
    }
    status_t status = code == SQLITE_DONE ? NULL : store_sqlite_error(database, path, "check");
    sqlite3_finalize(statement);
    return status;
}

static void keep_first(void *user, const char *text)
{
    char **first = user;
    if (*first == NULL) *first = mem_strdup(text);
}

static void add_line(void *user, const char *text)
{
    buf_printf(user, "%s\n", text);
}

/* Checks that the tables and indexes are exactly as this fsdpd creates them: their definitions have
 * no checksums. */
static status_t check_schema(sqlite3 *database, const char *path)
{
    static const char sql[] = "SELECT type || ' ' || name || ' ' || tbl_name || ' ' || "
                              "coalesce(sql, '') FROM sqlite_master ORDER BY 1";
    sqlite3 *model = NULL;
    AUTO(buf_deinit) struct buf expected = {0}, found = {0};
    status_t status = NULL;
    if (sqlite3_open_v2(":memory:", &model, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL) !=
        SQLITE_OK)
        status = store_sqlite_error(model, ":memory:", "open");
    if (status == NULL) status = store_add_sums(model, ":memory:");
    if (status == NULL) status = migrations_run(model, ":memory:", 0, migrations_latest());
    if (status == NULL) status = each_text(model, ":memory:", sql, add_line, &expected);
    if (status == NULL) status = each_text(database, path, sql, add_line, &found);
    if (status == NULL && strcmp(buf_text(&expected), buf_text(&found)) != 0)
        status = store_damaged(path, "its tables are not those of schema version %d",
                               migrations_latest());
    sqlite3_close(model);
    return status;
}

/* A row that matches neither the checksum of its key nor its own: it belonged to another job. */
#define MOVED(table, key, rest)                                                                    \
    "SELECT '" table " of a job now called ' || job FROM " table                                   \
    " WHERE crc >> 32 & 4294967295 IS NOT record_crc(" key                                         \
    ") AND crc & 4294967295 IS NOT record_crc(" key ", " rest ")"

/* Checks records that belong to no job, or to one that cannot be named: the store needs them
 * all. */
static status_t check_others(sqlite3 *database, const char *path)
{
    static const char sql
        [] = "SELECT 'the drain of ' || worker FROM drains WHERE crc IS NOT " DRAIN_CRC
             " UNION ALL "
             "SELECT 'the usage of ' || user FROM usage WHERE crc IS NOT " USAGE_CRC " UNION ALL "
             "SELECT 'a token of ' || name FROM tokens WHERE crc IS NOT " TOKEN_CRC " UNION ALL "
             "SELECT 'the number of forgotten jobs ' || name FROM forgotten WHERE crc IS "
             "NOT " FORGOTTEN_CRC
             " UNION ALL " MOVED("events", "job, sequence", "metrics, event") " UNION ALL " MOVED(
                 "checkpoints", "job, step",
                 "checkpoint") " UNION ALL " MOVED("retries", "job",
                                                   "failures, machine_failures") " UNION "
                                                                                 "ALL " MOVED("weig"
                                                                                              "hts",
                                                                                              "job",
                                                                                              "sum"
                                                                                              "s");
    AUTO_FREE char *damaged = NULL;
    status_t status = each_text(database, path, sql, keep_first, &damaged);
    if (status == NULL && damaged != NULL) status = store_damaged(path, "records of %s", damaged);
    return status;
}

/* quick_check does not verify the contents of indexes, by which jobs are found. */
static status_t check_index(sqlite3 *database, const char *path)
{
    AUTO_FREE char *result = NULL;
    status_t status =
        each_text(database, path, "PRAGMA integrity_check(jobs)", keep_first, &result);
    if (status == NULL && (result == NULL || strcmp(result, "ok") != 0))
        status = store_damaged(path, "%s", result != NULL ? result : "?");
    return status;
}

status_t store_check_records(sqlite3 *database, const char *path, const struct store_damage *damage)
{
    TRY(check_schema(database, path));
    TRY(check_index(database, path));
    TRY(check_others(database, path));
    TRY(each_text(database, path,
                  "SELECT id FROM jobs WHERE crc IS NOT " JOB_CRC
                  " OR state_crc IS NOT " JOB_STATE_CRC " UNION "
                  "SELECT job FROM retries WHERE crc IS NOT " RETRIES_CRC " UNION "
                  "SELECT job FROM weights WHERE crc IS NOT " WEIGHTS_CRC " UNION "
                  "SELECT job FROM checkpoints WHERE crc IS NOT " CHECKPOINT_CRC,
                  damage->job, damage->user));
    return each_text(database, path, "SELECT DISTINCT job FROM events WHERE crc IS NOT " EVENT_CRC,
                     damage->events, damage->user);
}
