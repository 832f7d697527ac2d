/*
 * Some places of a tensor's dimension, and their gradient. Whatever is behind that dimension
 * belongs to its places, so a tensor is rows of them, which are copied, split into one range of
 * rows per thread. bf16 is only converted where two numbers are added.
 */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

enum { BLOCK = 512 };

struct slice_job {
    const struct op_desc *desc;
    const struct kernel_call *call;
    size_t whole, part, start; /* elements of a row */
    size_t size;               /* bytes of an element */
};

static void forward_part(const void *argument, size_t begin, size_t end)
{
    const struct slice_job *job = argument;
    for (size_t row = begin; row < end; row++) {
        const char *x =
            (const char *)job->call->inputs[0] + (row * job->whole + job->start) * job->size;
        char *y = (char *)job->call->outputs[0] + row * job->part * job->size;
        if (job->desc->accumulate[0])
            cpu_loops_get()->copy_add(job->part, (float *)(void *)y,
                                      (const float *)(const void *)x);
        else memcpy(y, x, job->part * job->size);
    }
}

/* to += from */
static void add_bf16(size_t n, uint16_t *to, const uint16_t *from)
{
    const struct cpu_loops *loops = cpu_loops_get();
    _Alignas(64) float a[BLOCK], b[BLOCK];
    for (size_t at = 0; at < n; at += BLOCK) {
        size_t count = n - at < BLOCK ? n - at : BLOCK;
        loops->bf16_to_f32(count, a, to + at);
        loops->bf16_to_f32(count, b, from + at);
        loops->add(count, a, a, b, false);
        loops->f32_to_bf16(count, to + at, a);
    }
}

static void backward_part(const void *argument, size_t begin, size_t end)
{
    const struct slice_job *job = argument;
    const struct cpu_loops *loops = cpu_loops_get();
    bool has_other = job->desc->input_present[1], add = job->desc->accumulate[0];
    size_t bytes = job->whole * job->size;
    for (size_t row = begin; row < end; row++) {
        const char *dy = (const char *)job->call->inputs[0] + row * job->part * job->size;
        const char *other = has_other ? (const char *)job->call->inputs[1] + row * bytes : NULL;
        char *dx = (char *)job->call->outputs[0] + row * bytes, *to = dx + job->start * job->size;
        if (add && has_other)
            loops->copy_add(job->whole, (float *)(void *)dx, (const float *)(const void *)other);
        else if (has_other) memcpy(dx, other, bytes);
        else if (!add) memset(dx, 0, bytes);
        if (!has_other && !add) memcpy(to, dy, job->part * job->size);
        else if (job->size == sizeof(float))
            loops->copy_add(job->part, (float *)(void *)to, (const float *)(const void *)dy);
        else add_bf16(job->part, (uint16_t *)(void *)to, (const uint16_t *)(const void *)dy);
    }
}

static status_t run_slice(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    bool forward = desc->kind == OP_SLICE;
    const struct tensor_type *whole = forward ? &desc->inputs[0] : &desc->outputs[0];
    const struct tensor_type *part = forward ? &desc->outputs[0] : &desc->inputs[0];
    struct op_dim view = op_dim_of(whole, desc->attrs.slice.dim);
    struct slice_job job = {desc,
                            call,
                            (size_t)(view.count * view.inner),
                            (size_t)(tensor_element_count(part) / view.outer),
                            (size_t)(desc->attrs.slice.start * view.inner),
                            dtype_size(whole->dtype)};
    size_t width = forward ? job.part : job.whole, grain = (CPU_GRAIN + width - 1) / width;
    cpu_parallel(kernel->threads, (size_t)view.outer, grain, forward ? forward_part : backward_part,
                 &job);
    return NULL;
}

status_t cpu_prepare_slice(struct kernel *kernel)
{
    kernel->run = run_slice;
    return NULL;
}
