/*
 * Ops on bf16 for libraries with f32 kernels only: the operands in bf16 are converted to f32 in the
 * workspace, the f32 kernel runs, and its results are rounded. Ops that treat every sample alike
 * process the batch in slices, so that the workspace stays small and in the cache.
 *
 * The inner kernel belongs to the outer one's state.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "kernels/cpu/loops.h"
#include "kernels/kernel.h"

enum { SLICE_ELEMENTS = 16 * 1024, ALIGNMENT = 64 };

struct mixed_operand {
    bool present, converted;
    size_t elements; /* of a slice */
    size_t bytes;    /* of a slice, in the caller's type */
    uint64_t offset; /* of the f32 copy in the workspace */
};

struct mixed {
    struct kernel *inner;
    int64_t slices;
    struct mixed_operand inputs[OP_MAX_INPUTS], outputs[OP_MAX_OUTPUTS];
    uint64_t inner_offset;
};

bool kernel_has_bf16(const struct op_desc *desc)
{
    for (int i = 0; i < desc->input_count; i++)
        if (desc->input_present[i] && desc->inputs[i].dtype == DTYPE_BF16) return true;
    for (int i = 0; i < desc->output_count; i++)
        if (desc->output_present[i] && desc->outputs[i].dtype == DTYPE_BF16) return true;
    return false;
}

static bool goes_by_sample(enum op_kind kind)
{
    return kind == OP_RELU || kind == OP_RELU_BACKWARD || kind == OP_ADD || kind == OP_MAX_POOL2D ||
           kind == OP_MAX_POOL2D_BACKWARD || kind == OP_RESHAPE || kind == OP_ROPE ||
           kind == OP_ROPE_BACKWARD;
}

/* The second operand of ADD may lack the batch dimension. */
static bool is_broadcast(const struct op_desc *desc)
{
    return desc->kind == OP_ADD && desc->inputs[1].dim_count < desc->inputs[0].dim_count;
}

/* Samples per slice: the most that divide the batch without making a slice too large. */
static int64_t samples_of_slice(const struct op_desc *desc)
{
    const struct tensor_type *x = &desc->inputs[0], *y = &desc->outputs[0];
    if (!goes_by_sample(desc->kind) || is_broadcast(desc) || x->dim_count < 1 || y->dim_count < 1 ||
        x->dims[0] != y->dims[0])
        return 0;
    int64_t count = x->dims[0], larger = tensor_element_count(x);
    if (tensor_element_count(y) > larger) larger = tensor_element_count(y);
    int64_t samples = 1;
    for (int64_t d = 2; d <= count && larger / count * d <= SLICE_ELEMENTS; d++)
        if (count % d == 0) samples = d;
    return samples;
}

static void cut_operand(struct mixed_operand *operand, struct tensor_type *type, int64_t samples,
                        uint64_t *end)
{
    operand->present = true;
    if (samples > 0) type->dims[0] = samples;
    operand->bytes = tensor_bytes(type);
    operand->elements = (size_t)tensor_element_count(type);
    if (type->dtype != DTYPE_BF16) return;
    type->dtype = DTYPE_F32;
    operand->converted = true;
    operand->offset = *end;
    *end += round_up(tensor_bytes(type), ALIGNMENT);
}

static const void *place_input(const struct mixed_operand *operand, int64_t slice,
                               const void *memory, char *workspace)
{
    if (!operand->present) return NULL;
    const char *from = (const char *)memory + (size_t)slice * operand->bytes;
    if (!operand->converted) return from;
    float *to = (float *)(workspace + operand->offset);
    cpu_loops_get()->bf16_to_f32(operand->elements, to, (const uint16_t *)from);
    return to;
}

static status_t run_mixed(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct mixed *mixed = kernel->state;
    char *workspace = call->workspace;
    for (int64_t slice = 0; slice < mixed->slices; slice++) {
        struct kernel_call inner = *call;
        inner.workspace = workspace + mixed->inner_offset;
        for (int i = 0; i < OP_MAX_INPUTS; i++)
            inner.inputs[i] = place_input(&mixed->inputs[i], slice, call->inputs[i], workspace);
        for (int i = 0; i < OP_MAX_OUTPUTS; i++) {
            const struct mixed_operand *output = &mixed->outputs[i];
            if (!output->present) continue;
            inner.outputs[i] =
                output->converted && !kernel->desc.accumulate[i]
                    ? workspace + output->offset
                    : (void *)place_input(output, slice, call->outputs[i], workspace);
        }
        TRY(kernel_run(mixed->inner, &inner));
        for (int i = 0; i < OP_MAX_OUTPUTS; i++) {
            const struct mixed_operand *output = &mixed->outputs[i];
            if (!output->present || !output->converted) continue;
            char *to = (char *)call->outputs[i] + (size_t)slice * output->bytes;
            cpu_loops_get()->f32_to_bf16(output->elements, (uint16_t *)to,
                                         (const float *)(workspace + output->offset));
        }
    }
    return NULL;
}

static void release_mixed(void *state)
{
    struct mixed *mixed = state;
    kernel_free(mixed->inner);
    free(mixed);
}

status_t mixed_prepare(enum kernel_library library, struct kernel *kernel)
{
    struct op_desc desc = kernel->desc;
    if (desc.kind == OP_ATTENTION && desc.output_present[2])
        return status_new(STATUS_UNIMPLEMENTED, "%s: a cache in bf16", kernel_name(kernel));
    struct mixed *mixed = mem_alloc(sizeof *mixed);
    kernel->state = mixed;
    kernel->release = release_mixed;
    int64_t samples = samples_of_slice(&desc);
    mixed->slices = samples > 0 ? desc.inputs[0].dims[0] / samples : 1;
    uint64_t end = 0;
    for (int i = 0; i < desc.input_count; i++)
        if (desc.input_present[i]) cut_operand(&mixed->inputs[i], &desc.inputs[i], samples, &end);
    for (int i = 0; i < desc.output_count; i++)
        if (desc.output_present[i])
            cut_operand(&mixed->outputs[i], &desc.outputs[i], samples, &end);
    TRY(kernel_new(library, &desc, &mixed->inner));
    mixed->inner_offset = end;
    kernel->workspace_bytes = end + kernel_workspace_bytes(mixed->inner);
    kernel->held_bytes = sizeof *mixed + kernel_held_bytes(mixed->inner);
    kernel->run = run_mixed;
    return NULL;
}
