/* Checks of LSTM and GRU. */
#include "ops/op_check.h"

/* Rows of y with as many columns of a gate's width. */
static struct tensor_type widened(const struct tensor_type *y, int64_t parts)
{
    struct tensor_type wide = *y;
    wide.dims[2] *= parts;
    return wide;
}

status_t op_check_recurrent(const struct op_desc *desc, const struct op_info *info)
{
    bool backward = desc->kind == OP_RECURRENT_BACKWARD;
    bool gru = desc->attrs.recurrent.kind == RECURRENCE_GRU;
    struct operand y = backward ? op_check_input(desc, 1) : op_check_output(desc, 0);
    TRY(op_check_rank(info, y.name, y.type, 3));
    int64_t gates = gru ? 3 : 4, columns = gates * y.type->dims[2];
    struct tensor_type x = widened(y.type, gates), state = widened(y.type, gates + 1);
    struct tensor_type weight =
        tensor_type_make(DTYPE_F32, 2, (int64_t[]){columns, y.type->dims[2]});
    struct tensor_type bias = tensor_type_make(DTYPE_F32, 1, &columns);
    const struct tensor_type *inputs[] = {&x, &weight, &bias}, *outputs[] = {y.type, &state};
    const struct tensor_type *given[] = {y.type, y.type, &weight, &state},
                             *made[] = {&x, &x, y.type};
    for (int i = 0; i < info->input_count; i++)
        if (desc->input_present[i])
            TRY(op_check_shape(info, info->inputs[i].name, &desc->inputs[i],
                               backward ? given[i] : inputs[i], y.name, y.type));
    for (int i = 0; i < info->output_count; i++) {
        if (!desc->output_present[i]) continue;
        if (desc->accumulate[i])
            return status_new(STATUS_INVALID_ARGUMENT, "%s: %s is not added to existing values",
                              info->name, info->outputs[i].name);
        TRY(op_check_shape(info, info->outputs[i].name, &desc->outputs[i],
                           backward ? made[i] : outputs[i], y.name, y.type));
    }
    return NULL;
}
