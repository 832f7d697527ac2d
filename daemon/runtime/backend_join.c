/* Which communicator goes with a device; see backend.h. */
#include <string.h>

#include "runtime/backend.h"
#include "runtime/comm.h"

status_t backend_join(struct device *device, int rank, int world, const char *address,
                      const char *prefix, const struct rendezvous *store, int64_t timeout_ms,
                      struct comm **comm)
{
    const struct backend_table *backend = NULL;
    if (strncmp(device_name(device), "cuda", 4) != 0)
        return comm_gloo_new(rank, world, address, prefix, store, timeout_ms, comm);
    TRY(backend_load(&backend));
    return backend->comm_new(device, rank, world, prefix, store, timeout_ms, comm);
}
