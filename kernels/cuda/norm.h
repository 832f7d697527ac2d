/* Shared by the norms and their gradients. */
#ifndef FSDPD_KERNELS_CUDA_NORM_H
#define FSDPD_KERNELS_CUDA_NORM_H

#include "kernels/cuda/platform.h"

/* The most columns that one warp handles. */
enum { WARP_COLUMNS = 2048 };

template <typename T, int V>
__device__ inline void write_row(T *to, int64_t at, const float values[V], bool add, bool aligned)
{
    pack<T, V> out;
    if (add) out = load<V>(to + at, aligned);
    for (int v = 0; v < V; v++)
        out.at[v] = rounded<T>(add ? to_float(out.at[v]) + values[v] : values[v]);
    store(to + at, out, aligned);
}

#endif
