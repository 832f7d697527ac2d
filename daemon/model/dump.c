/* A graph as text, for people and golden tests; the format is described at graph_dump in graph.h.
 */
#include "base/buf.h"
#include "model/graph.h"

static void add_operand(const struct graph *graph, int index, struct buf *text)
{
    const struct graph_value *value = &graph->values[index];
    if (value->kind == VALUE_PARAMETER || value->kind == VALUE_PARAMETER_GRADIENT)
        buf_add_text(text, value->name);
    else buf_printf(text, "%%%d", index);
}

static void add_pair(const char *name, const int64_t pair[2], int64_t usual, struct buf *text)
{
    if (pair[0] == usual && pair[1] == usual) return;
    buf_printf(text, " %s=%lldx%lld", name, (long long)pair[0], (long long)pair[1]);
}

static void add_attributes(const struct graph_op *op, struct buf *text)
{
    const union op_attrs *attrs = &op->attrs;
    switch (op->kind) {
    case OP_CONV2D:
    case OP_CONV2D_BACKWARD_DATA:
    case OP_CONV2D_BACKWARD_WEIGHTS:
        add_pair("stride", attrs->conv.stride, 1, text);
        add_pair("padding", attrs->conv.padding, 0, text);
        add_pair("dilation", attrs->conv.dilation, 1, text);
        if (attrs->conv.groups != 1)
            buf_printf(text, " groups=%lld", (long long)attrs->conv.groups);
        if (attrs->conv.activation == ACTIVATION_RELU) buf_add_text(text, " relu");
        break;
    case OP_LINEAR:
        if (attrs->linear.activation == ACTIVATION_RELU) buf_add_text(text, " relu");
        break;
    case OP_MAX_POOL2D:
    case OP_MAX_POOL2D_BACKWARD:
        add_pair("kernel", attrs->pool.kernel, -1, text);
        add_pair("stride", attrs->pool.stride, -1, text);
        add_pair("padding", attrs->pool.padding, 0, text);
        break;
    case OP_DROPOUT:
    case OP_DROPOUT_BACKWARD:
        buf_printf(text, " p=%g stream=%u", attrs->dropout.p, attrs->dropout.stream);
        break;
    case OP_NLL_LOSS:
    case OP_NLL_LOSS_BACKWARD:
    case OP_CROSS_ENTROPY:
    case OP_CROSS_ENTROPY_BACKWARD:
        buf_add_text(text, attrs->loss.reduction == REDUCTION_SUM ? " sum" : " mean");
        break;
    default: break;
    }
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
    for (int i = 0; i < OP_MAX_OUTPUTS; i++) {
        if (op->outputs[i] < 0) continue;
        const struct tensor_type *type = &graph->values[op->outputs[i]].type;
        char shape[128];
        buf_printf(text, "%s %s", i ? "," : "", tensor_format_shape(type, shape));
        if (type->dtype != DTYPE_F32) buf_printf(text, " %s", dtype_name(type->dtype));
        if (type->layout == LAYOUT_CHANNELS_LAST) buf_add_text(text, " channels_last");
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
        add_attributes(op, &text);
        add_shapes(graph, op, &text);
        buf_printf(&text, "  # %s\n", op->name);
    }
    return buf_take(&text);
}
