/*
 * The platform of the kernels: under nvcc CUDA itself, in tests its emulation. Adds bf16 in
 * registers, accesses of 16 bytes, and sums over warps and blocks in one fixed order.
 */
#ifndef FSDPD_KERNELS_CUDA_PLATFORM_H
#define FSDPD_KERNELS_CUDA_PLATFORM_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#include <cuda_runtime.h>
#else
#include "emulation.h"
#endif

#include "kernels/cuda/cuda.h"
#include "kernels/philox.h"

using namespace fsdpd;

enum { BLOCK = 256, WARP = 32 };

/* A block's shared memory: SHARED(float, name, count) declares `name` with `count` elements. */
#ifdef __CUDACC__
#define SHARED(type, name, count) __shared__ __align__(16) type name[count]
#define NOT_UNROLLED _Pragma("unroll 1") /* the loop that follows: it would spill registers */
#define UNROLLED _Pragma("unroll")       /* the loop that follows: its arrays shall be registers */
#define UNROLLED_4 _Pragma("unroll 4")   /* the loop that follows: four loads are under way */
#else
#define NOT_UNROLLED
#define UNROLLED
#define UNROLLED_4
#define SHARED(type, name, count)                                                                  \
    static char name##_key;                                                                        \
    type *name = (type *)emulation_shared(&name##_key, sizeof(type) * (size_t)(count))
#endif

/* Launches a kernel; returns the error of that launch, never one that an earlier call left. */
#ifdef __CUDACC__
template <typename... P, typename... A>
static inline int start(const struct cuda_launch *launch, void (*kernel)(P...), dim3 grid,
                        int threads, A... arguments)
{
    auto call = [=](P... values) {
        void *places[] = {&values...};
        return cudaLaunchKernel((const void *)kernel, grid, dim3((unsigned)threads), places, 0,
                                (cudaStream_t)launch->stream);
    };
    return (int)call(static_cast<P>(arguments)...);
}
#else
/* `call`: the text of the arguments, which begins with the kernel's name. */
#define start(launch, ...) start_named(#__VA_ARGS__, launch, __VA_ARGS__)
template <typename... P, typename... A>
static inline int start_named(const char *call, const struct cuda_launch *launch,
                              void (*kernel)(P...), dim3 grid, int threads, A... arguments)
{
    return emulation_run(launch->stream, call, grid, threads,
                         [=] { kernel(static_cast<P>(arguments)...); });
}
#endif

/* Returns the first error of several launches. */
#define TRY_LAUNCH(expression)                                                                     \
    do {                                                                                           \
        int try_error_ = (expression);                                                             \
        if (try_error_ != 0) return try_error_;                                                    \
    } while (0)

/* Weights as arguments of a kernel; the other kind, all 1, costs nothing. */
struct kernel_weights {
    float values[OP_MAX_WEIGHTS];
    __device__ float operator[](int64_t i) const
    {
        return values[i];
    }
};
struct no_weights {
    __device__ float operator[](int64_t i) const
    {
        (void)i;
        return 1;
    }
};

static inline struct kernel_weights weights_of(const struct op_weights *from)
{
    struct kernel_weights weights = {};
    memcpy(weights.values, from->values, (size_t)from->count * sizeof(float));
    return weights;
}

struct bf16 {
    uint16_t bits;
};

__device__ inline float to_float(float value)
{
    return value;
}

__device__ inline float to_float(bf16 value)
{
    uint32_t bits = (uint32_t)value.bits << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

template <typename T> __device__ inline T rounded(float value);

template <> __device__ inline float rounded<float>(float value)
{
    return value;
}

/* Rounds to nearest, ties to even; a NaN stays a NaN. */
template <> __device__ inline bf16 rounded<bf16>(float value)
{
#ifdef __CUDA_ARCH__
    uint16_t half;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return bf16{half};
#else
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return bf16{(uint16_t)(bits >> 16 | 0x40)};
    return bf16{(uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
#endif
}

/* V elements that are read and written in one access. */
template <typename T, int V> struct alignas(sizeof(T) * V) pack {
    T at[V];
};

template <int V, typename T> __device__ inline pack<T, V> load(const T *from)
{
    return *reinterpret_cast<const pack<T, V> *>(from);
}

template <typename T, int V> __device__ inline void store(T *to, const pack<T, V> &values)
{
    *reinterpret_cast<pack<T, V> *>(to) = values;
}

/* words[i % 4], for words in registers. */
__device__ inline uint32_t word_of(const uint32_t words[4], uint64_t i)
{
    uint32_t even = i & 2 ? words[2] : words[0], odd = i & 2 ? words[3] : words[1];
    return i & 1 ? odd : even;
}

/* The same for addresses that may be unaligned: other accesses, but the same elements per thread,
 * so that sums have the same bits. */
template <int V, typename T> __device__ inline pack<T, V> load(const T *from, bool aligned)
{
    if (V == 1 || aligned) return load<V>(from);
    pack<T, V> values;
    for (int v = 0; v < V; v++) values.at[v] = from[v];
    return values;
}

template <typename T, int V>
__device__ inline void store(T *to, const pack<T, V> &values, bool aligned)
{
    if (V == 1 || aligned) {
        store(to, values);
    } else {
        for (int v = 0; v < V; v++) to[v] = values.at[v];
    }
}

/* Writes an element of an output, or adds to it. */
template <typename T> __device__ inline void put(T *to, float value, bool add)
{
    *to = rounded<T>(add ? to_float(*to) + value : value);
}

/* Elements in 16 bytes. */
template <typename T> constexpr int full_pack()
{
    return (int)(16 / sizeof(T));
}

static inline bool is_aligned(const void *address)
{
    return (uintptr_t)address % 16 == 0;
}

template <typename... P> static inline bool is_aligned(const void *first, P... others)
{
    return is_aligned(first) && is_aligned(others...);
}

__device__ inline float larger(float a, float b)
{
    return a > b || a != a ? a : b; /* a NaN wins */
}

template <typename T> __device__ inline T warp_sum(T value)
{
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

__device__ inline float warp_max(float value)
{
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        value = larger(value, __shfl_xor_sync(0xffffffffu, value, distance));
    return value;
}

/*
 * A sum over G threads that work on one row: a warp, or a block of BLOCK. `scratch`: BLOCK / WARP
 * elements of shared memory, unused by a warp. All threads get the result.
 */
template <int G, typename T> __device__ inline T group_sum(T value, T *scratch)
{
    value = warp_sum(value);
    if (G == WARP) return value;
    __syncthreads(); /* the earlier readers of the scratch memory are done */
    if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = value;
    __syncthreads();
    value = 0;
    for (int warp = 0; warp < BLOCK / WARP; warp++) value += scratch[warp];
    return value;
}

template <int G> __device__ inline float group_max(float value, float *scratch)
{
    value = warp_max(value);
    if (G == WARP) return value;
    __syncthreads();
    if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = value;
    __syncthreads();
    value = scratch[0];
    for (int warp = 1; warp < BLOCK / WARP; warp++) value = larger(value, scratch[warp]);
    return value;
}

/* The number of blocks for n threads, limited to a few per multiprocessor: kernels loop over the
 * rest. */
static inline dim3 grid_of(const struct cuda_launch *launch, int64_t threads)
{
    int64_t blocks = (threads + BLOCK - 1) / BLOCK, most = (int64_t)launch->processors * 8;
    return dim3((unsigned)(blocks < 1 ? 1 : blocks < most ? blocks : most));
}

/* The same for rows of G threads. */
template <int G> static inline dim3 grid_of_rows(const struct cuda_launch *launch, int64_t rows)
{
    return grid_of(launch, rows * G);
}

/* From a type's description. */
static inline int64_t count_of(const struct tensor_type *type)
{
    int64_t count = 1;
    for (int i = 0; i < type->dim_count; i++) count *= type->dims[i];
    return count;
}

static inline int64_t columns_of(const struct tensor_type *type)
{
    return type->dims[type->dim_count - 1];
}

template <typename T> static inline const T *input_of(const struct kernel_call *call, int i)
{
    return static_cast<const T *>(call->inputs[i]);
}

template <typename T> static inline T *output_of(const struct kernel_call *call, int i)
{
    return static_cast<T *>(call->outputs[i]);
}

#endif
