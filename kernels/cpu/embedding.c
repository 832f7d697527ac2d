/*
 * Embeddings. Their gradient adds the rows of dy in the order of the tokens, and every thread has
 * columns of its own: the result does not depend on timing, and nothing is sorted. Rows of the
 * table without a token are only zeroed, or not touched at all.
 */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

struct embedding_job {
    const struct kernel *kernel;
    const struct kernel_call *call;
    size_t tokens, columns;
};

static void forward_part(const void *argument, size_t begin, size_t end)
{
    const struct embedding_job *job = argument;
    const int32_t *indices = job->call->inputs[0];
    const struct op_desc *desc = &job->kernel->desc;
    if (desc->accumulate[0]) {
        for (size_t t = begin; t < end; t++)
            cpu_loops_get()->copy_add(job->columns,
                                      (float *)job->call->outputs[0] + t * job->columns,
                                      (const float *)job->call->inputs[1] +
                                          (size_t)indices[t] * job->columns);
        return;
    }
    size_t bytes = job->columns * dtype_size(desc->outputs[0].dtype);
    const char *weight = job->call->inputs[1];
    char *y = job->call->outputs[0];
    for (size_t t = begin; t < end; t++)
        memcpy(y + t * bytes, weight + (size_t)indices[t] * bytes, bytes);
}

static void zero_part(const void *argument, size_t begin, size_t end)
{
    const struct embedding_job *job = argument;
    memset((float *)job->call->outputs[0] + begin, 0, (end - begin) * sizeof(float));
}

static void add_part(const void *argument, size_t begin, size_t end)
{
    const struct embedding_job *job = argument;
    const struct op_desc *desc = &job->kernel->desc;
    const struct cpu_loops *loops = cpu_loops_get();
    const int32_t *indices = job->call->inputs[0];
    const void *dy = job->call->inputs[1];
    float *dweight = job->call->outputs[0];
    for (size_t t = 0; t < job->tokens; t++) {
        if (indices[t] == desc->attrs.embedding.padding_index) continue;
        float *row = dweight + (size_t)indices[t] * job->columns + begin;
        size_t at = t * job->columns + begin;
        if (desc->inputs[1].dtype == DTYPE_BF16)
            loops->copy_add_bf16(end - begin, row, (const uint16_t *)dy + at);
        else loops->copy_add(end - begin, row, (const float *)dy + at);
    }
}

static status_t run_embedding(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    bool forward = desc->kind == OP_EMBEDDING;
    const struct tensor_type *table = forward ? &desc->inputs[1] : &desc->outputs[0];
    struct embedding_job job = {kernel, call, (size_t)tensor_element_count(&desc->inputs[0]),
                                (size_t)table->dims[1]};
    if (forward) {
        size_t grain = (CPU_GRAIN + job.columns - 1) / job.columns;
        cpu_parallel(kernel->threads, job.tokens, grain, forward_part, &job);
        return NULL;
    }
    if (!desc->accumulate[0])
        cpu_parallel(kernel->threads, (size_t)tensor_element_count(table), CPU_GRAIN, zero_part,
                     &job);
    /* Multiples of a cache line, and enough work for a thread to pay. */
    size_t grain = (CPU_GRAIN + job.tokens - 1) / job.tokens;
    cpu_parallel(kernel->threads, job.columns, (grain + 15) / 16 * 16, add_part, &job);
    return NULL;
}

status_t cpu_prepare_embedding(struct kernel *kernel)
{
    kernel->run = run_embedding;
    return NULL;
}
