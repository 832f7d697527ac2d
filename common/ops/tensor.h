/*
 * Tensor metadata: element type, shape, memory layout. No data. Shapes are always in PyTorch's
 * logical order, (batch, channels, height, width) for images, whatever the layout.
 */
#ifndef FSDPD_OPS_TENSOR_H
#define FSDPD_OPS_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dtype {
    DTYPE_F32 = 0,
    DTYPE_I32 = 1, /* class labels, token ids */
    DTYPE_U8 = 2,  /* pooling indices */
    DTYPE_BF16 = 3,
};

enum layout {
    LAYOUT_PLAIN = 0, /* row-major in logical order */
    LAYOUT_CHANNELS_LAST =
        1, /* four dimensions only: memory order (batch, height, width, channels) */
};

enum { TENSOR_MAX_DIMS = 6 };

/* Inputs with more elements are refused, so byte sizes never overflow. */
#define TENSOR_MAX_ELEMENTS ((int64_t)1 << 40)

struct tensor_type {
    enum dtype dtype;
    enum layout layout;
    int dim_count; /* 0 for a scalar */
    int64_t dims[TENSOR_MAX_DIMS];
};

struct tensor_type tensor_type_make(enum dtype dtype, int dim_count, const int64_t *dims);

/* 1 for a scalar; -1 if a dimension is not positive or the product passes TENSOR_MAX_ELEMENTS. */
int64_t tensor_element_count(const struct tensor_type *type);

size_t dtype_size(enum dtype dtype);
const char *dtype_name(enum dtype dtype); /* "f32" */

/* Bytes of memory, dense. The type must be valid. */
uint64_t tensor_bytes(const struct tensor_type *type);

bool tensor_same_shape(const struct tensor_type *a, const struct tensor_type *b);

#ifndef __cplusplus /* CUDA kernels include this file for the types, and have no text */
/* "(64, 1, 28, 28)"; `text` holds at least 128 bytes; returns it. */
char *tensor_format_shape(const struct tensor_type *type, char text[static 128]);
#endif

#endif
