/* show and wrap show: print one job, and how its modules are wrapped. */
#include <string.h>

#include "client.h"
#include "exit.h"
#include "print/json.h"
#include "report.h"

static bool get_job(struct client *client, const char *id, Fsdpd__V1__Job **job, int *code)
{
    Fsdpd__V1__GetJobRequest request = FSDPD__V1__GET_JOB_REQUEST__INIT;
    ProtobufCMessage *response;
    request.id = (char *)id;
    if (!client_call(client, &control_get_job, &request.base, &response, code)) return false;
    *job = (Fsdpd__V1__Job *)(void *)response;
    return true;
}

int verb_show(struct client *client)
{
    Fsdpd__V1__Job *job;
    int code;
    if (!get_job(client, client->options.arguments[0], &job, &code)) return code;
    struct buf text = {0};
    if (client->options.format == FORMAT_JSON) {
        json_add_document(&text, &job->base);
    } else {
        struct view view = client_view(client);
        report_job(job, &view, &text);
    }
    output_print(&text);
    fsdpd__v1__job__free_unpacked(job, NULL);
    return EXIT_DONE;
}

/* {"id": ..., "units": [...], "module_tree": ...} */
static void wrap_json(const Fsdpd__V1__Job *job, struct buf *out)
{
    buf_add_text(out, "{\n  \"id\": ");
    json_add_string(out, job->id);
    buf_add_text(out, ",\n  \"units\": ");
    json_add_messages(out, job->units, job->n_units, 2);
    buf_add_text(out, ",\n  \"module_tree\": ");
    json_add_string(out, job->plan ? job->plan->module_tree : "");
    buf_add_text(out, "\n}\n");
}

int verb_wrap(struct client *client)
{
    const char *const *arguments = client->options.arguments;
    if (strcmp(arguments[0], "set") == 0) return verb_wrap_set(client);
    if (strcmp(arguments[0], "show") != 0)
        return output_usage_error(status_new(STATUS_INVALID_ARGUMENT,
                                             "wrap: expected show JOB or set JOB, found '%s'",
                                             arguments[0]));
    for (int i = 0; i < OPTIONS_WRAP_COUNT; i++)
        if (client->options.wrap[i] != NULL)
            return output_usage_error(status_new(STATUS_INVALID_ARGUMENT,
                                                 "wrap show takes no policy; wrap set changes it"));
    Fsdpd__V1__Job *job;
    int code;
    if (!get_job(client, arguments[1], &job, &code)) return code;
    struct buf text = {0};
    if (client->options.format == FORMAT_JSON) {
        wrap_json(job, &text);
    } else {
        if (job->plan != NULL) {
            report_tree(job->plan, &text);
            buf_add_char(&text, '\n');
        }
        if (job->n_units == 0) output_note("%s has no units yet: it is not planned", job->id);
        else report_units(job->units, job->n_units, client_view(client).width, &text);
    }
    output_print(&text);
    fsdpd__v1__job__free_unpacked(job, NULL);
    return EXIT_DONE;
}
