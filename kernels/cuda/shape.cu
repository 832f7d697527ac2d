/* Ops that move elements between shapes, and means over a dimension: a thread per element written.
 */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/platform.h"

/* Loops over this thread's elements. */
#define FOR_ELEMENTS(i, count)                                                                     \
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < (count);                       \
         i += (int64_t)gridDim.x * BLOCK)

/* x as (outer, a, mid, b, inner). */
struct shape_transposition {
    int64_t a, mid, b, inner, count;
};

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    transpose_kernel(const struct shape_transposition t, const T *x, T *y, bool add)
{
    FOR_ELEMENTS(i, t.count)
    {
        int64_t in = i % t.inner, a = i / t.inner % t.a, m = i / (t.inner * t.a) % t.mid;
        int64_t row = i / (t.inner * t.a * t.mid), b = row % t.b, o = row / t.b;
        put(&y[i], to_float(x[(((o * t.a + a) * t.mid + m) * t.b + b) * t.inner + in]), add);
    }
}

template <typename T>
static int run_transpose(const struct op_desc *desc, const struct kernel_call *call,
                         const struct cuda_launch *launch)
{
    const int64_t *dims = desc->attrs.transpose.dims;
    struct op_dim first = op_dim_of(&desc->inputs[0], dims[0]);
    struct op_dim second = op_dim_of(&desc->inputs[0], dims[1]);
    struct shape_transposition t = {first.count, first.inner / (second.count * second.inner),
                                    second.count, second.inner, count_of(&desc->outputs[0])};
    return start(launch, transpose_kernel<T>, grid_of(launch, t.count), BLOCK, t,
                 input_of<T>(call, 0), output_of<T>(call, 0), desc->accumulate[0]);
}

/* Rows of `whole` elements, of which `part` from `first` on are in the shorter tensor, whose rows
 * begin again after `rows`. */
struct shape_cut {
    int64_t whole, part, first, rows, count;
};

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    slice_kernel(const struct shape_cut cut, const T *x, T *y, bool add)
{
    FOR_ELEMENTS(i, cut.count)
    put(&y[i], to_float(x[i / cut.part * cut.whole + cut.first + i % cut.part]), add);
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    slice_backward_kernel(const struct shape_cut cut, const T *dy, T *dx, bool add)
{
    FOR_ELEMENTS(i, cut.count)
    {
        int64_t at = i % cut.whole - cut.first;
        bool inside = at >= 0 && at < cut.part;
        put(&dx[i], inside ? to_float(dy[i / cut.whole * cut.part + at]) : 0, add);
    }
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    concat_kernel(const struct shape_cut cut, const T *x, T *y, bool add)
{
    FOR_ELEMENTS(i, cut.count)
    {
        int64_t row = i / cut.part, at = i % cut.part;
        put(&y[row * cut.whole + cut.first + at], to_float(x[row % cut.rows * cut.part + at]), add);
    }
}

template <typename T>
static int run_slice(const struct op_desc *desc, const struct kernel_call *call,
                     const struct cuda_launch *launch)
{
    bool forward = desc->kind == OP_SLICE;
    const struct tensor_type *x = forward ? &desc->inputs[0] : &desc->outputs[0];
    const struct tensor_type *y = forward ? &desc->outputs[0] : &desc->inputs[0];
    struct op_dim view = op_dim_of(x, desc->attrs.slice.dim);
    struct shape_cut cut = {view.count * view.inner, count_of(y) / view.outer,
                            desc->attrs.slice.start * view.inner, view.outer,
                            count_of(&desc->outputs[0])};
    if (forward)
        return start(launch, slice_kernel<T>, grid_of(launch, cut.count), BLOCK, cut,
                     input_of<T>(call, 0), output_of<T>(call, 0), desc->accumulate[0]);
    return start(launch, slice_backward_kernel<T>, grid_of(launch, cut.count), BLOCK, cut,
                 input_of<T>(call, 0), output_of<T>(call, 0), desc->accumulate[0]);
}

template <typename T>
static int run_concat(const struct op_desc *desc, const struct kernel_call *call,
                      const struct cuda_launch *launch)
{
    const struct tensor_type *y = &desc->outputs[0];
    struct op_dim view = op_dim_of(y, desc->attrs.concat.dim);
    int64_t first = 0;
    for (int k = 0; k < 2; k++) {
        const struct tensor_type *type = &desc->inputs[k];
        int64_t missing = y->dim_count - type->dim_count;
        struct op_dim part = op_dim_of(type, desc->attrs.concat.dim - missing);
        struct shape_cut cut = {view.count * view.inner, part.count * part.inner, first, part.outer,
                                view.outer * part.count * part.inner};
        TRY_LAUNCH(start(launch, concat_kernel<T>, grid_of(launch, cut.count), BLOCK, cut,
                         input_of<T>(call, k), output_of<T>(call, 0), desc->accumulate[0]));
        first += cut.part;
    }
    return 0;
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    mean_kernel(const struct op_dim view, const T *x, T *y, bool add)
{
    FOR_ELEMENTS(i, view.outer * view.inner)
    {
        const T *from = x + i / view.inner * (view.count * view.inner) + i % view.inner;
        double sum = 0;
        for (int64_t n = 0; n < view.count; n++) sum += to_float(from[n * view.inner]);
        put(&y[i], (float)(sum / (double)view.count), add);
    }
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    mean_backward_kernel(const struct op_dim view, const T *dy, T *dx, bool add)
{
    float scale = (float)(1 / (double)view.count);
    FOR_ELEMENTS(i, view.outer * view.count * view.inner)
    {
        int64_t from = i / (view.count * view.inner) * view.inner + i % view.inner;
        put(&dx[i], to_float(dy[from]) * scale, add);
    }
}

template <typename T>
static int run_mean(const struct op_desc *desc, const struct kernel_call *call,
                    const struct cuda_launch *launch)
{
    bool forward = desc->kind == OP_MEAN;
    struct op_dim view =
        op_dim_of(forward ? &desc->inputs[0] : &desc->outputs[0], desc->attrs.mean.dim);
    dim3 grid = grid_of(launch, count_of(&desc->outputs[0]));
    if (forward)
        return start(launch, mean_kernel<T>, grid, BLOCK, view, input_of<T>(call, 0),
                     output_of<T>(call, 0), desc->accumulate[0]);
    return start(launch, mean_backward_kernel<T>, grid, BLOCK, view, input_of<T>(call, 0),
                 output_of<T>(call, 0), desc->accumulate[0]);
}

template <typename T>
static int run_shape(const struct op_desc *desc, const struct kernel_call *call,
                     const struct cuda_launch *launch)
{
    switch (desc->kind) {
    case OP_TRANSPOSE: return run_transpose<T>(desc, call, launch);
    case OP_CONCAT: return run_concat<T>(desc, call, launch);
    case OP_MEAN:
    case OP_MEAN_BACKWARD: return run_mean<T>(desc, call, launch);
    default: return run_slice<T>(desc, call, launch);
    }
}

int cuda_run_shape(const struct cuda_op *op, const struct kernel_call *call,
                   const struct cuda_launch *launch)
{
    return op->desc.inputs[0].dtype == DTYPE_BF16 ? run_shape<bf16>(&op->desc, call, launch)
                                                  : run_shape<float>(&op->desc, call, launch);
}
