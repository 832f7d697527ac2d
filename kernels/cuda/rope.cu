/*
 * Rotary positions, forward and backward. The launch passes the frequencies. Angles are rounded to
 * f32 as in kernels/rope.h. Their cosines are computed in the kernel, which is faster than reading
 * a table, and once for several heads of a token.
 */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/platform.h"
#include "kernels/rope.h"

namespace fsdpd {

struct frequencies {
    float of[CUDA_ROPE_PAIRS_MAX];
};

/* Heads of a token that one thread turns, with the same cosines. */
enum { HEADS_AT_ONCE = 4 };

/* What a launch turns: `packs` of V columns in a head, of which `turned` have a partner `half`
 * columns behind, or right behind it if pairs are interleaved; the others stay. */
struct rope_shape {
    int64_t tokens, time, heads, head_dim, half, turned, packs, groups;
    bool add;
};

/* Column k of two packs that are neighbours. */
template <typename T, int V> __device__ inline T *column(pack<T, V> *low, pack<T, V> *high, int k)
{
    return k < V ? &low->at[k] : &high->at[k - V];
}

template <typename T, int V, bool INTERLEAVED>
__device__ inline void turn(const rope_shape &r, const T *x, T *y, const float cosine[V],
                            const float sine[V])
{
    const int64_t apart = INTERLEAVED ? V : r.half;
    pack<T, V> first = load<V>(x), second = load<V>(x + apart), low, high;
    if (r.add) low = load<V>(y), high = load<V>(y + apart);
    for (int v = 0; v < V; v++) {
        int one = INTERLEAVED ? 2 * v : v, other = INTERLEAVED ? 2 * v + 1 : v + V;
        float a = to_float(*column(&first, &second, one));
        float b = to_float(*column(&first, &second, other));
        put(column(&low, &high, one), fmaf(a, cosine[v], -(b * sine[v])), r.add);
        put(column(&low, &high, other), fmaf(b, cosine[v], a * sine[v]), r.add);
    }
    store(y, low);
    store(y + apart, high);
}

template <typename T, int V> __device__ inline void stay(const rope_shape &r, const T *x, T *y)
{
    pack<T, V> values = load<V>(x), out;
    if (r.add) out = load<V>(y);
    for (int v = 0; v < V; v++) put(&out.at[v], to_float(values.at[v]), r.add);
    store(y, out);
}

/* One thread per pack and group of heads of a token. */
template <typename T, int V, bool INTERLEAVED>
__global__ void __launch_bounds__(BLOCK)
    rope_kernel(const T *x, const int32_t *starts, T *y, rope_shape r, frequencies frequency,
                float magnitude, bool back)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < r.tokens * r.groups * r.packs;
         i += (int64_t)gridDim.x * BLOCK) {
        int64_t rest = i / r.packs, place = i % r.packs, token = rest / r.groups;
        int64_t head = rest % r.groups * HEADS_AT_ONCE;
        int64_t end = head + HEADS_AT_ONCE < r.heads ? head + HEADS_AT_ONCE : r.heads;
        float cosine[V], sine[V];
        bool turns = place < r.turned;
        if (turns) {
            int64_t start = starts != nullptr ? starts[token] : 0;
            float position = (float)(token % r.time - start);
            for (int v = 0; v < V; v++) {
                float angle = position * frequency.of[place * V + v];
                cosine[v] = cosf(angle) * magnitude, sine[v] = sinf(angle) * magnitude;
                if (back) sine[v] = -sine[v];
            }
        }
        int64_t column = (!turns ? place + r.turned : INTERLEAVED ? 2 * place : place) * V;
        for (; head < end; head++) {
            int64_t at = (token * r.heads + head) * r.head_dim + column;
            if (turns) turn<T, V, INTERLEAVED>(r, x + at, y + at, cosine, sine);
            else stay<T, V>(r, x + at, y + at);
        }
    }
}

template <typename T, int V, bool INTERLEAVED>
static int start_rope(const struct cuda_op *op, const struct kernel_call *call,
                      const struct cuda_launch *launch)
{
    const struct op_desc *desc = &op->desc;
    const int64_t *dims = desc->inputs[0].dims, half = rope_pairs(desc);
    rope_shape r = {};
    r.tokens = dims[0] * dims[1];
    r.time = dims[1];
    r.head_dim = desc->attrs.rope.head_dim;
    r.heads = dims[2] / r.head_dim;
    r.half = half;
    r.turned = half / V;
    r.packs = (r.head_dim - half) / V;
    r.groups = (r.heads + HEADS_AT_ONCE - 1) / HEADS_AT_ONCE;
    r.add = desc->accumulate[0];
    frequencies frequency;
    memcpy(frequency.of, op->frequencies, sizeof frequency.of);
    return start(launch, rope_kernel<T, V, INTERLEAVED>,
                 grid_of(launch, r.tokens * r.groups * r.packs), BLOCK, input_of<T>(call, 0),
                 desc->input_present[1] ? input_of<int32_t>(call, 1) : nullptr,
                 output_of<T>(call, 0), r, frequency, rope_magnitude(desc),
                 desc->kind == OP_ROPE_BACKWARD);
}

template <typename T, bool INTERLEAVED>
static int run_pairs(const struct cuda_op *op, const struct kernel_call *call,
                     const struct cuda_launch *launch)
{
    constexpr int V = full_pack<T>();
    bool packs = op->desc.attrs.rope.head_dim % V == 0 && rope_pairs(&op->desc) % V == 0 &&
                 is_aligned(input_of<T>(call, 0), output_of<T>(call, 0));
    return packs ? start_rope<T, V, INTERLEAVED>(op, call, launch)
                 : start_rope<T, 1, INTERLEAVED>(op, call, launch);
}

template <typename T>
static int run_rope(const struct cuda_op *op, const struct kernel_call *call,
                    const struct cuda_launch *launch)
{
    return op->desc.attrs.rope.interleaved ? run_pairs<T, true>(op, call, launch)
                                           : run_pairs<T, false>(op, call, launch);
}

int cuda_run_rope(const struct cuda_op *op, const struct kernel_call *call,
                  const struct cuda_launch *launch)
{
    return op->desc.inputs[0].dtype == DTYPE_BF16 ? run_rope<bf16>(op, call, launch)
                                                  : run_rope<float>(op, call, launch);
}

} // namespace fsdpd
