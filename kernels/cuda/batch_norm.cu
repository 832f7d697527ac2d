/* Norms over a batch: a block per channel, which also moves the channel's running statistics. Sums
 * are in double. */
#include "kernels/batch_norm.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/platform.h"
#include "kernels/cuda/reduce.h"

namespace fsdpd {

template <typename T> struct batch {
    int64_t count; /* the elements of a channel, over all samples */
    int32_t channels, area;
    double eps, momentum;
    const T *dy, *x;
    const float *weight, *bias, *mean, *scale; /* scale: rstd, or the running variance */
    const int32_t *target;
    struct batch_totals ranks;
};

/* The outputs; nullptr where absent. */
template <typename T> struct batch_outputs {
    T *y;
    float *first, *second, *running_mean, *running_var;
    uint32_t *batches; /* a count of 64 bits, its lower word first; aligned as floats are */
    bool add[3];
};

template <typename T> __device__ static bool counts(const struct batch<T> &b, int64_t n)
{
    return b.target == nullptr || b.target[n] >= 0;
}

/* The place of element i of channel c, of n * area. */
template <typename T> __device__ static int64_t place(const struct batch<T> &b, int c, int64_t i)
{
    return (i / b.area * b.channels + c) * b.area + i % b.area;
}

/* Of a channel: its elements that count, and their mean and variance, or the sums of dy, and of dy
 * and the normalised x. */
struct batch_numbers {
    double count, first, second;
};

/* Of this rank's rows; the whole block calls it. */
template <typename T>
__device__ static struct batch_numbers find_moments(const struct batch<T> &b, int c,
                                                    double *scratch)
{
    double sum = 0, squares = 0, count = 0;
    NOT_UNROLLED for (int64_t i = (int64_t)threadIdx.x; i < b.count; i += BLOCK)
    {
        if (!counts(b, i / b.area)) continue;
        sum += to_float(b.x[place(b, c, i)]);
        count++;
    }
    count = group_sum<BLOCK>(count, scratch);
    double size = count > 0 ? count : 1, mean = group_sum<BLOCK>(sum, scratch) / size;
    NOT_UNROLLED for (int64_t i = (int64_t)threadIdx.x; i < b.count; i += BLOCK)
    {
        if (!counts(b, i / b.area)) continue;
        double distance = to_float(b.x[place(b, c, i)]) - mean;
        squares += distance * distance;
    }
    squares = group_sum<BLOCK>(squares, scratch);
    struct batch_numbers found = {count, mean, squares / size};
    return found;
}

/* What this rank tells of a channel. */
template <typename T>
__device__ static void put_totals(const struct batch<T> &b, float *totals, bool add, int c,
                                  const struct batch_numbers &found)
{
    if (c == 0) put(&totals[0], (float)(found.count / b.area), add);
    put(&totals[1 + c], (float)found.first, add);
    put(&totals[1 + b.channels + c], (float)found.second, add);
}

template <typename T>
__device__ static void finish_channel(const struct batch<T> &b, const struct batch_outputs<T> &out,
                                      int c, double mean, double rstd, double squares, double count)
{
    if (out.first != nullptr) put(&out.first[c], (float)mean, out.add[1]);
    if (out.second != nullptr) put(&out.second[c], (float)rstd, out.add[2]);
    if (count == 0) return;
    if (out.running_mean != nullptr)
        out.running_mean[c] = batch_moved(b.momentum, out.running_mean[c], mean);
    if (out.running_var != nullptr)
        out.running_var[c] =
            batch_moved(b.momentum, out.running_var[c], batch_unbiased(squares, (int64_t)count));
    if (c == 0 && out.batches != nullptr && ++out.batches[0] == 0) out.batches[1]++;
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    batch_norm_statistics_kernel(const struct batch<T> b, const struct batch_outputs<T> out,
                                 float *statistics)
{
    SHARED(double, scratch, BLOCK / WARP);
    int c = (int)blockIdx.x;
    struct batch_numbers found = {};
    if (b.ranks.parts == nullptr) {
        found = find_moments(b, c, scratch);
    } else {
        found.count = batch_total(&b.ranks, 0) * b.area;
        batch_merge(&b.ranks, c, &found.first, &found.second);
    }
    double count = found.count, mean = found.first;
    double rstd = 1 / sqrt(found.second + b.eps);
    if (threadIdx.x != 0) return;
    statistics[c] = (float)mean;
    statistics[b.channels + c] = (float)rstd;
    finish_channel(b, out, c, mean, rstd, found.second * count, count);
}

/* With `running`, the scale is still a variance. */
template <typename T>
__global__ void __launch_bounds__(BLOCK)
    batch_norm_apply_kernel(const struct batch<T> b, const struct batch_outputs<T> out,
                            bool running)
{
    int c = (int)blockIdx.x;
    float mean = b.mean[c];
    float rstd = running ? (float)(1 / sqrt((double)b.scale[c] + b.eps)) : b.scale[c];
    float scale = rstd * (b.weight != nullptr ? b.weight[c] : 1);
    float shift = b.bias != nullptr ? b.bias[c] : 0;
    NOT_UNROLLED for (int64_t i = (int64_t)threadIdx.x; i < b.count; i += BLOCK)
    {
        int64_t at = place(b, c, i);
        put(&out.y[at], (to_float(b.x[at]) - mean) * scale + shift, out.add[0]);
    }
}

/* Of this rank's rows; the whole block calls it. */
template <typename T>
__device__ static struct batch_numbers find_slopes(const struct batch<T> &b, int c, double *scratch)
{
    float mean = b.mean[c], rstd = b.scale[c];
    double sum = 0, product = 0, count = 0;
    NOT_UNROLLED for (int64_t i = (int64_t)threadIdx.x; i < b.count; i += BLOCK)
    {
        int64_t at = place(b, c, i);
        if (!counts(b, i / b.area)) continue;
        sum += to_float(b.dy[at]);
        product += (double)to_float(b.dy[at]) * ((to_float(b.x[at]) - mean) * rstd);
        count++;
    }
    struct batch_numbers found = {};
    found.first = group_sum<BLOCK>(sum, scratch);
    found.second = group_sum<BLOCK>(product, scratch);
    found.count = group_sum<BLOCK>(count, scratch);
    return found;
}

/* What this rank tells: of the gradient, or of x. */
template <typename T, bool SLOPES>
__global__ void __launch_bounds__(BLOCK)
    batch_totals_kernel(const struct batch<T> b, float *totals, bool add)
{
    SHARED(double, scratch, BLOCK / WARP);
    int c = (int)blockIdx.x;
    struct batch_numbers found = SLOPES ? find_slopes(b, c, scratch) : find_moments(b, c, scratch);
    if (threadIdx.x == 0) put_totals(b, totals, add, c, found);
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    batch_norm_backward_kernel(const struct batch<T> b, const struct batch_outputs<T> out)
{
    SHARED(double, scratch, BLOCK / WARP);
    int c = (int)blockIdx.x;
    float mean = b.mean[c], rstd = b.scale[c];
    struct batch_numbers own = find_slopes(b, c, scratch), all = own;
    if (b.ranks.parts != nullptr) {
        all.count = batch_total(&b.ranks, 0) * b.area;
        all.first = batch_total(&b.ranks, 1 + c);
        all.second = batch_total(&b.ranks, 1 + b.channels + c);
    }
    float weight = b.weight != nullptr ? b.weight[c] : 1;
    float less = (float)(all.first / all.count), bend = (float)(all.second / all.count);
    NOT_UNROLLED for (int64_t i = (int64_t)threadIdx.x; i < b.count && out.y != nullptr; i += BLOCK)
    {
        int64_t at = place(b, c, i);
        float normed = (to_float(b.x[at]) - mean) * rstd;
        float slope = rstd * weight * (to_float(b.dy[at]) - less - normed * bend);
        put(&out.y[at], counts(b, i / b.area) ? slope : 0, out.add[0]);
    }
    if (threadIdx.x == 0 && out.first != nullptr) put(&out.first[c], (float)own.second, out.add[1]);
    if (threadIdx.x == 0 && out.second != nullptr)
        put(&out.second[c], (float)own.first, out.add[2]);
}

template <typename T>
static struct batch_outputs<T> outputs_of(const struct op_desc *desc,
                                          const struct kernel_call *call) {
    struct batch_outputs<T> out = {
    };
    if (desc->output_present[0]) out.y = output_of<T>(call, 0);
    if (desc->output_present[1]) out.first = output_of<float>(call, 1);
    if (desc->output_present[2]) out.second = output_of<float>(call, 2);
    if (desc->output_present[3]) out.running_mean = output_of<float>(call, 3);
    if (desc->output_present[4]) out.running_var = output_of<float>(call, 4);
    if (desc->output_present[5]) out.batches = output_of<uint32_t>(call, 5);
    for (int i = 0; i < 3; i++) out.add[i] = desc->accumulate[i];
    return out;
}

/* Where an op has its operands, -1: not at all. */
struct batch_places {
    int x, dy, weight, bias, mean, target, parts;
};

static struct batch_places places_of(enum op_kind kind)
{
    static const struct batch_places forward = {
        0, -1, 1, 2, -1, 3, 4
    }, running = {
        0, -1, 1, 2, 3, -1, -1
    }, backward = {
        1, 0, 2, -1, 3, 5, 6
    }, moments = {
        0, -1, -1, -1, -1, 1, -1
    }, sums = {
        1, 0, -1, -1, 2, 4, -1
    };
    if (kind == OP_BATCH_NORM_BACKWARD) return backward;
    if (kind == OP_BATCH_NORM_RUNNING) return running;
    if (kind == OP_BATCH_MOMENTS) return moments;
    return kind == OP_BATCH_NORM_SUMS ? sums : forward;
}

static const float *optional_float(const struct op_desc *desc, const struct kernel_call *call, int input)
{
    return input >= 0 && desc->input_present[input] ? input_of<float>(call, input) : nullptr;
}

template <typename T>
static int run_batch_norm(const struct op_desc *desc, const struct kernel_call *call,
                          const struct cuda_launch *launch)
{
    const struct batch_places at = places_of(desc->kind);
    const struct tensor_type *x = &desc->inputs[at.x];
    struct batch<T> b = {
    };
    b.channels = (int32_t)x->dims[1];
    b.area = (int32_t)(count_of(x) / (x->dims[0] * x->dims[1]));
    b.count = x->dims[0] * b.area;
    b.eps = desc->attrs.batch_norm.eps, b.momentum = desc->attrs.batch_norm.momentum;
    b.x = input_of<T>(call, at.x);
    if (at.dy >= 0) b.dy = input_of<T>(call, at.dy);
    b.weight = optional_float(desc, call, at.weight);
    b.bias = optional_float(desc, call, at.bias);
    if (at.mean >= 0) b.mean = input_of<float>(call, at.mean);
    if (at.mean >= 0) b.scale = input_of<float>(call, at.mean + 1);
    b.target = (const int32_t *)optional_float(desc, call, at.target);
    if (at.parts >= 0) b.ranks = batch_totals_of(desc, call, at.parts, b.channels);
    dim3 grid((unsigned)b.channels);
    float *totals = output_of<float>(call, 0);
    if (desc->kind == OP_BATCH_MOMENTS)
        return start(launch, batch_totals_kernel<T, false>, grid, BLOCK, b, totals,
                     desc->accumulate[0]);
    if (desc->kind == OP_BATCH_NORM_SUMS)
        return start(launch, batch_totals_kernel<T, true>, grid, BLOCK, b, totals,
                     desc->accumulate[0]);
    struct batch_outputs<T> out = outputs_of<T>(desc, call);
    if (desc->kind == OP_BATCH_NORM_BACKWARD)
        return start(launch, batch_norm_backward_kernel<T>, grid, BLOCK, b, out);
    bool forward = desc->kind == OP_BATCH_NORM;
    if (forward) {
        float *statistics = (float *)call->workspace;
        TRY_LAUNCH(start(launch, batch_norm_statistics_kernel<T>, grid, BLOCK, b, out, statistics));
        b.mean = statistics, b.scale = statistics + b.channels;
    }
    return start(launch, batch_norm_apply_kernel<T>, grid, BLOCK, b, out, !forward);
}

/* Of a channel's mean and rstd, which need not be outputs. */
uint64_t cuda_batch_norm_bytes(const struct op_desc *desc)
{
    return 2 * (uint64_t)desc->inputs[0].dims[1] * sizeof(float);
}

RUN_BY_TYPE(cuda_run_batch_norm, run_batch_norm, 0)

} // namespace fsdpd
