/* Writes a graph as text; see graph_dump.h for the format. */
#include "graph_dump.h"

#include "base/buf.h"
#include "ops/op_attributes.h"

static void add_operand(const struct graph *graph, int index, struct buf *text)
{
    const struct graph_value *value = &graph->values[index];
    if (value->kind == VALUE_PARAMETER || value->kind == VALUE_PARAMETER_GRADIENT ||
        value->kind == VALUE_BUFFER)
        buf_add_text(text, value->name);
    else buf_printf(text, "%%%d", index);
}

static void add_outputs(const struct graph *graph, const struct graph_op *op, struct buf *text)
{
    bool first = true;
    for (int i = 0; i < OP_MAX_OUTPUTS; i++) {
        if (op->outputs[i] < 0) continue;
        if (!first) buf_add_text(text, ", ");
        if (op->accumulate[i]) buf_add_char(text, '+');
        add_operand(graph, op->outputs[i], text);
        first = false;
    }
}

static void add_inputs(const struct graph *graph, const struct graph_op *op, struct buf *text)
{
    bool first = true;
    for (int i = 0; i < OP_MAX_INPUTS; i++) {
        if (op->inputs[i] < 0) continue;
        if (!first) buf_add_text(text, ", ");
        add_operand(graph, op->inputs[i], text);
        first = false;
    }
}

static void add_shapes(const struct graph *graph, const struct graph_op *op, struct buf *text)
{
    bool first = true;
    for (int i = 0; i < OP_MAX_OUTPUTS; i++) {
        if (op->outputs[i] < 0) continue;
        const struct tensor_type *type = &graph->values[op->outputs[i]].type;
        char shape[128];
        buf_printf(text, "%s %s", first ? "" : ",", tensor_format_shape(type, shape));
        if (type->dtype != DTYPE_F32) buf_printf(text, " %s", dtype_name(type->dtype));
        if (type->layout == LAYOUT_CHANNELS_LAST) buf_add_text(text, " channels_last");
        first = false;
    }
}

char *graph_dump(const struct graph *graph)
{
    struct buf text = {0};
    for (int i = 0; i < graph->op_count; i++) {
        const struct graph_op *op = &graph->ops[i];
        if (i == graph->forward_op_count) buf_add_text(&text, "backward:\n");
        add_outputs(graph, op, &text);
        buf_printf(&text, " = %s(", op_info_get(op->kind)->name);
        add_inputs(graph, op, &text);
        buf_add_char(&text, ')');
        op_attributes_print(op->kind, &op->attrs, &text);
        add_shapes(graph, op, &text);
        buf_printf(&text, "  # %s\n", op->name);
    }
    return buf_take(&text);
}
