/* Calls for several jobs; see jobs.h. */
#include "jobs.h"

#include <string.h>

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
    const char *states; /* of the jobs that --label means */
    bool by_job;        /* an array does not take the call, but its jobs do */
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

static void change_listed(struct jobs *jobs, const char *array);

/* Whether a call failed because the id is that of an array, whose jobs take it one by one. */
static bool is_array(struct jobs *jobs, const char *id, status_t status)
{
    Fsdpd__V1__Job *job;
    if (status_code(status) != STATUS_FAILED_PRECONDITION) return false;
    status_t unknown = client_get_job(jobs->session, id, &job);
    bool array = unknown == NULL && job->spec != NULL && job->spec->array != NULL &&
                 (jobs->method != &control_forget_job || report_is_over(job->state));
    if (unknown == NULL) fsdpd__v1__job__free_unpacked(job, NULL);
    status_free(unknown);
    return array;
}

static void change(struct jobs *jobs, const char *id, bool alone)
{
    struct jobs_call call = {.session = jobs->session,
                             .client = jobs->client,
                             .method = jobs->method,
                             .id = id};
    status_t status = jobs->caller(&call);
    if (jobs->by_job && alone && is_array(jobs, id, status)) {
        status_free(status);
        size_t done = jobs->done;
        change_listed(jobs, id);
        if (jobs->method != &control_forget_job || jobs->done == done) return;
        status = jobs->caller(&call); /* now that it has no jobs */
    }
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

/* Whether a job's array is in the list: a call for that one is for all of its jobs. */
static bool has_array(const Fsdpd__V1__ListJobsResponse *list, const Fsdpd__V1__Job *job)
{
    const Fsdpd__V1__ArrayPlace *place = job->spec != NULL ? job->spec->of_array : NULL;
    for (size_t i = 0; place != NULL && i < list->n_jobs; i++)
        if (strcmp(list->jobs[i]->id, place->array) == 0) return true;
    return false;
}

/* The jobs of --label, or of an array. */
static void change_listed(struct jobs *jobs, const char *array)
{
    ProtobufCMessage *response;
    jobs->client->options.states = jobs->states;
    jobs->client->options.array = array;
    jobs->several = true;
    if (!client_list_jobs(jobs->client, true, &response, &jobs->code)) return;
    const Fsdpd__V1__ListJobsResponse *list = (const void *)response;
    for (size_t i = 0; i < 2 * list->n_jobs; i++) { /* an array's jobs come before its record */
        const Fsdpd__V1__Job *job = list->jobs[i % list->n_jobs];
        bool record = jobs->by_job && job->spec != NULL && job->spec->array != NULL;
        bool goes =
            record ? jobs->method == &control_forget_job : jobs->by_job || !has_array(list, job);
        if (goes && record == (i >= list->n_jobs)) change(jobs, job->id, false);
    }
    if (list->n_jobs == 0) {
        status_t status =
            status_new(STATUS_NOT_FOUND, "%s: no job that is %s %s%s", jobs->client->verb->name,
                       jobs->states, array != NULL ? "is of array " : "has this label",
                       array != NULL ? array : "");
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
                        .states = states,
                        .by_job = method == &control_pause_job || method == &control_resume_job ||
                                  method == &control_forget_job,
                        .several = labels || options->argument_count > 1};
    status_t status = session_new(options->address, options->timeout_ms, &jobs.session);
    if (status != NULL) return output_usage_error(status);
    for (int i = 0; i < options->argument_count; i++) change(&jobs, options->arguments[i], true);
    if (labels) change_listed(&jobs, NULL);
    session_free(jobs.session);
    if (options->format == FORMAT_JSON && jobs.several) {
        struct buf text = {0};
        buf_add_text(&text, jobs.done > 0 ? "\n]\n" : "[]\n");
        output_print(&text);
    }
    return jobs.code;
}
