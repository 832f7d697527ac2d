/*
 * Softmax, losses and their gradients, over rows of classes in f32. A warp works on a row, or a
 * block if the row is long. Losses are written per row and then added in a fixed order.
 */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/platform.h"

namespace fsdpd {

enum { WARP_CLASSES = 1024 };

/* Loops over this thread's rows; `lane` is its place in the row. */
#define FOR_ROWS(row, lane, G, rows)                                                               \
    const int lane = threadIdx.x % (G);                                                            \
    for (int64_t row = (int64_t)blockIdx.x * (BLOCK / (G)) + threadIdx.x / (G); row < (rows);      \
         row += (int64_t)gridDim.x * (BLOCK / (G)))

/* Launches kernel<WARP> or kernel<BLOCK>, depending on the number of classes. */
#define START_ROWS(launch, kernel, rows, classes, ...)                                             \
    ((classes) <= WARP_CLASSES                                                                     \
         ? start(launch, kernel<WARP>, grid_of_rows<WARP>(launch, rows), BLOCK, __VA_ARGS__)       \
         : start(launch, kernel<BLOCK>, grid_of_rows<BLOCK>(launch, rows), BLOCK, __VA_ARGS__))

/* The same for kernel<.., W>. */
#define START_ROWS_WITH(launch, kernel, W, rows, classes, ...)                                     \
    ((classes) <= WARP_CLASSES ? start(launch, kernel<WARP, W>, grid_of_rows<WARP>(launch, rows),  \
                                       BLOCK, __VA_ARGS__)                                         \
                               : start(launch, kernel<BLOCK, W>,                                   \
                                       grid_of_rows<BLOCK>(launch, rows), BLOCK, __VA_ARGS__))

/* The maximum of a row, and the sum of its exponentials. */
template <int G>
__device__ inline void row_sum(const float *x, int64_t classes, int lane, float *scratch,
                               float *max, float *sum)
{
    float most = -INFINITY, total = 0;
    for (int64_t i = lane; i < classes; i += G) most = larger(most, x[i]);
    most = group_max<G>(most, scratch);
    for (int64_t i = lane; i < classes; i += G) total += expf(x[i] - most);
    *max = most;
    *sum = group_sum<G>(total, scratch);
}

template <int G>
__global__ void __launch_bounds__(BLOCK)
    softmax_kernel(const float *x, float *y, int64_t rows, int64_t classes, bool log, bool add)
{
    SHARED(float, scratch, BLOCK / WARP);
    FOR_ROWS(row, lane, G, rows)
    {
        const float *from = x + row * classes;
        float max, sum;
        row_sum<G>(from, classes, lane, scratch, &max, &sum);
        float log_sum = logf(sum);
        for (int64_t i = lane; i < classes; i += G) {
            float away = from[i] - max;
            put(&y[row * classes + i], log ? away - log_sum : expf(away) / sum, add);
        }
    }
}

int cuda_run_softmax(const struct cuda_op *op, const struct kernel_call *call,
                     const struct cuda_launch *launch)
{
    const struct op_desc *desc = &op->desc;
    int64_t classes = columns_of(&desc->inputs[0]), rows = count_of(&desc->inputs[0]) / classes;
    return START_ROWS(launch, softmax_kernel, rows, classes, input_of<float>(call, 0),
                      output_of<float>(call, 0), rows, classes, desc->kind == OP_LOG_SOFTMAX,
                      desc->accumulate[0]);
}

template <int G>
__global__ void __launch_bounds__(BLOCK)
    softmax_backward_kernel(const float *dy, const float *y, float *dx, int64_t rows,
                            int64_t classes, bool log, bool add)
{
    SHARED(float, scratch, BLOCK / WARP);
    FOR_ROWS(row, lane, G, rows)
    {
        int64_t base = row * classes;
        float sum = 0;
        for (int64_t i = base + lane; i < base + classes; i += G) sum += log ? dy[i] : dy[i] * y[i];
        sum = group_sum<G>(sum, scratch);
        for (int64_t i = base + lane; i < base + classes; i += G)
            put(&dx[i], log ? dy[i] - expf(y[i]) * sum : y[i] * (dy[i] - sum), add);
    }
}

int cuda_run_softmax_backward(const struct cuda_op *op, const struct kernel_call *call,
                              const struct cuda_launch *launch)
{
    const struct op_desc *desc = &op->desc;
    int64_t classes = columns_of(&desc->inputs[0]), rows = count_of(&desc->inputs[0]) / classes;
    return START_ROWS(launch, softmax_backward_kernel, rows, classes, input_of<float>(call, 0),
                      input_of<float>(call, 1), output_of<float>(call, 0), rows, classes,
                      desc->kind == OP_LOG_SOFTMAX_BACKWARD, desc->accumulate[0]);
}

/* ---- losses ---- */

uint64_t cuda_row_bytes(const struct op_desc *desc)
{
    const struct tensor_type *scores = &desc->inputs[0];
    return (uint64_t)(count_of(scores) / columns_of(scores)) * sizeof(float);
}

/* The arguments that all losses share. */
struct loss {
    int64_t rows, classes;
    float scale, *by_row;
};

static struct loss loss_of(const struct op_desc *desc, const struct tensor_type *scores,
                           const struct kernel_call *call)
{
    struct loss loss;
    loss.classes = columns_of(scores);
    loss.rows = count_of(scores) / loss.classes;
    loss.scale = (float)op_loss_scale(desc, loss.rows);
    loss.by_row = (float *)call->workspace;
    return loss;
}

template <typename W>
__global__ void __launch_bounds__(BLOCK) nll_kernel(const float *y, const int32_t *target,
                                                    int64_t rows, int64_t classes, float *by_row,
                                                    const W weights)
{
    for (int64_t r = (int64_t)blockIdx.x * BLOCK + threadIdx.x; r < rows;
         r += (int64_t)gridDim.x * BLOCK)
        by_row[r] = target[r] >= 0 ? -y[r * classes + target[r]] * weights[target[r]] : 0;
}

template <typename W>
static int run_nll_loss(const struct cuda_op *op, const struct kernel_call *call,
                        const struct cuda_launch *launch, const W &weights)
{
    const struct op_desc *desc = &op->desc;
    struct loss l = loss_of(desc, &desc->inputs[0], call);
    const int32_t *target = input_of<int32_t>(call, 1);
    TRY_LAUNCH(start(launch, nll_kernel<W>, grid_of(launch, l.rows), BLOCK,
                     input_of<float>(call, 0), target, l.rows, l.classes, l.by_row, weights));
    return cuda_sum(launch, l.by_row, l.rows, l.scale, output_of<float>(call, 0),
                    desc->accumulate[0]);
}

RUN_WEIGHTED(cuda_run_nll_loss, run_nll_loss, loss.weights)

template <typename W>
__global__ void __launch_bounds__(BLOCK)
    nll_backward_kernel(const int32_t *target, float scale, float *dy, int64_t count,
                        int64_t classes, bool add, const W weights)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * BLOCK)
        put(&dy[i], i % classes == target[i / classes] ? -scale * weights[i % classes] : 0, add);
}

template <typename W>
static int run_nll_loss_backward(const struct cuda_op *op, const struct kernel_call *call,
                                 const struct cuda_launch *launch, const W &weights)
{
    const struct op_desc *desc = &op->desc;
    struct loss l = loss_of(desc, &desc->outputs[0], call);
    const int32_t *target = input_of<int32_t>(call, 0);
    return start(launch, nll_backward_kernel<W>, grid_of(launch, l.rows * l.classes), BLOCK, target,
                 l.scale, output_of<float>(call, 0), l.rows * l.classes, l.classes,
                 desc->accumulate[0], weights);
}

RUN_WEIGHTED(cuda_run_nll_loss_backward, run_nll_loss_backward, loss.weights)

/* The factor of a row whose target has the log-probability y, or that of the row's gradient. */
__device__ inline float focus(float gamma, float y, bool slope)
{
    float rest = -expm1f(y);
    if (gamma == 0 || rest == 0) return gamma == 0;
    return powf(rest, gamma) * (slope ? 1 - gamma * expf(y) * y / rest : 1);
}

template <int G, typename W>
__global__ void __launch_bounds__(BLOCK)
    cross_entropy_kernel(const float *x, const int32_t *target, float *y, int64_t rows,
                         int64_t classes, float smoothing, float gamma, float *by_row, bool add,
                         const W weights)
{
    SHARED(float, scratch, BLOCK / WARP);
    FOR_ROWS(row, lane, G, rows)
    {
        const float *from = x + row * classes;
        float max, sum;
        row_sum<G>(from, classes, lane, scratch, &max, &sum);
        float log_sum = logf(sum);
        for (int64_t i = lane; i < classes; i += G)
            put(&y[row * classes + i], from[i] - max - log_sum, add);
        float mean = 0;
        if (smoothing > 0) {
            for (int64_t i = lane; i < classes; i += G)
                mean += weights[i] * (log_sum - (from[i] - max));
            mean = group_sum<G>(mean, scratch) / (float)classes;
        }
        int32_t own = target[row];
        if (lane == 0)
            by_row[row] = own >= 0
                              ? (1 - smoothing) * weights[own] * (log_sum - (from[own] - max)) *
                                        focus(gamma, from[own] - max - log_sum, false) +
                                    smoothing * mean
                              : 0;
    }
}

template <typename W>
static int run_cross_entropy(const struct cuda_op *op, const struct kernel_call *call,
                             const struct cuda_launch *launch, const W &weights)
{
    const struct op_desc *desc = &op->desc;
    struct loss l = loss_of(desc, &desc->inputs[0], call);
    const int32_t *target = input_of<int32_t>(call, 1);
    TRY_LAUNCH(START_ROWS_WITH(launch, cross_entropy_kernel, W, l.rows, l.classes,
                               input_of<float>(call, 0), target, output_of<float>(call, 1), l.rows,
                               l.classes, (float)desc->attrs.loss.label_smoothing,
                               (float)desc->attrs.loss.gamma, l.by_row, desc->accumulate[1],
                               weights));
    return cuda_sum(launch, l.by_row, l.rows, l.scale, output_of<float>(call, 0),
                    desc->accumulate[0]);
}

RUN_WEIGHTED(cuda_run_cross_entropy, run_cross_entropy, loss.weights)

/* `mean`: of all weights. */
template <typename W>
__global__ void __launch_bounds__(BLOCK)
    cross_entropy_backward_kernel(const float *y, const int32_t *target, float scale,
                                  float smoothing, float gamma, float mean, float *dx,
                                  int64_t count, int64_t classes, bool add, const W weights)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * BLOCK) {
        int32_t wanted = target[i / classes];
        float own = wanted >= 0 ? (1 - smoothing) * weights[wanted] *
                                      focus(gamma, y[i - i % classes + wanted], true)
                                : 0;
        float gradient = expf(y[i]) * (own + smoothing * mean) -
                         (i % classes == wanted ? own : 0.0f) -
                         smoothing * weights[i % classes] / (float)classes;
        put(&dx[i], wanted >= 0 ? gradient * scale : 0, add);
    }
}

static float mean_weight(const struct op_weights *weights)
{
    double sum = 0;
    for (int64_t i = 0; i < weights->count; i++) sum += weights->values[i];
    return weights->count > 0 ? (float)(sum / (double)weights->count) : 1;
}

template <typename W>
static int run_cross_entropy_backward(const struct cuda_op *op, const struct kernel_call *call,
                                      const struct cuda_launch *launch, const W &weights)
{
    const struct op_desc *desc = &op->desc;
    struct loss l = loss_of(desc, &desc->inputs[0], call);
    const int32_t *target = input_of<int32_t>(call, 1);
    return start(launch, cross_entropy_backward_kernel<W>, grid_of(launch, l.rows * l.classes),
                 BLOCK, input_of<float>(call, 0), target, l.scale,
                 (float)desc->attrs.loss.label_smoothing, (float)desc->attrs.loss.gamma,
                 mean_weight(&desc->attrs.loss.weights), output_of<float>(call, 0),
                 l.rows * l.classes, l.classes, desc->accumulate[0], weights);
}

RUN_WEIGHTED(cuda_run_cross_entropy_backward, run_cross_entropy_backward, loss.weights)

/* Whether a is before b as the maximum: larger, or equal and first. NaN counts as the largest. */
__device__ inline bool comes_before(float a, int64_t i, float b, int64_t j)
{
    bool a_nan = a != a, b_nan = b != b;
    if (a_nan != b_nan) return a_nan;
    if (!a_nan && a != b) return a > b;
    return i < j;
}

/* `values` and `places`: BLOCK / WARP elements of shared memory. */
template <int G>
__device__ inline int64_t first_maximum(const float *x, int64_t classes, int lane, float *values,
                                        int *places)
{
    float best = -INFINITY;
    int at = INT32_MAX;
    for (int64_t i = lane; i < classes; i += G)
        if (at == INT32_MAX || comes_before(x[i], i, best, at)) best = x[i], at = (int)i;
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, best, distance);
        int place = __shfl_xor_sync(0xffffffffu, at, distance);
        if (comes_before(other, place, best, at)) best = other, at = place;
    }
    if (G == WARP) return at;
    __syncthreads();
    if (threadIdx.x % WARP == 0) values[threadIdx.x / WARP] = best, places[threadIdx.x / WARP] = at;
    __syncthreads();
    best = values[0], at = places[0];
    for (int warp = 1; warp < BLOCK / WARP; warp++)
        if (comes_before(values[warp], places[warp], best, at))
            best = values[warp], at = places[warp];
    return at;
}

template <int G>
__global__ void __launch_bounds__(BLOCK) count_kernel(const float *y, const int32_t *target,
                                                      int64_t rows, int64_t classes, float *by_row)
{
    SHARED(float, values, BLOCK / WARP);
    SHARED(int, places, BLOCK / WARP);
    FOR_ROWS(row, lane, G, rows)
    {
        int64_t best = first_maximum<G>(y + row * classes, classes, lane, values, places);
        if (lane == 0) by_row[row] = best == target[row] ? 1.0f : 0.0f;
    }
}

int cuda_run_count_correct(const struct cuda_op *op, const struct kernel_call *call,
                           const struct cuda_launch *launch)
{
    const struct op_desc *desc = &op->desc;
    struct loss l = loss_of(desc, &desc->inputs[0], call);
    TRY_LAUNCH(START_ROWS(launch, count_kernel, l.rows, l.classes, input_of<float>(call, 0),
                          input_of<int32_t>(call, 1), l.rows, l.classes, l.by_row));
    return cuda_sum(launch, l.by_row, l.rows, 1, output_of<float>(call, 0), desc->accumulate[0]);
}

} // namespace fsdpd
