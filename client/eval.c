/* eval: evaluates a running job on data between two of its steps. */
#include <math.h>
#include <stdlib.h>

#include "base/text.h"
#include "client.h"
#include "exit.h"
#include "print/json.h"
#include "scores.h"

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

const struct verb_option eval_options[] = {
    {"data", 0, "PATH", "data of the job's data.format, below a worker's data root", set_data},
    {"set", 0, "NAME", "one of the job's data.validation", set_name},
    {"batches", 0, "N", "at most that many optimizer steps' windows; 0: all", set_batches},
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

int verb_eval(struct client *client)
{
    const struct verb_options *options = &client->options;
    Fsdpd__V1__EvaluateJobRequest request = FSDPD__V1__EVALUATE_JOB_REQUEST__INIT;
    char *here = options->data != NULL ? realpath(options->data, NULL) : NULL;
    ProtobufCMessage *response;
    int code;
    request.id = (char *)options->arguments[0];
    if (options->data != NULL) request.path = here != NULL ? here : (char *)options->data;
    if (options->held_out != NULL) request.set = (char *)options->held_out;
    request.batches = options->batches;
    if (options->batches_given)
        request._batches_case = FSDPD__V1__EVALUATE_JOB_REQUEST___BATCHES_BATCHES;
    bool answered = client_call(client, &control_evaluate_job, &request.base, &response, &code);
    free(here);
    if (!answered) return code;
    struct buf text = {0};
    if (options->format == FORMAT_JSON) json_add_document(&text, response);
    else add_text((const Fsdpd__V1__Validation *)(const void *)response, &text);
    output_print(&text);
    protobuf_c_message_free_unpacked(response, NULL);
    return EXIT_DONE;
}
