/* Calls for several jobs; see jobs.h. */
#include "jobs.h"

#include "exit.h"
#include "print/json.h"

const struct verb_option jobs_options[] = {
    {"label", 0, "KEY=VALUE", "all jobs with this label instead of JOB; may be repeated",
     option_filter_label},
    {0},
};

struct jobs {
    struct client *client;
    struct session *session;
    const struct rpc_method *method;
    jobs_caller *caller;
    const char *unless_over;
    bool several;
    size_t done;
    int code; /* of the first failure */
};

static void print_line(struct jobs *jobs, const char *id, const ProtobufCMessage *response)
{
    struct buf text = {0};
    const Fsdpd__V1__Job *job = NULL;
    if (response->descriptor == &fsdpd__v1__job__descriptor)
        job = (const Fsdpd__V1__Job *)(const void *)response;
    if (job != NULL) {
        report_end(job->id, job->state, job->reason, jobs->client->terminal.colour_out, &text);
    } else {
        output_clean(&text, id, false);
        buf_add_text(&text, " forgotten\n");
    }
    output_print(&text);
    if (job != NULL && jobs->unless_over != NULL && !jobs->several && !report_is_over(job->state))
        output_note("%s: fsdpctl watch %s", jobs->unless_over, job->id);
}

static void print_json(struct jobs *jobs, const ProtobufCMessage *response)
{
    struct buf text = {0};
    if (jobs->several) buf_add_text(&text, jobs->done == 0 ? "[\n  " : ",\n  ");
    json_add_message(&text, response, jobs->several ? 2 : 0);
    if (!jobs->several) buf_add_char(&text, '\n');
    output_print(&text);
}

/* The requests of these methods are alike: the id, and no more. */
static status_t call_with_id(struct jobs_call *call)
{
    Fsdpd__V1__HoldJobRequest request = FSDPD__V1__HOLD_JOB_REQUEST__INIT;
    request.base.descriptor = call->method->request;
    request.id = (char *)call->id;
    return session_call(call->session, call->method, &request.base, false, &call->response);
}

static void change(struct jobs *jobs, const char *id)
{
    struct jobs_call call = {.session = jobs->session,
                             .client = jobs->client,
                             .method = jobs->method,
                             .id = id};
    status_t status = jobs->caller(&call);
    if (status != NULL) {
        if (jobs->several) status = status_wrap(status, "%s", id);
        int code = call.usage ? output_usage_error(status) : output_error(status);
        if (jobs->code == EXIT_DONE) jobs->code = code;
        return;
    }
    if (jobs->client->options.format == FORMAT_JSON) print_json(jobs, call.response);
    else print_line(jobs, id, call.response);
    jobs->done++;
    protobuf_c_message_free_unpacked(call.response, NULL);
}

/* The jobs of --label. */
static void change_labelled(struct jobs *jobs, const char *states)
{
    ProtobufCMessage *response;
    jobs->client->options.states = states;
    if (!client_list_jobs(jobs->client, true, &response, &jobs->code)) return;
    const Fsdpd__V1__ListJobsResponse *list = (const void *)response;
    for (size_t i = 0; i < list->n_jobs; i++) change(jobs, list->jobs[i]->id);
    if (list->n_jobs == 0) {
        status_t status = status_new(STATUS_NOT_FOUND, "%s: no job that is %s has this label",
                                     jobs->client->verb->name, states);
        jobs->code = output_error(status);
    }
    protobuf_c_message_free_unpacked(response, NULL);
}

int jobs_change(struct client *client, const char *states, const struct rpc_method *method,
                jobs_caller *caller, const char *unless_over)
{
    const struct verb_options *options = &client->options;
    bool labels = options->label_count > 0;
    if (labels && options->argument_count > 0)
        return output_usage_error(status_new(STATUS_INVALID_ARGUMENT,
                                             "%s: expected JOB or --label, found both",
                                             client->verb->name));
    struct jobs jobs = {.client = client,
                        .method = method,
                        .caller = caller != NULL ? caller : call_with_id,
                        .unless_over = unless_over,
                        .several = labels || options->argument_count > 1};
    status_t status = session_new(options->address, options->timeout_ms, &jobs.session);
    if (status != NULL) return output_usage_error(status);
    for (int i = 0; i < options->argument_count; i++) change(&jobs, options->arguments[i]);
    if (labels) change_labelled(&jobs, states);
    session_free(jobs.session);
    if (options->format == FORMAT_JSON && jobs.several) {
        struct buf text = {0};
        buf_add_text(&text, jobs.done > 0 ? "\n]\n" : "[]\n");
        output_print(&text);
    }
    return jobs.code;
}
