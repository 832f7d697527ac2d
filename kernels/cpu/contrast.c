/*
 * The loss of pairs against all others, over rows of products; see CONTRASTIVE_LOSS in ops/op.h.
 * Rows are independent; losses are added in double from the first row to the last, so the bits do
 * not depend on the number of threads.
 */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

/* `pairs` are those of all ranks, the rank's own ones begin at `first`. */
struct contrast_job {
    const struct kernel *kernel;
    const struct kernel_call *call;
    const float *x;
    int64_t rows, columns, pairs, candidates, first;
    float factor, scale; /* scale: of the gradient */
};

static struct contrast_job job_of(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    bool others = desc->kind == OP_CONTRASTIVE_LOSS_BACKWARD_OTHERS;
    const struct tensor_type *x = &desc->inputs[0];
    const struct tensor_type *all =
        &desc->inputs[desc->kind == OP_CONTRASTIVE_LOSS_BACKWARD ? 2 : 1];
    struct contrast_job job = {.kernel = kernel,
                               .call = call,
                               .x = call->inputs[0],
                               .rows = x->dims[0],
                               .columns = x->dims[1],
                               .pairs = tensor_element_count(all),
                               .factor = (float)desc->attrs.contrast.factor};
    int64_t own = others ? all->dims[all->dim_count - 1] : job.rows;
    job.candidates = others ? job.rows / own : job.columns / job.pairs;
    job.first = (int64_t)call->rank * own;
    job.scale = (float)(desc->attrs.contrast.factor * op_loss_scale(desc, own));
    return job;
}

static void run_rows(const struct contrast_job *job,
                     void (*part)(const void *argument, size_t begin, size_t end))
{
    size_t grain = job->columns < CPU_GRAIN ? (size_t)(CPU_GRAIN / job->columns) : 1;
    cpu_parallel(job->kernel->threads, (size_t)job->rows, grain, part, job);
}

static void put(const struct contrast_job *job, int output, float *to, float value)
{
    *to = job->kernel->desc.accumulate[output] ? *to + value : value;
}

/* Row i's scores of the candidates that count, without gaps; returns their number. */
static size_t gather_scores(const struct contrast_job *job, int64_t i, float *scores)
{
    const float *counted = job->call->inputs[1], *x = job->x + i * job->columns;
    size_t count = 0;
    for (int64_t pair = 0; pair < job->pairs; pair++) {
        if (counted[pair] == 0) continue;
        for (int64_t k = 0; k < job->candidates; k++)
            scores[count++] = job->factor * x[pair * job->candidates + k];
    }
    return count;
}

/* NaN is the largest. */
static float largest_other(const struct contrast_job *job, int64_t i)
{
    const float *counted = job->call->inputs[1], *x = job->x + i * job->columns;
    int64_t positive = (job->first + i) * job->candidates;
    float max = -INFINITY;
    for (int64_t c = 0; c < job->columns; c++) {
        if (c == positive || counted[c / job->candidates] == 0) continue;
        float score = job->factor * x[c];
        if (score > max || isnan(score)) max = score;
        if (isnan(max)) break;
    }
    return max;
}

/* Of the workspace: a row of scores per thread, behind a loss per row. */
static void loss_part(const void *argument, size_t begin, size_t end)
{
    const struct contrast_job *job = argument;
    const int32_t *target = job->call->inputs[2];
    double *losses = job->call->workspace;
    float *scores = (float *)(losses + job->rows) + cpu_parallel_thread() * job->columns;
    float *largest = job->call->outputs[1], *lse = job->call->outputs[2];
    for (int64_t i = (int64_t)begin; i < (int64_t)end; i++) {
        float own = job->factor * job->x[i * job->columns + (job->first + i) * job->candidates];
        double sum = INFINITY;
        losses[i] = 0;
        if (target[i] >= 0) {
            size_t count = gather_scores(job, i, scores);
            sum = cpu_loops_get()->softmax_scaled(count, scores, 0, false);
            losses[i] = sum - own;
        }
        put(job, 1, &largest[2 * i], own);
        put(job, 1, &largest[2 * i + 1], largest_other(job, i));
        put(job, 2, &lse[i], (float)sum);
    }
}

static status_t run_loss(const struct kernel *kernel, const struct kernel_call *call)
{
    struct contrast_job job = job_of(kernel, call);
    const double *losses = call->workspace;
    double sum = 0;
    run_rows(&job, loss_part);
    for (int64_t i = 0; i < job.rows; i++) sum += losses[i];
    put(&job, 0, call->outputs[0], (float)(sum * op_loss_scale(&kernel->desc, job.rows)));
    return NULL;
}

static void anchors_part(const void *argument, size_t begin, size_t end)
{
    const struct contrast_job *job = argument;
    const float *lse = job->call->inputs[1], *counted = job->call->inputs[2];
    float *dx = job->call->outputs[0];
    for (int64_t i = (int64_t)begin; i < (int64_t)end; i++) {
        int64_t positive = (job->first + i) * job->candidates, at = i * job->columns;
        for (int64_t c = 0; c < job->columns; c++) {
            bool counts = counted[c / job->candidates] != 0 && !isinf(lse[i]);
            float share = expf(job->factor * job->x[at + c] - lse[i]) - (float)(c == positive);
            put(job, 0, &dx[at + c], counts ? share * job->scale : 0);
        }
    }
}

static void candidates_part(const void *argument, size_t begin, size_t end)
{
    const struct contrast_job *job = argument;
    const float *lse = job->call->inputs[1];
    float *dx = job->call->outputs[0];
    for (int64_t r = (int64_t)begin; r < (int64_t)end; r++) {
        int64_t pair = job->first + r / job->candidates, at = r * job->columns;
        int64_t anchor = r % job->candidates == 0 ? pair : -1; /* whose positive it is */
        for (int64_t c = 0; c < job->columns; c++) {
            bool counts = !isinf(lse[pair]) && !isinf(lse[c]);
            float share = expf(job->factor * job->x[at + c] - lse[c]) - (float)(c == anchor);
            put(job, 0, &dx[at + c], counts ? share * job->scale : 0);
        }
    }
}

static status_t run_backward(const struct kernel *kernel, const struct kernel_call *call)
{
    struct contrast_job job = job_of(kernel, call);
    bool others = kernel->desc.kind == OP_CONTRASTIVE_LOSS_BACKWARD_OTHERS;
    run_rows(&job, others ? candidates_part : anchors_part);
    return NULL;
}

status_t cpu_prepare_contrast(struct kernel *kernel)
{
    const struct tensor_type *x = &kernel->desc.inputs[0];
    kernel->run = run_backward;
    if (kernel->desc.kind != OP_CONTRASTIVE_LOSS) return NULL;
    kernel->run = run_loss;
    kernel->workspace_bytes = (uint64_t)x->dims[0] * sizeof(double) +
                              (uint64_t)(kernel->threads * x->dims[1]) * sizeof(float);
    return NULL;
}
