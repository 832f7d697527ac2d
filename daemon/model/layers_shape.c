/* See layers_shape.h. Pure. */
#include "model/layers_shape.h"

status_t make_transpose(const struct bound *bound, struct layer *layer)
{
    layer->start_dim = (int)bound_integer(bound, "dim0");
    layer->end_dim = (int)bound_integer(bound, "dim1");
    return NULL;
}

status_t make_narrow(const struct bound *bound, struct layer *layer)
{
    layer->dim = (int)bound_integer(bound, "dim");
    layer->start = bound_integer(bound, "start");
    layer->length = bound_integer(bound, "length");
    return NULL;
}

status_t make_select(const struct bound *bound, struct layer *layer)
{
    layer->dim = (int)bound_integer(bound, "dim");
    layer->start = bound_integer(bound, "index");
    return NULL;
}

status_t make_chunk(const struct bound *bound, struct layer *layer)
{
    layer->dim = (int)bound_integer(bound, "dim");
    layer->chunks = bound_integer(bound, "chunks");
    layer->start = bound_integer(bound, "index");
    if (layer->start >= -layer->chunks && layer->start < layer->chunks) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "chunk(): there is no part %lld of %lld",
                      (long long)layer->start, (long long)layer->chunks);
}

status_t make_last(const struct bound *bound, struct layer *layer)
{
    layer->dim = (int)bound_integer(bound, "dim");
    layer->attrs.mean.last = true;
    return NULL;
}

bool layer_has_shape(const struct layer *layer)
{
    return layer->kind == OP_TRANSPOSE || layer->kind == OP_SLICE || layer->kind == OP_CONCAT ||
           layer->kind == OP_MEAN;
}

/* The dimension from the front. */
static status_t find_dim(const struct layer *layer, int dim, const struct tensor_type *x,
                         int64_t *found)
{
    const char *name = op_info_get(layer->kind)->name;
    char shape[128];
    *found = dim < 0 ? dim + x->dim_count : dim;
    if (*found == 0)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: dim=%d is the batch dimension of %s", name,
                          dim, tensor_format_shape(x, shape));
    if (*found > 0 && *found < x->dim_count) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "%s: dim=%d is no dimension of %s", name, dim,
                      tensor_format_shape(x, shape));
}

static void remove_dim(struct tensor_type *type, int64_t dim)
{
    type->dim_count--;
    for (int64_t i = dim; i < type->dim_count; i++) type->dims[i] = type->dims[i + 1];
}

static status_t transpose_shape(const struct layer *layer, const struct tensor_type *x,
                                union op_attrs *attrs, struct tensor_type *y)
{
    int64_t first, second;
    TRY(find_dim(layer, layer->start_dim, x, &first));
    TRY(find_dim(layer, layer->end_dim, x, &second));
    attrs->transpose.dims[0] = first < second ? first : second;
    attrs->transpose.dims[1] = first < second ? second : first;
    y->dims[first] = x->dims[second];
    y->dims[second] = x->dims[first];
    return NULL;
}

static status_t slice_shape(const struct layer *layer, const struct tensor_type *x,
                            union op_attrs *attrs, struct tensor_type *y)
{
    int64_t dim, start = layer->start, length = layer->length > 0 ? layer->length : 1;
    TRY(find_dim(layer, layer->dim, x, &dim));
    char shape[128];
    if (layer->chunks > 0) {
        if (x->dims[dim] % layer->chunks != 0)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "chunk: dimension %lld of %s has no %lld equal parts", (long long)dim,
                              tensor_format_shape(x, shape), (long long)layer->chunks);
        length = x->dims[dim] / layer->chunks;
        start = (start < 0 ? start + layer->chunks : start) * length;
    }
    attrs->slice.dim = dim;
    attrs->slice.start = start < 0 ? start + x->dims[dim] : start;
    y->dims[dim] = length;
    if (layer->length == 0 && layer->chunks == 0) remove_dim(y, dim);
    return NULL;
}

static status_t concat_shape(const struct layer *layer, const struct tensor_type *a,
                             const struct tensor_type *b, union op_attrs *attrs,
                             struct tensor_type *y)
{
    const struct tensor_type *larger = a->dim_count >= b->dim_count ? a : b;
    const struct tensor_type *smaller = larger == a ? b : a;
    int64_t dim, missing = larger->dim_count - smaller->dim_count;
    TRY(find_dim(layer, layer->dim, larger, &dim));
    attrs->concat.dim = dim;
    *y = *larger;
    if (dim >= missing) y->dims[dim] += smaller->dims[dim - missing];
    return NULL;
}

status_t layer_shape(const struct layer *layer, const struct tensor_type *a,
                     const struct tensor_type *b, union op_attrs *attrs, struct tensor_type *y)
{
    int64_t dim;
    *y = *a;
    switch (layer->kind) {
    case OP_TRANSPOSE: return transpose_shape(layer, a, attrs, y);
    case OP_SLICE: return slice_shape(layer, a, attrs, y);
    case OP_CONCAT: return concat_shape(layer, a, b, attrs, y);
    default: /* a mean */
        TRY(find_dim(layer, layer->dim, a, &dim));
        attrs->mean.dim = dim;
        remove_dim(y, dim);
        return NULL;
    }
}
