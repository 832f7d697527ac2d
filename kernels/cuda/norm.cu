/*
 * LayerNorm and RMSNorm. A warp works on a row, or a block if rows are long and few. It reads the
 * row three times (mean, variance, result), the last two from the cache. Gradients of the norm's
 * parameters are sums over rows (reduce.h).
 */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.h"

/* The operands by role; NULL if absent. */
template <typename T> struct norm_rows {
    const T *x, *weight, *bias, *residual;
    T *y, *sum;
    float *mean, *rstd;
    bool aligned, centered, add_y, add_sum, add_mean, add_rstd;
    int64_t rows, columns;
    float eps, plus; /* `plus` is added to the weight */
};

/* V elements of x + residual, in f32. */
template <int V, typename T>
__device__ inline void read_row(const norm_rows<T> &n, int64_t at, float values[V])
{
    pack<T, V> x = load<V>(n.x + at, n.aligned), r;
    if (n.residual != nullptr) r = load<V>(n.residual + at, n.aligned);
    for (int v = 0; v < V; v++)
        values[v] = to_float(x.at[v]) + (n.residual != nullptr ? to_float(r.at[v]) : 0);
}

template <typename T, int V>
__device__ inline void write_row(T *to, int64_t at, const float values[V], bool add, bool aligned)
{
    pack<T, V> out;
    if (add) out = load<V>(to + at, aligned);
    for (int v = 0; v < V; v++)
        out.at[v] = rounded<T>(add ? to_float(out.at[v]) + values[v] : values[v]);
    store(to + at, out, aligned);
}

template <typename T, int V, int G>
__global__ void __launch_bounds__(BLOCK) norm_kernel(const norm_rows<T> n)
{
    SHARED(float, scratch, BLOCK / WARP);
    int64_t step = (int64_t)gridDim.x * (BLOCK / G);
    int lane = threadIdx.x % G;
    for (int64_t row = (int64_t)blockIdx.x * (BLOCK / G) + threadIdx.x / G; row < n.rows;
         row += step) {
        int64_t base = row * n.columns;
        float values[V], mean = 0, square = 0;
        if (n.centered) {
            for (int64_t c = lane * V; c < n.columns; c += G * V) {
                read_row<V>(n, base + c, values);
                for (int v = 0; v < V; v++) mean += values[v];
            }
            mean = group_sum<G>(mean, scratch) / (float)n.columns;
        }
        for (int64_t c = lane * V; c < n.columns; c += G * V) {
            read_row<V>(n, base + c, values);
            for (int v = 0; v < V; v++) square += (values[v] - mean) * (values[v] - mean);
        }
        square = group_sum<G>(square, scratch) / (float)n.columns;
        float rstd = 1 / sqrtf(square + n.eps);
        for (int64_t c = lane * V; c < n.columns; c += G * V) {
            read_row<V>(n, base + c, values);
            if (n.sum != nullptr) write_row<T, V>(n.sum, base + c, values, n.add_sum, n.aligned);
            pack<T, V> weight, bias;
            if (n.weight != nullptr) weight = load<V>(n.weight + c, n.aligned);
            if (n.bias != nullptr) bias = load<V>(n.bias + c, n.aligned);
            for (int v = 0; v < V; v++) {
                values[v] = (values[v] - mean) * rstd;
                if (n.weight != nullptr) values[v] *= to_float(weight.at[v]) + n.plus;
                if (n.bias != nullptr) values[v] += to_float(bias.at[v]);
            }
            write_row<T, V>(n.y, base + c, values, n.add_y, n.aligned);
        }
        if (lane == 0 && n.mean != nullptr) put(&n.mean[row], mean, n.add_mean);
        if (lane == 0 && n.rstd != nullptr) put(&n.rstd[row], rstd, n.add_rstd);
    }
}

/* The most columns that one warp handles. */
enum { WARP_COLUMNS = 2048 };

template <typename T> static int run_norm(const struct cuda_launch *launch, norm_rows<T> n)
{
    constexpr int V = full_pack<T>();
    n.aligned = is_aligned(n.x, n.weight, n.bias, n.residual, n.y, n.sum);
    bool whole = n.columns % V == 0;
    bool warps = n.columns <= WARP_COLUMNS;
    dim3 grid = warps ? grid_of_rows<WARP>(launch, n.rows) : grid_of_rows<BLOCK>(launch, n.rows);
    if (!whole && warps) return start(launch, norm_kernel<T, 1, WARP>, grid, BLOCK, n);
    if (!whole) return start(launch, norm_kernel<T, 1, BLOCK>, grid, BLOCK, n);
    if (warps) return start(launch, norm_kernel<T, V, WARP>, grid, BLOCK, n);
    return start(launch, norm_kernel<T, V, BLOCK>, grid, BLOCK, n);
}

template <typename T>
static int run_forward(const struct cuda_op *op, const struct kernel_call *call,
                       const struct cuda_launch *launch)
{
    const struct op_desc *desc = &op->desc;
    bool centered = desc->kind == OP_LAYER_NORM;
    int residual = centered ? 3 : 2, rstd = centered ? 2 : 1, sum = centered ? 3 : 2;
    const bool *in = desc->input_present, *out = desc->output_present, *add = desc->accumulate;
    norm_rows<T> n = {};
    n.x = input_of<T>(call, 0);
    n.weight = in[1] ? input_of<T>(call, 1) : nullptr;
    n.bias = centered && in[2] ? input_of<T>(call, 2) : nullptr;
    n.residual = in[residual] ? input_of<T>(call, residual) : nullptr;
    n.y = output_of<T>(call, 0);
    n.sum = out[sum] ? output_of<T>(call, sum) : nullptr;
    n.mean = centered && out[1] ? output_of<float>(call, 1) : nullptr;
    n.rstd = out[rstd] ? output_of<float>(call, rstd) : nullptr;
    n.centered = centered;
    n.add_y = add[0], n.add_sum = add[sum], n.add_mean = add[1], n.add_rstd = add[rstd];
    n.columns = columns_of(&desc->inputs[0]);
    n.rows = count_of(&desc->inputs[0]) / n.columns;
    n.eps = (float)desc->attrs.norm.eps;
    n.plus = desc->attrs.norm.one_plus ? 1 : 0;
    return run_norm(launch, n);
}

int cuda_run_norm(const struct cuda_op *op, const struct kernel_call *call,
                  const struct cuda_launch *launch)
{
    return op->desc.inputs[0].dtype == DTYPE_BF16 ? run_forward<bf16>(op, call, launch)
                                                  : run_forward<float>(op, call, launch);
}

/* With m = (x - mean) rstd and g = dy weight:
 * dx = rstd (g - mean(g) - m mean(g m)) + other; an RMS norm has neither mean nor mean(g). */
template <typename T> struct norm_backward {
    const T *dy, *x, *weight, *other;
    const float *mean, *rstd;
    T *dx;
    bool aligned, add;
    int64_t rows, columns;
    float plus; /* added to the weight */
};

template <typename T, int V, int G>
__global__ void __launch_bounds__(BLOCK) norm_backward_kernel(const norm_backward<T> n)
{
    SHARED(float, scratch, BLOCK / WARP);
    int64_t step = (int64_t)gridDim.x * (BLOCK / G);
    int lane = threadIdx.x % G;
    for (int64_t row = (int64_t)blockIdx.x * (BLOCK / G) + threadIdx.x / G; row < n.rows;
         row += step) {
        int64_t base = row * n.columns;
        float mean = n.mean != nullptr ? n.mean[row] : 0, rstd = n.rstd[row];
        float sum = 0, along = 0;
        pack<T, V> dy, x, weight, other;
        for (int64_t c = lane * V; c < n.columns; c += G * V) {
            dy = load<V>(n.dy + base + c, n.aligned), x = load<V>(n.x + base + c, n.aligned);
            if (n.weight != nullptr) weight = load<V>(n.weight + c, n.aligned);
            for (int v = 0; v < V; v++) {
                float g = to_float(dy.at[v]);
                if (n.weight != nullptr) g *= to_float(weight.at[v]) + n.plus;
                sum += g;
                along += g * ((to_float(x.at[v]) - mean) * rstd);
            }
        }
        sum = n.mean != nullptr ? group_sum<G>(sum, scratch) / (float)n.columns : 0;
        along = group_sum<G>(along, scratch) / (float)n.columns;
        for (int64_t c = lane * V; c < n.columns; c += G * V) {
            dy = load<V>(n.dy + base + c, n.aligned), x = load<V>(n.x + base + c, n.aligned);
            if (n.weight != nullptr) weight = load<V>(n.weight + c, n.aligned);
            if (n.other != nullptr) other = load<V>(n.other + base + c, n.aligned);
            float values[V];
            for (int v = 0; v < V; v++) {
                float g = to_float(dy.at[v]), m = (to_float(x.at[v]) - mean) * rstd;
                if (n.weight != nullptr) g *= to_float(weight.at[v]) + n.plus;
                values[v] = rstd * (g - sum - m * along);
                if (n.other != nullptr) values[v] += to_float(other.at[v]);
            }
            write_row<T, V>(n.dx, base + c, values, n.add, n.aligned);
        }
    }
}

template <typename T> static int run_dx(const struct cuda_launch *launch, norm_backward<T> n)
{
    constexpr int V = full_pack<T>();
    n.aligned = is_aligned(n.dy, n.x, n.weight, n.other, n.dx);
    bool whole = n.columns % V == 0;
    bool warps = n.columns <= WARP_COLUMNS;
    dim3 grid = warps ? grid_of_rows<WARP>(launch, n.rows) : grid_of_rows<BLOCK>(launch, n.rows);
    if (!whole && warps) return start(launch, norm_backward_kernel<T, 1, WARP>, grid, BLOCK, n);
    if (!whole) return start(launch, norm_backward_kernel<T, 1, BLOCK>, grid, BLOCK, n);
    if (warps) return start(launch, norm_backward_kernel<T, V, WARP>, grid, BLOCK, n);
    return start(launch, norm_backward_kernel<T, V, BLOCK>, grid, BLOCK, n);
}

/* One element's term of the weight's gradient. */
template <typename T> struct weight_part {
    const T *dy, *x;
    const float *mean, *rstd;
    int64_t columns;
    __device__ float operator()(int64_t row, int64_t column) const
    {
        float centre = mean != nullptr ? mean[row] : 0;
        float m = (to_float(x[row * columns + column]) - centre) * rstd[row];
        return to_float(dy[row * columns + column]) * m;
    }
};

template <typename T>
static int run_backward(const struct cuda_op *op, const struct kernel_call *call,
                        const struct cuda_launch *launch)
{
    const struct op_desc *desc = &op->desc;
    bool centered = desc->kind == OP_LAYER_NORM_BACKWARD;
    int rstd = centered ? 4 : 3, other = centered ? 5 : 4;
    norm_backward<T> n = {};
    n.dy = input_of<T>(call, 0), n.x = input_of<T>(call, 1);
    n.weight = desc->input_present[2] ? input_of<T>(call, 2) : nullptr;
    n.other = desc->input_present[other] ? input_of<T>(call, other) : nullptr;
    n.mean = centered ? input_of<float>(call, 3) : nullptr;
    n.rstd = input_of<float>(call, rstd);
    n.dx = output_of<T>(call, 0);
    n.plus = desc->attrs.norm.one_plus ? 1 : 0;
    n.add = desc->accumulate[0];
    n.columns = columns_of(&desc->inputs[1]);
    n.rows = count_of(&desc->inputs[1]) / n.columns;
    float *parts = (float *)call->workspace;
    if (desc->output_present[1]) {
        weight_part<T> f = {n.dy, n.x, n.mean, n.rstd, n.columns};
        TRY_LAUNCH(sum_columns(launch, f, n.rows, n.columns, parts));
        TRY_LAUNCH(add_chunks_of(launch, parts, chunks_of(n.rows), n.columns,
                                 output_of<float>(call, 1), desc->accumulate[1]));
    }
    if (centered && desc->output_present[2])
        TRY_LAUNCH(cuda_column_sum(launch, desc->inputs[0].dtype, n.dy, n.rows, n.columns,
                                   output_of<float>(call, 2), desc->accumulate[2], parts));
    return desc->output_present[0] ? run_dx(launch, n) : 0;
}

uint64_t cuda_norm_backward_bytes(const struct op_desc *desc)
{
    int64_t columns = columns_of(&desc->inputs[1]);
    return cuda_column_sum_bytes(count_of(&desc->inputs[1]) / columns, columns);
}

int cuda_run_norm_backward(const struct cuda_op *op, const struct kernel_call *call,
                           const struct cuda_launch *launch)
{
    return op->desc.inputs[0].dtype == DTYPE_BF16 ? run_backward<bf16>(op, call, launch)
                                                  : run_backward<float>(op, call, launch);
}
