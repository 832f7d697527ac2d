/* checkpoint: takes a checkpoint now; checkpoints: lists them. */
#include "base/clock.h"
#include "client.h"
#include "exit.h"
#include "lists.h"
#include "print/json.h"
#include "print/table.h"
#include "proto/message.h"
#include "report.h"

int verb_checkpoint(struct client *client)
{
    Fsdpd__V1__CreateCheckpointRequest request = FSDPD__V1__CREATE_CHECKPOINT_REQUEST__INIT;
    ProtobufCMessage *response;
    int code;
    request.id = (char *)client->options.arguments[0];
    if (!client_call(client, &control_create_checkpoint, &request.base, &response, &code))
        return code;
    const Fsdpd__V1__Checkpoint *checkpoint = (const Fsdpd__V1__Checkpoint *)(const void *)response;
    struct buf text = {0};
    if (client->options.format == FORMAT_JSON) json_add_document(&text, response);
    else report_checkpoint(checkpoint, &text);
    output_print(&text);
    protobuf_c_message_free_unpacked(response, NULL);
    return EXIT_DONE;
}

static void add_table(const ProtobufCMessage *response, const struct view *view, struct buf *out)
{
    const Fsdpd__V1__ListCheckpointsResponse *list = (const void *)response;
    static const struct table_column columns[] = {
        {.title = "STEP", .right = true}, {.title = "TAKEN"},
        {.title = "SIZE", .right = true}, {.title = "WORLD", .right = true},
        {.title = "BEST", .right = true}, {.title = "PATH"},
    };
    AUTO(table_deinit) struct table table = {.columns = columns, .column_count = 6, .whole = true};
    for (size_t i = 0; i < list->n_checkpoints; i++) {
        const Fsdpd__V1__Checkpoint *checkpoint = list->checkpoints[i];
        char time[32];
        table_addf(&table, "%llu", (unsigned long long)checkpoint->step);
        table_add(&table, clock_format_wall(message_time_ms(checkpoint->time), time));
        table_add_bytes(&table, checkpoint->bytes);
        table_addf(&table, "%u", checkpoint->world);
        if (checkpoint->_best_case != 0) table_addf(&table, "%.6g", checkpoint->best);
        else table_add(&table, "");
        table_add(&table, checkpoint->path);
    }
    table_print(&table, view->width, 0, out);
}

int verb_checkpoints(struct client *client)
{
    Fsdpd__V1__ListCheckpointsRequest request = FSDPD__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    request.id = (char *)client->options.arguments[0];
    return lists_print(client, &control_list_checkpoints, &request.base, LIST_FROM_NEWEST,
                       add_table);
}
