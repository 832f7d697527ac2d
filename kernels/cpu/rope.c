/*
 * Rotary positions, forward and backward: the cosines and sines of every position are made once,
 * when the kernel is, as Hugging Face's models make them: angles and their cosines rounded to f32.
 */
#include "kernels/rope.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

struct rope_job {
    const struct kernel *kernel;
    const struct kernel_call *call;
    size_t time, heads, half;
};

/* Rows of (batch, time). */
static void rope_part(const void *argument, size_t begin, size_t end)
{
    const struct rope_job *job = argument;
    const float *cosines = job->kernel->state, *sines = cosines + job->time * job->half;
    size_t width = 2 * job->heads * job->half;
    for (size_t row = begin; row < end; row++) {
        size_t at = row % job->time * job->half;
        cpu_loops_get()->rotate(job->heads, job->half, (float *)job->call->outputs[0] + row * width,
                                (const float *)job->call->inputs[0] + row * width, cosines + at,
                                sines + at, job->kernel->desc.accumulate[0]);
    }
}

static status_t run_rope(const struct kernel *kernel, const struct kernel_call *call)
{
    const int64_t *dims = kernel->desc.inputs[0].dims;
    int64_t head = kernel->desc.attrs.rope.head_dim;
    struct rope_job job = {kernel, call, (size_t)dims[1], (size_t)(dims[2] / head),
                           (size_t)head / 2};
    size_t grain = (size_t)dims[2] < CPU_GRAIN ? CPU_GRAIN / (size_t)dims[2] : 1;
    cpu_parallel(kernel->threads, (size_t)(dims[0] * dims[1]), grain, rope_part, &job);
    return STATUS_OKAY;
}

status_t cpu_prepare_rope(struct kernel *kernel)
{
    size_t time = (size_t)kernel->desc.inputs[0].dims[1];
    size_t half = (size_t)kernel->desc.attrs.rope.head_dim / 2, count = time * half;
    float sign = kernel->desc.kind == OP_ROPE_BACKWARD ? -1 : 1;
    float *table = mem_alloc_array(2 * count, sizeof *table);
    kernel->state = table;
    kernel->release = free;
    kernel->held_bytes = 2 * count * sizeof *table;
    kernel->run = run_rope;
    float *frequencies = mem_alloc_array(half, sizeof *frequencies);
    rope_frequencies(&kernel->desc, frequencies);
    for (size_t i = 0; i < count; i++) {
        float angle = (float)(i / half) * frequencies[i % half];
        table[i] = (float)cos(angle);
        table[count + i] = sign * (float)sin(angle);
    }
    free(frequencies);
    return STATUS_OKAY;
}
