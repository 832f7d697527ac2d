/* The gradients of norms. */
#include "model/gradients.h"

#include "base/mem.h"

/* All dimensions except the last, in f32. */
static struct tensor_type rows_type(const struct backward *backward, int value)
{
    struct tensor_type type = backward->builder->graph->values[value].type;
    type.dim_count--;
    type.dtype = DTYPE_F32;
    return type;
}

/*
 * The op adds the gradient that x has from elsewhere, which saves an ADD. With a residual the sum
 * takes the place of x, and its gradient is that of both summands.
 */
void gradient_norm(struct backward *backward, const forward_op *op, int dy)
{
    bool layer = op->kind == OP_LAYER_NORM;
    int x = op->inputs[0], weight = op->inputs[1], bias = layer ? op->inputs[2] : -1;
    int residual = op->inputs[layer ? 3 : 2], sum = op->outputs[layer ? 3 : 2];
    int normalised = residual < 0 ? x : sum;
    int mean = -1;
    if (layer) mean = backward_add_forward_output(backward, op, 1, rows_type(backward, x), "mean");
    int rstd =
        backward_add_forward_output(backward, op, layer ? 2 : 1, rows_type(backward, x), "rstd");
    struct graph_op *made =
        backward_add_unary(backward, layer ? OP_LAYER_NORM_BACKWARD : OP_RMS_NORM_BACKWARD, op,
                           "backward", dy);
    made->attrs.norm.rounded = false;
    made->inputs[1] = normalised;
    made->inputs[2] = weight;
    made->inputs[3] = layer ? mean : rstd;
    if (layer) made->inputs[4] = rstd;
    made->inputs[layer ? 5 : 4] = backward->gradient[normalised];
    bool wanted = backward_needs(backward, x) || backward_needs(backward, residual);
    int dx = wanted ? backward_add_gradient(backward, normalised, 0) : -1;
    if (backward_needs(backward, weight)) backward_add_parameter_gradient(backward, weight, 1);
    if (backward_needs(backward, bias)) backward_add_parameter_gradient(backward, bias, 2);
    if (!wanted) return;
    if (residual < 0) {
        backward->gradient[x] = dx;
        return;
    }
    if (backward_needs(backward, x)) backward_contribute(backward, x, dx);
    if (backward_needs(backward, residual)) backward_contribute(backward, residual, dx);
}

void gradient_group_norm(struct backward *backward, const forward_op *op, int dy)
{
    int x = op->inputs[0], weight = op->inputs[1], bias = op->inputs[2];
    int64_t dims[] = {backward->builder->graph->values[x].type.dims[0],
                      op->attrs.group_norm.groups};
    struct tensor_type type = tensor_type_make(DTYPE_F32, 2, dims);
    int mean = backward_add_forward_output(backward, op, 1, type, "mean");
    int rstd = backward_add_forward_output(backward, op, 2, type, "rstd");
    struct graph_op *made =
        backward_add_unary(backward, OP_GROUP_NORM_BACKWARD, op, "backward", dy);
    made->inputs[1] = x;
    made->inputs[2] = weight;
    made->inputs[3] = mean;
    made->inputs[4] = rstd;
    int dx = backward_needs(backward, x) ? backward_add_gradient(backward, x, 0) : -1;
    if (backward_needs(backward, weight)) backward_add_parameter_gradient(backward, weight, 1);
    if (backward_needs(backward, bias)) backward_add_parameter_gradient(backward, bias, 2);
    if (dx >= 0) backward_contribute(backward, x, dx);
}

/* Every rank's sums over its part of the batch, of the norm over all ranks whose forward pass had
 * their moments. */
static int add_batch_sums(struct backward *backward, const forward_op *op, int dy, int mean,
                          int rstd)
{
    struct graph_builder *builder = backward->builder;
    struct tensor_type all = builder->graph->values[op->inputs[4]].type;
    struct tensor_type one = tensor_type_make(DTYPE_F32, 1, all.dims + 1);
    struct graph_op *made = backward_add_unary(backward, OP_BATCH_NORM_SUMS, op, "sums", dy);
    made->attrs = (union op_attrs){0};
    made->inputs[1] = op->inputs[0];
    made->inputs[2] = mean;
    made->inputs[3] = rstd;
    made->inputs[4] = op->inputs[3];
    int own = builder_add_value(builder, VALUE_GRADIENT, &one, mem_printf("%s.sums", op->name));
    builder_set_output(builder, 0, own);
    made = backward_add_unary(backward, OP_GATHER_RANKS, op, "all_sums", own);
    made->attrs = (union op_attrs){0};
    int gathered =
        builder_add_value(builder, VALUE_GRADIENT, &all, mem_printf("%s.all_sums", op->name));
    builder_set_output(builder, 0, gathered);
    return gathered;
}

void gradient_batch_norm(struct backward *backward, const forward_op *op, int dy)
{
    int x = op->inputs[0], weight = op->inputs[1], bias = op->inputs[2];
    const struct tensor_type *input = &backward->builder->graph->values[x].type;
    struct tensor_type type = tensor_type_make(DTYPE_F32, 1, input->dims + 1);
    int mean = backward_add_forward_output(backward, op, 1, type, "mean");
    int rstd = backward_add_forward_output(backward, op, 2, type, "rstd");
    int sums = op->inputs[4] >= 0 ? add_batch_sums(backward, op, dy, mean, rstd) : -1;
    struct graph_op *made =
        backward_add_unary(backward, OP_BATCH_NORM_BACKWARD, op, "backward", dy);
    made->inputs[6] = sums;
    made->inputs[1] = x;
    made->inputs[2] = weight;
    made->inputs[3] = mean;
    made->inputs[4] = rstd;
    made->inputs[5] = op->inputs[3];
    int dx = backward_needs(backward, x) ? backward_add_gradient(backward, x, 0) : -1;
    if (backward_needs(backward, weight)) backward_add_parameter_gradient(backward, weight, 1);
    if (backward_needs(backward, bias)) backward_add_parameter_gradient(backward, bias, 2);
    if (dx >= 0) backward_contribute(backward, x, dx);
}
