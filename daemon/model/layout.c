/*
 * Chooses memory layouts for devices that prefer channels last. Convolutions and reshapes convert
 * between layouts as they run; all other ops need their four-dimensional operands to agree. So one
 * plain operand makes the others plain, and the pass repeats until nothing changes.
 */
#include "model/graph.h"

static bool converts(enum op_kind kind)
{
    return kind == OP_CONV2D || kind == OP_CONV2D_BACKWARD_DATA ||
           kind == OP_CONV2D_BACKWARD_WEIGHTS || kind == OP_RESHAPE;
}

static bool may_change(const struct graph_value *value)
{
    if (value->type.dim_count != 4) return false;
    if (value->kind == VALUE_INPUT) return value->type.dims[1] == 1; /* both layouts are the same */
    return value->kind == VALUE_ACTIVATION || value->kind == VALUE_GRADIENT;
}

static void set_plain(struct graph *graph, int value, bool *changed)
{
    if (value < 0 || graph->values[value].type.layout == LAYOUT_PLAIN) return;
    graph->values[value].type.layout = LAYOUT_PLAIN;
    *changed = true;
}

static bool has_plain_operand(const struct graph *graph, const int *values, int count)
{
    for (int i = 0; i < count; i++) {
        if (values[i] < 0) continue;
        const struct tensor_type *type = &graph->values[values[i]].type;
        if (type->dim_count == 4 && type->layout == LAYOUT_PLAIN) return true;
    }
    return false;
}

/* Makes the operands of `op` plain if it cannot take their layouts. */
static void limit_op(struct graph *graph, const struct graph_op *op, bool *changed)
{
    bool able = op_info_get(op->kind)->channels_last;
    if (able && (converts(op->kind) || (!has_plain_operand(graph, op->inputs, OP_MAX_INPUTS) &&
                                        !has_plain_operand(graph, op->outputs, OP_MAX_OUTPUTS))))
        return;
    for (int i = 0; i < OP_MAX_INPUTS; i++) set_plain(graph, op->inputs[i], changed);
    for (int i = 0; i < OP_MAX_OUTPUTS; i++) set_plain(graph, op->outputs[i], changed);
}

/* A repeated op must compute in the same way, to the bit. */
static void limit_repeated(struct graph *graph, int value, bool *changed)
{
    int first = graph->values[value].repeats;
    if (first < 0) return;
    if (graph->values[first].type.layout == LAYOUT_PLAIN) set_plain(graph, value, changed);
    if (graph->values[value].type.layout == LAYOUT_PLAIN) set_plain(graph, first, changed);
}

void graph_use_channels_last(struct graph *graph)
{
    for (int i = 0; i < graph->value_count; i++)
        if (may_change(&graph->values[i])) graph->values[i].type.layout = LAYOUT_CHANNELS_LAST;
    for (bool changed = true; changed;) {
        changed = false;
        for (int i = 0; i < graph->op_count; i++) limit_op(graph, &graph->ops[i], &changed);
        for (int i = graph->op_count - 1; i >= 0; i--) limit_op(graph, &graph->ops[i], &changed);
        for (int i = 0; i < graph->value_count; i++) limit_repeated(graph, i, &changed);
    }
}
