/* Side groups; see side_group.h. */
#include "worker/side_group.h"

/* How long the ranks wait for each other to begin. */
enum { BEGIN_MS = 30000 };

status_t side_group_join(const struct side_context *context, const struct rendezvous *store,
                         const char *name, bool patient, struct comm **comm)
{
    int64_t join_ms = patient || context->timeout_ms < BEGIN_MS ? context->timeout_ms : BEGIN_MS;
    status_t status = comm_host_new(context->rank, context->world, context->address, name, store,
                                    join_ms, context->timeout_ms, context->shared, comm);
    if (status_code(status) != STATUS_UNAVAILABLE) return status;
    status_t failed = status_new(STATUS_ABORTED, "%s", status_message(status));
    status_free(status);
    return failed;
}

void side_group_fail(const struct side_context *context, const char *name, status_t why)
{
    if (context->world == 1) return;
    link_store_fail(context->link, context->store, name, status_message(why));
}
