/*
 * The products of GPT-2's layers on cuda:0, their attention (also with dropout, and with a mask of
 * keys), and the head, with each choice that may be made the other way by its switch: the time and
 * the rate of each, and cuBLASLt's algorithms. For scripts/gpu-check.sh; the table is read by
 * people. Arguments: rows (16384), GPT-2's width (768) and classes (50257).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/mem.h"
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

/* What is measured, and what a switch concerns. */
enum group { PRODUCT = 1, ATTENTION = 2, HEAD = 4 };

static const struct {
    const char *name, *value;
    int groups;
} switches[] = {
    {"", "", PRODUCT | ATTENTION | HEAD},
    {"FSDPD_CUDA_CANDIDATES", "1", PRODUCT | HEAD},
    {"FSDPD_CUDA_GELU", "own", PRODUCT},
    {"FSDPD_CUDA_BIAS", "own", PRODUCT},
    {"FSDPD_CUDA_REDUCTIONS", "all", PRODUCT | HEAD},
    {"FSDPD_CUDA_ATTENTION", "own", ATTENTION},
    {"FSDPD_CUDA_HEAD", "f32", HEAD},
};

enum { PRODUCTS = COUNT_OF(products), SWITCHES = COUNT_OF(switches) };

/* Of a layer, each forward and backward. */
static const struct {
    const char *name;
    double p;
    bool masked;
} attentions[] = {{"attention", 0, false}, {"with dropout", 0.1, false}, {"with a mask", 0, true}};

enum { ATTENTIONS = COUNT_OF(attentions), CONTEXT = 1024, HEAD_DIM = 64 };

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

static struct op_desc described(enum op_kind kind)
{
    const struct op_info *info = op_info_get(kind);
    return (struct op_desc){.kind = kind,
                            .input_count = info->input_count,
                            .output_count = info->output_count};
}

/* As GPT-2 has it: q, k and v side by side, causal. */
static struct op_desc describe_attention(int i, bool backward, int64_t rows, int64_t width)
{
    int64_t time = rows < CONTEXT ? rows : CONTEXT, heads = width / HEAD_DIM;
    struct op_desc desc = described(backward ? OP_ATTENTION_BACKWARD : OP_ATTENTION);
    struct tensor_type y = tensor_type_make(DTYPE_BF16, 3, (int64_t[]){rows / time, time, width});
    struct tensor_type packed = y, *inputs = desc.inputs, *outputs = desc.outputs;
    struct tensor_type lse = tensor_type_make(DTYPE_F32, 3, (int64_t[]){rows / time, heads, time});
    packed.dims[2] = 3 * width;
    desc.attrs.attention.heads = desc.attrs.attention.kv_heads = heads;
    desc.attrs.attention.causal = true;
    desc.attrs.attention.scale = 1 / 8.0; /* the root of HEAD_DIM */
    desc.attrs.attention.p = attentions[i].p;
    desc.attrs.attention.stream = 5;
    const int mask = backward ? 6 : 3;
    inputs[mask] = tensor_type_make(DTYPE_U8, 2, (int64_t[]){rows / time, time});
    desc.input_present[mask] = attentions[i].masked;
    desc.output_present[0] = true;
    if (backward) {
        inputs[0] = inputs[4] = y, inputs[1] = packed, inputs[5] = lse, outputs[0] = packed;
        desc.input_present[0] = desc.input_present[1] = true;
        desc.input_present[4] = desc.input_present[5] = true;
    } else {
        inputs[0] = packed, outputs[0] = y, outputs[1] = lse;
        desc.input_present[0] = desc.output_present[1] = true;
    }
    return desc;
}

static struct op_desc describe_head(int64_t rows, int64_t width, int64_t classes)
{
    struct op_desc desc = described(OP_LINEAR_CROSS_ENTROPY_BACKWARD);
    desc.inputs[0] = desc.outputs[1] = matrix(DTYPE_BF16, rows, width);
    desc.inputs[1] = matrix(DTYPE_BF16, classes, width);
    desc.inputs[3] = tensor_type_make(DTYPE_I32, 1, (int64_t[]){rows});
    desc.outputs[0] = tensor_type_make(DTYPE_F32, 1, (int64_t[]){1});
    desc.outputs[2] = matrix(DTYPE_F32, classes, width);
    for (int i = 0; i < 3; i++) desc.output_present[i] = true;
    desc.input_present[0] = desc.input_present[1] = desc.input_present[3] = true;
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

/* A mask that hides nothing: all scores are computed. */
static void show_all(struct lane_queue *lane, const struct tensor_type *type, void *mask)
{
    uint64_t bytes = tensor_bytes(type);
    void *ones = mem_alloc_array(bytes, 1);
    memset(ones, 1, bytes);
    expect(lane_copy(lane, mask, ones, bytes));
    expect(lane_wait(lane, 60000));
    free(ones);
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
        if (desc->inputs[i].dtype == DTYPE_U8) show_all(lane, &desc->inputs[i], memory[i]);
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

#define PREFIX "FSDPD_CUDA_"

struct sums {
    double products, attention[ATTENTIONS], head; /* in ms */
};

struct sizes {
    int64_t rows, width, classes;
};

static double row(const char *label, const char *name, struct device *device,
                  struct lane_queue *lane, const struct op_desc *desc)
{
    double took = measure(device, lane, desc), flops = op_desc_flops(desc);
    printf("%-28s %-13s %-30s %9.4f ms %8.1f TFLOP/s\n", label, name, op_info_get(desc->kind)->name,
           took, flops / took / 1e9);
    return took;
}

/* Prints a row per op. */
static struct sums measure_all(struct sizes sizes, const char *label, int groups)
{
    struct device *device = NULL;
    struct lane_queue *lane = NULL;
    struct sums sums = {0};
    struct op_desc desc;
    expect(device_open("cuda:0", 1, &device));
    device_allow_timing(device);
    expect(lane_open(device, LANE_COMPUTE, &lane));
    for (int p = 0; p < PRODUCTS && (groups & PRODUCT); p++) {
        desc = describe(&products[p], sizes.rows, sizes.width);
        sums.products += row(label, products[p].name, device, lane, &desc);
    }
    for (int i = 0; i < 2 * ATTENTIONS && (groups & ATTENTION); i++) {
        desc = describe_attention(i / 2, i % 2 != 0, sizes.rows, sizes.width);
        sums.attention[i / 2] += row(label, attentions[i / 2].name, device, lane, &desc);
    }
    desc = describe_head(sizes.rows, sizes.width, sizes.classes);
    if (groups & HEAD) sums.head = row(label, "head", device, lane, &desc);
    for (int i = 0; device_note(device, i) != NULL; i++) printf("    %s\n", device_note(device, i));
    lane_close(lane);
    device_close(device);
    return sums;
}

static void print_sums(const char *label, const struct sums *sums)
{
    printf("%s:", strncmp(label, PREFIX, strlen(PREFIX)) == 0 ? label + strlen(PREFIX) : label);
    if (sums->products > 0) printf(" products %.3f", sums->products);
    for (int i = 0; i < ATTENTIONS; i++)
        if (sums->attention[i] > 0) printf(" %s %.3f", attentions[i].name, sums->attention[i]);
    if (sums->head > 0) printf(" head %.3f", sums->head);
    printf("; ");
}

int main(int argc, char **argv)
{
    struct sizes sizes = {.rows = argc > 1 ? atoll(argv[1]) : 16384,
                          .width = argc > 2 ? atoll(argv[2]) : 768,
                          .classes = argc > 3 ? atoll(argv[3]) : 50257};
    struct sums sums[SWITCHES];
    char labels[SWITCHES][64] = {"as it is"};
    setenv("FSDPD_CUDA_PRODUCTS", "note", 1);
    for (int s = 0; s < SWITCHES; s++) {
        if (s > 0) setenv(switches[s].name, switches[s].value, 1);
        if (s > 0)
            snprintf(labels[s], sizeof labels[s], "%s=%s", switches[s].name, switches[s].value);
        sums[s] = measure_all(sizes, labels[s], switches[s].groups);
        if (s > 0) unsetenv(switches[s].name);
    }
    printf("ms of a layer, and of the head: ");
    for (int s = 0; s < SWITCHES; s++) print_sums(labels[s], &sums[s]);
    printf("\n");
    return 0;
}
