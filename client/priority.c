/* priority: who is started first. */
#include "base/text.h"
#include "client.h"
#include "spec/queue.h"

int verb_priority(struct client *client)
{
    Fsdpd__V1__SetPriorityRequest request = FSDPD__V1__SET_PRIORITY_REQUEST__INIT;
    const char *word = client->options.arguments[1];
    int64_t priority;
    if (!text_parse_i64(word, &priority) || priority < -SPEC_PRIORITY_MAX ||
        priority > SPEC_PRIORITY_MAX)
        return output_usage_error(
            status_new(STATUS_INVALID_ARGUMENT,
                       "priority: expected an integer from %d to %d, found '%s'",
                       -SPEC_PRIORITY_MAX, SPEC_PRIORITY_MAX, word));
    request.id = (char *)client->options.arguments[0];
    request.priority = (int32_t)priority;
    return client_change_job(client, &control_set_priority, &request.base, NULL);
}
