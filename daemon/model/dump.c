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

static const char *const scalings[] = {[ROPE_SCALING_NONE] = "none",
                                       [ROPE_SCALING_LINEAR] = "linear",
                                       [ROPE_SCALING_LLAMA3] = "llama3"};

static void add_rope(const union op_attrs *attrs, struct buf *text)
{
    buf_printf(text, " head_dim=%lld theta=%g", (long long)attrs->rope.head_dim, attrs->rope.theta);
    if (attrs->rope.scaling == ROPE_SCALING_NONE) return;
    buf_printf(text, " %s factor=%g", scalings[attrs->rope.scaling], attrs->rope.factor);
    if (attrs->rope.scaling == ROPE_SCALING_LLAMA3)
        buf_printf(text, " low=%g high=%g context=%lld", attrs->rope.low_freq_factor,
                   attrs->rope.high_freq_factor, (long long)attrs->rope.original_context);
}

static void add_attention(const union op_attrs *attrs, struct buf *text)
{
    buf_printf(text, " heads=%lld", (long long)attrs->attention.heads);
    if (attrs->attention.kv_heads != attrs->attention.heads)
        buf_printf(text, " kv_heads=%lld", (long long)attrs->attention.kv_heads);
    if (attrs->attention.causal) buf_add_text(text, " causal");
    if (attrs->attention.scale != 0) buf_printf(text, " scale=%g", attrs->attention.scale);
    if (attrs->attention.p > 0)
        buf_printf(text, " p=%g stream=%u", attrs->attention.p, attrs->attention.stream);
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
    case OP_LINEAR_BACKWARD_DATA:
    case OP_LINEAR_BACKWARD_WEIGHTS:
        if (attrs->linear.transposed) buf_add_text(text, " transposed");
        if (attrs->linear.activation == ACTIVATION_RELU) buf_add_text(text, " relu");
        if (attrs->linear.activation == ACTIVATION_GELU_TANH) buf_add_text(text, " gelu_tanh");
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
    case OP_LINEAR_CROSS_ENTROPY:
    case OP_LINEAR_CROSS_ENTROPY_BACKWARD:
        buf_add_text(text, attrs->loss.reduction == REDUCTION_SUM ? " sum" : " mean");
        break;
    case OP_GELU:
    case OP_GELU_BACKWARD:
        if (attrs->gelu.tanh) buf_add_text(text, " tanh");
        break;
    case OP_EMBEDDING:
    case OP_EMBEDDING_BACKWARD:
        if (attrs->embedding.padding_index >= 0)
            buf_printf(text, " padding=%lld", (long long)attrs->embedding.padding_index);
        break;
    case OP_ARANGE:
        buf_printf(text, " from %d by %d", attrs->arange.start, attrs->arange.step);
        break;
    case OP_PADDING_MASK: buf_printf(text, " id=%d", attrs->padding_mask.id); break;
    case OP_LAYER_NORM:
    case OP_LAYER_NORM_BACKWARD:
    case OP_RMS_NORM:
    case OP_RMS_NORM_BACKWARD: buf_printf(text, " eps=%g", attrs->norm.eps); break;
    case OP_ROPE:
    case OP_ROPE_BACKWARD: add_rope(attrs, text); break;
    case OP_ATTENTION:
    case OP_ATTENTION_BACKWARD: add_attention(attrs, text); break;
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
        add_attributes(op, &text);
        add_shapes(graph, op, &text);
        buf_printf(&text, "  # %s\n", op->name);
    }
    return buf_take(&text);
}
