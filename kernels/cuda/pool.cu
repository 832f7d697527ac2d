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

static struct window pool_window(const struct op_desc *desc, const struct tensor_type *x,
                                 const struct tensor_type *y)
{
    struct window w = window_of(x, y);
    for (int i = 0; i < 2; i++) {
        w.kernel[i] = (int)desc->attrs.pool.kernel[i];
        w.stride[i] = (int)desc->attrs.pool.stride[i];
        w.padding[i] = (int)desc->attrs.pool.padding[i];
    }
    return w;
}

template <typename T>
static int run_pool(const struct op_desc *desc, const struct kernel_call *call,
                    const struct cuda_launch *launch)
{
    struct window w = pool_window(desc, &desc->inputs[0], &desc->outputs[0]);
    int64_t count = count_of(&desc->outputs[0]);
    uint8_t *indices = desc->output_present[1] ? output_of<uint8_t>(call, 1) : nullptr;
    return start(launch, pool_kernel<T>, grid_of(launch, count), BLOCK, w, input_of<T>(call, 0),
                 output_of<T>(call, 0), indices, count, desc->accumulate[0]);
}

int cuda_run_pool(const struct cuda_op *op, const struct kernel_call *call,
                  const struct cuda_launch *launch)
{
    return op->desc.inputs[0].dtype == DTYPE_BF16 ? run_pool<bf16>(&op->desc, call, launch)
                                                  : run_pool<float>(&op->desc, call, launch);
}

template <typename T>
static int run_pool_backward(const struct op_desc *desc, const struct kernel_call *call,
                             const struct cuda_launch *launch)
{
    struct window w = pool_window(desc, &desc->outputs[0], &desc->inputs[0]);
    int64_t count = count_of(&desc->outputs[0]);
    return start(launch, pool_backward_kernel<T>, grid_of(launch, count), BLOCK, w,
                 input_of<T>(call, 0), input_of<uint8_t>(call, 1), output_of<T>(call, 0), count,
                 desc->accumulate[0]);
}

int cuda_run_pool_backward(const struct cuda_op *op, const struct kernel_call *call,
                           const struct cuda_launch *launch)
{
    return op->desc.inputs[0].dtype == DTYPE_BF16
               ? run_pool_backward<bf16>(&op->desc, call, launch)
               : run_pool_backward<float>(&op->desc, call, launch);
}

} // namespace fsdpd
