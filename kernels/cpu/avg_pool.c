/* Average pooling of planes, on f32. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

struct average_job {
    const struct kernel *kernel;
    const struct kernel_call *call;
    const struct tensor_type *x, *y; /* y is the smaller one */
    int64_t channels, step;          /* from one pixel of a plane to the next */
};

/* The index of a plane's first pixel. */
static int64_t first_pixel(const struct average_job *job, const int64_t *area, size_t plane)
{
    int64_t at = (int64_t)plane, size = area[0] * area[1];
    if (job->step == 1) return at * size;
    return at / job->channels * job->channels * size + at % job->channels;
}

static void forward_part(const void *argument, size_t begin, size_t end)
{
    const struct average_job *job = argument;
    const union op_attrs *attrs = &job->kernel->desc.attrs;
    const int64_t *in = job->x->dims + 2, *out = job->y->dims + 2;
    bool add = job->kernel->desc.accumulate[0];
    for (size_t plane = begin; plane < end; plane++) {
        const float *x = (const float *)job->call->inputs[0] + first_pixel(job, in, plane);
        float *y = (float *)job->call->outputs[0] + first_pixel(job, out, plane);
        for (int64_t row = 0; row < out[0]; row++) {
            struct op_span h = op_average_span(attrs, 0, row, in[0], out[0]);
            for (int64_t column = 0; column < out[1]; column++, y += job->step) {
                struct op_span w = op_average_span(attrs, 1, column, in[1], out[1]);
                double sum = 0;
                for (int64_t i = h.begin; i < h.end; i++)
                    for (int64_t k = w.begin; k < w.end; k++) sum += x[(i * in[1] + k) * job->step];
                float mean = (float)(sum / (double)(h.divisor * w.divisor));
                *y = add ? *y + mean : mean;
            }
        }
    }
}

static void backward_part(const void *argument, size_t begin, size_t end)
{
    const struct average_job *job = argument;
    const union op_attrs *attrs = &job->kernel->desc.attrs;
    const int64_t *in = job->x->dims + 2, *out = job->y->dims + 2;
    for (size_t plane = begin; plane < end; plane++) {
        float *dx = (float *)job->call->outputs[0] + first_pixel(job, in, plane);
        const float *dy = (const float *)job->call->inputs[0] + first_pixel(job, out, plane);
        for (int64_t i = 0; i < in[0] * in[1] && !job->kernel->desc.accumulate[0]; i++)
            dx[i * job->step] = 0;
        for (int64_t row = 0; row < out[0]; row++) {
            struct op_span h = op_average_span(attrs, 0, row, in[0], out[0]);
            for (int64_t column = 0; column < out[1]; column++, dy += job->step) {
                struct op_span w = op_average_span(attrs, 1, column, in[1], out[1]);
                float share = (float)(*dy / (double)(h.divisor * w.divisor));
                for (int64_t i = h.begin; i < h.end; i++)
                    for (int64_t k = w.begin; k < w.end; k++)
                        dx[(i * in[1] + k) * job->step] += share;
            }
        }
    }
}

static status_t run_average(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    bool forward = desc->kind == OP_AVG_POOL2D;
    struct average_job job = {kernel,
                              call,
                              forward ? &desc->inputs[0] : &desc->outputs[0],
                              forward ? &desc->outputs[0] : &desc->inputs[0],
                              desc->inputs[0].dims[1],
                              1};
    if (job.x->layout == LAYOUT_CHANNELS_LAST) job.step = job.channels;
    int64_t area = job.x->dims[2] * job.x->dims[3];
    cpu_parallel(kernel->threads, (size_t)(job.x->dims[0] * job.x->dims[1]),
                 (size_t)(area < CPU_GRAIN ? CPU_GRAIN / area : 1),
                 forward ? forward_part : backward_part, &job);
    return NULL;
}

status_t cpu_prepare_avg_pool(struct kernel *kernel)
{
    const struct op_desc *desc = &kernel->desc;
    if (desc->inputs[0].layout != desc->outputs[0].layout) return reference_prepare(kernel);
    kernel->run = run_average;
    return NULL;
}
