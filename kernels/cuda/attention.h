/*
 * What the attention kernels share: sizes, where heads lie, and a block's tiles. A block of 256
 * threads has R rows of one head; R threads' worth of columns are looked at together, and every
 * row belongs to 256 / R neighbouring threads. Internal to kernels/cuda.
 */
#ifndef FSDPD_KERNELS_CUDA_ATTENTION_H
#define FSDPD_KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/platform.h"

template <typename T> struct attention {
    int64_t batch, time, heads, kv_heads, group, head_dim;
    int64_t q_row, kv_row; /* elements from one time to the next */
    bool causal, dropout, add[3];
    float scale, keep_scale;
    uint64_t threshold;
    uint32_t key[2], stream, step, rank;
    const uint64_t *live; /* the step, where it is not `step`; NULL */
    const T *q, *k, *v, *y, *dy;
    T *out, *dq, *dk, *dv;
    const float *lse;
    float *lse_out, *totals; /* totals (batch, heads, time): sums over dy * y */
    const uint8_t *mask;     /* (batch, time); NULL: all keys are seen */
};

/* As kernels/attention.h has it. */
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
    a.dropout = p > 0;
    a.keep_scale = (float)(1 / (1 - p));
    a.threshold = philox_threshold(p);
    a.key[0] = (uint32_t)call->seed, a.key[1] = (uint32_t)(call->seed >> 32);
    a.stream = desc->attrs.attention.stream, a.step = (uint32_t)call->step, a.rank = call->rank;
    a.live = (const uint64_t *)launch->live;
    int64_t q_width = a.heads * a.head_dim, kv_width = a.kv_heads * a.head_dim;
    int first = backward ? 1 : 0, mask = backward ? 6 : 3;
    bool packed = !desc->input_present[first + 1];
    a.q = input_of<T>(call, first);
    a.k = packed ? a.q + q_width : input_of<T>(call, first + 1);
    a.v = packed ? a.k + kv_width : input_of<T>(call, first + 2);
    a.q_row = packed ? q_width + 2 * kv_width : q_width;
    a.kv_row = packed ? a.q_row : kv_width;
    a.mask = desc->input_present[mask] ? input_of<uint8_t>(call, mask) : nullptr;
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
    return a;
}

/* Rows `first` to first + R - 1 of a head, in f32 and padded with zeros; rows of the tile are D + 1
 * floats apart, so that a column lies in different banks. */
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
__device__ inline bool sees(const attention<T> &a, int64_t batch, int64_t row, int64_t column)
{
    if (row >= a.time || column >= a.time || (a.causal && column > row)) return false;
    return a.mask == nullptr || a.mask[batch * a.time + column] != 0;
}

/* The step that keys dropout, for the block to read after its next barrier: in shared memory, as
 * there are no registers left for it. */
template <typename T> __device__ inline void find_step(const attention<T> &a, uint32_t *step)
{
    if (threadIdx.x == 0) *step = a.live != nullptr ? (uint32_t)*a.live : a.step;
}

/* What a probability is multiplied with: 0, or 1 / (1 - p). */
template <typename T>
__device__ inline float keep(const attention<T> &a, const uint32_t *step, int64_t batch,
                             int64_t head, int64_t row, int64_t column)
{
    if (!a.dropout) return 1;
    uint64_t i = (uint64_t)(((batch * a.heads + head) * a.time + row) * a.time + column);
    uint32_t counter[4] = {(uint32_t)(i / 4), a.stream, *step, a.rank}, words[4];
    philox_block(counter, a.key, words);
    return word_of(words, i) >= a.threshold ? a.keep_scale : 0;
}

/* Sums of the N neighbouring threads that share a row. */
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
