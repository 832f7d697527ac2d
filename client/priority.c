/* priority: which queued job starts first. */
#include "client.h"
#include "spec/queue.h"

int verb_priority(struct client *client)
{
    Fsdpd__V1__SetPriorityRequest request = FSDPD__V1__SET_PRIORITY_REQUEST__INIT;
    int64_t priority;
    status_t status = option_integer(client->options.arguments[1], -SPEC_PRIORITY_MAX,
                                     SPEC_PRIORITY_MAX, &priority);
    if (status != NULL) return output_usage_error(status_wrap(status, "priority"));
    request.id = (char *)client->options.arguments[0];
    request.priority = (int32_t)priority;
    return client_change_job(client, &control_set_priority, &request.base, NULL);
}
