/* The functions on shapes of layers.c's tables, and the shapes they give; private to libmodel. */
#ifndef FSDPD_MODEL_LAYERS_SHAPE_H
#define FSDPD_MODEL_LAYERS_SHAPE_H

#include "model/layer.h"

layer_make_function make_flatten, make_unflatten, make_reshape, make_transpose, make_narrow,
    make_select, make_chunk, make_last;

/* The type of the result for these inputs (`b` only of CONCAT), and, in `attrs`, the dimensions as
 * ops count them. INVALID_ARGUMENT for a dimension that there is not, or that is the batch's. */
status_t layer_shape(const struct layer *layer, const struct tensor_type *a,
                     const struct tensor_type *b, union op_attrs *attrs,
                     struct tensor_type *y) FSDPD_MUST_USE;

/* Whether layer_shape has the layer. */
bool layer_has_shape(const struct layer *layer);

/* Counts the dimensions of the attributes without the batch's. */
void layer_leave_out_batch(enum op_kind kind, union op_attrs *attrs);

#endif
