/* The CUDA device linked into a test, over the stub of the runtime, instead of the module. */
#include "cuda_stub.h"
#include "runtime/backend.h"

const struct backend_table *fsdpd_backend(void); /* of runtime/cuda/module.c */

/* Replaces runtime/backend.c's. */
status_t backend_load(const struct backend_table **table)
{
    static bool ready;
    if (!ready) cuda_stub_reset(1);
    ready = true;
    *table = fsdpd_backend();
    return NULL;
}
