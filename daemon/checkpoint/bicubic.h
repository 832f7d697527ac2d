/*
 * Bicubic interpolation along one dimension, as PyTorch's F.interpolate(mode="bicubic",
 * align_corners=False) without antialiasing: element `at` of `to` elements is the sum of four of
 * `from` elements, with Keys' kernel (a = -0.75) and the border repeated.
 */
#ifndef FSDPD_CHECKPOINT_BICUBIC_H
#define FSDPD_CHECKPOINT_BICUBIC_H

#include <stdint.h>

struct bicubic {
    int64_t index[4];
    double weight[4];
};

struct bicubic bicubic_at(int64_t from, int64_t to, int64_t at);

#endif
