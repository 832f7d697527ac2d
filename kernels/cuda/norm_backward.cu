/*
 * Gradients of LayerNorm and RMSNorm. With m = (x - mean) rstd and g = dy weight,
 * dx = rstd (g - mean(g) - m mean(g m)) + other; an RMS norm has neither mean nor mean(g). The
 * gradients of weight and bias are the sums over rows of dy m and of dy.
 *
 * One kernel computes all three from one reading of dy and x: a warp, or a block, holds a row in
 * registers, and each of its threads the sums of its own columns over the rows that it visits. A
 * second kernel adds the blocks' sums. Their number depends on the shape alone, so that every
 * device adds in the same order. Rows that do not fit are read several times, by kernels of their
 * own (reduce.h).
 */
#include "kernels/cuda/norm.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/reduce.h"

namespace fsdpd {

template <typename T> struct norm_backward {
    const T *dy, *x, *weight, *other;
    const float *mean, *rstd;
    T *dx;
    bool aligned, add;
    int64_t rows, columns;
    float plus; /* added to the weight */
};

/* Packs of a row that a thread holds; blocks of a launch, the number that an H100 runs at once or a
 * multiple of it; threads of a block whose warps have a row each: small ones leave fewer registers
 * unused. */
enum { HELD_PACKS = 4, NORM_BLOCKS = 396, WARPS_BLOCK = 128 };

/* The threads of a row: a warp if it can hold one, else a block; 0: neither can. */
static int threads_of_row(int64_t columns, int pack_elements)
{
    if (columns % pack_elements != 0) return 0;
    int64_t packs = columns / pack_elements;
    return packs <= HELD_PACKS * WARP ? (int)WARP : packs <= HELD_PACKS * BLOCK ? (int)BLOCK : 0;
}

static int64_t blocks_of(int64_t rows, int threads)
{
    int64_t rows_at_once = threads == WARP ? WARPS_BLOCK / WARP : 1;
    int64_t blocks = (rows + rows_at_once - 1) / rows_at_once;
    return blocks < 1 ? 1 : blocks < NORM_BLOCKS ? blocks : (int64_t)NORM_BLOCKS;
}

/* The sums of a block's threads, each for a pack of columns from `first` on, as the block's part.
 */
template <int V, int G, int B>
__device__ inline void write_part(float *part, int64_t columns, int64_t first, const float sums[V],
                                  float *tile)
{
    if (G == B) {
        int64_t c = first + threadIdx.x * V;
        for (int v = 0; v < V && c < columns; v++) part[c + v] = sums[v];
        return;
    }
    __syncthreads(); /* the readers of the previous ones are done */
    for (int v = 0; v < V; v++) tile[threadIdx.x * V + v] = sums[v];
    __syncthreads();
    for (int i = threadIdx.x; i < G * V && first + i < columns; i += B) {
        float sum = 0;
        for (int row = 0; row < B / G; row++) sum += tile[row * G * V + i];
        part[first + i] = sum;
    }
}

/* Blocks of B threads, G of them to a row, each with at most K packs of V elements. */
template <typename T, int V, int K, int G, int B>
__global__ void __launch_bounds__(B)
    norm_gradients_kernel(const norm_backward<T> n, float *weight_parts, float *bias_parts)
{
    SHARED(float, scratch, BLOCK / WARP);
    SHARED(float, tile, G < B ? B * V : 1);
    int64_t step = (int64_t)gridDim.x * (B / G);
    int lane = threadIdx.x % G, place = threadIdx.x / G;
    float dweight[K][V], dbias[K][V];
    UNROLLED for (int k = 0; k < K; k++)
    {
        for (int v = 0; v < V; v++) dweight[k][v] = dbias[k][v] = 0;
    }
    NOT_UNROLLED for (int64_t row = (int64_t)blockIdx.x * (B / G) + place; row < n.rows;
                      row += step)
    {
        int64_t base = row * n.columns;
        float mean = n.mean != nullptr ? n.mean[row] : 0, rstd = n.rstd[row];
        float sum = 0, along = 0;
        pack<T, V> dy[K], x[K], weight, other;
        UNROLLED for (int k = 0; k < K; k++)
        {
            int64_t c = (int64_t)(k * G + lane) * V;
            if (c >= n.columns) continue;
            dy[k] = load<V>(n.dy + base + c, n.aligned);
            x[k] = load<V>(n.x + base + c, n.aligned);
            if (n.weight != nullptr) weight = load<V>(n.weight + c, n.aligned);
            for (int v = 0; v < V; v++) {
                float g = to_float(dy[k].at[v]);
                if (n.weight != nullptr) g *= to_float(weight.at[v]) + n.plus;
                sum += g;
                along += g * ((to_float(x[k].at[v]) - mean) * rstd);
            }
        }
        sum = n.mean != nullptr ? group_sum<G>(sum, scratch) / (float)n.columns : 0;
        along = group_sum<G>(along, scratch) / (float)n.columns;
        UNROLLED for (int k = 0; k < K; k++)
        {
            int64_t c = (int64_t)(k * G + lane) * V;
            if (c >= n.columns) continue;
            if (n.weight != nullptr) weight = load<V>(n.weight + c, n.aligned);
            if (n.other != nullptr) other = load<V>(n.other + base + c, n.aligned);
            float values[V];
            for (int v = 0; v < V; v++) {
                float g = to_float(dy[k].at[v]), m = (to_float(x[k].at[v]) - mean) * rstd;
                dweight[k][v] += g * m;
                dbias[k][v] += g;
                if (n.weight != nullptr) g *= to_float(weight.at[v]) + n.plus;
                values[v] = rstd * (g - sum - m * along);
                if (n.other != nullptr) values[v] += to_float(other.at[v]);
            }
            if (n.dx != nullptr) write_row<T, V>(n.dx, base + c, values, n.add, n.aligned);
        }
    }
    int64_t part = (int64_t)blockIdx.x * n.columns;
    UNROLLED for (int k = 0; k < K; k++)
    {
        int64_t first = (int64_t)k * G * V;
        if (weight_parts != nullptr)
            write_part<V, G, B>(weight_parts + part, n.columns, first, dweight[k], tile);
        if (bias_parts != nullptr)
            write_part<V, G, B>(bias_parts + part, n.columns, first, dbias[k], tile);
    }
}

template <typename T, int K, int G>
static int run_held(const struct cuda_launch *launch, const norm_backward<T> &n, float *weights,
                    float *biases)
{
    constexpr int B = G == WARP ? (int)WARPS_BLOCK : (int)BLOCK;
    dim3 grid((unsigned)blocks_of(n.rows, G));
    return start(launch, norm_gradients_kernel<T, full_pack<T>(), K, G, B>, grid, B, n, weights,
                 biases);
}

template <typename T, int G>
static int run_rows(const struct cuda_launch *launch, const norm_backward<T> &n, float *weights,
                    float *biases)
{
    switch ((n.columns - 1) / (full_pack<T>() * G)) {
    case 0: return run_held<T, 1, G>(launch, n, weights, biases);
    case 1: return run_held<T, 2, G>(launch, n, weights, biases);
    case 2: return run_held<T, 3, G>(launch, n, weights, biases);
    default: return run_held<T, 4, G>(launch, n, weights, biases);
    }
}

/* Where the op writes the gradients of weight and bias; NULL if it does not. */
struct parameter_gradients {
    float *weight, *bias;
    bool add_weight, add_bias;
};

template <typename T>
static int run_at_once(const struct cuda_launch *launch, norm_backward<T> n,
                       const parameter_gradients &to, float *parts)
{
    int threads = threads_of_row(n.columns, full_pack<T>());
    int64_t blocks = blocks_of(n.rows, threads);
    float *weights = to.weight != nullptr ? parts : nullptr;
    float *biases = to.bias == nullptr   ? nullptr
                    : weights == nullptr ? parts
                                         : parts + blocks * n.columns;
    n.aligned = is_aligned(n.dy, n.x, n.weight, n.other, n.dx);
    int error = threads == WARP ? run_rows<T, WARP>(launch, n, weights, biases)
                                : run_rows<T, BLOCK>(launch, n, weights, biases);
    if (error != 0) return error;
    if (to.weight == nullptr)
        return add_chunks_of(launch, parts, blocks, n.columns, to.bias, to.add_bias);
    if (to.bias == nullptr)
        return add_chunks_of(launch, parts, blocks, n.columns, to.weight, to.add_weight);
    return add_chunks_of_two(launch, parts, blocks, n.columns, to.weight, to.add_weight, to.bias,
                             to.add_bias);
}

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
    __device__ void add(int64_t row, int64_t column, float (&sums)[1]) const
    {
        float centre = mean != nullptr ? mean[row] : 0;
        float m = (to_float(x[row * columns + column]) - centre) * rstd[row];
        sums[0] += to_float(dy[row * columns + column]) * m;
    }
};

template <typename T>
static int run_backward(const struct op_desc *desc, const struct kernel_call *call,
                        const struct cuda_launch *launch)
{
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
    parameter_gradients to = {};
    if (desc->output_present[1]) to.weight = output_of<float>(call, 1);
    if (centered && desc->output_present[2]) to.bias = output_of<float>(call, 2);
    to.add_weight = desc->accumulate[1], to.add_bias = desc->accumulate[2];
    if ((to.weight != nullptr || to.bias != nullptr) &&
        threads_of_row(n.columns, full_pack<T>()) != 0) {
        if (!desc->output_present[0]) n.dx = nullptr;
        return run_at_once(launch, n, to, parts);
    }
    if (to.weight != nullptr) {
        weight_part<T> f = {n.dy, n.x, n.mean, n.rstd, n.columns};
        TRY_LAUNCH(sum_columns<1>(launch, f, n.rows, n.columns, parts));
        TRY_LAUNCH(
            add_chunks_of(launch, parts, chunks_of(n.rows), n.columns, to.weight, to.add_weight));
    }
    if (to.bias != nullptr)
        TRY_LAUNCH(cuda_column_sum(launch, desc->inputs[0].dtype, n.dy, n.rows, n.columns, to.bias,
                                   to.add_bias, parts));
    return desc->output_present[0] ? run_dx(launch, n) : 0;
}

uint64_t cuda_norm_backward_bytes(const struct op_desc *desc)
{
    int64_t columns = columns_of(&desc->inputs[1]), rows = count_of(&desc->inputs[1]) / columns;
    bool low = desc->inputs[0].dtype == DTYPE_BF16;
    int threads = threads_of_row(columns, low ? full_pack<bf16>() : full_pack<float>());
    if (threads == 0) return cuda_column_sum_bytes(rows, columns);
    return 2 * (uint64_t)(blocks_of(rows, threads) * columns) * sizeof(float);
}

RUN_BY_TYPE(cuda_run_norm_backward, run_backward, 0)

} // namespace fsdpd
