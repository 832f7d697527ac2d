/* Losses of every element by itself: by row, a block each, and then added in a fixed order. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/platform.h"

namespace fsdpd {

/* What both directions need. */
struct element_loss {
    const float *x, *reference;
    const int32_t *target; /* nullptr: every row counts */
    int64_t rows, columns, width; /* width: the last dimension */
    int difference;
    bool computed;
    float delta, alpha, scale;
};

static int64_t rows_of_loss(const struct op_desc *desc)
{
    return desc->input_present[2] ? count_of(&desc->inputs[2]) : desc->inputs[0].dims[0];
}

static struct element_loss element_loss_of(const struct op_desc *desc,
                                           const struct kernel_call *call)
{
    struct element_loss loss = {};
    loss.x = input_of<float>(call, 0);
    loss.reference = input_of<float>(call, 1);
    if (desc->input_present[2]) loss.target = input_of<int32_t>(call, 2);
    loss.rows = rows_of_loss(desc);
    loss.columns = count_of(&desc->inputs[0]) / loss.rows;
    loss.width = columns_of(&desc->inputs[0]);
    loss.difference = (int)desc->attrs.element_loss.difference;
    loss.computed = desc->attrs.element_loss.computed;
    loss.delta = (float)desc->attrs.element_loss.delta;
    loss.alpha = (float)desc->attrs.element_loss.alpha;
    int64_t counted = loss.target != nullptr ? loss.rows : loss.rows * loss.columns;
    loss.scale = (float)(desc->attrs.element_loss.weight * op_loss_scale(desc, counted));
    return loss;
}

/* With p and q the probabilities of 1 and 0, and `miss` that of the label's opposite. */
__device__ static float focal(const struct element_loss &loss, float x, float r, bool slope)
{
    float e = expf(-fabsf(x)), large = 1 / (1 + e), small = e * large;
    float p = x < 0 ? small : large, q = x < 0 ? large : small, miss = p * (1 - r) + q * r;
    float cross_entropy = (x < 0 ? 0 : x) - x * r + log1pf(e);
    float weight =
        (loss.alpha < 0 ? 1 : loss.alpha * r + (1 - loss.alpha) * (1 - r)) * powf(miss, loss.delta);
    if (!slope) return weight * cross_entropy;
    if (miss == 0) return 0;
    return weight * (p - r + loss.delta * (1 - 2 * r) * p * q * cross_entropy / miss);
}

/* `positive`: the weight of the part of a label that is wanted. */
__device__ static float element_difference(const struct element_loss &loss, float x,
                                           float reference, float positive)
{
    float away = x - reference, far = fabsf(away);
    switch (loss.difference) {
    case DIFFERENCE_SQUARED: return away * away;
    case DIFFERENCE_ABSOLUTE: return far;
    case DIFFERENCE_HUBER:
        return far <= loss.delta ? 0.5f * away * away : loss.delta * (far - 0.5f * loss.delta);
    case DIFFERENCE_FOCAL: return focal(loss, x, reference, false);
    case DIFFERENCE_DIVERGENCE: return expf(reference) == 0 ? 0 : -expf(reference) * away;
    default:
        return (1 - reference) * x + (1 + (positive - 1) * reference) *
                                         (log1pf(expf(-fabsf(x))) + (x < 0 ? -x : 0));
    }
}

__device__ static float element_slope(const struct element_loss &loss, float x, float reference,
                                      float positive)
{
    float away = x - reference;
    switch (loss.difference) {
    case DIFFERENCE_SQUARED: return 2 * away;
    case DIFFERENCE_ABSOLUTE: return away > 0 ? 1 : away < 0 ? -1 : away;
    case DIFFERENCE_HUBER:
        return away > loss.delta ? loss.delta : away < -loss.delta ? -loss.delta : away;
    case DIFFERENCE_FOCAL: return focal(loss, x, reference, true);
    case DIFFERENCE_DIVERGENCE: return -expf(reference);
    default: return (1 - reference) / (1 + expf(-x)) - positive * reference / (1 + expf(x));
    }
}

__device__ static bool element_counts(const struct element_loss &loss, int64_t row, float reference)
{
    return (loss.computed || reference == reference) &&
           (loss.target == nullptr || loss.target[row] >= 0);
}

template <typename W>
__global__ void __launch_bounds__(BLOCK)
    element_loss_kernel(const struct element_loss loss, float *by_row, const W positive)
{
    SHARED(float, scratch, BLOCK / WARP);
    for (int64_t row = blockIdx.x; row < loss.rows; row += gridDim.x) {
        float sum = 0;
        for (int64_t i = threadIdx.x; i < loss.columns; i += BLOCK) {
            int64_t at = row * loss.columns + i;
            if (element_counts(loss, row, loss.reference[at]))
                sum += element_difference(loss, loss.x[at], loss.reference[at],
                                          positive[at % loss.width]);
        }
        sum = group_sum<BLOCK>(sum, scratch);
        if (threadIdx.x == 0) by_row[row] = sum;
    }
}

uint64_t cuda_element_loss_bytes(const struct op_desc *desc)
{
    return (uint64_t)rows_of_loss(desc) * sizeof(float);
}

template <typename W>
static int run_element_loss(const struct cuda_op *op, const struct kernel_call *call,
                            const struct cuda_launch *launch, const W &positive)
{
    struct element_loss loss = element_loss_of(&op->desc, call);
    float *by_row = (float *)call->workspace;
    TRY_LAUNCH(start(launch, element_loss_kernel<W>, grid_of_rows<BLOCK>(launch, loss.rows), BLOCK,
                     loss, by_row, positive));
    return cuda_sum(launch, by_row, loss.rows, loss.scale, output_of<float>(call, 0),
                    op->desc.accumulate[0]);
}

RUN_WEIGHTED(cuda_run_element_loss, run_element_loss, element_loss.positive)

template <typename W>
__global__ void __launch_bounds__(BLOCK)
    element_loss_backward_kernel(const struct element_loss loss, float *dx, bool add,
                                 const W positive)
{
    int64_t count = loss.rows * loss.columns;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * BLOCK) {
        bool counted = element_counts(loss, i / loss.columns, loss.reference[i]);
        float weight = positive[i % loss.width];
        put(&dx[i],
            counted ? element_slope(loss, loss.x[i], loss.reference[i], weight) * loss.scale : 0,
            add);
    }
}

template <typename W>
static int run_element_loss_backward(const struct cuda_op *op, const struct kernel_call *call,
                                     const struct cuda_launch *launch, const W &positive)
{
    struct element_loss loss = element_loss_of(&op->desc, call);
    return start(launch, element_loss_backward_kernel<W>, grid_of(launch, loss.rows * loss.columns),
                 BLOCK, loss, output_of<float>(call, 0), op->desc.accumulate[0], positive);
}

RUN_WEIGHTED(cuda_run_element_loss_backward, run_element_loss_backward, element_loss.positive)

} // namespace fsdpd
