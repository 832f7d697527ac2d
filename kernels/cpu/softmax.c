/* Softmax over the last dimension, and its gradient; rows are split into one part per thread. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

struct softmax_job {
    const struct kernel *kernel;
    const struct kernel_call *call;
    size_t columns;
};

static void softmax_part(const void *argument, size_t begin, size_t end)
{
    const struct softmax_job *job = argument;
    const struct op_desc *desc = &job->kernel->desc;
    const struct cpu_loops *loops = cpu_loops_get();
    size_t n = job->columns;
    const float *first = job->call->inputs[0], *y = job->call->inputs[1];
    float *out = job->call->outputs[0];
    for (size_t at = begin * n; at < end * n; at += n)
        if (desc->kind == OP_SOFTMAX) loops->softmax(n, out + at, first + at, desc->accumulate[0]);
        else loops->softmax_backward(n, out + at, first + at, y + at, desc->accumulate[0]);
}

static status_t run_softmax(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct tensor_type *x = &kernel->desc.inputs[0];
    size_t columns = (size_t)x->dims[x->dim_count - 1];
    struct softmax_job job = {kernel, call, columns};
    cpu_parallel(kernel->threads, (size_t)tensor_element_count(x) / columns,
                 (CPU_GRAIN + columns - 1) / columns, softmax_part, &job);
    return NULL;
}

status_t cpu_prepare_softmax(struct kernel *kernel)
{
    kernel->run = run_softmax;
    return NULL;
}
