/*
 * LSTM and GRU on f32: each thread has its own samples and goes through time with them, a product
 * with the weight and then the gates in every step. Samples do not depend on each other, so the
 * bits do not depend on the number of threads.
 */
#include "kernels/recurrent.h"

#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

/* `weight` is transposed forward. `gates`, `cell` and `down` have a row per sample; backward,
 * `gates` only of a GRU whose gradients are not an output. */
struct recurrent_job {
    const struct op_desc *desc;
    const struct kernel_call *call;
    const struct cpu_loops *loops;
    struct recurrent_shape s;
    const float *weight;
    float *gates, *cell, *down, *spare;
};

static float *optional(const struct recurrent_job *job, int output, int64_t at)
{
    return job->desc->output_present[output] ? (float *)job->call->outputs[output] + at : NULL;
}

/* The hidden part of a sample's gates is in `gates`. */
static void lstm_row(const struct recurrent_job *job, float *gates, const float *x, float *cell,
                     float *y, float *state)
{
    size_t width = (size_t)job->s.width;
    float *kept = state != NULL ? state : gates;
    job->loops->add(4 * width, kept, gates, x, false);
    job->loops->sigmoid(2 * width, kept, kept, false);
    job->loops->tanh(width, kept + 2 * width, kept + 2 * width, false);
    job->loops->sigmoid(width, kept + 3 * width, kept + 3 * width, false);
    for (size_t j = 0; j < width; j++)
        cell[j] = kept[width + j] * cell[j] + kept[j] * kept[2 * width + j];
    job->loops->tanh(width, y, cell, false);
    for (size_t j = 0; j < width; j++) y[j] *= kept[3 * width + j];
    if (state != NULL) memcpy(state + 4 * width, cell, width * sizeof *cell);
}

static void gru_row(const struct recurrent_job *job, float *gates, const float *x,
                    const float *before, float *y, float *state)
{
    size_t width = (size_t)job->s.width;
    const float *hidden = gates + 2 * width;
    job->loops->add(2 * width, gates, gates, x, false);
    job->loops->sigmoid(2 * width, gates, gates, false);
    for (size_t j = 0; j < width; j++) y[j] = x[2 * width + j] + gates[j] * hidden[j];
    job->loops->tanh(width, y, y, false);
    if (state != NULL) {
        memcpy(state, gates, 2 * width * sizeof *gates);
        memcpy(state + 2 * width, y, width * sizeof *y);
        memcpy(state + 3 * width, hidden, width * sizeof *hidden);
    }
    for (size_t j = 0; j < width; j++)
        y[j] += gates[width + j] * ((before != NULL ? before[j] : 0) - y[j]);
}

static void forward_part(const void *argument, size_t begin, size_t end)
{
    const struct recurrent_job *job = argument;
    const struct recurrent_shape *s = &job->s;
    float *all = job->call->outputs[0];
    const float *bias = job->desc->input_present[2] ? job->call->inputs[2] : NULL;
    size_t columns = (size_t)s->columns, width = (size_t)s->width;
    memset(job->cell + begin * width, 0, (end - begin) * width * sizeof(float));
    for (int64_t step = 0; step < s->time; step++) {
        const struct cpu_product product = {.rows = end - begin,
                                            .columns = columns,
                                            .depth = width,
                                            .a = all + recurrent_row(s, (int64_t)begin,
                                                                     step > 0 ? step - 1 : 0) *
                                                           s->width,
                                            .b = job->weight,
                                            .c = job->gates + begin * columns,
                                            .a_row = (size_t)s->time * width,
                                            .a_depth = 1,
                                            .b_depth = columns,
                                            .c_row = columns};
        if (step > 0) job->loops->product(&product);
        else memset(product.c, 0, product.rows * columns * sizeof(float));
        for (size_t n = begin; n < end; n++) {
            int64_t row = recurrent_row(s, (int64_t)n, step);
            const float *x = (const float *)job->call->inputs[0] + row * s->columns;
            const float *before =
                step > 0 ? all + recurrent_row(s, (int64_t)n, step - 1) * s->width : NULL;
            float *gates = job->gates + n * columns, *state = optional(job, 1, row * s->kept);
            float *y = all + row * s->width;
            if (bias != NULL) job->loops->add(columns, gates, gates, bias, false);
            if (s->gru) gru_row(job, gates, x, before, y, state);
            else lstm_row(job, gates, x, job->cell + n * width, y, state);
        }
    }
}

/* See gates_backward of the reference. */
static void lstm_row_backward(const struct recurrent_job *job, const float *kept, const float *old,
                              float *down, float *cell, float *spare, float *dx)
{
    size_t width = (size_t)job->s.width;
    const float *i = kept, *f = kept + width, *g = kept + 2 * width, *o = kept + 3 * width;
    job->loops->tanh(width, spare, kept + 4 * width, false);
    for (size_t j = 0; j < width; j++) {
        float t = spare[j], dc = cell[j] + down[j] * o[j] * (1 - t * t);
        dx[j] = dc * g[j] * i[j] * (1 - i[j]);
        dx[width + j] = dc * (old != NULL ? old[j] : 0) * f[j] * (1 - f[j]);
        dx[2 * width + j] = dc * i[j] * (1 - g[j] * g[j]);
        dx[3 * width + j] = down[j] * t * o[j] * (1 - o[j]);
        cell[j] = dc * f[j];
        down[j] = 0;
    }
}

static void gru_row_backward(const struct recurrent_job *job, const float *kept, const float *old,
                             float *down, float *dx, float *hidden)
{
    size_t width = (size_t)job->s.width;
    const float *r = kept, *z = kept + width, *n = kept + 2 * width, *h = kept + 3 * width;
    for (size_t j = 0; j < width; j++) {
        float dn = down[j] * (1 - z[j]) * (1 - n[j] * n[j]);
        dx[2 * width + j] = dn;
        hidden[2 * width + j] = dn * r[j];
        dx[width + j] = down[j] * ((old != NULL ? old[j] : 0) - n[j]) * z[j] * (1 - z[j]);
        dx[j] = dn * h[j] * r[j] * (1 - r[j]);
        down[j] *= z[j];
    }
    memcpy(hidden, dx, 2 * width * sizeof *dx);
}

static void backward_row(const struct recurrent_job *job, size_t n, int64_t step, float *hidden)
{
    const struct recurrent_shape *s = &job->s;
    int64_t row = recurrent_row(s, (int64_t)n, step);
    int64_t last = step > 0 ? recurrent_row(s, (int64_t)n, step - 1) : -1;
    size_t width = (size_t)s->width;
    const float *y = job->call->inputs[1], *state = job->call->inputs[3];
    const float *old = last < 0 ? NULL : y + last * s->width, *kept = state + row * s->kept;
    const float *cell = last < 0 ? NULL : state + last * s->kept + 4 * s->width;
    float *previous = optional(job, 2, row * s->width), *down = job->down + n * width;
    float *dx = (float *)job->call->outputs[0] + row * s->columns;
    job->loops->add(width, down, down, (const float *)job->call->inputs[0] + row * s->width, false);
    if (previous != NULL && old != NULL) memcpy(previous, old, width * sizeof *old);
    if (previous != NULL && old == NULL) memset(previous, 0, width * sizeof *previous);
    if (s->gru) {
        gru_row_backward(job, kept, old, down, dx, hidden);
        return;
    }
    lstm_row_backward(job, kept, cell, down, job->cell + n * width, job->spare + n * width, dx);
    float *second = optional(job, 1, row * s->columns);
    if (second != NULL) memcpy(second, dx, 4 * width * sizeof *dx);
}

static void backward_part(const void *argument, size_t begin, size_t end)
{
    const struct recurrent_job *job = argument;
    const struct recurrent_shape *s = &job->s;
    size_t columns = (size_t)s->columns, width = (size_t)s->width, time = (size_t)s->time;
    memset(job->cell + begin * width, 0, (end - begin) * width * sizeof(float));
    memset(job->down + begin * width, 0, (end - begin) * width * sizeof(float));
    for (int64_t step = s->time - 1; step >= 0; step--) {
        int64_t first = recurrent_row(s, (int64_t)begin, step) * s->columns;
        float *made = s->gru ? optional(job, 1, first) : (float *)job->call->outputs[0] + first;
        bool apart = made == NULL; /* the hidden part's gradients are in `gates` */
        if (apart) made = job->gates + begin * columns;
        size_t distance = apart ? columns : time * columns;
        for (size_t n = begin; n < end; n++)
            backward_row(job, n, step, made + (n - begin) * distance);
        const struct cpu_product product = {.rows = end - begin,
                                            .columns = width,
                                            .depth = columns,
                                            .a = made,
                                            .b = job->weight,
                                            .c = job->down + begin * width,
                                            .a_row = distance,
                                            .a_depth = 1,
                                            .b_depth = width,
                                            .c_row = width,
                                            .add = true};
        if (step > 0) job->loops->product(&product);
    }
}

static status_t run(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    bool backward = desc->kind == OP_RECURRENT_BACKWARD;
    struct recurrent_job job = {.desc = desc,
                                .call = call,
                                .loops = cpu_loops_get(),
                                .s = recurrent_shape_of(desc),
                                .weight = call->inputs[backward ? 2 : 1]};
    size_t rows = (size_t)job.s.batch, width = (size_t)job.s.width;
    size_t columns = (size_t)job.s.columns;
    job.gates = call->workspace;
    job.cell = job.gates + rows * columns;
    job.down = job.cell + rows * width;
    job.spare = job.down + rows * width;
    if (!backward) {
        job.loops->transpose(columns, width, job.down, job.weight, false);
        job.weight = job.down;
    }
    cpu_parallel(kernel->threads, rows, 1, backward ? backward_part : forward_part, &job);
    return NULL;
}

status_t cpu_prepare_recurrent(struct kernel *kernel)
{
    const struct recurrent_shape s = recurrent_shape_of(&kernel->desc);
    bool backward = kernel->desc.kind == OP_RECURRENT_BACKWARD;
    int64_t rows = s.batch * (s.columns + (backward ? 3 : 1) * s.width);
    kernel->workspace_bytes =
        (uint64_t)(rows + (backward ? 0 : s.columns * s.width)) * sizeof(float);
    kernel->run = run;
    return NULL;
}
