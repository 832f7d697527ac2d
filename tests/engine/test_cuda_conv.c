/*
 * Convolutions by cuDNN, over a stub of its backend (tests/emulation/cudnn_stub.cc) that
 * evaluates the graphs it receives: they match the reference, bf16 in one graph with its bias, f32
 * by an engine without tensor cores unless it may be rounded, whole and in parts of the batch. Our
 * own kernel computes whatever cuDNN refuses, and the device notes it.
 */
#define TEST_DEVICE
#include "../unit/attention_fixture.h"
#include "tests/testing.h"

#include "runtime/device_table.h"

#ifdef FSDPD_HAVE_CUDNN

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include "../emulation/cuda_stub.h"

static void set_up(void)
{
    struct device *device = NULL; /* the first device of a process starts the stub */
    ck_assert_status_ok(device_open("cuda:0", 1, &device));
    device_close(device);
    cuda_stub_reset(1);
    cuda_stub_record(true);
}

static void tear_down(void)
{
    unsetenv("FSDPD_CUDA_CONV");
    unsetenv("FSDPD_CUDA_CONV_COPIES");
    unsetenv("FSDPD_CUDA_TF32");
}

struct conv_case {
    int64_t batch, in, height, width, out, kernel, stride, padding, dilation, groups;
};

static const struct conv_case cases[] = {
    {4, 1, 9, 7, 8, 3, 1, 0, 1, 1},  /* MNIST's first */
    {6, 8, 8, 8, 16, 3, 2, 1, 1, 1}, /* ResNet's */
    {4, 8, 7, 8, 8, 3, 1, 1, 1, 8},  /* depthwise */
    {4, 6, 9, 8, 4, 2, 2, 1, 2, 2},  /* two groups, dilated */
    {2, 3, 8, 8, 24, 4, 4, 0, 1, 1}, /* patches */
    {3, 5, 5, 7, 3, 3, 1, 1, 1, 1},  /* a sample has no multiple of 16 bytes: no parts in bf16 */
};
enum { CASES = COUNT_OF(cases), TYPES = 3 };

/* By turns bf16, f32, and f32 that may be rounded to tf32. */
static enum dtype choose_type(int i)
{
    if (i % TYPES == 2) setenv("FSDPD_CUDA_TF32", "1", 1);
    return i % TYPES == 0 ? DTYPE_BF16 : DTYPE_F32;
}

static bool is_exact(int i)
{
    return i % TYPES == 1;
}

static struct op_desc conv_of(const struct conv_case *c, enum dtype dtype, enum op_kind kind)
{
    struct op_desc desc = desc_of(kind);
    int64_t out[2], in[2] = {c->height, c->width};
    for (int i = 0; i < 2; i++) {
        desc.attrs.conv.stride[i] = c->stride;
        desc.attrs.conv.padding[i] = c->padding;
        desc.attrs.conv.dilation[i] = c->dilation;
        out[i] = op_window_output(in[i], c->kernel, c->stride, c->padding, c->dilation);
    }
    desc.attrs.conv.groups = c->groups;
    bool weights = kind == OP_CONV2D_BACKWARD_WEIGHTS;
    enum dtype of_weight = weights ? DTYPE_F32 : dtype;
    struct tensor_type x = type_of(dtype, 4, c->batch, c->in, in[0], in[1]);
    struct tensor_type y = type_of(dtype, 4, c->batch, c->out, out[0], out[1]);
    struct tensor_type w = type_of(of_weight, 4, c->out, c->in / c->groups, c->kernel, c->kernel);
    struct tensor_type bias = type_of(of_weight, 1, c->out, 0, 0, 0);
    bool data = kind == OP_CONV2D_BACKWARD_DATA;
    desc.inputs[0] = data ? y : x, desc.inputs[1] = weights ? y : w;
    desc.outputs[0] = data ? x : weights ? w : y;
    if (kind == OP_CONV2D) desc.inputs[2] = bias;
    if (weights) desc.outputs[1] = bias;
    return desc;
}

static void fill(struct random *random, struct world *world)
{
    ck_assert_status_ok(op_desc_check(&world->desc));
    for (int i = 0; i < world->desc.input_count; i++) {
        const struct tensor_type *type = &world->desc.inputs[i];
        if (!world->desc.input_present[i]) continue;
        world->inputs[i] = area_new(tensor_bytes(type), 0);
        uint16_t *halves = (uint16_t *)(void *)world->inputs[i].memory;
        float *values = (float *)(void *)world->inputs[i].memory;
        for (int64_t j = 0; j < tensor_element_count(type); j++)
            if (type->dtype == DTYPE_BF16) halves[j] = rounded_to_bf16(random_float(random));
            else values[j] = random_float(random);
    }
    for (int i = 0; i < world->desc.output_count; i++) {
        const struct tensor_type *type = &world->desc.outputs[i];
        if (!world->desc.output_present[i]) continue;
        world->outputs[i] = area_new(tensor_bytes(type), 0);
        if (type->dtype == DTYPE_F32)
            fill_random(random, output_of(world, i), tensor_element_count(type));
    }
}

/* The device's results are the reference's; bf16 is rounded once, f32 is a sum of exact products.
 */
static void compare(struct random *random, const struct op_desc *desc)
{
    struct world world = {.desc = *desc};
    struct area found[OP_MAX_OUTPUTS] = {{0}};
    fill(random, &world);
    struct kernel_call call = call_of(&world);
    for (int i = 0; i < desc->output_count; i++) {
        if (!desc->output_present[i]) continue;
        found[i] = area_new(world.outputs[i].bytes, 0);
        memcpy(found[i].memory, world.outputs[i].memory, found[i].bytes);
        call.outputs[i] = found[i].memory;
    }
    run_on_device(desc, call);
    world_run(&world, KERNELS_REFERENCE);
    for (int i = 0; i < desc->output_count; i++) {
        const struct tensor_type *type = &desc->outputs[i];
        if (!desc->output_present[i]) continue;
        double bound = type->dtype == DTYPE_BF16 ? 4e-3 : 1e-5;
        for (int64_t j = 0; j < tensor_element_count(type); j++) {
            double e = value_of(type, &world.outputs[i], j), f = value_of(type, &found[i], j);
            ck_assert_msg(fabs(e - f) <= bound * (1 + fabs(e)), "%s %d: element %lld is %g, not %g",
                          op_info_get(desc->kind)->name, i, (long long)j, f, e);
        }
        area_free(&found[i]);
    }
    world_free(&world);
}

/* The recorded graphs, joined; caller frees. */
static char *graphs(void)
{
    char *text = cuda_stub_text(), *found = mem_strdup("");
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        if (strncmp(line, "graph:", 6) != 0) continue;
        char *longer =
            mem_printf("%s%.*s;", found, (int)strlen(line) - 8, line + 6); /* no stream */
        free(found);
        found = longer;
    }
    free(text);
    return found;
}

static void assert_graphs(const char *expected)
{
    char *found = graphs();
    ck_assert_msg(strcmp(found, expected) == 0, "\"%s\", not \"%s\"", found, expected);
    free(found);
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

/* All executions so far were by engines with tensor cores, or all by those without. */
static void assert_executed(int times, bool exact)
{
    ck_assert_int_eq(cuda_stub_count("cudnnBackendExecute"), times);
    ck_assert_int_eq(cuda_stub_count("cudnn without tensor cores"), exact ? times : 0);
}

LOOP_TEST(forward, 0, TYPES *CASES)
{
    struct random random = {(uint64_t)_i};
    bool half = choose_type(_i) == DTYPE_BF16;
    struct op_desc desc = conv_of(&cases[_i / TYPES], choose_type(_i), OP_CONV2D);
    compare(&random, &desc);
    assert_graphs(half ? " conv +;" : " conv;");
    desc.attrs.conv.activation = ACTIVATION_RELU;
    compare(&random, &desc);
    desc.input_present[2] = false;
    compare(&random, &desc);
    assert_executed(3, is_exact(_i));
    ck_assert_ptr_null(device_note(tested_device(), 0));
}

LOOP_TEST(gradients, 0, TYPES *CASES)
{
    struct random random = {(uint64_t)_i};
    enum dtype dtype = choose_type(_i);
    struct op_desc data = conv_of(&cases[_i / TYPES], dtype, OP_CONV2D_BACKWARD_DATA);
    struct op_desc weights = conv_of(&cases[_i / TYPES], dtype, OP_CONV2D_BACKWARD_WEIGHTS);
    compare(&random, &data);
    compare(&random, &weights);
    assert_graphs(" conv_data; conv_weights;");
    weights.accumulate[0] = weights.accumulate[1] = true;
    compare(&random, &weights);
    weights.output_present[1] = false;
    compare(&random, &weights);
    assert_executed(4, is_exact(_i));
    ck_assert_ptr_null(device_note(tested_device(), 0));
}

/* In the smallest parts, or whole where no part may begin in the middle, as copies may. */
LOOP_TEST(parts, 0, TYPES *CASES)
{
    struct random random = {(uint64_t)_i};
    const struct conv_case *c = &cases[_i / TYPES];
    enum dtype dtype = choose_type(_i);
    static const int forwards[CASES] = {1, 6, 4, 4, 2, 1};
    setenv("FSDPD_CUDA_CONV_COPIES", "1", 1);
    struct op_desc desc = conv_of(c, dtype, OP_CONV2D_BACKWARD_WEIGHTS);
    compare(&random, &desc);
    ck_assert_int_eq(cuda_stub_count("cudnnBackendExecute"),
                     dtype == DTYPE_BF16 ? c->batch : forwards[_i / TYPES]);
    desc.accumulate[0] = true;
    compare(&random, &desc);
    desc = conv_of(c, dtype, OP_CONV2D_BACKWARD_DATA);
    compare(&random, &desc);
    desc = conv_of(c, dtype, OP_CONV2D);
    desc.attrs.conv.activation = ACTIVATION_RELU;
    int before = cuda_stub_count("cudnnBackendExecute");
    compare(&random, &desc);
    ck_assert_int_eq(cuda_stub_count("cudnnBackendExecute") - before, forwards[_i / TYPES]);
}

/* NaN reaches the loss through a bias in the graph, ReLU and both gradients. */
TEST(nan_passes)
{
    for (int kind = OP_CONV2D; kind <= OP_CONV2D_BACKWARD_WEIGHTS; kind++) {
        struct random random = {1};
        struct world world = {.desc = conv_of(&cases[1], DTYPE_BF16, (enum op_kind)kind)};
        if (kind == OP_CONV2D) world.desc.attrs.conv.activation = ACTIVATION_RELU;
        fill(&random, &world);
        const struct tensor_type *type = &world.desc.outputs[0];
        for (int i = 0; i < world.desc.input_count; i++)
            if (world.desc.input_present[i]) /* every element */
                memset(world.inputs[i].memory, 0xff, world.inputs[i].bytes);
        run_on_device(&world.desc, call_of(&world));
        ck_assert(isnan(value_of(type, &world.outputs[0], tensor_element_count(type) / 2)));
        world_free(&world);
    }
}

/* Our own kernel computes the op, whichever descriptor cuDNN refuses to finalize. */
LOOP_TEST(refusals, OP_CONV2D, OP_CONV2D_BACKWARD_WEIGHTS + 1)
{
    struct random random = {1};
    struct op_desc desc = conv_of(&cases[1], DTYPE_BF16, (enum op_kind)_i);
    cuda_stub_fail("cudnnBackendFinalize", 4, CUDNN_STATUS_NOT_SUPPORTED_SHAPE);
    compare(&random, &desc);
    ck_assert_int_eq(cuda_stub_count("cudnnBackendExecute"), 0);
    char *expected = mem_printf("%s is computed by fsdpd's own kernel: as the test said: "
                                "cudnnBackendFinalize: CUDNN_STATUS_NOT_SUPPORTED_SHAPE",
                                op_info_get(desc.kind)->name);
    ck_assert_str_eq(device_note(tested_device(), 0), expected);
    free(expected);
}

/* Before a run each shape is compared with our own kernel, once; another op of it has the same plan. */
LOOP_TEST(first_use, 0, 4 * CASES)
{
    bool wrong = _i % 2 == 1, f32 = _i / 2 % 2 == 1;
    for (int kind = OP_CONV2D; kind <= OP_CONV2D_BACKWARD_WEIGHTS; kind++) {
        struct device *device = NULL;
        void *prepared = NULL, *again = NULL;
        uint64_t bytes = 0;
        struct op_desc desc =
            conv_of(&cases[_i / 4], f32 ? DTYPE_F32 : DTYPE_BF16, (enum op_kind)kind);
        cuda_stub_reset(1);
        ck_assert_status_ok(device_open("cuda:0", 1, &device));
        device_allow_timing(device);
        if (wrong) cuda_stub_wrong();
        ck_assert_status_ok(device->table->prepare(device, &desc, &prepared, &bytes));
        cuda_stub_record(true);
        ck_assert_status_ok(device->table->prepare(device, &desc, &again, &bytes));
        ck_assert_int_eq(cuda_stub_count("cudnnBackendFinalize"), 0);
        ck_assert_int_eq(cuda_stub_count("cudnnBackendExecute"), 0);
        const char *note = device_note(device, 0);
        ck_assert_msg(note != NULL && strstr(note, wrong ? "own kernel: cuDNN's result"
                                                         : "agree with fsdpd's own kernels"),
                      "%s", note);
        device->table->unprepare(prepared);
        device->table->unprepare(again);
        device_close(device);
    }
}

/* Without room for it, a run begins without. */
TEST(no_memory_to_compare)
{
    struct device *device = NULL;
    void *prepared = NULL;
    uint64_t bytes = 0;
    struct op_desc desc = conv_of(&cases[0], DTYPE_BF16, OP_CONV2D);
    ck_assert_status_ok(device_open("cuda:0", 1, &device));
    device_allow_timing(device);
    cuda_stub_fail("cudaMalloc", 1, cudaErrorMemoryAllocation);
    ck_assert_status_ok(device->table->prepare(device, &desc, &prepared, &bytes));
    ck_assert_ptr_nonnull(strstr(device_note(device, 0), "conv2d of cuDNN was not compared"));
    device->table->unprepare(prepared);
    device_close(device);
}

LOOP_TEST(switched_off, OP_CONV2D, OP_CONV2D_BACKWARD_WEIGHTS + 1)
{
    struct random random = {1};
    struct op_desc desc = conv_of(&cases[1], DTYPE_BF16, (enum op_kind)_i);
    setenv("FSDPD_CUDA_CONV", "own", 1);
    compare(&random, &desc);
    assert_graphs("");
    ck_assert_int_eq(cuda_stub_count("cudnnBackendExecute"), 0);
    ck_assert_ptr_nonnull(strstr(device_note(tested_device(), 0), "FSDPD_CUDA_CONV is \"own\""));
}

#else

static const char *reason(void)
{
    return "there is no cuDNN to compile against";
}

TESTS_BELOW(.skip = reason);

#endif
