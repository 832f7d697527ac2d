/*
 * The page of http.listen: its files, and the parts that its script asks for. A part is written
 * once for all who ask for it within KEPT_MS, so it costs the same for one reader and for a
 * hundred. Of the jobs that were read last, the curves are kept in bounded memory, with their
 * extremes, and only events that are new are read: a request reads EVENTS_READ at most, and its
 * answer tells whether there are more.
 */
#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/api/api.h"
#include "coordinator/calls/job_call.h"
#include "coordinator/http/routes.h"
#include "coordinator/jobs/diagnoses.h"
#include "coordinator/jobs/jobs.h"
#include "fsdpd/v1/methods.h"
#include "page/page.h"
#include "proto/message.h"

enum {
    JOBS_MAX = 16,
    KEPT_MS = 1500,    /* less than the page's script waits after an event */
    LISTS_SHARE = 100, /* lists are kept this many times as long as writing them took, */
    LISTS_MS = 6000,   /* and this at most: of 10,000 jobs they take 30 ms */
    EVENTS_READ = 1000,
    ROWS_MAX = 100, /* of a list */
};

struct job_page {
    struct list_node node;
    char *id;
    int64_t submitted_ms; /* another job of the same id begins again */
    struct page page;     /* what it points to is there only while it is written */
    uint32_t attempt;     /* of the last event */
    int events;           /* read for this request */
    struct buf text;      /* as last written, */
    int64_t written_at;   /* monotonic ms, */
    int state;            /* in this state of the job; see state_of */
};

struct http_pages {
    struct list jobs; /* the one that was read last is the last */
    struct buf lists;
    int64_t lists_until;
};

/* ---- what the API answers ---- */

struct http_asked {
    void *reply;
    status_t status;
};

static void on_reply(void *user, const ProtobufCMessage *message)
{
    struct http_asked *asked = user;
    asked->reply = message_copy(message);
}

static void on_end(void *user, status_t status)
{
    struct http_asked *asked = user;
    asked->status = status;
}

/* Calls a method that answers at once, unless there is an error already. The caller frees the
 * answer, which is NULL after an error. */
static void *ask(const struct http_request *request, const struct rpc_method *method,
                 const ProtobufCMessage *message, status_t *status)
{
    struct rpc_service services[API_SERVICES];
    struct http_asked asked = {0};
    if (*status != NULL) return NULL;
    api_services(http_coordinator(request), services);
    rpc_call_leave(rpc_call_begin(&services[0], method, http_peer(request), message,
                                  &(struct rpc_receiver){on_reply, on_end, &asked}));
    *status = asked.status;
    return asked.reply;
}

/* ---- a job ---- */

static struct http_pages *pages_of(struct coordinator *c)
{
    if (c->pages == NULL) c->pages = mem_alloc(sizeof *c->pages);
    return c->pages;
}

static void reset(struct job_page *kept)
{
    page_deinit(&kept->page);
    kept->page = (struct page){.live = true};
    kept->attempt = 0;
    kept->written_at = 0;
}

static void drop(struct http_pages *pages, struct job_page *kept)
{
    list_remove(&pages->jobs, &kept->node);
    page_deinit(&kept->page);
    buf_deinit(&kept->text);
    free(kept->id);
    free(kept);
}

static struct job_page *find(struct http_pages *pages, const char *id)
{
    LIST_EACH(node, &pages->jobs)
    {
        struct job_page *kept = LIST_ITEM(node, struct job_page, node);
        if (strcmp(kept->id, id) != 0) continue;
        list_remove(&pages->jobs, node);
        list_append(&pages->jobs, node);
        return kept;
    }
    return NULL;
}

static struct job_page *add(struct http_pages *pages, const char *id)
{
    if (pages->jobs.count == JOBS_MAX)
        drop(pages, LIST_ITEM(pages->jobs.first, struct job_page, node));
    struct job_page *kept = mem_alloc(sizeof *kept);
    kept->id = mem_strdup(id);
    reset(kept);
    list_append(&pages->jobs, &kept->node);
    return kept;
}

/* A new state is shown at once. */
static int state_of(struct coordinator *c, const char *id)
{
    const struct job *job = jobs_find(c, id);
    return job != NULL ? (int)job->message->state : 0;
}

/* Which rank is to blame that the job makes no progress; NULL: it makes some, or that is unknown.
 */
static const char *verdict_of(struct coordinator *c, const char *id)
{
    const struct job *job = jobs_find(c, id);
    const Fsdpd__V1__Diagnosis *diagnosis = job != NULL ? diagnoses_current(job) : NULL;
    return diagnosis != NULL && diagnosis->cause != FSDPD__V1__DIAGNOSIS__CAUSE__CAUSE_NONE
               ? diagnosis->verdict
               : NULL;
}

static bool is_fresh(struct coordinator *c, const struct job_page *kept)
{
    return kept->written_at > 0 && coordinator_now() - kept->written_at < KEPT_MS &&
           !kept->page.more && kept->state == state_of(c, kept->id);
}

static bool take_event(void *user, const job_event *event)
{
    struct job_page *kept = user;
    struct page *page = &kept->page;
    if (event->event_case == FSDPD__V1__JOB_EVENT__EVENT_STATE)
        kept->attempt = event->state->attempt;
    Fsdpd__V1__MetricsRow row = FSDPD__V1__METRICS_ROW__INIT;
    row.attempt = kept->attempt;
    row.event = (job_event *)event;
    page_take(page, &row);
    /* Only metrics that were thinned leave gaps. */
    if (event->sequence > page->sequence + 1)
        page->steps_thinned += event->sequence - page->sequence - 1;
    page->sequence = event->sequence;
    kept->events++;
    return true;
}

static status_t read_events(struct coordinator *c, struct job_page *kept)
{
    struct store_event_query query = {.job = kept->id,
                                      .after = kept->page.sequence,
                                      .limit = EVENTS_READ,
                                      .visit = take_event,
                                      .user = kept};
    kept->events = 0;
    TRY(store_read_events(c->store, &query));
    kept->page.more = kept->events == EVENTS_READ;
    return NULL;
}

/* The rest of what a page shows. */
struct http_sources {
    Fsdpd__V1__GetHistoryResponse *history;
    Fsdpd__V1__ListCheckpointsResponse *checkpoints;
    Fsdpd__V1__ExplainJobResponse *why;
};

static status_t read_sources(const struct http_request *request, struct http_sources *sources)
{
    Fsdpd__V1__GetHistoryRequest history = FSDPD__V1__GET_HISTORY_REQUEST__INIT;
    Fsdpd__V1__ListCheckpointsRequest checkpoints = FSDPD__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    Fsdpd__V1__ExplainJobRequest why = FSDPD__V1__EXPLAIN_JOB_REQUEST__INIT;
    history.id = checkpoints.id = why.id = (char *)http_part(request);
    history.page_size = checkpoints.page_size = ROWS_MAX;
    status_t status = NULL;
    sources->history = ask(request, &control_get_history, &history.base, &status);
    sources->checkpoints = ask(request, &control_list_checkpoints, &checkpoints.base, &status);
    sources->why = ask(request, &control_explain_job, &why.base, &status);
    return status;
}

static status_t write_job(const struct http_request *request, struct job_page *kept)
{
    struct coordinator *c = http_coordinator(request);
    struct page *page = &kept->page;
    struct http_sources sources = {0};
    status_t status = read_events(c, kept);
    if (status == NULL) status = read_sources(request, &sources);
    if (status == NULL) {
        page->history = sources.history;
        page->checkpoints = sources.checkpoints;
        page->why = sources.why->text;
        page->verdict = verdict_of(c, kept->id);
        buf_clear(&kept->text);
        page_write(page, &kept->text);
        kept->written_at = coordinator_now();
        kept->state = state_of(c, kept->id);
    }
    page->history = NULL;
    page->checkpoints = NULL;
    page->why = page->verdict = NULL;
    message_free(sources.history);
    message_free(sources.checkpoints);
    message_free(sources.why);
    return status;
}

/* *kept may be NULL before, and is not in the end, unless there is no such job. */
static status_t renew(const struct http_request *request, struct job_page **kept)
{
    struct http_pages *pages = pages_of(http_coordinator(request));
    Fsdpd__V1__GetJobRequest wanted = FSDPD__V1__GET_JOB_REQUEST__INIT;
    status_t status = NULL;
    wanted.id = (char *)http_part(request);
    job_message *job = ask(request, &control_get_job, &wanted.base, &status);
    if (status == NULL) {
        if (*kept == NULL) *kept = add(pages, wanted.id);
        int64_t submitted_ms = message_time_ms(job->submit_time);
        if ((*kept)->submitted_ms != submitted_ms) reset(*kept);
        (*kept)->submitted_ms = submitted_ms;
        (*kept)->page.job = job;
        status = write_job(request, *kept);
        (*kept)->page.job = NULL;
    }
    message_free(job);
    return status;
}

static void answer_text(struct http_request *request, const char *type, const char *text,
                        size_t length)
{
    struct buf copy = {0};
    buf_add(&copy, text, length);
    http_answer(request, MHD_HTTP_OK, type, &copy);
}

static const char html[] = "text/html; charset=utf-8";

void pages_job(struct http_request *request)
{
    struct coordinator *c = http_coordinator(request);
    struct job_page *kept = find(pages_of(c), http_part(request));
    status_t status = job_call_check_id(c, http_part(request)); /* it may be forgotten */
    if (status == NULL && (kept == NULL || !is_fresh(c, kept))) status = renew(request, &kept);
    if (status != NULL && kept != NULL) drop(pages_of(c), kept);
    if (status != NULL) http_refuse(request, status);
    else answer_text(request, html, kept->text.data, kept->text.length);
}

/* ---- lists ---- */

static status_t write_lists(const struct http_request *request, struct buf *out)
{
    Fsdpd__V1__ListJobsRequest jobs = FSDPD__V1__LIST_JOBS_REQUEST__INIT;
    Fsdpd__V1__ListWorkersRequest workers = FSDPD__V1__LIST_WORKERS_REQUEST__INIT;
    status_t status = NULL;
    jobs.page_size = ROWS_MAX;
    jobs.fold = true;
    Fsdpd__V1__ListJobsResponse *found = ask(request, &control_list_jobs, &jobs.base, &status);
    Fsdpd__V1__ListWorkersResponse *attached =
        ask(request, &control_list_workers, &workers.base, &status);
    if (status == NULL) {
        buf_clear(out);
        page_write_lists(found, attached, out);
    }
    message_free(found);
    message_free(attached);
    return status;
}

void pages_lists(struct http_request *request)
{
    struct http_pages *pages = pages_of(http_coordinator(request));
    const int64_t now = coordinator_now();
    status_t status = NULL;
    if (now >= pages->lists_until) {
        status = write_lists(request, &pages->lists);
        const int64_t end = coordinator_now(), kept = LISTS_SHARE * (end - now);
        if (status == NULL)
            pages->lists_until = end + (kept < KEPT_MS    ? KEPT_MS
                                        : kept < LISTS_MS ? kept
                                                          : LISTS_MS);
    }
    if (status != NULL) http_refuse(request, status);
    else answer_text(request, html, pages->lists.data, pages->lists.length);
}

/* ---- files ---- */

void pages_live(struct http_request *request)
{
    struct buf text = {0};
    page_write_live(&text);
    http_answer(request, MHD_HTTP_OK, html, &text);
}

void pages_style(struct http_request *request)
{
    const char *text = page_style();
    answer_text(request, "text/css; charset=utf-8", text, strlen(text));
}

void pages_script(struct http_request *request)
{
    const char *text = page_script();
    answer_text(request, "text/javascript; charset=utf-8", text, strlen(text));
}

void pages_free(struct coordinator *c)
{
    struct http_pages *pages = c->pages;
    if (pages == NULL) return;
    while (pages->jobs.first != NULL)
        drop(pages, LIST_ITEM(pages->jobs.first, struct job_page, node));
    buf_deinit(&pages->lists);
    free(pages);
    c->pages = NULL;
}
