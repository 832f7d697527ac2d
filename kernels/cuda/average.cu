/* Average pooling, a thread per element written; and norms over groups of channels, a block per
 * group of a sample, or per channel for the parameters' gradients. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/window.h"

namespace fsdpd {

struct average {
    struct window w;
    bool adaptive, count_include_pad;
};

/* Of rows or columns: what output `at` is made of; as op_average_span. */
__device__ static void average_span(const struct average &a, int axis, int64_t at, int64_t *begin,
                                    int64_t *end, int64_t *divisor)
{
    int64_t size = axis == 0 ? a.w.height : a.w.width;
    int64_t outputs = axis == 0 ? a.w.out_height : a.w.out_width;
    if (a.adaptive) {
        *begin = at * size / outputs;
        *end = ((at + 1) * size + outputs - 1) / outputs;
        *divisor = *end - *begin;
        return;
    }
    *begin = at * a.w.stride[axis] - a.w.padding[axis];
    *end = *begin + a.w.kernel[axis];
    if (*begin < 0) *begin = 0;
    if (*end > size) *end = size;
    *divisor = a.count_include_pad ? a.w.kernel[axis] : *end - *begin;
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    average_kernel(const struct average a, const T *x, T *y, int64_t count, bool add)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * BLOCK) {
        int64_t top, bottom, left, right, rows, columns;
        average_span(a, 0, i / a.w.out_width % a.w.out_height, &top, &bottom, &rows);
        average_span(a, 1, i % a.w.out_width, &left, &right, &columns);
        const T *plane = x + i / (a.w.out_width * a.w.out_height) * (a.w.height * a.w.width);
        double sum = 0;
        for (int64_t h = top; h < bottom; h++)
            for (int64_t w = left; w < right; w++) sum += to_float(plane[h * a.w.width + w]);
        put(&y[i], (float)(sum / (double)(rows * columns)), add);
    }
}

/* The outputs [*first, *last) of which some may be made of this row or column. */
__device__ static void average_readers(const struct average &a, int axis, int64_t at,
                                       int64_t *first, int64_t *last)
{
    int64_t size = axis == 0 ? a.w.height : a.w.width;
    int64_t outputs = axis == 0 ? a.w.out_height : a.w.out_width;
    if (a.adaptive) {
        *first = at * outputs / size;
        *last = ((at + 1) * outputs + size - 1) / size;
    } else {
        int64_t from = at + a.w.padding[axis];
        *first = from < a.w.kernel[axis] ? 0 : (from - a.w.kernel[axis]) / a.w.stride[axis] + 1;
        *last = from / a.w.stride[axis] + 1;
    }
    if (*last > outputs) *last = outputs;
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    average_backward_kernel(const struct average a, const T *dy, T *dx, int64_t count, bool add)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * BLOCK) {
        int64_t row = i / a.w.width % a.w.height, column = i % a.w.width;
        const T *plane = dy + i / (a.w.width * a.w.height) * (a.w.out_height * a.w.out_width);
        int64_t top, bottom, left, right;
        average_readers(a, 0, row, &top, &bottom);
        average_readers(a, 1, column, &left, &right);
        double sum = 0;
        for (int64_t h = top; h < bottom; h++)
            for (int64_t w = left; w < right; w++) {
                int64_t begin[2], end[2], divisor[2];
                average_span(a, 0, h, &begin[0], &end[0], &divisor[0]);
                average_span(a, 1, w, &begin[1], &end[1], &divisor[1]);
                if (row < begin[0] || row >= end[0] || column < begin[1] || column >= end[1])
                    continue;
                sum += to_float(plane[h * a.w.out_width + w]) / (double)(divisor[0] * divisor[1]);
            }
        put(&dx[i], (float)sum, add);
    }
}

template <typename T>
static int run_average(const struct op_desc *desc, const struct kernel_call *call,
                       const struct cuda_launch *launch)
{
    bool forward = desc->kind == OP_AVG_POOL2D;
    struct average a = {};
    a.w = window_of(forward ? &desc->inputs[0] : &desc->outputs[0],
                    forward ? &desc->outputs[0] : &desc->inputs[0], desc->attrs.avg_pool.kernel,
                    desc->attrs.avg_pool.stride, desc->attrs.avg_pool.padding);
    a.adaptive = desc->attrs.avg_pool.adaptive;
    a.count_include_pad = desc->attrs.avg_pool.count_include_pad;
    int64_t count = count_of(&desc->outputs[0]);
    return start(launch, forward ? average_kernel<T> : average_backward_kernel<T>,
                 grid_of(launch, count), BLOCK, a, input_of<T>(call, 0), output_of<T>(call, 0),
                 count, desc->accumulate[0]);
}

RUN_BY_TYPE(cuda_run_avg_pool, run_average, 0)

/* ---- Group norm ---- */

template <typename T> struct grouped {
    int64_t n, groups, channels, area; /* channels of a group */
    double eps;
    const T *dy, *x, *weight, *bias;
    const float *mean, *rstd;
};

/* The outputs; nullptr where absent. */
template <typename T> struct group_outputs {
    T *y;
    float *first, *second;
    bool add[3];
};

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    group_norm_kernel(const struct grouped<T> g, const struct group_outputs<T> out)
{
    SHARED(double, scratch, BLOCK / WARP);
    int64_t size = g.channels * g.area;
    for (int64_t row = blockIdx.x; row < g.n * g.groups; row += gridDim.x) {
        const T *x = g.x + row * size;
        double sum = 0, squares = 0;
        for (int64_t i = threadIdx.x; i < size; i += BLOCK) sum += to_float(x[i]);
        double mean = group_sum<BLOCK>(sum, scratch) / (double)size;
        for (int64_t i = threadIdx.x; i < size; i += BLOCK)
            squares += (to_float(x[i]) - mean) * (to_float(x[i]) - mean);
        double rstd = 1 / sqrt(group_sum<BLOCK>(squares, scratch) / (double)size + g.eps);
        for (int64_t i = threadIdx.x; i < size; i += BLOCK) {
            int64_t c = row % g.groups * g.channels + i / g.area;
            float scale = (float)rstd * (g.weight != nullptr ? to_float(g.weight[c]) : 1);
            float shift = g.bias != nullptr ? to_float(g.bias[c]) : 0;
            put(&out.y[row * size + i], (to_float(x[i]) - (float)mean) * scale + shift, out.add[0]);
        }
        if (threadIdx.x == 0 && out.first != nullptr) put(&out.first[row], (float)mean, out.add[1]);
        if (threadIdx.x == 0 && out.second != nullptr)
            put(&out.second[row], (float)rstd, out.add[2]);
    }
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    group_norm_backward_kernel(const struct grouped<T> g, const struct group_outputs<T> out)
{
    SHARED(double, scratch, BLOCK / WARP);
    int64_t size = g.channels * g.area;
    for (int64_t row = blockIdx.x; row < g.n * g.groups; row += gridDim.x) {
        const T *x = g.x + row * size, *dy = g.dy + row * size;
        const T *weight =
            g.weight != nullptr ? g.weight + row % g.groups * g.channels : (const T *)nullptr;
        float mean = g.mean[row], rstd = g.rstd[row];
        double sum = 0, product = 0;
        for (int64_t i = threadIdx.x; i < size; i += BLOCK) {
            float scale = weight != nullptr ? to_float(weight[i / g.area]) : 1;
            double slope = to_float(dy[i]) * scale;
            sum += slope;
            product += slope * ((to_float(x[i]) - mean) * rstd);
        }
        sum = group_sum<BLOCK>(sum, scratch) / (double)size;
        product = group_sum<BLOCK>(product, scratch) / (double)size;
        for (int64_t i = threadIdx.x; i < size; i += BLOCK) {
            float scale = weight != nullptr ? to_float(weight[i / g.area]) : 1;
            float normed = (to_float(x[i]) - mean) * rstd;
            put(&out.y[row * size + i],
                rstd * (to_float(dy[i]) * scale - (float)sum - normed * (float)product),
                out.add[0]);
        }
    }
}

/* One block per channel. */
template <typename T>
__global__ void __launch_bounds__(BLOCK)
    group_norm_parameters_kernel(const struct grouped<T> g, const struct group_outputs<T> out)
{
    SHARED(double, scratch, BLOCK / WARP);
    int64_t channels = g.groups * g.channels, c = blockIdx.x;
    double dweight = 0, dbias = 0;
    for (int64_t i = threadIdx.x; i < g.n * g.area; i += BLOCK) {
        int64_t n = i / g.area, row = n * g.groups + c / g.channels;
        int64_t at = (n * channels + c) * g.area + i % g.area;
        dweight += to_float(g.dy[at]) * ((to_float(g.x[at]) - g.mean[row]) * g.rstd[row]);
        dbias += to_float(g.dy[at]);
    }
    dweight = group_sum<BLOCK>(dweight, scratch);
    dbias = group_sum<BLOCK>(dbias, scratch);
    if (threadIdx.x == 0 && out.first != nullptr) put(&out.first[c], (float)dweight, out.add[1]);
    if (threadIdx.x == 0 && out.second != nullptr) put(&out.second[c], (float)dbias, out.add[2]);
}

template <typename T>
static int run_group_norm(const struct op_desc *desc, const struct kernel_call *call,
                          const struct cuda_launch *launch)
{
    bool forward = desc->kind == OP_GROUP_NORM;
    const struct tensor_type *x = &desc->inputs[forward ? 0 : 1];
    struct grouped<T> g = {
    };
    struct group_outputs<T> out = {
    };
    g.n = x->dims[0], g.groups = desc->attrs.group_norm.groups;
    g.channels = x->dims[1] / g.groups, g.area = count_of(x) / (x->dims[0] * x->dims[1]);
    g.eps = desc->attrs.group_norm.eps;
    g.x = input_of<T>(call, forward ? 0 : 1);
    if (desc->input_present[forward ? 1 : 2]) g.weight = input_of<T>(call, forward ? 1 : 2);
    if (forward && desc->input_present[2]) g.bias = input_of<T>(call, 2);
    if (!forward) {
        g.dy = input_of<T>(call, 0);
        g.mean = input_of<float>(call, 3);
        g.rstd = input_of<float>(call, 4);
    }
    if (desc->output_present[0]) out.y = output_of<T>(call, 0);
    if (desc->output_present[1]) out.first = output_of<float>(call, 1);
    if (desc->output_present[2]) out.second = output_of<float>(call, 2);
    for (int i = 0; i < 3; i++) out.add[i] = desc->accumulate[i];
    dim3 grid = grid_of_rows<BLOCK>(launch, g.n * g.groups);
    if (forward) return start(launch, group_norm_kernel<T>, grid, BLOCK, g, out);
    if (out.y != nullptr)
        TRY_LAUNCH(start(launch, group_norm_backward_kernel<T>, grid, BLOCK, g, out));
    if (out.first == nullptr && out.second == nullptr) return 0;
    return start(launch, group_norm_parameters_kernel<T>, dim3((unsigned)x->dims[1]), BLOCK, g,
                 out);
}

RUN_BY_TYPE(cuda_run_group_norm, run_group_norm, 0)

} // namespace fsdpd
