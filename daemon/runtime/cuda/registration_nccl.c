/*
 * Memory allocated by and registered with NCCL (its "user buffers", ncclCommRegister): with NVLink
 * SHARP, with SHARP of an InfiniBand network, and over networks that can access device memory,
 * collectives then need no copies through NCCL's own buffers, and fewer of the device's processors.
 * Method: NCCL User Guide, "User Buffer Registration". An arena is registered as a whole, at its
 * own address, because NCCL compares the offsets of the ranks' buffers in it; it comes from
 * ncclMemAlloc, whose granularity is required.
 *
 * Available since NCCL 2.19. With an older library, whose functions are missing, the module still
 * loads (they are weak) and returns an error when registration is requested.
 */
#include "runtime/cuda/comm_nccl.h"

#include "base/text.h"

#ifdef FSDPD_HAVE_NCCL

#define LEAST_VERSION NCCL_VERSION(2, 19, 0)

#if NCCL_VERSION_CODE >= LEAST_VERSION

#pragma weak ncclMemAlloc
#pragma weak ncclMemFree
#pragma weak ncclCommRegister
#pragma weak ncclCommDeregister

status_t cuda_check_registrable(const struct device *device)
{
    int version = 0;
    ncclResult_t result = ncclGetVersion(&version);
    if (result != ncclSuccess)
        return status_new(STATUS_INTERNAL, "ncclGetVersion: %s", ncclGetErrorString(result));
    if (version >= LEAST_VERSION) return NULL;
    return status_new(
        STATUS_UNIMPLEMENTED,
        "device %s: registered buffers need NCCL 2.19 or later; this is NCCL %d.%d.%d",
        device->name, version / (version < 10000 ? 1000 : 10000),
        version / 100 % (version < 10000 ? 10 : 100), version % 100);
}

/* The memory it takes beyond the request is not counted anywhere. */
static void note_rounding(struct device *device, uint64_t bytes, uint64_t before)
{
    char asked[32], took[32];
    uint64_t after = cuda_available(device), taken = before > after ? before - after : 0;
    if (taken > bytes)
        cuda_note(cuda_device(device),
                  "registered buffers: NCCL took %s of the device's memory for %s",
                  text_format_bytes(taken, took), text_format_bytes(bytes, asked));
}

status_t cuda_map_registrable(struct device *base, uint64_t bytes, void **memory)
{
    char wanted[32], present[32];
    void *mapped = NULL;
    TRY(cuda_use(cuda_device(base)));
    uint64_t before = cuda_available(base);
    ncclResult_t result = ncclMemAlloc(&mapped, bytes);
    if (result != ncclSuccess) {
        uint64_t left = cuda_available(base);
        return status_new(left < bytes ? STATUS_RESOURCE_EXHAUSTED : STATUS_INTERNAL,
                          "device %s: cannot allocate %s to be registered; the device has %s "
                          "available: ncclMemAlloc: %s",
                          base->name, text_format_bytes(bytes, wanted),
                          text_format_bytes(left, present), ncclGetErrorString(result));
    }
    status_t status = cuda_clear(mapped, bytes);
    if (status != NULL) {
        ncclMemFree(mapped);
        return status;
    }
    note_rounding(base, bytes, before);
    *memory = mapped;
    return NULL;
}

void cuda_unmap_registrable(struct device *base, void *memory, uint64_t bytes)
{
    (void)bytes;
    status_free(cuda_use(cuda_device(base)));
    if (!device_is_lost()) ncclMemFree(memory);
}

status_t nccl_register_memory(struct comm *base, void *memory, uint64_t bytes, void **handle)
{
    struct nccl_comm *comm = nccl_comm(base);
    if (comm->handle == NULL || nccl_has_quit(comm))
        return status_new(STATUS_ABORTED, "the group was aborted");
    TRY(cuda_use(comm->device));
    /* The handle may be NULL, e.g. with NCCL_LOCAL_REGISTER=0. */
    status_t status =
        nccl_await(comm, ncclCommRegister(comm->handle, memory, bytes, handle), "ncclCommRegister");
    if (status != NULL) nccl_quit(comm);
    return status;
}

/* An abort deregisters everything. A group that quit is aborted anyway, because NCCL's threads may
 * still be working. */
status_t nccl_deregister_memory(struct comm *base, void *handle)
{
    struct nccl_comm *comm = nccl_comm(base);
    if (nccl_has_quit(comm)) nccl_abort(comm);
    if (comm->handle == NULL) return NULL;
    TRY(cuda_use(comm->device));
    return nccl_await(comm, ncclCommDeregister(comm->handle, handle), "ncclCommDeregister");
}

#else

static status_t too_old(void)
{
    return status_new(STATUS_UNIMPLEMENTED,
                      "registered buffers need NCCL 2.19 or later; the CUDA backend was built with "
                      "NCCL %d.%d.%d",
                      NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
}

status_t nccl_register_memory(struct comm *comm, void *memory, uint64_t bytes, void **handle)
{
    (void)comm, (void)memory, (void)bytes, (void)handle;
    return too_old();
}

status_t nccl_deregister_memory(struct comm *comm, void *handle)
{
    (void)comm, (void)handle;
    return too_old();
}

#endif
#else

static status_t too_old(void)
{
    return status_new(STATUS_UNIMPLEMENTED,
                      "registered buffers are NCCL's: the CUDA backend was built without it");
}

#endif

#if !defined FSDPD_HAVE_NCCL || NCCL_VERSION_CODE < LEAST_VERSION

status_t cuda_check_registrable(const struct device *device)
{
    (void)device;
    return too_old();
}

status_t cuda_map_registrable(struct device *device, uint64_t bytes, void **memory)
{
    (void)device, (void)bytes, (void)memory;
    return too_old();
}

/* Nothing was mapped. */
void cuda_unmap_registrable(struct device *device, void *memory, uint64_t bytes)
{
    (void)device, (void)memory, (void)bytes;
}

#endif
