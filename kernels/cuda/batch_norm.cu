/* Norms over a batch: a block per channel, which also moves the channel's running statistics. Sums
 * are in double. */
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
    const float *parts; /* of all ranks, see kernels/batch_norm.h; nullptr: the batch is this rank's */
    int32_t ranks;
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

/* As batch_moved of kernels/batch_norm.h. */
__device__ static void move(float *running, double momentum, double value)
{
    *running = (float)((1 - momentum) * *running + momentum * value);
}

struct moments {
    double count, mean, variance;
};

/* As batch_total of kernels/batch_norm.h. */
template <typename T> __device__ static double batch_total(const struct batch<T> &b, int i)
{
    double sum = 0;
    for (int r = 0; r < b.ranks; r++) sum += b.parts[(int64_t)r * (1 + 2 * b.channels) + i];
    return sum;
}

/* As batch_merge of kernels/batch_norm.h. */
template <typename T> __device__ static struct moments merge(const struct batch<T> &b, int c)
{
    double rows = batch_total(b, 0), sum = 0, squares = 0;
    struct moments all = {
        rows * b.area, 0, 0
    };
    const float *part = b.parts;
    for (int r = 0; r < b.ranks; r++, part += 1 + 2 * b.channels)
        sum += (double)part[0] * part[1 + c];
    if (rows > 0) all.mean = sum / rows;
    part = b.parts;
    for (int r = 0; r < b.ranks; r++, part += 1 + 2 * b.channels) {
        double distance = part[1 + c] - all.mean;
        squares += part[0] * (part[1 + b.channels + c] + distance * distance);
    }
    if (rows > 0) all.variance = squares / rows;
    return all;
}

/* Of this rank's rows; the whole block calls it. */
template <typename T>
__device__ static struct moments find_moments(const struct batch<T> &b, int c, double *scratch)
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
    struct moments found = {
        count, mean, squares / size
    };
    return found;
}

/* What this rank tells of a channel. */
template <typename T>
__device__ static void put_totals(const struct batch<T> &b, float *totals, bool add, int c,
                                  double count, double first, double second)
{
    if (c == 0) put(&totals[0], (float)(count / b.area), add);
    put(&totals[1 + c], (float)first, add);
    put(&totals[1 + b.channels + c], (float)second, add);
}

template <typename T>
__device__ static void finish_channel(const struct batch<T> &b, const struct batch_outputs<T> &out,
                                      int c, double mean, double rstd, double squares, double count)
{
    if (out.first != nullptr) put(&out.first[c], (float)mean, out.add[1]);
    if (out.second != nullptr) put(&out.second[c], (float)rstd, out.add[2]);
    if (count == 0) return;
    if (out.running_mean != nullptr) move(&out.running_mean[c], b.momentum, mean);
    if (out.running_var != nullptr)
        move(&out.running_var[c], b.momentum, squares / (count > 1 ? count - 1 : 1));
    if (c == 0 && out.batches != nullptr && ++out.batches[0] == 0) out.batches[1]++;
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    batch_norm_statistics_kernel(const struct batch<T> b, const struct batch_outputs<T> out,
                                 float *statistics)
{
    SHARED(double, scratch, BLOCK / WARP);
    int c = (int)blockIdx.x;
    struct moments found = b.parts != nullptr ? merge(b, c) : find_moments(b, c, scratch);
    double count = found.count, mean = found.mean;
    double rstd = 1 / sqrt(found.variance + b.eps);
    if (threadIdx.x != 0) return;
    statistics[c] = (float)mean;
    statistics[b.channels + c] = (float)rstd;
    finish_channel(b, out, c, mean, rstd, found.variance * count, count);
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    batch_moments_kernel(const struct batch<T> b, float *totals, bool add)
{
    SHARED(double, scratch, BLOCK / WARP);
    int c = (int)blockIdx.x;
    struct moments found = find_moments(b, c, scratch);
    if (threadIdx.x == 0)
        put_totals(b, totals, add, c, found.count, found.mean, found.variance);
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

struct batch_slopes {
    double count, sum, product; /* of dy, and of dy and the normalised x */
};

/* Of this rank's rows; the whole block calls it. */
template <typename T>
__device__ static struct batch_slopes find_slopes(const struct batch<T> &b, int c, double *scratch)
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
    struct batch_slopes found = {
    };
    found.sum = group_sum<BLOCK>(sum, scratch);
    found.product = group_sum<BLOCK>(product, scratch);
    found.count = group_sum<BLOCK>(count, scratch);
    return found;
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    batch_norm_sums_kernel(const struct batch<T> b, float *totals, bool add)
{
    SHARED(double, scratch, BLOCK / WARP);
    int c = (int)blockIdx.x;
    struct batch_slopes found = find_slopes(b, c, scratch);
    if (threadIdx.x == 0)
        put_totals(b, totals, add, c, found.count, found.sum, found.product);
}

template <typename T>
__global__ void __launch_bounds__(BLOCK)
    batch_norm_backward_kernel(const struct batch<T> b, const struct batch_outputs<T> out)
{
    SHARED(double, scratch, BLOCK / WARP);
    int c = (int)blockIdx.x;
    float mean = b.mean[c], rstd = b.scale[c];
    struct batch_slopes own = find_slopes(b, c, scratch), all = own;
    if (b.parts != nullptr) {
        all.count = batch_total(b, 0) * b.area;
        all.sum = batch_total(b, 1 + c);
        all.product = batch_total(b, 1 + b.channels + c);
    }
    float weight = b.weight != nullptr ? b.weight[c] : 1;
    float less = (float)(all.sum / all.count), bend = (float)(all.product / all.count);
    NOT_UNROLLED for (int64_t i = (int64_t)threadIdx.x; i < b.count && out.y != nullptr; i += BLOCK)
    {
        int64_t at = place(b, c, i);
        float normed = (to_float(b.x[at]) - mean) * rstd;
        float slope = rstd * weight * (to_float(b.dy[at]) - less - normed * bend);
        put(&out.y[at], counts(b, i / b.area) ? slope : 0, out.add[0]);
    }
    if (threadIdx.x == 0 && out.first != nullptr) put(&out.first[c], (float)own.product, out.add[1]);
    if (threadIdx.x == 0 && out.second != nullptr) put(&out.second[c], (float)own.sum, out.add[2]);
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
    b.parts = optional_float(desc, call, at.parts);
    if (b.parts != nullptr) b.ranks = (int32_t)desc->inputs[at.parts].dims[0];
    dim3 grid((unsigned)b.channels);
    float *totals = output_of<float>(call, 0);
    if (desc->kind == OP_BATCH_MOMENTS)
        return start(launch, batch_moments_kernel<T>, grid, BLOCK, b, totals, desc->accumulate[0]);
    if (desc->kind == OP_BATCH_NORM_SUMS)
        return start(launch, batch_norm_sums_kernel<T>, grid, BLOCK, b, totals, desc->accumulate[0]);
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

int cuda_run_batch_norm(const struct cuda_op *op, const struct kernel_call *call,
                        const struct cuda_launch *launch)
{
    int x = places_of(op->desc.kind).x;
    return op->desc.inputs[x].dtype == DTYPE_BF16 ? run_batch_norm<bf16>(&op->desc, call, launch)
                                                  : run_batch_norm<float>(&op->desc, call, launch);
}

} // namespace fsdpd
