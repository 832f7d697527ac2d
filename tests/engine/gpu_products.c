/*
 * The products of GPT-2's layers on cuda:0, with each choice that may be made the other way by its
 * switch: the time and the rate of each, and cuBLASLt's algorithms. For scripts/gpu-check.sh; the
 * table is read by people. Arguments: rows (16384) and GPT-2's width (768).
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/clock.h"
#include "kernels/kernels.h"
#include "ops/op.h"
#include "runtime/device_table.h"

enum { ROUNDS = 3, TIMES = 20, OPERANDS = OP_MAX_INPUTS + OP_MAX_OUTPUTS };

struct product {
    const char *name;
    enum op_kind kind;
    int in, out; /* in widths of the model */
    bool gelu;   /* of its result or, in a gradient, of its input */
};

static const struct product products[] = {
    {"qkv", OP_LINEAR, 1, 3, false},
    {"qkv", OP_LINEAR_BACKWARD_DATA, 1, 3, false},
    {"qkv", OP_LINEAR_BACKWARD_WEIGHTS, 1, 3, false},
    {"projection", OP_LINEAR, 1, 1, false},
    {"projection", OP_LINEAR_BACKWARD_DATA, 1, 1, false},
    {"projection", OP_LINEAR_BACKWARD_WEIGHTS, 1, 1, false},
    {"mlp in", OP_LINEAR, 1, 4, true},
    {"mlp in", OP_LINEAR_BACKWARD_DATA, 1, 4, false},
    {"mlp in", OP_LINEAR_BACKWARD_WEIGHTS, 1, 4, false},
    {"mlp out", OP_LINEAR, 4, 1, false},
    {"mlp out", OP_LINEAR_BACKWARD_DATA, 4, 1, true},
    {"mlp out", OP_LINEAR_BACKWARD_WEIGHTS, 4, 1, false},
};

static const char *const switches[][2] = {
    {"", ""},
    {"FSDPD_CUDA_GELU", "own"},
    {"FSDPD_CUDA_BIAS", "own"},
    {"FSDPD_CUDA_REDUCTIONS", "all"},
};

enum { PRODUCTS = COUNT_OF(products), SWITCHES = COUNT_OF(switches) };

static void expect(status_t status)
{
    if (status == NULL) return;
    fprintf(stderr, "%s\n", status_message(status));
    exit(1);
}

static struct tensor_type matrix(enum dtype dtype, int64_t rows, int64_t columns)
{
    return tensor_type_make(dtype, 2, (int64_t[]){rows, columns});
}

static struct op_desc describe(const struct product *product, int64_t rows, int64_t width)
{
    const struct op_info *info = op_info_get(product->kind);
    struct op_desc desc = {.kind = product->kind,
                           .input_count = info->input_count,
                           .output_count = info->output_count,
                           .input_present = {true, true},
                           .output_present = {true}};
    int64_t in = product->in * width, out = product->out * width;
    desc.attrs.linear.transposed = true; /* as GPT-2's Conv1D */
    if (product->gelu) desc.attrs.linear.activation = ACTIVATION_GELU_TANH;
    struct tensor_type x = matrix(DTYPE_BF16, rows, in), y = matrix(DTYPE_BF16, rows, out);
    if (product->kind == OP_LINEAR) {
        desc.inputs[0] = x;
        desc.inputs[1] = matrix(DTYPE_BF16, in, out);
        desc.inputs[2] = tensor_type_make(DTYPE_BF16, 1, (int64_t[]){out});
        desc.input_present[2] = true;
        desc.outputs[0] = desc.outputs[1] = y;
        desc.output_present[1] = product->gelu;
    } else if (product->kind == OP_LINEAR_BACKWARD_DATA) {
        desc.inputs[0] = y;
        desc.inputs[1] = matrix(DTYPE_BF16, in, out);
        desc.inputs[2] = desc.outputs[0] = x;
        desc.input_present[2] = product->gelu;
    } else {
        desc.inputs[0] = x;
        desc.inputs[1] = y;
        desc.outputs[0] = matrix(DTYPE_F32, in, out);
        desc.outputs[1] = tensor_type_make(DTYPE_F32, 1, (int64_t[]){out});
        desc.output_present[1] = true;
    }
    return desc;
}

/* The best mean of some rounds, in milliseconds. */
static double time_of(struct lane_queue *lane, struct device_graph *graph,
                      const struct kernel_call *call)
{
    double best = 0;
    for (int r = 0; r <= ROUNDS; r++) { /* the first one is not counted */
        int64_t begun = clock_monotonic_ns();
        for (int i = 0; i < TIMES; i++) expect(lane_launch(lane, graph, 0, call));
        expect(lane_wait(lane, 60000));
        double took = (double)(clock_monotonic_ns() - begun) / 1e6 / TIMES;
        if (r == 1 || took < best) best = took;
    }
    return best;
}

static double measure(struct device *device, struct lane_queue *lane, const struct op_desc *desc)
{
    void *prepared = NULL, *memory[OPERANDS + 1] = {0};
    uint64_t bytes = 0;
    struct kernel_call call = {0};
    expect(op_desc_check(desc));
    expect(device->table->prepare(device, desc, &prepared, &bytes));
    if (bytes > 0) expect(device_allocate(device, bytes, &call.workspace));
    memory[OPERANDS] = call.workspace;
    for (int i = 0; i < desc->input_count; i++) {
        if (!desc->input_present[i]) continue;
        expect(device_allocate(device, tensor_bytes(&desc->inputs[i]), &memory[i]));
        call.inputs[i] = memory[i];
    }
    for (int i = 0; i < desc->output_count; i++) {
        if (!desc->output_present[i]) continue;
        expect(
            device_allocate(device, tensor_bytes(&desc->outputs[i]), &memory[OP_MAX_INPUTS + i]));
        call.outputs[i] = memory[OP_MAX_INPUTS + i];
    }
    struct device_graph graph = {.device = device, .op_count = 1, .prepared = &prepared};
    double took = time_of(lane, &graph, &call);
    device->table->unprepare(prepared);
    for (int i = 0; i <= OPERANDS; i++) device_release(device, memory[i]);
    return took;
}

/* Prints a row per product; returns the sum of their times. */
static double measure_all(int64_t rows, int64_t width, const char *label)
{
    struct device *device = NULL;
    struct lane_queue *lane = NULL;
    double sum = 0;
    expect(device_open("cuda:0", 1, &device));
    expect(lane_open(device, LANE_COMPUTE, &lane));
    for (int p = 0; p < PRODUCTS; p++) {
        struct op_desc desc = describe(&products[p], rows, width);
        double took = measure(device, lane, &desc);
        double flops = 2.0 * (double)(rows * products[p].in * width * products[p].out * width);
        printf("%-28s %-12s %-26s %9.4f ms %8.1f TFLOP/s\n", label, products[p].name,
               op_info_get(desc.kind)->name, took, flops / took / 1e9);
        sum += took;
    }
    for (int i = 0; device_note(device, i) != NULL; i++) printf("    %s\n", device_note(device, i));
    lane_close(lane);
    device_close(device);
    return sum;
}

int main(int argc, char **argv)
{
    int64_t rows = argc > 1 ? atoll(argv[1]) : 16384, width = argc > 2 ? atoll(argv[2]) : 768;
    double sums[SWITCHES];
    setenv("FSDPD_CUDA_PRODUCTS", "note", 1);
    for (int s = 0; s < SWITCHES; s++) {
        const char *const *one = switches[s];
        char label[64];
        if (s > 0) setenv(one[0], one[1], 1);
        snprintf(label, sizeof label, "%s%s%s", s > 0 ? one[0] : "as it is", s > 0 ? "=" : "",
                 one[1]);
        sums[s] = measure_all(rows, width, label);
        if (s > 0) unsetenv(one[0]);
    }
    printf("a layer's products:");
    for (int s = 0; s < SWITCHES; s++)
        printf(" %s %.3f ms%s", s > 0 ? switches[s][0] : "as they are", sums[s],
               s + 1 < SWITCHES ? "," : "\n");
    return 0;
}
