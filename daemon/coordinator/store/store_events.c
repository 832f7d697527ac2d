/* The store's events of jobs; see store.h. */

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "coordinator/store/store_internal.h"

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

/* A metrics event, in the order of the sequence. */
struct store_point {
    uint64_t sequence;
    double loss;
    bool stays;
};

struct store_curve {
    struct store_point *points;
    size_t count, capacity;
};

static bool add_point(void *user, const job_event *event)
{
    struct store_curve *curve = user;
    if (event->event_case != FSDPD__V1__JOB_EVENT__EVENT_METRICS) return true;
    MEM_GROW(curve->points, curve->count, curve->capacity);
    curve->points[curve->count++] =
        (struct store_point){.sequence = event->sequence, .loss = event->metrics->loss};
    return true;
}

/* Of a stretch, its extremes stay, and the first loss that is not finite. Returns how many. */
static size_t choose_extremes(struct store_point *points, size_t count)
{
    struct store_point *least = NULL, *largest = NULL, *odd = NULL;
    for (struct store_point *point = points; point < points + count; point++) {
        point->stays = false;
        if (!isfinite(point->loss)) {
            if (odd == NULL) odd = point;
            continue;
        }
        if (least == NULL || point->loss < least->loss) least = point;
        if (largest == NULL || point->loss > largest->loss) largest = point;
    }
    if (least != NULL) least->stays = largest->stays = true;
    if (odd != NULL) odd->stays = true;
    return (size_t)(least != NULL) + (largest != least) + (odd != NULL);
}

/* The same in each stretch of `stride` sequences; the very first point stays as well. */
static size_t choose_points(struct store_point *points, size_t count, uint64_t stride)
{
    size_t chosen = 0;
    for (size_t from = 0, to = 0; from < count; from = to) {
        uint64_t stretch = points[from].sequence / stride;
        while (to < count && points[to].sequence / stride == stretch) to++;
        chosen += choose_extremes(points + from, to - from);
    }
    chosen += !points[0].stays;
    points[0].stays = true;
    return chosen;
}

static status_t delete_points(struct store *store, const char *job,
                              const struct store_point *points, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (points[i].stays) continue;
        sqlite3_stmt *statement = store_use(store, DELETE_EVENT);
        sqlite3_bind_text(statement, 1, job, -1, SQLITE_STATIC);
        sqlite3_bind_int64(statement, 2, (sqlite3_int64)points[i].sequence);
        TRY(store_run(store, statement, "write"));
    }
    return NULL;
}

static status_t thin(struct store *store, const char *job, uint64_t keep,
                     const struct store_curve *curve, uint64_t *left)
{
    const size_t newest = keep / 4 + 1, room = keep - newest;
    *left = curve->count;
    if (curve->count <= keep) return NULL;
    const size_t old = curve->count - newest;
    const uint64_t span = curve->points[old].sequence - curve->points[0].sequence;
    size_t chosen = old;
    for (uint64_t stride = 2; chosen > room && stride <= 2 * span; stride *= 2)
        chosen = choose_points(curve->points, old, stride);
    TRY(store_begin(store, false));
    TRY(store_end(store, delete_points(store, job, curve->points, old)));
    *left = chosen + newest;
    return NULL;
}

status_t store_thin_metrics(struct store *store, const char *job, uint64_t keep, uint64_t *left)
{
    struct store_curve curve = {0};
    struct store_event_query query = {.job = job, .limit = -1, .visit = add_point, .user = &curve};
    uint64_t thinned = 0;
    status_t status = store_read_events(store, &query);
    if (status == NULL) status = thin(store, job, keep, &curve, &thinned);
    if (status == NULL) *left = thinned;
    free(curve.points);
    return status;
}
