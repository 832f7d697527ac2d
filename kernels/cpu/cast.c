/* Casts between f32 and bf16: one loop over memory, split into one part per thread. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

struct cast_job {
    const struct kernel *kernel;
    const struct kernel_call *call;
};

static void cast_part(const void *argument, size_t begin, size_t end)
{
    const struct cast_job *job = argument;
    const struct op_desc *desc = &job->kernel->desc;
    const struct cpu_loops *loops = cpu_loops_get();
    const void *x = job->call->inputs[0];
    void *y = job->call->outputs[0];
    size_t count = end - begin, size = dtype_size(desc->outputs[0].dtype);
    if (desc->inputs[0].dtype == desc->outputs[0].dtype)
        memcpy((char *)y + begin * size, (const char *)x + begin * size, count * size);
    else if (desc->outputs[0].dtype == DTYPE_BF16)
        loops->f32_to_bf16(count, (uint16_t *)y + begin, (const float *)x + begin);
    else loops->bf16_to_f32(count, (float *)y + begin, (const uint16_t *)x + begin);
}

static status_t run_cast(const struct kernel *kernel, const struct kernel_call *call)
{
    struct cast_job job = {kernel, call};
    cpu_parallel(kernel->threads, (size_t)tensor_element_count(&kernel->desc.outputs[0]), CPU_GRAIN,
                 cast_part, &job);
    return NULL;
}

status_t cpu_prepare_cast(struct kernel *kernel)
{
    const struct op_desc *desc = &kernel->desc;
    if (desc->accumulate[0] || !cpu_same_order(&desc->inputs[0], &desc->outputs[0]))
        return reference_prepare(kernel);
    kernel->run = run_cast;
    return NULL;
}
