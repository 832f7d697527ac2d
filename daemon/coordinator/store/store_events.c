/* The store's events of jobs; see store.h. */

#include "base/mem.h"
#include "coordinator/store/store_internal.h"
#include "spec/metric_curves.h"

status_t store_write_event(struct store *store, const char *job, const job_event *event)
{
    size_t size = 0;
    AUTO_FREE uint8_t *bytes = message_pack(event, &size);
    sqlite3_stmt *statement = store_use(store, INSERT_EVENT);
    sqlite3_bind_text(statement, 1, job, -1, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 2, (sqlite3_int64)event->sequence);
    sqlite3_bind_int(statement, 3, event->event_case == FSDPD__V1__JOB_EVENT__EVENT_METRICS);
    sqlite3_bind_blob64(statement, 4, bytes, size, SQLITE_STATIC);
    status_t status = store_run(store, statement, "write");
    sqlite3_clear_bindings(statement);
    if (status == NULL && event->event_case == FSDPD__V1__JOB_EVENT__EVENT_CHECKPOINT)
        status = store_write_checkpoint(store, job, event->checkpoint);
    return status;
}

status_t store_read_events(struct store *store, const struct store_event_query *query)
{
    sqlite3_stmt *statement = store_use(store, READ_EVENTS);
    sqlite3_bind_text(statement, 1, query->job, -1, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 2, (sqlite3_int64)query->after);
    sqlite3_bind_int64(statement, 3, (sqlite3_int64)query->skip_metrics);
    sqlite3_bind_int(statement, 4, query->limit);
    status_t status = NULL;
    bool more = true;
    int code = SQLITE_DONE;
    while (more && status == NULL && (code = sqlite3_step(statement)) == SQLITE_ROW) {
        job_event *event = store_unpack(statement, 0, 1, &fsdpd__v1__job_event__descriptor);
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

status_t store_find_metrics(struct store *store, const char *job, uint64_t step, job_event **event)
{
    sqlite3_stmt *statement = store_use(store, LAST_METRICS);
    sqlite3_bind_text(statement, 1, job, -1, SQLITE_STATIC);
    *event = NULL;
    status_t status = NULL;
    int code = SQLITE_DONE;
    while (status == NULL && *event == NULL && (code = sqlite3_step(statement)) == SQLITE_ROW) {
        job_event *read = store_unpack(statement, 0, 1, &fsdpd__v1__job_event__descriptor);
        if (read == NULL || read->event_case != FSDPD__V1__JOB_EVENT__EVENT_METRICS)
            status = status_new(STATUS_DATA_LOSS, "an event of job %s in %s is damaged", job,
                                store->path);
        else if (read->metrics->step <= step) *event = read;
        if (*event == NULL) message_free(read);
    }
    if (status == NULL && *event == NULL && code != SQLITE_DONE)
        status = store_error(store, "read");
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    return status;
}

status_t store_count_events(struct store *store, const char *job, uint64_t *last, uint64_t *metrics)
{
    sqlite3_stmt *statement = store_use(store, COUNT_EVENTS);
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

/* ---- thinning ---- */

static bool add_report(void *user, const job_event *event)
{
    if (event->event_case == FSDPD__V1__JOB_EVENT__EVENT_METRICS)
        metric_reports_add(user, event->sequence, event->metrics);
    return true;
}

static status_t delete_reports(struct store *store, const char *job,
                               const struct metric_reports *all)
{
    for (size_t i = 0; i < all->count; i++) {
        if (all->points[i].stays) continue;
        sqlite3_stmt *statement = store_use(store, DELETE_EVENT);
        sqlite3_bind_text(statement, 1, job, -1, SQLITE_STATIC);
        sqlite3_bind_int64(statement, 2, (sqlite3_int64)all->points[i].number);
        TRY(store_run(store, statement, "write"));
    }
    return NULL;
}

status_t store_thin_metrics(struct store *store, const char *job, uint64_t keep, uint64_t *left)
{
    AUTO(metric_reports_deinit) struct metric_reports all = {0};
    struct store_event_query query = {.job = job, .limit = -1, .visit = add_report, .user = &all};
    TRY(store_read_events(store, &query));
    const size_t kept = metric_reports_thin(&all, keep);
    if (kept < all.count) {
        TRY(store_begin(store, false));
        TRY(store_end(store, delete_reports(store, job, &all)));
    }
    *left = kept;
    return NULL;
}
