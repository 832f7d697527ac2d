/*
 * The fused head's block of logits: softmax, loss and gradient of rows as long as a vocabulary. A
 * block of threads reads its row twice: once for the largest logit and the sum of exponentials
 * together (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018), and once
 * for the gradient. A multiprocessor works on one long row at a time, so that all rows in progress
 * fit into the second-level cache for the second reading.
 *
 * Logits are f32, or have the type of their gradient, which then takes their place. All arithmetic
 * is in f32. Per logit in bf16 that is 2 bytes read and 2 written; from f32 logits, 4 and 2.
 */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/platform.h"

namespace fsdpd {

enum {
    WIDE_BLOCK = 1024,  /* threads for a long row */
    LONG_ROW = 1 << 13, /* classes */
    LOGITS_AT_ONCE = 8  /* per thread */
};

const int64_t NOWHERE = INT64_MAX;

/* A thread's state for its logits, later the row's. */
struct row_state {
    float max, sum; /* of exp(logit - max) */
    int64_t at;     /* the first maximum; a NaN is the largest */
};

/* logits[i] + bias[i]; -infinity beyond the row's end. */
template <typename L, int V>
__device__ inline pack<float, V> logits_at(const struct cuda_logits &b, int64_t row, int64_t i)
{
    pack<L, V> given = load<V>(static_cast<const L *>(b.logits) + row * b.stride + i);
    pack<float, V> x;
    for (int v = 0; v < V; v++) {
        x.at[v] = to_float(given.at[v]);
        if (i + v >= b.classes) x.at[v] = -INFINITY;
        else if (b.bias != nullptr && b.bias_dtype == DTYPE_BF16)
            x.at[v] += to_float(static_cast<const bf16 *>(b.bias)[i + v]);
        else if (b.bias != nullptr) x.at[v] += static_cast<const float *>(b.bias)[i + v];
    }
    return x;
}

template <int V>
__device__ inline void visit_logits(row_state &s, const pack<float, V> &x, int64_t i)
{
    float most = s.max;
    if (s.at == NOWHERE) s.at = i;
    for (int v = 0; v < V; v++)
        if (x.at[v] > most || (x.at[v] != x.at[v] && most == most)) most = x.at[v], s.at = i + v;
    if (most > s.max || most != most) s.sum *= s.max == -INFINITY ? 0 : expf(s.max - most);
    s.max = most;
    if (most == -INFINITY) return; /* only -infinity so far */
    for (int v = 0; v < V; v++) s.sum += expf(x.at[v] - most);
}

/* Merges two parts of a row; of equal maxima the first one counts. */
__device__ inline row_state joined(const row_state &a, const row_state &b)
{
    bool a_nan = a.max != a.max, b_nan = b.max != b.max;
    bool first = a_nan != b_nan ? a_nan : a_nan || a.max == b.max ? a.at < b.at : a.max > b.max;
    row_state s;
    s.max = first ? a.max : b.max;
    s.at = first ? a.at : b.at;
    float from_a = a.max == -INFINITY ? 0 : a.sum * expf(a.max - s.max);
    float from_b = b.max == -INFINITY ? 0 : b.sum * expf(b.max - s.max);
    s.sum = from_a + from_b;
    return s;
}

__device__ inline row_state joined_by_warp(row_state s)
{
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        row_state other;
        other.max = __shfl_xor_sync(0xffffffffu, s.max, distance);
        other.sum = __shfl_xor_sync(0xffffffffu, s.sum, distance);
        other.at = __shfl_xor_sync(0xffffffffu, s.at, distance);
        s = threadIdx.x & distance ? joined(other, s) : joined(s, other);
    }
    return s;
}

/* G threads, each V logits at a time; the distance of rows keeps packs aligned. */
template <typename L, typename T, int V, int G>
__global__ void __launch_bounds__(G) head_kernel(const struct cuda_logits b)
{
    SHARED(row_state, warps, G / WARP);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const row_state nothing = {-INFINITY, 0, NOWHERE};
    for (int64_t row = blockIdx.x; row < b.rows; row += gridDim.x) {
        row_state s = nothing;
        for (int64_t i = threadIdx.x * V; i < b.classes; i += G * V)
            visit_logits<V>(s, logits_at<L, V>(b, row, i), i);
        s = joined_by_warp(s);
        __syncthreads(); /* the readers of the previous row are done */
        if (lane == 0) warps[warp] = s;
        __syncthreads();
        s = joined_by_warp(lane < G / WARP ? warps[lane] : nothing);
        int32_t wanted = b.target[row];
        float log_sum = logf(s.sum);
        if (threadIdx.x == 0) {
            float loss = 0;
            if (wanted >= 0) loss = log_sum - (logits_at<L, 1>(b, row, wanted).at[0] - s.max);
            b.losses[row] = loss;
            if (b.correct != nullptr) b.correct[row] = s.at == wanted ? 1.0f : 0.0f;
        }
        if (b.gradient == nullptr) continue;
        __syncthreads(); /* the gradient may overwrite the logits */
        T *to = static_cast<T *>(b.gradient) + row * b.gradient_stride;
        for (int64_t i = threadIdx.x * V; i < b.classes; i += G * V) {
            pack<float, V> x = logits_at<L, V>(b, row, i);
            pack<T, V> out;
            for (int v = 0; v < V; v++) {
                float g = expf(x.at[v] - s.max - log_sum) - (i + v == wanted ? 1.0f : 0.0f);
                out.at[v] = rounded<T>(wanted >= 0 ? b.scale * g : 0);
            }
            store(to + i, out);
        }
    }
}

template <typename L, typename T>
static int run_head(const struct cuda_launch *launch, const struct cuda_logits &b)
{
    constexpr int V = LOGITS_AT_ONCE;
    bool packs = b.stride % V == 0 && (uintptr_t)b.logits % sizeof(pack<L, V>) == 0 &&
                 b.gradient_stride % V == 0 && (uintptr_t)b.gradient % sizeof(pack<T, V>) == 0;
    if (packs && b.classes >= LONG_ROW) {
        int64_t blocks = b.rows < launch->processors ? b.rows : (int64_t)launch->processors;
        return start(launch, head_kernel<L, T, V, WIDE_BLOCK>, dim3((unsigned)blocks), WIDE_BLOCK,
                     b);
    }
    dim3 grid = grid_of_rows<BLOCK>(launch, b.rows);
    if (packs) return start(launch, head_kernel<L, T, V, BLOCK>, grid, BLOCK, b);
    return start(launch, head_kernel<L, T, 1, BLOCK>, grid, BLOCK, b);
}

int cuda_cross_entropy_block(const struct cuda_launch *launch, const struct cuda_logits *block)
{
    if (block->dtype == DTYPE_F32) return run_head<float, float>(launch, *block);
    return block->logits_dtype == DTYPE_F32 ? run_head<float, bf16>(launch, *block)
                                            : run_head<bf16, bf16>(launch, *block);
}

} // namespace fsdpd
