/* submit: queues a job file; with --wait, follows the job to its end. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "client.h"
#include "exit.h"
#include "follow.h"
#include "print/json.h"
#include "report.h"
#include "spec/queue.h"
#include "spec/spec.h"

static status_t set_wait(struct verb_options *options, const char *value)
{
    (void)value;
    options->wait = true;
    return NULL;
}

static status_t set_verbose(struct verb_options *options, const char *value)
{
    (void)value;
    options->verbose = true;
    return NULL;
}

static status_t set_id(struct verb_options *options, const char *value)
{
    TRY(spec_check_job_id(value));
    options->id = value;
    return NULL;
}

static status_t set_hold(struct verb_options *options, const char *value)
{
    (void)value;
    options->hold = true;
    return NULL;
}

static status_t set_priority(struct verb_options *options, const char *value)
{
    return option_set_key(options, "priority", value, "--priority", value);
}

/* Converts "a,b" to a list in YAML. An empty item is an error: an empty variable of a script would
 * otherwise drop a dependency silently. */
static status_t set_jobs(struct verb_options *options, const char *key, const char *option,
                         const char *value)
{
    AUTO(buf_deinit) struct buf list = {0};
    status_t status = NULL;
    for (const char *at = value; status == NULL; at++) {
        at += strspn(at, " ");
        size_t length = strcspn(at, ","), end = length;
        while (end > 0 && at[end - 1] == ' ') end--;
        AUTO_FREE char *id = mem_strndup(at, end);
        status = spec_check_job_id(id);
        buf_printf(&list, "%s\"%s\"", list.length > 0 ? ", " : "[", id);
        at += length;
        if (*at == '\0') break;
    }
    buf_add_char(&list, ']');
    if (status == NULL) status = option_set_key(options, key, buf_text(&list), option, value);
    return status;
}

static status_t set_after(struct verb_options *options, const char *value)
{
    return set_jobs(options, "after", "--after", value);
}

static status_t set_after_any(struct verb_options *options, const char *value)
{
    return set_jobs(options, "after_any", "--after-any", value);
}

/* An empty value would mean none. */
static status_t set_deadline(struct verb_options *options, const char *key, const char *option,
                             const char *value)
{
    if (value[0] == '\0')
        return status_new(STATUS_INVALID_ARGUMENT, "expected a duration such as 2h, or a time, "
                                                   "found ''");
    return option_set_key(options, key, value, option, value);
}

static status_t set_start_at(struct verb_options *options, const char *value)
{
    return set_deadline(options, "start.at", "--start-at", value);
}

static status_t set_start_by(struct verb_options *options, const char *value)
{
    return set_deadline(options, "deadline.start", "--start-by", value);
}

static status_t set_finish_by(struct verb_options *options, const char *value)
{
    return set_deadline(options, "deadline.finish", "--finish-by", value);
}

/* "1-20%4": the indices, and how many jobs run at once. */
static status_t set_array(struct verb_options *options, const char *value)
{
    const char *percent = strchr(value, '%');
    AUTO_FREE char *indices =
        percent != NULL ? mem_strndup(value, (size_t)(percent - value)) : mem_strdup(value);
    uint32_t *list = NULL;
    size_t count;
    TRY(spec_array_indices(indices, &list, &count));
    free(list);
    AUTO_FREE char *quoted = mem_printf("\"%s\"", indices);
    TRY(option_set_key(options, "array.indices", quoted, "--array", value));
    if (percent == NULL) return NULL;
    int64_t at_once;
    TRY(option_integer(percent + 1, 1, SPEC_ARRAY_MAX, &at_once));
    return option_set_key(options, "array.at_once", percent + 1, "--array", value);
}

/* KEY=VALUE; the value is quoted, so that a number or "null" stays text. */
static status_t set_label(struct verb_options *options, const char *value)
{
    const char *equals = strchr(value, '=');
    if (equals == NULL)
        return status_new(STATUS_INVALID_ARGUMENT, "expected KEY=VALUE, found '%s'", value);
    TRY(spec_check_label_value(equals + 1));
    AUTO_FREE char *label = mem_strndup(value, (size_t)(equals - value));
    status_t status = spec_check_label_key(label);
    if (status == NULL) {
        AUTO_FREE char *key = mem_printf("labels.%s", label),
                       *quoted = mem_printf("\"%s\"", equals + 1);
        status = option_set_key(options, key, quoted, "--label", value);
    }
    return status;
}

const struct verb_option submit_options[] = {
    {"set", 0, "KEY=VALUE", "override a key of the job file; may be repeated", option_set},
    {"id", 0, "ID", "the job's id; submitting the same file under it again is safe", set_id},
    {"array", 0, "INDICES", "a job for each index: 1-20, 1,3,7-9, 0-100:10; 1-20%4: 4 at once",
     set_array},
    {"priority", 0, "N", "-1000 to 1000; higher starts first", set_priority},
    {"after", 0, "JOBS", "start when these have succeeded: ids, separated by commas", set_after},
    {"after-any", 0, "JOBS", "start when these are over, in any state", set_after_any},
    {"start-at", 0, "WHEN", "start no earlier: 2h, or a time", set_start_at},
    {"start-by", 0, "WHEN", "fail the job if it has not started by then: 2h, or a time",
     set_start_by},
    {"finish-by", 0, "WHEN", "fail the job if it is not over by then", set_finish_by},
    {"hold", 0, NULL, "hold it from the beginning; fsdpctl release starts it", set_hold},
    {"label", 0, "KEY=VALUE", "a label; may be repeated", set_label},
    {"wait", 'w', NULL, "follow the job to its end", set_wait},
    {"verbose", 'v', NULL, "show the module tree and the plan, also without --wait", set_verbose},
    {0},
};

static void print_json(const Fsdpd__V1__Job *job)
{
    struct buf text = {0};
    json_add_document(&text, &job->base);
    output_print(&text);
}

/* The plan is a note on stderr: the result is the id or, with --wait, what the job does. */
static void print_plan(const Fsdpd__V1__Job *job)
{
    struct buf text = {0};
    if (job->plan == NULL) {
        output_note("%s has no plan yet", job->id);
        return;
    }
    report_tree(job->plan, &text);
    buf_add_char(&text, '\n');
    report_memory(job->plan, &text);
    report_advice(job->plan, &text);
    buf_add_char(&text, '\n');
    fputs(buf_text(&text), stderr);
    buf_deinit(&text);
}

static int wait_for_end(struct client *client, struct session *session, const Fsdpd__V1__Job *job)
{
    bool json = client->options.format == FORMAT_JSON;
    int code = follow_job(client, session, job, json ? FOLLOW_QUIET : FOLLOW_TEXT);
    bool over = code == EXIT_DONE || code == EXIT_JOB_FAILED || code == EXIT_JOB_CANCELLED;
    if (!json || !over) return code;
    Fsdpd__V1__Job *ended;
    status_t status = client_get_job(session, job->id, &ended);
    if (status != NULL) {
        int failed = output_error(status);
        return code == EXIT_DONE ? failed : code;
    }
    print_json(ended);
    fsdpd__v1__job__free_unpacked(ended, NULL);
    return code;
}

static int submit(struct client *client, struct session *session, Fsdpd__V1__JobFile *file)
{
    const struct verb_options *options = &client->options;
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    ProtobufCMessage *response;
    request.job_file = file;
    if (options->id != NULL) request.id = (char *)options->id;
    request.hold = options->hold;
    status_t status = session_call(session, &control_submit_job, &request.base, false, &response);
    if (status != NULL) return output_error(status);
    Fsdpd__V1__Job *job = (Fsdpd__V1__Job *)(void *)response;
    int code = EXIT_DONE;
    if (options->format == FORMAT_TABLE && (options->wait || options->verbose))
        print_plan(job);
    if (options->wait) {
        output_note("submitted %s; Ctrl-C detaches", job->id);
        code = wait_for_end(client, session, job);
    } else if (options->format == FORMAT_JSON) {
        print_json(job);
    } else {
        struct buf id = {0};
        output_clean(&id, job->id, false);
        buf_add_char(&id, '\n');
        output_print(&id);
        if (job->plan == NULL || job->plan->offline) output_note("%s", report_reason(job->reason));
        output_note("next: fsdpctl watch %s", job->id);
    }
    fsdpd__v1__job__free_unpacked(job, NULL);
    return code;
}

int verb_submit(struct client *client)
{
    Fsdpd__V1__JobFile *file;
    int code;
    if (!client_read_spec(client, &file, &code)) return code;
    struct session *session;
    status_t status = session_new(client->options.address, client->options.timeout_ms, &session);
    if (status != NULL) {
        code = output_usage_error(status);
    } else {
        code = submit(client, session, file);
        session_free(session);
    }
    fsdpd__v1__job_file__free_unpacked(file, NULL);
    return code;
}
