/* list: the jobs, oldest first. */
#include "base/clock.h"
#include "client.h"
#include "exit.h"
#include "print/json.h"
#include "report.h"

int verb_list(struct client *client)
{
    Fsdpd__V1__ListJobsRequest request = FSDPD__V1__LIST_JOBS_REQUEST__INIT;
    ProtobufCMessage *response;
    int code;
    if (!client_call(client, &control_list_jobs, &request.base, &response, &code)) return code;
    const Fsdpd__V1__ListJobsResponse *list =
        (const Fsdpd__V1__ListJobsResponse *)(const void *)response;
    struct buf text = {0};
    if (client->options.format == FORMAT_JSON) {
        json_add_messages(&text, (const ProtobufCMessage *const *)(const void *)list->jobs,
                          list->n_jobs, 0);
        buf_add_char(&text, '\n');
    } else {
        report_jobs(list->jobs, list->n_jobs, clock_wall_ms(),
                    client->terminal.out ? client->terminal.width : 0, &text);
    }
    output_print(&text);
    protobuf_c_message_free_unpacked(response, NULL);
    return EXIT_DONE;
}
