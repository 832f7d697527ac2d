/*
 * Rotary positions, forward and backward. The launch passes the frequencies. Angles are rounded to
 * f32 as in kernels/rope.h. Their cosines are computed in the kernel, which is faster than reading
 * a table.
 */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/platform.h"
#include "kernels/rope.h"

struct frequencies {
    float of[CUDA_ROPE_PAIRS_MAX];
};

/* One thread per two columns: a pair, or two of the columns that stay behind the pairs of a head.
 */
template <typename T>
__global__ void __launch_bounds__(BLOCK)
    rope_kernel(const T *x, const int32_t *starts, T *y, int64_t pairs, int64_t time, int64_t heads,
                int64_t head_dim, int64_t half, frequencies frequency, float magnitude, bool back,
                bool add)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < pairs;
         i += (int64_t)gridDim.x * BLOCK) {
        int64_t head = i / (head_dim / 2), pair = i % (head_dim / 2), at = head * head_dim + pair;
        if (pair >= half) {
            at += pair;
            put(&y[at], to_float(x[at]), add);
            put(&y[at + 1], to_float(x[at + 1]), add);
            continue;
        }
        int64_t token = head / heads, start = starts != nullptr ? starts[token] : 0;
        float angle = (float)(token % time - start) * frequency.of[pair];
        float cosine = cosf(angle) * magnitude, sine = sinf(angle) * magnitude;
        if (back) sine = -sine;
        float first = to_float(x[at]), second = to_float(x[at + half]);
        put(&y[at], fmaf(first, cosine, -(second * sine)), add);
        put(&y[at + half], fmaf(second, cosine, first * sine), add);
    }
}

template <typename T>
static int run_rope(const struct cuda_op *op, const struct kernel_call *call,
                    const struct cuda_launch *launch)
{
    const struct op_desc *desc = &op->desc;
    const int64_t *dims = desc->inputs[0].dims, head = desc->attrs.rope.head_dim;
    int64_t pairs = count_of(&desc->inputs[0]) / 2;
    frequencies frequency;
    memcpy(frequency.of, op->frequencies, sizeof frequency.of);
    return start(launch, rope_kernel<T>, grid_of(launch, pairs), BLOCK, input_of<T>(call, 0),
                 desc->input_present[1] ? input_of<int32_t>(call, 1) : nullptr,
                 output_of<T>(call, 0), pairs, dims[1], dims[2] / head, head, rope_pairs(desc),
                 frequency, rope_magnitude(desc), desc->kind == OP_ROPE_BACKWARD,
                 desc->accumulate[0]);
}

int cuda_run_rope(const struct cuda_op *op, const struct kernel_call *call,
                  const struct cuda_launch *launch)
{
    return op->desc.inputs[0].dtype == DTYPE_BF16 ? run_rope<bf16>(op, call, launch)
                                                  : run_rope<float>(op, call, launch);
}
