/*
 * Losses of every element by itself. Blocks of a fixed size are summed in f32 by rows of lanes, and
 * then in double in their order, so that the number of threads does not change a bit.
 */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

enum { BLOCK = 1024, LANES = 16 };

struct loss_job {
    const struct op_desc *desc;
    const float *x, *reference;
    const int32_t *target; /* NULL: every row counts */
    size_t count, columns; /* columns: elements of a row */
    size_t width;          /* the last dimension */
    double *sums; /* by block */
    float *dx;
    float scale;
};

static struct loss_job make_job(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    size_t count = (size_t)tensor_element_count(&desc->inputs[0]);
    bool targets = desc->input_present[2];
    size_t rows = (size_t)(targets ? tensor_element_count(&desc->inputs[2]) : 1);
    struct loss_job job = {.desc = desc,
                           .x = call->inputs[0],
                           .reference = call->inputs[1],
                           .target = targets ? call->inputs[2] : NULL,
                           .count = count,
                           .columns = count / rows,
                           .width = (size_t)kernel_columns(&desc->inputs[0])};
    job.scale = (float)(desc->attrs.element_loss.weight *
                        op_loss_scale(desc, (int64_t)(targets ? rows : count)));
    return job;
}

/* The elements from `begin` on that belong to one row; all, if every row counts. */
static size_t run_length(const struct loss_job *job, size_t begin, size_t end)
{
    if (job->target == NULL) return end - begin;
    size_t left = job->columns - begin % job->columns;
    return end - begin < left ? end - begin : left;
}

static bool is_ignored(const struct loss_job *job, size_t element)
{
    return job->target != NULL && job->target[element / job->columns] < 0;
}

/* An expression of x and r for n elements, 0 where r lacks, given to `use`. */
#define EACH(expression, use)                                                                      \
    for (size_t i = 0; i < n; i++) {                                                               \
        float x = xs[i], r = references[i];                                                        \
        float value = r == r || computed ? (expression) : 0;                                       \
        use;                                                                                       \
    }

/* torchvision's sigmoid_focal_loss; see ELEMENT_LOSS in ops/op.h. `p` and `q`: probabilities of 1
 * and 0; `miss`: that of the label's opposite. */
static float focal(float x, float r, float alpha, float gamma, bool slope)
{
    float e = expf(-fabsf(x)), large = 1 / (1 + e), small = e * large;
    float p = x < 0 ? small : large, q = x < 0 ? large : small, miss = p * (1 - r) + q * r;
    float cross_entropy = (x < 0 ? 0 : x) - x * r + log1pf(e);
    float weight = (alpha < 0 ? 1 : alpha * r + (1 - alpha) * (1 - r)) * powf(miss, gamma);
    if (!slope) return weight * cross_entropy;
    if (miss == 0) return 0;
    return weight * (p - r + gamma * (1 - 2 * r) * p * q * cross_entropy / miss);
}

/* The weight of element i of those from `first` on. */
#define POSITIVE attrs->element_loss.positive.values[(first + i) % job->width]

static void add_losses(const struct loss_job *job, size_t first, size_t n, float lanes[LANES])
{
    const union op_attrs *attrs = &job->desc->attrs;
    const float *xs = job->x + first, *references = job->reference + first;
    enum op_difference difference = attrs->element_loss.difference;
    bool computed = attrs->element_loss.computed;
    float delta = (float)attrs->element_loss.delta;
    switch (difference) {
    case DIFFERENCE_BINARY_CROSS_ENTROPY:
        if (attrs->element_loss.positive.values == NULL)
            EACH((x < 0 ? 0 : x) - x * r + log1pf(expf(-fabsf(x))), lanes[i % LANES] += value)
        else
            EACH((1 - r) * x +
                     (1 + (POSITIVE - 1) * r) * (log1pf(expf(-fabsf(x))) + (x < 0 ? -x : 0)),
                 lanes[i % LANES] += value)
        break;
    case DIFFERENCE_FOCAL:
        EACH(focal(x, r, (float)attrs->element_loss.alpha, delta, false), lanes[i % LANES] += value)
        break;
    default:
        cpu_loops_get()->add_differences(n, lanes, xs, references, (int)difference, delta,
                                         computed);
    }
}

static void write_slopes(const struct loss_job *job, size_t first, size_t n)
{
    const union op_attrs *attrs = &job->desc->attrs;
    const float *xs = job->x + first, *references = job->reference + first;
    enum op_difference difference = attrs->element_loss.difference;
    bool computed = attrs->element_loss.computed;
    float delta = (float)attrs->element_loss.delta, scale = job->scale, *dx = job->dx + first;
    bool add = job->desc->accumulate[0];
    switch (difference) {
    case DIFFERENCE_BINARY_CROSS_ENTROPY:
        if (attrs->element_loss.positive.values == NULL)
            EACH((1 / (1 + expf(-x)) - r) * scale, dx[i] = add ? dx[i] + value : value)
        else
            EACH(((1 - r) / (1 + expf(-x)) - POSITIVE * r / (1 + expf(x))) * scale,
                 dx[i] = add ? dx[i] + value : value)
        break;
    case DIFFERENCE_FOCAL:
        EACH(focal(x, r, (float)attrs->element_loss.alpha, delta, true) * scale,
             dx[i] = add ? dx[i] + value : value)
        break;
    default:
        cpu_loops_get()->put_differences(n, dx, xs, references, (int)difference, delta, scale,
                                         computed, add);
    }
}

static void sum_part(const void *argument, size_t begin, size_t end)
{
    const struct loss_job *job = argument;
    for (size_t block = begin; block < end; block++) {
        float lanes[LANES] = {0};
        size_t at = block * BLOCK, last = at + BLOCK < job->count ? at + BLOCK : job->count;
        while (at < last) {
            size_t n = run_length(job, at, last);
            if (!is_ignored(job, at)) add_losses(job, at, n, lanes);
            at += n;
        }
        double sum = 0;
        for (int i = 0; i < LANES; i++) sum += lanes[i];
        job->sums[block] = sum;
    }
}

static size_t blocks_of(size_t count)
{
    return (count + BLOCK - 1) / BLOCK;
}

static status_t run_loss(const struct kernel *kernel, const struct kernel_call *call)
{
    struct loss_job job = make_job(kernel, call);
    size_t blocks = blocks_of(job.count);
    job.sums = call->workspace;
    cpu_parallel(kernel->threads, blocks, CPU_GRAIN / BLOCK, sum_part, &job);
    double sum = 0;
    for (size_t i = 0; i < blocks; i++) sum += job.sums[i];
    float *loss = call->outputs[0], value = (float)(sum * job.scale);
    *loss = kernel->desc.accumulate[0] ? *loss + value : value;
    return NULL;
}

static void slope_part(const void *argument, size_t begin, size_t end)
{
    const struct loss_job *job = argument;
    while (begin < end) {
        size_t n = run_length(job, begin, end);
        if (!is_ignored(job, begin)) write_slopes(job, begin, n);
        else
            for (size_t i = begin; i < begin + n && !job->desc->accumulate[0]; i++) job->dx[i] = 0;
        begin += n;
    }
}

static status_t run_backward(const struct kernel *kernel, const struct kernel_call *call)
{
    struct loss_job job = make_job(kernel, call);
    job.dx = call->outputs[0];
    cpu_parallel(kernel->threads, job.count, CPU_GRAIN, slope_part, &job);
    return NULL;
}

status_t cpu_prepare_element_loss(struct kernel *kernel)
{
    bool forward = kernel->desc.kind == OP_ELEMENT_LOSS;
    size_t count = (size_t)tensor_element_count(&kernel->desc.inputs[0]);
    if (forward) kernel->workspace_bytes = blocks_of(count) * sizeof(double);
    kernel->run = forward ? run_loss : run_backward;
    return NULL;
}
