/*
 * The graphs of attention before cuDNN itself: for devices that are described to it, whether it has
 * an engine that takes them and has the same bits in every run, and how much scratch memory that
 * asks for. Needs no device; its driver is tests/emulation/driver_stub.c's, as plans are compiled
 * and loaded when they are made.
 */
#include <check.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "runtime/cuda/attention_graph.h"

#if defined FSDPD_HAVE_DNN_GRAPHS && CUDNN_VERSION >= 91100

#if defined __SANITIZE_ADDRESS__
/* cuDNN keeps some of its own until the process ends, in libraries that it has unloaded by then, so
 * that nothing can tell its leaks from ours. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return 1;
}
#endif

/* As NVIDIA has them in its tuning guides. */
static const struct {
    const char *name;
    int version, processors, shared_bytes, l2_bytes, clock, memory_clock;
} devices[] = {
    {"NVIDIA H100 80GB HBM3", 900, 132, 232448, 52428800, 1980000, 2619000},
    {"NVIDIA A100-SXM4-80GB", 800, 108, 166912, 41943040, 1410000, 1593000},
};
enum { DEVICES = sizeof devices / sizeof devices[0] };

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

/* Makes a plan; the status is the caller's. */
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

START_TEST(test_taken)
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
        /* The scores in bf16, by whole tiles, are what attention_cudnn.c cuts a batch by; besides
         * them two numbers to a row, and keys' gradients of every query's head. */
        int64_t rows = (shape->time + 63) / 64 * 64, lines = shape->batch * shape->heads * rows;
        int64_t most = 4096;
        if (backward) most += 2 * lines * rows + 8 * lines;
        if (backward && shape->group > 1) most += 4 * lines * shape->head_dim;
        ck_assert_int_ge(plan.workspace_bytes, 0);
        ck_assert_int_le(plan.workspace_bytes, most);
    }
    cudnnBackendDestroyDescriptor(properties);
}
END_TEST

START_TEST(test_refused)
{
    cudnnBackendDescriptor_t properties = describe(_i % DEVICES);
    struct attention_shape odd = gpt2;
    struct dnn_plan plan;
    odd.head_dim = 13;
    status_t status = make(properties, &odd, false, true, INT64_MAX, &plan);
    ck_assert_int_eq(status_code(status), STATUS_UNIMPLEMENTED);
    status_free(status);
    /* more scratch memory than may be */
    status = make(properties, &gpt2, true, false, 1 << 20, &plan);
    ck_assert_int_eq(status_code(status), STATUS_UNIMPLEMENTED);
    ck_assert_ptr_nonnull(strstr(status_message(status), "bytes of scratch memory"));
    status_free(status);
    cudnnBackendDestroyDescriptor(properties);
}
END_TEST

/* Before cuDNN looks for one: what is loaded already has its name. */
static bool load_driver(const char *program)
{
    const char *slash = strrchr(program, '/');
    char *path = mem_printf("%.*s/../emulation/libcuda.so.1", (int)(slash - program), program);
    void *driver = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (driver == NULL) fprintf(stderr, "%s\n", dlerror());
    free(path);
    return driver != NULL;
}

int main(void)
{
    char program[4096] = "";
    if (cudnnGetVersion() < 91100) return 77; /* cannot be told of devices */
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0 || !load_driver(program))
        return 1;
    Suite *suite = suite_create("graphs of cuDNN");
    TCase *tests = tcase_create("graphs");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, test_taken, 0, 3 * DEVICES);
    tcase_add_loop_test(tests, test_refused, 0, DEVICES);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}

#else

int main(void)
{
    return 77;
}

#endif
