/* watch: a job from its beginning to its end. */
#include "client.h"
#include "exit.h"
#include "follow.h"

int verb_watch(struct client *client)
{
    Fsdpd__V1__GetJobRequest request = FSDPD__V1__GET_JOB_REQUEST__INIT;
    ProtobufCMessage *response;
    struct session *session;
    status_t status = session_new(client->options.address, client->options.timeout_ms, &session);
    if (status != NULL) return output_usage_error(status);
    request.id = (char *)client->options.arguments[0];
    status = session_call(session, &control_get_job, &request.base, false, &response);
    int code;
    if (status != NULL) {
        code = output_error(status);
    } else {
        enum follow_output output =
            client->options.format == FORMAT_JSON ? FOLLOW_JSON : FOLLOW_TEXT;
        code = follow_job(client, session, (const Fsdpd__V1__Job *)(const void *)response, output);
        protobuf_c_message_free_unpacked(response, NULL);
    }
    session_free(session);
    return code;
}
