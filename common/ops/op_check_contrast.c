/* Checks the loss of pairs against all others, and its gradient; see CONTRASTIVE_LOSS in op.h. */
#include "ops/op_check.h"

/* The pairs of one rank, and the candidates of one pair; 0 if the sizes do not go together. */
struct pairs {
    int64_t own, candidates;
};

/* `all`: an element for each pair of every rank. */
static struct pairs find_pairs(const struct op_desc *desc, const struct tensor_type *all)
{
    const struct tensor_type *x = &desc->inputs[0];
    int64_t pairs = tensor_element_count(all);
    struct pairs none = {0, 0}, found = {x->dims[0], x->dims[1] / pairs};
    if (desc->kind == OP_CONTRASTIVE_LOSS_BACKWARD_OTHERS) {
        found.own = all->dims[all->dim_count - 1];
        found.candidates = x->dims[0] / found.own;
        bool fits = x->dims[0] % found.own == 0 && x->dims[1] == pairs;
        return fits && pairs % found.own == 0 ? found : none;
    }
    return x->dims[1] % pairs == 0 && pairs % found.own == 0 ? found : none;
}

status_t op_check_contrast(const struct op_desc *desc, const struct op_info *info)
{
    const struct tensor_type *x = &desc->inputs[0];
    bool forward = desc->kind == OP_CONTRASTIVE_LOSS;
    bool others = desc->kind == OP_CONTRASTIVE_LOSS_BACKWARD_OTHERS;
    int of_all = desc->kind == OP_CONTRASTIVE_LOSS_BACKWARD ? 2 : 1;
    const struct tensor_type *all = &desc->inputs[of_all];
    char found[128], expected[128];
    TRY(op_check_rank(info, info->inputs[0].name, x, 2));
    if (all->dim_count < 1)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %s %s must have rows", info->name,
                          info->inputs[of_all].name, tensor_format_shape(all, found));
    struct pairs pairs = find_pairs(desc, all);
    if (pairs.own < 1 || pairs.candidates < 1)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: input %s does not fit pairs %s", info->name,
                          tensor_format_shape(x, found), tensor_format_shape(all, expected));
    if (!(desc->attrs.contrast.factor > 0))
        return status_new(STATUS_INVALID_ARGUMENT, "%s: factor is %g, expected more than 0",
                          info->name, desc->attrs.contrast.factor);
    const char *name = info->inputs[0].name;
    if (others) return op_check_shape(info, info->outputs[0].name, &desc->outputs[0], x, name, x);
    struct tensor_type one = tensor_type_make(DTYPE_F32, 1, (int64_t[]){1});
    struct tensor_type rows = tensor_type_make(DTYPE_F32, 1, &pairs.own), targets = rows;
    struct tensor_type two = tensor_type_make(DTYPE_F32, 2, (int64_t[]){pairs.own, 2});
    targets.dtype = DTYPE_I32;
    if (!forward) {
        TRY(op_check_shape(info, info->inputs[1].name, &desc->inputs[1], &rows, name, x));
        return op_check_shape(info, info->outputs[0].name, &desc->outputs[0], x, name, x);
    }
    TRY(op_check_shape(info, info->inputs[2].name, &desc->inputs[2], &targets, name, x));
    TRY(op_check_shape(info, info->outputs[0].name, &desc->outputs[0], &one, name, x));
    TRY(op_check_shape(info, info->outputs[1].name, &desc->outputs[1], &two, name, x));
    return op_check_shape(info, info->outputs[2].name, &desc->outputs[2], &rows, name, x);
}
