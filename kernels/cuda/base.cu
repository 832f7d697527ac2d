/*
 * The values of frozen parameters that are kept in blocks of 8 and of 4 bits, or in bf16: those of
 * kernels/packed.c and kernels/nf4.c. A thread makes eight values of whole words of codes; every
 * block of threads copies the maps from the arguments.
 */
#include "kernels/cuda/platform.h"

namespace fsdpd
{

enum { EIGHT = 8, BYTES = 256, NIBBLES = 16 };

struct base_maps {
    float bytes[BYTES], nibbles[NIBBLES]; /* the latter of nf4 */
};

/* `count` values, at most eight; `aligned`: the address is a multiple of 16 bytes. */
template <typename T>
__device__ inline void store_eight(T *to, int64_t count, const float *values, bool aligned)
{
    constexpr int V = 16 / (int)sizeof(T);
    if (count >= EIGHT) {
        UNROLLED for (int i = 0; i < EIGHT; i += V)
        {
            pack<T, V> some;
            UNROLLED for (int v = 0; v < V; v++) some.at[v] = rounded<T>(values[i + v]);
            store(to + i, some, aligned);
        }
        return;
    }
    UNROLLED for (int i = 0; i < EIGHT; i++)
    {
        if (i < count) to[i] = rounded<T>(values[i]);
    }
}

__device__ inline uint32_t byte_of(uint32_t word, int i)
{
    return word >> 8 * i & 255;
}

struct int8_blocks {
    __device__ static void read(const float *blocks, int64_t number, const float *bytes,
                                const float *nibbles, float *values)
    {
        constexpr int EACH = KERNEL_PACKED_BLOCK / EIGHT;
        const float *block = blocks + number / EACH * KERNEL_PACKED_WORDS;
        const uint32_t *codes =
            reinterpret_cast<const uint32_t *>(block + 1) + number % EACH * (EIGHT / 4);
        float scale = block[0];
        (void)nibbles;
        UNROLLED for (int v = 0; v < EIGHT; v++)
        {
            values[v] = bytes[byte_of(codes[v / 4], v % 4)] * scale;
        }
    }
};

struct nf4_groups {
    __device__ static void read(const float *groups, int64_t number, const float *bytes,
                                const float *nibbles, float *values)
    {
        constexpr int EACH = KERNEL_NF4_GROUP / EIGHT, PER_BLOCK = KERNEL_NF4_BLOCK / EIGHT;
        const float *group = groups + number / EACH * KERNEL_NF4_WORDS;
        int at = (int)(number % EACH), block = at / PER_BLOCK;
        uint32_t magnitudes = reinterpret_cast<const uint32_t *>(group + 2)[block / 4];
        uint32_t codes = reinterpret_cast<const uint32_t *>(group + 1 + KERNEL_PACKED_WORDS)[at];
        float scale = bytes[byte_of(magnitudes, block % 4)] * group[1] + group[0];
        UNROLLED for (int v = 0; v < EIGHT; v += 2)
        {
            uint32_t both = byte_of(codes, v / 2);
            values[v] = nibbles[both >> 4] * scale;
            values[v + 1] = nibbles[both & 15] * scale;
        }
    }
};

template <typename Blocks, typename T>
__global__ void __launch_bounds__(BLOCK)
    unpack_kernel(T *to, const float *blocks, int64_t n, bool aligned, const base_maps maps)
{
    SHARED(float, bytes, BYTES);
    SHARED(float, nibbles, NIBBLES);
    for (int i = (int)threadIdx.x; i < BYTES; i += BLOCK) bytes[i] = maps.bytes[i];
    if (threadIdx.x < NIBBLES) nibbles[threadIdx.x] = maps.nibbles[threadIdx.x];
    __syncthreads();
    int64_t eights = (n + EIGHT - 1) / EIGHT;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < eights;
         i += (int64_t)gridDim.x * BLOCK) {
        float values[EIGHT];
        Blocks::read(blocks, i, bytes, nibbles, values);
        store_eight(to + i * EIGHT, n - i * EIGHT, values, aligned);
    }
}

template <typename Blocks, typename T>
static int unpack_into(const struct cuda_launch *launch, size_t n, const float *blocks, T *to)
{
    base_maps maps;
    kernel_packed_map(true, maps.bytes);
    kernel_nf4_map(maps.nibbles);
    int64_t count = (int64_t)n, eights = (count + EIGHT - 1) / EIGHT;
    return start(launch, unpack_kernel<Blocks, T>, grid_of(launch, eights), BLOCK, to, blocks,
                 count, is_aligned(to), maps);
}

template <typename Blocks>
static int unpack_as(const struct cuda_launch *launch, enum dtype dtype, size_t n,
                     const float *blocks, void *values)
{
    if (dtype == DTYPE_BF16) return unpack_into<Blocks>(launch, n, blocks, (bf16 *)values);
    return unpack_into<Blocks>(launch, n, blocks, (float *)values);
}

int cuda_int8_unpack(const struct cuda_launch *launch, enum dtype dtype, size_t n,
                     const float *blocks, void *values)
{
    return unpack_as<int8_blocks>(launch, dtype, n, blocks, values);
}

int cuda_nf4_unpack(const struct cuda_launch *launch, enum dtype dtype, size_t n,
                    const float *groups, void *values)
{
    return unpack_as<nf4_groups>(launch, dtype, n, groups, values);
}

} // namespace fsdpd
