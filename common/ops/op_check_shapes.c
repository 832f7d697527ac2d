/* Checks of ops that move elements between shapes; see op_check.h. */
#include "ops/op_check.h"

static status_t check_dim(const struct op_info *info, struct operand x, int64_t dim)
{
    char shape[128];
    if (dim >= 0 && dim < x.type->dim_count) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "%s: %s %s has no dimension %lld", info->name,
                      x.name, tensor_format_shape(x.type, shape), (long long)dim);
}

status_t op_check_transpose(const struct op_desc *desc, const struct op_info *info)
{
    struct operand x = op_check_input(desc, 0), y = op_check_output(desc, 0);
    const int64_t *dims = desc->attrs.transpose.dims;
    TRY(check_dim(info, x, dims[0]));
    TRY(check_dim(info, x, dims[1]));
    if (dims[0] >= dims[1])
        return status_new(STATUS_INVALID_ARGUMENT, "%s: dimensions %lld and %lld do not ascend",
                          info->name, (long long)dims[0], (long long)dims[1]);
    struct tensor_type expected = *x.type;
    expected.dims[dims[0]] = x.type->dims[dims[1]];
    expected.dims[dims[1]] = x.type->dims[dims[0]];
    return op_check_shape(info, y.name, y.type, &expected, x.name, x.type);
}

static struct tensor_type without_dim(const struct tensor_type *type, int64_t dim)
{
    struct tensor_type made = *type;
    made.dim_count--;
    for (int64_t i = dim; i < made.dim_count; i++) made.dims[i] = type->dims[i + 1];
    return made;
}

status_t op_check_slice(const struct op_desc *desc, const struct op_info *info)
{
    bool forward = desc->kind == OP_SLICE;
    struct operand x = forward ? op_check_input(desc, 0) : op_check_output(desc, 0);
    struct operand y = forward ? op_check_output(desc, 0) : op_check_input(desc, 0);
    int64_t dim = desc->attrs.slice.dim, start = desc->attrs.slice.start;
    TRY(check_dim(info, x, dim));
    bool gone = y.type->dim_count + 1 == x.type->dim_count;
    int64_t length = gone || dim >= y.type->dim_count ? 1 : y.type->dims[dim];
    if (start < 0 || start >= x.type->dims[dim] || length > x.type->dims[dim] - start)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: %lld from %lld on are not all in dimension %lld, of %lld",
                          info->name, (long long)length, (long long)start, (long long)dim,
                          (long long)x.type->dims[dim]);
    struct tensor_type expected = *x.type;
    expected.dims[dim] = length;
    if (gone) expected = without_dim(&expected, dim);
    if (!forward && desc->input_present[1]) {
        struct operand other = op_check_input(desc, 1);
        TRY(op_check_shape(info, other.name, other.type, x.type, x.name, x.type));
    }
    return op_check_shape(info, y.name, y.type, &expected, x.name, x.type);
}

status_t op_check_concat(const struct op_desc *desc, const struct op_info *info)
{
    struct operand y = op_check_output(desc, 0),
                   parts[] = {op_check_input(desc, 0), op_check_input(desc, 1)};
    int64_t dim = desc->attrs.concat.dim, total = 0;
    TRY(check_dim(info, y, dim));
    for (int i = 0; i < 2; i++) {
        int missing = y.type->dim_count - parts[i].type->dim_count;
        if (missing < 0 || missing > dim)
            return op_check_shape(info, parts[i].name, parts[i].type, y.type, y.name, y.type);
        struct tensor_type expected = *parts[i].type;
        for (int k = 0; k < expected.dim_count; k++)
            if (k + missing != dim) expected.dims[k] = y.type->dims[k + missing];
        TRY(op_check_shape(info, parts[i].name, parts[i].type, &expected, y.name, y.type));
        total += parts[i].type->dims[dim - missing];
    }
    struct tensor_type expected = *y.type;
    expected.dims[dim] = total;
    return op_check_shape(info, y.name, y.type, &expected, parts[0].name, parts[0].type);
}

status_t op_check_mean(const struct op_desc *desc, const struct op_info *info)
{
    bool forward = desc->kind == OP_MEAN;
    struct operand x = forward ? op_check_input(desc, 0) : op_check_output(desc, 0);
    struct operand y = forward ? op_check_output(desc, 0) : op_check_input(desc, 0);
    TRY(check_dim(info, x, desc->attrs.mean.dim));
    struct tensor_type expected = without_dim(x.type, desc->attrs.mean.dim);
    if (desc->attrs.mean.sum && desc->input_present[1])
        return status_new(STATUS_INVALID_ARGUMENT, "%s: a sum has no mask", info->name);
    if (desc->input_present[1]) {
        struct operand mask = op_check_input(desc, 1);
        struct tensor_type places =
            tensor_type_make(DTYPE_U8, (int)desc->attrs.mean.dim + 1, x.type->dims);
        TRY(op_check_shape(info, mask.name, mask.type, &places, x.name, x.type));
    } else if (desc->attrs.mean.last) {
        return status_new(STATUS_INVALID_ARGUMENT, "%s: the last place needs a mask", info->name);
    }
    return op_check_shape(info, y.name, y.type, &expected, x.name, x.type);
}
