/*
 * Attention by cuDNN, over a stub of its backend (tests/emulation/cudnn_stub.cc) that evaluates the
 * graphs it receives: they match the reference, have a form that cuDNN's engines support, and run
 * in the planned scratch memory. Our own kernel computes whatever cuDNN refuses, and the device
 * notes it. With TEST_GPU the tests use this host's device cuda:0 instead, and compare only
 * numbers.
 */
#ifndef TEST_DEVICE
#define TEST_DEVICE
#endif
#include <stdio.h>

#include "../unit/attention_fixture.h"
#include "tests/testing.h"

#include "runtime/device_table.h"

#if defined FSDPD_HAVE_CUDNN || defined TEST_GPU

#ifndef TEST_GPU
#include <cudnn.h>

#include "../emulation/cuda_stub.h"
#endif

#ifdef TEST_GPU
enum { ON_GPU = 1 };
#define BY_CUDNN "computed by cuDNN (engine "
#else
enum { ON_GPU = 0 };
#define BY_CUDNN "computed by cuDNN (engine 6)" /* not 7, whose bits differ in every run */
#endif

static void set_up(void)
{
#ifndef TEST_GPU
    struct device *device = NULL; /* the first device of a process starts the stub */
    ck_assert_status_ok(device_open("cuda:0", 1, &device));
    device_close(device);
    cuda_stub_reset(1);
#endif
}

static void tear_down(void)
{
    unsetenv("FSDPD_CUDA_ATTENTION");
    unsetenv("FSDPD_CUDA_ATTENTION_SCORES");
}

/* ---- ops in bf16 ---- */

static struct op_desc in_bf16(struct op_desc desc)
{
    for (int i = 0; i < desc.input_count; i++)
        if (desc.inputs[i].dtype == DTYPE_F32 &&
            !(desc.kind == OP_ATTENTION_BACKWARD && i == 5)) /* the log-sum-exp */
            desc.inputs[i].dtype = DTYPE_BF16;
    for (int i = 0; i < desc.output_count; i++)
        if (!(desc.kind == OP_ATTENTION && i == 1)) desc.outputs[i].dtype = DTYPE_BF16;
    return desc;
}

/* Allocates memory for present tensors; inputs are random, except those copied from `from`. */
static void fill(struct random *random, struct world *world, const struct world *from)
{
    static const int source[] = {-1, 0, 1, 2, 0, 1, 3}; /* of the gradient's inputs, in `from` */
    for (int i = 0; i < world->desc.input_count; i++) {
        const struct tensor_type *type = &world->desc.inputs[i];
        if (!world->desc.input_present[i]) continue;
        world->inputs[i] = area_new(tensor_bytes(type), 0);
        int64_t count = tensor_element_count(type);
        uint16_t *values = (uint16_t *)(void *)world->inputs[i].memory;
        const struct area *made = from == NULL || source[i] < 0 ? NULL
                                  : i < 4 || i == 6             ? &from->inputs[source[i]]
                                                                : &from->outputs[source[i]];
        if (made != NULL) memcpy(values, made->memory, made->bytes);
        for (int64_t j = 0; j < count && made == NULL && type->dtype == DTYPE_BF16; j++)
            values[j] = rounded_to_bf16(random_float(random));
        if (made == NULL && type->dtype == DTYPE_U8) fill_mask(random, world, i);
    }
    for (int i = 0; i < world->desc.output_count; i++)
        if (world->desc.output_present[i])
            world->outputs[i] = area_new(tensor_bytes(&world->desc.outputs[i]), 0);
}

static void assert_near(const struct world *world, int output, const struct area *expected)
{
    const struct tensor_type *type = &world->desc.outputs[output];
    /* probabilities are rounded to bf16 before they are multiplied */
    double bound = type->dtype == DTYPE_BF16 ? 1e-2 : ON_GPU ? 1e-3 : 1e-5;
    for (int64_t i = 0; i < tensor_element_count(type); i++) {
        double e = value_of(type, expected, i), f = value_of(type, &world->outputs[output], i);
        ck_assert_msg(e == f || fabs(e - f) <= bound * (1 + fabs(e)),
                      "%s %d: element %lld is %g, not %g", op_info_get(world->desc.kind)->name,
                      output, (long long)i, f, e);
    }
}

/* ---- with a device of its own ---- */

/* Runs the op and returns the device's note on it; caller frees. */
static char *run_op(const struct op_desc *desc, struct kernel_call call, uint64_t *workspace_bytes)
{
    struct device *device = NULL;
    struct lane_queue *lane = NULL;
    void *prepared = NULL, *memory[OP_MAX_INPUTS + OP_MAX_OUTPUTS] = {0};
    struct kernel_call there = call;
    ck_assert_status_ok(device_open("cuda:0", 1, &device));
    ck_assert_status_ok(lane_open(device, LANE_COMPUTE, &lane));
    ck_assert_status_ok(device->table->prepare(device, desc, &prepared, workspace_bytes));
    struct device_graph graph = {.device = device, .op_count = 1, .prepared = &prepared};
    ck_assert_status_ok(device_allocate(device, *workspace_bytes, &there.workspace));
    for (int i = 0; i < desc->input_count; i++) {
        if (!desc->input_present[i]) continue;
        uint64_t bytes = tensor_bytes(&desc->inputs[i]);
        ck_assert_status_ok(device_allocate(device, bytes, &memory[i]));
        ck_assert_status_ok(lane_copy(lane, memory[i], call.inputs[i], bytes));
        there.inputs[i] = memory[i];
    }
    for (int i = 0; i < desc->output_count; i++) {
        if (!desc->output_present[i]) continue;
        uint64_t bytes = tensor_bytes(&desc->outputs[i]);
        ck_assert_status_ok(device_allocate(device, bytes, &memory[OP_MAX_INPUTS + i]));
        ck_assert_status_ok(lane_copy(lane, memory[OP_MAX_INPUTS + i], call.outputs[i], bytes));
        there.outputs[i] = memory[OP_MAX_INPUTS + i];
    }
    status_t status = lane_launch(lane, &graph, 0, &there);
    for (int i = 0; i < desc->output_count && status == NULL; i++)
        if (desc->output_present[i])
            status =
                lane_copy(lane, call.outputs[i], there.outputs[i], tensor_bytes(&desc->outputs[i]));
    status = status_first(status, lane_wait(lane, 60000)); /* earlier work continues */
    const char *noted = status != NULL ? status_message(status) : device_note(device, 0);
    char *text = mem_strdup(noted != NULL ? noted : "nothing");
    status_free(status);
    ck_assert_ptr_null(device_note(device, 1));
    device->table->unprepare(prepared);
    for (int i = 0; i < OP_MAX_INPUTS + OP_MAX_OUTPUTS; i++) device_release(device, memory[i]);
    device_release(device, there.workspace);
    lane_close(lane);
    device_close(device);
    return text;
}

#ifndef TEST_GPU
/* The recorded lines that begin with this, joined; caller frees. */
static char *lines_of(const char *begin)
{
    char *text = cuda_stub_text(), *found = mem_strdup("");
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        if (strncmp(line, begin, strlen(begin)) != 0) continue;
        char *longer = mem_printf("%s%s\n", found, line);
        free(found);
        found = longer;
    }
    free(text);
    return found;
}

static void assert_calls(const char *name, int expected)
{
    char *lines = lines_of(name);
    int count = 0;
    for (const char *at = lines; *at != '\0'; at++) count += *at == '\n';
    ck_assert_int_eq(count, expected);
    free(lines);
}

#else
static void assert_calls(const char *name, int expected)
{
    (void)name, (void)expected;
}
static void cuda_stub_record(bool on)
{
    (void)on;
}
#endif

/* `parts`: in which the gradient is computed if parts are as small as they can be; 0: it is
 * computed whole. */
static const struct {
    struct attention_case c;
    int parts;
} cases[] = {
    {{2, 20, 3, 1, 16, .packed = true, .causal = true}, 0}, /* GPT-2's */
    {{3, 34, 2, 3, 8, .causal = true, .scale = 0.3}, 3},    /* Llama's */
    {{3, 7, 2, 1, 24, .packed = false}, 0},
    {{2, 1, 1, 2, 8, .packed = true}, 1}, /* a sample's log-sum-exp would begin at 8 bytes */
    {{2, 9, 2, 2, 16, .packed = true}, 0},
    {{2, 18, 3, 2, 8, .packed = true, .causal = true}, 6},            /* of one of k's heads each */
    {{2, 20, 3, 1, 16, .packed = true, .causal = true, .p = 0.1}, 0}, /* GPT-2's, with dropout */
    {{2, 18, 2, 2, 8, .causal = true, .p = 0.5}, 4},
    {{3, 7, 2, 1, 24, .packed = false, .p = 0.3}, 0},
    {{3, 40, 2, 1, 24, .masked = true}, 0}, /* BERT's */
    {{4, 33, 2, 1, 16, .masked = true}, 2}, /* of two samples: hidden keys lie 40 apart */
    {{3, 34, 2, 3, 8, .causal = true, .masked = true}, 3},
    {{2, 18, 2, 2, 8, .causal = true, .masked = true, .p = 0.5}, 4},
    {{3, 7, 2, 1, 24, .packed = true, .masked = true, .p = 0.3}, 0},
#ifdef TEST_GPU
    {{2, 512, 4, 1, 64, .packed = true, .causal = true}, 0}, /* many tiles */
    {{1, 333, 2, 4, 128, .causal = true}, 0},
    {{6, 512, 4, 1, 64, .masked = true}, 0},
    {{6, 333, 2, 4, 128, .causal = true, .masked = true, .p = 0.1}, 6},
    {{4, 197, 4, 1, 64, .packed = true, .masked = true}, 4},
#endif
};
enum { CASES = COUNT_OF(cases) };

static void fill_forward(struct world *forward, struct random *random,
                         const struct attention_case *c)
{
    *forward =
        (struct world){.desc = in_bf16(attention_desc(c)), .seed = 5, .step = 3, .first_sample = 1};
    fill(random, forward, NULL);
}

static void fill_backward(struct world *backward, struct random *random,
                          const struct world *forward)
{
    *backward = (struct world){.desc = in_bf16(attention_backward_desc(&forward->desc)),
                               .seed = forward->seed,
                               .step = forward->step,
                               .first_sample = forward->first_sample};
    fill(random, backward, forward);
}

/* Compares the device with the reference; the device's note must begin with `said`. */
static void compare(struct world *world, const char *noted)
{
    struct area found[OP_MAX_OUTPUTS];
    uint64_t workspace_bytes = 0;
    char *text = run_op(&world->desc, call_of(world), &workspace_bytes);
    ck_assert_msg(strncmp(text, noted, strlen(noted)) == 0, "\"%s\", not \"%s\"", text, noted);
    free(text);
    for (int i = 0; i < world->desc.output_count; i++) {
        found[i] = world->outputs[i];
        if (world->desc.output_present[i]) world->outputs[i] = area_new(found[i].bytes, 0);
    }
    run_once(KERNELS_REFERENCE, &world->desc, call_of(world));
    for (int i = 0; i < world->desc.output_count; i++) {
        if (!world->desc.output_present[i]) continue;
        struct area expected = world->outputs[i];
        world->outputs[i] = found[i];
        assert_near(world, i, &expected);
        area_free(&found[i]);
        world->outputs[i] = expected;
    }
}

/* Two runs give the same bits: cuDNN's notes on its engines do not say whether they do. */
static void assert_repeats(const struct world *world)
{
    struct world again = *world;
    uint64_t bytes = 0;
    for (int i = 0; i < world->desc.output_count; i++)
        if (world->desc.output_present[i]) again.outputs[i] = area_new(world->outputs[i].bytes, 0);
    free(run_op(&world->desc, call_of(world), &bytes));
    free(run_op(&world->desc, call_of(&again), &bytes));
    for (int i = 0; i < world->desc.output_count; i++) {
        if (!world->desc.output_present[i]) continue;
        ck_assert_msg(memcmp(world->outputs[i].memory, again.outputs[i].memory,
                             world->outputs[i].bytes) == 0,
                      "output %d has other bits in a second run", i);
        area_free(&again.outputs[i]);
    }
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

LOOP_TEST(numbers, 0, CASES)
{
    struct random random = {(uint64_t)_i};
    struct world forward, backward;
    char noted[128];
    const struct attention_case *c = &cases[_i].c;
    long long heads = (long long)(c->kv_heads * c->group), wide = (long long)c->head_dim;
    if (cases[_i].parts > 0) setenv("FSDPD_CUDA_ATTENTION_SCORES", "1", 1);
    fill_forward(&forward, &random, c);
    snprintf(noted, sizeof noted, "attention of %lld heads of %lld is " BY_CUDNN, heads, wide);
    compare(&forward, noted);
    fill_backward(&backward, &random, &forward);
    snprintf(noted, sizeof noted, "attention_backward of %lld heads of %lld is " BY_CUDNN, heads,
             wide);
    cuda_stub_record(true);
    compare(&backward, noted);
    assert_calls("cudnnBackendExecute", cases[_i].parts > 0 ? cases[_i].parts : 1);
    cuda_stub_record(false);
    assert_repeats(&backward);
    world_free(&backward);
    forward.desc.output_present[1] = false; /* an evaluation's */
    area_free(&forward.outputs[1]);
    compare(&forward, "attention of ");
    world_free(&forward);
}

/* The elements that are exactly 0, of a sample's places `from` to `end`. */
static int64_t zeros(const struct world *world, int output, int64_t sample, int64_t from,
                     int64_t end)
{
    const struct tensor_type *type = &world->desc.outputs[output];
    int64_t count = 0, width = type->dims[2], first = sample * type->dims[1];
    for (int64_t i = (first + from) * width; i < (first + end) * width; i++)
        count += value_of(type, &world->outputs[output], i) == 0;
    return count;
}

/* A sample that sees nothing, and one whose first rows see nothing in a causal model: they give 0,
 * whatever cuDNN computes of them, and get no gradient; with dropout, whole and in parts. */
LOOP_TEST(nothing_seen, 0, 4)
{
    enum { TIME = 20, HEADS = 4, WIDTH = HEADS * 8, HIDDEN = 5 };
    struct random random = {1};
    struct world forward, backward;
    struct attention_case c = {2, TIME, HEADS, 1, 8, .causal = true, .masked = true};
    if (_i % 2) c.p = 0.3;
    if (_i > 1) setenv("FSDPD_CUDA_ATTENTION_SCORES", "1", 1);
    fill_forward(&forward, &random, &c);
    memset(forward.inputs[3].memory, 1, 2 * TIME);
    memset(forward.inputs[3].memory, 0, TIME + HIDDEN);
    uint64_t bytes = 0;
    free(run_op(&forward.desc, call_of(&forward), &bytes));
    ck_assert_int_eq(zeros(&forward, 0, 0, 0, TIME), TIME * WIDTH);
    ck_assert_int_eq(zeros(&forward, 0, 1, 0, HIDDEN), HIDDEN * WIDTH);
    if (_i % 2 == 0) ck_assert_int_eq(zeros(&forward, 0, 1, HIDDEN, TIME), 0);
    for (int64_t i = 0; i < 2 * HEADS * TIME; i++) {
        bool seen = i >= HEADS * TIME && i % TIME >= HIDDEN;
        ck_assert(isinf(output_of(&forward, 1)[i]) == !seen && output_of(&forward, 1)[i] > -9);
    }
    fill_backward(&backward, &random, &forward);
    free(run_op(&backward.desc, call_of(&backward), &bytes));
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(zeros(&backward, i, 0, 0, TIME), TIME * WIDTH);
        ck_assert_int_eq(zeros(&backward, i, 1, 0, HIDDEN), HIDDEN * WIDTH);
        ck_assert_int_lt(zeros(&backward, i, 1, HIDDEN, TIME), (TIME - HIDDEN) * WIDTH / 2);
    }
    world_free(&backward);
    world_free(&forward);
}

#ifndef TEST_GPU

/* ---- graphs that cuDNN receives ---- */

static void assert_lines(const char *begin, const char *expected)
{
    char *found = lines_of(begin);
    ck_assert_msg(strncmp(found, expected, strlen(expected)) == 0, "\"%s\", not \"%s\"", found,
                  expected);
    free(found);
}

TEST(form)
{
    struct random random = {1};
    struct world forward, backward;
    fill_forward(&forward, &random, &cases[1].c); /* heads that share keys; causal */
    cuda_stub_record(true);
    compare(&forward, "attention of ");
    assert_lines("graph:", "graph: matmul * index index >= select max - exp sum log + / matmul");
    cuda_stub_reset(1);
    cuda_stub_record(true);
    fill_backward(&backward, &random, &forward);
    compare(&backward, "attention_backward of ");
    assert_lines("graph:", "graph: * sum * matmul * index index >= select - exp reshape matmul sum "
                           "matmul * - * * reshape matmul sum reshape matmul");
    world_free(&backward);
    world_free(&forward);
}

/* The part of dropout: the same engines, two products more forward and three in the gradient. */
TEST(form_with_dropout)
{
    struct random random = {1};
    struct world forward, backward;
    fill_forward(&forward, &random, &cases[8].c); /* not causal */
    cuda_stub_record(true);
    compare(&forward, "attention of ");
    assert_lines("graph:", "graph: matmul * max - exp sum log + / * * matmul");
    cuda_stub_reset(1);
    cuda_stub_record(true);
    fill_backward(&backward, &random, &forward);
    compare(&backward, "attention_backward of ");
    assert_lines("graph:", "graph: * sum * matmul * - exp * * reshape matmul "
                           "matmul * - * * * reshape matmul reshape matmul");
    world_free(&backward);
    world_free(&forward);
}

/* A mask is one addition more, before the later keys are taken out. */
TEST(form_with_mask)
{
    struct random random = {1};
    struct world forward, backward;
    fill_forward(&forward, &random, &cases[12].c); /* causal, with dropout */
    cuda_stub_record(true);
    compare(&forward, "attention of ");
    assert_lines("graph:",
                 "graph: matmul * + index index >= select max - exp sum log + / * * matmul");
    cuda_stub_reset(1);
    cuda_stub_record(true);
    fill_backward(&backward, &random, &forward);
    compare(&backward, "attention_backward of ");
    assert_lines("graph:", "graph: * sum * matmul * + index index >= select - exp * * reshape "
                           "matmul sum matmul * - * * * reshape matmul sum reshape matmul");
    world_free(&backward);
    world_free(&forward);
}

/* The scratch memory: the engine's, dropout's of a part, and a mask's of all samples, whose rows
 * are whole vectors; each begins at a multiple of 256. */
TEST(scratch_memory)
{
    struct random random = {1};
    struct world forward;
    struct attention_case c = {3, 33, 2, 1, 16, .masked = true, .p = 0.1};
    uint64_t bytes = 0;
    fill_forward(&forward, &random, &c);
    free(run_op(&forward.desc, call_of(&forward), &bytes));
    ck_assert_uint_eq(bytes, 512 + 2 * 3 * 2 * 33 * 33 + (256 - 12) + 2 * 3 * 40);
    world_free(&forward);
}

/* The gradient of many long sequences: in slices whose scores stay within the limit, in the same
 * memory as one sequence. */
TEST(slices)
{
    enum { TIME = 2048, HEADS = 16, BATCH = 12, MOST = 512 << 20 };
    struct attention_case c = {BATCH, TIME, HEADS, 1, 64, .causal = true, .packed = true};
    struct op_desc forward = in_bf16(attention_desc(&c));
    struct op_desc desc = in_bf16(attention_backward_desc(&forward));
    struct device *device = NULL;
    void *prepared = NULL;
    uint64_t bytes = 0;
    ck_assert_status_ok(device_open("cuda:0", 1, &device));
    ck_assert_status_ok(device->table->prepare(device, &desc, &prepared, &bytes));
    /* 4 of 12 samples have exactly the maximum of scores */
    ck_assert_uint_eq(bytes, (uint64_t)2 * 4 * HEADS * TIME * TIME + 320);
    ck_assert_uint_le(bytes - 320, MOST);
    device->table->unprepare(prepared);
    device_close(device);
}

/* ---- refusals and failures ---- */

/* Our own kernel computes the op, whichever descriptor cuDNN refuses to finalize. */
LOOP_TEST(refusals, 0, 2)
{
    int refused = 0;
    for (int number = 1;; number += 7) {
        struct random random = {(uint64_t)number};
        struct world forward, backward, *world = _i ? &backward : &forward;
        fill_forward(&forward, &random, &cases[0].c);
        if (_i) {
            run_once(KERNELS_REFERENCE, &forward.desc, call_of(&forward));
            fill_backward(&backward, &random, &forward);
        }
        cuda_stub_reset(1);
        cuda_stub_fail("cudnnBackendFinalize", number, CUDNN_STATUS_NOT_SUPPORTED_SHAPE);
        char *name = mem_printf("%s is computed by fsdpd's own kernel: as the test said: "
                                "cudnnBackendFinalize: CUDNN_STATUS_NOT_SUPPORTED_SHAPE",
                                op_info_get(world->desc.kind)->name);
        uint64_t bytes = 0;
        char *noted = run_op(&world->desc, call_of(world), &bytes);
        bool own = strstr(noted, "own kernel") != NULL;
        if (own) {
            ck_assert_str_eq(noted, name);
            compare(world, _i ? "attention_backward of " : "attention of "); /* the next device */
        }
        refused += own;
        free(noted);
        free(name);
        world_free(&forward);
        if (_i) world_free(&backward);
        if (!own) break;
    }
    ck_assert_int_ge(refused, 5);
}

/* Before a run each shape is compared with our own kernel, once. */
LOOP_TEST(first_use, 0, 2 * CASES)
{
    struct random random = {1};
    struct world forward, backward;
    struct device *device = NULL;
    void *prepared[4] = {NULL};
    uint64_t bytes = 0;
    bool wrong = _i >= CASES;
    const struct attention_case *c = &cases[_i % CASES].c;
    if (cases[_i % CASES].parts > 0) setenv("FSDPD_CUDA_ATTENTION_SCORES", "1", 1);
    fill_forward(&forward, &random, c);
    fill_backward(&backward, &random, &forward);
    const struct op_desc *descs[] = {&forward.desc, &backward.desc};
    cuda_stub_record(true);
    ck_assert_status_ok(device_open("cuda:0", 1, &device));
    ck_assert_status_ok(device->table->prepare(device, descs[0], &prepared[0], &bytes));
    assert_calls("cudnnBackendExecute", 0); /* for a plan */
    device_allow_timing(device);
    if (wrong) cuda_stub_wrong();
    for (int i = 0; i < 2; i++) {
        char *refusal = mem_printf("%s is computed by fsdpd's own kernel: cuDNN's result ",
                                   op_info_get(descs[i]->kind)->name);
        ck_assert_status_ok(device->table->prepare(device, descs[i], &prepared[i + 1], &bytes));
        int notes = 0, refused = 0;
        for (const char *note; (note = device_note(device, notes)) != NULL; notes++)
            refused += strncmp(note, refusal, strlen(refusal)) == 0;
        ck_assert_int_eq(refused, wrong);
        ck_assert_ptr_nonnull(strstr(device_note(device, 1), wrong ? " differs from that of "
                                                                   : " agree with fsdpd's own"));
        free(refusal);
    }
    cuda_stub_record(true);
    ck_assert_status_ok(device->table->prepare(device, descs[1], &prepared[3], &bytes));
    assert_calls("cudnnBackendExecute", 0);
    for (int i = 0; i < 4; i++) device->table->unprepare(prepared[i]);
    device_close(device);
    world_free(&backward);
    world_free(&forward);
}

/* What is no want of support must be seen: no kernel of ours hides it. */
LOOP_TEST(faults_of_cudnn, 0, 2)
{
    struct device *device = NULL;
    struct random random = {1};
    struct world forward;
    void *prepared = NULL;
    uint64_t bytes = 0;
    fill_forward(&forward, &random, &cases[0].c);
    for (int number = 1; number <= 40; number += 13) {
        cuda_stub_reset(1);
        ck_assert_status_ok(device_open("cuda:0", 1, &device));
        cuda_stub_fail(_i ? "cudnnCreate" : "cudnnBackendFinalize", _i ? 1 : number,
                       CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED);
        status_t status = device->table->prepare(device, &forward.desc, &prepared, &bytes);
        ck_assert_int_eq(status_code(status), STATUS_INTERNAL);
        ck_assert_ptr_nonnull(strstr(status_message(status), _i ? "cudnnCreate" : "as the test said"));
        ck_assert_ptr_null(prepared);
        status_free(status);
        device_close(device);
    }
    world_free(&forward);
}

/* Beside a running job cuDNN may find no memory for its handle: a plan can do without, and what
 * does run opens it; before a run it is an error that says so. */
LOOP_TEST(no_memory_for_cudnn, 0, 2)
{
    struct device *device = NULL;
    struct random random = {1};
    struct world forward;
    void *prepared = NULL;
    uint64_t bytes = 0;
    fill_forward(&forward, &random, &cases[0].c);
    cuda_stub_fail("cudnnCreate", 1, CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED);
    if (_i == 0) {
        compare(&forward, "attention of ");
        world_free(&forward);
        return;
    }
    ck_assert_status_ok(device_open("cuda:0", 1, &device));
    device_allow_timing(device);
    status_t status = device->table->prepare(device, &forward.desc, &prepared, &bytes);
    ck_assert_int_eq(status_code(status), STATUS_RESOURCE_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(status_message(status), "cudnnCreate"));
    status_free(status);
    device_close(device);
    world_free(&forward);
}

/* Ops that are never offered to cuDNN, and why. */
LOOP_TEST(not_asked, 0, 3)
{
    static const char *const reasons[] = {
        "the width of heads is not a multiple of 8",
        "it adds to existing values",
        "FSDPD_CUDA_ATTENTION is \"own\"",
    };
    struct random random = {1};
    struct world forward;
    struct attention_case c = {2, 9, 2, 1, 16, .causal = true};
    if (_i == 0) c.head_dim = 12;
    if (_i == 2) setenv("FSDPD_CUDA_ATTENTION", "own", 1);
    fill_forward(&forward, &random, &c);
    if (_i == 1) forward.desc.accumulate[1] = true; /* for f32 */
    uint64_t bytes = 0;
    char *noted = run_op(&forward.desc, call_of(&forward), &bytes);
    char *expected = mem_printf("attention is computed by fsdpd's own kernel: %s", reasons[_i]);
    ck_assert_str_eq(noted, expected);
    free(expected);
    free(noted);
    world_free(&forward);
}

TEST(launch_fails)
{
    struct random random = {1};
    struct world forward;
    uint64_t bytes = 0;
    fill_forward(&forward, &random, &cases[0].c);
    cuda_stub_fail("cudnnBackendExecute", 1, CUDNN_STATUS_EXECUTION_FAILED);
    char *noted = run_op(&forward.desc, call_of(&forward), &bytes);
    ck_assert_str_eq(noted, "cudnnBackendExecute: CUDNN_STATUS_EXECUTION_FAILED");
    free(noted);
    world_free(&forward);
}

#endif

#else

static const char *reason(void)
{
    return "there is no cuDNN to compile against";
}

TESTS_BELOW(.skip = reason);

#endif
