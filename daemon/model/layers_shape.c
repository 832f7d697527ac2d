/* See layers_internal.h. Pure. */
#include "model/layers_internal.h"

#include <stdio.h>
#include <string.h>

status_t make_flatten(const struct bound *bound, struct layer *layer)
{
    layer->function = "flatten";
    layer->start_dim = (int)bound_integer(bound, "start_dim");
    layer->end_dim = (int)bound_integer(bound, "end_dim");
    layer->sizes[layer->size_count++] = BOUND_INFERRED;
    return NULL;
}

static void take_sizes(const struct bound *bound, int first, struct layer *layer)
{
    layer->function = bound->signature->name;
    for (int i = first; i < bound->shape_count; i++)
        layer->sizes[layer->size_count++] = bound->shape[i];
}

status_t make_unflatten(const struct bound *bound, struct layer *layer)
{
    if (bound->shape[0] == BOUND_BATCH)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "unflatten(): argument 'sizes': none of them is the batch's");
    layer->start_dim = layer->end_dim = (int)bound_integer(bound, "dim");
    take_sizes(bound, 0, layer);
    return NULL;
}

/* A new dimension of size 1: the sizes replace none. */
status_t make_unsqueeze(const struct bound *bound, struct layer *layer)
{
    layer->function = "unsqueeze";
    layer->start_dim = (int)bound_integer(bound, "dim");
    layer->end_dim = layer->start_dim - 1;
    layer->sizes[layer->size_count++] = 1;
    return NULL;
}

/* The batch is what it is: shape[0] only has its place. */
status_t make_reshape(const struct bound *bound, struct layer *layer)
{
    if (bound->shape[0] > 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "reshape(): argument 'shape': the batch dimension comes first, as -1 or "
                          "x.shape[0]; found %lld",
                          (long long)bound->shape[0]);
    layer->start_dim = 1;
    layer->end_dim = -1;
    take_sizes(bound, 1, layer);
    return NULL;
}

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

status_t make_sum(const struct bound *bound, struct layer *layer)
{
    layer->dim = (int)bound_integer(bound, "dim");
    layer->attrs.mean.sum = true;
    return NULL;
}

status_t make_max(const struct bound *bound, struct layer *layer)
{
    layer->dim = (int)bound_integer(bound, "dim");
    layer->largest = true;
    return NULL;
}

bool layer_has_shape(const struct layer *layer)
{
    return layer->kind == OP_RESHAPE || layer->kind == OP_TRANSPOSE || layer->kind == OP_SLICE ||
           layer->kind == OP_CONCAT || layer->kind == OP_MEAN || layer->kind == OP_MEAN_BACKWARD ||
           layer->kind == OP_MATMUL;
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

/* "(4, -1)" */
static const char *format_sizes(const struct layer *layer, char text[static 128])
{
    size_t length = 0;
    for (int i = 0; i < layer->size_count; i++)
        length += (size_t)snprintf(text + length, 128 - length, "%s%lld", i > 0 ? ", " : "(",
                                   (long long)layer->sizes[i]);
    snprintf(text + length, 128 - length, "%s)", layer->size_count == 0 ? "(" : "");
    return text;
}

/* The size that is inferred, of `count` elements; 0 if the sizes do not make these. */
static int64_t infer_size(const struct layer *layer, int64_t count)
{
    bool inferred = false;
    for (int i = 0; i < layer->size_count; i++) {
        inferred |= layer->sizes[i] == BOUND_INFERRED;
        if (layer->sizes[i] == BOUND_INFERRED) continue;
        if (count % layer->sizes[i] != 0) return 0;
        count /= layer->sizes[i];
    }
    return inferred || count == 1 ? count : 0;
}

static status_t check_reshape(const struct layer *layer, const struct tensor_type *x, int first,
                              int last)
{
    char shape[128];
    bool joins = strcmp(layer->function, "flatten") == 0;
    tensor_format_shape(x, shape);
    if (first == 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          joins ? "%s: start_dim=%d would join the batch dimension of %s; use "
                                  "start_dim=1"
                                : "%s: dim=%d would split the batch dimension of %s",
                          layer->function, layer->start_dim, shape);
    if (joins && (first < 0 || first >= x->dim_count || last < first || last >= x->dim_count))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "flatten: start_dim=%d, end_dim=%d do not name dimensions of %s",
                          layer->start_dim, layer->end_dim, shape);
    if (first < 0 || last >= x->dim_count)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: dim=%d is no dimension of %s",
                          layer->function, layer->start_dim, shape);
    if (x->dim_count - (last - first + 1) + layer->size_count <= TENSOR_MAX_DIMS) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "%s: %s would have more than %d dimensions",
                      layer->function, shape, TENSOR_MAX_DIMS);
}

/* The sizes take the place of some dimensions, never of the batch. */
static status_t reshape_shape(const struct layer *layer, const struct tensor_type *x,
                              struct tensor_type *y)
{
    bool adds = strcmp(layer->function, "unsqueeze") == 0;
    int first = layer->start_dim < 0 ? layer->start_dim + x->dim_count + adds : layer->start_dim;
    int last = layer->end_dim < 0 ? layer->end_dim + x->dim_count : layer->end_dim;
    if (adds) last = first - 1;
    TRY(check_reshape(layer, x, first, last));
    int64_t count = 1;
    for (int i = first; i <= last; i++) count *= x->dims[i];
    int64_t inferred = infer_size(layer, count);
    char shape[128], sizes[128];
    if (inferred == 0)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: the sizes %s do not make %lld, of %s",
                          layer->function, format_sizes(layer, sizes), (long long)count,
                          tensor_format_shape(x, shape));
    *y = (struct tensor_type){.dtype = x->dtype};
    for (int i = 0; i < first; i++) y->dims[y->dim_count++] = x->dims[i];
    for (int i = 0; i < layer->size_count; i++)
        y->dims[y->dim_count++] = layer->sizes[i] > 0 ? layer->sizes[i] : inferred;
    for (int i = last + 1; i < x->dim_count; i++) y->dims[y->dim_count++] = x->dims[i];
    return NULL;
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

/* The places start ... stop - 1 of `size`, as in Python. */
static status_t cut_range(const struct layer *layer, int64_t size, int64_t *start, int64_t *length)
{
    int64_t stop = layer->stop < 0 ? layer->stop + size : layer->stop;
    if (stop > size) stop = size;
    if (*start < 0) *start += size;
    if (*start < 0) *start = 0;
    *length = stop - *start;
    if (*length > 0) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "slice: %lld:%lld of %lld places is empty",
                      (long long)layer->start, (long long)stop, (long long)size);
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
    if (layer->has_stop) TRY(cut_range(layer, x->dims[dim], &start, &length));
    attrs->slice.dim = dim;
    attrs->slice.start = start < 0 ? start + x->dims[dim] : start;
    y->dims[dim] = length;
    if (layer->length == 0 && layer->chunks == 0 && !layer->has_stop) remove_dim(y, dim);
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

/* A new dimension of `length` places, in front of those from `dim` on. */
static status_t repeat_shape(const struct layer *layer, union op_attrs *attrs,
                             struct tensor_type *y)
{
    char shape[128];
    if (layer->dim > y->dim_count || y->dim_count >= TENSOR_MAX_DIMS)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: dim=%d is no dimension of %s",
                          layer->function, layer->dim - 1, tensor_format_shape(y, shape));
    attrs->mean.dim = layer->dim;
    for (int i = y->dim_count++; i > layer->dim; i--) y->dims[i] = y->dims[i - 1];
    y->dims[layer->dim] = layer->length;
    return NULL;
}

/* (.., m, k) times (.., k, n); what does not fit, the op's check reports. */
static status_t matmul_shape(const struct tensor_type *a, const struct tensor_type *b,
                             struct tensor_type *y)
{
    char first[128], second[128];
    if (a->dim_count < 2 || b->dim_count < 2 ||
        a->dims[a->dim_count - 1] != b->dims[b->dim_count - 2])
        return status_new(STATUS_INVALID_ARGUMENT,
                          "matmul: %s times %s: the last dimension of the first must be the last "
                          "but one of the second",
                          tensor_format_shape(a, first), tensor_format_shape(b, second));
    int64_t rows = a->dims[a->dim_count - 2];
    *y = a->dim_count >= b->dim_count ? *a : *b;
    y->dims[y->dim_count - 2] = rows;
    y->dims[y->dim_count - 1] = b->dims[b->dim_count - 1];
    return NULL;
}

status_t layer_shape(const struct layer *layer, const struct tensor_type *a,
                     const struct tensor_type *b, union op_attrs *attrs, struct tensor_type *y)
{
    int64_t dim;
    *y = *a;
    switch (layer->kind) {
    case OP_RESHAPE: return reshape_shape(layer, a, y);
    case OP_TRANSPOSE: return transpose_shape(layer, a, attrs, y);
    case OP_SLICE: return slice_shape(layer, a, attrs, y);
    case OP_CONCAT: return concat_shape(layer, a, b, attrs, y);
    case OP_MEAN_BACKWARD: return repeat_shape(layer, attrs, y);
    case OP_MATMUL: return matmul_shape(a, b, y);
    default: /* a mean */
        TRY(find_dim(layer, layer->dim, a, &dim));
        attrs->mean.dim = dim;
        remove_dim(y, dim);
        return NULL;
    }
}

void layer_leave_out_batch(enum op_kind kind, union op_attrs *attrs)
{
    switch (kind) {
    case OP_TRANSPOSE:
        attrs->transpose.dims[0]--;
        attrs->transpose.dims[1]--;
        break;
    case OP_SLICE: attrs->slice.dim--; break;
    case OP_CONCAT: attrs->concat.dim--; break;
    case OP_MEAN:
    case OP_MEAN_BACKWARD: attrs->mean.dim--; break;
    default: break;
    }
}
