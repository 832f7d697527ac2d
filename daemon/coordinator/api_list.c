/*
 * ListJobs: jobs that meet a filter, without their long texts. GetHistory: what of a job's events is
 * about its states.
 */
#include "coordinator/api_list.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "coordinator/jobs.h"
#include "coordinator/queue.h"
#include "rpc/rpc.h"
#include "spec/queue.h"

enum {
    MARGIN = 65536,      /* of a response, for what is not in the sum */
    FILTER_MAX = 256,    /* of a pattern, in characters */
    STATES_MAX = 16,     /* that a filter names */
    HISTORY_MAX = 10000, /* entries of a response */
};

struct job_list {
    struct coordinator *c;
    const Fsdpd__V1__ListJobsRequest *request;
    Fsdpd__V1__ListJobsResponse response; /* newest first while it is filled */
    size_t capacity, bytes;
    int next; /* in c->jobs: the newest that the store has not shown yet */
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
        return status_new(STATUS_INVALID_ARGUMENT, "name: expected at most %d characters, found %zu",
                          FILTER_MAX, strlen(request->name));
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
    for (size_t i = 0; i < request->n_states; i++) state = state || request->states[i] == job->state;
    if (!state) return false;
    if (request->owner[0] != '\0' && strcmp(request->owner, job->owner) != 0) return false;
    if (request->name[0] != '\0' && !text_glob_match(request->name, job->name) &&
        !text_glob_match(request->name, job->id))
        return false;
    for (size_t i = 0; i < request->n_labels; i++)
        if (!has_label(job->spec, request->labels[i]->key, request->labels[i]->value)) return false;
    return true;
}

/* Long texts have no place in a list: the model file, the module tree. */
static job_message *copy_brief(const job_message *message)
{
    job_message view;
    job_view(message, &view);
    job_spec spec = *message->spec;
    Fsdpd__V1__ModelSpec model;
    if (spec.model != NULL) {
        model = *spec.model;
        model.text = model.hf_config = (char *)protobuf_c_empty_string;
        spec.model = &model;
    }
    view.spec = &spec;
    Fsdpd__V1__Plan brief;
    if (view.plan != NULL) {
        brief = *view.plan;
        brief.module_tree = brief.dump = (char *)protobuf_c_empty_string;
        brief.n_programs = 0;
        view.plan = &brief;
    }
    return message_copy(&view);
}

/* The record in memory, which is newer than the store's. Both are in order of submission, so that
 * the next one is usually it. */
static struct job *find_live(struct job_list *list, const char *id)
{
    struct coordinator *c = list->c;
    if (list->next >= 0 && list->next < c->job_count &&
        strcmp(c->jobs[list->next]->message->id, id) == 0)
        return c->jobs[list->next--];
    return NULL;
}

static status_t add_to_list(void *user, const job_message *stored)
{
    struct job_list *list = user;
    struct job *job = find_live(list, stored->id);
    if (job != NULL) queue_explain(job);
    const job_message *found = job != NULL ? job->message : stored;
    if (!is_listed(list->request, found)) return NULL;
    uint32_t limit = list->request->limit;
    if (list->response.left_out > 0 || (limit > 0 && list->response.n_jobs >= limit)) {
        list->response.left_out++;
        return NULL;
    }
    job_message *message = copy_brief(found);
    size_t size = protobuf_c_message_get_packed_size(&message->base) + 16;
    if (list->bytes + size > RPC_MESSAGE_MAX - MARGIN) {
        list->response.left_out++;
        message_free(message);
        return NULL;
    }
    list->bytes += size;
    MEM_GROW(list->response.jobs, list->response.n_jobs, list->capacity);
    list->response.jobs[list->response.n_jobs++] = message;
    return NULL;
}

void api_list_jobs(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    struct job_list list = {.c = c,
                            .request = (const Fsdpd__V1__ListJobsRequest *)message,
                            .response = FSDPD__V1__LIST_JOBS_RESPONSE__INIT,
                            .next = c->job_count - 1};
    struct store_job_query query = {.newest_first = true, .visit = add_to_list, .user = &list};
    status_t status = check_filter(list.request);
    if (status == NULL) status = store_each_job(c->store, &query);
    Fsdpd__V1__ListJobsResponse *response = &list.response;
    for (size_t i = 0, j = response->n_jobs; i + 1 < j; i++) {
        job_message *swap = response->jobs[i];
        response->jobs[i] = response->jobs[--j];
        response->jobs[j] = swap;
    }
    if (status != NULL) rpc_call_finish(call, status);
    else rpc_call_reply(call, &response->base);
    for (size_t i = 0; i < response->n_jobs; i++) message_free(response->jobs[i]);
    free(response->jobs);
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
    message_free(history->entries[0]);
    history->left_out++;
    history->count--;
    memmove(history->entries, history->entries + 1, history->count * sizeof *history->entries);
}

static bool add_to_history(void *user, const job_event *event)
{
    struct history *history = user;
    history->cursor = event->sequence;
    history->more = true;
    if (event->event_case != FSDPD__V1__JOB_EVENT__EVENT_STATE) return true;
    const Fsdpd__V1__StateChange *change = event->state;
    Fsdpd__V1__HistoryEntry view = FSDPD__V1__HISTORY_ENTRY__INIT;
    view.time_ms = event->time_ms;
    view.state = change->state;
    view.reason = change->reason;
    view.attempt = change->attempt;
    view.step = change->step;
    view.by = change->by;
    if (history->count == HISTORY_MAX) history_drop_oldest(history);
    MEM_GROW(history->entries, history->count, history->capacity);
    history->entries[history->count++] = message_copy(&view);
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
