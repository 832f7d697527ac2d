/* watch: follows a job from its beginning to its end. */
#include "client.h"
#include "follow.h"

int verb_watch(struct client *client)
{
    Fsdpd__V1__Job *job;
    struct session *session;
    status_t status = session_new(client->options.address, client->options.timeout_ms, &session);
    if (status != NULL) return output_usage_error(status);
    status = client_get_job(session, client->options.arguments[0], &job);
    int code;
    if (status != NULL) {
        code = output_error(status);
    } else {
        enum follow_output output =
            client->options.format == FORMAT_JSON ? FOLLOW_JSON : FOLLOW_TEXT;
        code = follow_job(client, session, job, output);
        fsdpd__v1__job__free_unpacked(job, NULL);
    }
    session_free(session);
    return code;
}
