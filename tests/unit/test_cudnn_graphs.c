/*
 * The graphs of attention and convolutions before cuDNN itself, for described devices: whether it
 * has an engine that supports them and gives the same bits in every run, and how much scratch
 * memory that needs. Needs no device; tests/emulation/driver_stub.c is the driver, as cuDNN
 * compiles and loads plans when it creates them.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "runtime/cuda/attention_graph.h"
#include "runtime/cuda/conv_graph.h"
#include "tests/testing.h"

#if CUDNN_VERSION >= 91100

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
        "\"memClockRateKHz\":%d,\"memoryBusWidth\":5120,\"l2CacheSize\":%d,\"deviceName\":\"%s\"}",
        devices[which].version, devices[which].processors, devices[which].shared_bytes,
        devices[which].clock, devices[which].memory_clock, devices[which].l2_bytes,
        devices[which].name);
    status_t status = dnn_properties_new(0, json, &properties);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    free(json);
    return properties;
}

/* Of the promised models: the published lengths, and the batches of docs/performance.md. Scores
 * that are capped, and windows, are our own kernel's. */
static const struct {
    const char *name;
    struct attention_shape shape;
} zoo[] = {
    {"gpt2 124M, batch 16", {16, 1024, 12, 12, 64, 1, .packed = true, .causal = true}},
    {"gpt2 124M, batch 64", {64, 1024, 12, 12, 64, 1, .packed = true, .causal = true}},
    {"gpt2 124M, batch 16, dropout",
     {16, 1024, 12, 12, 64, 1, .packed = true, .causal = true, .dropped = true}},
    {"llama 3 8B, dropout", {1, 4096, 32, 8, 128, 4, .causal = true, .dropped = true}},
    {"gpt2 1.5B, batch 4", {4, 1024, 25, 25, 64, 1, .packed = true, .causal = true}},
    {"gpt_neox 6.9B", {1, 2048, 32, 32, 128, 1, .packed = true, .causal = true}},
    {"gpt2 124M, batch 16, mask",
     {16, 1024, 12, 12, 64, 1, .packed = true, .causal = true, .masked = true}},
    {"llama 3.2 1B, batch 4, mask, dropout",
     {4, 2048, 32, 8, 64, 4, .causal = true, .masked = true, .dropped = true}},
    {"bert base, batch 32", {32, 512, 12, 12, 64, 1, .masked = true}},
    {"bert base, 100 tokens, dropout", {64, 100, 12, 12, 64, 1, .masked = true, .dropped = true}},
    {"modernbert large", {4, 8192, 16, 16, 64, 1, .packed = true, .masked = true}},
    {"vit base, batch 64", {64, 197, 12, 12, 64, 1, .causal = false}},
    {"llama 2 7B", {1, 4096, 32, 32, 128, 1, .causal = true}},
    {"llama 3 8B", {1, 4096, 32, 8, 128, 4, .causal = true}},
    {"llama 3 8B, long", {1, 8192, 32, 8, 128, 4, .causal = true}},
    {"llama 3 8B, longer", {1, 16384, 32, 8, 128, 4, .causal = true}},
    {"llama 3.2 1B, batch 4", {4, 2048, 32, 8, 64, 4, .causal = true}},
    {"qwen2 7B", {1, 4096, 28, 4, 128, 7, .causal = true}},
    {"phi3 mini", {1, 4096, 32, 32, 96, 1, .packed = true, .causal = true}},
    {"gemma 2B", {1, 2048, 8, 1, 256, 8, .causal = true}},
    {"stablelm 3B", {1, 4096, 32, 32, 80, 1, .causal = true}},
    {"starcoder2 3B", {1, 4096, 24, 2, 128, 12, .causal = true}},
    {"qwen3 0.6B, batch 4", {4, 2048, 16, 8, 128, 2, .causal = true}},
    {"gemma3 1B, its global layers", {1, 4096, 4, 1, 256, 4, .causal = true}},
    {"smollm3 3B", {1, 4096, 16, 4, 128, 4, .causal = true}},
    {"granite 2B, exaone4 1.2B", {1, 4096, 32, 8, 64, 4, .causal = true}},
    {"nemotron 4B", {1, 4096, 24, 8, 128, 3, .causal = true}},
    {"olmo2 1B", {1, 4096, 16, 16, 128, 1, .causal = true}},
    {"arcee 4.5B", {1, 4096, 20, 4, 128, 5, .causal = true}},
    {"opt 125M, batch 16", {16, 2048, 12, 12, 64, 1, .causal = true}},
    {"phi 2", {1, 2048, 32, 32, 80, 1, .causal = true}},
    {"electra small, batch 32", {32, 512, 4, 4, 64, 1, .masked = true}},
    {"deit small, batch 64", {64, 198, 6, 6, 64, 1, .causal = false}},
};
enum { MODELS = COUNT_OF(zoo) };

static const struct attention_shape gpt2 = {4, 1024, 12, 12, 64, 1, .packed = true, .causal = true};
static const struct attention_shape llama = {1, 512, 8, 2, 128, 4, .causal = true};
static const struct attention_shape vit = {2, 100, 12, 12, 64, 1, .dropped = true};
static const struct attention_shape bert = {2, 100, 12, 12, 64, 1, .masked = true};
static const struct attention_shape padded = {
    2, 333, 8, 2, 64, 4, .causal = true, .masked = true, .dropped = true};

/* Makes a plan; the caller frees the status. */
static status_t make(cudnnBackendDescriptor_t properties, const struct attention_shape *shape,
                     bool backward, bool statistics, int64_t most, struct dnn_plan *plan)
{
    struct dnn_graph graph = {0};
    struct attention_part whole = {shape->batch, shape->kv_heads};
    *plan = (struct dnn_plan){0};
    if (backward) attention_graph_backward(&graph, shape, whole);
    else attention_graph_forward(&graph, shape, whole, statistics);
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

TESTS_BELOW(.timeout = 300, .set_up_once = load_driver, .skip = reason);

LOOP_TEST(taken, 0, 5 * DEVICES)
{
    static const struct attention_shape *const shapes[] = {&gpt2, &llama, &vit, &bert, &padded};
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

/* What cuDNN says of a plan, in its own words. Caller frees. */
static char *json_of(const struct dnn_plan *plan)
{
    static const cudnnBackendAttributeName_t name = CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION;
    int64_t length = 0;
    cudnnStatus_t got =
        cudnnBackendGetAttribute(plan->descriptor, name, CUDNN_TYPE_CHAR, 0, &length, NULL);
    ck_assert_msg(got == CUDNN_STATUS_SUCCESS, "%s", cudnnGetErrorString(got));
    char *text = mem_alloc((size_t)length + 1);
    got = cudnnBackendGetAttribute(plan->descriptor, name, CUDNN_TYPE_CHAR, length, &length, text);
    ck_assert_msg(got == CUDNN_STATUS_SUCCESS, "%s", cudnnGetErrorString(got));
    return text;
}

/* The first word of it that is a kernel's name. */
static void add_kernel(struct buf *text, const struct dnn_plan *plan)
{
    static const char word[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    char *json = json_of(plan), *from = strstr(json, "_kernel");
    while (from != NULL && from > json && strchr(word, from[-1]) != NULL) from--;
    if (from == NULL) buf_add_text(text, "no kernel");
    else buf_add(text, from, strspn(from, word));
    free(json);
}

static void add_plan(struct buf *text, cudnnBackendDescriptor_t properties, int model,
                     bool backward)
{
    struct attention_shape shape = zoo[model].shape;
    struct dnn_graph graph = {0};
    struct dnn_plan plan = {0};
    shape.backward = backward;
    struct attention_part part = attention_part_of(&shape, ATTENTION_SCORES_BYTES);
    if (backward) attention_graph_backward(&graph, &shape, part);
    else attention_graph_forward(&graph, &shape, part, true);
    status_t status =
        dnn_graph_finish(&graph, properties, attention_most_workspace(&shape, part), &plan);
    ck_assert_msg(status == NULL, "%s: %s", zoo[model].name, status_message(status));
    buf_printf(text,
               "%s, %s: %lld of %lld samples, %lld of %lld heads of k, engine %lld, %lld bytes, ",
               zoo[model].name, backward ? "gradient" : "forward", (long long)part.samples,
               (long long)shape.batch, (long long)part.kv_heads, (long long)shape.kv_heads,
               (long long)plan.engine, (long long)plan.workspace_bytes);
    add_kernel(text, &plan);
    buf_add_text(text, "\n");
    dnn_graph_free(&graph);
}

/* Compares with a golden file whose first line, the version and the devices, decides whether it
 * can be compared. FSDPD_UPDATE_GOLDEN=1 rewrites the file: read the difference. */
static void assert_golden(const char *name, struct buf *text)
{
    struct buf expected = {0};
    char *path = mem_printf("%s/tests/golden/%s", getenv("srcdir"), name);
    const char *update = getenv("FSDPD_UPDATE_GOLDEN");
    size_t first = strcspn(buf_text(text), "\n") + 1;
    status_t status = NULL;
    if (update != NULL && strcmp(update, "1") == 0)
        status = file_write_atomic(path, buf_text(text), text->length, 0644);
    if (status == NULL) status = file_read(path, 1 << 20, &expected);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    if (expected.length < first || memcmp(text->data, expected.data, first) != 0)
        printf("SKIP: tests/golden/%s is of another version than %zu\n", name, cudnnGetVersion());
    else
        ck_assert_msg(text->length == expected.length &&
                          memcmp(text->data, expected.data, text->length) == 0,
                      "%s differs; now:\n%s", path, buf_text(text));
    free(path);
    buf_deinit(text);
    buf_deinit(&expected);
}

/* Every promised shape is cuDNN's on an H100, within the limits of production; and which kernel it
 * is. */
TEST(promised_shapes)
{
    struct buf text = {0};
    cudnnBackendDescriptor_t properties = describe(0);
    buf_printf(&text, "cuDNN %zu on %s\n", cudnnGetVersion(), devices[0].name);
    for (int i = 0; i < MODELS; i++)
        for (int pass = 0; pass < 2; pass++) add_plan(&text, properties, i, pass == 1);
    cudnnBackendDestroyDescriptor(properties);
    assert_golden("cudnn-plans.txt", &text);
}

/* ---- convolutions ---- */

/* Of the examples and the families, in squares; and one whose sizes are multiples of nothing. */
static const struct conv_case {
    const char *name;
    int64_t batch, in, size, out, kernel, stride, padding, groups;
    bool last; /* in channels last */
} convs[] = {
    {"mnist, first", 1000, 1, 28, 32, 3, 1, 0, 1, false},
    {"mnist, second", 1000, 32, 26, 64, 3, 1, 0, 1, false},
    {"cifar, first", 256, 3, 32, 16, 3, 1, 0, 1, false},
    {"cifar, second", 256, 16, 30, 32, 3, 1, 0, 1, false},
    {"resnet, stem", 256, 3, 224, 64, 7, 2, 3, 1, false},
    {"resnet, 3x3", 256, 64, 56, 64, 3, 1, 1, 1, false},
    {"resnet, 1x1", 256, 64, 56, 256, 1, 1, 0, 1, false},
    {"resnet, shortcut", 256, 256, 56, 512, 1, 2, 0, 1, false},
    {"resnet, last 3x3", 256, 512, 7, 512, 3, 1, 1, 1, false},
    {"vit, patches", 64, 3, 224, 768, 16, 16, 0, 1, false},
    {"convnext, depthwise", 64, 96, 56, 96, 7, 1, 3, 96, false},
    {"convnext, last depthwise", 64, 768, 7, 768, 7, 1, 3, 768, false},
    {"convnext, downsampling", 64, 96, 56, 192, 2, 2, 0, 1, false},
    {"odd", 3, 5, 13, 7, 3, 2, 1, 1, false},
    {"resnet, 3x3, channels last", 64, 64, 56, 64, 3, 1, 1, 1, true},
};
enum { CONVS = COUNT_OF(convs), CONV_FORMS = 5, CONV_TYPES = 3 };

static struct tensor_type image(enum dtype dtype, int64_t n, int64_t c, int64_t size, bool last)
{
    return (struct tensor_type){.dtype = dtype,
                                .dim_count = 4,
                                .dims = {n, c, size, size},
                                .layout = last ? LAYOUT_CHANNELS_LAST : LAYOUT_PLAIN};
}

/* In bf16; in f32 with tensor cores, which round to tf32; and in f32 without. */
static const char *const conv_types[CONV_TYPES] = {"bf16", "tf32", "f32"};

/* Forms: with a bias, without, the gradient of x, of the weight, and that added to one before. */
static const char *const conv_forms[CONV_FORMS] = {"with bias", "without bias", "gradient of x",
                                                   "gradient of weight", "added"};

static struct op_desc conv_of(const struct conv_case *c, enum dtype dtype, int form)
{
    int64_t size = (c->size + 2 * c->padding - c->kernel) / c->stride + 1;
    struct tensor_type x = image(dtype, c->batch, c->in, c->size, c->last);
    struct tensor_type y = image(dtype, c->batch, c->out, size, c->last);
    struct tensor_type w =
        image(form < 3 ? dtype : DTYPE_F32, c->out, c->in / c->groups, c->kernel, false);
    enum op_kind kind = form < 2    ? OP_CONV2D
                        : form == 2 ? OP_CONV2D_BACKWARD_DATA
                                    : OP_CONV2D_BACKWARD_WEIGHTS;
    struct op_desc desc = {.kind = kind, .inputs = {form == 2 ? y : x, form < 3 ? w : y}};
    desc.outputs[0] = form < 2 ? y : form == 2 ? x : w;
    desc.input_present[2] = form == 0;
    desc.accumulate[0] = form == 4;
    for (int i = 0; i < 2; i++) {
        desc.attrs.conv.padding[i] = c->padding;
        desc.attrs.conv.stride[i] = c->stride;
        desc.attrs.conv.dilation[i] = 1;
    }
    desc.attrs.conv.groups = c->groups;
    return desc;
}

static void add_conv(struct buf *text, int device, cudnnBackendDescriptor_t properties,
                     const struct conv_case *c, int type, int form)
{
    struct dnn_graph graph = {.exact = type == 2};
    struct dnn_plan plan = {0};
    struct op_desc desc = conv_of(c, type == 0 ? DTYPE_BF16 : DTYPE_F32, form);
    int64_t samples = conv_samples_of(&desc, CONV_COPIES_BYTES);
    bool parts = samples < c->batch && desc.kind == OP_CONV2D_BACKWARD_WEIGHTS;
    conv_graph(&graph, &desc, samples, desc.accumulate[0] || parts);
    status_t status = dnn_graph_finish(&graph, properties, CONV_MOST_WORKSPACE, &plan);
    ck_assert_msg(status == NULL, "%s: %s, %s, %s: %s", devices[device].name, c->name,
                  conv_types[type], conv_forms[form], status_message(status));
    buf_printf(text, "sm_%d, %s, %s, %s: %lld of %lld samples, engine %lld, %lld bytes\n",
               devices[device].version / 10, c->name, conv_types[type], conv_forms[form],
               (long long)samples, (long long)c->batch, (long long)plan.engine,
               (long long)plan.workspace_bytes);
    dnn_graph_free(&graph);
}

/* Every convolution of the examples and the families is cuDNN's, with a bias and in all its
 * gradients, on both devices, within the limits of production. */
TEST(promised_convolutions)
{
    struct buf text = {0};
    buf_printf(&text, "cuDNN %zu on %s and %s\n", cudnnGetVersion(), devices[0].name,
               devices[1].name);
    for (int device = 0; device < DEVICES; device++) {
        cudnnBackendDescriptor_t properties = describe(device);
        for (int i = 0; i < CONVS; i++)
            for (int type = 0; type < CONV_TYPES; type++)
                for (int form = type > 0; form < CONV_FORMS; form++) /* the bias is f32's own */
                    add_conv(&text, device, properties, &convs[i], type, form);
        cudnnBackendDestroyDescriptor(properties);
    }
    assert_golden("cudnn-convolutions.txt", &text);
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
