/* Element-wise ops: one loop over memory, cut into a part per thread. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

struct element_job {
    const struct kernel *kernel;
    const struct kernel_call *call;
};

static void run_part(const void *argument, size_t begin, size_t end)
{
    const struct element_job *job = argument;
    const struct cpu_loops *loops = cpu_loops_get();
    const float *first = (const float *)job->call->inputs[0] + begin;
    float *output = (float *)job->call->outputs[0] + begin;
    bool add = job->kernel->desc.accumulate[0];
    if (job->kernel->desc.kind == OP_RELU) {
        loops->relu(end - begin, output, first, add);
        return;
    }
    const float *second = (const float *)job->call->inputs[1] + begin;
    if (job->kernel->desc.kind == OP_RELU_BACKWARD)
        loops->relu_backward(end - begin, output, first, second, add);
    else loops->add(end - begin, output, first, second, add);
}

static status_t run_element(const struct kernel *kernel, const struct kernel_call *call)
{
    struct element_job job = {kernel, call};
    cpu_parallel(kernel->threads, (size_t)tensor_element_count(&kernel->desc.outputs[0]), CPU_GRAIN,
                 run_part, &job);
    return STATUS_OKAY;
}

status_t cpu_prepare_element(struct kernel *kernel)
{
    const struct op_desc *desc = &kernel->desc;
    for (int i = 0; i < desc->input_count; i++)
        if (!tensor_same_shape(&desc->inputs[i], &desc->outputs[0]) ||
            !cpu_same_order(&desc->inputs[i], &desc->outputs[0]))
            return reference_prepare(kernel);
    kernel->run = run_element;
    return STATUS_OKAY;
}
