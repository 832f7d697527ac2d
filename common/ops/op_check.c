/*
 * The only place that checks an op's operands. Model files are hostile until checked here, so every
 * factor is bounded before sizes are multiplied. Pure functions; any thread.
 */
#include "ops/op_check.h"

#include "ops/op_attributes.h"

/* bf16 if the first of the operands with a common type is: a backward op may only write them. */
static enum dtype find_real_dtype(const struct op_desc *desc, const struct op_info *info)
{
    for (int i = 0; i < info->input_count; i++)
        if (desc->input_present[i] && info->inputs[i].type == OPERAND_REAL)
            return desc->inputs[i].dtype == DTYPE_BF16 ? DTYPE_BF16 : DTYPE_F32;
    return DTYPE_F32;
}

/* Requirements for an operand. */
static enum dtype expected_dtype(enum operand_type type, enum dtype real,
                                 const struct tensor_type *found)
{
    switch (type) {
    case OPERAND_REAL: return real;
    case OPERAND_ANY_REAL: return found->dtype == DTYPE_BF16 ? DTYPE_BF16 : DTYPE_F32;
    case OPERAND_F32: return DTYPE_F32;
    case OPERAND_I32: return DTYPE_I32;
    case OPERAND_U8: return DTYPE_U8;
    }
    return DTYPE_F32;
}

static status_t check_type(const struct op_info *info, const char *operand,
                           const struct tensor_type *type, enum dtype expected)
{
    if (type->dim_count < 0 || type->dim_count > TENSOR_MAX_DIMS)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %s has %d dimensions, at most %d can be",
                          info->name, operand, type->dim_count, TENSOR_MAX_DIMS);
    char shape[128];
    if (tensor_element_count(type) < 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: %s %s: every dimension must be positive and all together at most "
                          "2^40 elements",
                          info->name, operand, tensor_format_shape(type, shape));
    if (type->dtype != expected) {
        bool known = (unsigned)type->dtype <= DTYPE_BF16;
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %s %s is of type %s, expected %s",
                          info->name, operand, tensor_format_shape(type, shape),
                          known ? dtype_name(type->dtype) : "unknown", dtype_name(expected));
    }
    return NULL;
}

static status_t check_presence(const struct op_info *info, const char *operand, bool present,
                               bool optional)
{
    if (present || optional) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "%s: %s is missing", info->name, operand);
}

static status_t check_operands(const struct op_desc *desc, const struct op_info *info)
{
    if (desc->input_count != info->input_count || desc->output_count != info->output_count)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: has %d inputs and %d outputs, expected %d and %d", info->name,
                          desc->input_count, desc->output_count, info->input_count,
                          info->output_count);
    enum dtype real = find_real_dtype(desc, info);
    for (int i = 0; i < info->input_count; i++) {
        const char *operand = info->inputs[i].name;
        const struct tensor_type *type = &desc->inputs[i];
        TRY(check_presence(info, operand, desc->input_present[i], info->inputs[i].optional));
        if (!desc->input_present[i]) continue;
        TRY(check_type(info, operand, type, expected_dtype(info->inputs[i].type, real, type)));
    }
    for (int i = 0; i < info->output_count; i++) {
        const char *operand = info->outputs[i].name;
        const struct tensor_type *type = &desc->outputs[i];
        TRY(check_presence(info, operand, desc->output_present[i], info->outputs[i].optional));
        if (!desc->output_present[i]) continue;
        TRY(check_type(info, operand, type, expected_dtype(info->outputs[i].type, real, type)));
        if (desc->accumulate[i] && type->dtype != DTYPE_F32)
            return status_new(STATUS_INVALID_ARGUMENT, "%s: %s cannot be accumulated", info->name,
                              operand);
    }
    return NULL;
}

status_t op_check_rank(const struct op_info *info, const char *operand,
                       const struct tensor_type *type, int dim_count)
{
    if (type->dim_count == dim_count) return NULL;
    char shape[128];
    return status_new(STATUS_INVALID_ARGUMENT, "%s: %s %s must have %d dimensions", info->name,
                      operand, tensor_format_shape(type, shape), dim_count);
}

status_t op_check_shape(const struct op_info *info, const char *operand,
                        const struct tensor_type *found, const struct tensor_type *expected,
                        const char *source_name, const struct tensor_type *source)
{
    if (tensor_same_shape(found, expected)) return NULL;
    char found_text[128], expected_text[128], source_text[128];
    return status_new(STATUS_INVALID_ARGUMENT, "%s: %s is %s, but with %s %s it must be %s",
                      info->name, operand, tensor_format_shape(found, found_text), source_name,
                      tensor_format_shape(source, source_text),
                      tensor_format_shape(expected, expected_text));
}

struct operand op_check_input(const struct op_desc *desc, int index)
{
    return (struct operand){op_info_get(desc->kind)->inputs[index].name,
                            desc->input_present[index] ? &desc->inputs[index] : NULL};
}

struct operand op_check_output(const struct op_desc *desc, int index)
{
    return (struct operand){op_info_get(desc->kind)->outputs[index].name,
                            desc->output_present[index] ? &desc->outputs[index] : NULL};
}

status_t op_check_same_shapes(const struct op_desc *desc, const struct op_info *info)
{
    struct operand first = op_check_input(desc, 0);
    for (int i = 1; i < info->input_count; i++)
        TRY(op_check_shape(info, info->inputs[i].name, &desc->inputs[i], first.type, first.name,
                           first.type));
    for (int i = 0; i < info->output_count; i++)
        TRY(op_check_shape(info, info->outputs[i].name, &desc->outputs[i], first.type, first.name,
                           first.type));
    return NULL;
}

status_t op_check_reshape(const struct op_desc *desc, const struct op_info *info)
{
    const struct tensor_type *x = &desc->inputs[0], *y = &desc->outputs[0];
    if (tensor_element_count(x) == tensor_element_count(y)) return NULL;
    char x_text[128], y_text[128];
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s: input %s has %lld elements, but output %s has %lld", info->name,
                      tensor_format_shape(x, x_text), (long long)tensor_element_count(x),
                      tensor_format_shape(y, y_text), (long long)tensor_element_count(y));
}

status_t op_check_cast(const struct op_desc *desc, const struct op_info *info)
{
    if (desc->inputs[0].dtype == DTYPE_BF16 && desc->outputs[0].dtype == DTYPE_BF16)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: output is of type bf16, expected f32",
                          info->name);
    return op_check_same_shapes(desc, info);
}

status_t op_desc_check(const struct op_desc *desc)
{
    if ((unsigned)desc->kind >= OP_KIND_COUNT)
        return status_new(STATUS_INVALID_ARGUMENT, "op kind %d is unknown", (int)desc->kind);
    const struct op_info *info = op_info_get(desc->kind);
    TRY(check_operands(desc, info));
    TRY(op_attributes_check(desc->kind, &desc->attrs));
    return info->check(desc, info);
}
