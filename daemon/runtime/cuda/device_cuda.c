/*
 * Opens a CUDA device and manages its memory: one driver allocation per arena, zeroed.
 * docs/fsdpd.md describes the environment variables FSDPD_CUDA_*.
 */
#include "runtime/cuda/device_cuda.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <linux/mempolicy.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/host.h"
#include "base/mem.h"
#include "base/switches.h"
#include "base/text.h"
#include "runtime/cuda/matmul.h"

/* Errors of which CUDA's header says that the process must end; and those of a device's memory and
 * of its links. */
static bool ends_process(cudaError_t error)
{
    switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorMpsClientTerminated: return true;
    default: return false;
    }
}

status_t cuda_status(cudaError_t error, const char *call)
{
    if (error == cudaSuccess) return NULL;
    cudaGetLastError(); /* which would keep it: it is reported here */
    bool lost = ends_process(error);
    if (lost) device_lose();
    enum status_code code = error == cudaErrorMemoryAllocation ? STATUS_RESOURCE_EXHAUSTED
                            : error == cudaErrorNoDevice ||
                                    error == cudaErrorInsufficientDriver || lost
                                ? STATUS_UNAVAILABLE
                                : STATUS_INTERNAL;
    size_t length = strcspn(call, "(");
    return status_new(code, "%.*s: %s (%s)%s", (int)length, call, cudaGetErrorString(error),
                      cudaGetErrorName(error),
                      lost ? "; this process has lost its device: dmesg may name an Xid" : "");
}

pthread_rwlock_t cuda_captures = PTHREAD_RWLOCK_INITIALIZER;

status_t cuda_use(const struct cuda_device *device)
{
    TRY_CUDA(cudaSetDevice(device->number));
    return NULL;
}

void cuda_note(struct cuda_device *device, const char *format, ...)
{
    char text[CUDA_NOTE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    for (int i = 0; i < device->note_count; i++)
        if (strcmp(device->notes[i], text) == 0) return;
    if (device->note_count < CUDA_NOTES_MAX)
        snprintf(device->notes[device->note_count++], CUDA_NOTE_BYTES, "%s", text);
}

bool cuda_is_switched(const char *variable, const char *value)
{
    return switch_is(variable, value);
}

static const char *note(const struct device *base, int index)
{
    const struct cuda_device *device = cuda_device(base);
    return index < device->note_count ? device->notes[index] : NULL;
}

/*
 * The libraries' handles of devices that were closed, for the next ones that are opened; at most as
 * many as were open at a time. None is destroyed, as that waits in the driver for all of the
 * device's work: a plan beside a running job would wait for its replays, whose collectives may then
 * never end (pytorch#196133), and would invalidate its captures.
 */
struct handles {
    int number; /* the device's */
    cublasLtHandle_t blas;
    void *dnn; /* may be NULL */
    struct handles *next;
};
static struct handles *spares;
static pthread_mutex_t spares_lock = PTHREAD_MUTEX_INITIALIZER;

/* A lost device's are of no use. */
static void leave_handles(const struct cuda_device *device)
{
    if (device->blas == NULL || device_is_lost()) return;
    struct handles *left = mem_alloc(sizeof *left);
    pthread_mutex_lock(&spares_lock);
    *left = (struct handles){device->number, device->blas, device->dnn, spares};
    spares = left;
    pthread_mutex_unlock(&spares_lock);
}

static void take_handles(struct cuda_device *device)
{
    pthread_mutex_lock(&spares_lock);
    struct handles **at = &spares;
    while (*at != NULL && (*at)->number != device->number) at = &(*at)->next;
    struct handles *taken = *at;
    if (taken != NULL) *at = taken->next;
    pthread_mutex_unlock(&spares_lock);
    if (taken == NULL) return;
    device->blas = taken->blas;
    device->dnn = taken->dnn;
    free(taken);
}

static void close_device(struct device *base)
{
    struct cuda_device *device = cuda_device(base);
    status_free(cuda_use(device));
    cuda_matrices_forget(device);
    cuda_matmul_forget(device);
    cuda_planned_forget(device);
    if (device->epoch != NULL) cudaEventDestroy(device->epoch);
    leave_handles(device);
    device_deinit(base);
    free(device);
}

uint64_t cuda_available(const struct device *base)
{
    size_t available = 0, total = 0;
    status_t status = cuda_use(cuda_device(base));
    if (status == NULL) status = cuda_status(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
    status_free(status);
    return available;
}

/* What the device's own libraries take beside the arenas: kernels that are loaded when they are
 * first launched, NCCL's buffers, cuDNN's, graphs. No GPU has measured it yet. */
static uint64_t reserve_of(const struct cuda_device *device)
{
    enum { PART = 50 };
    const uint64_t least = UINT64_C(512) << 20, part = device->memory / PART;
    return part > least ? part : least;
}

/* For arenas. Some of the reserve stays taken after a job, in this process: so that it is not
 * reserved again, what is missing from the most that was ever free without arenas counts as it. */
static uint64_t memory_bytes(const struct device *base)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint64_t most_free[CUDA_DEVICES_MAX];
    struct cuda_device *device = cuda_device(base);
    const uint64_t available = cuda_available(base), reserve = reserve_of(device);
    const uint64_t without_arenas = available + device_allocated_bytes(base);
    uint64_t most = without_arenas;
    pthread_mutex_lock(&lock);
    if (device->number < CUDA_DEVICES_MAX) {
        uint64_t *known = &most_free[device->number];
        if (*known < most || *known > device->memory) *known = most;
        most = *known;
    }
    pthread_mutex_unlock(&lock);
    const uint64_t taken = most - without_arenas, left = taken < reserve ? reserve - taken : 0;
    return available > left ? available - left : 0;
}

static status_t model(const struct device *base, char *text, size_t size)
{
    struct cudaDeviceProp properties;
    TRY_CUDA(cudaGetDeviceProperties(&properties, cuda_device(base)->number));
    snprintf(text, size, "%s", properties.name);
    return NULL;
}

void cuda_release(void *memory)
{
    if (memory != NULL && !device_is_lost()) cudaFree(memory);
}

/* On a stream of its own, polled: another thread's capture or replay is not disturbed. */
status_t cuda_clear(void *memory, uint64_t bytes)
{
    cudaStream_t stream = NULL;
    TRY_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cudaError_t error = cudaMemsetAsync(memory, 0, bytes, stream);
    if (error == cudaSuccess) error = cudaErrorNotReady;
    for (int polls = 0; error == cudaErrorNotReady; polls++) {
        error = cudaStreamQuery(stream);
        if (error == cudaErrorNotReady) cuda_pause(polls);
    }
    cudaStreamDestroy(stream);
    return cuda_status(error, "cudaMemsetAsync");
}

static status_t map(struct device *base, uint64_t bytes, void **memory)
{
    char wanted[32], present[32];
    void *mapped = NULL;
    TRY(cuda_use(cuda_device(base)));
    cudaError_t error = cudaMalloc(&mapped, bytes);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return status_new(STATUS_RESOURCE_EXHAUSTED,
                          "device %s: cannot allocate %s; the device has %s available", base->name,
                          text_format_bytes(bytes, wanted),
                          text_format_bytes(cuda_available(base), present));
    }
    TRY(cuda_status(error, "cudaMalloc"));
    status_t status = cuda_clear(mapped, bytes);
    if (status != NULL) {
        cudaFree(mapped);
        return status;
    }
    *memory = mapped;
    return NULL;
}

static void unmap(struct device *base, void *memory, uint64_t bytes)
{
    (void)bytes;
    status_free(cuda_use(cuda_device(base)));
    cuda_release(memory);
}

/* The NUMA node that the device is attached to; -1: there are no nodes, or it is unknown. */
static int node_of(int device)
{
    char bus[64] = "";
    int node = -1;
    if (cudaDeviceGetPCIBusId(bus, sizeof bus, device) != cudaSuccess) cudaGetLastError();
    for (char *at = bus; *at != '\0'; at++) *at = (char)tolower((unsigned char)*at);
    AUTO_FREE char *path = mem_printf("/sys/bus/pci/devices/%s/numa_node", bus);
    FILE *file = fopen(path, "re");
    if (file != NULL && fscanf(file, "%d", &node) != 1) node = -1;
    if (file != NULL) fclose(file);
    return node;
}

/* On the device's node, as copies across sockets take twice the time: pages are placed by the policy
 * of the thread that allocates them. One that was set for the process, as by numactl, stays. */
static cudaError_t pin(int device, uint64_t bytes, void **memory)
{
    unsigned long nodes[16] = {0};
    const unsigned long most = sizeof nodes * CHAR_BIT, each = sizeof nodes[0] * CHAR_BIT;
    const int node = node_of(device);
    int policy = MPOL_DEFAULT;
    bool set = node >= 0 && (unsigned long)node < most &&
               syscall(SYS_get_mempolicy, &policy, NULL, 0, NULL, 0) == 0 && policy == MPOL_DEFAULT;
    if (set) nodes[(unsigned long)node / each] = 1UL << (unsigned long)node % each;
    set = set && syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes, most) == 0;
    cudaError_t error = cudaHostAlloc(memory, bytes, cudaHostAllocPortable);
    if (set) syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0);
    return error;
}

static status_t map_host(struct device *base, uint64_t bytes, void **memory)
{
    char wanted[32], present[32];
    void *mapped = NULL;
    TRY(cuda_use(cuda_device(base)));
    cudaError_t error = pin(cuda_device(base)->number, bytes, &mapped);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return status_new(STATUS_RESOURCE_EXHAUSTED,
                          "device %s: cannot allocate %s of pinned host memory; the host has %s "
                          "available",
                          base->name, text_format_bytes(bytes, wanted),
                          text_format_bytes(host_memory_available(), present));
    }
    TRY(cuda_status(error, "cudaHostAlloc"));
    memset(mapped, 0, bytes);
    *memory = mapped;
    return NULL;
}

static void unmap_host(struct device *base, void *memory, uint64_t bytes)
{
    (void)bytes;
    status_free(cuda_use(cuda_device(base)));
    if (!device_is_lost()) cudaFreeHost(memory);
}

static uint64_t touched(struct device *device, void *memory, uint64_t bytes)
{
    (void)device;
    (void)memory;
    (void)bytes;
    return 0;
}

static bool is_set(const char *variable)
{
    const char *value = switch_get(variable);
    return value != NULL && value[0] != '\0' && strcmp(value, "0") != 0;
}

static status_t read_limit(const char *variable, uint64_t *bytes)
{
    const char *value = switch_get(variable);
    if (value == NULL || value[0] == '\0') return NULL;
    char *end;
    errno = 0;
    *bytes = strtoull(value, &end, 10);
    if (value[0] >= '1' && value[0] <= '9' && *end == '\0' && errno == 0) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "%s=%s: expected a number of bytes", variable,
                      value);
}

static status_t set_up(struct cuda_device *device)
{
    TRY(read_limit("FSDPD_CUDA_MEMORY", &device->base.limit));
    TRY(read_limit("FSDPD_CUDA_HOST_MEMORY", &device->base.host_limit));
    int processors = 0, major = 0;
    TRY_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device->number));
    if (major < CUDA_LEAST_MAJOR) return status_new(STATUS_UNIMPLEMENTED, CUDA_LEAST_TEXT);
    TRY_CUDA(cudaSetDevice(device->number));
    TRY_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device->number));
    size_t available = 0, total = 0;
    TRY_CUDA(cudaMemGetInfo(&available, &total));
    device->memory = total;
    device->processors = processors;
    device->tf32 = is_set("FSDPD_CUDA_TF32");
    device->wait_after_each = is_set("FSDPD_CUDA_SYNC");
    device->graphs = !cuda_is_switched("FSDPD_CUDA_GRAPHS", "off") &&
                     !cuda_is_switched("FSDPD_CUDA_GRAPHS", "0");
    device->ahead = !cuda_is_switched("FSDPD_CUDA_AHEAD", "off");
    device->branches =
        cuda_is_switched("FSDPD_CUDA_BRANCHES", "on") && !device->wait_after_each;
    take_handles(device);
    if (device->blas != NULL) return NULL;
    cublasLtHandle_t made = NULL;
    pthread_rwlock_wrlock(&cuda_captures);
    cublasStatus_t status = cublasLtCreate(&made);
    pthread_rwlock_unlock(&cuda_captures);
    if (status == CUBLAS_STATUS_SUCCESS) {
        device->blas = made;
        return NULL;
    }
    return status_new(STATUS_INTERNAL, "cublasLtCreate: %s", cublasLtGetStatusString(status));
}

status_t device_cuda_open(int number, struct device **result)
{
    static const struct device_table table = {
        .close = close_device,
        .memory_bytes = memory_bytes,
        .map = map,
        .unmap = unmap,
        .touched = touched,
        .map_host = map_host,
        .unmap_host = unmap_host,
        .map_registrable = cuda_map_registrable,
        .unmap_registrable = cuda_unmap_registrable,
        .check_registrable = cuda_check_registrable,
        .model = model,
        .note = note,
        .prepare = cuda_prepare,
        .unprepare = cuda_unprepare,
        .lane_open = cuda_lane_open,
        .lane_close = cuda_lane_close,
        .event_new = cuda_event_new,
        .event_free = cuda_event_free,
        .record = cuda_lane_record,
        .wait_event = cuda_lane_wait_event,
        .event_fired = cuda_event_fired,
        .copy = cuda_lane_copy,
        .transfer = cuda_lane_transfer,
        .deliver = cuda_lane_deliver,
        .launch = cuda_lane_launch,
        .optimize = cuda_lane_optimize,
        .round = cuda_lane_round,
        .zero = cuda_lane_zero,
        .add = cuda_lane_add,
        .norm = cuda_lane_norm,
        .gate = cuda_lane_gate,
        .matrices = cuda_lane_matrices,
        .prepare_matrix = cuda_prepare_matrix,
        .factors = cuda_lane_factors,
        .unpack = cuda_lane_unpack,
        .matrix_workspace_bytes = CUDA_MATMUL_WORKSPACE + 4 * CUDA_MATRIX_ALIGNMENT,
        .stamp = cuda_lane_stamp,
        .wait = cuda_lane_wait,
        .look = cuda_progress_look,
        .busy_ns = cuda_lane_busy_ns,
        .lane_host_bytes = LANE_HOST_BYTES,
        .runs_beside = cuda_runs_beside,
        .recording_new = cuda_recording_new,
        .recording_free = cuda_recording_free,
        .recording_begin = cuda_recording_begin,
        .recording_end = cuda_recording_end,
        .recording_wait = cuda_recording_wait,
    };
    int count = 0;
    TRY_CUDA(cudaGetDeviceCount(&count));
    if (number >= count)
        return status_new(STATUS_NOT_FOUND, "there is no such device; this host has %d", count);
    struct cuda_device *device = mem_alloc(sizeof *device);
    char *name = mem_printf("cuda:%d", number);
    device_init(&device->base, &table, name, 1);
    free(name);
    device->number = number;
    status_t status = set_up(device);
    if (status != NULL) {
        close_device(&device->base);
        return status;
    }
    *result = &device->base;
    return NULL;
}
