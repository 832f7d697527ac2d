/*
 * Attention over a cache of keys and values, for rows that continue sequences. A cache that is
 * shorter than the sequences is a ring of their last positions. Rows first go into the cache. Then
 * a block has a row of one head, and its warps take turns with the keys that the row sees; each has
 * a running softmax, as in attention.cu, and these are joined in the order of the warps. Positions
 * are data, so a graph with these launches continues sequences of any length.
 */
#include "kernels/cuda/attention.h"
#include "kernels/cuda/generation.h"

namespace fsdpd {

enum { KEYS = 4 /* that a warp has under way */ };

template <typename T> struct cached {
    attention<T> a;
    T *keys, *values; /* (batch, count, kv_heads, head_dim) */
    int64_t count;    /* of positions */
};

/* `row` counts those of all sequences; likewise below. */
template <typename T> __device__ inline int64_t position_of(const attention<T> &a, int64_t row)
{
    return row % a.time - a.starts[row];
}

/* Divides only where a ring begins again. */
template <typename T> __device__ inline int64_t cache_place(const cached<T> &c, int64_t position)
{
    return position < c.count ? position : position % c.count;
}

/* A block has a row. Of rows at the same place the last one stays. */
template <typename T> __global__ void __launch_bounds__(BLOCK) fill_cache_kernel(const cached<T> c)
{
    const attention<T> &a = c.a;
    SHARED(float, scratch, WARPS);
    int64_t row = blockIdx.x, batch = row / a.time, place = cache_place(c, position_of(a, row));
    float later = 0;
    for (int64_t other = row + 1 + threadIdx.x; other < (batch + 1) * a.time; other += BLOCK)
        if (cache_place(c, position_of(a, other)) == place) later = 1;
    if (group_max<BLOCK>(later, scratch) > 0) return;
    int64_t width = a.kv_heads * a.head_dim, to = (batch * c.count + place) * width;
    for (int64_t i = threadIdx.x; i < width; i += BLOCK) {
        c.keys[to + i] = a.k[row * a.kv_row + i];
        c.values[to + i] = a.v[row * a.kv_row + i];
    }
}

/* A warp's softmax so far; a lane has every 32nd column. */
template <int C> struct running {
    float max, sum, out[C];
};

/* Adds the keys from `key` to `last`, at most KEYS of them. */
template <typename T, int C>
__device__ inline void add_keys(const cached<T> &c, int64_t at, const float (&q)[C], int64_t key,
                                int64_t last, running<C> *so_far)
{
    const attention<T> &a = c.a;
    int lane = threadIdx.x % WARP;
    int64_t places[KEYS];
    float scores[KEYS], most = so_far->max, unused;
    UNROLLED
    for (int i = 0; i < KEYS; i++) {
        scores[i] = 0;
        places[i] = at + cache_place(c, key + i) * a.kv_heads * a.head_dim;
        for (int j = 0; j < C && key + i <= last; j++) {
            int column = lane + WARP * j;
            if (column < a.head_dim)
                scores[i] = fmaf(q[j], to_float(c.keys[places[i] + column]), scores[i]);
        }
    }
    UNROLLED
    for (int i = 0; i < KEYS; i++) {
        scores[i] = score_of(a, warp_sum(scores[i]), &unused);
        if (key + i > last) scores[i] = -INFINITY;
        most = larger(most, scores[i]);
    }
    float factor = most == -INFINITY ? 1 : expf(so_far->max - most);
    so_far->max = most;
    so_far->sum *= factor;
    for (int j = 0; j < C; j++) so_far->out[j] *= factor;
    UNROLLED
    for (int i = 0; i < KEYS; i++) {
        float p = scores[i] == -INFINITY ? 0 : expf(scores[i] - most);
        so_far->sum += p;
        for (int j = 0; j < C && key + i <= last; j++) {
            int column = lane + WARP * j;
            if (column < a.head_dim)
                so_far->out[j] = fmaf(p, to_float(c.values[places[i] + column]), so_far->out[j]);
        }
    }
}

template <typename T, int C>
__global__ void __launch_bounds__(BLOCK) attention_cached_kernel(const cached<T> c)
{
    const attention<T> &a = c.a;
    SHARED(float, outs, WARPS *C *WARP);
    SHARED(float, maxima, WARPS);
    SHARED(float, sums, WARPS);
    int64_t row = blockIdx.x / a.heads, head = blockIdx.x % a.heads;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int64_t last = position_of(a, row), first = 0;
    if (a.window > 0 && last >= a.window) first = last - a.window + 1;
    int64_t at = (row / a.time * c.count * a.kv_heads + head / a.group) * a.head_dim;
    float q[C];
    running<C> mine = {-INFINITY, 0, {}};
    for (int j = 0; j < C; j++) {
        int column = lane + WARP * j;
        q[j] = column < a.head_dim ? to_float(a.q[row * a.q_row + head * a.head_dim + column]) : 0;
    }
    for (int64_t key = first + warp * KEYS; key <= last; key += WARPS * KEYS)
        add_keys<T, C>(c, at, q, key, last, &mine);
    for (int j = 0; j < C; j++) outs[(warp * C + j) * WARP + lane] = mine.out[j];
    if (lane == 0) maxima[warp] = mine.max, sums[warp] = mine.sum;
    __syncthreads();
    if (threadIdx.x >= a.head_dim) return;
    float most = -INFINITY, sum = 0, out = 0;
    for (int w = 0; w < WARPS; w++) most = larger(most, maxima[w]);
    for (int w = 0; w < WARPS; w++) {
        float factor = maxima[w] == -INFINITY ? 0 : expf(maxima[w] - most);
        sum = fmaf(factor, sums[w], sum);
        out = fmaf(factor, outs[w * C * WARP + threadIdx.x], out);
    }
    put(&a.out[(row * a.heads + head) * a.head_dim + threadIdx.x],
        most == -INFINITY ? 0 : out / sum, a.add[0]);
}

template <typename T>
static int run_cached(const struct op_desc *desc, const struct kernel_call *call,
                      const struct cuda_launch *launch)
{
    const cached<T> c = {attention_of<T>(desc, call, launch), output_of<T>(call, 2),
                         output_of<T>(call, 3), desc->outputs[2].dims[1]};
    int64_t rows = c.a.batch * c.a.time;
    dim3 grid((unsigned)(rows * c.a.heads));
    TRY_LAUNCH(start(launch, fill_cache_kernel<T>, dim3((unsigned)rows), BLOCK, c));
    if (c.a.head_dim <= 64) return start(launch, attention_cached_kernel<T, 2>, grid, BLOCK, c);
    if (c.a.head_dim <= 128) return start(launch, attention_cached_kernel<T, 4>, grid, BLOCK, c);
    return start(launch, attention_cached_kernel<T, 8>, grid, BLOCK, c);
}

RUN_BY_TYPE(cuda_run_attention_cached, run_cached, 0)

} // namespace fsdpd
