/*
 * AdamW with its averages in 8 bits: the numbers of kernels/packed.c. A warp updates a block of 256
 * parameters, 8 of them per lane, whose new scales are maxima over the warp; nothing is shared by
 * warps but the maps, which every block of threads copies from the arguments.
 */
#include "kernels/cuda/optimizer.h"
#include "kernels/cuda/platform.h"

namespace fsdpd
{

enum { CODES = 256, PACK = 4, PACKS = KERNEL_PACKED_BLOCK / (WARP * PACK), STEPS = 1 << 16 };

/* [0]: of the first average, which is signed. */
struct packed_maps {
    float values[2][CODES];
    uint16_t firsts[2][CODES];
};

struct packed_arrays {
    float *param;
    bf16 *copy;
    const float *grad;
    float *averages[2];
    int64_t n;
    bool aligned;
};

/* The code of a value over its scale, by kernels/packed.c's step; `firsts` says which code has
 * it. */
__device__ inline uint32_t code_of(float value, const uint16_t *firsts)
{
    float step = (fminf(fmaxf(value, -1.0f), 1.0f) + 1) * 0.5f * (STEPS - 1) + 0.5f;
    unsigned rounded_down = value == value ? (unsigned)step : 0, code = 0;
    for (unsigned bit = CODES / 2; bit > 0; bit /= 2)
        if (firsts[code + bit] <= rounded_down) code += bit;
    return code;
}

/* Four codes of a block, from code i on, which is a multiple of four. */
__device__ inline uint32_t load_codes(const float *block, int i)
{
    return reinterpret_cast<const uint32_t *>(block + 1)[i / PACK];
}

/* Replaces the first `count` codes, at most four, of these. */
__device__ inline void store_codes(float *block, int i, int count, const float *values,
                                   float inverse, const uint16_t *firsts)
{
    uint32_t codes = 0, mask = count < PACK ? (1u << 8 * count) - 1 : ~0u;
    for (int v = 0; v < PACK; v++) codes |= code_of(values[v] * inverse, firsts) << 8 * v;
    if (count < PACK) codes = (codes & mask) | (load_codes(block, i) & ~mask);
    reinterpret_cast<uint32_t *>(block + 1)[i / PACK] = codes;
}

/* `count` values, at most four; the others are 0. */
__device__ inline pack<float, PACK> load_some(const float *from, int count, bool aligned)
{
    if (count >= PACK) return load<PACK>(from, aligned);
    pack<float, PACK> values = {};
    for (int v = 0; v < PACK; v++)
        if (v < count) values.at[v] = from[v];
    return values;
}

__device__ inline void store_some(const packed_arrays &arrays, int64_t i, int count,
                                  const pack<float, PACK> &values)
{
    if (count >= PACK) {
        store(arrays.param + i, values, arrays.aligned);
    } else {
        for (int v = 0; v < PACK; v++)
            if (v < count) arrays.param[i + v] = values.at[v];
    }
    if (arrays.copy == nullptr) return;
    for (int v = 0; v < PACK; v++)
        if (v < count) arrays.copy[i + v] = rounded<bf16>(values.at[v]);
}

/* A number's magnitude; what is not a number does not count. */
__device__ inline float magnitude(float value)
{
    return value == value ? fabsf(value) : 0;
}

__device__ inline void update_block(const packed_arrays &arrays, int64_t number, float scale,
                                    const struct adam_args &args, const float *values,
                                    const uint16_t *firsts)
{
    int64_t at = number * KERNEL_PACKED_BLOCK;
    int lane = (int)threadIdx.x % WARP;
    float *first = arrays.averages[0] + number * KERNEL_PACKED_WORDS;
    float *second = arrays.averages[1] + number * KERNEL_PACKED_WORDS;
    /* The lane that writes a scale is the only one that reads it: shuffles do not order memory. */
    float scales[2] = {warp_max(lane == 0 ? first[0] : 0), warp_max(lane == 0 ? second[0] : 0)};
    float most[2] = {0, 0};
    float m[PACKS][PACK], s[PACKS][PACK];
    UNROLLED for (int k = 0; k < PACKS; k++)
    {
        int i = (k * WARP + lane) * PACK;
        int64_t rest = arrays.n - at - i;
        int count = rest < 0 ? 0 : rest < PACK ? (int)rest : (int)PACK;
        uint32_t codes[2] = {load_codes(first, i), load_codes(second, i)};
        pack<float, PACK> p = load_some(arrays.param + at + i, count, arrays.aligned);
        pack<float, PACK> g = load_some(arrays.grad + at + i, count, arrays.aligned);
        UNROLLED for (int v = 0; v < PACK; v++)
        {
            m[k][v] = values[codes[0] >> 8 * v & 255] * scales[0];
            s[k][v] = values[CODES + (codes[1] >> 8 * v & 255)] * scales[1];
            adam_value(args, g.at[v] * scale, &p.at[v], &m[k][v], &s[k][v]);
            if (v >= count) continue;
            most[0] = fmaxf(most[0], magnitude(m[k][v]));
            most[1] = fmaxf(most[1], magnitude(s[k][v]));
        }
        store_some(arrays, at + i, count, p);
    }
    most[0] = warp_max(most[0]);
    most[1] = warp_max(most[1]);
    float inverse[2] = {1 / most[0], 1 / most[1]};
    UNROLLED for (int k = 0; k < PACKS; k++)
    {
        int i = (k * WARP + lane) * PACK;
        int64_t rest = arrays.n - at - i;
        int count = rest < 0 ? 0 : rest < PACK ? (int)rest : (int)PACK;
        if (count == 0) continue;
        store_codes(first, i, count, m[k], inverse[0], firsts);
        store_codes(second, i, count, s[k], inverse[1], firsts + CODES);
    }
    if (lane != 0) return;
    first[0] = most[0];
    second[0] = most[1];
}

__global__ void __launch_bounds__(BLOCK)
    adam_packed_kernel(const packed_arrays arrays, const struct adam_args given,
                       const struct adam_args *live, const cuda_gate_in gate,
                       const packed_maps maps)
{
    SHARED(float, values, 2 * CODES);
    SHARED(uint16_t, firsts, 2 * CODES);
    for (int i = (int)threadIdx.x; i < 2 * CODES; i += BLOCK) {
        values[i] = maps.values[i / CODES][i % CODES];
        firsts[i] = maps.firsts[i / CODES][i % CODES];
    }
    __syncthreads();
    const struct adam_args args = live != nullptr ? *live : given;
    float scale;
    if (!read_gate(gate, &scale)) return;
    int64_t blocks = (arrays.n + KERNEL_PACKED_BLOCK - 1) / KERNEL_PACKED_BLOCK;
    int64_t warp = (int64_t)blockIdx.x * (BLOCK / WARP) + threadIdx.x / WARP;
    NOT_UNROLLED for (int64_t b = warp; b < blocks; b += (int64_t)gridDim.x * (BLOCK / WARP))
    {
        update_block(arrays, b, scale, args, values, firsts);
    }
}

int cuda_adam_packed(const struct cuda_launch *launch, size_t n, float *param, uint16_t *copy,
                     const float *grad, float *average, float *square_average,
                     const struct adam_args *args, const struct cuda_gate_in *gate)
{
    const packed_arrays arrays = {param,      (bf16 *)copy,
                                  grad,       {average, square_average},
                                  (int64_t)n, is_aligned(param, grad)};
    packed_maps maps;
    for (int unsigned_map = 0; unsigned_map < 2; unsigned_map++) {
        kernel_packed_map(unsigned_map == 0, maps.values[unsigned_map]);
        kernel_packed_steps(unsigned_map == 0, maps.firsts[unsigned_map]);
    }
    int64_t blocks = ((int64_t)n + KERNEL_PACKED_BLOCK - 1) / KERNEL_PACKED_BLOCK;
    return start(launch, adam_packed_kernel, grid_of(launch, blocks * WARP), BLOCK, arrays, *args,
                 (const struct adam_args *)launch->live, *gate, maps);
}

} // namespace fsdpd
