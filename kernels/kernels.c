/*
 * Entry points of the kernel libraries. They check a description once, pass it to the chosen
 * library, and keep the number of threads. OpenMP stores its own number per calling thread, so
 * every run of a kernel sets it again.
 */
#include "kernels/kernels.h"

#include <omp.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/stacks.h"
#include "kernels/kernel.h"

static atomic_int thread_count = 1;

void kernels_set_threads(int count)
{
    atomic_store(&thread_count, count < 1 ? 1 : count);
}

int kernels_threads(void)
{
    return atomic_load(&thread_count);
}

/* The calling thread's, and those that OpenMP gives it; see stack_for_signals. */
void kernels_use_threads(int count)
{
    static _Thread_local int prepared;
    if (omp_get_max_threads() != count) omp_set_num_threads(count);
    if (prepared >= count) return;
#pragma omp parallel num_threads(count)
    stack_for_signals();
    prepared = count;
}

static status_t check_layout(const struct op_info *info, const char *operand, bool present,
                             const struct tensor_type *type)
{
    if (!present || type->layout == LAYOUT_PLAIN) return NULL;
    if (type->layout == LAYOUT_CHANNELS_LAST && type->dim_count == 4 && info->channels_last)
        return NULL;
    char shape[128];
    return status_new(STATUS_INVALID_ARGUMENT, "%s: %s %s cannot have layout %d", info->name,
                      operand, tensor_format_shape(type, shape), (int)type->layout);
}

static status_t check_layouts(const struct op_desc *desc)
{
    const struct op_info *info = op_info_get(desc->kind);
    for (int i = 0; i < info->input_count; i++)
        TRY(check_layout(info, info->inputs[i].name, desc->input_present[i], &desc->inputs[i]));
    for (int i = 0; i < info->output_count; i++)
        TRY(check_layout(info, info->outputs[i].name, desc->output_present[i], &desc->outputs[i]));
    return NULL;
}

static void reset(struct kernel *kernel)
{
    if (kernel->release != NULL) kernel->release(kernel->state);
    kernel->release = NULL;
    kernel->state = NULL;
    kernel->workspace_bytes = kernel->held_bytes = 0;
}

static status_t prepare(enum kernel_library library, struct kernel *kernel)
{
    if (kernel_has_bf16(&kernel->desc) && kernel->desc.kind != OP_CAST) {
        if (library == KERNELS_REFERENCE || !cpu_runs_bf16(&kernel->desc))
            return mixed_prepare(library, kernel);
        status_t status = cpu_prepare(kernel);
        if (status_code(status) != STATUS_UNIMPLEMENTED) return status;
        status_free(status);
        reset(kernel);
        return mixed_prepare(library, kernel);
    }
    return library == KERNELS_REFERENCE ? reference_prepare(kernel) : cpu_prepare(kernel);
}

status_t kernel_new(enum kernel_library library, const struct op_desc *desc, struct kernel **kernel)
{
    TRY(op_desc_check(desc));
    TRY(check_layouts(desc));
    struct kernel *made = mem_alloc(sizeof *made);
    made->desc = *desc;
    made->threads = kernels_threads();
    kernels_use_threads(made->threads);
    status_t status = prepare(library, made);
    if (status != NULL) {
        kernel_free(made);
        return status;
    }
    *kernel = made;
    return NULL;
}

void kernel_free(struct kernel *kernel)
{
    if (kernel == NULL) return;
    if (kernel->release != NULL) kernel->release(kernel->state);
    free(kernel);
}

uint64_t kernel_workspace_bytes(const struct kernel *kernel)
{
    return kernel->workspace_bytes;
}

uint64_t kernel_held_bytes(const struct kernel *kernel)
{
    return kernel->held_bytes;
}

status_t kernel_run(struct kernel *kernel, const struct kernel_call *call)
{
    kernels_use_threads(kernel->threads);
    return kernel->run(kernel, call);
}
