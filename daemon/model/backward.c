#include "model/backward.h"

#include "base/mem.h"

struct graph_op *backward_add_op(struct backward *backward, enum op_kind kind, const forward_op *of,
                                 const char *suffix)
{
    struct graph_op *op = builder_add_op(backward->builder, kind, &of->attrs, of->module,
                                         mem_printf("%s.%s", of->name, suffix));
    op->backward = true;
    op->forward = backward->current;
    return op;
}

int backward_add_gradient(struct backward *backward, int value, int slot)
{
    struct graph *graph = backward->builder->graph;
    struct tensor_type type = graph->values[value].type;
    int made = builder_add_value(backward->builder, VALUE_GRADIENT, &type,
                                 mem_printf("d(%s)", graph->values[value].name));
    builder_set_output(backward->builder, slot, made);
    return made;
}

void backward_contribute(struct backward *backward, int value, int gradient)
{
    int old = backward->gradient[value];
    if (old < 0) {
        backward->gradient[value] = gradient;
        return;
    }
    const struct graph *graph = backward->builder->graph;
    int maker = graph->values[value].producer;
    forward_op producer = graph->ops[maker >= 0 ? maker : backward->current];
    struct graph_op *sum = backward_add_op(backward, OP_ADD, &producer, "sum_gradients");
    sum->attrs = (union op_attrs){0};
    sum->inputs[0] = old;
    sum->inputs[1] = gradient;
    backward->gradient[value] = backward_add_gradient(backward, value, 0);
}

/* The parameter's own value, even if the op read a cast of it. */
static int parameter_behind(const struct graph *graph, int value)
{
    int producer = graph->values[value].producer;
    return graph->values[value].kind == VALUE_PARAMETER ? value : graph->ops[producer].inputs[0];
}

void backward_add_parameter_gradient(struct backward *backward, int value, int slot)
{
    struct graph *graph = backward->builder->graph;
    value = parameter_behind(graph, value);
    int parameter = graph->values[value].parameter;
    int *gradient = &backward->parameter_gradient[parameter];
    if (*gradient >= 0 || backward->accumulate)
        graph->ops[graph->op_count - 1].accumulate[slot] = true;
    if (*gradient < 0) {
        struct tensor_type type = graph->values[value].type;
        type.dtype = DTYPE_F32;
        *gradient = builder_add_value(backward->builder, VALUE_PARAMETER_GRADIENT, &type,
                                      mem_printf("d(%s)", graph->values[value].name));
        graph = backward->builder->graph;
        graph->values[*gradient].parameter = parameter;
    }
    builder_set_output(backward->builder, slot, *gradient);
}

struct graph_op *backward_add_unary(struct backward *backward, enum op_kind kind,
                                    const forward_op *op, const char *suffix, int dy)
{
    struct graph_op *made = backward_add_op(backward, kind, op, suffix);
    made->inputs[0] = dy;
    return made;
}

int backward_add_forward_output(struct backward *backward, const forward_op *op, int slot,
                                struct tensor_type type, const char *suffix)
{
    struct graph *graph = backward->builder->graph;
    int producer = graph->values[op->outputs[0]].producer;
    int made = builder_add_value(backward->builder, VALUE_ACTIVATION, &type,
                                 mem_printf("%s.%s", op->name, suffix));
    graph = backward->builder->graph;
    graph->values[made].producer = producer;
    graph->ops[producer].outputs[slot] = made;
    return made;
}

bool backward_needs(const struct backward *backward, int value)
{
    return value >= 0 && backward->needed[value];
}
