/* The steps of the store's schema; see migrations.h. */
#include "coordinator/store/migrations.h"

#include "base/array.h"
#include "base/mem.h"
#include "config.h"
#include "coordinator/store/store_mark.h"

struct migration {
    const char *what;
    const char *sql;
};

/* Append only: the position in the list is the version, from 1. SQLite keeps the text of a table, spaces
 * included, and store_sums.c compares it. */
static const struct migration migrations[] = {
    {"jobs, events, checkpoints, retries, drains, and numbers of forgotten jobs",
     "CREATE TABLE schema (version INTEGER NOT NULL);"
     "INSERT INTO schema VALUES (0);"
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
     "  state_dict_step INTEGER," /* NULL without a state_dict */
     " report INTEGER NOT NULL DEFAULT 0,"
     " owner TEXT NOT NULL DEFAULT '',"
     " priority INTEGER NOT NULL DEFAULT 0,"
     " held_by TEXT NOT NULL DEFAULT '',"
     " stop INTEGER NOT NULL DEFAULT 0," /* see store_jobs.c */
     " stop_code TEXT NOT NULL DEFAULT '',"
     " stop_message TEXT NOT NULL DEFAULT '',"
     " stop_by TEXT NOT NULL DEFAULT '',"
     " crc INTEGER NOT NULL DEFAULT 0,"
     " state_crc INTEGER NOT NULL DEFAULT 0"
     ");"
     "CREATE INDEX jobs_by_state ON jobs (state);"
     "CREATE INDEX jobs_by_name ON jobs (name);"
     "CREATE TABLE events ("
     "  job TEXT NOT NULL,"
     "  sequence INTEGER NOT NULL,"
     "  metrics INTEGER NOT NULL," /* 1 for events that may be thinned */
     "  event BLOB NOT NULL,"
     " crc INTEGER NOT NULL DEFAULT 0,"
     "  PRIMARY KEY (job, sequence)"
     ") WITHOUT ROWID;"
     "CREATE TABLE forgotten ("
     "name TEXT PRIMARY KEY,"
     " jobs INTEGER NOT NULL,"
     " crc INTEGER NOT NULL DEFAULT 0"
     ") WITHOUT ROWID;"
     "CREATE TABLE drains ("
     "  worker TEXT PRIMARY KEY," /* its id, or the name of a host */
     "  by TEXT NOT NULL,"
     "  time_ms INTEGER NOT NULL,"
     " crc INTEGER NOT NULL DEFAULT 0"
     ") WITHOUT ROWID;"
     "CREATE TABLE checkpoints ("
     "  job TEXT NOT NULL,"
     "  step INTEGER NOT NULL,"
     "  checkpoint BLOB NOT NULL,"
     " crc INTEGER NOT NULL DEFAULT 0,"
     "  PRIMARY KEY (job, step)"
     ") WITHOUT ROWID;"
     "CREATE TABLE retries ("
     "  job TEXT PRIMARY KEY,"
     "  failures INTEGER NOT NULL,"
     "  machine_failures INTEGER NOT NULL,"
     " crc INTEGER NOT NULL DEFAULT 0"
     ") WITHOUT ROWID;"},
    {"sums of kept weights", "CREATE TABLE weights ("
                             "  job TEXT PRIMARY KEY,"
                             "  sums BLOB NOT NULL," /* see store_set_state_dict */
                             "  crc INTEGER NOT NULL"
                             ") WITHOUT ROWID;"},
    {"what was chosen for jobs, apart from what was asked for; what users have used",
     "ALTER TABLE jobs ADD COLUMN chosen BLOB NOT NULL DEFAULT X'';"
     "UPDATE jobs SET "
     "crc = record_crc(id, name, spec, plan, submitted_ms, owner, chosen) | 4611686018427387904 "
     "WHERE crc = record_crc(id, name, spec, plan, submitted_ms, owner) | 4611686018427387904;"
     "CREATE TABLE usage ("
     "  user TEXT PRIMARY KEY,"
     "  worker_ms INTEGER NOT NULL," /* decayed, at: */
     "  time_ms INTEGER NOT NULL,"
     "  crc INTEGER NOT NULL"
     ") WITHOUT ROWID;"},
    {"tokens of clients over HTTP", "CREATE TABLE tokens ("
                                    "  hash BLOB PRIMARY KEY," /* the SHA-256 of the token */
                                    "  name TEXT NOT NULL,"
                                    "  operator INTEGER NOT NULL,"
                                    "  by TEXT NOT NULL,"
                                    "  issued_ms INTEGER NOT NULL,"
                                    "  expires_ms INTEGER NOT NULL,"
                                    "  crc INTEGER NOT NULL"
                                    ") WITHOUT ROWID;"},
    {"tokens of observers, and of one job",
     "ALTER TABLE tokens ADD COLUMN observer INTEGER NOT NULL DEFAULT 0;"
     "ALTER TABLE tokens ADD COLUMN job TEXT NOT NULL DEFAULT '';" /* '': all */
     "UPDATE tokens SET "
     "crc = record_crc(hash, name, operator, by, issued_ms, expires_ms, observer, job) "
     "WHERE crc = record_crc(hash, name, operator, by, issued_ms, expires_ms);"},
};

enum { LATEST = COUNT_OF(migrations) };

int migrations_latest(void)
{
    return LATEST;
}

/* What step `version` (from 1) adds. */
static const char *describe(int version)
{
    return version >= 1 && version <= LATEST ? migrations[version - 1].what : "";
}

/* The first column of the first row as an integer; `none` if there is no row. */
static status_t query_integer(sqlite3 *database, const char *path, const char *sql, int none,
                              int *out)
{
    sqlite3_stmt *statement = NULL;
    int code = sqlite3_prepare_v2(database, sql, -1, &statement, NULL);
    if (code == SQLITE_OK) code = sqlite3_step(statement);
    if (code == SQLITE_ROW) *out = sqlite3_column_int(statement, 0);
    else if (code == SQLITE_DONE) *out = none;
    status_t status = NULL;
    /* SQLITE_ERROR: a table or a column has an unexpected name. */
    if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB || code == SQLITE_ERROR)
        status = store_damaged(path, "%s", sqlite3_errmsg(database));
    else if (code != SQLITE_ROW && code != SQLITE_DONE)
        status =
            status_new(STATUS_UNAVAILABLE, "cannot read %s: %s", path, sqlite3_errmsg(database));
    sqlite3_finalize(statement);
    return status;
}

status_t migrations_version(sqlite3 *database, const char *path, int *version)
{
    int tables = 0, schema = 0, found = 0;
    TRY(query_integer(database, path, "SELECT count(*) FROM sqlite_master", 0, &tables));
    if (tables == 0) {
        *version = 0;
        return NULL;
    }
    TRY(query_integer(database, path, "SELECT count(*) FROM sqlite_master WHERE name = 'schema'", 0,
                      &schema));
    if (schema > 0) TRY(query_integer(database, path, "SELECT version FROM schema", 0, &found));
    if (found < 1)
        return status_new(STATUS_DATA_LOSS, "%s is not an fsdpd store: it has no schema version",
                          path);
    if (found > LATEST)
        return status_new(STATUS_FAILED_PRECONDITION,
                          "%s was written by a newer fsdpd: its schema is version %d, and this "
                          "fsdpd (" PACKAGE_VERSION ") knows versions up to %d. Install that fsdpd "
                          "again, or restore a backup made before the upgrade (fsdpd restore)",
                          path, found, LATEST);
    *version = found;
    return NULL;
}

static status_t execute(sqlite3 *database, const char *path, int version, const char *sql)
{
    int code = sqlite3_exec(database, sql, NULL, NULL, NULL) & 0xff;
    if (code == SQLITE_OK) return NULL;
    return status_new(code == SQLITE_FULL ? STATUS_RESOURCE_EXHAUSTED : STATUS_INTERNAL,
                      "cannot bring %s to schema version %d (%s): %s", path, version,
                      describe(version), sqlite3_errmsg(database));
}

status_t migrations_run(sqlite3 *database, const char *path, int from, int to)
{
    TRY(execute(database, path, to, "BEGIN IMMEDIATE"));
    status_t status = NULL;
    for (int version = from + 1; status == NULL && version <= to; version++)
        status = execute(database, path, version, migrations[version - 1].sql);
    if (status == NULL) {
        AUTO_FREE char *sql = mem_printf("UPDATE schema SET version = %d", to);
        status = execute(database, path, to, sql);
    }
    if (status == NULL) status = execute(database, path, to, "COMMIT");
    if (status != NULL && !sqlite3_get_autocommit(database))
        sqlite3_exec(database, "ROLLBACK", NULL, NULL, NULL);
    return status;
}
