/* drain and undrain: whether workers accept jobs. */
#include "base/clock.h"
#include "client.h"
#include "exit.h"
#include "print/json.h"
#include "report.h"

static status_t set_now(struct verb_options *options, const char *value)
{
    (void)value;
    options->now = true;
    return NULL;
}

const struct verb_option drain_options[] = {
    {"now", 0, NULL, "running jobs take a checkpoint and continue on other workers", set_now},
    {0},
};

static int change_workers(struct client *client, const struct rpc_method *method,
                          const ProtobufCMessage *request)
{
    ProtobufCMessage *response;
    int code;
    if (!client_call(client, method, request, &response, &code)) return code;
    Fsdpd__V1__ListWorkersResponse *list = (Fsdpd__V1__ListWorkersResponse *)(void *)response;
    report_sort_workers(list);
    struct buf text = {0};
    if (client->options.format == FORMAT_JSON) {
        json_add_messages(&text, (const ProtobufCMessage *const *)(const void *)list->workers,
                          list->n_workers, 0);
        buf_add_char(&text, '\n');
    } else if (list->n_workers > 0) {
        struct view view = client_view(client);
        report_workers(list->workers, list->n_workers, &view, &text);
    }
    output_print(&text);
    if (client->options.format == FORMAT_TABLE && list->n_workers == 0)
        output_note("none of these workers is attached now");
    protobuf_c_message_free_unpacked(response, NULL);
    return EXIT_DONE;
}

int verb_drain(struct client *client)
{
    Fsdpd__V1__DrainWorkersRequest request = FSDPD__V1__DRAIN_WORKERS_REQUEST__INIT;
    request.worker = (char *)client->options.arguments[0];
    request.now = client->options.now;
    return change_workers(client, &control_drain_workers, &request.base);
}

int verb_undrain(struct client *client)
{
    Fsdpd__V1__UndrainWorkersRequest request = FSDPD__V1__UNDRAIN_WORKERS_REQUEST__INIT;
    request.worker = (char *)client->options.arguments[0];
    return change_workers(client, &control_undrain_workers, &request.base);
}
