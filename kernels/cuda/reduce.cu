/*
 * Sums of a vector, and of the rows of a matrix, in an order that only the shapes determine. Rows
 * are split into chunks; a block adds a chunk's rows for 32 accesses of 16 bytes, and a second kernel
 * adds the chunks in the same way.
 */
#include "kernels/cuda/reduce.h"

#include "kernels/cuda/ops.h"

namespace fsdpd {

/* Where sums go, each (+)=. */
struct sums {
    float *to[2];
    bool add[2];
};

/* One block per 32 columns: a warp adds every eighth chunk, a lane one column. */
__global__ void __launch_bounds__(BLOCK)
    add_chunks(const float *parts, int64_t chunks, int64_t columns, const sums sums)
{
    SHARED(float, tile, BLOCK);
    int64_t column = (int64_t)blockIdx.x * WARP + threadIdx.x % WARP;
    float value = 0;
    bool second = blockIdx.y == 1;
    if (second) parts += chunks * columns;
    if (column < columns)
        for (int64_t i = threadIdx.x / WARP; i < chunks; i += TILE_ROWS)
            value += parts[i * columns + column];
    tile[threadIdx.x] = value;
    __syncthreads();
    if (threadIdx.x >= WARP || column >= columns) return;
    value = 0;
    for (int i = 0; i < TILE_ROWS; i++) value += tile[i * WARP + threadIdx.x];
    put(&(second ? sums.to[1] : sums.to[0])[column], value, second ? sums.add[1] : sums.add[0]);
}

int add_chunks_of(const struct cuda_launch *launch, const float *parts, int64_t chunks,
                  int64_t columns, float *sum, bool add)
{
    dim3 grid((unsigned)((columns + WARP - 1) / WARP));
    const sums to = {{sum, nullptr}, {add, false}};
    return start(launch, add_chunks, grid, BLOCK, parts, chunks, columns, to);
}

int add_chunks_of_two(const struct cuda_launch *launch, const float *parts, int64_t chunks,
                      int64_t columns, float *first, bool add_first, float *second, bool add_second)
{
    dim3 grid((unsigned)((columns + WARP - 1) / WARP), 2);
    const sums to = {{first, second}, {add_first, add_second}};
    return start(launch, add_chunks, grid, BLOCK, parts, chunks, columns, to);
}

template <typename T> struct plain_values {
    const T *values;
    int64_t stride;
    bool aligned;
    template <int V> __device__ void add(int64_t row, int64_t column, float (&sums)[V]) const
    {
        pack<T, V> x = load<V>(values + row * stride + column, aligned);
        for (int v = 0; v < V; v++) sums[v] += to_float(x.at[v]);
    }
};

uint64_t cuda_column_sum_bytes(int64_t rows, int64_t columns)
{
    return (uint64_t)(chunks_of(rows) * columns) * sizeof(float);
}

int cuda_column_sum(const struct cuda_launch *launch, enum dtype dtype, const void *values,
                    int64_t rows, int64_t columns, float *sum, bool add, void *workspace)
{
    return cuda_column_sum_apart(launch, dtype, values, rows, columns, columns, sum, add,
                                 workspace);
}

template <typename T>
static int sum_plain(const struct cuda_launch *launch, const void *values, int64_t rows,
                     int64_t columns, int64_t stride, float *parts)
{
    constexpr int V = full_pack<T>();
    bool aligned = is_aligned(values) && stride % V == 0;
    const plain_values<T> f = {(const T *)values, stride, aligned};
    return sum_columns<V>(launch, f, rows, columns, parts);
}

int cuda_column_sum_apart(const struct cuda_launch *launch, enum dtype dtype, const void *values,
                          int64_t rows, int64_t columns, int64_t stride, float *sum, bool add,
                          void *workspace)
{
    float *parts = (float *)workspace;
    TRY_LAUNCH(dtype == DTYPE_BF16
                   ? sum_plain<bf16>(launch, values, rows, columns, stride, parts)
                   : sum_plain<float>(launch, values, rows, columns, stride, parts));
    return add_chunks_of(launch, parts, chunks_of(rows), columns, sum, add);
}

uint64_t cuda_sum_leading_bytes(const struct op_desc *desc)
{
    int64_t columns = count_of(&desc->outputs[0]);
    uint64_t bytes = cuda_column_sum_bytes(count_of(&desc->inputs[0]) / columns, columns);
    return bytes + (uint64_t)columns * sizeof(float);
}

__global__ void __launch_bounds__(BLOCK)
    round_sums(const float *sums, int64_t n, bf16 *out, bool add)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * BLOCK)
        put(&out[i], sums[i], add);
}

int cuda_run_sum_leading(const struct cuda_op *op, const struct kernel_call *call,
                         const struct cuda_launch *launch)
{
    const struct op_desc *desc = &op->desc;
    int64_t columns = count_of(&desc->outputs[0]), rows = count_of(&desc->inputs[0]) / columns;
    enum dtype dtype = desc->inputs[0].dtype;
    bool add = desc->accumulate[0];
    if (dtype != DTYPE_BF16)
        return cuda_column_sum(launch, dtype, call->inputs[0], rows, columns,
                               output_of<float>(call, 0), add, call->workspace);
    float *sums = (float *)call->workspace;
    TRY_LAUNCH(cuda_column_sum(launch, dtype, call->inputs[0], rows, columns, sums, false,
                               sums + columns));
    return start(launch, round_sums, grid_of(launch, columns), BLOCK, (const float *)sums, columns,
                 output_of<bf16>(call, 0), add);
}

/* One block: every thread adds its share in double, then the block adds theirs. */
__global__ void __launch_bounds__(BLOCK)
    sum_kernel(const float *values, int64_t n, float scale, float *out, bool add)
{
    SHARED(double, scratch, BLOCK / WARP);
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += BLOCK) sum += values[i];
    sum = group_sum<BLOCK>(sum, scratch);
    if (threadIdx.x == 0) put(out, (float)(sum * scale), add);
}

int cuda_sum(const struct cuda_launch *launch, const float *values, int64_t n, float scale,
             float *out, bool add)
{
    return start(launch, sum_kernel, dim3(1), BLOCK, values, n, scale, out, add);
}

/* One block per channel. */
template <typename T>
__global__ void __launch_bounds__(BLOCK)
    channel_sum(const T *dy, int64_t n, int64_t channels, int64_t area, float *sum, bool add)
{
    SHARED(float, scratch, BLOCK / WARP);
    int64_t channel = blockIdx.x;
    float value = 0;
    for (int64_t i = threadIdx.x; i < n * area; i += BLOCK)
        value += to_float(dy[(i / area * channels + channel) * area + i % area]);
    value = group_sum<BLOCK>(value, scratch);
    if (threadIdx.x == 0) put(&sum[channel], value, add);
}

int cuda_channel_sum(const struct cuda_launch *launch, enum dtype dtype, const void *dy, int64_t n,
                     int64_t channels, int64_t area, float *sum, bool add)
{
    dim3 grid((unsigned)channels);
    if (dtype == DTYPE_BF16)
        return start(launch, channel_sum<bf16>, grid, BLOCK, (const bf16 *)dy, n, channels, area,
                     sum, add);
    return start(launch, channel_sum<float>, grid, BLOCK, (const float *)dy, n, channels, area, sum,
                 add);
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    channel_bias(T *y, const T *bias, int64_t n, int64_t channels, int64_t area)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * BLOCK)
        y[i] = rounded<T>(to_float(y[i]) + to_float(bias[i / area % channels]));
}

int cuda_add_channel_bias(const struct cuda_launch *launch, enum dtype dtype, void *y,
                          const void *bias, int64_t n, int64_t channels, int64_t area)
{
    int64_t count = n * channels * area;
    if (dtype == DTYPE_BF16)
        return start(launch, channel_bias<bf16>, grid_of(launch, count), BLOCK, (bf16 *)y,
                     (const bf16 *)bias, count, channels, area);
    return start(launch, channel_bias<float>, grid_of(launch, count), BLOCK, (float *)y,
                 (const float *)bias, count, channels, area);
}

} // namespace fsdpd
