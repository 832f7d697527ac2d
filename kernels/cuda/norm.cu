/*
 * LayerNorm and RMSNorm. A warp works on a row, or a block if rows are long and few. It reads the
 * row three times (mean, variance, result), the last two from the cache.
 *
 * With a residual it adds and normalises in one pass over memory. In bf16 that is 8 bytes an
 * element (x and residual read, sum and y written) instead of 10 (the sum also read again by a norm
 * of its own), and one launch instead of two.
 */
#include "kernels/cuda/norm.h"
#include "kernels/cuda/ops.h"

namespace fsdpd {

/* The operands by role; NULL if absent. */
template <typename T> struct norm_rows {
    const T *x, *weight, *bias, *residual;
    T *y, *sum;
    float *mean, *rstd;
    bool aligned, centered, rounded, add_y, add_sum, add_mean, add_rstd;
    int64_t rows, columns;
    float eps, plus; /* `plus` is added to the weight */
};

/* V elements of x + residual, in f32. */
template <int V, typename T>
__device__ inline void read_row(const norm_rows<T> &n, int64_t at, float values[V])
{
    pack<T, V> x = load<V>(n.x + at, n.aligned), r;
    if (n.residual != nullptr) r = load<V>(n.residual + at, n.aligned);
    for (int v = 0; v < V; v++) {
        values[v] = to_float(x.at[v]);
        if (n.residual != nullptr) values[v] += to_float(r.at[v]);
        if (n.rounded) values[v] = to_float(rounded<T>(values[v]));
    }
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
static int run_forward(const struct op_desc *desc, const struct kernel_call *call,
                       const struct cuda_launch *launch)
{
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
    n.rounded = desc->attrs.norm.rounded;
    n.add_y = add[0], n.add_sum = add[sum], n.add_mean = add[1], n.add_rstd = add[rstd];
    n.columns = columns_of(&desc->inputs[0]);
    n.rows = count_of(&desc->inputs[0]) / n.columns;
    n.eps = (float)desc->attrs.norm.eps;
    n.plus = desc->attrs.norm.one_plus ? 1 : 0;
    return run_norm(launch, n);
}

RUN_BY_TYPE(cuda_run_norm, run_forward, 0)

} // namespace fsdpd
