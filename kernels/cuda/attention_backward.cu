/*
 * The gradient of attention by tiles. With P the probabilities before dropout M, dP = M (dy . v)
 * and a score's gradient is P (dP - sum(P dP)), where the sum over a row is dy . y. One kernel
 * loops over the rows for dq, another over the keys for dk and dv, a third, if scores have a bias,
 * over a distance's rows and keys, so that no block adds to another
 * block's results; all compute the probabilities again (Dao et al., "FlashAttention", 2022).
 */
#include "kernels/cuda/attention.h"
#include "kernels/cuda/ops.h"

namespace fsdpd {

/* One warp per row and head. */
template <typename T>
__global__ void __launch_bounds__(BLOCK) attention_totals(const attention<T> a)
{
    int64_t rows = a.batch * a.heads * a.time, step = (int64_t)gridDim.x * (BLOCK / WARP);
    for (int64_t i = (int64_t)blockIdx.x * (BLOCK / WARP) + threadIdx.x / WARP; i < rows;
         i += step) {
        int64_t time = i % a.time, head = i / a.time % a.heads, batch = i / (a.time * a.heads);
        int64_t at = ((batch * a.time + time) * a.heads + head) * a.head_dim;
        float sum = 0;
        for (int64_t c = threadIdx.x % WARP; c < a.head_dim; c += WARP)
            sum += to_float(a.dy[at + c]) * to_float(a.y[at + c]);
        sum = warp_sum(sum);
        if (threadIdx.x % WARP == 0) a.totals[i] = sum;
    }
}

/* blockIdx.x: batch and head; blockIdx.y: R rows of dq. */
template <typename T, int D, int R>
__global__ void __launch_bounds__(BLOCK) attention_dq(const attention<T> a)
{
    constexpr int N = BLOCK / R, OUT = D / N, COLUMNS = (R + N - 1) / N;
    SHARED(float, q, R *(D + 1));
    SHARED(float, dy, R *(D + 1));
    SHARED(float, kv, R *(D + 1));
    SHARED(float, scores, R *(R + 1));
    SHARED(drawn, now, 1);
    int64_t batch = blockIdx.x / a.heads, head = blockIdx.x % a.heads;
    find_drawn(a, now);
    int64_t first = (int64_t)blockIdx.y * R, y_row = a.heads * a.head_dim;
    int row = threadIdx.x / N, part = threadIdx.x % N;
    bool inside = first + row < a.time;
    const T *heads_k = a.k + batch * a.time * a.kv_row + head / a.group * a.head_dim;
    const T *heads_v = a.v + batch * a.time * a.kv_row + head / a.group * a.head_dim;
    load_tile<T, D, R>(q, a.q + batch * a.time * a.q_row + head * a.head_dim, a.q_row, first,
                       a.time, a.head_dim);
    load_tile<T, D, R>(dy, a.dy + batch * a.time * y_row + head * a.head_dim, y_row, first, a.time,
                       a.head_dim);
    int64_t at = (batch * a.heads + head) * a.time + first + row;
    float lse = inside ? a.lse[at] : 0, total = inside ? a.totals[at] : 0, out[OUT];
    for (int i = 0; i < OUT; i++) out[i] = 0;
    int64_t end = keys_end<R>(a, first);
    for (int64_t from = first_key<R>(a, batch, first); from < end; from += R) {
        if (is_beyond<R>(a, batch, first, from)) break;
        float p[COLUMNS], bend[COLUMNS];
        __syncthreads();
        load_tile<T, D, R>(kv, heads_k, a.kv_row, from, a.time, a.head_dim);
        __syncthreads();
        for (int j = 0; j < COLUMNS; j++) {
            int column = part + N * j;
            bool seen = column < R && attends(a, batch, first + row, from + column);
            p[j] = 0, bend[j] = 1;
            if (!seen) continue;
            float less = lse - bias_of(a, head, first + row, from + column);
            float product = dot<D>(q + row * (D + 1), kv + column * (D + 1));
            p[j] = expf(score_of(a, product, &bend[j]) - less);
        }
        __syncthreads();
        load_tile<T, D, R>(kv, heads_v, a.kv_row, from, a.time, a.head_dim);
        __syncthreads();
        for (int j = 0; j < COLUMNS; j++) {
            int column = part + N * j;
            if (column >= R) continue;
            float slope = 0;
            if (p[j] != 0) {
                float kept = keep(a, now, batch, head, first + row, from + column);
                slope = p[j] * bend[j] *
                        (kept * dot<D>(dy + row * (D + 1), kv + column * (D + 1)) - total);
            }
            scores[row * (R + 1) + column] = slope;
        }
        __syncthreads();
        load_tile<T, D, R>(kv, heads_k, a.kv_row, from, a.time, a.head_dim);
        __syncthreads();
        for (int column = 0; column < R; column++) {
            float slope = scores[row * (R + 1) + column];
            if (slope == 0) continue;
            for (int i = 0; i < OUT; i++)
                out[i] = fmaf(slope, kv[column * (D + 1) + part + N * i], out[i]);
        }
    }
    if (!inside) return;
    T *to = a.dq + (batch * a.time + first + row) * a.q_row + head * a.head_dim;
    for (int i = 0; i < OUT; i++)
        if (part + N * i < a.head_dim) put(&to[part + N * i], out[i] * a.scale, a.add[0]);
}

/* blockIdx.x: batch and head of k and v; blockIdx.y: R keys. In the tiles of scores, rows are keys
 * and columns are the rows of a query head. Without the bound of four blocks
 * the compiler spills registers. */
template <typename T, int D, int R>
__global__ void __launch_bounds__(BLOCK, 4) attention_dkv(const attention<T> a)
{
    constexpr int N = BLOCK / R, OUT = D / N, COLUMNS = (R + N - 1) / N;
    SHARED(float, k, R *(D + 1));
    SHARED(float, v, R *(D + 1));
    SHARED(float, other, R *(D + 1));
    SHARED(float, slopes, R *(R + 1));
    SHARED(float, kept, R *(R + 1));
    SHARED(drawn, now, 1);
    int64_t batch = blockIdx.x / a.kv_heads, kv_head = blockIdx.x % a.kv_heads;
    find_drawn(a, now);
    int64_t first = (int64_t)blockIdx.y * R, y_row = a.heads * a.head_dim;
    int key = threadIdx.x / N, part = threadIdx.x % N;
    int64_t kv_place = batch * a.time * a.kv_row + kv_head * a.head_dim;
    load_tile<T, D, R>(k, a.k + kv_place, a.kv_row, first, a.time, a.head_dim);
    load_tile<T, D, R>(v, a.v + kv_place, a.kv_row, first, a.time, a.head_dim);
    float dk[OUT], dv[OUT];
    for (int i = 0; i < OUT; i++) dk[i] = dv[i] = 0;
    for (int64_t head = kv_head * a.group; head < (kv_head + 1) * a.group; head++) {
        const T *q = a.q + batch * a.time * a.q_row + head * a.head_dim;
        const T *dy = a.dy + batch * a.time * y_row + head * a.head_dim;
        int64_t begin = a.causal ? first : first_key<R>(a, batch, first); /* what sees is seen */
        for (int64_t from = begin; from < window_end<R>(a, first); from += R) {
            if (is_beyond<R>(a, batch, first, from)) break;
            __syncthreads();
            load_tile<T, D, R>(other, q, a.q_row, from, a.time, a.head_dim);
            __syncthreads();
            for (int j = 0; j < COLUMNS; j++) {
                int column = part + N * j, at = key * (R + 1) + column;
                int64_t row = from + column;
                if (column >= R) continue;
                float p = 0, bend = 1;
                if (attends(a, batch, row, first + key)) {
                    float lse = a.lse[(batch * a.heads + head) * a.time + row];
                    lse -= bias_of(a, head, row, first + key);
                    float product = dot<D>(other + column * (D + 1), k + key * (D + 1));
                    p = expf(score_of(a, product, &bend) - lse);
                }
                kept[at] = p, slopes[at] = p * bend; /* no registers are left to hold them */
            }
            __syncthreads();
            load_tile<T, D, R>(other, dy, y_row, from, a.time, a.head_dim);
            __syncthreads();
            for (int j = 0; j < COLUMNS; j++) {
                int column = part + N * j, at = key * (R + 1) + column;
                if (column >= R || kept[at] == 0) continue;
                float m = keep(a, now, batch, head, from + column, first + key);
                float total = a.totals[(batch * a.heads + head) * a.time + from + column];
                kept[at] *= m;
                slopes[at] *= m * dot<D>(other + column * (D + 1), v + key * (D + 1)) - total;
            }
            __syncthreads();
            for (int column = 0; column < R; column++) {
                float left = kept[key * (R + 1) + column];
                if (left == 0) continue;
                for (int i = 0; i < OUT; i++)
                    dv[i] = fmaf(left, other[column * (D + 1) + part + N * i], dv[i]);
            }
            __syncthreads();
            load_tile<T, D, R>(other, q, a.q_row, from, a.time, a.head_dim);
            __syncthreads();
            for (int column = 0; column < R; column++) {
                float slope = slopes[key * (R + 1) + column];
                if (slope == 0) continue;
                for (int i = 0; i < OUT; i++)
                    dk[i] = fmaf(slope, other[column * (D + 1) + part + N * i], dk[i]);
            }
        }
    }
    if (first + key >= a.time) return;
    int64_t at = kv_place + (first + key) * a.kv_row;
    for (int i = 0; i < OUT; i++) {
        if (part + N * i >= a.head_dim) continue;
        put(&a.dk[at + part + N * i], dk[i] * a.scale, a.add[1]);
        put(&a.dv[at + part + N * i], dv[i], a.add[2]);
    }
}

/* blockIdx.x: a distance; blockIdx.y: a head. Each warp takes a row and its key. */
template <typename T> __global__ void __launch_bounds__(BLOCK) attention_dbias(const attention<T> a)
{
    SHARED(float, sums, BLOCK / WARP);
    SHARED(drawn, now, 1);
    find_drawn(a, now);
    __syncthreads();
    int64_t distance = (int64_t)blockIdx.x - (a.time - 1), head = blockIdx.y;
    int64_t begin = distance < 0 ? -distance : 0;
    int64_t rows = a.time - (distance < 0 ? -distance : distance);
    int lane = threadIdx.x % WARP;
    float sum = 0;
    for (int64_t n = threadIdx.x / WARP; n < a.batch * rows; n += BLOCK / WARP) {
        int64_t batch = n / rows, row = begin + n % rows, key = row + distance;
        if (!attends(a, batch, row, key)) continue;
        const T *q = a.q + (batch * a.time + row) * a.q_row + head * a.head_dim;
        const T *dy = a.dy + ((batch * a.time + row) * a.heads + head) * a.head_dim;
        int64_t kv = (batch * a.time + key) * a.kv_row + head / a.group * a.head_dim;
        float product = 0, slope = 0;
        for (int64_t c = lane; c < a.head_dim; c += WARP) {
            product = fmaf(to_float(q[c]), to_float(a.k[kv + c]), product);
            slope = fmaf(to_float(dy[c]), to_float(a.v[kv + c]), slope);
        }
        product = warp_sum(product), slope = warp_sum(slope);
        int64_t at = (batch * a.heads + head) * a.time + row;
        float bend, lse = a.lse[at] - bias_of(a, head, row, key);
        float p = expf(score_of(a, product, &bend) - lse);
        sum += p * (keep(a, now, batch, head, row, key) * slope - a.totals[at]);
    }
    if (lane == 0) sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int i = 1; i < BLOCK / WARP; i++) sum += sums[i];
    put(&a.dbias[(int64_t)blockIdx.x * a.heads + head], sum, a.add[3]);
}

template <typename T, int D, int R>
static int start_gradients(const struct cuda_launch *launch, const attention<T> &a)
{
    unsigned tiles = (unsigned)((a.time + R - 1) / R);
    TRY_LAUNCH(
        start(launch, attention_dq<T, D, R>, dim3((unsigned)(a.batch * a.heads), tiles), BLOCK, a));
    return start(launch, attention_dkv<T, D, R>, dim3((unsigned)(a.batch * a.kv_heads), tiles),
                 BLOCK, a);
}

template <typename T>
static int run_backward(const struct op_desc *desc, const struct kernel_call *call,
                        const struct cuda_launch *launch)
{
    attention<T> a = attention_of<T>(desc, call, launch);
    TRY_LAUNCH(start(launch, attention_totals<T>,
                     grid_of_rows<WARP>(launch, a.batch * a.heads * a.time), BLOCK, a));
    if (a.dbias != nullptr)
        TRY_LAUNCH(start(launch, attention_dbias<T>,
                         dim3((unsigned)(2 * a.time - 1), (unsigned)a.heads), BLOCK, a));
    if (a.head_dim <= 64) return start_gradients<T, 64, 32>(launch, a);
    if (a.head_dim <= 128) return start_gradients<T, 128, 16>(launch, a);
    return start_gradients<T, 256, 8>(launch, a);
}

uint64_t cuda_attention_bytes(const struct op_desc *desc)
{
    const struct tensor_type *y = &desc->inputs[0];
    return (uint64_t)(y->dims[0] * y->dims[1] * desc->attrs.attention.heads) * sizeof(float);
}

RUN_BY_TYPE(cuda_run_attention_backward, run_backward, 0)

} // namespace fsdpd
