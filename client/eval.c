/* eval: evaluates a running job between two of its steps, and other weights by a job of their own.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/text.h"
#include "eval.h"
#include "exit.h"
#include "print/json.h"
#include "print/scores.h"
#include "pull.h"

static status_t set_data(struct verb_options *options, const char *value)
{
    if (value[0] == '\0') return status_new(STATUS_INVALID_ARGUMENT, "expected a path");
    options->data = value;
    return NULL;
}

static status_t set_name(struct verb_options *options, const char *value)
{
    if (value[0] == '\0') return status_new(STATUS_INVALID_ARGUMENT, "expected a name");
    options->held_out = value;
    return NULL;
}

static status_t set_batches(struct verb_options *options, const char *value)
{
    options->batches_given = true;
    return option_number(value, 0, 1000000000, &options->batches);
}

static status_t set_detach(struct verb_options *options, const char *value)
{
    (void)value;
    options->detach = true;
    return NULL;
}

static status_t set_finish_by(struct verb_options *options, const char *value)
{
    if (value[0] == '\0')
        return status_new(STATUS_INVALID_ARGUMENT, "expected a duration such as 2h, or a time");
    options->finish_by = value;
    return NULL;
}

const struct verb_option eval_options[] = {
    {"data", 0, "PATH", "data of the job's data.format, below a worker's data root", set_data},
    {"set", 0, "NAME", "one of the job's data.validation", set_name},
    {"batches", 0, "N", "at most that many optimizer steps' windows; 0: all", set_batches},
    {"checkpoint", 0, "STEP", "the weights of this checkpoint, or of the latest one",
     pull_set_checkpoint},
    {"key", 0, "KEY=VALUE", "override a key of the job that evaluates; may be repeated",
     option_set},
    {"finish-by", 0, "WHEN", "fail that job if it is not over by then: 2h, or a time",
     set_finish_by},
    {"detach", 0, NULL, "print that job's id and do not wait for it", set_detach},
    {0},
};

static void add_text(const Fsdpd__V1__Validation *validation, struct buf *out)
{
    char loss[32], seconds[32];
    buf_printf(out, "after step %llu: ", (unsigned long long)validation->step);
    if (validation->tokens == 0) buf_add_text(out, "no target of this data counts");
    else if (isnan(validation->loss)) buf_add_text(out, "the loss is NaN (not a number)");
    else buf_printf(out, "loss %s", scores_loss(validation->loss, loss));
    scores_add(validation->scores, out);
    buf_printf(out, " (%llu targets in %s)\n", (unsigned long long)validation->tokens,
               text_format_seconds(validation->seconds, seconds));
}

void eval_print(const struct client *client, const Fsdpd__V1__Validation *validation)
{
    struct buf text = {0};
    if (client->options.format == FORMAT_JSON) json_add_document(&text, &validation->base);
    else add_text(validation, &text);
    output_print(&text);
}

char *eval_data(const struct verb_options *options)
{
    if (options->data == NULL) return NULL;
    char *here = realpath(options->data, NULL);
    return here != NULL ? here : mem_strdup(options->data);
}

static int evaluate_running(struct client *client, struct session *session)
{
    const struct verb_options *options = &client->options;
    Fsdpd__V1__EvaluateJobRequest request = FSDPD__V1__EVALUATE_JOB_REQUEST__INIT;
    ProtobufCMessage *response;
    char *data = eval_data(options);
    request.id = (char *)options->arguments[0];
    if (data != NULL) request.path = data;
    if (options->held_out != NULL) request.set = (char *)options->held_out;
    request.batches = options->batches;
    if (options->batches_given)
        request._batches_case = FSDPD__V1__EVALUATE_JOB_REQUEST___BATCHES_BATCHES;
    status_t status = session_call(session, &control_evaluate_job, &request.base, false, &response);
    free(data);
    if (status != NULL) return output_error(status);
    eval_print(client, (const Fsdpd__V1__Validation *)(const void *)response);
    protobuf_c_message_free_unpacked(response, NULL);
    return EXIT_DONE;
}

/* No id of a job has a slash. */
static bool is_directory(const char *argument)
{
    struct stat info;
    return strchr(argument, '/') != NULL || (stat(argument, &info) == 0 && S_ISDIR(info.st_mode));
}

/* What only a job of its own takes. */
static bool needs_job(const struct verb_options *options)
{
    return options->checkpoint || options->detach || options->set_count > 0 ||
           options->finish_by != NULL;
}

static int evaluate(struct client *client, struct session *session)
{
    const struct verb_options *options = &client->options;
    const char *argument = options->arguments[0];
    if (is_directory(argument)) return eval_by_job(client, session, NULL);
    Fsdpd__V1__Job *job;
    status_t status = client_get_job(session, argument, &job);
    if (status != NULL) return output_error(status);
    bool is_paused = job->state == FSDPD__V1__JOB_STATE__JOB_STATE_PAUSED;
    bool by_job = report_is_over(job->state) || is_paused || needs_job(options);
    int code = by_job ? eval_by_job(client, session, job) : evaluate_running(client, session);
    fsdpd__v1__job__free_unpacked(job, NULL);
    return code;
}

int verb_eval(struct client *client)
{
    struct session *session;
    int code;
    if (!client_open(client, &session, &code)) return code;
    code = evaluate(client, session);
    session_free(session);
    return code;
}
