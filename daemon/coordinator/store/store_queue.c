/* Drained workers, what users have used, and how jobs leave the store; see store.h. */

#include "base/array.h"
#include "base/mem.h"
#include "coordinator/store/store_internal.h"

status_t store_add_drain(struct store *store, const char *worker, const char *by, int64_t time_ms)
{
    TRY(store_begin(store, true));
    sqlite3_stmt *statement = store_use(store, ADD_DRAIN);
    sqlite3_bind_text(statement, 1, worker, -1, SQLITE_STATIC);
    sqlite3_bind_text(statement, 2, by, -1, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 3, time_ms);
    return store_end(store, store_run(store, statement, "write"));
}

status_t store_remove_drain(struct store *store, const char *worker)
{
    TRY(store_begin(store, true));
    sqlite3_stmt *statement = store_use(store, REMOVE_DRAIN);
    sqlite3_bind_text(statement, 1, worker, -1, SQLITE_STATIC);
    return store_end(store, store_run(store, statement, "write"));
}

status_t store_each_drain(struct store *store,
                          void (*visit)(void *user, const char *worker, const char *by,
                                        int64_t time_ms),
                          void *user)
{
    sqlite3_stmt *statement = store_use(store, LIST_DRAINS);
    int code;
    while ((code = sqlite3_step(statement)) == SQLITE_ROW)
        visit(user, (const char *)sqlite3_column_text(statement, 0),
              (const char *)sqlite3_column_text(statement, 1), sqlite3_column_int64(statement, 2));
    status_t status = code == SQLITE_DONE ? NULL : store_error(store, "read");
    sqlite3_reset(statement);
    return status;
}

status_t store_set_usage(struct store *store, const struct store_usage *rows, int count)
{
    TRY(store_begin(store, false));
    status_t status = NULL;
    for (int i = 0; status == NULL && i < count; i++) {
        sqlite3_stmt *statement = store_use(store, SET_USAGE);
        sqlite3_bind_text(statement, 1, rows[i].user, -1, SQLITE_STATIC);
        sqlite3_bind_int64(statement, 2, rows[i].worker_ms);
        sqlite3_bind_int64(statement, 3, rows[i].time_ms);
        status = store_run(store, statement, "write");
    }
    return store_end(store, status);
}

status_t store_each_usage(struct store *store,
                          void (*visit)(void *user, const struct store_usage *usage), void *user)
{
    sqlite3_stmt *statement = store_use(store, LIST_USAGE);
    int code;
    while ((code = sqlite3_step(statement)) == SQLITE_ROW)
        visit(user, &(struct store_usage){.user = (const char *)sqlite3_column_text(statement, 0),
                                          .worker_ms = sqlite3_column_int64(statement, 1),
                                          .time_ms = sqlite3_column_int64(statement, 2)});
    status_t status = code == SQLITE_DONE ? NULL : store_error(store, "read");
    sqlite3_reset(statement);
    return status;
}

/* Runs one statement about the job; *any: whether it changed anything. */
static status_t change(struct store *store, enum store_statement which, const char *id, bool *any)
{
    sqlite3_stmt *statement = store_use(store, which);
    sqlite3_bind_text(statement, 1, id, -1, SQLITE_STATIC);
    TRY(store_run(store, statement, "write"));
    *any = sqlite3_changes(store->database) > 0;
    return NULL;
}

status_t store_forget_job(struct store *store, const char *id)
{
    static const enum store_statement parts[] = {COUNT_FORGOTTEN,    DELETE_EVENTS,  DELETE_RETRIES,
                                                 DELETE_CHECKPOINTS, DELETE_WEIGHTS, DELETE_TOKENS,
                                                 DELETE_JOB};
    bool any = false;
    TRY(store_begin(store, true));
    status_t status = NULL;
    for (size_t i = 0; status == NULL && i < COUNT_OF(parts); i++)
        status = change(store, parts[i], id, &any); /* the job itself is last */
    if (status == NULL && !any)
        status = status_with(status_new(STATUS_NOT_FOUND, "there is no job %s", id),
                             (struct status_details){.reason = "JOB_NOT_FOUND", .subject = id});
    return store_end(store, status);
}

static status_t visit_ids(struct store *store, sqlite3_stmt *statement,
                          const struct store_finished_query *query, bool *more)
{
    int code = SQLITE_DONE;
    while (*more && (code = sqlite3_step(statement)) == SQLITE_ROW)
        *more = query->visit(query->user, (const char *)sqlite3_column_text(statement, 0));
    status_t status = code == SQLITE_DONE || code == SQLITE_ROW ? NULL : store_error(store, "read");
    sqlite3_reset(statement);
    return status;
}

status_t store_each_finished(struct store *store, const struct store_finished_query *query)
{
    bool more = true;
    if (query->before_ms > 0) {
        sqlite3_stmt *old = store_use(store, LIST_OLD);
        sqlite3_bind_int64(old, 1, query->before_ms);
        TRY(visit_ids(store, old, query, &more));
    }
    if (query->keep > 0 && more) {
        sqlite3_stmt *beyond = store_use(store, LIST_BEYOND);
        sqlite3_bind_int(beyond, 1, query->keep);
        TRY(visit_ids(store, beyond, query, &more));
    }
    return NULL;
}
