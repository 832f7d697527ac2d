/*
 * T5's buckets of distances. transformers computes in f32, whose results near a border are those of
 * exact arithmetic rounded up by less than the constant here.
 */
#ifndef FSDPD_KERNELS_DISTANCE_H
#define FSDPD_KERNELS_DISTANCE_H

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define DISTANCE_ANYWHERE __host__ __device__
#else
#define DISTANCE_ANYWHERE
#endif

/* The bucket of key - row; `count` and `far` as the op's attributes. */
DISTANCE_ANYWHERE static inline int32_t distance_bucket(int32_t count, int32_t far,
                                                        int64_t distance)
{
    int32_t half = count / 2, exact = half / 2, first = distance > 0 ? half : 0;
    int64_t steps = distance < 0 ? -distance : distance;
    if (steps < exact) return first + (int32_t)steps;
    double place = log((double)steps / exact) / log((double)far / exact) * (half - exact) + 1e-6;
    int32_t bucket = place < half - exact ? exact + (int32_t)place : half - 1;
    return first + bucket;
}

#endif
