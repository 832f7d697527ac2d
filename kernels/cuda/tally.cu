/*
 * Tallies of evaluations: a thread for each column adds up the rows in their order. Of classes,
 * another kernel first selects one for each row.
 */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/platform.h"

namespace fsdpd {

struct cuda_tally {
    int64_t rows, columns;
    bool add;
};

__global__ void __launch_bounds__(BLOCK)
    tally_select_kernel(const struct cuda_tally tally, const float *x, int32_t *selected)
{
    for (int64_t r = (int64_t)blockIdx.x * BLOCK + threadIdx.x; r < tally.rows;
         r += (int64_t)gridDim.x * BLOCK) {
        const float *row = x + r * tally.columns;
        int64_t best = 0;
        for (int64_t i = 0; i < tally.columns; i++) {
            if (row[i] != row[i]) {
                best = i;
                break;
            }
            if (row[i] > row[best]) best = i;
        }
        selected[r] = (int32_t)best;
    }
}

__global__ void __launch_bounds__(BLOCK)
    tally_classes_kernel(const struct cuda_tally tally, const int32_t *selected,
                         const int32_t *target, float *y)
{
    for (int64_t c = (int64_t)blockIdx.x * BLOCK + threadIdx.x; c < tally.columns;
         c += (int64_t)gridDim.x * BLOCK) {
        int64_t counts[TALLY_COUNTS] = {0, 0, 0};
        for (int64_t r = 0; r < tally.rows; r++) {
            if (target[r] < 0) continue;
            counts[0] += selected[r] == c && target[r] == c;
            counts[1] += selected[r] == c;
            counts[2] += target[r] == c;
        }
        for (int64_t k = 0; k < TALLY_COUNTS; k++)
            put(&y[k * tally.columns + c], (float)counts[k], tally.add);
    }
}

__global__ void __launch_bounds__(BLOCK)
    tally_labels_kernel(const struct cuda_tally tally, const float *x, const float *numbers,
                        float *y)
{
    for (int64_t c = (int64_t)blockIdx.x * BLOCK + threadIdx.x; c < tally.columns;
         c += (int64_t)gridDim.x * BLOCK) {
        int64_t counts[TALLY_COUNTS] = {0, 0, 0};
        for (int64_t i = c; i < tally.rows * tally.columns; i += tally.columns) {
            if (numbers[i] != numbers[i]) continue;
            counts[0] += x[i] > 0 && numbers[i] > 0.5f;
            counts[1] += x[i] > 0;
            counts[2] += numbers[i] > 0.5f;
        }
        for (int64_t k = 0; k < TALLY_COUNTS; k++)
            put(&y[k * tally.columns + c], (float)counts[k], tally.add);
    }
}

/* The means first: sums of squares would lose what varies where they are large. Of the rows of `y`
 * those from `first` on are this rank's; the others are 0. */
__global__ void __launch_bounds__(BLOCK)
    tally_numbers_kernel(const struct cuda_tally tally, const float *x, const float *numbers,
                         float *y, int64_t first, int64_t rows)
{
    for (int64_t c = (int64_t)blockIdx.x * BLOCK + threadIdx.x; c < tally.columns;
         c += (int64_t)gridDim.x * BLOCK) {
        double count = 0, a = 0, b = 0, aa = 0, bb = 0, ab = 0, squares = 0;
        for (int64_t i = c; i < tally.rows * tally.columns; i += tally.columns) {
            if (numbers[i] != numbers[i]) continue;
            count += 1;
            a += x[i];
            b += numbers[i];
        }
        if (count > 0) a /= count, b /= count;
        for (int64_t i = c; i < tally.rows * tally.columns; i += tally.columns) {
            if (numbers[i] != numbers[i]) continue;
            double da = x[i] - a, db = numbers[i] - b, away = (double)x[i] - numbers[i];
            aa += da * da;
            bb += db * db;
            ab += da * db;
            squares += away * away;
        }
        const float all[TALLY_MOMENTS] = {
            (float)count, (float)a,  (float)(a - (float)a), (float)b,      (float)(b - (float)b),
            (float)aa,    (float)bb, (float)ab,             (float)squares};
        for (int64_t k = 0; k < rows; k++)
            if (k < first || k >= first + TALLY_MOMENTS) put(&y[k * tally.columns + c], 0, tally.add);
        for (int64_t k = 0; k < TALLY_MOMENTS; k++)
            put(&y[(first + k) * tally.columns + c], all[k], tally.add);
    }
}

/* `rank`: of the rows of y, the one that is x. */
__global__ void __launch_bounds__(BLOCK)
    tally_rows_kernel(const float *x, float *y, int64_t columns, int64_t all, int64_t rank,
                      bool add)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < all;
         i += (int64_t)gridDim.x * BLOCK)
        put(&y[i], i / columns == rank ? x[i % columns] : 0, add);
}

int cuda_run_tally(const struct cuda_op *op, const struct kernel_call *call,
                   const struct cuda_launch *launch)
{
    const struct op_desc *desc = &op->desc;
    struct cuda_tally tally;
    tally.columns = columns_of(&desc->inputs[0]);
    tally.rows = count_of(&desc->inputs[0]) / tally.columns;
    tally.add = desc->accumulate[0];
    const float *x = input_of<float>(call, 0);
    int64_t all = count_of(&desc->outputs[0]);
    if (desc->attrs.tally.kind == TALLY_ROWS)
        return start(launch, tally_rows_kernel, grid_of(launch, all), BLOCK, x,
                     output_of<float>(call, 0), count_of(&desc->inputs[0]), all,
                     (int64_t)call->rank, tally.add);
    dim3 grid = grid_of(launch, tally.columns);
    if (desc->attrs.tally.kind == TALLY_LABELS)
        return start(launch, tally_labels_kernel, grid, BLOCK, tally, x, input_of<float>(call, 2),
                     output_of<float>(call, 0));
    if (desc->attrs.tally.kind == TALLY_NUMBERS)
        return start(launch, tally_numbers_kernel, grid, BLOCK, tally, x, input_of<float>(call, 2),
                     output_of<float>(call, 0), (int64_t)call->rank * TALLY_MOMENTS,
                     desc->outputs[0].dims[0]);
    int32_t *selected = (int32_t *)call->workspace;
    TRY_LAUNCH(
        start(launch, tally_select_kernel, grid_of(launch, tally.rows), BLOCK, tally, x, selected));
    return start(launch, tally_classes_kernel, grid, BLOCK, tally, (const int32_t *)selected,
                 input_of<int32_t>(call, 1), output_of<float>(call, 0));
}

} // namespace fsdpd
