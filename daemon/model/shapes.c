/*
 * Infers the shape of each call's result from its inputs' shapes. For an input that the op cannot
 * take, the result has some shape; the check of the whole op (op_desc_check) then reports the
 * error. Pure.
 */
#include <string.h>

#include "model/graph_builder.h"
#include "model/layers_internal.h"
#include "model/program.h"

/* The index of a dimension; a negative one counts from the end. -1 if it is out of range. */
static int normal_dim(int dim, int dim_count)
{
    if (dim < 0) dim += dim_count;
    return dim >= 0 && dim < dim_count ? dim : -1;
}

static struct tensor_type window_shape(const struct tensor_type *x, int64_t channels,
                                       const int64_t kernel[2], const int64_t stride[2],
                                       const int64_t padding[2], const int64_t dilation[2])
{
    struct tensor_type y = *x;
    if (x->dim_count != 4) return y;
    y.dims[1] = channels;
    for (int i = 0; i < 2; i++) {
        int64_t size =
            op_window_output(x->dims[2 + i], kernel[i], stride[i], padding[i], dilation[i]);
        y.dims[2 + i] = size > 0 ? size : 1;
    }
    return y;
}

/* Of a transposed convolution: the image that the convolution makes x of, and output_padding more.
 */
static struct tensor_type transposed_shape(const struct layer *layer, const struct tensor_type *x,
                                           const struct tensor_type *weight)
{
    struct tensor_type y = *x;
    if (x->dim_count != 4) return y;
    y.dims[1] = weight->dims[1] * layer->attrs.conv.groups;
    for (int i = 0; i < 2; i++) {
        int64_t size = (x->dims[2 + i] - 1) * layer->attrs.conv.stride[i] + 1 + layer->sizes[i] +
                       layer->attrs.conv.dilation[i] * (weight->dims[2 + i] - 1) -
                       2 * layer->attrs.conv.padding[i];
        y.dims[2 + i] = size > 0 ? size : 1;
    }
    return y;
}

/* For log_softmax and softmax. */
static status_t check_last_dim(const struct layer *layer, const struct tensor_type *x)
{
    char shape[128];
    if (normal_dim(layer->dim, x->dim_count) == x->dim_count - 1) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "%s: dim=%d is not the last dimension of %s",
                      op_info_get(layer->kind)->name, layer->dim, tensor_format_shape(x, shape));
}

/* One row of the embedding for each index. */
static struct tensor_type embedding_shape(const struct tensor_type *x,
                                          const struct tensor_type *weight)
{
    struct tensor_type y = *x;
    y.dtype = DTYPE_F32;
    if (y.dim_count < TENSOR_MAX_DIMS) y.dims[y.dim_count++] = weight->dims[1];
    return y;
}

/* The result is as wide as the query's heads together. */
static struct tensor_type attention_shape(const struct layer *layer, const struct tensor_type *x,
                                          bool packed)
{
    struct tensor_type y = *x;
    int64_t heads = layer->attrs.attention.heads, kv_heads = layer->attrs.attention.kv_heads;
    int last = y.dim_count - 1;
    if (packed && last >= 0 && y.dims[last] % (heads + 2 * kv_heads) == 0)
        y.dims[last] = y.dims[last] / (heads + 2 * kv_heads) * heads;
    return y;
}

struct tensor_type shape_of_weight(const struct model *model, const struct program_call *call)
{
    const struct tensor_type *own = &model->parameters[call->weight].type;
    if (!call->layer.line || call->layer.kind != OP_CONV2D) return *own;
    int64_t dims[] = {own->dims[0], own->dims[1], 1, own->dims[2]};
    return tensor_type_make(own->dtype, 4, dims);
}

static status_t infer(const struct model *model, const struct program_call *call,
                      const struct tensor_type *const inputs[LAYER_MAX_TENSORS],
                      union op_attrs *attrs, struct tensor_type *y)
{
    const struct layer *layer = &call->layer;
    const struct tensor_type *x = inputs[0];
    struct tensor_type own = {0};
    const struct tensor_type *weight = call->weight >= 0 ? &own : NULL;
    if (call->weight >= 0) own = shape_of_weight(model, call);
    struct tensor_type made = *x;
    if (made.dtype == DTYPE_I32 || made.dtype == DTYPE_U8) made.dtype = DTYPE_F32;
    if (layer_has_shape(layer)) return layer_shape(layer, x, inputs[1], attrs, y);
    switch (layer->kind) {
    case OP_CONV2D:
        made = window_shape(x, weight->dims[0], weight->dims + 2, layer->attrs.conv.stride,
                            layer->attrs.conv.padding, layer->attrs.conv.dilation);
        break;
    case OP_CONV2D_BACKWARD_DATA: made = transposed_shape(layer, x, weight); break;
    case OP_MAX_POOL2D:
        made = window_shape(x, x->dims[1], layer->attrs.pool.kernel, layer->attrs.pool.stride,
                            layer->attrs.pool.padding, (int64_t[]){1, 1});
        break;
    case OP_AVG_POOL2D:
        made =
            window_shape(x, x->dims[1], layer->attrs.avg_pool.kernel, layer->attrs.avg_pool.stride,
                         layer->attrs.avg_pool.padding, (int64_t[]){1, 1});
        for (int i = 0; i < 2 && layer->attrs.avg_pool.adaptive && x->dim_count == 4; i++)
            made.dims[2 + i] = layer->sizes[i];
        break;
    case OP_LINEAR:
        if (x->dim_count > 0)
            made.dims[x->dim_count - 1] = weight->dims[layer->attrs.linear.transposed];
        break;
    case OP_RECURRENT:
        if (x->dim_count > 0) made.dims[x->dim_count - 1] = weight->dims[1];
        break;
    case OP_LOG_SOFTMAX:
    case OP_SOFTMAX: TRY(check_last_dim(layer, x)); break;
    case OP_EMBEDDING: made = embedding_shape(x, weight); break;
    case OP_ATTENTION: made = attention_shape(layer, x, inputs[1] == NULL); break;
    case OP_PADDING_MASK: made.dtype = DTYPE_U8; break;
    case OP_TOKEN_POSITIONS: made.dtype = DTYPE_I32; break;
    case OP_TOKENS:
        made = tensor_type_make(DTYPE_I32, 2, (int64_t[]){x->dims[0], layer->length});
        break;
    case OP_DISTANCE_BUCKETS:
        if (x->dim_count > 0)
            made = tensor_type_make(DTYPE_I32, 1, (int64_t[]){2 * x->dims[x->dim_count - 1] - 1});
        break;
    case OP_ARANGE:
        if (inputs[1] != NULL) made = *inputs[1];
        else if (x->dim_count > 0)
            made = tensor_type_make(DTYPE_I32, 1, &x->dims[x->dim_count - 1]);
        break;
    default: break;
    }
    *y = made;
    return NULL;
}

/* A value that lacks the batch is seen with a first dimension of 1, as its parameter has it. */
status_t shape_infer(const struct model *model, const struct program_call *call,
                     const struct tensor_type *const inputs[LAYER_MAX_TENSORS],
                     union op_attrs *attrs, struct tensor_type *y)
{
    if (!call->without_batch) return infer(model, call, inputs, attrs, y);
    struct tensor_type whole[LAYER_MAX_TENSORS];
    const struct tensor_type *seen[LAYER_MAX_TENSORS] = {NULL};
    for (int i = 0; i < LAYER_MAX_TENSORS; i++) {
        if (inputs[i] == NULL) continue;
        whole[i] = (struct tensor_type){.dtype = inputs[i]->dtype,
                                        .dim_count = inputs[i]->dim_count + 1,
                                        .dims = {1}};
        memcpy(whole[i].dims + 1, inputs[i]->dims,
               (size_t)inputs[i]->dim_count * sizeof *whole[i].dims);
        seen[i] = &whole[i];
    }
    TRY(infer(model, call, seen, attrs, y));
    layer_leave_out_batch(call->layer.kind, attrs);
    y->dim_count--;
    memmove(y->dims, y->dims + 1, (size_t)y->dim_count * sizeof *y->dims);
    return NULL;
}
