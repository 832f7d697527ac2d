/*
 * Norms over groups of channels, on f32: a group of a sample is contiguous, and each thread has its
 * own groups, or channels for the parameters' gradients. Sums are in double.
 */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

struct group_job {
    const struct op_desc *desc;
    const struct kernel_call *call;
    int64_t n, groups, channels, area; /* channels of a group */
    const float *weight, *bias;
};

static struct group_job make_job(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    bool forward = desc->kind == OP_GROUP_NORM;
    const struct tensor_type *x = &desc->inputs[forward ? 0 : 1];
    int weight = forward ? 1 : 2;
    struct group_job job = {.desc = desc, .call = call, .n = x->dims[0]};
    job.groups = desc->attrs.group_norm.groups;
    job.channels = x->dims[1] / job.groups;
    job.area = tensor_element_count(x) / (x->dims[0] * x->dims[1]);
    if (desc->input_present[weight]) job.weight = call->inputs[weight];
    if (forward && desc->input_present[2]) job.bias = call->inputs[2];
    return job;
}

static void put(const struct group_job *job, int output, int64_t at, float value)
{
    float *to = (float *)job->call->outputs[output] + at;
    if (job->desc->output_present[output])
        *to = job->desc->accumulate[output] ? *to + value : value;
}

static void forward_part(const void *argument, size_t begin, size_t end)
{
    const struct group_job *job = argument;
    int64_t size = job->channels * job->area;
    for (int64_t row = (int64_t)begin; row < (int64_t)end; row++) {
        const float *x = (const float *)job->call->inputs[0] + row * size;
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < size; i++) sum += x[i];
        double mean = sum / (double)size;
        for (int64_t i = 0; i < size; i++) squares += (x[i] - mean) * (x[i] - mean);
        double rstd = 1 / sqrt(squares / (double)size + job->desc->attrs.group_norm.eps);
        for (int64_t c = 0; c < job->channels; c++) {
            int64_t channel = row % job->groups * job->channels + c;
            float scale = (float)(rstd * (job->weight != NULL ? job->weight[channel] : 1));
            float shift = job->bias != NULL ? job->bias[channel] : 0, middle = (float)mean;
            for (int64_t i = c * job->area; i < (c + 1) * job->area; i++)
                put(job, 0, row * size + i, (x[i] - middle) * scale + shift);
        }
        put(job, 1, row, (float)mean);
        put(job, 2, row, (float)rstd);
    }
}

static void backward_part(const void *argument, size_t begin, size_t end)
{
    const struct group_job *job = argument;
    int64_t size = job->channels * job->area;
    for (int64_t row = (int64_t)begin; row < (int64_t)end; row++) {
        const float *dy = (const float *)job->call->inputs[0] + row * size;
        const float *x = (const float *)job->call->inputs[1] + row * size;
        float mean = ((const float *)job->call->inputs[3])[row];
        float rstd = ((const float *)job->call->inputs[4])[row];
        const float *weight =
            job->weight != NULL ? job->weight + row % job->groups * job->channels : NULL;
        double sum = 0, product = 0;
        for (int64_t c = 0; c < job->channels; c++) {
            double of_channel = 0, with_x = 0;
            for (int64_t i = c * job->area; i < (c + 1) * job->area; i++) {
                of_channel += dy[i];
                with_x += dy[i] * ((x[i] - mean) * rstd);
            }
            sum += of_channel * (weight != NULL ? weight[c] : 1);
            product += with_x * (weight != NULL ? weight[c] : 1);
        }
        float less = (float)(sum / (double)size), bend = (float)(product / (double)size);
        for (int64_t i = 0; i < size; i++) {
            float slope = weight != NULL ? dy[i] * weight[i / job->area] : dy[i];
            put(job, 0, row * size + i, rstd * (slope - less - (x[i] - mean) * rstd * bend));
        }
    }
}

static void parameters_part(const void *argument, size_t begin, size_t end)
{
    const struct group_job *job = argument;
    int64_t channels = job->groups * job->channels;
    const float *dy = job->call->inputs[0], *x = job->call->inputs[1];
    for (int64_t c = (int64_t)begin; c < (int64_t)end; c++) {
        double dweight = 0, dbias = 0;
        for (int64_t n = 0; n < job->n; n++) {
            int64_t row = n * job->groups + c / job->channels, at = (n * channels + c) * job->area;
            float mean = ((const float *)job->call->inputs[3])[row];
            float rstd = ((const float *)job->call->inputs[4])[row];
            for (int64_t i = at; i < at + job->area; i++) {
                dweight += dy[i] * ((x[i] - mean) * rstd);
                dbias += dy[i];
            }
        }
        put(job, 1, c, (float)dweight);
        put(job, 2, c, (float)dbias);
    }
}

static size_t grain_of(int64_t elements)
{
    return elements < CPU_GRAIN ? (size_t)(CPU_GRAIN / elements) : 1;
}

static status_t run_group_norm(const struct kernel *kernel, const struct kernel_call *call)
{
    struct group_job job = make_job(kernel, call);
    bool forward = kernel->desc.kind == OP_GROUP_NORM;
    if (forward || kernel->desc.output_present[0])
        cpu_parallel(kernel->threads, (size_t)(job.n * job.groups),
                     grain_of(job.channels * job.area), forward ? forward_part : backward_part,
                     &job);
    if (!forward)
        cpu_parallel(kernel->threads, (size_t)(job.groups * job.channels),
                     grain_of(job.n * job.area), parameters_part, &job);
    return NULL;
}

status_t cpu_prepare_group_norm(struct kernel *kernel)
{
    kernel->run = run_group_norm;
    return NULL;
}
