/*
 * The log-probabilities of sequences, place by place; see SEQUENCE_LOG_PROBS in ops/op.h. A row's
 * sum is in double from its first target to its last, so the bits do not depend on the number of
 * threads. The loss itself has a few numbers for a pair: the reference computes it.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

struct sequence_job {
    const struct kernel *kernel;
    const struct kernel_call *call;
    int64_t time, classes;
};

static void run_places(const struct sequence_job *job, int64_t places,
                       void (*part)(const void *argument, size_t begin, size_t end))
{
    size_t grain = job->classes < CPU_GRAIN ? (size_t)(CPU_GRAIN / job->classes) : 1;
    cpu_parallel(job->kernel->threads, (size_t)places, grain, part, job);
}

/* Where the sum is that has the token at `at`: a row's, or with `starts` its document's. */
static int64_t place_of(const struct sequence_job *job, const int32_t *starts, int64_t at)
{
    int64_t row = at / job->time;
    return starts != NULL ? row * job->time + starts[at] : row;
}

static void lse_part(const void *argument, size_t begin, size_t end)
{
    const struct sequence_job *job = argument;
    float *scores = (float *)job->call->inputs[0], *lse = job->call->outputs[2];
    size_t classes = (size_t)job->classes;
    for (size_t at = begin; at < end; at++) /* only read: not to be written */
        lse[at] = (float)cpu_loops_get()->softmax_scaled(classes, scores + at * classes, 0, false);
}

static status_t run_log_probs(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct tensor_type *x = &kernel->desc.inputs[0];
    const struct sequence_job job = {kernel, call, x->dims[1], x->dims[2]};
    const float *scores = call->inputs[0], *lse = call->outputs[2];
    const int32_t *target = call->inputs[1];
    float *y = call->outputs[0], *counts = call->outputs[1];
    run_places(&job, x->dims[0] * x->dims[1], lse_part);
    const int32_t *starts = kernel->desc.input_present[2] ? call->inputs[2] : NULL;
    double sum = 0;
    int64_t places = x->dims[0] * x->dims[1], count = 0;
    for (int64_t at = 0; at < places; at++) {
        int64_t made = place_of(&job, starts, at);
        if (starts != NULL) y[at] = counts[at] = 0;
        if (target[at] >= 0) {
            sum += (double)scores[at * job.classes + target[at]] - lse[at];
            count++;
        }
        if (at + 1 < places && place_of(&job, starts, at + 1) == made) continue;
        y[made] = (float)sum;
        counts[made] = (float)count;
        sum = 0;
        count = 0;
    }
    return NULL;
}

static void backward_part(const void *argument, size_t begin, size_t end)
{
    const struct sequence_job *job = argument;
    const float *dy = job->call->inputs[0], *x = job->call->inputs[1], *lse = job->call->inputs[3];
    const int32_t *target = job->call->inputs[2];
    const int32_t *starts = job->kernel->desc.input_present[4] ? job->call->inputs[4] : NULL;
    size_t classes = (size_t)job->classes;
    for (size_t at = begin; at < end; at++) {
        float *dx = (float *)job->call->outputs[0] + at * classes;
        float slope = dy[place_of(job, starts, (int64_t)at)];
        if (target[at] < 0 || slope == 0) {
            for (size_t c = 0; c < classes; c++) dx[c] = 0;
            continue;
        }
        cpu_loops_get()->affine(classes, dx, x + at * classes, 1, -lse[at], false);
        cpu_loops_get()->exp_scaled(classes, dx, dx, -slope, false);
        dx[target[at]] += slope;
    }
}

static status_t run_backward(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct tensor_type *x = &kernel->desc.inputs[1];
    const struct sequence_job job = {kernel, call, x->dims[1], x->dims[2]};
    run_places(&job, x->dims[0] * x->dims[1], backward_part);
    return NULL;
}

status_t cpu_prepare_preference(struct kernel *kernel)
{
    const struct op_desc *desc = &kernel->desc;
    bool adds = desc->accumulate[0] || desc->accumulate[1] || desc->accumulate[2];
    if (desc->kind == OP_PREFERENCE_LOSS || adds) return reference_prepare(kernel);
    kernel->run = desc->kind == OP_SEQUENCE_LOG_PROBS ? run_log_probs : run_backward;
    return NULL;
}
