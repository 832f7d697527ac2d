/* Shapes of pools and convolutions for the kernels. Internal to kernels/cuda. */
#ifndef FSDPD_KERNELS_CUDA_WINDOW_H
#define FSDPD_KERNELS_CUDA_WINDOW_H

#include "kernels/cuda/platform.h"

/* x (n, channels, height, width), y (n, out_channels, out_height, out_width). */
struct window {
    int64_t n, channels, height, width, out_channels, out_height, out_width;
    int kernel[2], stride[2], padding[2], dilation[2], groups;
};

/* `kernel` and the others: as attributes have them, height and width. */
static inline struct window window_of(const struct tensor_type *x, const struct tensor_type *y,
                                      const int64_t *kernel, const int64_t *stride,
                                      const int64_t *padding)
{
    struct window w = {};
    w.n = x->dims[0], w.channels = x->dims[1], w.height = x->dims[2], w.width = x->dims[3];
    w.out_channels = y->dims[1], w.out_height = y->dims[2], w.out_width = y->dims[3];
    for (int i = 0; i < 2; i++) {
        w.kernel[i] = (int)kernel[i];
        w.stride[i] = (int)stride[i];
        w.padding[i] = (int)padding[i];
        w.dilation[i] = 1;
    }
    w.groups = 1;
    return w;
}

#endif
