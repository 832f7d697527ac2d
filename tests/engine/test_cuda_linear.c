/*
 * Linear layers on the device, over a stub of cuBLASLt: which epilogue a product gets, which work
 * our own kernels do, and that the numbers match the reference either way. (test_cuda_ops, built
 * from the sources of the CPU's tests, covers random shapes.) And Muon's products.
 */
#ifndef TEST_DEVICE
#define TEST_DEVICE
#endif
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../emulation/cuda_stub.h"
#include "../unit/attention_fixture.h"
#include "base/buf.h"
#include "base/file.h"
#include "tests/testing.h"

#include "runtime/device_table.h"
#include "runtime/matrix_step.h"
#include "runtime/step_args.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

static void set_up(void)
{
    struct device *device = NULL; /* the first device of a process starts the stub */
    ck_assert_status_ok(device_open("cuda:0", 1, &device));
    device_close(device);
    cuda_stub_reset(1);
}

static void tear_down(void)
{
    unsetenv("FSDPD_CUDA_GELU");
    unsetenv("FSDPD_CUDA_TF32");
    unsetenv("FSDPD_CUDA_BIAS");
    unsetenv("FSDPD_CUDA_PRODUCTS");
    unsetenv("FSDPD_CUDA_CANDIDATES");
    unsetenv("FSDPD_CUDA_CHOICES");
    unsetenv("CACHE_DIRECTORY");
}

struct linear_case {
    enum dtype dtype;
    enum op_kind kind;
    bool tf32, own, bias, kept, gelu;
    int64_t sequences; /* of a graph that continues them; 0: of another */
    int64_t columns;      /* of GELU's input */
    const char *expected; /* products, and launches of our own kernels */
};

enum { ROWS = 6, OTHER = 16 };

static const struct linear_case cases[] = {
    {DTYPE_BF16, OP_LINEAR, .gelu = true, .bias = true, .kept = true, .columns = 24,
     .expected = "matmul compute f32 gelu_aux_bias\n"},
    {DTYPE_BF16, OP_LINEAR, .gelu = true, .kept = true, .columns = 24,
     .expected = "matmul compute f32 gelu_aux\n"},
    {DTYPE_BF16, OP_LINEAR, .gelu = true, .bias = true, .columns = 24,
     .expected = "matmul compute f32 gelu_bias\n"},
    {DTYPE_BF16, OP_LINEAR, .gelu = true, .columns = 24, .expected = "matmul compute f32 gelu\n"},
    {DTYPE_BF16, OP_LINEAR_BACKWARD_DATA, .gelu = true, .columns = 24,
     .expected = "matmul compute f32 dgelu\n"},
    {DTYPE_BF16, OP_LINEAR, .bias = true, .columns = 24, .expected = "matmul compute f32 bias\n"},
    {DTYPE_BF16, OP_LINEAR_BACKWARD_DATA, .columns = 24, .expected = "matmul compute f32\n"},
    /* plain f32: our own tanh, which is exact; rounded to tf32: the library's */
    {DTYPE_F32, OP_LINEAR, .gelu = true, .bias = true, .kept = true, .columns = 24,
     .expected = "matmul compute f32 bias\nlaunch compute\n"},
    {DTYPE_F32, OP_LINEAR_BACKWARD_DATA, .gelu = true, .columns = 24,
     .expected = "matmul compute f32\nlaunch compute\n"},
    {DTYPE_F32, OP_LINEAR, .tf32 = true, .gelu = true, .bias = true, .kept = true, .columns = 24,
     .expected = "matmul compute tf32 gelu_aux_bias\n"},
    {DTYPE_F32, OP_LINEAR_BACKWARD_DATA, .tf32 = true, .gelu = true, .columns = 24,
     .expected = "matmul compute tf32 dgelu\n"},
    /* rows of the other matrix whose width is not a multiple of 8, and without an epilogue */
    {DTYPE_BF16, OP_LINEAR, .gelu = true, .bias = true, .kept = true, .columns = 20,
     .expected = "matmul compute f32 bias\nlaunch compute\n"},
    {DTYPE_BF16, OP_LINEAR_BACKWARD_DATA, .gelu = true, .columns = 20,
     .expected = "matmul compute f32\nlaunch compute\n"},
    {DTYPE_BF16, OP_LINEAR, .own = true, .gelu = true, .bias = true, .kept = true, .columns = 24,
     .expected = "matmul compute f32 bias\nlaunch compute\n"},
    {DTYPE_BF16, OP_LINEAR, .own = true, .gelu = true, .columns = 24,
     .expected = "matmul compute f32\nlaunch compute\n"},
    {DTYPE_BF16, OP_LINEAR_BACKWARD_DATA, .own = true, .gelu = true, .columns = 24,
     .expected = "matmul compute f32\nlaunch compute\n"},
    /* our own kernel, which keeps rows apart; of several rows in bf16 a product for each sequence */
    {DTYPE_F32, OP_LINEAR, .sequences = 2, .columns = 24, .expected = "launch compute\n"},
    {DTYPE_F32, OP_LINEAR, .sequences = ROWS, .bias = true, .gelu = true, .columns = 24,
     .expected = "launch compute\nlaunch compute\n"},
    {DTYPE_BF16, OP_LINEAR, .sequences = ROWS, .bias = true, .columns = 24,
     .expected = "launch compute\n"},
    {DTYPE_BF16, OP_LINEAR, .sequences = 2, .bias = true, .gelu = true, .columns = 24,
     .expected = "matmul compute f32 gelu_bias\nmatmul compute f32 gelu_bias\n"},
};
enum { CASES = COUNT_OF(cases) };

static struct op_desc desc_of_case(const struct linear_case *c)
{
    struct op_desc desc = desc_of(c->kind);
    bool forward = c->kind == OP_LINEAR;
    struct tensor_type wide = type_of(c->dtype, 2, ROWS, c->columns, 0, 0);
    desc.inputs[0] = type_of(c->dtype, 2, ROWS, OTHER, 0, 0);
    desc.inputs[1] = forward ? type_of(c->dtype, 2, c->columns, OTHER, 0, 0)
                             : type_of(c->dtype, 2, OTHER, c->columns, 0, 0);
    desc.outputs[0] = wide;
    if (forward) {
        desc.inputs[2] = type_of(c->dtype, 1, c->columns, 0, 0, 0);
        desc.input_present[2] = c->bias;
    }
    if (c->gelu) desc = with_gelu(desc);
    if (forward) desc.output_present[1] = c->kept;
    if (c->sequences == 0) return desc;
    desc.attrs.linear.rows_apart = true;
    desc.inputs[0] = type_of(c->dtype, 3, c->sequences, ROWS / c->sequences, OTHER, 0);
    desc.outputs[0] = type_of(c->dtype, 3, c->sequences, ROWS / c->sequences, c->columns, 0);
    return desc;
}

static void fill(struct random *random, struct world *world)
{
    for (int i = 0; i < world->desc.input_count; i++) {
        const struct tensor_type *type = &world->desc.inputs[i];
        if (!world->desc.input_present[i]) continue;
        world->inputs[i] = area_new(tensor_bytes(type), 0);
        for (int64_t j = 0; j < tensor_element_count(type); j++) {
            float value = random_float(random);
            uint16_t rounded = rounded_to_bf16(value);
            void *memory = world->inputs[i].memory;
            if (type->dtype == DTYPE_F32) ((float *)memory)[j] = value;
            else ((uint16_t *)memory)[j] = rounded;
        }
    }
    for (int i = 0; i < world->desc.output_count; i++)
        if (world->desc.output_present[i])
            world->outputs[i] = area_new(tensor_bytes(&world->desc.outputs[i]), 0);
}

static char last_note[256]; /* by the device that ran last */
static bool occupied;       /* memory is taken before the op is prepared */
static bool only_planned;
static uint64_t last_workspace;

/* On the device, with the bias `shift` bytes after a multiple of 64. */
static status_t run(const struct op_desc *desc, struct kernel_call call, size_t shift)
{
    struct device *device = NULL;
    struct lane_queue *lane = NULL;
    void *prepared = NULL, *memory[OP_MAX_INPUTS + OP_MAX_OUTPUTS] = {0}, *taken = NULL;
    uint64_t workspace_bytes = 0;
    struct kernel_call there = call;
    ck_assert_status_ok(device_open("cuda:0", 1, &device));
    ck_assert_status_ok(lane_open(device, LANE_COMPUTE, &lane));
    if (occupied) ck_assert_status_ok(device_allocate(device, 64, &taken));
    if (!only_planned) device_allow_timing(device);
    ck_assert_status_ok(device->table->prepare(device, desc, &prepared, &workspace_bytes));
    last_workspace = workspace_bytes;
    struct device_graph graph = {.device = device, .op_count = 1, .prepared = &prepared};
    ck_assert_status_ok(device_allocate(device, workspace_bytes, &there.workspace));
    for (int i = 0; i < desc->input_count; i++) {
        if (!desc->input_present[i]) continue;
        uint64_t bytes = tensor_bytes(&desc->inputs[i]);
        size_t at = i == 2 && desc->kind == OP_LINEAR ? shift : 0;
        ck_assert_status_ok(device_allocate(device, bytes + at, &memory[i]));
        there.inputs[i] = (char *)memory[i] + at;
        ck_assert_status_ok(lane_copy(lane, (char *)memory[i] + at, call.inputs[i], bytes));
    }
    for (int i = 0; i < desc->output_count; i++) {
        if (!desc->output_present[i]) continue;
        uint64_t bytes = tensor_bytes(&desc->outputs[i]);
        ck_assert_status_ok(device_allocate(device, bytes, &memory[OP_MAX_INPUTS + i]));
        there.outputs[i] = memory[OP_MAX_INPUTS + i];
        ck_assert_status_ok(lane_copy(lane, there.outputs[i], call.outputs[i], bytes));
    }
    cuda_stub_record(true);
    status_t status = lane_launch(lane, &graph, 0, &there);
    for (int i = 0; i < desc->output_count && status == NULL; i++)
        if (desc->output_present[i])
            status =
                lane_copy(lane, call.outputs[i], there.outputs[i], tensor_bytes(&desc->outputs[i]));
    status = status_first(status, lane_wait(lane, 60000));
    const char *note = device_note(device, 0);
    snprintf(last_note, sizeof last_note, "%s", note != NULL ? note : "");
    device->table->unprepare(prepared);
    for (int i = 0; i < OP_MAX_INPUTS + OP_MAX_OUTPUTS; i++) device_release(device, memory[i]);
    device_release(device, there.workspace);
    device_release(device, taken);
    lane_close(lane);
    device_close(device);
    return status;
}

/* Recorded products and launches, a line each; caller frees. */
static char *computed(void)
{
    char *text = cuda_stub_text(), *found = mem_strdup("");
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        if (strncmp(line, "matmul ", 7) != 0 && strncmp(line, "launch ", 7) != 0) continue;
        char *longer = mem_printf("%s%s\n", found, line);
        free(found);
        found = longer;
    }
    free(text);
    return found;
}

/* Compares our result with the reference's; it depends on how a product is rounded before GELU. */
static void assert_near(struct world *world)
{
    struct world expected = {.desc = world->desc};
    for (int i = 0; i < OP_MAX_INPUTS; i++) expected.inputs[i] = world->inputs[i];
    for (int i = 0; i < world->desc.output_count; i++)
        if (world->desc.output_present[i])
            expected.outputs[i] = area_new(tensor_bytes(&world->desc.outputs[i]), 0);
    world_run(&expected, KERNELS_REFERENCE);
    for (int k = 0; k < world->desc.output_count; k++) {
        const struct tensor_type *type = &world->desc.outputs[k];
        if (!world->desc.output_present[k]) continue;
        double bound = type->dtype == DTYPE_BF16 ? 1e-2 : 1e-5;
        for (int64_t i = 0; i < tensor_element_count(type); i++) {
            double e = value_of(type, &expected.outputs[k], i),
                   f = value_of(type, &world->outputs[k], i);
            ck_assert_msg(fabs(e - f) <= bound * (1 + fabs(e)),
                          "output %d: element %lld is %g, not %g", k, (long long)i, f, e);
        }
        area_free(&expected.outputs[k]);
    }
}

TESTS_BELOW(.timeout = 60, .set_up = set_up, .tear_down = tear_down);

LOOP_TEST(epilogues, 0, CASES)
{
    const struct linear_case *c = &cases[_i];
    struct random random = {100 + (uint64_t)_i};
    struct world world = {.desc = desc_of_case(c)};
    if (c->tf32) setenv("FSDPD_CUDA_TF32", "1", 1);
    if (c->own) setenv("FSDPD_CUDA_GELU", "own", 1);
    fill(&random, &world);
    ck_assert_status_ok(run(&world.desc, call_of(&world), 0));
    char *found = computed();
    ck_assert_str_eq(found, c->expected);
    assert_near(&world);
    free(found);
    world_free(&world);
}

/* A bias's gradient is the product's, or our own kernels' by the switch; the choice is noted. */
LOOP_TEST(gradient_of_bias, 0, 2)
{
    struct random random = {7};
    struct world world = {.desc = desc_of(OP_LINEAR_BACKWARD_WEIGHTS)};
    world.desc.inputs[0] = type_of(DTYPE_BF16, 2, ROWS, OTHER, 0, 0);
    world.desc.inputs[1] = type_of(DTYPE_BF16, 2, ROWS, 24, 0, 0);
    world.desc.outputs[0] = type_of(DTYPE_F32, 2, 24, OTHER, 0, 0);
    world.desc.outputs[1] = type_of(DTYPE_F32, 1, 24, 0, 0, 0);
    setenv("FSDPD_CUDA_PRODUCTS", "note", 1);
    if (_i == 1) setenv("FSDPD_CUDA_BIAS", "own", 1);
    fill(&random, &world);
    ck_assert_status_ok(run(&world.desc, call_of(&world), 0));
    char *found = computed(), *others = strchr(found, '\n');
    ck_assert_ptr_nonnull(others);
    ck_assert_int_eq(strncmp(others, "\nlaunch ", 8) == 0, _i == 1);
    ck_assert_int_eq(strstr(found, "bgradb\n") != NULL, _i == 0);
    ck_assert_int_eq(strncmp(last_note, "product (24, 6) (6, 16) of bf16, epilogue ", 42), 0);
    assert_near(&world);
    free(found);
    world_free(&world);
}

/* cuBLASLt may lack this epilogue for a shape: the request is then simpler. */
LOOP_TEST(without, 0, 4)
{
    static const char *const expected[] = {
        "matmul compute f32 gelu_aux_bias\n",
        "matmul compute f32 bias\nlaunch compute\n",
        "matmul compute f32\nlaunch compute\n",
        "matmul compute f32\nlaunch compute\n",
    };
    static const char *const notes[] = {
        "",
        "linear: its GELU is a pass of fsdpd's own kernels, cuBLASLt has no epilogue for it",
        "linear: its bias is a pass of fsdpd's own kernels, cuBLASLt has no epilogue for it",
        "linear_backward_data: its GELU is a pass of fsdpd's own kernels, cuBLASLt has no epilogue "
        "for it",
    };
    static const int which[] = {0, 0, 5, 4};
    int error = _i % 2 ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_NOT_SUPPORTED;
    struct random random = {1};
    struct world world = {.desc = desc_of_case(&cases[which[_i]])};
    fill(&random, &world);
    if (_i > 0) cuda_stub_fail("cublasLtMatmulAlgoGetHeuristic", 1, error);
    ck_assert_status_ok(run(&world.desc, call_of(&world), 0));
    char *found = computed();
    ck_assert_str_eq(found, expected[_i]);
    ck_assert_str_eq(last_note, notes[_i]);
    assert_near(&world);
    free(found);
    world_free(&world);
}

/* A bias in bf16 may lie at a multiple of 8 bytes: the request is for an algorithm that can read
 * it. */
LOOP_TEST(shifted, 0, 2)
{
    struct random random = {1};
    struct world world = {.desc = desc_of_case(&cases[0])};
    fill(&random, &world);
    size_t shift = _i ? 8 : 16;
    ck_assert_status_ok(run(&world.desc, call_of(&world), shift));
    ck_assert_int_eq(cuda_stub_count("cublasLtMatmulAlgoGetHeuristic"), _i); /* since the launch */
    assert_near(&world);
    world_free(&world);
}

TEST(fails)
{
    struct random random = {1};
    struct world world = {.desc = desc_of_case(&cases[0])};
    fill(&random, &world);
    cuda_stub_fail("matmul", 1, CUBLAS_STATUS_EXECUTION_FAILED);
    status_t status = run(&world.desc, call_of(&world), 0);
    ck_assert_str_eq(status_message(status), "cublasLtMatmul: execution failed");
    status_free(status);
    world_free(&world);
}

/* ---- matrices made orthogonal ---- */

static const struct {
    int64_t rows, columns;
    int steps;
} sizes[] = {{1, 1, 5}, {3, 5, 5}, {7, 2, 4}, {13, 13, 1}, {24, 40, 5}, {41, 7, 2}};
enum { SIZES = COUNT_OF(sizes), BEFORE = 8 /* elements, which other parameters have */ };

/* In place, on the device; its scratch memory is full of NaNs. */
static void orthogonalize(const struct matrix_work *wanted, float *values, size_t count)
{
    const struct plan_matrix *matrix = wanted->matrices;
    struct matrix_work work = *wanted;
    struct device *device = NULL;
    struct lane_queue *lane = NULL;
    void *memory = NULL;
    size_t bytes = kernel_muon_scratch(matrix->rows, matrix->columns);
    char *nothing = mem_alloc(bytes);
    memset(nothing, 0xff, bytes);
    ck_assert_status_ok(device_open("cuda:0", 1, &device));
    ck_assert_status_ok(lane_open(device, LANE_COMPUTE, &lane));
    ck_assert_status_ok(device->table->prepare_matrix(device, matrix->rows, matrix->columns));
    ck_assert_status_ok(device_allocate(device, count * sizeof *values, &memory));
    ck_assert_status_ok(
        device_allocate(device, bytes + device_matrix_workspace_bytes(device), &work.scratch));
    ck_assert_status_ok(lane_copy(lane, work.scratch, nothing, bytes));
    ck_assert_status_ok(lane_copy(lane, memory, values, count * sizeof *values));
    work.values = memory;
    cuda_stub_record(true);
    ck_assert_status_ok(matrix_step_enqueue(lane, &work));
    ck_assert_status_ok(lane_copy(lane, values, memory, count * sizeof *values));
    ck_assert_status_ok(lane_wait(lane, 60000));
    device_release(device, memory);
    device_release(device, work.scratch);
    lane_close(lane);
    device_close(device);
    free(nothing);
}

/* As the CPU's, within rounding, which iterations magnify; nothing beside the matrix changes, and
 * no algorithm is chosen in a step. */
LOOP_TEST(matrices, 0, 2 * SIZES)
{
    const bool tf32 = _i >= SIZES;
    const int64_t rows = sizes[_i % SIZES].rows, columns = sizes[_i % SIZES].columns;
    const size_t count = (size_t)(rows * columns), all = BEFORE + count + 1;
    const struct plan_matrix matrix = {.rows = rows, .columns = columns, .offset = BEFORE};
    const struct optimizer_step step = {.kind = OPTIMIZER_MUON,
                                        .ns_steps = sizes[_i % SIZES].steps};
    const struct matrix_work work = {.kind = INSTRUCTION_ORTHOGONALIZE,
                                     .step = step,
                                     .matrices = &matrix,
                                     .matrix_count = 1};
    struct random random = {30 + (uint64_t)_i};
    float *found = mem_alloc_array(all, sizeof *found);
    float *expected = mem_alloc_array(all, sizeof *expected);
    void *scratch = mem_alloc(kernel_muon_scratch(rows, columns));
    fill_random(&random, found, (int64_t)all);
    memcpy(expected, found, all * sizeof *found);
    ck_assert_status_ok(kernel_orthogonalize(rows, columns, step.ns_steps,
                                             step_muon_scale(&step, rows, columns),
                                             expected + BEFORE, scratch));
    if (tf32) setenv("FSDPD_CUDA_TF32", "1", 1);
    orthogonalize(&work, found, all);
    for (size_t i = 0; i < all; i++) {
        bool own = i >= BEFORE && i < BEFORE + count;
        ck_assert_msg(fabsf(found[i] - expected[i]) <= (own ? 1e-4F : 0), "%zu is %g, not %g", i,
                      (double)found[i], (double)expected[i]);
    }
    char *text = computed();
    const char *product = tf32 ? "matmul compute tf32\n" : "matmul compute f32\n";
    int products = 0;
    for (const char *at = text; (at = strstr(at, product)) != NULL; at++) products++;
    ck_assert_int_eq(products, 3 * step.ns_steps);
    ck_assert_int_eq(cuda_stub_count("cublasLtMatmulAlgoGetHeuristic"), 0);
    free(text);
    free(found);
    free(expected);
    free(scratch);
}

/* ---- the choice among cuBLASLt's candidates ---- */

enum { CANDIDATES = 4 };

static char folder[] = "/tmp/fsdpd-test-XXXXXX", choices[64];

static void set_up_choices(void)
{
    set_up();
    cuda_stub_candidates(CANDIDATES);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(choices, sizeof choices, "%s/some/where/choices", folder);
    setenv("FSDPD_CUDA_CHOICES", choices, 1);
    setenv("FSDPD_CUDA_PRODUCTS", "note", 1);
    occupied = only_planned = false;
}

static void tear_down_choices(void)
{
    static const char *const inside[] = {"some/where/choices", "some/where", "some",
                                         "cuda-products"};
    tear_down();
    for (size_t i = 0; i < COUNT_OF(inside); i++) {
        char *path = file_path_join(folder, inside[i]);
        remove(path);
        free(path);
    }
    remove(folder);
    strcpy(folder + strlen(folder) - 6, "XXXXXX");
}

/* The file's content; caller frees. */
static char *stored(const char *path)
{
    struct buf text = {0};
    status_free(file_read(path, 1 << 20, &text));
    char *copy = mem_strdup(buf_text(&text));
    buf_deinit(&text);
    return copy;
}

static int count_lines(const char *path)
{
    char *text = stored(path);
    int lines = 0;
    for (const char *at = text; *at != '\0'; at++) lines += *at == '\n';
    free(text);
    return lines;
}

/* Runs a product, whose result must be right; returns the number of the algorithm, -1: it is not
 * noted. */
static int choose(void)
{
    struct random random = {1};
    struct world world = {.desc = desc_of_case(&cases[0])};
    int number = -1;
    fill(&random, &world);
    ck_assert_status_ok(run(&world.desc, call_of(&world), 0));
    assert_near(&world);
    world_free(&world);
    const char *at = strstr(last_note, ": algorithm ");
    if (at != NULL) number = atoi(at + strlen(": algorithm "));
    return number;
}

static void expect_first(const char *why)
{
    ck_assert_int_eq(choose(), -1); /* the other note is the first */
    ck_assert_msg(strstr(last_note, "cuBLASLt's first algorithms are taken") != NULL &&
                      strstr(last_note, why) != NULL,
                  "%s, not %s", last_note, why);
}

TESTS_BELOW(.timeout = 60, .set_up = set_up_choices, .tear_down = tear_down_choices);

/* The fastest is kept, and found again by the same product, device and version. */
TEST(the_fastest_candidate_is_kept)
{
    ck_assert_int_eq(choose(), CANDIDATES - 1);
    ck_assert_uint_eq(last_workspace, 1000 + 100 * (CANDIDATES - 1));
    char *text = stored(choices);
    ck_assert_ptr_nonnull(strstr(text, "NVIDIA A100-SXM4-80GB, "));
    ck_assert_ptr_nonnull(strstr(text, "cuBLASLt 130000: (24, 16) (16, 6) of bf16 to bf16"));
    ck_assert_ptr_nonnull(strstr(text, "algorithm 3, tile 16, "));
    ck_assert_ptr_nonnull(strstr(text, "; number 4 of 4, "));
    /* another one is taken from the file */
    char *digit = strstr(text, "\t00000000");
    ck_assert_ptr_nonnull(digit);
    digit = strchr(digit + 1, '3');
    ck_assert_ptr_nonnull(digit);
    *digit = '1';
    ck_assert_status_ok(file_write_atomic(choices, text, strlen(text), 0644));
    free(text);
    ck_assert_int_eq(choose(), 1);
    ck_assert_uint_eq(last_workspace, 1000 + 100 * (CANDIDATES - 1));
    ck_assert_int_eq(count_lines(choices), 1);
    cuda_stub_model("NVIDIA H100 80GB HBM3");
    ck_assert_int_eq(choose(), CANDIDATES - 1);
    ck_assert_int_eq(count_lines(choices), 2);
}

/* What cannot run any more, or no line at all, is replaced. */
TEST(stored_algorithms_are_checked)
{
    cuda_stub_candidates(6);
    setenv("FSDPD_CUDA_CANDIDATES", "6", 1);
    ck_assert_int_eq(choose(), 5);
    cuda_stub_candidates(CANDIDATES);
    char *text = stored(choices), *end = strstr(text, ", at most 1500 bytes");
    ck_assert_ptr_nonnull(end);
    memcpy(end, ", at most 1300 bytes", strlen(", at most 1300 bytes"));
    ck_assert_status_ok(file_write_atomic(choices, text, strlen(text), 0644));
    ck_assert_int_eq(choose(), CANDIDATES - 1);
    ck_assert_int_eq(count_lines(choices), 2);
    strchr(text, '\t')[3] = 'x';
    ck_assert_status_ok(file_write_atomic(choices, text, strlen(text), 0644));
    free(text);
    ck_assert_int_eq(choose(), CANDIDATES - 1);
    ck_assert_int_eq(count_lines(choices), 2);
}

/* The first candidate, whose choice needs no file. */
TEST(the_first_candidate)
{
    setenv("FSDPD_CUDA_CANDIDATES", "1", 1);
    ck_assert_int_eq(choose(), 0);
    ck_assert_int_eq(count_lines(choices), 0);
    unsetenv("FSDPD_CUDA_CANDIDATES");
    occupied = true;
    expect_first("the device is in use");
    occupied = false;
    setenv("FSDPD_CUDA_CHOICES", "off", 1);
    expect_first("no file");
    setenv("FSDPD_CUDA_CHOICES", "/dev/null/choices", 1);
    expect_first("no file");
    setenv("FSDPD_CUDA_CHOICES", choices, 1);
    cuda_stub_fail("cudaStreamCreateWithFlags", 1, cudaErrorInvalidValue);
    expect_first("a stream: ");
    ck_assert_int_eq(count_lines(choices), 0);
}

/* A plan times nothing, and counts the same scratch memory. */
TEST(a_plan_times_nothing)
{
    only_planned = true;
    ck_assert_int_eq(choose(), 0);
    ck_assert_int_eq(count_lines(choices), 0);
    ck_assert_uint_eq(last_workspace, 1000 + 100 * (CANDIDATES - 1));
}

/* A candidate that does not run is none. */
TEST(a_candidate_fails)
{
    cuda_stub_fail("matmul", 3 * (CANDIDATES - 1) + 1, CUBLAS_STATUS_NOT_SUPPORTED);
    ck_assert_int_eq(choose(), CANDIDATES - 2);
}

/* systemd's directory is preferred to the user's. */
TEST(the_place_of_choices)
{
    unsetenv("FSDPD_CUDA_CHOICES");
    char *list = mem_printf("%s:/nowhere", folder), *path = file_path_join(folder, "cuda-products");
    setenv("CACHE_DIRECTORY", list, 1);
    ck_assert_int_eq(choose(), CANDIDATES - 1);
    ck_assert_int_eq(count_lines(path), 1);
    free(list);
    free(path);
}

/* What is stored needs no lock; what is stored while a rank waits for the lock is taken, too. */
TEST(the_lock_is_held)
{
    int code = -1;
    ck_assert_int_eq(choose(), CANDIDATES - 1);
    char *text = stored(choices);
    int held = open(choices, O_RDWR | O_APPEND);
    ck_assert_int_ge(held, 0);
    ck_assert_int_eq(flock(held, LOCK_EX), 0);
    ck_assert_int_eq(choose(), CANDIDATES - 1);
    ck_assert_int_eq(ftruncate(held, 0), 0);
    char *digit = strchr(strstr(text, "\t00000000") + 1, '3');
    *digit = '1';
    pid_t rank = fork();
    ck_assert_int_ge(rank, 0);
    if (rank == 0) _exit(choose() == 1 ? 0 : 1);
    ck_assert_int_eq(write(held, text, strlen(text)), (ssize_t)strlen(text));
    ck_assert_int_eq(waitpid(rank, &code, 0), rank);
    ck_assert_int_eq(code, 0);
    ck_assert_int_eq(count_lines(choices), 1);
    close(held);
    free(text);
}

/* Ranks of a host that prepare the same product at the same time choose once. */
TEST(ranks_choose_once)
{
    enum { RANKS = 3 };
    pid_t ranks[RANKS];
    for (int i = 0; i < RANKS; i++) {
        ranks[i] = fork();
        ck_assert_int_ge(ranks[i], 0);
        if (ranks[i] == 0) _exit(choose() == CANDIDATES - 1 ? 0 : 1);
    }
    for (int i = 0; i < RANKS; i++) {
        int code = -1;
        ck_assert_int_eq(waitpid(ranks[i], &code, 0), ranks[i]);
        ck_assert_int_eq(code, 0);
    }
    ck_assert_int_eq(count_lines(choices), 1);
}
