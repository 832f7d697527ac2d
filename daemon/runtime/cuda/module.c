/* Entry point of the CUDA backend's module (runtime/backend.h): its table, and the devices of this
 * host. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "config.h"
#include "runtime/backend.h"
#include "runtime/cuda/device_cuda.h"

#ifdef FSDPD_HAVE_CUDNN
#include <cudnn.h>
#endif
#ifdef FSDPD_HAVE_NCCL
#include <nccl.h>
#endif

const struct backend_table *fsdpd_backend(void);

/* The first one of the runtime's major version, on Linux (CUDA's release notes). */
enum { LEAST_DRIVER = CUDART_VERSION >= 13000 ? 580 : 525 };

static void add_part(struct backend_report *report, const char *name, const char *version)
{
    struct backend_part *part = &report->parts[report->part_count++];
    snprintf(part->name, sizeof part->name, "%s", name);
    snprintf(part->version, sizeof part->version, "%s", version);
}

/* CUDA's numbers are 1000 major + 10 minor. */
static void add_cuda_part(struct backend_report *report, const char *name, int version)
{
    char text[64];
    snprintf(text, sizeof text, "%d.%d", version / 1000, version % 1000 / 10);
    add_part(report, name, version > 0 ? text : "none");
}

/* What is known of versions from `since` to before `until`, by NVIDIA's notes and public reports, and
 * meets what we call. Several windows in one allocation (nccl#2198) do not: an arena is one. */
static const struct {
    const char *part;
    size_t since, until;
    const char *what;
} known_faults[] = {
    {"NCCL", 22800, 23102, "the first collective by copy engines of two ranks may hang (nccl#2241)"},
    {"NCCL", 0, 23102, "ranks that share a device may disagree on NVLink SHARP (nccl#2257)"},
    {"cuDNN", 91900, 92100,
     "attention with fewer than 8 key heads may be wrong on a B200 (pytorch#193893); its first use is "
     "compared"},
    {"cuDNN", 0, 92500,
     "scratch memory of attention's gradient grows with the square of a sequence (cudnn-frontend#398)"},
};

static void list_faults(struct backend_report *report, const char *part, size_t version)
{
    for (size_t i = 0; i < COUNT_OF(known_faults); i++)
        if (strcmp(known_faults[i].part, part) == 0 && version >= known_faults[i].since &&
            version < known_faults[i].until && report->fault_count < BACKEND_FAULTS_MAX)
            snprintf(report->faults[report->fault_count++], sizeof report->faults[0],
                     "%s %zu.%zu.%zu: %s", part, version / 10000, version / 100 % 100,
                     version % 100, known_faults[i].what);
}

static void list_versions(struct backend_report *report)
{
    int version = 0;
    char text[64];
    cudaDriverGetVersion(&version); /* 0 without a driver */
    add_cuda_part(report, "driver's CUDA", version);
    version = 0;
    cudaRuntimeGetVersion(&version);
    add_cuda_part(report, "CUDA runtime", version);
    size_t blas = cublasLtGetVersion();
    snprintf(text, sizeof text, "%zu.%zu.%zu", blas / 10000, blas / 100 % 100, blas % 100);
    add_part(report, "cuBLASLt", text);
#ifdef FSDPD_HAVE_CUDNN
    size_t dnn = cudnnGetVersion();
    snprintf(text, sizeof text, "%zu.%zu.%zu", dnn / 10000, dnn / 100 % 100, dnn % 100);
    add_part(report, "cuDNN", text);
    list_faults(report, "cuDNN", dnn);
#else
    add_part(report, "cuDNN", "not built in");
#endif
#ifdef FSDPD_HAVE_NCCL
    int nccl = 0;
    ncclGetVersion(&nccl);
    snprintf(text, sizeof text, "%d.%d.%d", nccl / 10000, nccl / 100 % 100, nccl % 100);
    add_part(report, "NCCL", text);
    list_faults(report, "NCCL", (size_t)nccl);
#else
    add_part(report, "NCCL", "not built in");
#endif
}

/* What the driver's management library says is free. 0: unknown, as the library is absent or fails,
 * or describes more than this device, of which MIG made parts. CUDA itself could tell only in a
 * context, whose memory a job may lack, and which an exclusive device refuses beside another. */
static uint64_t free_bytes(int number, uint64_t own)
{
    struct {
        unsigned long long total, available, used;
    } memory = {0};
    char bus[64] = "";
    void *device = NULL, *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return 0;
    int (*init)(void) = (int (*)(void))dlsym(library, "nvmlInit_v2");
    int (*end)(void) = (int (*)(void))dlsym(library, "nvmlShutdown");
    int (*find)(const char *, void **) =
        (int (*)(const char *, void **))dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2");
    int (*ask)(void *, void *) = (int (*)(void *, void *))dlsym(library, "nvmlDeviceGetMemoryInfo");
    bool known = init != NULL && end != NULL && find != NULL && ask != NULL && init() == 0;
    if (known) {
        if (cudaDeviceGetPCIBusId(bus, sizeof bus, number) != cudaSuccess) cudaGetLastError();
        known =
            find(bus, &device) == 0 && ask(device, &memory) == 0 && memory.total < own + own / 8;
        end();
    }
    dlclose(library);
    return known ? memory.available : 0;
}

static status_t probe_device(int number, struct backend_device *found)
{
    struct cudaDeviceProp properties;
    snprintf(found->name, sizeof found->name, "cuda:%d", number);
    TRY_CUDA(cudaGetDeviceProperties(&properties, number));
    snprintf(found->model, sizeof found->model,
             "%.64s, compute capability %d.%d, %d multiprocessors", properties.name,
             properties.major, properties.minor, properties.multiProcessorCount);
    found->memory_total = properties.totalGlobalMem;
    if (properties.major < CUDA_LEAST_MAJOR)
        return status_new(STATUS_UNIMPLEMENTED, CUDA_LEAST_TEXT);
    found->memory_free = free_bytes(number, found->memory_total);
    return NULL;
}

static status_t report(struct backend_report *report)
{
    int count = 0;
    list_versions(report);
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice) {
        int driver = 0;
        cudaDriverGetVersion(&driver);
        if (driver == 0)
            return status_new(STATUS_UNAVAILABLE,
                              "there is no NVIDIA driver (libcuda.so.1) on this host");
        if (error == cudaErrorInsufficientDriver)
            return status_new(STATUS_UNAVAILABLE,
                              "the NVIDIA driver is for CUDA %d.%d, older than the CUDA %d.%d that "
                              "this backend was built with, which needs driver %d or later",
                              driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                              CUDART_VERSION % 1000 / 10, LEAST_DRIVER);
        return status_new(STATUS_UNAVAILABLE, "there is an NVIDIA driver, but no device");
    }
    TRY(cuda_status(error, "cudaGetDeviceCount"));
    for (int i = 0; i < count && i < BACKEND_DEVICES_MAX; i++) {
        struct backend_device *device = &report->devices[report->device_count++];
        status_t status = probe_device(i, device);
        if (status != NULL)
            snprintf(device->problem, sizeof device->problem, "%s", status_message(status));
        status_free(status);
    }
    return NULL;
}

static status_t open_device(int number, struct device **device)
{
    static struct backend_report unused;
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
        memset(&unused, 0, sizeof unused);
        TRY(report(&unused)); /* returns the reason, unless it has disappeared meanwhile */
    }
    return device_cuda_open(number, device);
}

const struct backend_table *fsdpd_backend(void)
{
    static const struct backend_table table = {.version = BACKEND_VERSION,
                                               .package = PACKAGE_STRING,
                                               .report = report,
                                               .versions = list_versions,
                                               .open = open_device,
                                               .comm_new = comm_nccl_new,
                                               .comm_staged = comm_staged_new};
    /* Set before NCCL reads it: a capture must not need peers, as one of them may fail. */
    setenv("NCCL_GRAPH_REGISTER", "0", 0);
    return &table;
}
