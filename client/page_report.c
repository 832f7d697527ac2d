/* report: a job as one HTML page. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "client.h"
#include "download.h"
#include "exit.h"
#include "lists.h"
#include "page/page.h"
#include "print/json.h"
#include "proto/message.h"

enum { TRACE_STEPS = 3 };

static status_t set_file(struct verb_options *options, const char *value)
{
    if (value[0] == '\0') return status_new(STATUS_INVALID_ARGUMENT, "expected a file");
    options->file = value;
    return NULL;
}

static status_t set_no_trace(struct verb_options *options, const char *value)
{
    (void)value;
    options->no_trace = true;
    return NULL;
}

const struct verb_option report_options[] = {
    {"output", 'o', "FILE", "the file to write (required; \"-\": standard output)", set_file},
    {"no-trace", 0, NULL, "do not trace a running job: show the plan's schedule", set_no_trace},
    {0},
};

/* The responses that the page is built from; NULL until read. */
struct sources {
    struct client *client;
    struct session *session;
    struct page page;
    Fsdpd__V1__Job *job;
    Fsdpd__V1__GetHistoryResponse *history;
    Fsdpd__V1__ListCheckpointsResponse *checkpoints;
    Fsdpd__V1__ExplainJobResponse *why;
    Fsdpd__V1__Plan *plan;
    struct timeline timeline;
    char *note;
};

static status_t take_rows(const ProtobufCMessage *message, void *user)
{
    struct sources *sources = user;
    const Fsdpd__V1__GetMetricsResponse *chunk = (const void *)message;
    sources->page.steps_thinned += chunk->left_out;
    for (size_t i = 0; i < chunk->n_rows; i++) page_take(&sources->page, chunk->rows[i]);
    return NULL;
}

static status_t read_record(struct sources *sources)
{
    const struct verb_options *options = &sources->client->options;
    TRY(client_get_job(sources->session, options->arguments[0], &sources->job));
    sources->page.job = sources->job;
    ProtobufCMessage *response;
    Fsdpd__V1__GetHistoryRequest history = FSDPD__V1__GET_HISTORY_REQUEST__INIT;
    history.id = sources->job->id;
    TRY(lists_read(sources->session, &control_get_history, &history.base, LIST_FROM_NEWEST,
                   &response));
    sources->page.history = sources->history = (Fsdpd__V1__GetHistoryResponse *)(void *)response;
    Fsdpd__V1__ListCheckpointsRequest checkpoints = FSDPD__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    checkpoints.id = sources->job->id;
    TRY(lists_read(sources->session, &control_list_checkpoints, &checkpoints.base, LIST_FROM_NEWEST,
                   &response));
    sources->page.checkpoints = sources->checkpoints = (void *)response;
    Fsdpd__V1__ExplainJobRequest why = FSDPD__V1__EXPLAIN_JOB_REQUEST__INIT;
    why.id = sources->job->id;
    TRY(session_call(sources->session, &control_explain_job, &why.base, false, &response));
    sources->why = (void *)response;
    sources->page.why = sources->why->text;
    Fsdpd__V1__GetMetricsRequest metrics = FSDPD__V1__GET_METRICS_REQUEST__INIT;
    metrics.id = sources->job->id;
    metrics.changes = true;
    return session_stream(sources->session, &control_get_metrics, &metrics.base,
                          options->timeout_ms, take_rows, sources);
}

static status_t take_trace(const ProtobufCMessage *message, void *user)
{
    struct sources *sources = user;
    const Fsdpd__V1__TraceChunk *chunk = (const Fsdpd__V1__TraceChunk *)(const void *)message;
    if (chunk->n_workers > 0 || chunk->n_programs > 0 || chunk->n_steps > 0)
        timeline_add(&sources->timeline, chunk);
    return NULL;
}

/* A page without a timeline is better than no page: the error becomes a note on it. */
static void keep_note(struct sources *sources, const char *what, status_t status)
{
    char *before = sources->note;
    sources->note = mem_printf("%s%s%s: %s.", before != NULL ? before : "",
                               before != NULL ? " " : "", what, status_message(status));
    sources->page.no_timeline = sources->note;
    free(before);
    status_free(status);
}

static bool trace_step(struct sources *sources)
{
    const struct verb_options *options = &sources->client->options;
    Fsdpd__V1__TraceJobRequest request = FSDPD__V1__TRACE_JOB_REQUEST__INIT;
    request.id = sources->job->id;
    request.steps = TRACE_STEPS;
    status_t status = session_stream(sources->session, &control_trace_job, &request.base,
                                     options->timeout_ms, take_trace, sources);
    if (status == NULL) status = timeline_finish(&sources->timeline);
    if (status != NULL) {
        keep_note(sources, "No step could be traced", status);
        return false;
    }
    sources->page.timeline = &sources->timeline;
    return true;
}

static void read_schedule(struct sources *sources)
{
    Fsdpd__V1__PlanJobRequest request = FSDPD__V1__PLAN_JOB_REQUEST__INIT;
    ProtobufCMessage *response;
    struct spec_settings with;
    request.spec =
        (Fsdpd__V1__JobSpec *)spec_settings(sources->job->spec, sources->job->chosen, &with);
    status_t status =
        session_call(sources->session, &control_plan_job, &request.base, false, &response);
    if (status != NULL) {
        keep_note(sources, "The plan's schedule could not be made", status);
        return;
    }
    sources->page.schedule = sources->plan = (Fsdpd__V1__Plan *)(void *)response;
}

static void read_step(struct sources *sources)
{
    bool running = sources->job->state == FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING;
    if (running && !sources->client->options.no_trace && trace_step(sources)) return;
    if (session_signal(sources->session) == 0 && sources->job->spec != NULL) read_schedule(sources);
}

static void print_result(const struct sources *sources, uint64_t bytes)
{
    const struct verb_options *options = &sources->client->options;
    struct buf text = {0};
    char size[32];
    if (strcmp(options->file, "-") == 0) return;
    if (options->format == FORMAT_JSON) {
        buf_add_text(&text, "{\n  \"id\": ");
        json_add_string(&text, sources->job->id);
        buf_add_text(&text, ",\n  \"file\": ");
        json_add_string(&text, options->file);
        buf_printf(&text, ",\n  \"bytes\": %llu,\n  \"traced\": %s\n}\n", (unsigned long long)bytes,
                   sources->page.timeline != NULL ? "true" : "false");
    } else {
        output_clean(&text, options->file, false);
        buf_printf(&text, ": %s about ", text_format_bytes(bytes, size));
        output_clean(&text, sources->job->id, false);
        buf_add_text(&text, "; open it in a browser\n");
    }
    output_print(&text);
}

static status_t write_file(struct sources *sources, struct download *download)
{
    AUTO(buf_deinit) struct buf text = {0};
    sources->page.made_ms = clock_wall_ms();
    page_write(&sources->page, &text);
    status_t status = download_put(download, text.data, text.length);
    if (status == NULL) status = download_finish(download);
    if (status == NULL) print_result(sources, text.length);
    return status;
}

static int run(struct sources *sources)
{
    struct download download;
    session_catch_signals(sources->session);
    status_t status = download_begin(&download, sources->client->options.file);
    if (status != NULL) {
        int code = exit_from_file(status);
        output_error(status);
        return code;
    }
    status = read_record(sources);
    if (status == NULL) read_step(sources);
    int number = session_signal(sources->session);
    bool local = status == NULL;
    if (status == NULL && number == 0) status = write_file(sources, &download);
    download_deinit(&download);
    if (number != 0) {
        status_free(status);
        return EXIT_SIGNAL + number;
    }
    if (status == NULL) return EXIT_DONE;
    int code = output_error(status);
    return local ? EXIT_FAILED : code;
}

int verb_report(struct client *client)
{
    if (client->options.file == NULL)
        return output_usage_error(
            status_new(STATUS_INVALID_ARGUMENT,
                       "report: expected -o FILE, for example -o report.html"));
    struct sources sources = {.client = client};
    status_t status =
        session_new(client->options.address, client->options.timeout_ms, &sources.session);
    if (status != NULL) return output_usage_error(status);
    int code = run(&sources);
    page_deinit(&sources.page);
    timeline_deinit(&sources.timeline);
    if (sources.job) fsdpd__v1__job__free_unpacked(sources.job, NULL);
    if (sources.history) fsdpd__v1__get_history_response__free_unpacked(sources.history, NULL);
    if (sources.plan) fsdpd__v1__plan__free_unpacked(sources.plan, NULL);
    message_free(sources.checkpoints);
    message_free(sources.why);
    free(sources.note);
    session_free(sources.session);
    return code;
}
