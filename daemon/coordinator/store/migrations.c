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

/* Append only: the position in the list is the version, from 1. */
static const struct migration migrations[] = {
    {"jobs and their events", "CREATE TABLE schema (version INTEGER NOT NULL);"
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
                              ") WITHOUT ROWID;"},
    {"how many reports of the running attempt are recorded",
     "ALTER TABLE jobs ADD COLUMN report INTEGER NOT NULL DEFAULT 0;"},
    {"owners and priorities of jobs, who holds them, how many were forgotten, drained workers",
     "ALTER TABLE jobs ADD COLUMN owner TEXT NOT NULL DEFAULT '';"
     "ALTER TABLE jobs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;"
     "ALTER TABLE jobs ADD COLUMN held_by TEXT NOT NULL DEFAULT '';"
     "CREATE TABLE forgotten (name TEXT PRIMARY KEY, jobs INTEGER NOT NULL) WITHOUT ROWID;"
     "CREATE TABLE drains ("
     "  worker TEXT PRIMARY KEY," /* its id, or the name of a host */
     "  by TEXT NOT NULL,"
     "  time_ms INTEGER NOT NULL"
     ") WITHOUT ROWID;"},
    {"checkpoints, and how often jobs were tried again", "CREATE TABLE checkpoints ("
                                                         "  job TEXT NOT NULL,"
                                                         "  step INTEGER NOT NULL,"
                                                         "  checkpoint BLOB NOT NULL,"
                                                         "  PRIMARY KEY (job, step)"
                                                         ") WITHOUT ROWID;"
                                                         "CREATE TABLE retries ("
                                                         "  job TEXT PRIMARY KEY,"
                                                         "  failures INTEGER NOT NULL,"
                                                         "  machine_failures INTEGER NOT NULL"
                                                         ") WITHOUT ROWID;"},
    /* Earlier versions derived this from the message for people. */
    {"why a running attempt is to end",
     "ALTER TABLE jobs ADD COLUMN stop INTEGER NOT NULL DEFAULT 0;" /* see store_jobs.c */
     "ALTER TABLE jobs ADD COLUMN stop_code TEXT NOT NULL DEFAULT '';"
     "ALTER TABLE jobs ADD COLUMN stop_message TEXT NOT NULL DEFAULT '';"
     "ALTER TABLE jobs ADD COLUMN stop_by TEXT NOT NULL DEFAULT '';"
     "UPDATE jobs SET stop = 1, "
     "stop_message = substr(reason_message, 1, instr(reason_message || ';', ';') - 1) "
     "WHERE reason_code = 'CANCELLING' AND reason_message LIKE 'cancelled%';"
     "UPDATE jobs SET stop = 4, stop_message = replace(reason_message, "
     "': takes a checkpoint at its next step boundary, then goes on elsewhere', '') "
     "WHERE reason_code = 'VACATING';"
     /* "cancelled by USER", "worker WORKER was drained by USER" */
     "UPDATE jobs SET stop_by = substr(stop_message, instr(stop_message, ' by ') + 4) "
     "WHERE stop != 0 AND instr(stop_message, ' by ') > 0;"},
    {"sums of records",
     "ALTER TABLE jobs ADD COLUMN crc INTEGER NOT NULL DEFAULT 0;"
     "ALTER TABLE jobs ADD COLUMN state_crc INTEGER NOT NULL DEFAULT 0;"
     "ALTER TABLE events ADD COLUMN crc INTEGER NOT NULL DEFAULT 0;"
     "ALTER TABLE checkpoints ADD COLUMN crc INTEGER NOT NULL DEFAULT 0;"
     "ALTER TABLE retries ADD COLUMN crc INTEGER NOT NULL DEFAULT 0;"
     "ALTER TABLE drains ADD COLUMN crc INTEGER NOT NULL DEFAULT 0;"
     "ALTER TABLE forgotten ADD COLUMN crc INTEGER NOT NULL DEFAULT 0;"
     "UPDATE jobs SET crc = record_crc(id, name, spec, plan, submitted_ms, owner) | "
     "4611686018427387904, "
     "state_crc = record_crc(id, state, reason_code, reason_message, attempt, step, steps, "
     "metrics, workers, started_ms, finished_ms, state_ms, state_dict_step, priority, held_by, "
     "report, stop, stop_code, stop_message, stop_by) | 4611686018427387904;"
     "UPDATE events SET "
     "crc = record_crc(job, sequence) << 32 | record_crc(job, sequence, metrics, event);"
     "UPDATE checkpoints SET "
     "crc = record_crc(job, step) << 32 | record_crc(job, step, checkpoint);"
     "UPDATE retries SET "
     "crc = record_crc(job) << 32 | record_crc(job, failures, machine_failures);"
     "UPDATE drains SET crc = record_crc(worker, by, time_ms);"
     "UPDATE forgotten SET crc = record_crc(name, jobs);"},
    /* A damaged record stays one. */
    {"specs in which 0 is given", "UPDATE jobs SET spec = record_upgrade(spec), "
                                  "crc = record_crc(id, name, record_upgrade(spec), plan, "
                                  "submitted_ms, owner) | 4611686018427387904 WHERE crc = "
                                  "record_crc(id, name, spec, plan, submitted_ms, owner) | "
                                  "4611686018427387904;"},
    {"the choices of specs and plans as enums",
     "UPDATE jobs SET spec = record_move('spec', spec), plan = record_move('plan', plan), "
     "crc = record_crc(id, name, record_move('spec', spec), record_move('plan', plan), "
     "submitted_ms, owner) | 4611686018427387904 "
     "WHERE crc = record_crc(id, name, spec, plan, submitted_ms, owner) | 4611686018427387904;"
     "UPDATE events SET event = record_move('event', event), "
     "crc = record_crc(job, sequence) << 32 | "
     "record_crc(job, sequence, metrics, record_move('event', event)) "
     "WHERE crc = record_crc(job, sequence) << 32 | record_crc(job, sequence, metrics, event);"},
    {"times of events and checkpoints as messages",
     "UPDATE events SET event = record_move('event', event), "
     "crc = record_crc(job, sequence) << 32 | "
     "record_crc(job, sequence, metrics, record_move('event', event)) "
     "WHERE crc = record_crc(job, sequence) << 32 | record_crc(job, sequence, metrics, event);"
     "UPDATE checkpoints SET checkpoint = record_move('checkpoint', checkpoint), "
     "crc = record_crc(job, step) << 32 | "
     "record_crc(job, step, record_move('checkpoint', checkpoint)) "
     "WHERE crc = record_crc(job, step) << 32 | record_crc(job, step, checkpoint);"},
    {"sums of kept weights", "CREATE TABLE weights ("
                             "  job TEXT PRIMARY KEY,"
                             "  sums BLOB NOT NULL," /* see store_set_state_dict */
                             "  crc INTEGER NOT NULL"
                             ") WITHOUT ROWID;"},
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
