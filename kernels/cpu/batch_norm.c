/*
 * Norms over a batch, on f32: each thread has its own channels. A channel of a sample is
 * contiguous, and its sums are in LANES parts that the processor adds side by side; or the channels
 * of a pixel are, and BLOCK of them are summed side by side. Sums are in double.
 */
#include <math.h>
#include <string.h>

#include "kernels/batch_norm.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

enum { LANES = 8, BLOCK = CHANNELS_MAX };

/* Channels that a function works on: one, or up to BLOCK if they are contiguous. */
struct channel_block {
    int64_t first, width;
};

struct batch_job {
    const struct op_desc *desc;
    const struct kernel_call *call;
    const struct cpu_loops *loops;
    void (*part)(const struct batch_job *job, struct channel_block block);
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
    return batch_place(&job->shape, n, c, 0);
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

static void apply(const struct batch_job *job, struct channel_block block, const double *mean,
                  const double *rstd)
{
    struct channel_line line;
    for (int64_t k = 0; k < block.width; k++) {
        int64_t c = block.first + k;
        line.scale[k] = (float)(rstd[k] * (job->weight != NULL ? job->weight[c] : 1));
        line.shift[k] = job->bias != NULL ? job->bias[c] : 0;
        line.middle[k] = (float)mean[k];
    }
    bool add = job->desc->accumulate[0];
    for (int64_t n = 0; n < job->shape.n; n++) {
        const float *x = job->x + place_of(job, n, block.first);
        float *y = (float *)job->call->outputs[0] + place_of(job, n, block.first);
        if (job->shape.last)
            job->loops->scale_channels((size_t)job->shape.area, (size_t)job->shape.channels,
                                       (size_t)block.width, y, x, &line, add);
        else
            for (int64_t i = 0; i < job->shape.area; i++)
                put(&y[i], add, (x[i] - line.middle[0]) * line.scale[0] + line.shift[0]);
    }
}

static void move_state(const struct batch_job *job, int64_t c, double mean, double unbiased)
{
    double momentum = job->desc->attrs.batch_norm.momentum;
    float *means = job->call->outputs[3], *variances = job->call->outputs[4];
    if (job->desc->output_present[3]) means[c] = batch_moved(momentum, means[c], mean);
    if (job->desc->output_present[4]) variances[c] = batch_moved(momentum, variances[c], unbiased);
}

/* The means of (x - mean)^power over this rank's rows. */
static void find_powers(const struct batch_job *job, struct channel_block block, const double *mean,
                        bool square, double *means)
{
    double sums[BLOCK] = {0}, size = job->count > 0 ? (double)job->count : 1;
    for (int64_t n = 0; n < job->shape.n; n++) {
        const float *x = job->x + place_of(job, n, block.first);
        if (!counts(job, n)) continue;
        if (job->shape.last)
            job->loops->add_distances((size_t)job->shape.area, (size_t)job->shape.channels,
                                      (size_t)block.width, x, mean, square, sums);
        else add_powers(x, job->shape.area, mean[0], square, sums);
    }
    if (!job->shape.last) sums[0] = total(sums);
    for (int64_t k = 0; k < block.width; k++) means[k] = sums[k] / size;
}

/* Channels' means, and the means of squared distances from them, of this rank's rows. */
static void find_moments(const struct batch_job *job, struct channel_block block, double *mean,
                         double *variance)
{
    const double zeros[BLOCK] = {0};
    find_powers(job, block, zeros, false, mean);
    find_powers(job, block, mean, true, variance);
}

static void forward(const struct batch_job *job, struct channel_block block)
{
    double mean[BLOCK], variance[BLOCK], rstd[BLOCK];
    if (job->all.ranks == 0) find_moments(job, block, mean, variance);
    for (int64_t k = 0; k < block.width; k++) {
        int64_t c = block.first + k;
        if (job->all.ranks > 0) batch_merge(&job->all, c, &mean[k], &variance[k]);
        rstd[k] = 1 / sqrt(variance[k] + job->desc->attrs.batch_norm.eps);
        put_channel(job, 1, c, mean[k]);
        put_channel(job, 2, c, rstd[k]);
        if (job->count > 0)
            move_state(job, c, mean[k],
                       batch_unbiased(variance[k] * (double)job->count, job->count));
    }
    apply(job, block, mean, rstd);
}

static void running(const struct batch_job *job, struct channel_block block)
{
    const float *means = job->call->inputs[3], *variances = job->call->inputs[4];
    double mean[BLOCK], rstd[BLOCK];
    for (int64_t k = 0; k < block.width; k++) {
        mean[k] = means[block.first + k];
        rstd[k] = 1 / sqrt(variances[block.first + k] + job->desc->attrs.batch_norm.eps);
    }
    apply(job, block, mean, rstd);
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
static void find_sums(const struct batch_job *job, struct channel_block block, double *sums,
                      double *products)
{
    const float *mean = job->mean + block.first;
    for (int k = 0; k < BLOCK; k++) sums[k] = products[k] = 0;
    for (int64_t n = 0; n < job->shape.n; n++) {
        const float *dy = job->dy + place_of(job, n, block.first);
        const float *x = job->x + place_of(job, n, block.first);
        if (!counts(job, n)) continue;
        if (job->shape.last)
            job->loops->add_slopes((size_t)job->shape.area, (size_t)job->shape.channels,
                                   (size_t)block.width, dy, x, mean, sums, products);
        else add_products(dy, x, job->shape.area, mean[0], sums, products);
    }
    if (!job->shape.last) {
        sums[0] = total(sums);
        products[0] = total(products);
    }
    for (int64_t k = 0; k < block.width; k++) products[k] *= job->rstd[block.first + k];
}

/* What this rank tells of its channels: two numbers of each. */
static void put_totals(const struct batch_job *job, struct channel_block block,
                       void (*find)(const struct batch_job *, struct channel_block, double *,
                                    double *))
{
    double first[BLOCK], second[BLOCK];
    find(job, block, first, second);
    for (int64_t k = 0; k < block.width; k++) {
        put_channel(job, 0, 1 + block.first + k, first[k]);
        put_channel(job, 0, 1 + job->shape.channels + block.first + k, second[k]);
    }
}

static void moments(const struct batch_job *job, struct channel_block block)
{
    put_totals(job, block, find_moments);
}

static void sums(const struct batch_job *job, struct channel_block block)
{
    put_totals(job, block, find_sums);
}

/* Where the row does not count. */
static void put_zeros(const struct batch_job *job, struct channel_block block, float *dx)
{
    bool last = job->shape.last, add = job->desc->accumulate[0];
    int64_t runs = last ? job->shape.area : 1, length = last ? block.width : job->shape.area;
    for (int64_t run = 0; run < runs; run++)
        for (int64_t i = 0; i < length; i++) put(&dx[run * job->shape.channels + i], add, 0);
}

static void put_gradient(const struct batch_job *job, struct channel_block block,
                         const double *sums, const double *products)
{
    const float *rstd = job->rstd + block.first;
    struct channel_line line;
    for (int64_t k = 0; k < block.width; k++) {
        line.middle[k] = job->mean[block.first + k];
        line.scale[k] = rstd[k] * (job->weight != NULL ? job->weight[block.first + k] : 1);
        line.shift[k] = (float)(sums[k] / (double)job->count);
        line.bend[k] = (float)(products[k] / (double)job->count * rstd[k]);
    }
    bool add = job->desc->accumulate[0];
    for (int64_t n = 0; n < job->shape.n; n++) {
        int64_t place = place_of(job, n, block.first);
        const float *dy = job->dy + place, *x = job->x + place;
        float *dx = (float *)job->call->outputs[0] + place;
        if (!counts(job, n)) put_zeros(job, block, dx);
        else if (job->shape.last)
            job->loops->bend_channels((size_t)job->shape.area, (size_t)job->shape.channels,
                                      (size_t)block.width, dx, dy, x, &line, add);
        else
            for (int64_t i = 0; i < job->shape.area; i++)
                put(&dx[i], add,
                    line.scale[0] *
                        (dy[i] - line.shift[0] - (x[i] - line.middle[0]) * line.bend[0]));
    }
}

static void backward(const struct batch_job *job, struct channel_block block)
{
    bool own = job->desc->output_present[1] || job->desc->output_present[2];
    double sums[BLOCK] = {0}, products[BLOCK] = {0};
    if (own || job->all.ranks == 0) find_sums(job, block, sums, products);
    for (int64_t k = 0; k < block.width; k++) {
        int64_t c = block.first + k;
        put_channel(job, 1, c, products[k]);
        put_channel(job, 2, c, sums[k]);
        if (job->all.ranks == 0) continue;
        sums[k] = batch_total(&job->all, 1 + c);
        products[k] = batch_total(&job->all, 1 + job->shape.channels + c);
    }
    if (job->desc->output_present[0]) put_gradient(job, block, sums, products);
}

/* What the op does, for a thread's channels, block by block. */
static void run_part(const void *argument, size_t begin, size_t end)
{
    const struct batch_job *job = argument;
    size_t most = job->shape.last ? BLOCK : 1;
    for (size_t at = begin; at < end; at += most) {
        size_t width = end - at < most ? end - at : most;
        job->part(job, (struct channel_block){(int64_t)at, (int64_t)width});
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
    void (*part)(const struct batch_job *job, struct channel_block block);
};

static const struct places *places_of(enum op_kind kind)
{
    static const struct places of_forward = {0, -1, 1, 2, -1, 3, 4, forward},
                               of_running = {0, -1, 1, 2, -1, -1, -1, running},
                               of_backward = {1, 0, 2, -1, 3, 5, 6, backward},
                               of_moments = {0, -1, -1, -1, -1, 1, -1, moments},
                               of_sums = {1, 0, -1, -1, 2, 4, -1, sums};
    if (kind == OP_BATCH_NORM_BACKWARD) return &of_backward;
    if (kind == OP_BATCH_NORM_RUNNING) return &of_running;
    if (kind == OP_BATCH_MOMENTS) return &of_moments;
    return kind == OP_BATCH_NORM_SUMS ? &of_sums : &of_forward;
}

static status_t run_batch_norm(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    const struct places *at = places_of(desc->kind);
    struct batch_job job = {
        .desc = desc,
        .call = call,
        .loops = cpu_loops_get(),
        .part = at->part,
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
    if (at->totals < 0 && desc->output_present[0] && at->part != running)
        put((float *)call->outputs[0], desc->accumulate[0], (float)(job.count / job.shape.area));
    if (at->totals >= 0) job.all = batch_totals_of(desc, call, at->totals, job.shape.channels);
    if (job.all.ranks > 0) job.count = (int64_t)batch_total(&job.all, 0) * job.shape.area;
    int64_t elements = job.shape.n * job.shape.area;
    size_t grain = elements < CPU_GRAIN ? (size_t)(CPU_GRAIN / elements) : 1;
    if (job.shape.last && grain < 16) grain = 16; /* a cache line */
    cpu_parallel(kernel->threads, (size_t)job.shape.channels, grain, run_part, &job);
    if (desc->kind == OP_BATCH_NORM) count_batch(&job);
    return NULL;
}

status_t cpu_prepare_batch_norm(struct kernel *kernel)
{
    const struct op_desc *desc = &kernel->desc;
    const struct places *at = places_of(desc->kind);
    const struct tensor_type *x = &desc->inputs[at->x];
    bool alike = at->dy < 0 || desc->inputs[at->dy].layout == x->layout;
    if (at->part != moments && at->part != sums && desc->output_present[0])
        alike = alike && desc->outputs[0].layout == x->layout;
    if (!alike) return reference_prepare(kernel);
    kernel->run = run_batch_norm;
    return NULL;
}
