/* What the files of the store share; for store*.c only. */
#ifndef FSDPD_COORDINATOR_STORE_INTERNAL_H
#define FSDPD_COORDINATOR_STORE_INTERNAL_H

#include <sqlite3.h>

#include "coordinator/store.h"

enum store_statement {
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
    LIST_IDS,
    COUNT_STATES,
    LIST_ACTIVE,
    COUNT_NAME,
    HAS_ID,
    GET_REPORT,
    GET_STOP,
    SET_STATE_DICT,
    INSERT_EVENT,
    READ_EVENTS,
    COUNT_EVENTS,
    LAST_METRICS,
    SPAN_METRICS,
    THIN_METRICS,
    ADD_DRAIN,
    REMOVE_DRAIN,
    LIST_DRAINS,
    COUNT_FORGOTTEN,
    DELETE_EVENTS,
    DELETE_RETRIES,
    DELETE_CHECKPOINTS,
    DELETE_JOB,
    LIST_OLD,
    LIST_BEYOND,
    STATEMENT_COUNT,
};

struct store {
    sqlite3 *database;
    char *path;
    sqlite3_stmt *prepared[STATEMENT_COUNT];
};

/* The error that `database` has just reported, as "cannot <doing> <path>: ...". */
status_t store_sqlite_error(sqlite3 *database, const char *path, const char *doing) FSDPD_MUST_USE;
status_t store_error(const struct store *store, const char *doing) FSDPD_MUST_USE;

/* The prepared statement, reset and without bindings. */
sqlite3_stmt *store_use(struct store *store, enum store_statement which);

/* Runs a statement that yields no rows that matter. */
status_t store_run(struct store *store, sqlite3_stmt *statement, const char *doing) FSDPD_MUST_USE;

status_t store_begin(struct store *store, bool durable) FSDPD_MUST_USE;

/* Commits if `status` is NULL; else, or if that fails, rolls back. Returns the error. */
status_t store_end(struct store *store, status_t status) FSDPD_MUST_USE;

/* The message in a column; NULL if it is damaged. */
void *store_unpack(sqlite3_stmt *row, int column, const ProtobufCMessageDescriptor *descriptor);

/* One event, within a transaction. */
status_t store_write_event(struct store *store, const char *job,
                           const job_event *event) FSDPD_MUST_USE;

/* What an event of a checkpoint says of the list of them; within a transaction. */
status_t store_write_checkpoint(struct store *store, const char *job,
                                const Fsdpd__V1__CheckpointEvent *event) FSDPD_MUST_USE;

/* Within a transaction. */
status_t store_write_retries(struct store *store, const char *job,
                             const struct store_retries *retries) FSDPD_MUST_USE;

/* quick_check: DATA_LOSS says what is wrong with the file and what to do. */
status_t store_check(sqlite3 *database, const char *path) FSDPD_MUST_USE;

/*
 * Copies the whole database to `to`, which appears under its name only when it is complete, checked
 * and on the disk (temporary file, fsync, rename). An old file of that name is replaced.
 */
status_t store_copy(sqlite3 *from, const char *from_path, const char *to) FSDPD_MUST_USE;

#endif
