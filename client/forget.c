/* forget: removes a job that is over, with all that is kept of it. */
#include "client.h"
#include "exit.h"

int verb_forget(struct client *client)
{
    Fsdpd__V1__ForgetJobRequest request = FSDPD__V1__FORGET_JOB_REQUEST__INIT;
    ProtobufCMessage *response;
    int code;
    request.id = (char *)client->options.arguments[0];
    if (!client_call(client, &control_forget_job, &request.base, &response, &code)) return code;
    protobuf_c_message_free_unpacked(response, NULL);
    struct buf text = {0};
    if (client->options.format == FORMAT_JSON) {
        buf_add_text(&text, "{}\n");
    } else {
        output_clean(&text, request.id, false);
        buf_add_text(&text, " forgotten\n");
    }
    output_print(&text);
    return EXIT_DONE;
}
