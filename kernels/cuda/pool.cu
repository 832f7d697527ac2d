/* Max pooling. One thread per output; the gradient gathers, so that no thread adds to another's
 * result. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/window.h"

namespace fsdpd {

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    pool_kernel(const window w, const T *x, T *y, uint8_t *indices, int64_t count, bool add)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * BLOCK) {
        int64_t ow = i % w.out_width, oh = i / w.out_width % w.out_height;
        const T *plane = x + i / (w.out_width * w.out_height) * (w.height * w.width);
        float best = -INFINITY;
        int winner = -1;
        for (int k = 0; k < w.kernel[0] * w.kernel[1]; k++) {
            int64_t ih = oh * w.stride[0] - w.padding[0] + k / w.kernel[1];
            int64_t iw = ow * w.stride[1] - w.padding[1] + k % w.kernel[1];
            if (ih < 0 || ih >= w.height || iw < 0 || iw >= w.width) continue;
            float value = to_float(plane[ih * w.width + iw]);
            if (winner < 0 || value > best || value != value) best = value, winner = k;
        }
        put(&y[i], best, add);
        if (indices != nullptr) indices[i] = (uint8_t)winner;
    }
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    pool_backward_kernel(const window w, const T *dy, const uint8_t *indices, T *dx, int64_t count,
                         bool add)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * BLOCK) {
        int64_t iw = i % w.width + w.padding[1], ih = i / w.width % w.height + w.padding[0];
        int64_t plane = i / (w.width * w.height) * (w.out_height * w.out_width);
        int64_t first_h = ih < w.kernel[0] ? 0 : (ih - w.kernel[0]) / w.stride[0] + 1;
        int64_t first_w = iw < w.kernel[1] ? 0 : (iw - w.kernel[1]) / w.stride[1] + 1;
        float sum = 0;
        for (int64_t oh = first_h; oh < w.out_height && oh * w.stride[0] <= ih; oh++)
            for (int64_t ow = first_w; ow < w.out_width && ow * w.stride[1] <= iw; ow++) {
                int64_t k = (ih - oh * w.stride[0]) * w.kernel[1] + iw - ow * w.stride[1];
                int64_t at = plane + oh * w.out_width + ow;
                if (indices[at] == k) sum += to_float(dy[at]);
            }
        put(&dx[i], sum, add);
    }
}

template <typename T>
static int run_pool(const struct op_desc *desc, const struct kernel_call *call,
                    const struct cuda_launch *launch)
{
    bool forward = desc->kind == OP_MAX_POOL2D;
    const struct window w =
        window_of(forward ? &desc->inputs[0] : &desc->outputs[0],
                  forward ? &desc->outputs[0] : &desc->inputs[0], desc->attrs.pool.kernel,
                  desc->attrs.pool.stride, desc->attrs.pool.padding);
    int64_t count = count_of(&desc->outputs[0]);
    dim3 grid = grid_of(launch, count);
    if (!forward)
        return start(launch, pool_backward_kernel<T>, grid, BLOCK, w, input_of<T>(call, 0),
                     input_of<uint8_t>(call, 1), output_of<T>(call, 0), count, desc->accumulate[0]);
    uint8_t *indices = desc->output_present[1] ? output_of<uint8_t>(call, 1) : nullptr;
    return start(launch, pool_kernel<T>, grid, BLOCK, w, input_of<T>(call, 0),
                 output_of<T>(call, 0), indices, count, desc->accumulate[0]);
}

RUN_BY_TYPE(cuda_run_pool, run_pool, 0)

} // namespace fsdpd
