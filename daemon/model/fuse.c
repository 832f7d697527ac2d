/*
 * Fusions that every device supports: a ReLU into the convolution or linear layer before it; GELU
 * by tanh into the linear layer, unless it is a gate; log_softmax with nll_loss into cross_entropy
 * (whose second output is the log-probabilities); silu(gate) * x and gelu(gate) * x; a sum into the
 * norm that reads it first (the norm also outputs the sum); and, in models of tokens, the last
 * linear layer into cross_entropy, so that not all logits are in memory at once. Except for the
 * sum, a value that has a second reader is not fused.
 *
 * A sum that a norm outside of its module reads, such as the one at a block's end, is fused only if
 * no border of activation checkpointing lies between the two: behind a border both summands would
 * be kept instead of the sum. Then the norm takes the sum as it would be stored, rounded to bf16,
 * so that a graph has the same bits with and without checkpointing. For the same reason a GELU
 * stays an op if it is computed again without its linear layer, because a checkpointed module
 * begins with it.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "model/graph_builder.h"
#include "model/program.h"

struct readers {
    /* By value, before any fusion: its number of uses as an operand, and the first op that reads
     * it. */
    int *uses, *first;
    int *checkpointed; /* by module: see graph_checkpoint_owners */
};

static struct readers find_readers(const struct graph *graph, const struct graph_options *options)
{
    size_t values = (size_t)graph->value_count, modules = (size_t)graph->model->module_count;
    struct readers readers = {.uses = mem_alloc_array(values, sizeof(int)),
                              .first = mem_alloc_array(values, sizeof(int)),
                              .checkpointed = mem_alloc_array(modules, sizeof(int))};
    graph_checkpoint_owners(graph->model, options, readers.checkpointed);
    for (int i = graph->op_count - 1; i >= 0; i--)
        for (int k = 0; k < OP_MAX_INPUTS; k++) {
            int value = graph->ops[i].inputs[k];
            if (value < 0) continue;
            readers.uses[value]++;
            readers.first[value] = i;
        }
    return readers;
}

/* The op that makes input 0 of `op`, if nothing else reads that value; otherwise -1. */
static int only_source(const struct graph *graph, const struct graph_op *op, const int *uses)
{
    int value = op->inputs[0];
    return uses[value] == 1 ? graph->values[value].producer : -1;
}

static enum op_activation *activation_of(struct graph_op *op)
{
    if (op->kind == OP_CONV2D) return &op->attrs.conv.activation;
    if (op->kind == OP_LINEAR) return &op->attrs.linear.activation;
    return NULL;
}

static void take_output(struct graph *graph, int op, int slot, int value)
{
    graph->ops[op].outputs[slot] = value;
    graph->values[value].producer = op;
}

static void fuse_relu(struct graph *graph, int relu, const int *uses, bool *dead)
{
    int source = only_source(graph, &graph->ops[relu], uses);
    if (source < 0) return;
    enum op_activation *activation = activation_of(&graph->ops[source]);
    if (!activation || *activation != ACTIVATION_NONE) return;
    *activation = ACTIVATION_RELU;
    take_output(graph, source, 0, graph->ops[relu].outputs[0]);
    dead[relu] = true;
}

/* Whether the op's result is one factor of a product, as fuse_gate wants it. */
static bool is_gate(const struct graph *graph, const struct graph_op *op,
                    const struct readers *readers)
{
    int y = op->outputs[0];
    if (readers->uses[y] != 1) return false;
    const struct graph_op *product = &graph->ops[readers->first[y]];
    return product->kind == OP_MUL && tensor_same_shape(&graph->values[product->inputs[0]].type,
                                                        &graph->values[product->inputs[1]].type);
}

/* gradients.c adds the preactivation as an output where the gradient needs it. */
static void fuse_gelu(struct graph *graph, int gelu, const struct readers *readers, bool *dead)
{
    const struct graph_op *op = &graph->ops[gelu];
    int source = only_source(graph, op, readers->uses);
    if (source < 0 || graph->ops[source].kind != OP_LINEAR || !op->attrs.gelu.tanh) return;
    if (is_gate(graph, op, readers)) return;
    struct graph_op *linear = &graph->ops[source];
    if (linear->attrs.linear.activation != ACTIVATION_NONE) return;
    if (readers->checkpointed[linear->module] != readers->checkpointed[op->module]) return;
    linear->attrs.linear.activation = ACTIVATION_GELU_TANH;
    take_output(graph, source, 0, op->outputs[0]);
    dead[gelu] = true;
}

static void fuse_loss(struct graph *graph, int loss, const int *uses, bool *dead)
{
    int source = only_source(graph, &graph->ops[loss], uses);
    if (source < 0 || graph->ops[source].kind != OP_LOG_SOFTMAX) return;
    graph->ops[loss].kind = OP_CROSS_ENTROPY;
    graph->ops[loss].inputs[0] = graph->ops[source].inputs[0];
    take_output(graph, loss, 1, graph->ops[source].outputs[0]);
    dead[source] = true;
}

static void fuse_gate(struct graph *graph, int product, const int *uses, bool *dead)
{
    struct graph_op *op = &graph->ops[product];
    for (int k = 0; k < 2; k++) {
        int gate = op->inputs[k], source = graph->values[gate].producer;
        if (uses[gate] != 1 || source < 0) continue;
        bool gelu = graph->ops[source].kind == OP_GELU;
        if (!gelu && graph->ops[source].kind != OP_SILU) continue;
        int other = op->inputs[1 - k];
        if (!tensor_same_shape(&graph->values[gate].type, &graph->values[other].type)) return;
        op->kind = gelu ? OP_GELU_MUL : OP_SILU_MUL;
        op->attrs = graph->ops[source].attrs;
        op->inputs[0] = graph->ops[source].inputs[0];
        op->inputs[1] = other;
        dead[source] = true;
        return;
    }
}

static bool is_inside(const struct model *model, int module, int outer)
{
    while (module > outer) module = model->modules[module].parent; /* parents come first */
    return module == outer;
}

/* Whether a norm takes the sum of another module with the same bits: nothing between the two adds
 * to the gradients of the summands, and both compute in one type. */
static bool may_leave_module(const struct graph *graph, const struct graph_options *options,
                             int sum, int norm, const struct readers *readers, const bool *dead)
{
    const struct graph_op *from = &graph->ops[sum], *to = &graph->ops[norm];
    for (int i = sum + 1; i < norm; i++)
        if (!dead[i]) return false;
    return readers->checkpointed[from->module] == readers->checkpointed[to->module] &&
           options->module_dtypes == NULL && from->exact == to->exact;
}

/* Fusion moves readers only to later ops, so first[sum] stays the first reader. */
static void fuse_residual(struct graph *graph, const struct graph_options *options, int norm,
                          const struct readers *readers, bool *dead)
{
    struct graph_op *op = &graph->ops[norm];
    int residual = op->kind == OP_LAYER_NORM ? 3 : 2; /* the sum's output has the same slot */
    int sum = op->inputs[0], source = graph->values[sum].producer;
    if (source < 0 || graph->ops[source].kind != OP_ADD) return;
    const struct graph_op *add = &graph->ops[source];
    const struct tensor_type *a = &graph->values[add->inputs[0]].type,
                             *b = &graph->values[add->inputs[1]].type;
    if (!tensor_same_shape(a, b) || readers->first[sum] != norm) return;
    bool inside = is_inside(graph->model, op->module, add->module);
    if (!inside && !may_leave_module(graph, options, source, norm, readers, dead)) return;
    op->attrs.norm.rounded = !inside;
    op->inputs[0] = add->inputs[0];
    op->inputs[residual] = add->inputs[1];
    take_output(graph, norm, residual, sum);
    dead[source] = true;
}

static void fuse_head(struct graph *graph, int loss, const int *uses, bool *dead)
{
    struct graph_op *op = &graph->ops[loss];
    int source = only_source(graph, op, uses);
    if (source < 0 || graph->ops[source].kind != OP_LINEAR) return;
    const struct graph_op *linear = &graph->ops[source];
    if (linear->attrs.linear.activation != ACTIVATION_NONE || linear->attrs.linear.transposed)
        return;
    int target = op->inputs[1], lost = op->outputs[0];
    op->kind = OP_LINEAR_CROSS_ENTROPY;
    op->module = linear->module;
    for (int k = 0; k < 3; k++) op->inputs[k] = linear->inputs[k];
    op->inputs[3] = target;
    op->outputs[1] = -1; /* nothing reads the log-probabilities yet */
    take_output(graph, loss, 0, lost);
    dead[source] = true;
}

/* Not when training with a count: the head and the loss then become a backward op, which cannot
 * count. */
static bool may_fuse_head(const struct graph *graph, const struct graph_options *options)
{
    return graph->model->target == TARGET_TOKEN && !options->keep_logits &&
           graph->model->program->terms <= 1 && !(options->train && options->count_correct);
}

void graph_fuse(struct graph *graph, const struct graph_options *options, bool *dead)
{
    struct readers readers = find_readers(graph, options);
    const int *uses = readers.uses;
    for (int i = 0; i < graph->op_count; i++) {
        switch (graph->ops[i].kind) {
        case OP_RELU: fuse_relu(graph, i, uses, dead); break;
        case OP_GELU: fuse_gelu(graph, i, &readers, dead); break;
        case OP_NLL_LOSS: fuse_loss(graph, i, uses, dead); break;
        case OP_MUL: fuse_gate(graph, i, uses, dead); break;
        case OP_LAYER_NORM:
        case OP_RMS_NORM: fuse_residual(graph, options, i, &readers, dead); break;
        default: break;
        }
        if (graph->ops[i].kind == OP_CROSS_ENTROPY && may_fuse_head(graph, options) &&
            graph->ops[i].attrs.loss.label_smoothing == 0 && graph->ops[i].attrs.loss.gamma == 0 &&
            graph->ops[i].attrs.loss.weights.values == NULL)
            fuse_head(graph, i, uses, dead);
    }
    free(readers.uses);
    free(readers.first);
    free(readers.checkpointed);
}
