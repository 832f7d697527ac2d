/* The program: command line, verb, exit code; see client.h. */
#include "client.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "config.h"
#include "exit.h"
#include "print/json.h"
#include "report.h"

struct view client_view(const struct client *client)
{
    return (struct view){.now_ms = clock_wall_ms(),
                         .width = client->terminal.out ? client->terminal.width : 0,
                         .colour = client->terminal.colour_out};
}

bool client_open(const struct client *client, struct session **session, int *exit_code)
{
    status_t status = session_new(client->options.address, client->options.timeout_ms, session);
    if (status == NULL) return true;
    *exit_code = output_usage_error(status);
    return false;
}

bool client_call(struct client *client, const struct rpc_method *method,
                 const ProtobufCMessage *request, ProtobufCMessage **response, int *exit_code)
{
    struct session *session;
    if (!client_open(client, &session, exit_code)) return false;
    status_t status = session_call(session, method, request, false, response);
    session_free(session);
    if (status == NULL) return true;
    *exit_code = output_error(status);
    return false;
}

status_t client_get_job(struct session *session, const char *id, Fsdpd__V1__Job **job)
{
    Fsdpd__V1__GetJobRequest request = FSDPD__V1__GET_JOB_REQUEST__INIT;
    ProtobufCMessage *response;
    request.id = (char *)id;
    TRY(session_call(session, &control_get_job, &request.base, false, &response));
    *job = (Fsdpd__V1__Job *)(void *)response;
    return NULL;
}

status_t client_check_part(struct session *session, const char *id, uint32_t attempt, int32_t rank)
{
    Fsdpd__V1__Job *job;
    TRY(client_get_job(session, id, &job));
    struct spec_settings with;
    uint32_t ranks = job->spec != NULL ? spec_settings(job->spec, job->chosen, &with)->workers
                                       : (uint32_t)job->n_workers;
    status_t status = NULL;
    if (attempt > job->attempt && job->attempt == 0)
        status = status_new(STATUS_NOT_FOUND, "attempt %u: %s has not had any yet", attempt, id);
    else if (attempt > job->attempt)
        status =
            status_new(STATUS_NOT_FOUND, "attempt %u: %s has had %u", attempt, id, job->attempt);
    else if (rank >= 0 && (uint32_t)rank >= ranks && ranks > 0)
        status = status_new(STATUS_NOT_FOUND, "rank %d: %s has %u, from 0 on", rank, id, ranks);
    fsdpd__v1__job__free_unpacked(job, NULL);
    return status;
}

int client_change_job(struct client *client, const struct rpc_method *method,
                      const ProtobufCMessage *request, const char *unless_over)
{
    ProtobufCMessage *response;
    int code;
    if (!client_call(client, method, request, &response, &code)) return code;
    const Fsdpd__V1__Job *job = (const Fsdpd__V1__Job *)(const void *)response;
    struct buf text = {0};
    if (client->options.format == FORMAT_JSON) json_add_document(&text, response);
    else report_end(job->id, job->state, job->reason, client->terminal.colour_out, &text);
    output_print(&text);
    if (unless_over && client->options.format == FORMAT_TABLE && !report_is_over(job->state))
        output_note("%s: fsdpctl watch %s", unless_over, job->id);
    protobuf_c_message_free_unpacked(response, NULL);
    return EXIT_DONE;
}

static status_t add_set(struct verb_options *options, const char *text, const char *origin)
{
    if (options->set_count == OPTIONS_MAX_SETS)
        return status_new(STATUS_INVALID_ARGUMENT, "expected at most %d of them", OPTIONS_MAX_SETS);
    MEM_GROW(options->sets, options->set_count, options->set_capacity);
    options->sets[options->set_count++] = (struct spec_override){text, origin};
    return NULL;
}

status_t option_set(struct verb_options *options, const char *value)
{
    return add_set(options, value, NULL);
}

static const char *keep(struct verb_options *options, char *text)
{
    MEM_GROW(options->texts, options->text_count, options->text_capacity);
    return options->texts[options->text_count++] = text;
}

status_t option_set_key(struct verb_options *options, const char *key, const char *value,
                        const char *option, const char *typed)
{
    const char *text = keep(options, mem_printf("%s=%s", key, value));
    return add_set(options, text, keep(options, mem_printf("%s %s", option, typed)));
}

status_t option_integer(const char *value, int64_t low, int64_t high, int64_t *integer)
{
    int64_t read;
    if (!text_parse_i64(value, &read) || read < low || read > high)
        return status_new(STATUS_INVALID_ARGUMENT, "expected %lld to %lld, found '%s'",
                          (long long)low, (long long)high, value);
    *integer = read;
    return NULL;
}

status_t option_number(const char *value, uint32_t low, uint32_t high, uint32_t *number)
{
    int64_t integer = 0;
    TRY(option_integer(value, low, high, &integer));
    *number = (uint32_t)integer;
    return NULL;
}

status_t option_attempt(struct verb_options *options, const char *value)
{
    return option_number(value, 1, UINT32_MAX, &options->attempt);
}

/* A job file on standard input; files that it names are relative to the working directory. */
static status_t pack_piped(const struct verb_options *options, Fsdpd__V1__JobFile **file)
{
    AUTO(buf_deinit) struct buf text = {0};
    TRY(file_read_descriptor(STDIN_FILENO, "standard input", SPEC_FILE_MAX, &text));
    return spec_pack_text(buf_text(&text), text.length, "standard input", options->sets,
                          options->set_count, file);
}

bool client_read_spec(struct client *client, Fsdpd__V1__JobFile **file, int *exit_code)
{
    const struct verb_options *options = &client->options;
    bool piped = strcmp(options->arguments[0], "-") == 0;
    status_t status =
        piped ? pack_piped(options, file)
              : spec_pack_file(options->arguments[0], options->sets, options->set_count, file);
    if (status == NULL) return true;
    *exit_code = output_error(status);
    /* For a job file that is too large or invalid, these codes mean something else than for a
     * job. */
    if (*exit_code != EXIT_NOT_FOUND && *exit_code != EXIT_NOT_PERMITTED) *exit_code = EXIT_USAGE;
    return false;
}

/* A full disk behind stdout must not look like success. */
static int check_output(int code)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    output_note("fsdpctl: cannot write to standard output: %s", strerror(errno));
    return code == EXIT_DONE ? EXIT_FAILED : code;
}

static int run(struct client *client)
{
    struct buf text = {0};
    if (client->options.version) {
        buf_add_text(&text, "fsdpctl " PACKAGE_VERSION "\n");
    } else if (client->options.help) {
        options_help(client->verb, &text);
    } else if (client->verb == NULL) {
        options_help(NULL, &text);
        fputs(buf_text(&text), stderr);
        buf_deinit(&text);
        return EXIT_USAGE;
    } else {
        return client->verb->run(client);
    }
    output_print(&text);
    return EXIT_DONE;
}

int client_main(int count, char **words)
{
    struct client client = {0};
    terminal_init(&client.terminal);
    status_t status = options_parse(count, words, &client.verb, &client.options);
    terminal_set_colours(&client.terminal, client.options.colours);
    int code = status == NULL ? run(&client) : output_usage_error(status);
    options_deinit(&client.options);
    return check_output(code);
}
