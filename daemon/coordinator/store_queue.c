/* What the store knows of drained workers, and how jobs leave it; see store.h. */
#include <stdlib.h>

#include "base/mem.h"
#include "coordinator/store_internal.h"

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
