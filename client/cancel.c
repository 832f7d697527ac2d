/* cancel: ends a job at its next step boundary. */
#include "client.h"
#include "exit.h"
#include "print/json.h"
#include "report.h"

int verb_cancel(struct client *client)
{
    Fsdpd__V1__CancelJobRequest request = FSDPD__V1__CANCEL_JOB_REQUEST__INIT;
    ProtobufCMessage *response;
    int code;
    request.id = (char *)client->options.arguments[0];
    if (!client_call(client, &control_cancel_job, &request.base, &response, &code)) return code;
    const Fsdpd__V1__Job *job = (const Fsdpd__V1__Job *)(const void *)response;
    struct buf text = {0};
    if (client->options.format == FORMAT_JSON) {
        json_add_message(&text, response, 0);
        buf_add_char(&text, '\n');
    } else {
        report_end(job->id, job->state, job->reason, &text);
    }
    output_print(&text);
    if (client->options.format == FORMAT_TABLE && !report_is_over(job->state))
        output_note("it ends at its next step boundary: fsdpctl watch %s", job->id);
    protobuf_c_message_free_unpacked(response, NULL);
    return EXIT_DONE;
}
