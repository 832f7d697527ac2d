/* Sums over the rows of a matrix whose elements a function computes. */
#ifndef FSDPD_KERNELS_CUDA_REDUCE_H
#define FSDPD_KERNELS_CUDA_REDUCE_H

#include "kernels/cuda/platform.h"

namespace fsdpd {

/* The minimum number of rows per chunk, and the maximum number of chunks. */
enum { CHUNK_ROWS_MIN = 64, CHUNKS_MAX = 256, TILE_ROWS = BLOCK / WARP };

static inline int64_t chunk_rows_of(int64_t rows)
{
    int64_t chunk = (rows + CHUNKS_MAX - 1) / CHUNKS_MAX;
    return chunk > CHUNK_ROWS_MIN ? chunk : (int64_t)CHUNK_ROWS_MIN;
}

static inline int64_t chunks_of(int64_t rows)
{
    int64_t chunk = chunk_rows_of(rows);
    return rows > 0 ? (rows + chunk - 1) / chunk : 1;
}

/* In a block of 8 warps, a warp adds every eighth row of the chunk, and a lane V columns. `f` adds a
 * row's values of some columns, V or one, to their sums. */
template <int V, typename F>
__global__ void __launch_bounds__(BLOCK)
    sum_columns_kernel(F f, int64_t rows, int64_t columns, int64_t chunk_rows, float *parts)
{
    SHARED(float, tile, BLOCK * V);
    int64_t left = (int64_t)blockIdx.x * WARP * V, column = left + threadIdx.x % WARP * V;
    int64_t first = (int64_t)blockIdx.y * chunk_rows;
    int64_t last = first + chunk_rows < rows ? first + chunk_rows : rows;
    float sums[V];
    for (int v = 0; v < V; v++) sums[v] = 0;
    first += threadIdx.x / WARP;
    if (column + V <= columns) {
        UNROLLED_4 for (int64_t row = first; row < last; row += TILE_ROWS)
        {
            f.add(row, column, sums);
        }
    } else {
        NOT_UNROLLED for (int64_t row = first; row < last; row += TILE_ROWS)
        {
            for (int v = 0; v < V; v++) {
                float sum[1] = {sums[v]};
                if (column + v < columns) f.add(row, column + v, sum);
                sums[v] = sum[0];
            }
        }
    }
    for (int v = 0; v < V; v++) tile[threadIdx.x * V + v] = sums[v];
    __syncthreads();
    for (int i = threadIdx.x; i < WARP * V && left + i < columns; i += BLOCK) {
        float sum = 0;
        for (int row = 0; row < TILE_ROWS; row++) sum += tile[row * WARP * V + i];
        parts[blockIdx.y * columns + left + i] = sum;
    }
}

/* parts (chunks, columns): the sums of every chunk, whose order V does not change. */
template <int V, typename F>
static inline int sum_columns(const struct cuda_launch *launch, const F &f, int64_t rows,
                              int64_t columns, float *parts)
{
    dim3 grid((unsigned)((columns + WARP * V - 1) / (WARP * V)), (unsigned)chunks_of(rows));
    return start(launch, sum_columns_kernel<V, F>, grid, BLOCK, f, rows, columns,
                 chunk_rows_of(rows), parts);
}

/* sum (+)= the chunks, in their order. */
int add_chunks_of(const struct cuda_launch *launch, const float *parts, int64_t chunks,
                  int64_t columns, float *sum, bool add);
/* The same for two matrices, one behind the other. */
int add_chunks_of_two(const struct cuda_launch *launch, const float *parts, int64_t chunks,
                      int64_t columns, float *first, bool add_first, float *second,
                      bool add_second);

} // namespace fsdpd

#endif
