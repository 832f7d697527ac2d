/*
 * ListJobs: jobs that match a filter, without their long texts. GetHistory: those of a job's events
 * that concern its states.
 */
#include "coordinator/api/handlers.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "coordinator/jobs/jobs.h"
#include "coordinator/scheduler/queue.h"
#include "proto/message.h"
#include "rpc/rpc.h"
#include "spec/queue.h"

enum {
    MARGIN = 65536,            /* of a response, for fields that `bytes` omits */
    FILTER_MAX = 256,          /* of a pattern, in characters */
    STATES_MAX = 16,           /* in a filter */
    HISTORY_MAX = 10000,       /* entries per response */
    DIAGNOSES_BYTES = 2 << 20, /* of their diagnoses */
};

/* A job's row in the list: its fields point into the job in memory, or into the record that was
 * read from the store. */
struct row {
    job_message view;
    job_spec spec;
    Fsdpd__V1__ModelSpec model;
    Fsdpd__V1__Plan plan;
    job_message *stored; /* or NULL */
};

struct job_list {
    struct coordinator *c;
    const Fsdpd__V1__ListJobsRequest *request;
    struct row **rows; /* newest first */
    size_t count, capacity, bytes;
    size_t damaged;             /* of these rows */
    uint32_t left_out, skipped; /* that match: older ones; ones of earlier pages */
    int64_t after_ms;           /* from the page token: when the last job of the page before was */
    const char *after;          /* submitted, and its id. NULL: not, or no longer, to skip jobs */
    bool counted;               /* the number of matches is known without a scan of all jobs */
    status_t status;
};

static status_t check_filter(const Fsdpd__V1__ListJobsRequest *request)
{
    if (request->n_states > STATES_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "states: expected at most %d, found %zu",
                          STATES_MAX, request->n_states);
    for (size_t i = 0; i < request->n_states; i++)
        if ((int)request->states[i] < JOB_QUEUED || (int)request->states[i] > JOB_CANCELLED)
            return status_new(STATUS_INVALID_ARGUMENT, "states: there is no state %d",
                              (int)request->states[i]);
    if (strlen(request->name) > FILTER_MAX)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "name: expected at most %d characters, found %zu", FILTER_MAX,
                          strlen(request->name));
    if (request->n_labels > SPEC_LABELS_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "labels: expected at most %d, found %zu",
                          SPEC_LABELS_MAX, request->n_labels);
    for (size_t i = 0; i < request->n_labels; i++) {
        TRY(status_wrap(spec_check_label_key(request->labels[i]->key), "labels"));
        if (strlen(request->labels[i]->value) > FILTER_MAX)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "labels: %s: expected at most %d characters, found %zu",
                              request->labels[i]->key, FILTER_MAX,
                              strlen(request->labels[i]->value));
    }
    return NULL;
}

static bool has_label(const job_spec *spec, const char *key, const char *pattern)
{
    for (size_t i = 0; i < spec->n_labels; i++)
        if (strcmp(spec->labels[i]->key, key) == 0)
            return text_glob_match(pattern, spec->labels[i]->value);
    return false;
}

static bool is_listed(const Fsdpd__V1__ListJobsRequest *request, const job_message *job)
{
    bool state = request->n_states == 0;
    for (size_t i = 0; i < request->n_states; i++)
        state = state || request->states[i] == job->state;
    if (!state) return false;
    if (request->owner[0] != '\0' && strcmp(request->owner, job->owner) != 0) return false;
    if (request->name[0] != '\0' && !text_glob_match(request->name, job->name) &&
        !text_glob_match(request->name, job->id))
        return false;
    for (size_t i = 0; i < request->n_labels; i++)
        if (!has_label(job->spec, request->labels[i]->key, request->labels[i]->value)) return false;
    return true;
}

/* A row leaves out long texts: the model file, the module tree. */
static struct row *row_new(const job_message *message, job_message *stored)
{
    struct row *row = mem_alloc(sizeof *row);
    row->stored = stored;
    job_view(message, &row->view);
    row->spec = *message->spec;
    if (row->spec.model != NULL) {
        row->model = *row->spec.model;
        row->model.text = row->model.hf_config = row->model.hf_family =
            (char *)protobuf_c_empty_string;
        row->spec.model = &row->model;
    }
    row->view.spec = &row->spec;
    if (message->plan != NULL) {
        row->plan = *message->plan;
        row->plan.module_tree = row->plan.dump = (char *)protobuf_c_empty_string;
        row->plan.n_programs = 0;
        row->view.plan = &row->plan;
    }
    return row;
}

static void row_free(struct row *row)
{
    message_free(row->stored);
    free(row);
}

/* A page token is the last job of its page, "1796112000000:mnist-7". Other jobs are found by the
 * time if that job has been removed since. */
static status_t read_token(struct job_list *list)
{
    const char *token = list->request->page_token, *colon = strchr(token, ':');
    if (token[0] == '\0') return NULL;
    char *number = mem_strndup(token, colon != NULL ? (size_t)(colon - token) : 0);
    bool valid = text_parse_i64(number, &list->after_ms) && job_id_is_valid(colon + 1);
    free(number);
    if (valid) {
        list->after = colon + 1;
        return NULL;
    }
    return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                  "page_token: expected the next_page_token of a response"),
                       (struct status_details){.field = "page_token"});
}

/* Whether the job, or one that is older, belongs to an earlier page. */
static bool is_of_earlier_page(struct job_list *list, const job_message *message)
{
    if (list->after == NULL) return false;
    bool last = strcmp(message->id, list->after) == 0;
    if (last || message_time_ms(message->submit_time) < list->after_ms) list->after = NULL;
    return last || list->after != NULL;
}

/* Adds a job that matches; takes ownership of `stored`. Returns false if the search can stop. */
static bool add(struct job_list *list, const job_message *message, job_message *stored)
{
    uint32_t limit = list->request->page_size;
    bool full = list->left_out > 0 || (limit > 0 && list->count - list->damaged >= limit);
    bool listed = is_listed(list->request, message);
    if (is_of_earlier_page(list, message)) {
        list->skipped += listed;
        message_free(stored);
        return true;
    }
    struct row *row = listed && !full ? row_new(message, stored) : NULL;
    if (row == NULL) {
        message_free(stored);
        list->left_out += listed;
        return list->left_out == 0 || !list->counted;
    }
    size_t size = protobuf_c_message_get_packed_size(&row->view.base) + 16;
    if (list->bytes + size > RPC_MESSAGE_MAX - MARGIN) {
        row_free(row);
        list->left_out++;
        return !list->counted;
    }
    list->bytes += size;
    MEM_GROW(list->rows, list->count, list->capacity);
    list->rows[list->count++] = row;
    return true;
}

static bool add_live(struct job_list *list, struct job *job)
{
    queue_explain(job);
    return add(list, job->message, NULL);
}

/* Adds a job whose record is damaged, of which only the id is known. Every list has it, since the
 * field that a filter tests may be the damaged one. */
static void add_damaged(struct job_list *list, const char *id, status_t status)
{
    job_message *job = mem_alloc(sizeof *job);
    fsdpd__v1__job__init(job);
    message_set_text(&job->id, id);
    job->spec = mem_alloc(sizeof *job->spec);
    fsdpd__v1__job_spec__init(job->spec);
    job->reason = mem_alloc(sizeof *job->reason);
    fsdpd__v1__reason__init(job->reason);
    message_set_text(&job->reason->code, "DAMAGED");
    message_set_text(&job->reason->message, status_message(status));
    status_free(status);
    MEM_GROW(list->rows, list->count, list->capacity);
    list->rows[list->count++] = row_new(job, job);
    list->bytes += protobuf_c_message_get_packed_size(&job->base) + 16;
    list->damaged++;
}

/* The record in memory is newer than the store's, and saves a read. */
static bool add_by_id(void *user, const char *id)
{
    struct job_list *list = user;
    struct job *job = jobs_find(list->c, id);
    if (job != NULL) return add_live(list, job);
    job_message *stored = NULL;
    status_t status = store_get_job(list->c->store, id, &stored);
    if (status == NULL) return add(list, stored, stored);
    if (status_code(status) == STATUS_DATA_LOSS) {
        /* In the first page only: it has no time that a page could begin after. */
        if (list->request->page_token[0] == '\0') add_damaged(list, id, status);
        else status_free(status);
        return true;
    }
    list->status = status;
    return false;
}

/* Whether the filter selects only jobs that are not over: all of these are in memory. */
static bool is_of_live(const Fsdpd__V1__ListJobsRequest *request)
{
    for (size_t i = 0; i < request->n_states; i++)
        if (job_state_is_over(request->states[i])) return false;
    return request->n_states > 0;
}

static void collect(struct job_list *list)
{
    struct coordinator *c = list->c;
    bool more = true;
    if (is_of_live(list->request)) {
        for (int i = c->job_count - 1; i >= 0 && more; i--) more = add_live(list, c->jobs[i]);
    } else {
        status_t status = store_each_id(c->store, add_by_id, list);
        if (list->status == NULL) list->status = status;
        else status_free(status);
    }
}

static void reply(struct job_list *list, struct rpc_call *call, const uint64_t *counts)
{
    const Fsdpd__V1__ListJobsRequest *request = list->request;
    Fsdpd__V1__ListJobsResponse response = FSDPD__V1__LIST_JOBS_RESPONSE__INIT;
    Fsdpd__V1__StateCount items[JOB_CANCELLED + 1], *pointers[JOB_CANCELLED + 1];
    uint64_t matching = 0;
    for (int state = JOB_QUEUED; state <= JOB_CANCELLED; state++) {
        Fsdpd__V1__StateCount *item = &items[response.n_counts];
        fsdpd__v1__state_count__init(item);
        item->state = (Fsdpd__V1__JobState)state;
        item->jobs = counts[state];
        pointers[response.n_counts++] = item;
        bool asked = request->n_states == 0;
        for (size_t i = 0; i < request->n_states; i++)
            asked = asked || (int)request->states[i] == state;
        if (asked) matching += counts[state];
    }
    response.counts = pointers;
    response.n_jobs = list->count;
    response.jobs = mem_alloc_array(list->count + 1, sizeof *response.jobs);
    for (size_t i = 0; i < list->count; i++)
        response.jobs[i] = &list->rows[list->count - 1 - i]->view;
    response.left_out = list->left_out;
    uint64_t seen = list->count + list->skipped;
    if (list->counted && list->left_out > 0 && matching > seen)
        response.left_out = (uint32_t)(matching - seen);
    size_t last = 0; /* the oldest whole row */
    while (last < list->count && response.jobs[last]->submit_time == NULL) last++;
    char *token = NULL;
    if (list->left_out > 0 && last < list->count)
        response.next_page_token = token =
            mem_printf("%lld:%s", (long long)message_time_ms(response.jobs[last]->submit_time),
                       response.jobs[last]->id);
    rpc_call_reply(call, &response.base);
    free(token);
    free(response.jobs);
}

void api_list_jobs(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__ListJobsRequest *request = (const Fsdpd__V1__ListJobsRequest *)message;
    struct job_list list = {.c = c, .request = request};
    list.counted = request->name[0] == '\0' && request->owner[0] == '\0' && request->n_labels == 0;
    uint64_t counts[JOB_CANCELLED + 1] = {0};
    list.status = check_filter(request);
    if (list.status == NULL) list.status = read_token(&list);
    if (list.status == NULL) list.status = store_count_states(c->store, counts);
    if (list.status == NULL) collect(&list);
    if (list.status != NULL) rpc_call_finish(call, list.status);
    else reply(&list, call, counts);
    for (size_t i = 0; i < list.count; i++) row_free(list.rows[i]);
    free(list.rows);
}

/* ---- GetHistory ---- */

struct history {
    Fsdpd__V1__HistoryEntry **entries;
    size_t count, capacity, bytes, left_out;
    uint64_t cursor;
    bool more;
};

static void history_drop_oldest(struct history *history)
{
    const Fsdpd__V1__Diagnosis *diagnosis = history->entries[0]->diagnosis;
    if (diagnosis != NULL) history->bytes -= fsdpd__v1__diagnosis__get_packed_size(diagnosis);
    message_free(history->entries[0]);
    history->left_out++;
    history->count--;
    memmove(history->entries, history->entries + 1, history->count * sizeof *history->entries);
}

/* The reasons have the verdicts: of the oldest entries no more is kept. */
static void history_drop_diagnoses(struct history *history)
{
    for (size_t i = 0; i + 1 < history->count && history->bytes > DIAGNOSES_BYTES; i++) {
        Fsdpd__V1__Diagnosis **diagnosis = &history->entries[i]->diagnosis;
        if (*diagnosis == NULL) continue;
        history->bytes -= fsdpd__v1__diagnosis__get_packed_size(*diagnosis);
        message_free(*diagnosis);
        *diagnosis = NULL;
    }
}

static bool add_to_history(void *user, const job_event *event)
{
    struct history *history = user;
    history->cursor = event->sequence;
    history->more = true;
    if (event->event_case != FSDPD__V1__JOB_EVENT__EVENT_STATE) return true;
    const Fsdpd__V1__StateChange *change = event->state;
    Fsdpd__V1__HistoryEntry view = FSDPD__V1__HISTORY_ENTRY__INIT;
    view.time = event->time;
    view.state = change->state;
    view.reason = change->reason;
    view.attempt = change->attempt;
    view.step = change->step;
    view.by = change->by;
    view.diagnosis = change->diagnosis;
    if (history->count == HISTORY_MAX) history_drop_oldest(history);
    MEM_GROW(history->entries, history->count, history->capacity);
    history->entries[history->count++] = message_copy(&view);
    if (view.diagnosis == NULL) return true;
    history->bytes += fsdpd__v1__diagnosis__get_packed_size(view.diagnosis);
    history_drop_diagnoses(history);
    return true;
}

void api_get_history(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__GetHistoryRequest *request = (const void *)message;
    struct history history = {.more = true};
    job_message *stored = NULL;
    status_t status = store_get_job(c->store, request->id, &stored);
    message_free(stored);
    while (status == NULL && history.more) {
        history.more = false;
        struct store_event_query query = {.job = request->id,
                                          .after = history.cursor,
                                          .skip_metrics = INT64_MAX,
                                          .limit = 1000,
                                          .visit = add_to_history,
                                          .user = &history};
        status = store_read_events(c->store, &query);
    }
    Fsdpd__V1__History response = FSDPD__V1__HISTORY__INIT;
    while (status == NULL) {
        response.n_entries = history.count;
        response.entries = history.entries;
        response.left_out = (uint32_t)history.left_out;
        if (protobuf_c_message_get_packed_size(&response.base) <= RPC_MESSAGE_MAX - MARGIN) break;
        history_drop_oldest(&history);
    }
    if (status != NULL) rpc_call_finish(call, status);
    else rpc_call_reply(call, &response.base);
    for (size_t i = 0; i < history.count; i++) message_free(history.entries[i]);
    free(history.entries);
}
