/* LSTM and GRU: a block per sample goes through time with it. Sums are in the order of the
 * columns. */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/platform.h"
#include "kernels/recurrent.h"

namespace fsdpd
{

__device__ static float gate_of(float x)
{
    return 1 / (1 + expf(-x));
}

__device__ static int64_t row_of(const struct recurrent_shape &s, int64_t n, int64_t step)
{
    return n * s.time + (s.reverse ? s.time - 1 - step : step);
}

/* Of a block: `gates`, columns of them, and `cell`, of the width. */
__global__ void __launch_bounds__(BLOCK)
    recurrent_kernel(const struct recurrent_shape s, const float *x, const float *weight,
                     const float *bias, float *y, float *state, float *work)
{
    int64_t n = blockIdx.x, w = s.width;
    float *gates = work + n * (s.columns + w), *cell = gates + s.columns;
    for (int64_t step = 0; step < s.time; step++) {
        int64_t row = row_of(s, n, step);
        const float *before = step > 0 ? y + row_of(s, n, step - 1) * w : nullptr;
        for (int64_t at = threadIdx.x; at < s.columns; at += BLOCK) {
            float sum = bias != nullptr ? bias[at] : 0;
            for (int64_t k = 0; before != nullptr && k < w; k++)
                sum += weight[at * w + k] * before[k];
            gates[at] = sum;
        }
        __syncthreads();
        for (int64_t j = threadIdx.x; j < w; j += BLOCK) {
            const float *own = x + row * s.columns + j;
            float kept[5], result;
            kept[0] = gate_of(gates[j] + own[0]);
            kept[1] = gate_of(gates[w + j] + own[w]);
            if (s.gru) {
                kept[3] = gates[2 * w + j];
                kept[2] = tanhf(own[2 * w] + kept[0] * kept[3]);
                result = kept[2] + kept[1] * ((before != nullptr ? before[j] : 0) - kept[2]);
            } else {
                kept[2] = tanhf(gates[2 * w + j] + own[2 * w]);
                kept[3] = gate_of(gates[3 * w + j] + own[3 * w]);
                kept[4] = kept[1] * (step > 0 ? cell[j] : 0) + kept[0] * kept[2];
                cell[j] = kept[4];
                result = kept[3] * tanhf(kept[4]);
            }
            y[row * w + j] = result;
            for (int k = 0; state != nullptr && k < (s.gru ? 4 : 5); k++)
                state[row * s.kept + k * w + j] = kept[k];
        }
        __syncthreads();
    }
}

struct recurrent_gradients {
    const float *dy, *y, *weight, *state;
    float *dx, *hidden, *previous; /* the last two may be NULL */
};

/* Of a block: `gates` as above, the gradients of the hidden part; `down` and `cell`, those of the
 * step's result and of its cell. */
__global__ void __launch_bounds__(BLOCK)
    recurrent_backward_kernel(const struct recurrent_shape s, const struct recurrent_gradients g,
                              float *work)
{
    int64_t n = blockIdx.x, w = s.width;
    float *gates = work + n * (s.columns + 2 * w), *down = gates + s.columns, *cell = down + w;
    for (int64_t step = s.time - 1; step >= 0; step--) {
        int64_t row = row_of(s, n, step), last = step > 0 ? row_of(s, n, step - 1) : -1;
        bool end = step == s.time - 1;
        for (int64_t j = threadIdx.x; j < w; j += BLOCK) {
            const float *kept = g.state + row * s.kept + j;
            float own = g.dy[row * w + j] + (end ? 0 : down[j]),
                  old = last < 0 ? 0 : g.y[last * w + j];
            float a = kept[0], b = kept[w], c = kept[2 * w], d = kept[3 * w], made[4] = {};
            if (g.previous != nullptr) g.previous[row * w + j] = old;
            if (s.gru) {
                made[2] = own * (1 - b) * (1 - c * c);
                made[1] = own * (old - c) * b * (1 - b);
                made[0] = made[2] * d * a * (1 - a);
                down[j] = own * b;
            } else {
                float t = tanhf(kept[4 * w]),
                      before = last < 0 ? 0 : g.state[last * s.kept + 4 * w + j];
                float slope = (end ? 0 : cell[j]) + own * d * (1 - t * t);
                made[0] = slope * c * a * (1 - a);
                made[1] = slope * before * b * (1 - b);
                made[2] = slope * a * (1 - c * c);
                made[3] = own * t * d * (1 - d);
                cell[j] = slope * b;
                down[j] = 0;
            }
            for (int k = 0; k < (s.gru ? 3 : 4); k++) {
                float hidden = s.gru && k == 2 ? made[k] * a : made[k];
                g.dx[row * s.columns + k * w + j] = made[k];
                if (g.hidden != nullptr) g.hidden[row * s.columns + k * w + j] = hidden;
                gates[k * w + j] = hidden;
            }
        }
        __syncthreads();
        for (int64_t j = threadIdx.x; j < w; j += BLOCK) {
            float sum = down[j];
            for (int64_t at = 0; at < s.columns; at++) sum += gates[at] * g.weight[at * w + j];
            down[j] = sum;
        }
        __syncthreads();
    }
}

uint64_t cuda_recurrent_bytes(const struct op_desc *desc)
{
    const struct recurrent_shape s = recurrent_shape_of(desc);
    return (uint64_t)(s.batch * (s.columns + 2 * s.width)) * sizeof(float);
}

int cuda_run_recurrent(const struct cuda_op *op, const struct kernel_call *call,
                       const struct cuda_launch *launch)
{
    const struct op_desc *desc = &op->desc;
    const struct recurrent_shape s = recurrent_shape_of(desc);
    const float *bias = desc->input_present[2] ? input_of<float>(call, 2) : nullptr;
    float *state = desc->output_present[1] ? output_of<float>(call, 1) : nullptr;
    return start(launch, recurrent_kernel, dim3((unsigned)s.batch), BLOCK, s,
                 input_of<float>(call, 0), input_of<float>(call, 1), bias,
                 output_of<float>(call, 0), state, (float *)call->workspace);
}

int cuda_run_recurrent_backward(const struct cuda_op *op, const struct kernel_call *call,
                                const struct cuda_launch *launch)
{
    const bool *present = op->desc.output_present;
    const struct recurrent_shape s = recurrent_shape_of(&op->desc);
    const struct recurrent_gradients g = {input_of<float>(call, 0),
                                          input_of<float>(call, 1),
                                          input_of<float>(call, 2),
                                          input_of<float>(call, 3),
                                          output_of<float>(call, 0),
                                          present[1] ? output_of<float>(call, 1) : nullptr,
                                          present[2] ? output_of<float>(call, 2) : nullptr};
    return start(launch, recurrent_backward_kernel, dim3((unsigned)s.batch), BLOCK, s, g,
                 (float *)call->workspace);
}

} // namespace fsdpd
