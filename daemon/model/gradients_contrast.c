/*
 * The gradient of the loss of pairs against all others. A rank's anchors meet all candidates, so
 * their gradient is in its own rows. Its candidates meet the anchors of all ranks: it gathers these
 * with the sums of their exponentials, and makes the products of its candidates with them once
 * more. So nothing but embeddings travels, and every sum is in one order.
 */
#include "model/gradients.h"

#include "base/mem.h"

static int add_made(struct backward *backward, const struct tensor_type *type, const char *name,
                    const char *suffix)
{
    int made = builder_add_value(backward->builder, VALUE_GRADIENT, type,
                                 mem_printf("%s.%s", name, suffix));
    builder_set_output(backward->builder, 0, made);
    return made;
}

/* This rank's part of a value that was gathered and is perhaps seen as another shape; otherwise the
 * value. */
static int own_part(const struct graph *graph, int value)
{
    int from = value;
    for (int producer; (producer = graph->values[from].producer) >= 0;) {
        const struct graph_op *op = &graph->ops[producer];
        if (op->kind == OP_GATHER_RANKS) return op->inputs[0];
        if (op->kind != OP_RESHAPE) break;
        from = op->inputs[0];
    }
    return value;
}

/* What every rank has of `value`, or the value itself if there is one rank; seen as rows. */
static int gather(struct backward *backward, const forward_op *op, int value, int64_t world,
                  const char *suffix)
{
    if (world == 1) return value;
    struct tensor_type one = backward->builder->graph->values[value].type, all = one;
    all.dims[0] = world;
    for (int i = 0; i < one.dim_count; i++) all.dims[i + 1] = one.dims[i];
    all.dim_count++;
    backward_add_unary(backward, OP_GATHER_RANKS, op, suffix, value)->attrs = (union op_attrs){0};
    int gathered = add_made(backward, &all, op->name, suffix);
    if (one.dim_count == 1) return gathered;
    one.dims[0] *= world;
    backward_add_unary(backward, OP_RESHAPE, op, suffix, gathered)->attrs = (union op_attrs){0};
    return add_made(backward, &one, op->name, suffix);
}

/* Makes the gradient of `rows`, from that of their products with `others`. */
static void pass_product(struct backward *backward, const forward_op *op, int rows, int others,
                         int gradient, const char *suffix)
{
    struct graph_op *made =
        backward_add_unary(backward, OP_LINEAR_BACKWARD_DATA, op, suffix, gradient);
    made->attrs = (union op_attrs){0};
    made->inputs[1] = others;
    backward_contribute(backward, rows, backward_add_gradient(backward, rows, 0));
}

void gradient_contrastive_loss(struct backward *backward, const forward_op *op, int dy)
{
    (void)dy;
    struct graph_builder *builder = backward->builder;
    int products = op->inputs[0], counted = op->inputs[1], lse = op->outputs[2];
    const struct graph_op *product =
        &builder->graph->ops[builder->graph->values[products].producer];
    int anchors = product->inputs[0], all = product->inputs[1];
    int candidates = own_part(builder->graph, all);
    int64_t world =
        builder->graph->values[all].type.dims[0] / builder->graph->values[candidates].type.dims[0];

    if (backward_needs(backward, anchors)) {
        struct graph_op *made =
            backward_add_unary(backward, OP_CONTRASTIVE_LOSS_BACKWARD, op, "backward", products);
        made->inputs[1] = lse;
        made->inputs[2] = counted;
        int gradient = backward_add_gradient(backward, products, 0);
        pass_product(backward, op, anchors, all, gradient, "backward_anchors");
    }
    if (!backward_needs(backward, candidates)) return;

    int all_anchors = gather(backward, op, anchors, world, "all_anchors");
    int all_lse = gather(backward, op, lse, world, "all_lse");
    int64_t dims[] = {builder->graph->values[candidates].type.dims[0],
                      builder->graph->values[all_anchors].type.dims[0]};
    struct tensor_type type = tensor_type_make(DTYPE_F32, 2, dims);
    struct graph_op *made =
        backward_add_unary(backward, OP_LINEAR, op, "other_products", candidates);
    made->attrs = (union op_attrs){0};
    made->inputs[1] = all_anchors;
    int others = add_made(backward, &type, op->name, "other_products");
    backward_add_unary(backward, OP_CONTRASTIVE_LOSS_BACKWARD_OTHERS, op, "backward_others", others)
        ->inputs[1] = all_lse;
    int gradient = add_made(backward, &type, op->name, "backward_others");
    pass_product(backward, op, candidates, all_anchors, gradient, "backward_candidates");
}
