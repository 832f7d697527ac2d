/* The reference library: which function runs each op, and how elements are addressed. */
#include "kernels/reference/reference.h"

static reference_function *const functions[OP_KIND_COUNT] = {
#define ENTRY(KIND, name) [OP_##KIND] = reference_##name,
    REFERENCE_FUNCTIONS(ENTRY)
#undef ENTRY
};

static uint64_t workspace_of(const struct op_desc *desc)
{
    switch (desc->kind) {
    case OP_ROPE:
    case OP_ROPE_BACKWARD: return (uint64_t)desc->attrs.rope.head_dim / 2 * sizeof(float);
    case OP_ATTENTION:
    case OP_ATTENTION_BACKWARD: return reference_attention_workspace(desc);
    case OP_LINEAR_CROSS_ENTROPY:
    case OP_LINEAR_CROSS_ENTROPY_BACKWARD: return reference_head_workspace(desc);
    case OP_RECURRENT:
    case OP_RECURRENT_BACKWARD: return reference_recurrent_workspace(desc);
    default: return 0;
    }
}

status_t reference_prepare(struct kernel *kernel)
{
    kernel->workspace_bytes = workspace_of(&kernel->desc);
    kernel->run = functions[kernel->desc.kind];
    if (kernel->run == NULL)
        return status_new(STATUS_UNIMPLEMENTED, "%s: there is no kernel yet", kernel_name(kernel));
    return NULL;
}

struct strides reference_strides(const struct tensor_type *type)
{
    int64_t c = type->dims[1], h = type->dims[2], w = type->dims[3];
    if (type->layout == LAYOUT_CHANNELS_LAST)
        return (struct strides){.n = c * h * w, .c = 1, .h = w * c, .w = c};
    return (struct strides){.n = c * h * w, .c = h * w, .h = w, .w = 1};
}

int64_t reference_offset(const struct tensor_type *type, int64_t index)
{
    if (type->layout == LAYOUT_PLAIN) return index;
    struct strides s = reference_strides(type);
    int64_t w = index % type->dims[3], h = index / type->dims[3] % type->dims[2];
    int64_t plane = index / (type->dims[3] * type->dims[2]);
    return plane / type->dims[1] * s.n + plane % type->dims[1] * s.c + h * s.h + w * s.w;
}
