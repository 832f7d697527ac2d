/*
 * Norms over a batch, on f32: each thread has its own channels. A channel of a sample is
 * contiguous. Sums are in double, in LANES parts that the processor adds side by side.
 */
#include <math.h>
#include <string.h>

#include "kernels/batch_norm.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

enum { LANES = 8 };

struct batch_job {
    const struct op_desc *desc;
    const struct kernel_call *call;
    struct batch_shape shape;
    int64_t count; /* elements of a channel that count */
    const float *x, *dy, *weight, *bias;
    const int32_t *target;
};

static const void *optional(const struct kernel *kernel, const struct kernel_call *call, int input)
{
    return kernel->desc.input_present[input] ? call->inputs[input] : NULL;
}

static bool counts(const struct batch_job *job, int64_t n)
{
    return job->target == NULL || job->target[n] >= 0;
}

static int64_t place_of(const struct batch_job *job, int64_t n, int64_t c)
{
    return (n * job->shape.channels + c) * job->shape.area;
}

static double total(const double parts[LANES])
{
    double sum = 0;
    for (int k = 0; k < LANES; k++) sum += parts[k];
    return sum;
}

/* Adds (x - mean)^power, power 1 or 2, to the parts. */
static void add_powers(const float *x, int64_t count, double mean, bool square, double *parts)
{
    int64_t whole = count - count % LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int k = 0; k < LANES; k++) {
            double distance = x[i + k] - mean;
            parts[k] += square ? distance * distance : distance;
        }
    for (int64_t i = whole; i < count; i++) {
        double distance = x[i] - mean;
        parts[0] += square ? distance * distance : distance;
    }
}

static void put(float *to, bool add, float value)
{
    *to = add ? *to + value : value;
}

static void put_channel(const struct batch_job *job, int output, int64_t c, double value)
{
    if (job->desc->output_present[output])
        put((float *)job->call->outputs[output] + c, job->desc->accumulate[output], (float)value);
}

static void apply(const struct batch_job *job, int64_t c, double mean, double rstd)
{
    float scale = (float)(rstd * (job->weight != NULL ? job->weight[c] : 1));
    float shift = job->bias != NULL ? job->bias[c] : 0, middle = (float)mean;
    bool add = job->desc->accumulate[0];
    for (int64_t n = 0; n < job->shape.n; n++) {
        const float *x = job->x + place_of(job, n, c);
        float *y = (float *)job->call->outputs[0] + place_of(job, n, c);
        for (int64_t i = 0; i < job->shape.area; i++)
            put(&y[i], add, (x[i] - middle) * scale + shift);
    }
}

static void move_state(const struct batch_job *job, int64_t c, double mean, double unbiased)
{
    double momentum = job->desc->attrs.batch_norm.momentum;
    float *means = job->call->outputs[3], *variances = job->call->outputs[4];
    if (job->desc->output_present[3]) means[c] = batch_moved(momentum, means[c], mean);
    if (job->desc->output_present[4]) variances[c] = batch_moved(momentum, variances[c], unbiased);
}

static void forward_part(const void *argument, size_t begin, size_t end)
{
    const struct batch_job *job = argument;
    double size = job->count > 0 ? (double)job->count : 1;
    for (int64_t c = (int64_t)begin; c < (int64_t)end; c++) {
        double sums[LANES] = {0}, squares[LANES] = {0};
        for (int64_t n = 0; n < job->shape.n; n++)
            if (counts(job, n))
                add_powers(job->x + place_of(job, n, c), job->shape.area, 0, false, sums);
        double mean = total(sums) / size;
        for (int64_t n = 0; n < job->shape.n; n++)
            if (counts(job, n))
                add_powers(job->x + place_of(job, n, c), job->shape.area, mean, true, squares);
        double rstd = 1 / sqrt(total(squares) / size + job->desc->attrs.batch_norm.eps);
        apply(job, c, mean, rstd);
        put_channel(job, 1, c, mean);
        put_channel(job, 2, c, rstd);
        if (job->count > 0) move_state(job, c, mean, batch_unbiased(total(squares), job->count));
    }
}

static void running_part(const void *argument, size_t begin, size_t end)
{
    const struct batch_job *job = argument;
    for (int64_t c = (int64_t)begin; c < (int64_t)end; c++) {
        double variance = ((const float *)job->call->inputs[4])[c];
        apply(job, c, ((const float *)job->call->inputs[3])[c],
              1 / sqrt(variance + job->desc->attrs.batch_norm.eps));
    }
}

/* The sums of dy, and of its products with the normalised x. */
static void add_products(const float *dy, const float *x, int64_t count, float mean, double *sums,
                         double *products)
{
    int64_t whole = count - count % LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int k = 0; k < LANES; k++) {
            sums[k] += dy[i + k];
            products[k] += (double)dy[i + k] * (x[i + k] - mean);
        }
    for (int64_t i = whole; i < count; i++) {
        sums[0] += dy[i];
        products[0] += (double)dy[i] * (x[i] - mean);
    }
}

static void put_gradient(const struct batch_job *job, int64_t c, float mean, float rstd, double sum,
                         double product)
{
    float scale = rstd * (job->weight != NULL ? job->weight[c] : 1);
    float less = (float)(sum / (double)job->count);
    float bend = (float)(product / (double)job->count * rstd);
    bool add = job->desc->accumulate[0];
    for (int64_t n = 0; n < job->shape.n; n++) {
        int64_t place = place_of(job, n, c);
        const float *dy = job->dy + place, *x = job->x + place;
        float *dx = (float *)job->call->outputs[0] + place;
        if (!counts(job, n)) {
            for (int64_t i = 0; i < job->shape.area; i++) put(&dx[i], add, 0);
            continue;
        }
        for (int64_t i = 0; i < job->shape.area; i++)
            put(&dx[i], add, scale * (dy[i] - less - (x[i] - mean) * bend));
    }
}

static void backward_part(const void *argument, size_t begin, size_t end)
{
    const struct batch_job *job = argument;
    for (int64_t c = (int64_t)begin; c < (int64_t)end; c++) {
        float mean = ((const float *)job->call->inputs[3])[c];
        float rstd = ((const float *)job->call->inputs[4])[c];
        double sums[LANES] = {0}, products[LANES] = {0};
        for (int64_t n = 0; n < job->shape.n; n++)
            if (counts(job, n))
                add_products(job->dy + place_of(job, n, c), job->x + place_of(job, n, c),
                             job->shape.area, mean, sums, products);
        double sum = total(sums), product = total(products) * rstd;
        if (job->desc->output_present[0]) put_gradient(job, c, mean, rstd, sum, product);
        put_channel(job, 1, c, product);
        put_channel(job, 2, c, sum);
    }
}

static void count_batch(const struct batch_job *job)
{
    int64_t batches;
    if (job->count == 0 || !job->desc->output_present[5]) return;
    memcpy(&batches, job->call->outputs[5], sizeof batches);
    batches++;
    memcpy(job->call->outputs[5], &batches, sizeof batches);
}

static status_t run_batch_norm(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    bool backward = desc->kind == OP_BATCH_NORM_BACKWARD,
         running = desc->kind == OP_BATCH_NORM_RUNNING;
    int x = backward ? 1 : 0;
    struct batch_job job = {.desc = desc, .call = call, .shape = batch_shape_of(&desc->inputs[x])};
    job.x = call->inputs[x];
    job.weight = optional(kernel, call, x + 1);
    if (backward) job.dy = call->inputs[0];
    else job.bias = optional(kernel, call, 2);
    if (!running) job.target = optional(kernel, call, backward ? 5 : 3);
    job.count = batch_count(&job.shape, job.target);
    int64_t elements = job.shape.n * job.shape.area;
    size_t grain = elements < CPU_GRAIN ? (size_t)(CPU_GRAIN / elements) : 1;
    cpu_parallel(kernel->threads, (size_t)job.shape.channels, grain,
                 backward  ? backward_part
                 : running ? running_part
                           : forward_part,
                 &job);
    if (desc->kind == OP_BATCH_NORM) count_batch(&job);
    return NULL;
}

status_t cpu_prepare_batch_norm(struct kernel *kernel)
{
    kernel->run = run_batch_norm;
    return NULL;
}
