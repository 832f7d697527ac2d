/*
 * Attention by tiles with a running softmax (Milakov and Gimelshein, "Online normalizer calculation
 * for softmax", 2018; Dao et al., "FlashAttention", 2022), in f32: for cases that cuDNN does not
 * support.
 */
#include "kernels/cuda/attention.h"

#include "kernels/cuda/ops.h"

namespace fsdpd {

/* blockIdx.x: batch and head; blockIdx.y: R of its rows. */
template <typename T, int D, int R>
__global__ void __launch_bounds__(BLOCK) attention_kernel(const attention<T> a)
{
    constexpr int N = BLOCK / R, OUT = D / N, COLUMNS = (R + N - 1) / N;
    SHARED(float, q, R *(D + 1));
    SHARED(float, kv, R *(D + 1));
    SHARED(float, scores, R *(R + 1));
    SHARED(drawn, now, 1);
    int64_t batch = blockIdx.x / a.heads, head = blockIdx.x % a.heads;
    find_drawn(a, now);
    int64_t first = (int64_t)blockIdx.y * R;
    int row = threadIdx.x / N, part = threadIdx.x % N;
    const T *heads_k = a.k + batch * a.time * a.kv_row + head / a.group * a.head_dim;
    const T *heads_v = a.v + batch * a.time * a.kv_row + head / a.group * a.head_dim;
    load_tile<T, D, R>(q, a.q + batch * a.time * a.q_row + head * a.head_dim, a.q_row, first,
                       a.time, a.head_dim);
    float max = -INFINITY, sum = 0, out[OUT];
    for (int i = 0; i < OUT; i++) out[i] = 0;
    int64_t end = keys_end<R>(a, first);
    for (int64_t from = first_key<R>(a, batch, first); from < end; from += R) {
        if (is_beyond<R>(a, batch, first, from)) break;
        __syncthreads();
        load_tile<T, D, R>(kv, heads_k, a.kv_row, from, a.time, a.head_dim);
        __syncthreads();
        float mine[COLUMNS], most = -INFINITY;
        for (int j = 0; j < COLUMNS; j++) {
            int column = part + N * j;
            bool seen = column < R && attends(a, batch, first + row, from + column);
            float unused;
            mine[j] = -INFINITY;
            if (seen) {
                float bias = bias_of(a, head, first + row, from + column);
                float product = dot<D>(q + row * (D + 1), kv + column * (D + 1));
                mine[j] = score_of(a, product, &unused) + bias;
            }
            most = larger(most, mine[j]);
        }
        most = larger(max, row_max_of<N>(most));
        float factor = most == -INFINITY ? 1 : expf(max - most), total = 0;
        for (int j = 0; j < COLUMNS; j++) {
            int column = part + N * j;
            float p = mine[j] == -INFINITY ? 0 : expf(mine[j] - most);
            total += p;
            if (column < R)
                scores[row * (R + 1) + column] =
                    p != 0 ? p * keep(a, now, batch, head, first + row, from + column) : 0;
        }
        sum = sum * factor + row_sum_of<N>(total);
        max = most;
        __syncthreads();
        load_tile<T, D, R>(kv, heads_v, a.kv_row, from, a.time, a.head_dim);
        __syncthreads();
        for (int i = 0; i < OUT; i++) out[i] *= factor;
        for (int column = 0; column < R; column++) {
            float p = scores[row * (R + 1) + column];
            if (p == 0) continue; /* masked values may be anything */
            for (int i = 0; i < OUT; i++)
                out[i] = fmaf(p, kv[column * (D + 1) + part + N * i], out[i]);
        }
    }
    if (first + row >= a.time) return;
    T *to = a.out + ((batch * a.time + first + row) * a.heads + head) * a.head_dim;
    float rest = max == -INFINITY ? 0 : 1 / sum;
    for (int i = 0; i < OUT; i++)
        if (part + N * i < a.head_dim) put(&to[part + N * i], out[i] * rest, a.add[0]);
    if (part == 0 && a.lse_out != nullptr)
        put(&a.lse_out[(batch * a.heads + head) * a.time + first + row],
            max == -INFINITY ? INFINITY : max + logf(sum), a.add[1]);
}

/* For attention by a library: each warp of a block has a row. */
template <typename T> __global__ void __launch_bounds__(BLOCK) clear_kernel(const attention<T> a)
{
    int64_t at = blockIdx.x * (int64_t)(BLOCK / WARP) + threadIdx.x / WARP;
    int64_t batch = at / a.time, row = at % a.time, lane = threadIdx.x % WARP;
    if (batch >= a.batch) return;
    for (int64_t from = 0; from < keys_end<1>(a, row); from += WARP)
        if (row_max_of<WARP>(attends(a, batch, row, from + lane) ? 1 : 0) > 0) return;
    int64_t width = a.heads * a.head_dim;
    for (int64_t i = lane; i < width; i += WARP) a.out[at * width + i] = rounded<T>(0);
    for (int64_t head = lane; head < a.heads && a.lse_out != nullptr; head += WARP)
        a.lse_out[(batch * a.heads + head) * a.time + row] = INFINITY;
}

int cuda_attention_clear(const struct cuda_launch *launch, const struct op_desc *desc,
                         const struct kernel_call *call)
{
    attention<bf16> a = attention_of<bf16>(desc, call, launch);
    int64_t rows = a.batch * a.time, each = BLOCK / WARP;
    return start(launch, clear_kernel<bf16>, dim3((unsigned)((rows + each - 1) / each)), BLOCK, a);
}

template <typename T, int D, int R>
static int start_attention(const struct cuda_launch *launch, const attention<T> &a)
{
    dim3 grid((unsigned)(a.batch * a.heads), (unsigned)((a.time + R - 1) / R));
    return start(launch, attention_kernel<T, D, R>, grid, BLOCK, a);
}

template <typename T>
static int run_attention(const struct op_desc *desc, const struct kernel_call *call,
                         const struct cuda_launch *launch)
{
    attention<T> a = attention_of<T>(desc, call, launch);
    if (a.head_dim <= 64) return start_attention<T, 64, 32>(launch, a);
    if (a.head_dim <= 128) return start_attention<T, 128, 32>(launch, a);
    return start_attention<T, 256, 16>(launch, a);
}

RUN_BY_TYPE(cuda_run_attention, run_attention, 0)

} // namespace fsdpd
