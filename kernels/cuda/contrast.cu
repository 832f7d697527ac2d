/* The loss of pairs against all others: a block to a row, losses added in a fixed order. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/platform.h"

namespace fsdpd {

__global__ void __launch_bounds__(BLOCK)
    counted_kernel(const int32_t *target, float *y, int64_t count, bool add)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * BLOCK)
        put(&y[i], target[i] >= 0 ? 1.0f : 0.0f, add);
}

int cuda_run_counted(const struct cuda_op *op, const struct kernel_call *call,
                     const struct cuda_launch *launch)
{
    int64_t count = count_of(&op->desc.inputs[0]);
    return start(launch, counted_kernel, grid_of(launch, count), BLOCK, input_of<int32_t>(call, 0),
                 output_of<float>(call, 0), count, op->desc.accumulate[0]);
}

/* `first`: the place of this rank's first pair among those of all ranks. */
struct contrast_rows {
    const float *x, *counted, *lse;
    const int32_t *target;
    int64_t rows, columns, candidates, first;
    float factor, scale; /* scale: of the loss, or of the gradient */
};

static struct contrast_rows contrast_of(const struct op_desc *desc, const struct kernel_call *call)
{
    struct contrast_rows c = {};
    bool forward = desc->kind == OP_CONTRASTIVE_LOSS;
    bool others = desc->kind == OP_CONTRASTIVE_LOSS_BACKWARD_OTHERS;
    const struct tensor_type *x = &desc->inputs[0];
    const struct tensor_type *all =
        &desc->inputs[desc->kind == OP_CONTRASTIVE_LOSS_BACKWARD ? 2 : 1];
    c.x = input_of<float>(call, 0);
    if (!others) c.counted = input_of<float>(call, forward ? 1 : 2);
    if (!forward) c.lse = input_of<float>(call, 1);
    if (forward) c.target = input_of<int32_t>(call, 2);
    c.rows = x->dims[0];
    c.columns = x->dims[1];
    int64_t own = others ? columns_of(all) : c.rows;
    c.candidates = others ? c.rows / own : c.columns / count_of(all);
    c.first = (int64_t)call->rank * own;
    c.factor = (float)desc->attrs.contrast.factor;
    double scale = op_loss_scale(desc, own);
    c.scale = (float)(forward ? scale : scale * desc->attrs.contrast.factor);
    return c;
}

__global__ void __launch_bounds__(BLOCK)
    contrast_kernel(const struct contrast_rows c, float *by_row, float *scores, float *lse,
                    bool add_scores, bool add_lse)
{
    SHARED(float, scratch, BLOCK / WARP);
    for (int64_t row = blockIdx.x; row < c.rows; row += gridDim.x) {
        const float *x = c.x + row * c.columns;
        int64_t positive = (c.first + row) * c.candidates;
        float other = -INFINITY, own = c.factor * x[positive], sum = 0;
        for (int64_t i = threadIdx.x; i < c.columns; i += BLOCK)
            if (i != positive && c.counted[i / c.candidates] != 0)
                other = larger(other, c.factor * x[i]);
        other = group_max<BLOCK>(other, scratch);
        float most = larger(other, own);
        for (int64_t i = threadIdx.x; i < c.columns; i += BLOCK)
            if (c.counted[i / c.candidates] != 0) sum += expf(c.factor * x[i] - most);
        sum = group_sum<BLOCK>(sum, scratch);
        if (threadIdx.x != 0) continue;
        bool counts = c.target[row] >= 0;
        float log_sum = counts ? most + logf(sum) : INFINITY;
        by_row[row] = counts ? log_sum - own : 0;
        put(&scores[2 * row], own, add_scores);
        put(&scores[2 * row + 1], other, add_scores);
        put(&lse[row], log_sum, add_lse);
    }
}

int cuda_run_contrast(const struct cuda_op *op, const struct kernel_call *call,
                      const struct cuda_launch *launch)
{
    struct contrast_rows c = contrast_of(&op->desc, call);
    float *by_row = (float *)call->workspace;
    TRY_LAUNCH(start(launch, contrast_kernel, grid_of_rows<BLOCK>(launch, c.rows), BLOCK, c, by_row,
                     output_of<float>(call, 1), output_of<float>(call, 2), op->desc.accumulate[1],
                     op->desc.accumulate[2]));
    return cuda_sum(launch, by_row, c.rows, c.scale, output_of<float>(call, 0),
                    op->desc.accumulate[0]);
}

/* Rows are this rank's anchors and columns the candidates of all ranks, or, of OTHERS, rows are
 * this rank's candidates and columns the anchors of all ranks. */
template <bool OTHERS>
__global__ void __launch_bounds__(BLOCK)
    contrast_backward_kernel(const struct contrast_rows c, float *dx, bool add)
{
    int64_t count = c.rows * c.columns;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * BLOCK) {
        int64_t row = i / c.columns, column = i % c.columns;
        int64_t pair = c.first + (OTHERS ? row / c.candidates : row);
        float lse = c.lse[OTHERS ? column : row];
        bool counts =
            (OTHERS ? !isinf(c.lse[pair]) : c.counted[column / c.candidates] != 0) && !isinf(lse);
        bool own =
            OTHERS ? row % c.candidates == 0 && column == pair : column == pair * c.candidates;
        float share = expf(c.factor * c.x[i] - lse) - (own ? 1.0f : 0.0f);
        put(&dx[i], counts ? share * c.scale : 0, add);
    }
}

int cuda_run_contrast_backward(const struct cuda_op *op, const struct kernel_call *call,
                               const struct cuda_launch *launch)
{
    struct contrast_rows c = contrast_of(&op->desc, call);
    bool others = op->desc.kind == OP_CONTRASTIVE_LOSS_BACKWARD_OTHERS;
    return start(launch, others ? contrast_backward_kernel<true> : contrast_backward_kernel<false>,
                 grid_of(launch, c.rows * c.columns), BLOCK, c, output_of<float>(call, 0),
                 op->desc.accumulate[0]);
}

} // namespace fsdpd
