/*
 * Linear layers for drawing tokens (attrs.linear.rows_apart): a row has the bits that it has alone,
 * beside any other rows, as a sequence must not depend on what it is drawn with. A library chooses
 * its algorithm by the number of rows; here an element's sum has one order. A few rows are bound by
 * memory, so a block reads its part of the weight once for R of them.
 */
#include "kernels/cuda/generation.h"

namespace fsdpd {

enum { ROWS_AT_ONCE = 8 };

template <typename T> struct rows_product {
    const T *x, *weight, *bias; /* bias may be null */
    T *y;
    int64_t rows, in, out;
    bool aligned; /* rows of x and of the weight, to 16 bytes */
};

/* Blocks of the same features are neighbours, so that they find the weight in the cache. */
template <int R, typename T>
__device__ inline int64_t find_block(const rows_product<T> &p, int64_t *first)
{
    int64_t groups = (p.rows + R - 1) / R;
    *first = blockIdx.x % groups * R;
    return blockIdx.x / groups;
}

template <typename T>
__device__ inline void set_element(const rows_product<T> &p, int64_t row, int64_t feature,
                                   float sum)
{
    if (p.bias != nullptr) sum += to_float(p.bias[feature]);
    p.y[row * p.out + feature] = rounded<T>(sum);
}

/* The pack that begins `left` elements before the end of a row; behind that 0. */
template <int V, typename T>
__device__ inline pack<T, V> load_within(const T *from, int64_t left, bool aligned)
{
    if (aligned) return load<V>(from);
    pack<T, V> values = {};
    for (int v = 0; v < V; v++)
        if (v < left) values.at[v] = from[v];
    return values;
}

/* A weight (out, in): a warp has a feature, a lane every 32nd pack of its row. */
template <typename T, int V, int R>
__global__ void __launch_bounds__(BLOCK) linear_rows_kernel(const rows_product<T> p)
{
    int64_t first, feature = find_block<R>(p, &first) * WARPS + threadIdx.x / WARP;
    float sums[R] = {};
    if (feature >= p.out) return;
    for (int64_t k = threadIdx.x % WARP * V; k < p.in; k += WARP * V) {
        pack<T, V> w = load_within<V>(p.weight + feature * p.in + k, p.in - k, p.aligned);
        UNROLLED
        for (int r = 0; r < R; r++) {
            if (first + r >= p.rows) continue;
            pack<T, V> x = load_within<V>(p.x + (first + r) * p.in + k, p.in - k, p.aligned);
            for (int v = 0; v < V; v++)
                sums[r] = fmaf(to_float(w.at[v]), to_float(x.at[v]), sums[r]);
        }
    }
    UNROLLED
    for (int r = 0; r < R; r++) {
        float sum = warp_sum(sums[r]);
        if (threadIdx.x % WARP == 0 && first + r < p.rows) set_element(p, first + r, feature, sum);
    }
}

/* A weight (in, out): a lane has a feature, a warp every eighth row of the weight. */
template <typename T, int R>
__global__ void __launch_bounds__(BLOCK) linear_rows_transposed_kernel(const rows_product<T> p)
{
    SHARED(float, parts, WARPS *R *WARP);
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int64_t first, feature = find_block<R>(p, &first) * WARP + lane;
    float sums[R] = {};
    UNROLLED_4
    for (int64_t k = warp; k < p.in && feature < p.out; k += WARPS) {
        float w = to_float(p.weight[k * p.out + feature]);
        UNROLLED
        for (int r = 0; r < R; r++)
            if (first + r < p.rows)
                sums[r] = fmaf(w, to_float(p.x[(first + r) * p.in + k]), sums[r]);
    }
    UNROLLED
    for (int r = 0; r < R; r++) parts[(warp * R + r) * WARP + lane] = sums[r];
    __syncthreads();
    for (int r = warp; r < R && first + r < p.rows && feature < p.out; r += WARPS) {
        float sum = 0;
        for (int w = 0; w < WARPS; w++) sum += parts[(w * R + r) * WARP + lane];
        set_element(p, first + r, feature, sum);
    }
}

template <typename T, int R>
static int start_rows(const struct cuda_launch *launch, const rows_product<T> &p, bool transposed)
{
    int64_t features = transposed ? (int)WARP : (int)WARPS, groups = (p.rows + R - 1) / R;
    dim3 grid((unsigned)((p.out + features - 1) / features * groups));
    return transposed ? start(launch, linear_rows_transposed_kernel<T, R>, grid, BLOCK, p)
                      : start(launch, linear_rows_kernel<T, full_pack<T>(), R>, grid, BLOCK, p);
}

template <typename T>
static int run_linear_rows(const struct op_desc *desc, const struct kernel_call *call,
                           const struct cuda_launch *launch)
{
    rows_product<T> p = {};
    p.x = input_of<T>(call, 0), p.weight = input_of<T>(call, 1), p.y = output_of<T>(call, 0);
    if (desc->input_present[2]) p.bias = input_of<T>(call, 2);
    p.in = columns_of(&desc->inputs[0]), p.out = columns_of(&desc->outputs[0]);
    p.rows = count_of(&desc->inputs[0]) / p.in;
    p.aligned = is_aligned(p.x, p.weight) && p.in % full_pack<T>() == 0;
    bool transposed = desc->attrs.linear.transposed;
    return p.rows == 1 ? start_rows<T, 1>(launch, p, transposed)
                       : start_rows<T, ROWS_AT_ONCE>(launch, p, transposed);
}

int cuda_run_linear_rows(const struct cuda_op *op, const struct kernel_call *call,
                         const struct cuda_launch *launch)
{
    const struct op_desc *desc = &op->desc;
    enum dtype dtype = desc->outputs[0].dtype;
    void *y = call->outputs[0];
    int64_t count = count_of(&desc->outputs[0]);
    TRY_LAUNCH(dtype == DTYPE_BF16 ? run_linear_rows<bf16>(desc, call, launch)
                                   : run_linear_rows<float>(desc, call, launch));
    switch (desc->attrs.linear.activation) {
    case ACTIVATION_RELU: return cuda_relu_in_place(launch, dtype, y, count);
    case ACTIVATION_GELU_TANH: return cuda_gelu(launch, dtype, y, y, count);
    default: return 0;
    }
}

} // namespace fsdpd
