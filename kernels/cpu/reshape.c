/*
 * Reshapes. Between tensors in plain order they are a copy (or nothing, if both are the same
 * memory); to or from channels last they transpose every image.
 */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

struct reshape_job {
    const float *x;
    float *y;
    size_t rows, columns; /* of an image of x, in memory order */
    bool add;
};

static void copy_part(const void *argument, size_t begin, size_t end)
{
    const struct reshape_job *job = argument;
    if (job->add) cpu_loops_get()->copy_add(end - begin, job->y + begin, job->x + begin);
    else memcpy(job->y + begin, job->x + begin, (end - begin) * sizeof *job->y);
}

static status_t run_copy(const struct kernel *kernel, const struct kernel_call *call)
{
    struct reshape_job job = {call->inputs[0], call->outputs[0], 0, 0, kernel->desc.accumulate[0]};
    if (job.x == job.y && !job.add) return NULL;
    cpu_parallel(kernel->threads, (size_t)tensor_element_count(&kernel->desc.outputs[0]), CPU_GRAIN,
                 copy_part, &job);
    return NULL;
}

static void transpose_part(const void *argument, size_t begin, size_t end)
{
    const struct reshape_job *job = argument;
    for (size_t image = begin; image < end; image++) {
        size_t offset = image * job->rows * job->columns;
        cpu_loops_get()->transpose(job->rows, job->columns, job->y + offset, job->x + offset,
                                   job->add);
    }
}

static status_t run_transpose(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct tensor_type *x = &kernel->desc.inputs[0], *y = &kernel->desc.outputs[0];
    bool to_plain = !cpu_is_plain(x); /* an image of one channel in channels last is plain */
    const struct tensor_type *image = to_plain ? x : y;
    size_t channels = (size_t)image->dims[1], pixels = (size_t)(image->dims[2] * image->dims[3]);
    struct reshape_job job = {call->inputs[0], call->outputs[0], to_plain ? pixels : channels,
                              to_plain ? channels : pixels, kernel->desc.accumulate[0]};
    cpu_parallel(kernel->threads, (size_t)image->dims[0], 1, transpose_part, &job);
    return NULL;
}

status_t cpu_prepare_reshape(struct kernel *kernel)
{
    const struct tensor_type *x = &kernel->desc.inputs[0], *y = &kernel->desc.outputs[0];
    bool x_plain = cpu_is_plain(x), y_plain = cpu_is_plain(y);
    if ((x_plain && y_plain) || (!x_plain && !y_plain && tensor_same_shape(x, y)))
        kernel->run = run_copy;
    else if (x_plain || y_plain) kernel->run = run_transpose;
    else return reference_prepare(kernel);
    return NULL;
}
