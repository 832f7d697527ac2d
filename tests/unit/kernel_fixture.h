/*
 * Shared by the kernel tests: random numbers, descriptions of ops, and memory with guarded edges.
 * Everything is static; a test uses what it needs.
 */
#ifndef FSDPD_TESTS_KERNEL_FIXTURE_H
#define FSDPD_TESTS_KERNEL_FIXTURE_H

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/kernels.h"
#include "ops/op.h"

#pragma GCC diagnostic ignored "-Wunused-function"

/*
 * With TEST_CUDA, "the CPU library" of these tests is the CUDA kernels under their emulation
 * (tests/emulation): the same guarantees, but only plain layouts, no products of matrices, and
 * fewer runs, as a coroutine per thread is slow. With TEST_DEVICE it is the device cuda:0 of this
 * host; with TEST_GPU in addition, that is a real one.
 */
#ifdef TEST_DEVICE
#include "runtime/device_table.h"
enum { ON_CUDA = 1 };
#elif defined TEST_CUDA
#include "kernels/cuda/cuda.h"
void emulation_set_seed(uint64_t seed);
enum { ON_CUDA = 1 };
#else
enum { ON_CUDA = 0 };
#endif

/* Under ThreadSanitizer (test_cuda_races.c) a few runs see what many would. */
#ifdef TEST_RACES
enum { RACES = 1 };
#else
enum { RACES = 0 };
#endif

/* Random numbers (splitmix64): the same on every machine and in every run, unless FSDPD_TEST_SEED
 * selects others. */
struct random {
    uint64_t state;
};

static uint64_t random_seed(void)
{
    static uint64_t seed;
    static bool known;
    const char *given = known ? NULL : getenv("FSDPD_TEST_SEED");
    if (given != NULL) seed = strtoull(given, NULL, 10) * 0xbf58476d1ce4e5b9;
    known = true;
    return seed;
}

static uint64_t random_bits(struct random *random)
{
    uint64_t z = (random->state += 0x9e3779b97f4a7c15) + random_seed();
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* low <= result <= high */
static int64_t random_between(struct random *random, int64_t low, int64_t high)
{
    return low + (int64_t)(random_bits(random) % (uint64_t)(high - low + 1));
}

static bool random_bool(struct random *random)
{
    return random_bits(random) >> 63;
}

/* In [-1, 1). */
static float random_float(struct random *random)
{
    return (float)(random_bits(random) >> 40) * 0x1p-23f - 1;
}

static int64_t random_of(struct random *random, const int64_t *choices, int count)
{
    return choices[random_between(random, 0, count - 1)];
}

/* Descriptions. */

static struct op_desc desc_of(enum op_kind kind)
{
    const struct op_info *info = op_info_get(kind);
    struct op_desc desc = {.kind = kind,
                           .input_count = info->input_count,
                           .output_count = info->output_count};
    for (int i = 0; i < info->input_count; i++) desc.input_present[i] = true;
    for (int i = 0; i < info->output_count; i++) desc.output_present[i] = true;
    /* Only with GELU, see with_gelu. */
    if (kind == OP_LINEAR) desc.output_present[1] = false;
    if (kind == OP_LINEAR_BACKWARD_DATA) desc.input_present[2] = false;
    /* Only with a bias by distance. */
    if (kind == OP_ATTENTION) desc.input_present[4] = false;
    if (kind == OP_ATTENTION_BACKWARD) desc.input_present[7] = desc.output_present[3] = false;
    /* Only in rows of several documents. */
    int last = desc.input_count - 1;
    if (last > 0 && strcmp(info->inputs[last].name, "starts") == 0)
        desc.input_present[last] = false;
    /* Only of a batch of all ranks. */
    if (kind == OP_BATCH_NORM || kind == OP_BATCH_NORM_BACKWARD) desc.input_present[last] = false;
    return desc;
}

/* A linear layer, or its backward data, with GELU. */
__attribute__((unused)) static struct op_desc with_gelu(struct op_desc desc)
{
    desc.attrs.linear.activation = ACTIVATION_GELU_TANH;
    if (desc.kind == OP_LINEAR) {
        desc.output_present[1] = true;
        desc.outputs[1] = desc.outputs[0];
    } else {
        desc.input_present[2] = true;
        desc.inputs[2] = desc.outputs[0];
    }
    return desc;
}

static struct tensor_type type_of(enum dtype dtype, int dim_count, int64_t a, int64_t b, int64_t c,
                                  int64_t d)
{
    return tensor_type_make(dtype, dim_count, (int64_t[]){a, b, c, d});
}

static struct tensor_type image_of(int64_t n, int64_t c, int64_t h, int64_t w, enum layout layout)
{
    struct tensor_type type = type_of(DTYPE_F32, 4, n, c, h, w);
    type.layout = ON_CUDA ? LAYOUT_PLAIN : layout;
    return type;
}

/* The place of an element, by its index in plain order. */
static int64_t place_of(const struct tensor_type *type, int64_t index)
{
    if (type->layout == LAYOUT_PLAIN) return index;
    int64_t c = type->dims[1], h = type->dims[2], w = type->dims[3];
    int64_t x = index % w, y = index / w % h, channel = index / (w * h) % c;
    return ((index / (w * h * c) * h + y) * w + x) * c + channel;
}

#define ck_assert_status_ok(expression)                                                            \
    do {                                                                                           \
        status_t status_ = (expression);                                                           \
        ck_assert_msg(status_ == NULL, "%s", status_message(status_));                             \
    } while (0)

/* Relative bound on errors: `wanted`; but a GPU, whose libraries add in their own order with their
 * own instructions, guarantees 1e-5, and 1e-3 for products that may be rounded to tf32. */
static double tolerance_of(enum op_kind kind, double wanted)
{
#ifdef TEST_GPU
    const char *tf32 = getenv("FSDPD_CUDA_TF32");
    bool rounds = tf32 != NULL && strcmp(tf32, "1") == 0;
    bool products = (kind >= OP_LINEAR && kind <= OP_LINEAR_BACKWARD_WEIGHTS) ||
                    (kind >= OP_CONV2D && kind <= OP_CONV2D_BACKWARD_WEIGHTS);
    return fmax(wanted, products && rounds ? 1e-3 : 1e-5);
#else
    (void)kind;
    return wanted;
#endif
}

/* Memory with marked edges, which reveal a stray write. */

enum { EDGE = 256, EDGE_MARK = 0xa5 };

struct area {
    unsigned char *base, *memory;
    size_t bytes;
};

/* `shift` bytes off a 64-byte boundary; filled with bytes 0xff, which are a NaN. */
static struct area area_new(size_t bytes, size_t shift)
{
    struct area area = {.bytes = bytes};
    size_t whole = (bytes + shift + 2 * EDGE + 63) / 64 * 64;
    area.base = aligned_alloc(64, whole);
    ck_assert_ptr_nonnull(area.base);
    memset(area.base, EDGE_MARK, whole);
    area.memory = area.base + EDGE + shift;
    memset(area.memory, 0xff, bytes);
    return area;
}

static bool area_edges_whole(const struct area *area)
{
    for (unsigned char *at = area->base; at < area->memory; at++)
        if (*at != EDGE_MARK) return false;
    for (int i = 0; i < EDGE; i++)
        if (area->memory[area->bytes + (size_t)i] != EDGE_MARK) return false;
    return true;
}

static void area_free(struct area *area)
{
    free(area->base);
    area->base = area->memory = NULL;
}

/* Rounds a number to nearest, ties to even. */
__attribute__((unused)) static uint16_t rounded_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* An element as f32, of an operand in f32 or bf16. */
__attribute__((unused)) static float value_of(const struct tensor_type *type,
                                              const struct area *area, int64_t i)
{
    if (type->dtype == DTYPE_F32) return ((const float *)(const void *)area->memory)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)(const void *)area->memory)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void fill_random(struct random *random, float *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++) values[i] = random_float(random);
}

/* Whether the library under test has the op. */
static bool is_tested(enum op_kind kind)
{
    if (ON_CUDA && kind == OP_MATMUL) return false;
#ifndef TEST_CUDA
    return true;
#else
    return (kind < OP_LINEAR || kind > OP_LINEAR_BACKWARD_WEIGHTS) &&
           kind != OP_LINEAR_CROSS_ENTROPY && kind != OP_LINEAR_CROSS_ENTROPY_BACKWARD;
#endif
}

#ifdef TEST_DEVICE
/* On a device itself: operands are copied there and back; unwritten elements stay NaN. Device and
 * lane stay open until the process ends. */
static struct device *tested_device(void)
{
    static struct device *device;
    if (device == NULL) ck_assert_status_ok(device_open("cuda:0", 1, &device));
    return device;
}

static struct lane_queue *tested_lane(void)
{
    static struct lane_queue *lane;
    if (lane == NULL) ck_assert_status_ok(lane_open(tested_device(), LANE_COMPUTE, &lane));
    return lane;
}

static void run_on_device(const struct op_desc *desc, struct kernel_call call)
{
    struct device *device = tested_device();
    struct lane_queue *lane = tested_lane();
    void *prepared = NULL, *inputs[OP_MAX_INPUTS] = {0}, *outputs[OP_MAX_OUTPUTS] = {0};
    uint64_t bytes = 0;
    ck_assert_status_ok(device->table->prepare(device, desc, &prepared, &bytes));
    struct device_graph graph = {.device = device, .op_count = 1, .prepared = &prepared};
    struct kernel_call there = call;
    ck_assert_status_ok(device_allocate(device, bytes, &there.workspace));
    for (int i = 0; i < desc->input_count; i++) {
        if (!desc->input_present[i]) continue;
        ck_assert_status_ok(device_allocate(device, tensor_bytes(&desc->inputs[i]), &inputs[i]));
        ck_assert_status_ok(
            lane_copy(lane, inputs[i], call.inputs[i], tensor_bytes(&desc->inputs[i])));
        there.inputs[i] = inputs[i];
    }
    for (int i = 0; i < desc->output_count; i++) {
        if (!desc->output_present[i]) continue;
        uint64_t size = tensor_bytes(&desc->outputs[i]);
        if (i == 0 && call.outputs[0] == call.inputs[0]) { /* in place */
            there.outputs[0] = inputs[0];
            continue;
        }
        ck_assert_status_ok(device_allocate(device, size, &outputs[i]));
        ck_assert_status_ok(lane_copy(lane, outputs[i], call.outputs[i], size));
        there.outputs[i] = outputs[i];
    }
    ck_assert_status_ok(lane_launch(lane, &graph, 0, &there));
    for (int i = 0; i < desc->output_count; i++)
        if (desc->output_present[i])
            ck_assert_status_ok(lane_copy(lane, call.outputs[i], there.outputs[i],
                                          tensor_bytes(&desc->outputs[i])));
    ck_assert_status_ok(lane_wait(lane, 60000));
    device->table->unprepare(prepared);
    for (int i = 0; i < OP_MAX_INPUTS; i++) device_release(device, inputs[i]);
    for (int i = 0; i < OP_MAX_OUTPUTS; i++) device_release(device, outputs[i]);
    device_release(device, there.workspace);
}
#endif

#ifdef TEST_CUDA
/* Runs threads and blocks in another order every time. */
static void run_on_cuda(const struct op_desc *desc, struct kernel_call call)
{
    static uint64_t runs;
    static const int processors[] = {1, 2, RACES ? 4 : 132};
    struct cuda_op op;
    ck_assert_status_ok(op_desc_check(desc));
    ck_assert_status_ok(cuda_op_prepare(desc, &op));
    struct area workspace = area_new(op.workspace_bytes, 0);
    struct cuda_launch launch = {.processors = processors[++runs % 3]};
    emulation_set_seed(runs);
    call.workspace = workspace.memory;
    ck_assert_int_eq(op.run(&op, &call, &launch), 0);
    ck_assert_msg(area_edges_whole(&workspace), "%s writes beyond its workspace",
                  op_info_get(desc->kind)->name);
    area_free(&workspace);
}
#endif

/* Prepares, runs once and frees; fills the workspace with NaN. */
static void run_once(enum kernel_library library, const struct op_desc *desc,
                     struct kernel_call call)
{
    struct kernel *kernel = NULL;
#ifdef TEST_CUDA
    if (library == KERNELS_CPU) {
        run_on_cuda(desc, call);
        return;
    }
#elif defined TEST_DEVICE
    if (library == KERNELS_CPU) {
        run_on_device(desc, call);
        return;
    }
#endif
    ck_assert_status_ok(kernel_new(library, desc, &kernel));
    struct area workspace = area_new(kernel_workspace_bytes(kernel), 0);
    call.workspace = workspace.memory;
    ck_assert_status_ok(kernel_run(kernel, &call));
    ck_assert_msg(area_edges_whole(&workspace), "%s writes beyond its workspace",
                  op_info_get(desc->kind)->name);
    area_free(&workspace);
    kernel_free(kernel);
}

/* Parameters of a comparison of two libraries on random operands. */
struct comparison {
    /* Fills an operand: one of desc->inputs, or an accumulated one of desc->outputs. */
    void (*fill)(struct random *random, const struct op_desc *desc, const struct tensor_type *type,
                 void *memory);
    /* Fails the test if an output is too far from the reference's. */
    void (*expect_close)(const struct op_desc *desc, int output, const void *found,
                         const void *expected);
};

/* Runs one description with the reference and twice with the CPU library, and in place if the op
 * allows it. `call` has everything except operands. */
static void compare_libraries(struct random *random, const struct op_desc *desc,
                              const struct comparison *how, struct kernel_call call)
{
    struct area inputs[OP_MAX_INPUTS] = {0}, found[OP_MAX_OUTPUTS] = {0};
    struct area expected[OP_MAX_OUTPUTS] = {0}, again[OP_MAX_OUTPUTS] = {0};
    const char *name = op_info_get(desc->kind)->name;
    for (int i = 0; i < desc->input_count; i++) {
        if (!desc->input_present[i]) continue;
        inputs[i] =
            area_new(tensor_bytes(&desc->inputs[i]), 4 * (size_t)random_between(random, 0, 1));
        how->fill(random, desc, &desc->inputs[i], inputs[i].memory);
        call.inputs[i] = inputs[i].memory;
    }
    bool exact = true; /* in the layouts that the CPU library runs directly */
    struct kernel_call reference = call, second = call;
    for (int i = 0; i < desc->output_count; i++) {
        if (!desc->output_present[i]) continue;
        uint64_t bytes = tensor_bytes(&desc->outputs[i]);
        found[i] = area_new(bytes, 4 * (size_t)random_between(random, 0, 1));
        expected[i] = area_new(bytes, 0);
        again[i] = area_new(bytes, 0);
        if (desc->accumulate[i]) {
            how->fill(random, desc, &desc->outputs[i], found[i].memory);
            memcpy(expected[i].memory, found[i].memory, bytes);
            memcpy(again[i].memory, found[i].memory, bytes);
        }
        call.outputs[i] = found[i].memory;
        reference.outputs[i] = expected[i].memory;
        second.outputs[i] = again[i].memory;
    }
    run_once(KERNELS_REFERENCE, desc, reference);
    run_once(KERNELS_CPU, desc, call);
    if (!RACES) run_once(KERNELS_CPU, desc, second);
    for (int i = 0; i < desc->output_count; i++) {
        if (!desc->output_present[i]) continue;
        how->expect_close(desc, i, found[i].memory, expected[i].memory);
        ck_assert_msg(RACES || memcmp(found[i].memory, again[i].memory, found[i].bytes) == 0,
                      "%s: output %d differs the second time", name, i);
        ck_assert_msg(area_edges_whole(&found[i]), "%s writes beyond output %d", name, i);
        exact = exact && desc->outputs[i].layout == desc->inputs[0].layout;
    }
    /* In place: the same bits. */
    if (op_info_get(desc->kind)->element_wise && !desc->accumulate[0] && exact && !RACES) {
        struct kernel_call in_place = call;
        in_place.outputs[0] = inputs[0].memory;
        run_once(KERNELS_CPU, desc, in_place);
        ck_assert_msg(memcmp(found[0].memory, inputs[0].memory, found[0].bytes) == 0,
                      "%s: differs in place", name);
    }
    for (int i = 0; i < OP_MAX_INPUTS; i++) area_free(&inputs[i]);
    for (int i = 0; i < OP_MAX_OUTPUTS; i++) {
        area_free(&found[i]);
        area_free(&expected[i]);
        area_free(&again[i]);
    }
}

#endif
