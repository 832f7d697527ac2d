/* Ops that move elements between shapes, and means over a dimension: a thread per element written.
 */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/platform.h"

namespace fsdpd {

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
    slice_backward_kernel(const struct shape_cut cut, const T *dy, const T *other, T *dx, bool add)
{
    FOR_ELEMENTS(i, cut.count)
    {
        int64_t at = i % cut.whole - cut.first;
        float value = other != nullptr ? to_float(other[i]) : 0;
        if (at >= 0 && at < cut.part) value += to_float(dy[i / cut.whole * cut.part + at]);
        put(&dx[i], value, add);
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
    const T *other = desc->input_present[1] ? input_of<T>(call, 1) : nullptr;
    return start(launch, slice_backward_kernel<T>, grid_of(launch, cut.count), BLOCK, cut,
                 input_of<T>(call, 0), other, output_of<T>(call, 0), desc->accumulate[0]);
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

/* The places that a mean is over: those from `begin` to `end` whose mask is not 0. */
struct cuda_mean_places {
    int64_t begin, end;
    double scale;
};

static __device__ struct cuda_mean_places find_places(const uint8_t *mask, int64_t count, bool last)
{
    struct cuda_mean_places places = {0, count, 1 / (double)count};
    int64_t selected = 0, latest = 0;
    if (mask == NULL) return places;
    for (int64_t n = 0; n < count; n++) {
        selected += mask[n] != 0;
        if (mask[n] != 0) latest = n;
    }
    if (last) {
        places.begin = latest;
        places.end = latest + 1;
        places.scale = 1;
    } else {
        places.scale = selected > 0 ? 1 / (double)selected : 0;
    }
    return places;
}

/* With `last`, the one place counts whatever its mask is. */
static __device__ bool counts(const uint8_t *mask, int64_t n, bool last)
{
    return mask == NULL || last || mask[n] != 0;
}

struct cuda_mean_shape {
    struct op_dim view;
    bool last, sum, add;
};

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    mean_kernel(const struct cuda_mean_shape shape, const T *x, const uint8_t *masks, T *y)
{
    const struct op_dim view = shape.view;
    FOR_ELEMENTS(i, view.outer * view.inner)
    {
        const T *from = x + i / view.inner * (view.count * view.inner) + i % view.inner;
        const uint8_t *mask = masks == NULL ? NULL : masks + i / view.inner * view.count;
        struct cuda_mean_places places = find_places(mask, view.count, shape.last);
        double sum = 0;
        for (int64_t n = places.begin; n < places.end; n++)
            if (counts(mask, n, shape.last)) sum += to_float(from[n * view.inner]);
        put(&y[i], (float)(shape.sum ? sum : sum * places.scale), shape.add);
    }
}

/* A thread for each column of a mean's places. */
template <typename T>
__global__ void __launch_bounds__(BLOCK)
    mean_backward_kernel(const struct cuda_mean_shape shape, const T *dy, const uint8_t *masks,
                         T *dx)
{
    const struct op_dim view = shape.view;
    FOR_ELEMENTS(i, view.outer * view.inner)
    {
        T *to = dx + i / view.inner * (view.count * view.inner) + i % view.inner;
        const uint8_t *mask = masks == NULL ? NULL : masks + i / view.inner * view.count;
        struct cuda_mean_places places = find_places(mask, view.count, shape.last);
        float mean = to_float(dy[i]) * (shape.sum ? 1.0F : (float)places.scale);
        for (int64_t n = 0; n < view.count; n++) {
            bool inside = n >= places.begin && n < places.end && counts(mask, n, shape.last);
            put(&to[n * view.inner], inside ? mean : 0.0F, shape.add);
        }
    }
}

template <typename T>
static int run_mean(const struct op_desc *desc, const struct kernel_call *call,
                    const struct cuda_launch *launch)
{
    bool forward = desc->kind == OP_MEAN;
    struct cuda_mean_shape shape = {op_dim_of(forward ? &desc->inputs[0] : &desc->outputs[0],
                                              desc->attrs.mean.dim),
                                    desc->attrs.mean.last, desc->attrs.mean.sum,
                                    desc->accumulate[0]};
    const uint8_t *masks = desc->input_present[1] ? input_of<uint8_t>(call, 1) : NULL;
    dim3 grid = grid_of(launch, shape.view.outer * shape.view.inner);
    return start(launch, forward ? mean_kernel<T> : mean_backward_kernel<T>, grid, BLOCK, shape,
                 input_of<T>(call, 0), masks, output_of<T>(call, 0));
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

RUN_BY_TYPE(cuda_run_shape, run_shape, 0)

} // namespace fsdpd
