/*
 * Shared by the attention kernels: sizes, where heads lie, and a block's tiles. A block of 256
 * threads works on R rows of one head and on R columns at a time; each row belongs to 256 / R
 * neighbouring threads. Internal to kernels/cuda.
 */
#ifndef FSDPD_KERNELS_CUDA_ATTENTION_H
#define FSDPD_KERNELS_CUDA_ATTENTION_H

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

/* The same formula as in kernels/attention.h. */
template <typename T>
static inline attention<T> attention_of(const struct op_desc *desc, const struct kernel_call *call,
                                        const struct cuda_launch *launch)
{
    bool backward = desc->kind == OP_ATTENTION_BACKWARD;
    const struct tensor_type *y = backward ? &desc->inputs[0] : &desc->outputs[0];
    attention<T> a = {};
    a.batch = y->dims[0], a.time = y->dims[1];
    a.heads = desc->attrs.attention.heads, a.kv_heads = desc->attrs.attention.kv_heads;
    a.group = a.heads / a.kv_heads, a.head_dim = y->dims[2] / a.heads;
    a.causal = desc->attrs.attention.causal;
    double scale = desc->attrs.attention.scale, p = desc->attrs.attention.p;
    a.scale = (float)(scale > 0 ? scale : 1 / sqrt((double)a.head_dim));
    a.window = desc->attrs.attention.window;
    a.softcap = (float)desc->attrs.attention.softcap;
    a.dropout = p > 0;
    a.random = draw_of(call, launch, desc->attrs.attention.stream, p);
    int64_t q_width = a.heads * a.head_dim, kv_width = a.kv_heads * a.head_dim;
    int first = backward ? 1 : 0, mask = backward ? 6 : 3;
    bool packed = !desc->input_present[first + 1];
    a.q = input_of<T>(call, first);
    a.k = packed ? a.q + q_width : input_of<T>(call, first + 1);
    a.v = packed ? a.k + kv_width : input_of<T>(call, first + 2);
    a.q_row = packed ? q_width + 2 * kv_width : q_width;
    a.kv_row = packed ? a.q_row : kv_width;
    a.mask = desc->input_present[mask] ? input_of<uint8_t>(call, mask) : nullptr;
    int bias = backward ? 7 : 4, starts = bias + 1;
    a.bias = desc->input_present[bias] ? input_of<float>(call, bias) : nullptr;
    a.starts = desc->input_present[starts] ? input_of<int32_t>(call, starts) : nullptr;
    for (int i = 0; i < 3; i++) a.add[i] = desc->accumulate[packed ? 0 : i];
    if (!backward) {
        a.out = output_of<T>(call, 0);
        a.lse_out = desc->output_present[1] ? output_of<float>(call, 1) : nullptr;
        a.add[1] = desc->accumulate[1];
        return a;
    }
    a.dy = input_of<T>(call, 0), a.y = input_of<T>(call, 4), a.lse = input_of<float>(call, 5);
    a.totals = (float *)call->workspace;
    a.dq = output_of<T>(call, 0);
    a.dk = packed ? a.dq + q_width : output_of<T>(call, 1);
    a.dv = packed ? a.dk + kv_width : output_of<T>(call, 2);
    a.dbias = a.bias != nullptr ? output_of<float>(call, 3) : nullptr;
    a.add[3] = desc->accumulate[3];
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
