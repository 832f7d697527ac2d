/*
 * pull: a job's full state_dict into a file. Signals are caught before the temporary file is made,
 * so there is no moment in which one could leave it behind.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "client.h"
#include "download.h"
#include "exit.h"
#include "print/json.h"
#include "progress.h"

struct pull {
    struct client *client;
    struct download download;
    struct live live;
    int64_t started_ns;
    bool local_error; /* of this machine's disk, not of the daemon */
};

static status_t set_file(struct options *options, const char *value)
{
    if (value[0] == '\0') return status_new(STATUS_INVALID_ARGUMENT, "expected a file name");
    options->file = value;
    return NULL;
}

const struct option_row pull_options[] = {
    {"output", 'o', "FILE", "the file to write (required; \"-\": standard output)", set_file},
    {0},
};

static double seconds_since(int64_t started_ns)
{
    return (double)(clock_monotonic_ns() - started_ns) / 1e9;
}

static void draw(struct pull *pull)
{
    if (!pull->client->terminal.err || !live_due(&pull->live)) return;
    struct buf line = {0};
    terminal_measure(&pull->client->terminal);
    progress_bytes(pull->download.written, pull->download.total, seconds_since(pull->started_ns),
                   pull->client->terminal.width, pull->client->terminal.colour, &line);
    live_draw(&pull->live, &line);
    buf_deinit(&line);
}

static status_t take_chunk(const ProtobufCMessage *message, void *user)
{
    struct pull *pull = user;
    const Fsdpd__V1__StateDictChunk *chunk =
        (const Fsdpd__V1__StateDictChunk *)(const void *)message;
    status_t status = download_add(&pull->download, chunk);
    pull->local_error = status != NULL && status_code(status) != STATUS_DATA_LOSS;
    draw(pull);
    return status;
}

static void report(struct pull *pull, const char *id, double seconds)
{
    const struct options *options = &pull->client->options;
    const struct download *download = &pull->download;
    bool to_stdout = strcmp(options->file, "-") == 0;
    struct buf text = {0};
    char bytes[32];
    if (options->format == FORMAT_JSON) {
        buf_add_text(&text, "{\n  \"id\": ");
        json_add_string(&text, id);
        buf_add_text(&text, ",\n  \"file\": ");
        json_add_string(&text, options->file);
        buf_printf(&text, ",\n  \"bytes\": %llu,\n  \"step\": %llu,\n  \"seconds\": ",
                   (unsigned long long)download->total, (unsigned long long)download->step);
        json_add_number(&text, seconds);
        buf_add_text(&text, "\n}\n");
    } else {
        buf_printf(&text, "%s: %s, the weights of %s after step %llu\n", options->file,
                   text_format_bytes(download->total, bytes), id,
                   (unsigned long long)download->step);
    }
    if (!to_stdout) {
        output_print(&text);
        return;
    }
    text.length--; /* a note ends its line itself */
    text.data[text.length] = '\0';
    output_note("%s", buf_text(&text));
    buf_deinit(&text);
}

static int run(struct pull *pull, struct session *session)
{
    const struct options *options = &pull->client->options;
    Fsdpd__V1__PullStateDictRequest request = FSDPD__V1__PULL_STATE_DICT_REQUEST__INIT;
    request.id = (char *)options->arguments[0];
    session_catch_signals(session);
    status_t status = download_begin(&pull->download, options->file);
    if (status != NULL) {
        bool usage = status_code(status) == STATUS_INVALID_ARGUMENT;
        output_error(status);
        return usage ? EXIT_USAGE : EXIT_FAILED;
    }
    pull->started_ns = clock_monotonic_ns();
    status = session_stream(session, &control_pull_state_dict, &request.base, options->timeout_ms,
                            take_chunk, pull);
    live_clear(&pull->live);
    if (status == NULL) {
        status = download_finish(&pull->download);
        pull->local_error = status != NULL;
    }
    double seconds = seconds_since(pull->started_ns);
    if (status == NULL) report(pull, request.id, seconds);
    download_deinit(&pull->download);
    if (status == NULL) return EXIT_DONE;
    int code = output_error(status);
    if (session_signal(session) != 0) return EXIT_SIGNAL + session_signal(session);
    return pull->local_error ? EXIT_FAILED : code;
}

int verb_pull(struct client *client)
{
    if (client->options.file == NULL)
        return output_usage_error(
            status_new(STATUS_INVALID_ARGUMENT,
                       "pull: expected -o FILE, for example -o %s.safetensors",
                       client->options.arguments[0]));
    struct session *session;
    status_t status = session_new(client->options.address, client->options.timeout_ms, &session);
    if (status != NULL) return output_usage_error(status);
    struct pull pull = {.client = client, .live = {.terminal = &client->terminal}};
    int code = run(&pull, session);
    session_free(session);
    return code;
}
