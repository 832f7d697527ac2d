/*
 * Memory allocated by and registered with NCCL (its "user buffers", ncclCommRegister): with NVLink
 * SHARP, with SHARP of an InfiniBand network, and over networks that can access device memory,
 * collectives then need no copies through NCCL's own buffers, and fewer of the device's processors.
 * Method: NCCL User Guide, "User Buffer Registration". An arena is registered as a whole, at its
 * own address, because NCCL compares the offsets of the ranks' buffers in it; it comes from
 * ncclMemAlloc, whose granularity is required.
 *
 * From NCCL 2.31.2 on, an arena is a symmetric window instead, which copy engines and NVLink can
 * gather into; before, windows have faults (nccl#1963, nccl#2198, vllm#28901).
 *
 * Available since NCCL 2.19. With an older library, whose functions are missing, the module still
 * loads (they are weak) and returns an error when registration is requested.
 */
#include "runtime/cuda/comm_nccl.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"

#ifdef FSDPD_HAVE_NCCL

#define LEAST_VERSION NCCL_VERSION(2, 19, 0)

#if NCCL_VERSION_CODE < LEAST_VERSION
ncclResult_t ncclMemAlloc(void **memory, size_t bytes);
ncclResult_t ncclMemFree(void *memory);
ncclResult_t ncclCommRegister(ncclComm_t comm, void *memory, size_t bytes, void **handle);
ncclResult_t ncclCommDeregister(ncclComm_t comm, void *handle);
#endif
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 27, 0)
enum { NCCL_WIN_COLL_SYMMETRIC = 1 };
typedef void *ncclWindow_t;
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *memory, size_t bytes,
                                    ncclWindow_t *window, int flags);
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window);
#endif
#pragma weak ncclMemAlloc
#pragma weak ncclMemFree
#pragma weak ncclCommRegister
#pragma weak ncclCommDeregister
#pragma weak ncclCommWindowRegister
#pragma weak ncclCommWindowDeregister

static bool has_windows(void)
{
    return nccl_is_recent() && ncclCommWindowRegister != NULL && ncclCommWindowDeregister != NULL;
}

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

/* A call on a thread of its own. The last of its two users frees it. */
struct registering {
    ncclComm_t comm;
    int device;
    void *memory, *handle;
    uint64_t bytes;
    ncclResult_t result;
    atomic_bool done;
    atomic_int users;
};

static void let_go(struct registering *call)
{
    if (atomic_fetch_sub(&call->users, 1) == 1) free(call);
}

/* The handle may become NULL, e.g. with NCCL_LOCAL_REGISTER=0. */
static void *do_register(void *argument)
{
    struct registering *call = argument;
    call->result = ncclUnhandledCudaError;
    if (cudaSetDevice(call->device) == cudaSuccess)
        call->result =
            has_windows()
                ? ncclCommWindowRegister(call->comm, call->memory, call->bytes,
                                         (ncclWindow_t *)&call->handle, NCCL_WIN_COLL_SYMMETRIC)
                : ncclCommRegister(call->comm, call->memory, call->bytes, &call->handle);
    atomic_store(&call->done, true);
    let_go(call);
    return NULL;
}

/* Nothing may touch the group any more, not even an abort, which would free it. */
static status_t give_up(struct nccl_comm *comm, const char *what)
{
    struct comm *whole = comm->base.whole != NULL ? comm->base.whole : &comm->base;
    device_lose();
    nccl_quit(comm);
    for (struct comm *part = whole->parts; part != NULL; part = part->next_part)
        nccl_comm(part)->handle = NULL;
    nccl_comm(whole)->handle = comm->handle = NULL;
    return status_new(STATUS_DEADLINE_EXCEEDED,
                      "%s was not done within %" PRId64 " ms; NCCL cannot end it, so this process "
                      "has lost its device",
                      what, comm->base.timeout_ms);
}

/*
 * While it registers, NCCL may wait for a peer in a system call (sglang#36943), where neither a
 * flag nor ncclCommAbort reaches it: the deadline is ours, and a call that it leaves behind costs
 * the process. A group that was aborted meanwhile waits a little for the call's own end.
 */
static status_t await_call(struct nccl_comm *comm, struct registering *call, const char *what)
{
    enum { GRACE_MS = 2000 };
    int64_t deadline_ns = clock_monotonic_ns() + comm->base.timeout_ms * 1000000;
    for (int polls = 0; !atomic_load(&call->done); polls++) {
        const int64_t now_ns = clock_monotonic_ns();
        const int64_t grace_ns = now_ns + INT64_C(1000000) * GRACE_MS;
        if (nccl_has_quit(comm) && deadline_ns > grace_ns) deadline_ns = grace_ns;
        if (now_ns > deadline_ns) return give_up(comm, what);
        cuda_pause(polls);
    }
    return NULL;
}

static status_t register_by_thread(struct nccl_comm *comm, struct registering *call, void **handle)
{
    const char *what = has_windows() ? "ncclCommWindowRegister" : "ncclCommRegister";
    pthread_t thread;
    if (pthread_create(&thread, NULL, do_register, call) != 0) {
        let_go(call);
        return status_new(STATUS_RESOURCE_EXHAUSTED, "%s: no thread for it", what);
    }
    pthread_detach(thread);
    status_t status = await_call(comm, call, what);
    if (status != NULL) nccl_quit(comm);
    TRY(status);
    status = nccl_await(comm, call->result, what);
    if (status != NULL) cuda_note(comm->device, "registered buffers: %s", status_message(status));
    /* Peers that wait for its window cannot agree to continue without. */
    if (status != NULL && has_windows()) nccl_quit(comm);
    TRY(status);
    *handle = call->handle;
    return NULL;
}

status_t nccl_register_memory(struct comm *base, void *memory, uint64_t bytes, void **handle)
{
    struct nccl_comm *comm = nccl_comm(base);
    if (comm->handle == NULL || nccl_has_quit(comm))
        return status_new(STATUS_ABORTED, "the group was aborted");
    struct registering *call = mem_alloc(sizeof *call);
    call->comm = comm->handle;
    call->device = comm->device->number;
    call->memory = memory;
    call->bytes = bytes;
    atomic_store(&call->users, 2);
    status_t status = register_by_thread(comm, call, handle);
    let_go(call);
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
    if (has_windows())
        return nccl_await(comm, ncclCommWindowDeregister(comm->handle, handle),
                          "ncclCommWindowDeregister");
    return nccl_await(comm, ncclCommDeregister(comm->handle, handle), "ncclCommDeregister");
}

#else

static status_t unbuilt(void)
{
    return status_new(STATUS_UNIMPLEMENTED,
                      "registered buffers are NCCL's: the CUDA backend was built without it");
}

status_t cuda_check_registrable(const struct device *device)
{
    (void)device;
    return unbuilt();
}

status_t cuda_map_registrable(struct device *device, uint64_t bytes, void **memory)
{
    (void)device, (void)bytes, (void)memory;
    return unbuilt();
}

/* Nothing was mapped. */
void cuda_unmap_registrable(struct device *device, void *memory, uint64_t bytes)
{
    (void)device, (void)memory, (void)bytes;
}

#endif
