/* Sums over the rows of a matrix whose elements a function computes. */
#ifndef FSDPD_KERNELS_CUDA_REDUCE_H
#define FSDPD_KERNELS_CUDA_REDUCE_H

#include "kernels/cuda/platform.h"

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

/* In a block of 8 warps, a warp adds every eighth row of the chunk, and a lane one column. */
template <typename F>
__global__ void __launch_bounds__(BLOCK)
    sum_columns_kernel(F f, int64_t rows, int64_t columns, int64_t chunk_rows, float *parts)
{
    SHARED(float, tile, BLOCK);
    int64_t column = (int64_t)blockIdx.x * WARP + threadIdx.x % WARP;
    int64_t first = (int64_t)blockIdx.y * chunk_rows;
    int64_t last = first + chunk_rows < rows ? first + chunk_rows : rows;
    float sum = 0;
    if (column < columns)
        for (int64_t row = first + threadIdx.x / WARP; row < last; row += TILE_ROWS)
            sum += f(row, column);
    tile[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= WARP || column >= columns) return;
    sum = 0;
    for (int i = 0; i < TILE_ROWS; i++) sum += tile[i * WARP + threadIdx.x];
    parts[blockIdx.y * columns + column] = sum;
}

/* parts (chunks, columns): the sums of every chunk. */
template <typename F>
static inline int sum_columns(const struct cuda_launch *launch, const F &f, int64_t rows,
                              int64_t columns, float *parts)
{
    dim3 grid((unsigned)((columns + WARP - 1) / WARP), (unsigned)chunks_of(rows));
    return start(launch, sum_columns_kernel<F>, grid, BLOCK, f, rows, columns, chunk_rows_of(rows),
                 parts);
}

/* sum (+)= the chunks, in their order. */
int add_chunks_of(const struct cuda_launch *launch, const float *parts, int64_t chunks,
                  int64_t columns, float *sum, bool add);
/* The same for two matrices, one behind the other. */
int add_chunks_of_two(const struct cuda_launch *launch, const float *parts, int64_t chunks,
                      int64_t columns, float *first, bool add_first, float *second,
                      bool add_second);

#endif
