/* The gradients of losses, and of a head that is fused with one. The gradient of the loss itself is
 * 1 and has no value in the graph. */
#include "model/gradients.h"

#include <stdlib.h>

#include "base/mem.h"

void gradient_nll_loss(struct backward *backward, const forward_op *op, int dy)
{
    (void)dy;
    backward_add_unary(backward, OP_NLL_LOSS_BACKWARD, op, "backward", op->inputs[1]);
    backward_contribute(backward, op->inputs[0], backward_add_gradient(backward, op->inputs[0], 0));
}

void gradient_cross_entropy(struct backward *backward, const forward_op *op, int dy)
{
    (void)dy;
    backward_add_unary(backward, OP_CROSS_ENTROPY_BACKWARD, op, "backward", op->outputs[1])
        ->inputs[1] = op->inputs[1];
    backward_contribute(backward, op->inputs[0], backward_add_gradient(backward, op->inputs[0], 0));
}

void gradient_element_loss(struct backward *backward, const forward_op *op, int dy)
{
    (void)dy;
    struct graph_op *made =
        backward_add_unary(backward, OP_ELEMENT_LOSS_BACKWARD, op, "backward", op->inputs[0]);
    made->inputs[1] = op->inputs[1];
    made->inputs[2] = op->inputs[2];
    int dx = backward_add_gradient(backward, op->inputs[0], 0);
    if (backward_needs(backward, op->inputs[1])) { /* of differences, which change their sign */
        backward_add_unary(backward, OP_SCALE, op, "backward_other", dx)->attrs =
            (union op_attrs){.scale = {-1, 0}};
        backward_contribute(backward, op->inputs[1],
                            backward_add_gradient(backward, op->inputs[1], 0));
    }
    if (backward_needs(backward, op->inputs[0])) backward_contribute(backward, op->inputs[0], dx);
}

void gradient_sequence_log_probs(struct backward *backward, const forward_op *op, int dy)
{
    struct graph_op *made =
        backward_add_unary(backward, OP_SEQUENCE_LOG_PROBS_BACKWARD, op, "backward", dy);
    made->inputs[1] = op->inputs[0];
    made->inputs[2] = op->inputs[1];
    made->inputs[3] = op->outputs[2];
    made->inputs[4] = op->inputs[2];
    backward_contribute(backward, op->inputs[0], backward_add_gradient(backward, op->inputs[0], 0));
}

/* The loss made it together with its value: a number for each row. The reference is not trained. */
void gradient_preference_loss(struct backward *backward, const forward_op *op, int dy)
{
    (void)dy;
    backward_contribute(backward, op->inputs[0], op->outputs[2]);
}

void gradient_turn_head(struct backward *backward)
{
    struct graph *graph = backward->builder->graph;
    struct graph_op *op = &graph->ops[graph->op_count - 1];
    if (op->kind != OP_LINEAR_CROSS_ENTROPY) return;
    int x = op->inputs[0], weight = op->inputs[1], bias = op->inputs[2];
    char *name = mem_printf("%s.backward", op->name);
    free(op->name);
    op->name = name;
    op->kind = OP_LINEAR_CROSS_ENTROPY_BACKWARD;
    op->backward = true;
    op->forward = --graph->forward_op_count;
    if (backward_needs(backward, x))
        backward_contribute(backward, x, backward_add_gradient(backward, x, 1));
    if (backward_needs(backward, weight)) backward_add_parameter_gradient(backward, weight, 2);
    if (backward_needs(backward, bias)) backward_add_parameter_gradient(backward, bias, 3);
}
