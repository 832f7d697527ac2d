/*
 * Shared by the attention kernels: sizes, where heads lie, and a block's tiles. A block of 256
 * threads works on R rows of one head and on R columns at a time; each row belongs to 256 / R
 * neighbouring threads. Internal to kernels/cuda.
 */
#ifndef FSDPD_KERNELS_CUDA_ATTENTION_H
#define FSDPD_KERNELS_CUDA_ATTENTION_H

#include "kernels/attention.h"
#include "kernels/cuda/draw.h"

template <typename T> struct attention {
    int64_t batch, time, heads, kv_heads, group, head_dim;
    int64_t q_row, kv_row; /* elements from one time to the next */
    bool causal, dropout, add[4];
    int64_t window; /* 0: none */
    float scale, softcap;
    cuda_draw random;
    const T *q, *k, *v, *y, *dy;
    T *out, *dq, *dk, *dv;
    const float *lse;
    float *lse_out, *totals; /* totals (batch, heads, time): sums of dy * y */
    const uint8_t *mask;     /* (batch, time); NULL: all keys are visible */
    const float *bias;       /* (2 time - 1, heads); NULL: none */
    float *dbias;
    const int32_t *starts; /* (batch, time); NULL: a row is one document */
};

template <typename T>
static inline attention<T> attention_of(const struct op_desc *desc, const struct kernel_call *call,
                                        const struct cuda_launch *launch)
{
    const struct attention_shape s = attention_shape_of(desc);
    const struct attention_places at = attention_places_of(&s, call);
    attention<T> a = {};
    a.batch = s.batch, a.time = s.time, a.heads = s.heads, a.kv_heads = s.kv_heads;
    a.group = s.group, a.head_dim = s.head_dim, a.q_row = at.q_row, a.kv_row = at.kv_row;
    a.causal = s.causal, a.dropout = s.dropped, a.window = desc->attrs.attention.window;
    a.scale = (float)s.scale, a.softcap = (float)s.softcap;
    a.random = draw_of(call, launch, desc->attrs.attention.stream, desc->attrs.attention.p);
    a.q = (const T *)at.q, a.k = (const T *)at.k, a.v = (const T *)at.v;
    a.y = (const T *)at.y, a.dy = (const T *)at.dy, a.lse = at.lse;
    a.mask = at.mask, a.bias = at.bias, a.starts = at.starts;
    for (int i = 0; i < 4; i++) a.add[i] = desc->accumulate[s.packed && i < 3 ? 0 : i];
    if (!s.backward) {
        a.out = output_of<T>(call, 0), a.lse_out = output_of<float>(call, 1);
        a.add[1] = desc->accumulate[1];
        return a;
    }
    a.dq = (T *)at.dq, a.dk = (T *)at.dk, a.dv = (T *)at.dv, a.dbias = at.dbias;
    a.totals = (float *)call->workspace;
    return a;
}

/* Loads rows `first` to first + R - 1 of a head, in f32 and padded with zeros. The tile's rows are
 * D + 1 floats apart, so that the elements of a column lie in different banks. */
template <typename T, int D, int R>
__device__ inline void load_tile(float *tile, const T *from, int64_t row_stride, int64_t first,
                                 int64_t time, int64_t head_dim)
{
    for (int i = threadIdx.x; i < R * D; i += BLOCK) {
        int row = i / D, column = i % D;
        bool inside = first + row < time && column < head_dim;
        tile[row * (D + 1) + column] =
            inside ? to_float(from[(first + row) * row_stride + column]) : 0;
    }
}

template <int D> __device__ inline float dot(const float *a, const float *b)
{
    float sum = 0;
    for (int i = 0; i < D; i++) sum = fmaf(a[i], b[i], sum);
    return sum;
}

template <typename T>
__device__ inline bool attends(const attention<T> &a, int64_t batch, int64_t row, int64_t column)
{
    if (row >= a.time || column >= a.time || (a.causal && column > row)) return false;
    if (a.window > 0 && (row - column >= a.window || column - row >= a.window)) return false;
    if (a.starts != nullptr && a.starts[batch * a.time + row] != a.starts[batch * a.time + column])
        return false;
    return a.mask == nullptr || a.mask[batch * a.time + column] != 0;
}

/* The tile of R in which the document of element `first` starts. */
template <int R, typename T>
__device__ inline int64_t first_tile(const attention<T> &a, int64_t batch, int64_t first)
{
    return a.starts == nullptr ? 0 : a.starts[batch * a.time + first] / R * R;
}

/* Whether the document of tile `from`'s first element starts beyond the R elements from `first`, so
 * that these meet neither this tile nor a later one. */
template <int R, typename T>
__device__ inline bool is_beyond(const attention<T> &a, int64_t batch, int64_t first, int64_t from)
{
    return a.starts != nullptr && a.starts[batch * a.time + from] >= first + R;
}

/* The first tile of R keys that the rows from `first` on can see. */
template <int R, typename T>
__device__ inline int64_t first_key(const attention<T> &a, int64_t batch, int64_t first)
{
    int64_t start = first_tile<R>(a, batch, first);
    int64_t seen = a.window > 0 && first >= a.window ? (first - a.window + 1) / R * R : 0;
    return start > seen ? start : seen;
}

/* The end of what the windows around the R places from `first` on hold: of rows around keys, or of
 * keys around rows. */
template <int R, typename T>
__device__ inline int64_t window_end(const attention<T> &a, int64_t first)
{
    int64_t end = first + R - 1 + a.window;
    return a.window > 0 && end < a.time ? end : a.time;
}

/* Behind the last key that one of the R rows from `first` on can see. */
template <int R, typename T>
__device__ inline int64_t keys_end(const attention<T> &a, int64_t first)
{
    int64_t end = first + R;
    if (!a.causal) return window_end<R>(a, first);
    return end < a.time ? end : a.time;
}

/* What is added to a score. */
template <typename T>
__device__ inline float bias_of(const attention<T> &a, int64_t head, int64_t row, int64_t column)
{
    /* 32 bits: the kernels have no registers left for more */
    int place = ((int)(column - row) + (int)a.time - 1) * (int)a.heads + (int)head;
    return a.bias != nullptr ? a.bias[place] : 0;
}

/* The score that softmax takes of a product of rows, but for its bias. `bend`: the derivative by
 * scale * product. */
template <typename T>
__device__ inline float score_of(const attention<T> &a, float product, float *bend)
{
    *bend = 1;
    if (a.softcap == 0) return a.scale * product;
    float ratio = tanhf(a.scale * product / a.softcap);
    *bend = fmaf(-ratio, ratio, 1);
    return a.softcap * ratio;
}

/* Puts what keys dropout into shared memory, since no registers are left for it. The block may read
 * it after its next barrier. */
template <typename T> __device__ inline void find_drawn(const attention<T> &a, drawn *now)
{
    if (threadIdx.x == 0) *now = drawn_now(a.random);
}

/* The factor of a probability: 0, or 1 / (1 - p). */
template <typename T>
__device__ inline float keep(const attention<T> &a, const drawn *now, int64_t batch, int64_t head,
                             int64_t row, int64_t column)
{
    if (!a.dropout) return 1;
    uint64_t i = (uint64_t)(((batch * a.heads + head) * a.time + row) * a.time + column);
    return draw_factor(a.random, *now, i);
}

/* The sum over the N neighbouring threads that share a row. */
template <int N> __device__ inline float row_sum_of(float value)
{
    for (int distance = N / 2; distance > 0; distance /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

template <int N> __device__ inline float row_max_of(float value)
{
    for (int distance = N / 2; distance > 0; distance /= 2)
        value = larger(value, __shfl_xor_sync(0xffffffffu, value, distance));
    return value;
}

#endif
