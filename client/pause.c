/* pause: a checkpoint, and the workers are free; resume: on from there. */
#include "client.h"
#include "exit.h"
#include "print/json.h"
#include "report.h"

static int change(struct client *client, const struct rpc_method *method,
                  const ProtobufCMessage *request)
{
    ProtobufCMessage *response;
    int code;
    if (!client_call(client, method, request, &response, &code)) return code;
    const Fsdpd__V1__Job *job = (const Fsdpd__V1__Job *)(const void *)response;
    struct buf text = {0};
    if (client->options.format == FORMAT_JSON) {
        json_add_message(&text, response, 0);
        buf_add_char(&text, '\n');
    } else {
        report_end(job->id, job->state, job->reason, &text);
    }
    output_print(&text);
    protobuf_c_message_free_unpacked(response, NULL);
    return EXIT_DONE;
}

int verb_pause(struct client *client)
{
    Fsdpd__V1__PauseJobRequest request = FSDPD__V1__PAUSE_JOB_REQUEST__INIT;
    request.id = (char *)client->options.arguments[0];
    return change(client, &control_pause_job, &request.base);
}

int verb_resume(struct client *client)
{
    Fsdpd__V1__ResumeJobRequest request = FSDPD__V1__RESUME_JOB_REQUEST__INIT;
    request.id = (char *)client->options.arguments[0];
    return change(client, &control_resume_job, &request.base);
}
