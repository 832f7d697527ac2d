/* Tensor types; see tensor.h. */
#include "ops/tensor.h"

#include <stdio.h>

struct tensor_type tensor_type_make(enum dtype dtype, int dim_count, const int64_t *dims)
{
    struct tensor_type type = {.dtype = dtype, .layout = LAYOUT_PLAIN, .dim_count = dim_count};
    for (int i = 0; i < dim_count; i++) type.dims[i] = dims[i];
    return type;
}

int64_t tensor_element_count(const struct tensor_type *type)
{
    int64_t count = 1;
    for (int i = 0; i < type->dim_count; i++) {
        int64_t dim = type->dims[i];
        if (dim <= 0 || dim > TENSOR_MAX_ELEMENTS / count) return -1;
        count *= dim;
    }
    return count;
}

size_t dtype_size(enum dtype dtype)
{
    return dtype == DTYPE_U8 ? 1 : dtype == DTYPE_BF16 ? 2 : 4;
}

const char *dtype_name(enum dtype dtype)
{
    static const char *const names[] = {"f32", "i32", "u8", "bf16"};
    return names[dtype];
}

uint64_t tensor_bytes(const struct tensor_type *type)
{
    return (uint64_t)tensor_element_count(type) * dtype_size(type->dtype);
}

bool tensor_same_shape(const struct tensor_type *a, const struct tensor_type *b)
{
    if (a->dim_count != b->dim_count) return false;
    for (int i = 0; i < a->dim_count; i++)
        if (a->dims[i] != b->dims[i]) return false;
    return true;
}

char *tensor_format_shape(const struct tensor_type *type, char text[static 128])
{
    int length = snprintf(text, 128, "(");
    for (int i = 0; i < type->dim_count; i++)
        length += snprintf(text + length, 128 - (size_t)length, i ? ", %lld" : "%lld",
                           (long long)type->dims[i]);
    snprintf(text + length, 128 - (size_t)length, type->dim_count == 1 ? ",)" : ")");
    return text;
}
