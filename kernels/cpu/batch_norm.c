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
    int64_t count; /* elements of a channel that count, of all ranks if `all` has them */
    struct batch_totals all;
    const float *x, *dy, *weight, *bias, *mean, *rstd;
    const int32_t *target;
};

static const void *optional(const struct kernel *kernel, const struct kernel_call *call, int input)
{
    return input >= 0 && kernel->desc.input_present[input] ? call->inputs[input] : NULL;
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

/* A channel's mean, and the mean of squared distances from it, of this rank's rows. */
static void find_moments(const struct batch_job *job, int64_t c, double *mean, double *variance)
{
    double size = job->count > 0 ? (double)job->count : 1, sums[LANES] = {0}, squares[LANES] = {0};
    for (int64_t n = 0; n < job->shape.n; n++)
        if (counts(job, n))
            add_powers(job->x + place_of(job, n, c), job->shape.area, 0, false, sums);
    *mean = total(sums) / size;
    for (int64_t n = 0; n < job->shape.n; n++)
        if (counts(job, n))
            add_powers(job->x + place_of(job, n, c), job->shape.area, *mean, true, squares);
    *variance = total(squares) / size;
}

static void forward_part(const void *argument, size_t begin, size_t end)
{
    const struct batch_job *job = argument;
    for (int64_t c = (int64_t)begin; c < (int64_t)end; c++) {
        double mean, variance;
        if (job->all.ranks > 0) batch_merge(&job->all, c, &mean, &variance);
        else find_moments(job, c, &mean, &variance);
        double rstd = 1 / sqrt(variance + job->desc->attrs.batch_norm.eps);
        apply(job, c, mean, rstd);
        put_channel(job, 1, c, mean);
        put_channel(job, 2, c, rstd);
        if (job->count > 0)
            move_state(job, c, mean, batch_unbiased(variance * (double)job->count, job->count));
    }
}

/* What this rank tells of a channel: two numbers. */
static void put_totals(const struct batch_job *job, int64_t c, double first, double second)
{
    put_channel(job, 0, 1 + c, first);
    put_channel(job, 0, 1 + job->shape.channels + c, second);
}

static void moments_part(const void *argument, size_t begin, size_t end)
{
    const struct batch_job *job = argument;
    for (int64_t c = (int64_t)begin; c < (int64_t)end; c++) {
        double mean, variance;
        find_moments(job, c, &mean, &variance);
        put_totals(job, c, mean, variance);
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

/* Of this rank's rows: the sums of dy, and of dy and the normalised x. */
static void find_sums(const struct batch_job *job, int64_t c, double *sum, double *product)
{
    double sums[LANES] = {0}, products[LANES] = {0};
    for (int64_t n = 0; n < job->shape.n; n++)
        if (counts(job, n))
            add_products(job->dy + place_of(job, n, c), job->x + place_of(job, n, c),
                         job->shape.area, job->mean[c], sums, products);
    *sum = total(sums);
    *product = total(products) * job->rstd[c];
}

static void sums_part(const void *argument, size_t begin, size_t end)
{
    const struct batch_job *job = argument;
    for (int64_t c = (int64_t)begin; c < (int64_t)end; c++) {
        double sum, product;
        find_sums(job, c, &sum, &product);
        put_totals(job, c, sum, product);
    }
}

static void put_gradient(const struct batch_job *job, int64_t c, double sum, double product)
{
    float mean = job->mean[c], rstd = job->rstd[c];
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
        double sum = 0, product = 0;
        bool own = job->desc->output_present[1] || job->desc->output_present[2];
        if (own || job->all.ranks == 0) find_sums(job, c, &sum, &product);
        put_channel(job, 1, c, product);
        put_channel(job, 2, c, sum);
        if (job->all.ranks > 0) {
            sum = batch_total(&job->all, 1 + c);
            product = batch_total(&job->all, 1 + job->shape.channels + c);
        }
        if (job->desc->output_present[0]) put_gradient(job, c, sum, product);
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

/* Where an op has its operands, -1: not at all; and what it does for some channels. */
struct places {
    int x, dy, weight, bias, mean, target, totals;
    void (*part)(const void *, size_t, size_t);
};

static const struct places *places_of(enum op_kind kind)
{
    static const struct places forward = {0, -1, 1, 2, -1, 3, 4, forward_part},
                               running = {0, -1, 1, 2, -1, -1, -1, running_part},
                               backward = {1, 0, 2, -1, 3, 5, 6, backward_part},
                               moments = {0, -1, -1, -1, -1, 1, -1, moments_part},
                               sums = {1, 0, -1, -1, 2, 4, -1, sums_part};
    if (kind == OP_BATCH_NORM_BACKWARD) return &backward;
    if (kind == OP_BATCH_NORM_RUNNING) return &running;
    if (kind == OP_BATCH_MOMENTS) return &moments;
    return kind == OP_BATCH_NORM_SUMS ? &sums : &forward;
}

static status_t run_batch_norm(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    const struct places *at = places_of(desc->kind);
    struct batch_job job = {
        .desc = desc,
        .call = call,
        .shape = batch_shape_of(&desc->inputs[at->x]),
        .x = call->inputs[at->x],
        .dy = optional(kernel, call, at->dy),
        .weight = optional(kernel, call, at->weight),
        .bias = optional(kernel, call, at->bias),
        .mean = optional(kernel, call, at->mean),
        .rstd = at->mean >= 0 ? call->inputs[at->mean + 1] : NULL,
        .target = optional(kernel, call, at->target),
    };
    job.count = batch_count(&job.shape, job.target);
    if (at->totals < 0 && desc->output_present[0] && at->part != running_part)
        put((float *)call->outputs[0], desc->accumulate[0], (float)(job.count / job.shape.area));
    if (at->totals >= 0) job.all = batch_totals_of(desc, call, at->totals, job.shape.channels);
    if (job.all.ranks > 0) job.count = (int64_t)batch_total(&job.all, 0) * job.shape.area;
    int64_t elements = job.shape.n * job.shape.area;
    size_t grain = elements < CPU_GRAIN ? (size_t)(CPU_GRAIN / elements) : 1;
    cpu_parallel(kernel->threads, (size_t)job.shape.channels, grain, at->part, &job);
    if (desc->kind == OP_BATCH_NORM) count_batch(&job);
    return NULL;
}

status_t cpu_prepare_batch_norm(struct kernel *kernel)
{
    kernel->run = run_batch_norm;
    return NULL;
}
