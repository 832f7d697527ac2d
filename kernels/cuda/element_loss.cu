/* Losses of every element by itself: by row, a block each, and then added in a fixed order. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/platform.h"

/* What both directions need. */
struct element_loss {
    const float *x, *reference;
    const int32_t *target; /* nullptr: every row counts */
    int64_t rows, columns;
    int difference;
    float delta, scale;
};

static struct element_loss element_loss_of(const struct op_desc *desc,
                                           const struct kernel_call *call)
{
    struct element_loss loss = {};
    loss.x = input_of<float>(call, 0);
    loss.reference = input_of<float>(call, 1);
    if (desc->input_present[2]) loss.target = input_of<int32_t>(call, 2);
    loss.rows = desc->inputs[0].dims[0];
    loss.columns = count_of(&desc->inputs[0]) / loss.rows;
    loss.difference = (int)desc->attrs.element_loss.difference;
    loss.delta = (float)desc->attrs.element_loss.delta;
    int64_t counted = loss.target != nullptr ? loss.rows : loss.rows * loss.columns;
    loss.scale = (float)(desc->attrs.element_loss.weight * op_loss_scale(desc, counted));
    return loss;
}

__device__ static float element_difference(const struct element_loss &loss, float x,
                                           float reference)
{
    float away = x - reference, far = fabsf(away);
    switch (loss.difference) {
    case DIFFERENCE_SQUARED: return away * away;
    case DIFFERENCE_ABSOLUTE: return far;
    case DIFFERENCE_HUBER:
        return far <= loss.delta ? 0.5f * away * away : loss.delta * (far - 0.5f * loss.delta);
    default: return (x < 0 ? 0 : x) - x * reference + log1pf(expf(-fabsf(x)));
    }
}

__device__ static float element_slope(const struct element_loss &loss, float x, float reference)
{
    float away = x - reference;
    switch (loss.difference) {
    case DIFFERENCE_SQUARED: return 2 * away;
    case DIFFERENCE_ABSOLUTE: return away > 0 ? 1 : away < 0 ? -1 : away;
    case DIFFERENCE_HUBER:
        return away > loss.delta ? loss.delta : away < -loss.delta ? -loss.delta : away;
    default: return 1 / (1 + expf(-x)) - reference;
    }
}

__device__ static bool element_counts(const struct element_loss &loss, int64_t row, float reference)
{
    return reference == reference && (loss.target == nullptr || loss.target[row] >= 0);
}

__global__ void __launch_bounds__(BLOCK)
    element_loss_kernel(const struct element_loss loss, float *by_row)
{
    SHARED(float, scratch, BLOCK / WARP);
    for (int64_t row = blockIdx.x; row < loss.rows; row += gridDim.x) {
        float sum = 0;
        for (int64_t i = threadIdx.x; i < loss.columns; i += BLOCK) {
            int64_t at = row * loss.columns + i;
            if (element_counts(loss, row, loss.reference[at]))
                sum += element_difference(loss, loss.x[at], loss.reference[at]);
        }
        sum = group_sum<BLOCK>(sum, scratch);
        if (threadIdx.x == 0) by_row[row] = sum;
    }
}

uint64_t cuda_element_loss_bytes(const struct op_desc *desc)
{
    return (uint64_t)desc->inputs[0].dims[0] * sizeof(float);
}

int cuda_run_element_loss(const struct cuda_op *op, const struct kernel_call *call,
                          const struct cuda_launch *launch)
{
    struct element_loss loss = element_loss_of(&op->desc, call);
    float *by_row = (float *)call->workspace;
    TRY_LAUNCH(start(launch, element_loss_kernel, grid_of_rows<BLOCK>(launch, loss.rows), BLOCK,
                     loss, by_row));
    return cuda_sum(launch, by_row, loss.rows, loss.scale, output_of<float>(call, 0),
                    op->desc.accumulate[0]);
}

__global__ void __launch_bounds__(BLOCK)
    element_loss_backward_kernel(const struct element_loss loss, float *dx, bool add)
{
    int64_t count = loss.rows * loss.columns;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * BLOCK) {
        bool counted = element_counts(loss, i / loss.columns, loss.reference[i]);
        put(&dx[i], counted ? element_slope(loss, loss.x[i], loss.reference[i]) * loss.scale : 0,
            add);
    }
}

int cuda_run_element_loss_backward(const struct cuda_op *op, const struct kernel_call *call,
                                   const struct cuda_launch *launch)
{
    struct element_loss loss = element_loss_of(&op->desc, call);
    return start(launch, element_loss_backward_kernel, grid_of(launch, loss.rows * loss.columns),
                 BLOCK, loss, output_of<float>(call, 0), op->desc.accumulate[0]);
}
