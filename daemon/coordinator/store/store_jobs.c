/* The store's rows of jobs; see store.h. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "coordinator/store/store_internal.h"
#include "proto/message.h"

static status_t has_id(struct store *store, const char *id, bool *exists)
{
    sqlite3_stmt *statement = store_use(store, HAS_ID);
    sqlite3_bind_text(statement, 1, id, -1, SQLITE_STATIC);
    int code = sqlite3_step(statement);
    status_t status = NULL;
    if (code == SQLITE_ROW || code == SQLITE_DONE) *exists = code == SQLITE_ROW;
    else status = store_error(store, "read");
    sqlite3_reset(statement);
    return status;
}

status_t store_next_id(struct store *store, const char *name, char **id)
{
    sqlite3_stmt *statement = store_use(store, COUNT_NAME);
    sqlite3_bind_text(statement, 1, name, -1, SQLITE_STATIC);
    int code = sqlite3_step(statement);
    long long number = code == SQLITE_ROW ? sqlite3_column_int64(statement, 0) + 1 : 0;
    status_t status = code == SQLITE_ROW ? NULL : store_error(store, "read");
    sqlite3_reset(statement);
    TRY(status);
    for (;; number++) {
        char *candidate = mem_printf("%s-%lld", name, number);
        bool exists = false;
        status = has_id(store, candidate, &exists);
        if (status == NULL && !exists) {
            *id = candidate;
            return NULL;
        }
        free(candidate);
        TRY(status);
    }
}

/* Bits of the column jobs.stop. */
enum stop_bit {
    STOP_CANCELLED = 1,
    STOP_SHUT_DOWN = 2,
    STOP_VACATING = 4,
    STOP_MACHINE = 8,
    STOP_PAUSING = 16,
    STOP_PREEMPTED = 32
};

/* Binds ?1 to ?20, those that the statement has. `job` and `workers` own the bound texts. */
static void bind_job(sqlite3_stmt *statement, const job_message *job, const char *workers,
                     const void *metrics, size_t metrics_size)
{
    sqlite3_bind_text(statement, 1, job->id, -1, SQLITE_STATIC);
    sqlite3_bind_int(statement, 5, (int)job->state);
    sqlite3_bind_text(statement, 6, job->reason ? job->reason->code : "", -1, SQLITE_STATIC);
    sqlite3_bind_text(statement, 7, job->reason ? job->reason->message : "", -1, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 8, job->attempt);
    sqlite3_bind_int64(statement, 9, (sqlite3_int64)job->step);
    sqlite3_bind_int64(statement, 10, (sqlite3_int64)job->steps);
    if (metrics != NULL) sqlite3_bind_blob64(statement, 11, metrics, metrics_size, SQLITE_STATIC);
    sqlite3_bind_text(statement, 12, workers, -1, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 14, message_time_ms(job->start_time));
    sqlite3_bind_int64(statement, 15, message_time_ms(job->finish_time));
    sqlite3_bind_int64(statement, 16, message_time_ms(job->state_time));
}

static void bind_stop(sqlite3_stmt *statement, const struct store_stop *stop)
{
    sqlite3_bind_int(statement, 21,
                     stop->cancelled * STOP_CANCELLED | stop->shut_down * STOP_SHUT_DOWN |
                         stop->vacating * STOP_VACATING | stop->machine * STOP_MACHINE |
                         stop->pausing * STOP_PAUSING | stop->preempted * STOP_PREEMPTED);
    sqlite3_bind_text(statement, 22, stop->code ? stop->code : "", -1, SQLITE_STATIC);
    sqlite3_bind_text(statement, 23, stop->message ? stop->message : "", -1, SQLITE_STATIC);
    sqlite3_bind_text(statement, 24, stop->by ? stop->by : "", -1, SQLITE_STATIC);
}

/* Its bytes; none without a message. */
static void bind_message(sqlite3_stmt *statement, int number, const void *message)
{
    size_t size = 0;
    uint8_t *bytes = message != NULL ? message_pack(message, &size) : NULL;
    if (bytes != NULL) sqlite3_bind_blob64(statement, number, bytes, size, free);
    else sqlite3_bind_zeroblob(statement, number, 0);
}

/* Updates the job with `change`, or inserts it if `change` is NULL. */
static status_t write_job(struct store *store, const job_message *job,
                          const struct store_change *change)
{
    enum store_statement which = change != NULL ? UPDATE_JOB : INSERT_JOB;
    AUTO(buf_deinit) struct buf workers = {0};
    for (size_t i = 0; i < job->n_workers; i++)
        buf_printf(&workers, "%s%s", i > 0 ? "\n" : "", job->workers[i]);
    size_t metrics_size = 0;
    AUTO_FREE uint8_t *metrics = job->metrics ? message_pack(job->metrics, &metrics_size) : NULL;
    sqlite3_stmt *statement = store_use(store, which);
    bind_job(statement, job, buf_text(&workers), metrics, metrics_size);
    if (change != NULL && change->report >= 0) sqlite3_bind_int64(statement, 17, change->report);
    if (change != NULL && change->stop != NULL) bind_stop(statement, change->stop);
    sqlite3_bind_int(statement, 18, job->priority);
    sqlite3_bind_text(statement, 19, job->held_by, -1, SQLITE_STATIC);
    if (which == INSERT_JOB) {
        sqlite3_bind_text(statement, 2, job->name, -1, SQLITE_STATIC);
        bind_message(statement, 3, job->spec);
        bind_message(statement, 4, job->plan);
        bind_message(statement, 21, job->chosen);
        sqlite3_bind_int64(statement, 13, message_time_ms(job->submit_time));
        sqlite3_bind_text(statement, 20, job->owner, -1, SQLITE_STATIC);
    }
    status_t status = store_run(store, statement, "write");
    sqlite3_clear_bindings(statement);
    return status;
}

static status_t write_plan(struct store *store, const job_message *job)
{
    sqlite3_stmt *statement = store_use(store, PLAN_JOB);
    sqlite3_bind_text(statement, 1, job->id, -1, SQLITE_STATIC);
    bind_message(statement, 2, job->spec);
    bind_message(statement, 3, job->plan);
    bind_message(statement, 4, job->chosen);
    status_t status = store_run(store, statement, "write");
    sqlite3_clear_bindings(statement);
    return status;
}

static status_t apply(struct store *store, const struct store_change *change)
{
    const job_message *job = change->job;
    status_t status = write_job(store, job, change);
    if (status == NULL && sqlite3_changes(store->database) != 1)
        status = status_new(STATUS_NOT_FOUND, "there is no job %s in the store", job->id);
    if (status == NULL && change->settings_changed) status = write_plan(store, job);
    if (status == NULL && change->retries != NULL)
        status = store_write_retries(store, job->id, change->retries);
    for (int i = 0; status == NULL && i < change->event_count; i++)
        status = store_write_event(store, job->id, change->events[i]);
    return status;
}

static status_t insert(struct store *store, const struct store_new_job *new_job)
{
    const char *id = new_job->job->id;
    bool exists = false;
    TRY(has_id(store, id, &exists));
    if (exists) return status_new(STATUS_ALREADY_EXISTS, "job %s already exists", id);
    TRY(write_job(store, new_job->job, NULL));
    return store_write_event(store, id, new_job->event);
}

status_t store_insert_jobs(struct store *store, const struct store_new_job *jobs, int count,
                           const struct store_change *change)
{
    TRY(store_begin(store, true));
    status_t status = NULL;
    for (int i = 0; status == NULL && i < count; i++) status = insert(store, &jobs[i]);
    if (status == NULL && change != NULL) status = apply(store, change);
    return store_end(store, status);
}

status_t store_insert_job(struct store *store, const job_message *job, const job_event *event)
{
    return store_insert_jobs(store, &(struct store_new_job){job, event}, 1, NULL);
}

status_t store_apply_all(struct store *store, const struct store_change *changes, int count)
{
    bool durable = false;
    for (int i = 0; i < count; i++) durable = durable || changes[i].durable;
    TRY(store_begin(store, durable));
    status_t status = NULL;
    for (int i = 0; status == NULL && i < count; i++) status = apply(store, &changes[i]);
    return store_end(store, status);
}

status_t store_apply(struct store *store, const struct store_change *change)
{
    return store_apply_all(store, change, 1);
}

status_t store_update_job(struct store *store, const job_message *job, const job_event *event,
                          bool durable)
{
    const struct store_change change = {.job = job,
                                        .events = &event,
                                        .event_count = event != NULL,
                                        .durable = durable,
                                        .report = -1};
    return store_apply(store, &change);
}

static const char *text_column(sqlite3_stmt *row, int column)
{
    const char *text = (const char *)sqlite3_column_text(row, column);
    return text != NULL ? text : "";
}

static void split_workers(const char *text, job_message *job)
{
    while (text[0] != '\0') {
        size_t length = strcspn(text, "\n");
        job->workers = mem_resize_array(job->workers, job->n_workers + 1, sizeof *job->workers);
        job->workers[job->n_workers++] = mem_strndup(text, length);
        text += length + (text[length] == '\n');
    }
}

static status_t damaged(const struct store *store, const char *id)
{
    return status_new(STATUS_DATA_LOSS,
                      "the record of job %s in %s is damaged. Restore a backup (fsdpd restore "
                      "FILE), or let an operator forget the job (fsdpctl forget %s)",
                      id, store->path, id);
}

static bool is_damaged(const struct store *store, const char *id)
{
    for (int i = 0; i < store->damaged_count; i++)
        if (strcmp(store->damaged[i], id) == 0) return true;
    return false;
}

static status_t no_job(const char *id)
{
    return status_with(status_new(STATUS_NOT_FOUND, "there is no job %s", id),
                       (struct status_details){.reason = "JOB_NOT_FOUND", .subject = id});
}

/* An empty message stands for none. */
static void drop_empty(void **message)
{
    if (protobuf_c_message_get_packed_size(*message) > 0) return;
    message_free(*message);
    *message = NULL;
}

/* Reads the job from a row of READ_COLUMNS. */
static status_t read_job(const struct store *store, sqlite3_stmt *row, job_message **out)
{
    enum { WHOLE = 21 };
    if (!sqlite3_column_int(row, WHOLE) || is_damaged(store, text_column(row, 0)))
        return damaged(store, text_column(row, 0));
    job_message *job = MESSAGE_NEW(job, fsdpd__v1__job__init);
    message_set_text(&job->id, text_column(row, 0));
    message_set_text(&job->name, text_column(row, 1));
    job->spec = store_unpack(row, 2, WHOLE, &fsdpd__v1__job_spec__descriptor);
    job->plan = store_unpack(row, 3, WHOLE, &fsdpd__v1__plan__descriptor);
    job->state = (Fsdpd__V1__JobState)sqlite3_column_int(row, 4);
    job->reason = MESSAGE_NEW(job->reason, fsdpd__v1__reason__init);
    message_set_text(&job->reason->code, text_column(row, 5));
    message_set_text(&job->reason->message, text_column(row, 6));
    job->attempt = (uint32_t)sqlite3_column_int64(row, 7);
    job->step = (uint64_t)sqlite3_column_int64(row, 8);
    job->steps = (uint64_t)sqlite3_column_int64(row, 9);
    bool has_metrics = sqlite3_column_type(row, 10) != SQLITE_NULL;
    if (has_metrics) job->metrics = store_unpack(row, 10, WHOLE, &fsdpd__v1__metrics__descriptor);
    split_workers(text_column(row, 11), job);
    message_set_time(&job->submit_time, sqlite3_column_int64(row, 12));
    message_set_time(&job->start_time, sqlite3_column_int64(row, 13));
    message_set_time(&job->finish_time, sqlite3_column_int64(row, 14));
    message_set_time(&job->state_time, sqlite3_column_int64(row, 15));
    job->has_state_dict = sqlite3_column_type(row, 16) != SQLITE_NULL;
    message_set_text(&job->owner, text_column(row, 17));
    job->priority = sqlite3_column_int(row, 18);
    message_set_text(&job->held_by, text_column(row, 19));
    job->chosen = store_unpack(row, 20, WHOLE, &fsdpd__v1__chosen__descriptor);
    if (job->spec == NULL || job->plan == NULL || job->chosen == NULL ||
        (has_metrics && job->metrics == NULL)) {
        status_t status = damaged(store, job->id);
        message_free(job);
        return status;
    }
    drop_empty((void **)&job->plan);
    drop_empty((void **)&job->chosen);
    *out = job;
    return NULL;
}

status_t store_get_job(struct store *store, const char *id, job_message **job)
{
    sqlite3_stmt *statement = store_use(store, GET_JOB);
    sqlite3_bind_text(statement, 1, id, -1, SQLITE_STATIC);
    int code = sqlite3_step(statement);
    status_t status = NULL;
    if (code == SQLITE_ROW) status = read_job(store, statement, job);
    else if (code == SQLITE_DONE) status = no_job(id);
    else status = store_error(store, "read");
    sqlite3_reset(statement);
    return status;
}

status_t store_each_job(struct store *store, const struct store_job_query *query)
{
    sqlite3_stmt *statement = store_use(store, query->active_only ? LIST_ACTIVE : LIST_JOBS);
    status_t status = NULL;
    int code = SQLITE_DONE;
    while (status == NULL && (code = sqlite3_step(statement)) == SQLITE_ROW) {
        job_message *job = NULL;
        status = read_job(store, statement, &job);
        if (status == NULL) {
            status = query->visit(query->user, job);
        } else if (status_code(status) == STATUS_DATA_LOSS) {
            status_free(status);
            status = NULL;
        }
        message_free(job);
    }
    if (status == NULL && code != SQLITE_DONE) status = store_error(store, "read");
    sqlite3_reset(statement);
    return status;
}

status_t store_each_id(struct store *store, bool (*visit)(void *user, const char *id), void *user)
{
    sqlite3_stmt *statement = store_use(store, LIST_IDS);
    bool more = true;
    int code = SQLITE_DONE;
    while (more && (code = sqlite3_step(statement)) == SQLITE_ROW)
        more = visit(user, text_column(statement, 0));
    status_t status = more && code != SQLITE_DONE ? store_error(store, "read") : NULL;
    sqlite3_reset(statement);
    return status;
}

status_t store_each_owner(struct store *store,
                          void (*visit)(void *user, const char *id, const char *owner), void *user)
{
    sqlite3_stmt *statement = store_use(store, LIST_OWNERS);
    int code;
    while ((code = sqlite3_step(statement)) == SQLITE_ROW)
        visit(user, text_column(statement, 0), text_column(statement, 1));
    status_t status = code != SQLITE_DONE ? store_error(store, "read") : NULL;
    sqlite3_reset(statement);
    return status;
}

status_t store_count_states(struct store *store, uint64_t *counts)
{
    sqlite3_stmt *statement = store_use(store, COUNT_STATES);
    int code;
    while ((code = sqlite3_step(statement)) == SQLITE_ROW) {
        int state = sqlite3_column_int(statement, 0);
        if (state >= 0 && state <= JOB_CANCELLED)
            counts[state] += (uint64_t)sqlite3_column_int64(statement, 1);
    }
    status_t status = code != SQLITE_DONE ? store_error(store, "read") : NULL;
    sqlite3_reset(statement);
    return status;
}

status_t store_get_report(struct store *store, const char *id, uint64_t *report)
{
    sqlite3_stmt *statement = store_use(store, GET_REPORT);
    sqlite3_bind_text(statement, 1, id, -1, SQLITE_STATIC);
    int code = sqlite3_step(statement);
    status_t status = NULL;
    if (code == SQLITE_ROW) *report = (uint64_t)sqlite3_column_int64(statement, 0);
    else if (code == SQLITE_DONE) status = no_job(id);
    else status = store_error(store, "read");
    sqlite3_reset(statement);
    return status;
}

static char *text_or_null(sqlite3_stmt *row, int column)
{
    const char *text = text_column(row, column);
    return text[0] != '\0' ? mem_strdup(text) : NULL;
}

void store_stop_deinit(struct store_stop *stop)
{
    free(stop->by);
    free(stop->code);
    free(stop->message);
    *stop = (struct store_stop){0};
}

status_t store_get_stop(struct store *store, const char *id, struct store_stop *stop)
{
    sqlite3_stmt *statement = store_use(store, GET_STOP);
    sqlite3_bind_text(statement, 1, id, -1, SQLITE_STATIC);
    int code = sqlite3_step(statement);
    status_t status = NULL;
    if (code == SQLITE_ROW) {
        int bits = sqlite3_column_int(statement, 0);
        *stop = (struct store_stop){.cancelled = (bits & STOP_CANCELLED) != 0,
                                    .shut_down = (bits & STOP_SHUT_DOWN) != 0,
                                    .vacating = (bits & STOP_VACATING) != 0,
                                    .machine = (bits & STOP_MACHINE) != 0,
                                    .pausing = (bits & STOP_PAUSING) != 0,
                                    .preempted = (bits & STOP_PREEMPTED) != 0,
                                    .code = text_or_null(statement, 1),
                                    .message = text_or_null(statement, 2),
                                    .by = text_or_null(statement, 3)};
    } else if (code == SQLITE_DONE) {
        status = no_job(id);
    } else {
        status = store_error(store, "read");
    }
    sqlite3_reset(statement);
    return status;
}

static status_t write_weights(struct store *store, const char *id, const struct store_weights *weights)
{
    sqlite3_stmt *statement = store_use(store, SET_STATE_DICT);
    sqlite3_bind_text(statement, 1, id, -1, SQLITE_STATIC);
    if (weights != NULL) sqlite3_bind_int64(statement, 2, (sqlite3_int64)weights->step);
    else sqlite3_bind_null(statement, 2);
    TRY(store_run(store, statement, "write"));
    if (sqlite3_changes(store->database) != 1)
        return status_new(STATUS_NOT_FOUND, "there is no job %s in the store", id);
    bool proved = weights != NULL && weights->proved;
    statement = store_use(store, proved ? SET_WEIGHTS : DELETE_WEIGHTS);
    sqlite3_bind_text(statement, 1, id, -1, SQLITE_STATIC);
    if (proved)
        sqlite3_bind_blob(statement, 2, weights->sums, sizeof weights->sums, SQLITE_STATIC);
    return store_run(store, statement, "write");
}

static status_t set_state_dict(struct store *store, const char *id,
                               const struct store_weights *weights)
{
    TRY(store_begin(store, true));
    return store_end(store, write_weights(store, id, weights));
}

status_t store_set_state_dict(struct store *store, const char *id,
                              const struct store_weights *weights)
{
    return set_state_dict(store, id, weights);
}

status_t store_drop_state_dict(struct store *store, const char *id)
{
    return set_state_dict(store, id, NULL);
}

static status_t read_sums(struct store *store, const char *id, struct store_weights *weights)
{
    sqlite3_stmt *statement = store_use(store, GET_WEIGHTS);
    sqlite3_bind_text(statement, 1, id, -1, SQLITE_STATIC);
    int code = sqlite3_step(statement);
    status_t status = NULL;
    weights->proved = code == SQLITE_ROW;
    if (code != SQLITE_ROW && code != SQLITE_DONE) status = store_error(store, "read");
    else if (code == SQLITE_ROW && (!sqlite3_column_int(statement, 1) ||
                                    sqlite3_column_bytes(statement, 0) != sizeof weights->sums))
        status = status_new(STATUS_DATA_LOSS, "the sums of the weights of job %s in %s are damaged",
                            id, store->path);
    else if (code == SQLITE_ROW)
        memcpy(weights->sums, sqlite3_column_blob(statement, 0), sizeof weights->sums);
    sqlite3_reset(statement);
    return status;
}

status_t store_get_state_dict(struct store *store, const char *id, struct store_weights *weights)
{
    sqlite3_stmt *statement = store_use(store, GET_JOB);
    sqlite3_bind_text(statement, 1, id, -1, SQLITE_STATIC);
    int code = sqlite3_step(statement);
    status_t status = NULL;
    *weights = (struct store_weights){0};
    if (code == SQLITE_ROW && sqlite3_column_type(statement, 16) != SQLITE_NULL)
        weights->step = (uint64_t)sqlite3_column_int64(statement, 16);
    else if (code == SQLITE_ROW || code == SQLITE_DONE)
        status = status_new(STATUS_NOT_FOUND, "no state_dict of job %s is kept", id);
    else status = store_error(store, "read");
    sqlite3_reset(statement);
    return status != NULL ? status : read_sums(store, id, weights);
}
