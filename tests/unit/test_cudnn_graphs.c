/*
 * The graphs of attention before cuDNN itself, for described devices: whether it has an engine that
 * supports them and gives the same bits in every run, and how much scratch memory that needs. Needs
 * no device; tests/emulation/driver_stub.c is the driver, as cuDNN compiles and loads plans when it
 * creates them.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "runtime/cuda/attention_graph.h"
#include "tests/testing.h"

#if defined FSDPD_HAVE_DNN_GRAPHS && CUDNN_VERSION >= 91100

#if defined __SANITIZE_ADDRESS__
/* cuDNN keeps memory until the process ends, in libraries that it has unloaded by then, so its
 * leaks cannot be distinguished from ours. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return 1;
}
#endif

/* From NVIDIA's tuning guides. */
static const struct {
    const char *name;
    int version, processors, shared_bytes, l2_bytes, clock, memory_clock;
} devices[] = {
    {"NVIDIA H100 80GB HBM3", 900, 132, 232448, 52428800, 1980000, 2619000},
    {"NVIDIA A100-SXM4-80GB", 800, 108, 166912, 41943040, 1410000, 1593000},
};
enum { DEVICES = COUNT_OF(devices) };

static cudnnBackendDescriptor_t describe(int which)
{
    cudnnBackendDescriptor_t properties = NULL;
    char *json = mem_printf(
        "{\"cudaDeviceId\":0,\"deviceVer\":%d,\"driverVer\":13000,\"totalGlobalMem\":85000000000,"
        "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
        "\"regsPerBlock\":65536,\"multiProcessorCount\":%d,\"warpSize\":32,"
        "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%d,"
        "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,"
        "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,"
        "\"isTccDriver\":0,\"supportCoopLaunch\":1,\"smClockRateKHz\":%d,"
        "\"memClockRateKHz\":%d,\"l2CacheSize\":%d,\"deviceName\":\"%s\"}",
        devices[which].version, devices[which].processors, devices[which].shared_bytes,
        devices[which].clock, devices[which].memory_clock, devices[which].l2_bytes,
        devices[which].name);
    status_t status = dnn_properties_new(0, json, &properties);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    free(json);
    return properties;
}

static const struct attention_shape gpt2 = {4, 1024, 12, 12, 64, 1, .packed = true, .causal = true};
static const struct attention_shape llama = {1, 512, 8, 2, 128, 4, .causal = true};
static const struct attention_shape bert = {2, 100, 12, 12, 64, 1, .causal = false};

/* Makes a plan; the caller frees the status. */
static status_t make(cudnnBackendDescriptor_t properties, const struct attention_shape *shape,
                     bool backward, bool statistics, int64_t most, struct dnn_plan *plan)
{
    struct dnn_graph graph = {0};
    *plan = (struct dnn_plan){0};
    if (backward) attention_graph_backward(&graph, shape);
    else attention_graph_forward(&graph, shape, statistics);
    status_t status = dnn_graph_finish(&graph, properties, most, plan);
    dnn_graph_free(&graph);
    return status;
}

/* Loads the driver before cuDNN looks for one: cuDNN uses a library of that name that is loaded. */
static void load_driver(void)
{
    char program[4096] = "";
    ck_assert_int_gt(readlink("/proc/self/exe", program, sizeof program - 1), 0);
    const char *slash = strrchr(program, '/');
    char *path = mem_printf("%.*s/../emulation/libcuda.so.1", (int)(slash - program), program);
    ck_assert_msg(dlopen(path, RTLD_NOW | RTLD_GLOBAL) != NULL, "%s", dlerror());
    free(path);
}

static const char *reason(void)
{
    return cudnnGetVersion() < 91100 ? "before version 9.11 cuDNN takes no description of a device"
                                     : NULL;
}

TESTS_BELOW(.timeout = 60, .set_up_once = load_driver, .skip = reason);

LOOP_TEST(taken, 0, 3 * DEVICES)
{
    static const struct attention_shape *const shapes[] = {&gpt2, &llama, &bert};
    cudnnBackendDescriptor_t properties = describe(_i % DEVICES);
    const struct attention_shape *shape = shapes[_i / DEVICES];
    struct dnn_plan plan;
    for (int pass = shape == &gpt2 ? 0 : 1; pass < 3; pass++) {
        bool backward = pass == 2;
        status_t status = make(properties, shape, backward, pass == 1, INT64_MAX, &plan);
        ck_assert_msg(status == NULL, "%s, pass %d: %s", devices[_i % DEVICES].name, pass,
                      status_message(status));
        /* attention_cudnn.c divides a batch by the size of the scores in bf16, in whole tiles; in
         * addition there are two numbers per row, and keys' gradients of every query's head. */
        int64_t rows = (shape->time + 63) / 64 * 64, lines = shape->batch * shape->heads * rows;
        int64_t most = 4096;
        if (backward) most += 2 * lines * rows + 8 * lines;
        if (backward && shape->group > 1) most += 4 * lines * shape->head_dim;
        ck_assert_int_ge(plan.workspace_bytes, 0);
        ck_assert_int_le(plan.workspace_bytes, most);
    }
    cudnnBackendDestroyDescriptor(properties);
}

LOOP_TEST(refused, 0, DEVICES)
{
    cudnnBackendDescriptor_t properties = describe(_i % DEVICES);
    struct attention_shape odd = gpt2;
    struct dnn_plan plan;
    odd.head_dim = 13;
    status_t status = make(properties, &odd, false, true, INT64_MAX, &plan);
    ck_assert_int_eq(status_code(status), STATUS_UNIMPLEMENTED);
    status_free(status);
    /* more scratch memory than the limit */
    status = make(properties, &gpt2, true, false, 1 << 20, &plan);
    ck_assert_int_eq(status_code(status), STATUS_UNIMPLEMENTED);
    ck_assert_ptr_nonnull(strstr(status_message(status), "bytes of scratch memory"));
    status_free(status);
    cudnnBackendDestroyDescriptor(properties);
}

#else

static const char *reason(void)
{
    return "there is no cuDNN of version 9.11 to compile against";
}

TESTS_BELOW(.skip = reason);

#endif
