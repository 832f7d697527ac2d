/* The store's checkpoints of jobs, and the jobs' retry counts; see store.h. Calls are rare, so
 * their statements are prepared when used. */

#include "coordinator/store/store_internal.h"

static status_t prepare(struct store *store, const char *sql, const char *job, sqlite3_stmt **out)
{
    if (sqlite3_prepare_v2(store->database, sql, -1, out, NULL) != SQLITE_OK)
        return store_error(store, "read");
    sqlite3_bind_text(*out, 1, job, -1, SQLITE_STATIC);
    return NULL;
}

/* Runs a prepared statement without rows, and finalizes it. */
static status_t run_once(struct store *store, sqlite3_stmt *statement)
{
    status_t status = store_run(store, statement, "write");
    sqlite3_finalize(statement);
    return status;
}

static status_t forget_step(struct store *store, const char *job, uint64_t step)
{
    sqlite3_stmt *statement;
    TRY(prepare(store, "DELETE FROM checkpoints WHERE job = ?1 AND step = ?2", job, &statement));
    sqlite3_bind_int64(statement, 2, (sqlite3_int64)step);
    return run_once(store, statement);
}

static status_t put(struct store *store, const char *job, const Fsdpd__V1__Checkpoint *checkpoint)
{
    sqlite3_stmt *statement;
    size_t size = 0;
    TRY(prepare(store,
                "INSERT OR REPLACE INTO checkpoints (job, step, checkpoint, crc) "
                "VALUES (?1, ?2, ?3, " KEYED_CRC("?1, ?2", "?3") ")",
                job, &statement));
    AUTO_FREE uint8_t *bytes = message_pack(checkpoint, &size);
    sqlite3_bind_int64(statement, 2, (sqlite3_int64)checkpoint->step);
    sqlite3_bind_blob64(statement, 3, bytes, size, SQLITE_STATIC);
    return run_once(store, statement);
}

status_t store_write_checkpoint(struct store *store, const char *job,
                                const Fsdpd__V1__CheckpointEvent *event)
{
    if (event->code != 0 || event->checkpoint == NULL) return NULL;
    TRY(put(store, job, event->checkpoint));
    for (size_t i = 0; i < event->n_removed_steps; i++)
        TRY(forget_step(store, job, event->removed_steps[i]));
    return NULL;
}

status_t store_has_checkpoint(struct store *store, const char *job, bool *has)
{
    sqlite3_stmt *statement;
    TRY(prepare(store, "SELECT 1 FROM checkpoints WHERE job = ?1 LIMIT 1", job, &statement));
    int code = sqlite3_step(statement);
    status_t status = NULL;
    if (code == SQLITE_ROW || code == SQLITE_DONE) *has = code == SQLITE_ROW;
    else status = store_error(store, "read");
    sqlite3_finalize(statement);
    return status;
}

status_t store_each_checkpoint(struct store *store, const char *job,
                               status_t (*visit)(void *user,
                                                 const Fsdpd__V1__Checkpoint *checkpoint),
                               void *user)
{
    sqlite3_stmt *statement;
    TRY(prepare(store,
                "SELECT checkpoint, crc IS " CHECKPOINT_CRC " FROM checkpoints WHERE job = ?1 "
                "ORDER BY step",
                job, &statement));
    status_t status = NULL;
    int code = SQLITE_DONE;
    while (status == NULL && (code = sqlite3_step(statement)) == SQLITE_ROW) {
        Fsdpd__V1__Checkpoint *checkpoint =
            store_unpack(statement, 0, 1, &fsdpd__v1__checkpoint__descriptor);
        if (checkpoint == NULL)
            status = status_new(STATUS_DATA_LOSS, "a checkpoint of job %s in %s is damaged", job,
                                store->path);
        else status = visit(user, checkpoint);
        message_free(checkpoint);
    }
    if (status == NULL && code != SQLITE_DONE) status = store_error(store, "read");
    sqlite3_finalize(statement);
    return status;
}

status_t store_write_retries(struct store *store, const char *job,
                             const struct store_retries *retries)
{
    sqlite3_stmt *statement;
    TRY(prepare(store,
                "INSERT OR REPLACE INTO retries (job, failures, machine_failures, crc) "
                "VALUES (?1, ?2, ?3, " KEYED_CRC("?1", "?2, ?3") ")",
                job, &statement));
    sqlite3_bind_int64(statement, 2, retries->failures);
    sqlite3_bind_int64(statement, 3, retries->machine_failures);
    return run_once(store, statement);
}

status_t store_get_retries(struct store *store, const char *job, struct store_retries *retries)
{
    sqlite3_stmt *statement;
    TRY(prepare(store,
                "SELECT failures, machine_failures, crc IS " RETRIES_CRC " FROM retries "
                "WHERE job = ?1",
                job, &statement));
    *retries = (struct store_retries){0};
    int code = sqlite3_step(statement);
    if (code == SQLITE_ROW) {
        retries->failures = (uint32_t)sqlite3_column_int64(statement, 0);
        retries->machine_failures = (uint32_t)sqlite3_column_int64(statement, 1);
    }
    status_t status = NULL;
    if (code != SQLITE_ROW && code != SQLITE_DONE) status = store_error(store, "read");
    else if (code == SQLITE_ROW && !sqlite3_column_int(statement, 2))
        status = status_new(STATUS_DATA_LOSS, "the retries of job %s in %s are damaged", job,
                            store->path);
    sqlite3_finalize(statement);
    return status;
}
