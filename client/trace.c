/* trace: records when every instruction of a job's next steps ran, as a file for Perfetto. */
#include <string.h>

#include "base/text.h"
#include "client.h"
#include "download.h"
#include "exit.h"
#include "page/timeline.h"
#include "print/json.h"
#include "progress.h"

enum { DEFAULT_STEPS = 10, MAX_STEPS = 1000 };

struct client_trace {
    struct client *client;
    struct timeline timeline;
    struct live live;
};

static status_t set_steps(struct verb_options *options, const char *value)
{
    return option_number(value, 1, MAX_STEPS, &options->steps);
}

static status_t set_file(struct verb_options *options, const char *value)
{
    if (value[0] == '\0') return status_new(STATUS_INVALID_ARGUMENT, "expected a file name");
    options->file = value;
    return NULL;
}

const struct verb_option trace_options[] = {
    {"steps", 0, "N", "how many steps (1 to 1000; default 10)", set_steps},
    {"output", 'o', "FILE", "the file to write (required; \"-\": standard output)", set_file},
    {0},
};

static status_t take_chunk(const ProtobufCMessage *message, void *user)
{
    struct client_trace *trace = user;
    const Fsdpd__V1__TraceChunk *chunk = (const Fsdpd__V1__TraceChunk *)(const void *)message;
    if (trace->client->terminal.err && chunk->step > 0 && live_due(&trace->live)) {
        AUTO(buf_deinit) struct buf line = {0};
        buf_printf(&line, "tracing %s: step %llu", trace->client->options.arguments[0],
                   (unsigned long long)chunk->step);
        live_draw(&trace->live, &line);
    }
    if (chunk->n_workers > 0 || chunk->n_programs > 0 || chunk->n_steps > 0)
        timeline_add(&trace->timeline, chunk);
    return NULL;
}

/* Where the time of a step is spent. */
static void add_table(const struct timeline *timeline, struct buf *text)
{
    static const struct table_column columns[] = {{.title = "WHAT"},
                                                  {.title = "LANE"},
                                                  {.title = "PER STEP", .right = true},
                                                  {.title = "TIME", .right = true},
                                                  {.title = "OF LANE", .right = true}};
    AUTO(timeline_times_deinit) struct timeline_times times = {0};
    AUTO(table_deinit) struct table table = {.columns = columns, .column_count = 5};
    timeline_sum_up(timeline, &times);
    for (int i = 0; i < times.count; i++) {
        const struct timeline_time *time = &times.times[i];
        char shown[32];
        double lane = 0;
        for (int k = 0; k < times.count; k++)
            if (strcmp(times.times[k].lane, time->lane) == 0) lane += times.times[k].seconds;
        table_add(&table, time->what);
        table_add(&table, time->lane);
        table_addf(&table, "%.*f", time->often == (double)(int64_t)time->often ? 0 : 1,
                   time->often);
        table_add(&table, text_format_duration(time->seconds, shown));
        table_addf(&table, "%.1f%%", lane > 0 ? 100 * time->seconds / lane : 0);
    }
    buf_add_char(text, '\n');
    table_print(&table, 0, 0, text);
}

static void add_times(const struct timeline *timeline, struct buf *text)
{
    AUTO(timeline_times_deinit) struct timeline_times times = {0};
    timeline_sum_up(timeline, &times);
    buf_add_text(text, ",\n  \"times\": [");
    for (int i = 0; i < times.count; i++) {
        buf_add_text(text, i > 0 ? ",\n    {\"what\": " : "\n    {\"what\": ");
        json_add_string(text, times.times[i].what);
        buf_add_text(text, ", \"lane\": ");
        json_add_string(text, times.times[i].lane);
        buf_printf(text, ", \"per_step\": %.9g, \"seconds\": %.9g}", times.times[i].often,
                   times.times[i].seconds);
    }
    buf_add_text(text, "\n  ]");
}

static void report(const struct client_trace *trace)
{
    const struct verb_options *options = &trace->client->options;
    const struct timeline *timeline = &trace->timeline;
    bool to_stdout = strcmp(options->file, "-") == 0;
    struct buf text = {0};
    if (options->format == FORMAT_JSON) {
        buf_add_text(&text, "{\n  \"id\": ");
        json_add_string(&text, options->arguments[0]);
        buf_add_text(&text, ",\n  \"file\": ");
        json_add_string(&text, options->file);
        buf_printf(&text,
                   ",\n  \"ranks\": %d,\n  \"hosts\": %d,\n  \"steps\": %d,\n  \"first_step\": "
                   "%llu,\n  \"last_step\": %llu",
                   timeline->world, timeline->host_count, timeline->step_count,
                   (unsigned long long)timeline->first_step,
                   (unsigned long long)timeline->last_step);
        add_times(timeline, &text);
        buf_add_text(&text, "\n}\n");
    } else {
        buf_printf(&text, "%s%ssteps %llu to %llu of %s on %d rank%s%s%s\n",
                   to_stdout ? "" : options->file, to_stdout ? "" : ": ",
                   (unsigned long long)timeline->first_step,
                   (unsigned long long)timeline->last_step, options->arguments[0], timeline->world,
                   timeline->world == 1 ? "" : "s",
                   timeline->host_count > 1 ? ", their clocks aligned at the end of the first step"
                                            : "",
                   to_stdout ? "" : "; open it in Perfetto");
    }
    if (!to_stdout) {
        if (options->format != FORMAT_JSON) add_table(timeline, &text);
        output_print(&text);
        return;
    }
    text.length--; /* output_note adds the newline */
    text.data[text.length] = '\0';
    output_note("%s", buf_text(&text));
    buf_deinit(&text);
}

static status_t write_file(struct client_trace *trace, struct download *download)
{
    AUTO(buf_deinit) struct buf text = {0};
    timeline_write(&trace->timeline, trace->client->options.arguments[0], &text);
    TRY(download_put(download, text.data, text.length));
    return download_finish(download);
}

static int run(struct client_trace *trace, struct session *session)
{
    const struct verb_options *options = &trace->client->options;
    Fsdpd__V1__TraceJobRequest request = FSDPD__V1__TRACE_JOB_REQUEST__INIT;
    request.id = (char *)options->arguments[0];
    request.steps = options->steps > 0 ? options->steps : DEFAULT_STEPS;
    session_catch_signals(session);
    struct download download;
    status_t status = download_begin(&download, options->file);
    if (status != NULL) {
        int code = exit_from_file(status);
        output_error(status);
        return code;
    }
    status = session_stream(session, &control_trace_job, &request.base, options->timeout_ms,
                            take_chunk, trace);
    live_clear(&trace->live);
    if (status == NULL) status = timeline_finish(&trace->timeline);
    bool local = status == NULL;
    if (status == NULL) status = write_file(trace, &download);
    if (status == NULL) report(trace);
    download_deinit(&download);
    if (status == NULL) return EXIT_DONE;
    int code = output_error(status);
    if (session_signal(session) != 0) return EXIT_SIGNAL + session_signal(session);
    return local ? EXIT_FAILED : code;
}

int verb_trace(struct client *client)
{
    if (client->options.file == NULL)
        return output_usage_error(status_new(STATUS_INVALID_ARGUMENT,
                                             "trace: expected -o FILE, for example -o trace.json"));
    struct session *session;
    status_t status = session_new(client->options.address, client->options.timeout_ms, &session);
    if (status != NULL) return output_usage_error(status);
    struct client_trace trace = {.client = client, .live = {.terminal = &client->terminal}};
    int code = run(&trace, session);
    timeline_deinit(&trace.timeline);
    session_free(session);
    return code;
}
