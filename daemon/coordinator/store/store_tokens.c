/* Tokens of clients over HTTP; see store.h. */
#include "coordinator/store/store_internal.h"

static status_t expire(struct store *store, int64_t now_ms)
{
    sqlite3_stmt *statement = store_use(store, EXPIRE_TOKENS);
    sqlite3_bind_int64(statement, 1, now_ms);
    return store_run(store, statement, "write");
}

status_t store_add_token(struct store *store, const unsigned char hash[STORE_TOKEN_HASH],
                         const struct store_token *token)
{
    TRY(store_begin(store, true));
    status_t status = expire(store, token->issued_ms);
    sqlite3_stmt *statement = store_use(store, ADD_TOKEN);
    sqlite3_bind_blob(statement, 1, hash, STORE_TOKEN_HASH, SQLITE_STATIC);
    sqlite3_bind_text(statement, 2, token->name, -1, SQLITE_STATIC);
    sqlite3_bind_int(statement, 3, token->role == FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_OPERATOR);
    sqlite3_bind_text(statement, 4, token->by, -1, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 5, token->issued_ms);
    sqlite3_bind_int64(statement, 6, token->expires_ms);
    sqlite3_bind_int(statement, 7, token->role == FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_OBSERVER);
    sqlite3_bind_text(statement, 8, token->job, -1, SQLITE_STATIC);
    if (status == NULL) status = store_run(store, statement, "write");
    return store_end(store, status);
}

status_t store_each_token(struct store *store, const unsigned char *hash,
                          void (*visit)(void *user, const struct store_token *token), void *user)
{
    sqlite3_stmt *row = store_use(store, hash != NULL ? FIND_TOKEN : LIST_TOKENS);
    if (hash != NULL) sqlite3_bind_blob(row, 1, hash, STORE_TOKEN_HASH, SQLITE_STATIC);
    status_t status = NULL;
    int code;
    while ((code = sqlite3_step(row)) == SQLITE_ROW && status == NULL) {
        const struct store_token token = {
            .name = (const char *)sqlite3_column_text(row, 0),
            .role = sqlite3_column_int(row, 1) != 0   ? FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_OPERATOR
                    : sqlite3_column_int(row, 6) != 0 ? FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_OBSERVER
                                                      : FSDPD__V1__TOKEN_ROLE__TOKEN_ROLE_USER,
            .by = (const char *)sqlite3_column_text(row, 2),
            .issued_ms = sqlite3_column_int64(row, 3),
            .expires_ms = sqlite3_column_int64(row, 4),
            .job = (const char *)sqlite3_column_text(row, 7),
        };
        if (sqlite3_column_int(row, 5) != 0) visit(user, &token);
        else status = status_new(STATUS_DATA_LOSS, "a token in %s is damaged", store->path);
    }
    if (status == NULL && code != SQLITE_DONE) status = store_error(store, "read");
    sqlite3_reset(row);
    return status;
}

status_t store_remove_tokens(struct store *store, const char *name, int *removed)
{
    TRY(store_begin(store, true));
    sqlite3_stmt *statement = store_use(store, REMOVE_TOKENS);
    sqlite3_bind_text(statement, 1, name, -1, SQLITE_STATIC);
    status_t status = store_run(store, statement, "write");
    *removed = status == NULL ? sqlite3_changes(store->database) : 0;
    return store_end(store, status);
}
