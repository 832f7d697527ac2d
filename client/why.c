/* why: one paragraph about a job's place. */
#include "client.h"
#include "exit.h"
#include "output.h"
#include "print/json.h"

int verb_why(struct client *client)
{
    Fsdpd__V1__ExplainJobRequest request = FSDPD__V1__EXPLAIN_JOB_REQUEST__INIT;
    request.id = (char *)client->options.arguments[0];
    ProtobufCMessage *response;
    int code;
    if (!client_call(client, &control_explain_job, &request.base, &response, &code)) return code;
    const Fsdpd__V1__ExplainJobResponse *explained = (const void *)response;
    struct buf text = {0};
    if (client->options.format == FORMAT_JSON) {
        json_add_document(&text, response);
    } else {
        output_clean(&text, explained->text, false);
        buf_add_char(&text, '\n');
    }
    output_print(&text);
    protobuf_c_message_free_unpacked(response, NULL);
    return EXIT_DONE;
}
