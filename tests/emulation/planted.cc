/* A kernel that adds a block's numbers, with its barrier or, planted, without it. */
#include "planted.h"
#include "kernels/cuda/platform.h"

__global__ void planted_kernel(const float *x, float *sum, bool barrier)
{
    SHARED(float, parts, BLOCK);
    parts[threadIdx.x] = x[threadIdx.x];
    if (barrier) __syncthreads();
    if (threadIdx.x != 0) return;
    *sum = 0;
    for (int i = 0; i < BLOCK; i++) *sum += parts[i];
}

/* The blocks write different elements or, planted, the same one. */
__global__ void overlapping_kernel(float *y, bool same)
{
    if (threadIdx.x == (same ? blockIdx.x : 0)) y[same ? 0 : blockIdx.x] = (float)blockIdx.x;
}

extern "C" void planted_run(enum planted what)
{
    static float x[BLOCK], y[BLOCK];
    struct cuda_launch launch = {};
    launch.processors = 4;
    bool overlaps = what == PLANTED_OVERLAP || what == PLANTED_NO_OVERLAP;
    if (overlaps) start(&launch, overlapping_kernel, dim3(4), BLOCK, y, what == PLANTED_OVERLAP);
    else start(&launch, planted_kernel, dim3(1), BLOCK, x, y, what == PLANTED_BARRIER);
}
