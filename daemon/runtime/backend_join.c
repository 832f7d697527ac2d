/* Selects the communicator for a device; see backend.h. */
#include <string.h>

#include "runtime/backend.h"
#include "runtime/comm.h"

status_t backend_join(struct device *device, int rank, int world, const char *address,
                      const char *prefix, const struct rendezvous *store, int64_t timeout_ms,
                      bool staged, bool shared, struct comm **kept, struct comm **comm)
{
    const struct backend_table *backend = NULL;
    struct comm *host = NULL;
    bool cuda = strncmp(device_name(device), "cuda", 4) == 0;
    if (cuda) TRY(backend_load(&backend));
    if (cuda && !staged)
        return backend->comm_new(device, rank, world, prefix, store, timeout_ms, kept, comm);
    if (kept != NULL) {
        comm_free(*kept);
        *kept = NULL;
    }
    if (!cuda)
        return comm_host_new(rank, world, address, prefix, store, timeout_ms, timeout_ms, shared,
                             comm);
    TRY(comm_gloo_new(rank, world, address, prefix, store, timeout_ms, timeout_ms, &host));
    return backend->comm_staged(device, host, comm);
}
