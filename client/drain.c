/* drain and undrain: whether workers accept jobs. */
#include "client.h"
#include "exit.h"

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

static void print_workers(const struct client *client, Fsdpd__V1__Worker **workers, size_t count)
{
    if (client->options.format == FORMAT_TABLE && count == 0)
        output_note("none of these workers is attached now");
    else client_print_workers(client, workers, count);
}

int verb_drain(struct client *client)
{
    Fsdpd__V1__DrainWorkersRequest request = FSDPD__V1__DRAIN_WORKERS_REQUEST__INIT;
    request.worker = (char *)client->options.arguments[0];
    request.now = client->options.now;
    ProtobufCMessage *response;
    int code;
    if (!client_call(client, &control_drain_workers, &request.base, &response, &code)) return code;
    const Fsdpd__V1__DrainWorkersResponse *drained = (const void *)response;
    print_workers(client, drained->workers, drained->n_workers);
    protobuf_c_message_free_unpacked(response, NULL);
    return EXIT_DONE;
}

int verb_undrain(struct client *client)
{
    Fsdpd__V1__UndrainWorkersRequest request = FSDPD__V1__UNDRAIN_WORKERS_REQUEST__INIT;
    request.worker = (char *)client->options.arguments[0];
    ProtobufCMessage *response;
    int code;
    if (!client_call(client, &control_undrain_workers, &request.base, &response, &code))
        return code;
    const Fsdpd__V1__UndrainWorkersResponse *undrained = (const void *)response;
    print_workers(client, undrained->workers, undrained->n_workers);
    protobuf_c_message_free_unpacked(response, NULL);
    return EXIT_DONE;
}
