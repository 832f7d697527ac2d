/* Reference LSTM and GRU: one sample after the other, through time; see RECURRENT in ops/op.h. */
#include "kernels/recurrent.h"

#include <math.h>
#include <string.h>

#include "kernels/reference/reference.h"

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* One gate's part of the row before, NULL at the start. */
static double gate(const struct recurrent_shape *s, const float *weight, const float *bias,
                   const float *before, int64_t at)
{
    double sum = bias != NULL ? (double)bias[at] : 0;
    for (int64_t k = 0; before != NULL && k < s->width; k++)
        sum += (double)weight[at * s->width + k] * before[k];
    return sum;
}

uint64_t reference_recurrent_workspace(const struct op_desc *desc)
{
    return 2 * (uint64_t)recurrent_shape_of(desc).width * sizeof(double);
}

status_t reference_recurrent(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct recurrent_shape s = recurrent_shape_of(&kernel->desc);
    const float *weight = call->inputs[1];
    const float *bias = kernel->desc.input_present[2] ? call->inputs[2] : NULL;
    float *y = call->outputs[0], *state = kernel->desc.output_present[1] ? call->outputs[1] : NULL;
    double *cell = call->workspace;
    for (int64_t n = 0; n < s.batch; n++) {
        memset(cell, 0, (size_t)s.width * sizeof *cell);
        for (int64_t step = 0; step < s.time; step++) {
            int64_t row = recurrent_row(&s, n, step);
            const float *x = (const float *)call->inputs[0] + row * s.columns;
            const float *before = step > 0 ? y + recurrent_row(&s, n, step - 1) * s.width : NULL;
            for (int64_t j = 0; j < s.width; j++) {
                double a[4], kept[5];
                for (int64_t g = 0; g * s.width < s.columns; g++)
                    a[g] = gate(&s, weight, bias, before, g * s.width + j);
                if (s.gru) {
                    kept[3] = a[2];
                    for (int g = 0; g < 2; g++) kept[g] = sigmoid(a[g] + x[g * s.width + j]);
                    kept[2] = tanh(x[2 * s.width + j] + kept[0] * a[2]);
                    double old = before != NULL ? before[j] : 0;
                    y[row * s.width + j] = (float)((1 - kept[1]) * kept[2] + kept[1] * old);
                } else {
                    for (int g = 0; g < 4; g++) {
                        double sum = a[g] + x[g * s.width + j];
                        kept[g] = g == 2 ? tanh(sum) : sigmoid(sum);
                    }
                    cell[j] = kept[4] = kept[1] * cell[j] + kept[0] * kept[2];
                    y[row * s.width + j] = (float)(kept[3] * tanh(cell[j]));
                }
                for (int64_t k = 0; state != NULL && k * s.width < s.kept; k++)
                    state[row * s.kept + k * s.width + j] = (float)kept[k];
            }
        }
    }
    return NULL;
}

/* Of one column: the gradients of its gates before their functions, and what of `down` and `cell`,
 * the gradients of the result and the cell, goes to the step before. */
static void gates_backward(const struct recurrent_shape *s, const float *kept, double old,
                           double *down, double *cell, double dx[4])
{
    double a = kept[0], b = kept[s->width], c = kept[2 * s->width], d = kept[3 * s->width];
    if (s->gru) {
        dx[2] = *down * (1 - b) * (1 - c * c);
        dx[1] = *down * (old - c) * b * (1 - b);
        dx[0] = dx[2] * d * a * (1 - a);
        *down *= b;
        return;
    }
    double t = tanh(kept[4 * s->width]);
    *cell += *down * d * (1 - t * t);
    dx[0] = *cell * c * a * (1 - a);
    dx[1] = *cell * old * b * (1 - b);
    dx[2] = *cell * a * (1 - c * c);
    dx[3] = *down * t * d * (1 - d);
    *cell *= b;
    *down = 0;
}

status_t reference_recurrent_backward(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct recurrent_shape s = recurrent_shape_of(&kernel->desc);
    const bool *present = kernel->desc.output_present;
    const float *dy = call->inputs[0], *y = call->inputs[1], *weight = call->inputs[2],
                *state = call->inputs[3];
    float *hidden = present[1] ? call->outputs[1] : NULL;
    float *previous = present[2] ? call->outputs[2] : NULL;
    double *down = call->workspace, *cell = down + s.width;
    for (int64_t n = 0; n < s.batch; n++) {
        memset(down, 0, 2 * (size_t)s.width * sizeof *down);
        for (int64_t step = s.time - 1; step >= 0; step--) {
            int64_t row = recurrent_row(&s, n, step);
            int64_t last = step > 0 ? recurrent_row(&s, n, step - 1) : -1;
            float *dx = (float *)call->outputs[0] + row * s.columns;
            const float *kept = state + row * s.kept;
            for (int64_t j = 0; j < s.width; j++) {
                double gates[4], old = last >= 0 ? y[last * s.width + j] : 0;
                if (previous != NULL) previous[row * s.width + j] = (float)old;
                if (!s.gru) old = last >= 0 ? state[last * s.kept + 4 * s.width + j] : 0;
                down[j] += dy[row * s.width + j];
                gates_backward(&s, kept + j, old, &down[j], &cell[j], gates);
                for (int64_t g = 0; g * s.width < s.columns; g++) {
                    dx[g * s.width + j] = (float)gates[g];
                    if (hidden != NULL)
                        hidden[row * s.columns + g * s.width + j] =
                            (float)(gates[g] * (s.gru && g == 2 ? kept[j] : 1));
                }
            }
            for (int64_t at = 0; at < s.columns; at++) {
                bool scaled = s.gru && at >= 2 * s.width;
                double part = (double)dx[at] * (scaled ? kept[at - 2 * s.width] : 1);
                for (int64_t k = 0; k < s.width; k++) down[k] += part * weight[at * s.width + k];
            }
        }
    }
    return NULL;
}
