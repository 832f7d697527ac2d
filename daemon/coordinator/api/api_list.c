/* ListJobs: jobs that match a filter, without their long texts. */
#include "coordinator/api/handlers.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "coordinator/core/list_page.h"
#include "coordinator/jobs/jobs.h"
#include "coordinator/scheduler/queue.h"
#include "proto/message.h"
#include "spec/queue.h"

enum {
    FILTER_MAX = 256, /* of a pattern, in characters */
    STATES_MAX = 16,  /* in a filter */
};

/* A job's row in the list: its fields point into the job in memory, or into the record that was
 * read from the store. */
struct row {
    job_message view;
    job_spec spec;
    Fsdpd__V1__ModelSpec model, teacher;
    Fsdpd__V1__ArraySpec array;
    Fsdpd__V1__Plan plan;
    job_message *stored; /* or NULL */
};

struct job_list {
    struct coordinator *c;
    const Fsdpd__V1__ListJobsRequest *request;
    struct row **rows; /* newest first */
    size_t count, capacity;
    struct list_page
        page;         /* of the rows that are not damaged, by the time of submission and the id */
    bool skips;       /* the search has not yet come to this page */
    uint32_t folded;  /* jobs of arrays that are listed in their place */
    char *array;      /* the last of which a job was seen, */
    bool array_listed; /* and whether it matches */
    uint32_t skipped; /* jobs of earlier pages that match */
    bool counted;     /* the number of matches is known without a scan of all jobs */
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
    if (request->array[0] != '\0' && !spec_is_of_array(job->spec, request->array)) return false;
    if (request->owner[0] != '\0' && strcmp(request->owner, job->owner) != 0) return false;
    if (request->name[0] != '\0' && !text_glob_match(request->name, job->name) &&
        !text_glob_match(request->name, job->id))
        return false;
    for (size_t i = 0; i < request->n_labels; i++)
        if (!has_label(job->spec, request->labels[i]->key, request->labels[i]->value)) return false;
    return true;
}

/* A shallow copy without its long texts. */
static Fsdpd__V1__ModelSpec *shorten(const Fsdpd__V1__ModelSpec *model, Fsdpd__V1__ModelSpec *copy)
{
    if (model == NULL) return NULL;
    *copy = *model;
    copy->text = copy->hf_config = copy->hf_family = (char *)protobuf_c_empty_string;
    return copy;
}

/* A row leaves out long texts: the model file, the module tree. */
static struct row *row_new(const job_message *message, job_message *stored)
{
    struct row *row = mem_alloc(sizeof *row);
    row->stored = stored;
    job_view(message, &row->view);
    row->spec = *message->spec;
    row->spec.model = shorten(row->spec.model, &row->model);
    if (row->spec.model != NULL) row->model.teacher = shorten(row->model.teacher, &row->teacher);
    if (row->spec.array != NULL) {
        row->array = *row->spec.array;
        row->array.file = NULL;
        row->spec.array = &row->array;
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

static status_t begin_page(struct job_list *list)
{
    TRY(list_page_begin(&list->page, list->request->page_size, list->request->page_token, true));
    list->skips = list->page.after != NULL;
    return list->skips && !job_id_is_valid(list->page.after) ? list_page_token_error() : NULL;
}

/* Whether the job belongs to an earlier page. If the last job of that page has been removed since,
 * the time tells. */
static bool is_of_earlier_page(struct job_list *list, const job_message *message)
{
    if (!list->skips) return false;
    bool last = strcmp(message->id, list->page.after) == 0;
    if (last || message_time_ms(message->submit_time) < list->page.after_number)
        list->skips = false;
    return last || list->skips;
}

/* Whether the job's array has a row that matches, too: that stands for the job. Jobs of an array
 * that was forgotten, or that the filter leaves out, have rows of their own. */
static bool is_folded(struct job_list *list, const job_message *message)
{
    const Fsdpd__V1__ArrayPlace *place = message->spec->of_array;
    if (!list->request->fold || place == NULL) return false;
    if (list->array != NULL && strcmp(list->array, place->array) == 0) return list->array_listed;
    const struct job *array = jobs_find(list->c, place->array);
    job_message *stored = NULL;
    status_free(array == NULL ? store_get_job(list->c->store, place->array, &stored) : NULL);
    const job_message *record = array != NULL ? array->message : stored;
    list->array_listed =
        record != NULL && record->spec->array != NULL && is_listed(list->request, record);
    free(list->array);
    list->array = mem_strdup(place->array);
    message_free(stored);
    return list->array_listed;
}

/* Adds a job that matches; takes ownership of `stored`. Returns false if the search can stop. */
static bool add(struct job_list *list, const job_message *message, job_message *stored)
{
    bool listed = is_listed(list->request, message), folded = listed && is_folded(list, message);
    list->folded += folded;
    listed = listed && !folded;
    if (is_of_earlier_page(list, message)) {
        list->skipped += listed;
        message_free(stored);
        return true;
    }
    if (!listed) {
        message_free(stored);
        return list->page.left_out == 0 || !list->counted;
    }
    struct row *row = row_new(message, stored);
    if (!list_page_take(&list->page, &row->view.base)) {
        row_free(row);
        return !list->counted;
    }
    MEM_GROW(list->rows, list->count, list->capacity);
    list->rows[list->count++] = row;
    return true;
}

static bool add_live(struct job_list *list, struct job *job)
{
    /* Not jobs that an array stands for, which may be thousands. */
    if (is_listed(list->request, job->message) && !is_folded(list, job->message))
        queue_explain(job);
    return add(list, job->message, NULL);
}

/* Adds a job whose record is damaged, of which only the id is known. Every list has it, since the
 * field that a filter tests may be the damaged one. */
static void add_damaged(struct job_list *list, const char *id, status_t status)
{
    job_message *job = MESSAGE_NEW(job, fsdpd__v1__job__init);
    message_set_text(&job->id, id);
    job->spec = MESSAGE_NEW(job->spec, fsdpd__v1__job_spec__init);
    job->reason = MESSAGE_NEW(job->reason, fsdpd__v1__reason__init);
    message_set_text(&job->reason->code, "DAMAGED");
    message_set_text(&job->reason->message, status_message(status));
    status_free(status);
    MEM_GROW(list->rows, list->count, list->capacity);
    list->rows[list->count++] = row_new(job, job);
    list->page.bytes += protobuf_c_message_get_packed_size(&job->base) + 16;
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
    response.left_out = list->page.left_out;
    uint64_t seen = list->count + list->skipped + list->folded;
    if (list->counted && response.left_out > 0 && matching > seen)
        response.left_out = (uint32_t)(matching - seen);
    size_t last = 0; /* the oldest whole row */
    while (last < list->count && response.jobs[last]->submit_time == NULL) last++;
    const job_message *oldest = last < list->count ? response.jobs[last] : NULL;
    AUTO_FREE char *token =
        list_page_next(&list->page, oldest ? message_time_ms(oldest->submit_time) : 0,
                       oldest ? oldest->id : "");
    response.next_page_token = token;
    rpc_call_reply(call, &response.base);
    free(response.jobs);
}

void api_list_jobs(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__ListJobsRequest *request = (const Fsdpd__V1__ListJobsRequest *)message;
    struct job_list list = {.c = c, .request = request};
    list.counted = request->name[0] == '\0' && request->owner[0] == '\0' &&
                   request->n_labels == 0 && request->array[0] == '\0';
    uint64_t counts[JOB_CANCELLED + 1] = {0};
    list.status = check_filter(request);
    if (list.status == NULL) list.status = begin_page(&list);
    if (list.status == NULL) list.status = store_count_states(c->store, counts);
    if (list.status == NULL) collect(&list);
    if (list.status != NULL) rpc_call_finish(call, list.status);
    else reply(&list, call, counts);
    for (size_t i = 0; i < list.count; i++) row_free(list.rows[i]);
    free(list.rows);
    free(list.array);
}
