/*
 * Fusions that every device can do: an activation into the convolution or linear before it, and
 * log_softmax with nll_loss into cross_entropy (whose second output is the log-probabilities).
 * A value that something else reads too is left alone.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "model/graph_builder.h"

static int *count_uses(const struct graph *graph)
{
    int *uses = mem_alloc_array((size_t)graph->value_count, sizeof *uses);
    for (int i = 0; i < graph->op_count; i++)
        for (int k = 0; k < OP_MAX_INPUTS; k++)
            if (graph->ops[i].inputs[k] >= 0) uses[graph->ops[i].inputs[k]]++;
    return uses;
}

/* The op that makes input 0 of `op` for it alone, or -1. */
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

static void fuse_loss(struct graph *graph, int loss, const int *uses, bool *dead)
{
    int source = only_source(graph, &graph->ops[loss], uses);
    if (source < 0 || graph->ops[source].kind != OP_LOG_SOFTMAX) return;
    graph->ops[loss].kind = OP_CROSS_ENTROPY;
    graph->ops[loss].inputs[0] = graph->ops[source].inputs[0];
    take_output(graph, loss, 1, graph->ops[source].outputs[0]);
    dead[source] = true;
}

void graph_fuse(struct graph *graph, bool *dead)
{
    int *uses = count_uses(graph);
    for (int i = 0; i < graph->op_count; i++) {
        if (graph->ops[i].kind == OP_RELU) fuse_relu(graph, i, uses, dead);
        else if (graph->ops[i].kind == OP_NLL_LOSS) fuse_loss(graph, i, uses, dead);
    }
    free(uses);
}
