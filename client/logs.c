/* logs: the log lines of a job's ranks, and fsdpd's own about the job. */
#include <string.h>

#include "base/clock.h"
#include "client.h"
#include "exit.h"
#include "follow.h"
#include "print/json.h"
#include "proto/message.h"
#include "spec/queue.h"
#include "spec/spec.h"

enum { TAIL_MAX = 1 << 20 };

static status_t set_follow(struct verb_options *options, const char *value)
{
    (void)value;
    options->follow = true;
    return NULL;
}

static status_t set_rank(struct verb_options *options, const char *value)
{
    uint32_t rank;
    options->one_rank = true;
    options->rank = -1;
    if (strcmp(value, "fsdpd") == 0) return NULL;
    TRY(option_number(value, 0, INT32_MAX, &rank));
    options->rank = (int32_t)rank;
    return NULL;
}

static status_t set_since(struct verb_options *options, const char *value)
{
    bool ago;
    TRY(spec_parse_time(value, &ago, &options->since_ms));
    if (ago) options->since_ms = clock_wall_ms() - options->since_ms;
    if (options->since_ms < 1) options->since_ms = 1;
    return NULL;
}

static status_t set_tail(struct verb_options *options, const char *value)
{
    return option_number(value, 1, TAIL_MAX, &options->tail);
}

const struct verb_option logs_options[] = {
    {"follow", 'f', NULL, "follow new lines until the job is over", set_follow},
    {"rank", 0, "N", "of one rank; \"fsdpd\": the daemon's lines about the job", set_rank},
    {"attempt", 0, "N", "of one attempt", option_attempt},
    {"since", 0, "WHEN", "from that time on: an age (10m, 2h30m, 3d), or 2026-01-31T12:34:56Z",
     set_since},
    {"tail", 'n', "N", "the last N lines only", set_tail},
    {0},
};

struct logs {
    struct client *client;
    struct session *session;
    uint64_t position; /* of the last line shown */
    bool *fresh;       /* set once the stream has delivered a chunk */
};

static const char *colour_of(const struct logs *logs, Fsdpd__V1__LogLevel level)
{
    const struct terminal *terminal = &logs->client->terminal;
    if (!terminal->out || !terminal->colour) return NULL;
    if (level == FSDPD__V1__LOG_LEVEL__LOG_LEVEL_ERROR) return "\033[31m";
    if (level == FSDPD__V1__LOG_LEVEL__LOG_LEVEL_WARNING) return "\033[33m";
    return NULL;
}

static void print_line(const struct logs *logs, const Fsdpd__V1__LogLine *line, struct buf *out)
{
    char when[32];
    const char *colour = colour_of(logs, line->level);
    buf_printf(out, "%s %u/", clock_format_wall(message_time_ms(line->time), when), line->attempt);
    if (line->rank < 0) buf_add_text(out, "fsdpd");
    else buf_printf(out, "%d", line->rank);
    buf_add_char(out, ' ');
    if (colour != NULL) buf_add_text(out, colour);
    const char *level = spec_word(&fsdpd__v1__log_level__descriptor, (int)line->level);
    buf_add_text(out, level != NULL ? level : "-");
    if (colour != NULL) buf_add_text(out, "\033[0m");
    buf_add_char(out, ' ');
    output_clean(out, line->text, false);
    buf_add_char(out, '\n');
}

static status_t take_chunk(const ProtobufCMessage *message, void *user)
{
    struct logs *logs = user;
    const Fsdpd__V1__GetLogsResponse *chunk = (const void *)message;
    struct buf text = {0};
    *logs->fresh = true;
    if (chunk->older_removed)
        output_note("fsdpctl: older lines are no longer kept (limits.log_bytes)");
    for (size_t i = 0; i < chunk->n_lines; i++) {
        const Fsdpd__V1__LogLine *line = chunk->lines[i];
        logs->position = line->position;
        if (logs->client->options.format == FORMAT_JSON) {
            json_add_message(&text, &line->base, -1);
            buf_add_char(&text, '\n');
        } else {
            print_line(logs, line, &text);
        }
    }
    output_print(&text);
    return NULL;
}

static status_t read_on(void *user, bool *fresh)
{
    struct logs *logs = user;
    const struct verb_options *options = &logs->client->options;
    Fsdpd__V1__GetLogsRequest request = FSDPD__V1__GET_LOGS_REQUEST__INIT;
    request.id = (char *)options->arguments[0];
    request.attempt = options->attempt;
    request.one_rank = options->one_rank;
    request.rank = options->rank;
    Google__Protobuf__Timestamp since;
    request.since = message_time(&since, options->since_ms);
    request.after_position = logs->position;
    request.tail = logs->position == 0 ? options->tail : 0;
    request.follow = options->follow;
    logs->fresh = fresh;
    return session_stream(logs->session, &control_get_logs, &request.base,
                          options->follow ? 0 : options->timeout_ms, take_chunk, logs);
}

/* An attempt may still start (0 accepts any attempt); a rank cannot appear later. */
static status_t check_part(struct logs *logs, uint32_t attempt)
{
    const struct verb_options *options = &logs->client->options;
    return client_check_part(logs->session, options->arguments[0], attempt,
                             options->one_rank ? options->rank : -1);
}

/* Follows through restarts of the daemon, provided that it answers the first call. */
static status_t follow(struct logs *logs)
{
    const struct verb_options *options = &logs->client->options;
    TRY(check_part(logs, 0));
    return reconnect_follow(logs->session, options->timeout_ms, read_on, logs);
}

int verb_logs(struct client *client)
{
    struct logs logs = {.client = client};
    status_t status =
        session_new(client->options.address, client->options.timeout_ms, &logs.session);
    if (status != NULL) return output_usage_error(status);
    session_catch_signals(logs.session);
    bool fresh = false;
    if (client->options.follow) {
        status = follow(&logs);
    } else {
        status = read_on(&logs, &fresh);
        if (status == NULL && logs.position == 0)
            status = check_part(&logs, client->options.attempt);
    }
    int signal = session_signal(logs.session);
    int code = EXIT_DONE;
    if (signal != 0) {
        status_free(status);
        code = EXIT_SIGNAL + signal;
    } else if (status != NULL) {
        code = output_error(status);
    }
    session_free(logs.session);
    return code;
}
