/* The loss of pairs of sequences: a block to a place, and one thread for the few numbers of a row
 * or a pair, which are added in a fixed order. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/platform.h"

namespace fsdpd
{

struct sequences {
    const float *x, *lse;
    const int32_t *target;
    const int32_t *starts; /* nullptr: rows are one document each */
    int64_t rows, time, classes;
};

/* Where the sum is that has the token at `at`: a row's, or its document's. */
__device__ inline int64_t place_of(const struct sequences &s, int64_t at)
{
    int64_t row = at / s.time;
    return s.starts != nullptr ? row * s.time + s.starts[at] : row;
}

__global__ void __launch_bounds__(BLOCK)
    sequence_lse_kernel(const struct sequences s, float *lse, float *by_place, bool add)
{
    SHARED(float, scratch, BLOCK / WARP);
    for (int64_t at = blockIdx.x; at < s.rows * s.time; at += gridDim.x) {
        const float *x = s.x + at * s.classes;
        float most = -INFINITY, sum = 0;
        for (int64_t c = threadIdx.x; c < s.classes; c += BLOCK) most = larger(most, x[c]);
        most = group_max<BLOCK>(most, scratch);
        for (int64_t c = threadIdx.x; c < s.classes; c += BLOCK) sum += expf(x[c] - most);
        sum = group_sum<BLOCK>(sum, scratch);
        if (threadIdx.x != 0) continue;
        float all = most + logf(sum);
        by_place[at] = s.target[at] >= 0 ? x[s.target[at]] - all : 0;
        put(&lse[at], all, add);
    }
}

__global__ void __launch_bounds__(BLOCK)
    sequence_sums_kernel(const struct sequences s, const float *by_place, float *y, float *counts,
                         bool add_y, bool add_counts)
{
    for (int64_t row = (int64_t)blockIdx.x * BLOCK + threadIdx.x; row < s.rows;
         row += (int64_t)gridDim.x * BLOCK) {
        double sum = 0;
        int64_t count = 0, end = (row + 1) * s.time;
        for (int64_t at = row * s.time; at < end; at++) {
            int64_t made = place_of(s, at);
            sum += by_place[at];
            count += s.target[at] >= 0;
            if (s.starts != nullptr && made != at) {
                put(&y[at], 0, add_y);
                put(&counts[at], 0, add_counts);
            }
            if (at + 1 < end && place_of(s, at + 1) == made) continue;
            put(&y[made], (float)sum, add_y);
            put(&counts[made], (float)count, add_counts);
            sum = 0;
            count = 0;
        }
    }
}

static struct sequences sequences_of(const struct op_desc *desc, const struct kernel_call *call,
                                     int x, int target, int starts)
{
    struct sequences s = {};
    s.x = input_of<float>(call, x);
    s.target = input_of<int32_t>(call, target);
    s.starts = desc->input_present[starts] ? input_of<int32_t>(call, starts) : nullptr;
    s.rows = desc->inputs[x].dims[0];
    s.time = desc->inputs[x].dims[1];
    s.classes = desc->inputs[x].dims[2];
    return s;
}

int cuda_run_sequence_log_probs(const struct cuda_op *op, const struct kernel_call *call,
                                const struct cuda_launch *launch)
{
    const struct sequences s = sequences_of(&op->desc, call, 0, 1, 2);
    float *by_place = (float *)call->workspace;
    TRY_LAUNCH(start(launch, sequence_lse_kernel, grid_of_rows<BLOCK>(launch, s.rows * s.time),
                     BLOCK, s, output_of<float>(call, 2), by_place, op->desc.accumulate[2]));
    return start(launch, sequence_sums_kernel, grid_of(launch, s.rows), BLOCK, s,
                 (const float *)by_place, output_of<float>(call, 0), output_of<float>(call, 1),
                 op->desc.accumulate[0], op->desc.accumulate[1]);
}

__global__ void __launch_bounds__(BLOCK)
    sequence_backward_kernel(const struct sequences s, const float *dy, float *dx, bool add)
{
    for (int64_t at = blockIdx.x; at < s.rows * s.time; at += gridDim.x) {
        int64_t wanted = s.target[at];
        float slope = wanted >= 0 ? dy[place_of(s, at)] : 0, lse = s.lse[at];
        const float *x = s.x + at * s.classes;
        float *to = dx + at * s.classes;
        for (int64_t i = threadIdx.x; i < s.classes; i += BLOCK) {
            float share = (i == wanted ? 1.0f : 0.0f) - expf(x[i] - lse);
            put(&to[i], wanted >= 0 ? share * slope : 0, add);
        }
    }
}

int cuda_run_sequence_log_probs_backward(const struct cuda_op *op, const struct kernel_call *call,
                                         const struct cuda_launch *launch)
{
    struct sequences s = sequences_of(&op->desc, call, 1, 2, 4);
    s.lse = input_of<float>(call, 3);
    return start(launch, sequence_backward_kernel, grid_of(launch, s.rows * s.time * BLOCK),
                 BLOCK, s, input_of<float>(call, 0), output_of<float>(call, 0),
                 op->desc.accumulate[0]);
}

struct preferences {
    const float *own, *reference, *counts;
    const int32_t *starts; /* nullptr: neighbours are pairs */
    int64_t time, all;     /* of a row, if it has documents; of x */
    float *loss, *sums, *dx;
    bool add_loss, add_sums, add_dx;
    enum op_preference kind;
    double beta, smoothing, scale;
};

__device__ inline double log_sigmoid(double x)
{
    return x < 0 ? x - log1p(exp(x)) : -log1p(exp(-x));
}

__device__ inline double preference_of(const struct preferences &p, double difference,
                                       double *slope)
{
    double margin = p.beta * difference, far = difference - 1 / (2 * p.beta);
    if (p.kind == PREFERENCE_IPO) {
        *slope = 2 * far;
        return far * far;
    }
    if (p.kind == PREFERENCE_HINGE) {
        *slope = margin >= 1 ? 0 : -p.beta;
        return margin >= 1 ? 0 : 1 - margin;
    }
    double right = log_sigmoid(margin), wrong = log_sigmoid(-margin), rest = p.smoothing;
    *slope = p.beta * (rest * exp(right) - (1 - rest) * exp(wrong));
    return -(1 - rest) * right - rest * wrong;
}

/* The first document that begins at `at` or behind it in the row, or the row's end. */
__device__ inline int64_t next_document(const struct preferences &p, int64_t at)
{
    if (p.starts == nullptr) return at;
    int64_t end = (at - 1) / p.time * p.time + p.time;
    while (at < end && p.starts[at] != at % p.time) at++;
    return at;
}

/* The first place from `at` on that counts, or `end`. */
__device__ inline int64_t next_counted(const struct preferences &p, int64_t at, int64_t end)
{
    while (at < end && !(p.counts[at] > 0)) at++;
    return at;
}

/* One thread: a batch has few pairs. */
__global__ void preference_kernel(const struct preferences p)
{
    double loss = 0, sums[PREFERENCE_SUMS] = {0};
    if (blockIdx.x != 0 || threadIdx.x != 0) return;
    for (int64_t i = 0; i < p.all; i++) put(&p.dx[i], 0, p.add_dx);
    for (int64_t first = 0, next; first < p.all; first = next) {
        bool means = p.kind == PREFERENCE_IPO;
        int64_t second = next_document(p, first + 1);
        next = second;
        if (p.starts != nullptr && second % p.time == 0) continue; /* the last one of its row */
        next = next_document(p, second + 1);
        int64_t i = next_counted(p, first, second), j = next_counted(p, second, next);
        if (i == second || j == next) continue;
        double part = means ? 1 / (double)p.counts[i] : 1, slope = 0;
        double other_part = means ? 1 / (double)p.counts[j] : 1;
        double ratio = p.own[i], other = p.own[j];
        if (p.reference != nullptr) {
            ratio -= p.reference[i];
            other -= p.reference[j];
        }
        loss += preference_of(p, ratio * part - other * other_part, &slope);
        put(&p.dx[i], (float)(slope * part * p.scale), p.add_dx);
        put(&p.dx[j], (float)(-slope * other_part * p.scale), p.add_dx);
        sums[PREFERENCE_LOGPS_CHOSEN] += p.own[i];
        sums[PREFERENCE_LOGPS_REJECTED] += p.own[j];
        sums[PREFERENCE_REWARDS_CHOSEN] += p.beta * ratio;
        sums[PREFERENCE_REWARDS_REJECTED] += p.beta * other;
        sums[PREFERENCE_ACCURACIES] += ratio > other ? 1 : 0;
    }
    put(p.loss, (float)(loss * p.scale), p.add_loss);
    for (int k = 0; k < PREFERENCE_SUMS; k++) put(&p.sums[k], (float)sums[k], p.add_sums);
}

int cuda_run_preference_loss(const struct cuda_op *op, const struct kernel_call *call,
                             const struct cuda_launch *launch)
{
    const union op_attrs *attrs = &op->desc.attrs;
    struct preferences p = {};
    p.own = input_of<float>(call, 0);
    p.reference = op->desc.input_present[1] ? input_of<float>(call, 1) : nullptr;
    p.counts = input_of<float>(call, 2);
    p.loss = output_of<float>(call, 0);
    p.sums = output_of<float>(call, 1);
    p.dx = output_of<float>(call, 2);
    p.add_loss = op->desc.accumulate[0];
    p.add_sums = op->desc.accumulate[1];
    p.add_dx = op->desc.accumulate[2];
    p.all = count_of(&op->desc.inputs[0]);
    p.starts = op->desc.input_present[3] ? input_of<int32_t>(call, 3) : nullptr;
    p.time = p.starts != nullptr ? op->desc.inputs[0].dims[1] : 1;
    p.kind = attrs->preference.kind;
    p.beta = attrs->preference.beta;
    p.smoothing = attrs->preference.label_smoothing;
    p.scale = op_loss_scale(&op->desc, p.starts != nullptr ? p.all / p.time : p.all / 2);
    return start(launch, preference_kernel, dim3(1), WARP, p);
}

} // namespace fsdpd
