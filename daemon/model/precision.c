/*
 * Mixed precision: a pass over the forward ops, before gradients are appended. OPERAND_REAL in the
 * table of ops becomes bf16; log_softmax, losses and statistics stay in f32. A CAST converts a
 * value where an op needs the other type, once per value. Gradients follow by the usual rules: a
 * bf16 value's gradient is bf16, a parameter's is always f32.
 *
 * Modules may be excepted (module_dtypes): they compute in a type of their own.
 *
 * Ops read parameters of bf16 directly: they are gathered as bf16, or lie there as a copy in bf16.
 * A parameter whose unit is in f32 is cast like any value. Its gradient is written in the
 * parameter's place either way.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "model/graph_builder.h"

struct precision {
    struct graph_builder *builder;
    const struct graph_options *options;
    struct graph_op *ops; /* the new list */
    int op_count, op_capacity;
    int *cast; /* by original value: its copy in the other type, bf16 or f32; -1 */
};

/* The type that an operand must have in an op with `real` operands. DTYPE_I32 stands for an operand
 * that stays unchanged. */
static enum dtype wanted_dtype(enum operand_type type, enum dtype real)
{
    switch (type) {
    case OPERAND_REAL: return real;
    case OPERAND_F32: return DTYPE_F32;
    default: return DTYPE_I32;
    }
}

static struct graph_op *append(struct precision *pass)
{
    MEM_GROW(pass->ops, pass->op_count, pass->op_capacity);
    return &pass->ops[pass->op_count++];
}

/* The value as `dtype`. Adds a CAST in the module of `reader`, unless the value has one. */
static int value_as(struct precision *pass, int value, enum dtype dtype,
                    const struct graph_op *reader)
{
    struct graph *graph = pass->builder->graph;
    if (pass->cast[value] >= 0) return pass->cast[value];
    struct tensor_type type = graph->values[value].type;
    type.dtype = dtype;
    const char *name = graph->values[value].name;
    int made = builder_add_value(pass->builder, VALUE_ACTIVATION, &type,
                                 mem_printf("%s (%s)", name, dtype_name(dtype)));
    struct graph_op *op = append(pass);
    *op = (struct graph_op){.kind = OP_CAST,
                            .module = reader->module,
                            .name = mem_printf("%s.cast", graph->values[value].name)};
    for (int k = 0; k < OP_MAX_INPUTS; k++) op->inputs[k] = k == 0 ? value : -1;
    for (int k = 0; k < OP_MAX_OUTPUTS; k++) op->outputs[k] = k == 0 ? made : -1;
    return pass->cast[value] = made;
}

/* The type of the op's real operands. */
static enum dtype op_dtype(const struct precision *pass, const struct graph_op *op)
{
    const struct graph_options *options = pass->options;
    if (options->module_dtypes == NULL) return options->compute_dtype;
    enum dtype own = options->module_dtypes[op->module];
    bool high = false, low = false;
    for (int k = 0; k < OP_MAX_INPUTS; k++) {
        if (op->inputs[k] < 0) continue;
        const struct graph_value *value = &pass->builder->graph->values[op->inputs[k]];
        if (value->kind == VALUE_PARAMETER) return own;
        if (value->kind == VALUE_INPUT) continue; /* cast once, to the model's type */
        high = high || value->type.dtype == DTYPE_F32;
        low = low || value->type.dtype == DTYPE_BF16;
    }
    if (own != options->compute_dtype || !(high || low)) return own;
    return high ? DTYPE_F32 : DTYPE_BF16;
}

static void convert_op(struct precision *pass, const struct graph_op *old)
{
    struct graph_op op = *old;
    enum dtype real = old->exact ? DTYPE_F32 : op_dtype(pass, old);
    const struct op_info *info = op_info_get(op.kind);
    for (int k = 0; k < info->input_count; k++) {
        enum dtype wanted = wanted_dtype(info->inputs[k].type, real);
        if (op.inputs[k] < 0 || wanted == DTYPE_I32) continue;
        if (pass->builder->graph->values[op.inputs[k]].type.dtype != wanted)
            op.inputs[k] = value_as(pass, op.inputs[k], wanted, old);
    }
    struct graph *graph = pass->builder->graph;
    for (int k = 0; k < info->output_count; k++) {
        enum dtype wanted = wanted_dtype(info->outputs[k].type, real);
        if (op.outputs[k] >= 0 && wanted != DTYPE_I32)
            graph->values[op.outputs[k]].type.dtype = wanted;
    }
    *append(pass) = op;
}

void graph_lower_precision(struct graph_builder *builder, const struct graph_options *options)
{
    if (options->compute_dtype != DTYPE_BF16 && options->module_dtypes == NULL) return;
    struct graph *graph = builder->graph;
    int values = graph->value_count;
    struct precision pass = {.builder = builder,
                             .options = options,
                             .cast = mem_alloc_array((size_t)values, sizeof(int))};
    for (int v = 0; v < values; v++) {
        struct graph_value *value = &graph->values[v];
        pass.cast[v] = -1;
        if (value->kind == VALUE_PARAMETER && options->parameter_dtypes != NULL)
            value->type.dtype = options->parameter_dtypes[value->parameter];
    }
    for (int i = 0; i < graph->op_count; i++) convert_op(&pass, &graph->ops[i]);
    free(graph->ops);
    graph->ops = pass.ops;
    graph->op_count = pass.op_count;
    builder->op_capacity = pass.op_capacity;
    for (int i = graph->op_count - 1; i >= 0; i--)
        for (int k = 0; k < OP_MAX_OUTPUTS; k++)
            if (graph->ops[i].outputs[k] >= 0) graph->values[graph->ops[i].outputs[k]].producer = i;
    free(pass.cast);
}
