/*
 * Rotary positions, forward and back. The frequencies come with the launch; angles are rounded to
 * f32 as in kernels/rope.h, and their cosines made on the way: memory is slower.
 */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/platform.h"

struct frequencies {
    float of[CUDA_ROPE_PAIRS_MAX];
};

/* A thread per pair. */
template <typename T>
__global__ void __launch_bounds__(BLOCK)
    rope_kernel(const T *x, T *y, int64_t pairs, int64_t time, int64_t heads, int64_t half,
                frequencies frequency, bool back, bool add)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < pairs;
         i += (int64_t)gridDim.x * BLOCK) {
        int64_t head = i / half, pair = i % half, at = head * 2 * half + pair;
        float angle = (float)(head / heads % time) * frequency.of[pair];
        float cosine = cosf(angle), sine = back ? -sinf(angle) : sinf(angle);
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
                 output_of<T>(call, 0), pairs, dims[1], dims[2] / head, head / 2, frequency,
                 desc->kind == OP_ROPE_BACKWARD, desc->accumulate[0]);
}

int cuda_run_rope(const struct cuda_op *op, const struct kernel_call *call,
                  const struct cuda_launch *launch)
{
    return op->desc.inputs[0].dtype == DTYPE_BF16 ? run_rope<bf16>(op, call, launch)
                                                  : run_rope<float>(op, call, launch);
}
