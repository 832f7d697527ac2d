/* Checks the loss of pairs of sequences, and the log-probabilities that it is made of; see
 * PREFERENCE_LOSS in op.h. */
#include "ops/op_check.h"

static struct tensor_type rows_of(const struct tensor_type *x, int dim_count, enum dtype dtype)
{
    return tensor_type_make(dtype, dim_count, x->dims);
}

static status_t check_sequences(const struct op_desc *desc, const struct op_info *info)
{
    bool forward = desc->kind == OP_SEQUENCE_LOG_PROBS;
    int first = forward ? 0 : 1; /* the place of x */
    const struct tensor_type *x = &desc->inputs[first];
    const char *name = info->inputs[first].name;
    TRY(op_check_rank(info, name, x, 3));
    int last = forward ? 2 : 4; /* the place of starts */
    bool packed = desc->input_present[last];
    struct tensor_type rows = rows_of(x, packed ? 2 : 1, DTYPE_F32);
    struct tensor_type places = rows_of(x, 2, DTYPE_F32), target = rows_of(x, 2, DTYPE_I32);
    if (packed)
        TRY(op_check_shape(info, info->inputs[last].name, &desc->inputs[last], &target, name, x));
    TRY(op_check_shape(info, info->inputs[first + 1].name, &desc->inputs[first + 1], &target, name,
                       x));
    if (!forward) {
        TRY(op_check_shape(info, info->inputs[0].name, &desc->inputs[0], &rows, name, x));
        TRY(op_check_shape(info, info->inputs[3].name, &desc->inputs[3], &places, name, x));
        return op_check_shape(info, info->outputs[0].name, &desc->outputs[0], x, name, x);
    }
    TRY(op_check_shape(info, info->outputs[0].name, &desc->outputs[0], &rows, name, x));
    TRY(op_check_shape(info, info->outputs[1].name, &desc->outputs[1], &rows, name, x));
    return op_check_shape(info, info->outputs[2].name, &desc->outputs[2], &places, name, x);
}

status_t op_check_preference(const struct op_desc *desc, const struct op_info *info)
{
    if (desc->kind != OP_PREFERENCE_LOSS) return check_sequences(desc, info);
    const struct tensor_type *x = &desc->inputs[0];
    const char *name = info->inputs[0].name;
    double beta = desc->attrs.preference.beta, rest = desc->attrs.preference.label_smoothing;
    bool packed = desc->input_present[3];
    int rank = packed ? 2 : 1; /* without a last dimension of 1 */
    bool column = x->dim_count == rank + 1 && x->dims[rank] == 1;
    if (!column) TRY(op_check_rank(info, name, x, rank));
    if (!packed && x->dims[0] % 2 != 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: %s has %lld rows, expected pairs, an even number", info->name, name,
                          (long long)x->dims[0]);
    if (!(beta > 0) || !(rest >= 0 && rest < 0.5))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: beta is %g and label_smoothing %g; expected more than 0, and 0 to "
                          "less than 0.5",
                          info->name, beta, rest);
    struct tensor_type one = tensor_type_make(DTYPE_F32, 1, (int64_t[]){1});
    struct tensor_type sums = tensor_type_make(DTYPE_F32, 1, (int64_t[]){PREFERENCE_SUMS});
    struct tensor_type rows = rows_of(x, packed ? 2 : 1, DTYPE_F32);
    struct tensor_type starts = rows_of(x, 2, DTYPE_I32);
    if (packed) TRY(op_check_shape(info, info->inputs[3].name, &desc->inputs[3], &starts, name, x));
    for (int i = 1; i < 3; i++)
        if (desc->input_present[i])
            TRY(op_check_shape(info, info->inputs[i].name, &desc->inputs[i], &rows, name, x));
    TRY(op_check_shape(info, info->outputs[0].name, &desc->outputs[0], &one, name, x));
    TRY(op_check_shape(info, info->outputs[1].name, &desc->outputs[1], &sums, name, x));
    return op_check_shape(info, info->outputs[2].name, &desc->outputs[2], x, name, x);
}
