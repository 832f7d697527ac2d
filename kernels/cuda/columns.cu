/* Some of a tensor's columns, and their gradient: one thread per element of the result. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/platform.h"

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    narrow_kernel(const T *x, T *y, int64_t count, int64_t whole, int64_t part, int64_t start,
                  bool add)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * BLOCK)
        put(&y[i], to_float(x[i / part * whole + start + i % part]), add);
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    narrow_backward_kernel(const T *dy, const T *other, T *dx, int64_t count, int64_t whole,
                           int64_t part, int64_t start, bool add)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * BLOCK) {
        int64_t column = i % whole - start;
        float value = other != nullptr ? to_float(other[i]) : 0;
        if (column >= 0 && column < part) value += to_float(dy[i / whole * part + column]);
        put(&dx[i], value, add);
    }
}

template <typename T>
static int run_narrow(const struct op_desc *desc, const struct kernel_call *call,
                      const struct cuda_launch *launch)
{
    bool forward = desc->kind == OP_NARROW;
    int64_t whole = columns_of(forward ? &desc->inputs[0] : &desc->outputs[0]);
    int64_t part = columns_of(forward ? &desc->outputs[0] : &desc->inputs[0]);
    int64_t count = count_of(&desc->outputs[0]), first = desc->attrs.narrow.start;
    dim3 grid = grid_of(launch, count);
    if (forward)
        return start(launch, narrow_kernel<T>, grid, BLOCK, input_of<T>(call, 0),
                     output_of<T>(call, 0), count, whole, part, first, desc->accumulate[0]);
    const T *other = desc->input_present[1] ? input_of<T>(call, 1) : nullptr;
    return start(launch, narrow_backward_kernel<T>, grid, BLOCK, input_of<T>(call, 0), other,
                 output_of<T>(call, 0), count, whole, part, first, desc->accumulate[0]);
}

int cuda_run_narrow(const struct cuda_op *op, const struct kernel_call *call,
                    const struct cuda_launch *launch)
{
    return op->desc.inputs[0].dtype == DTYPE_BF16 ? run_narrow<bf16>(&op->desc, call, launch)
                                                  : run_narrow<float>(&op->desc, call, launch);
}
