/*
 * Tallies of evaluations: a thread for each column adds up the rows in their order. Of classes,
 * another kernel first selects one for each row.
 */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/platform.h"

struct cuda_tally {
    int64_t rows, columns;
    bool numbers, add; /* `numbers`: sums of them; otherwise counts */
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
    tally_numbers_kernel(const struct cuda_tally tally, const float *x, const float *numbers,
                         float *y)
{
    for (int64_t c = (int64_t)blockIdx.x * BLOCK + threadIdx.x; c < tally.columns;
         c += (int64_t)gridDim.x * BLOCK) {
        double sums[TALLY_SUMS] = {0, 0, 0, 0, 0, 0, 0};
        for (int64_t i = c; i < tally.rows * tally.columns; i += tally.columns) {
            double a = x[i], b = numbers[i];
            if (b != b) continue;
            if (!tally.numbers) {
                sums[0] += a > 0 && b > 0.5;
                sums[1] += a > 0;
                sums[2] += b > 0.5;
                continue;
            }
            sums[0] += 1;
            sums[1] += a;
            sums[2] += b;
            sums[3] += a * a;
            sums[4] += b * b;
            sums[5] += a * b;
            sums[6] += (a - b) * (a - b);
        }
        for (int64_t k = 0; k < (tally.numbers ? TALLY_SUMS : TALLY_COUNTS); k++)
            put(&y[k * tally.columns + c], (float)sums[k], tally.add);
    }
}

uint64_t cuda_tally_bytes(const struct op_desc *desc)
{
    const struct tensor_type *x = &desc->inputs[0];
    return (uint64_t)(count_of(x) / columns_of(x)) * sizeof(int32_t);
}

int cuda_run_tally(const struct cuda_op *op, const struct kernel_call *call,
                   const struct cuda_launch *launch)
{
    const struct op_desc *desc = &op->desc;
    struct cuda_tally tally;
    tally.columns = columns_of(&desc->inputs[0]);
    tally.rows = count_of(&desc->inputs[0]) / tally.columns;
    tally.numbers = desc->attrs.tally.kind == TALLY_NUMBERS;
    tally.add = desc->accumulate[0];
    const float *x = input_of<float>(call, 0);
    dim3 grid = grid_of(launch, tally.columns);
    if (desc->attrs.tally.kind != TALLY_CLASSES)
        return start(launch, tally_numbers_kernel, grid, BLOCK, tally, x, input_of<float>(call, 2),
                     output_of<float>(call, 0));
    int32_t *selected = (int32_t *)call->workspace;
    TRY_LAUNCH(
        start(launch, tally_select_kernel, grid_of(launch, tally.rows), BLOCK, tally, x, selected));
    return start(launch, tally_classes_kernel, grid, BLOCK, tally, (const int32_t *)selected,
                 input_of<int32_t>(call, 1), output_of<float>(call, 0));
}
