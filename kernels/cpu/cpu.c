/* The CPU library: which function prepares each op. */
#include "kernels/cpu/cpu.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>

#include "kernels/kernels.h"
#include "kernels/linear_rows.h"

/* Where an op runs on bf16 itself rather than on f32 copies. */
enum bf16_support {
    BF16_NOWHERE,
    BF16_NATIVE, /* on processors with such instructions */
    BF16_EVERYWHERE,
};

/* Kinds keep their places in the enum (plans are hashed with them), and so do these ranges. */
static const struct {
    cpu_prepare_function *prepare;
    enum bf16_support bf16;
} ops[OP_KIND_COUNT] = {
    [OP_CONV2D... OP_CONV2D_BACKWARD_WEIGHTS] = {cpu_prepare_conv, BF16_NATIVE},
    [OP_LINEAR... OP_LINEAR_BACKWARD_WEIGHTS] = {cpu_prepare_linear, BF16_NATIVE},
    [OP_RELU... OP_RELU_BACKWARD] = {cpu_prepare_element, BF16_NOWHERE},
    [OP_MAX_POOL2D... OP_MAX_POOL2D_BACKWARD] = {cpu_prepare_pool, BF16_NOWHERE},
    [OP_DROPOUT... OP_DROPOUT_BACKWARD] = {cpu_prepare_dropout, BF16_NOWHERE},
    [OP_RESHAPE] = {cpu_prepare_reshape, BF16_NOWHERE},
    [OP_ADD] = {cpu_prepare_element, BF16_EVERYWHERE},
    [OP_LOG_SOFTMAX... OP_COUNT_CORRECT] = {cpu_prepare_loss, BF16_NOWHERE},
    [OP_CAST] = {cpu_prepare_cast, BF16_NOWHERE},
    [OP_SUM_LEADING] = {cpu_prepare_sum_leading, BF16_EVERYWHERE},
    [OP_MUL... OP_SILU_MUL_BACKWARD] = {cpu_prepare_element, BF16_EVERYWHERE},
    [OP_SOFTMAX... OP_SOFTMAX_BACKWARD] = {cpu_prepare_softmax, BF16_NOWHERE},
    [OP_EMBEDDING... OP_EMBEDDING_BACKWARD] = {cpu_prepare_embedding, BF16_EVERYWHERE},
    [OP_LAYER_NORM... OP_RMS_NORM_BACKWARD] = {cpu_prepare_norm, BF16_EVERYWHERE},
    [OP_ROPE... OP_ROPE_BACKWARD] = {cpu_prepare_rope, BF16_NOWHERE},
    [OP_ATTENTION... OP_ATTENTION_BACKWARD] = {cpu_prepare_attention, BF16_EVERYWHERE},
    [OP_LINEAR_CROSS_ENTROPY... OP_LINEAR_CROSS_ENTROPY_BACKWARD] = {cpu_prepare_head, BF16_NATIVE},
    [OP_TANH... OP_SQUARED_RELU_BACKWARD] = {cpu_prepare_element, BF16_EVERYWHERE},
    [OP_ELEMENT_LOSS... OP_ELEMENT_LOSS_BACKWARD] = {cpu_prepare_element_loss, BF16_NOWHERE},
    [OP_TRANSPOSE] = {cpu_prepare_shape, BF16_EVERYWHERE},
    [OP_SLICE... OP_SLICE_BACKWARD] = {cpu_prepare_slice, BF16_EVERYWHERE},
    [OP_CONCAT] = {cpu_prepare_shape, BF16_EVERYWHERE},
    [OP_MEAN... OP_MEAN_BACKWARD] = {cpu_prepare_shape, BF16_NOWHERE},
    [OP_GELU_MUL... OP_GELU_MUL_BACKWARD] = {cpu_prepare_element, BF16_EVERYWHERE},
    [OP_AVG_POOL2D... OP_AVG_POOL2D_BACKWARD] = {cpu_prepare_avg_pool, BF16_NOWHERE},
    [OP_GROUP_NORM... OP_GROUP_NORM_BACKWARD] = {cpu_prepare_group_norm, BF16_NOWHERE},
    [OP_TALLY] = {cpu_prepare_tally, BF16_NOWHERE},
    [OP_BATCH_NORM... OP_BATCH_NORM_SUMS] = {cpu_prepare_batch_norm, BF16_NOWHERE},
    [OP_CONTRASTIVE_LOSS...
        OP_CONTRASTIVE_LOSS_BACKWARD_OTHERS] = {cpu_prepare_contrast, BF16_NOWHERE},
    [OP_FUNCTION... OP_FUNCTION_BACKWARD] = {cpu_prepare_element, BF16_EVERYWHERE},
    [OP_RECURRENT... OP_RECURRENT_BACKWARD] = {cpu_prepare_recurrent, BF16_NOWHERE},
    [OP_MATMUL] = {cpu_prepare_matmul, BF16_NOWHERE},
    [OP_SEQUENCE_LOG_PROBS... OP_PREFERENCE_LOSS] = {cpu_prepare_preference, BF16_NOWHERE},
};

status_t cpu_prepare(struct kernel *kernel)
{
    cpu_prepare_function *prepare = ops[kernel->desc.kind].prepare;
    return prepare == NULL ? reference_prepare(kernel) : prepare(kernel);
}

status_t cpu_leave_to_reference(struct kernel *kernel)
{
    if (kernel_has_bf16(&kernel->desc))
        return status_new(STATUS_UNIMPLEMENTED, "%s: not on bf16 itself", kernel_name(kernel));
    return reference_prepare(kernel);
}

bool kernels_have_bf16(void)
{
    int isa = (int)dnnl_get_effective_cpu_isa(), wanted = (int)dnnl_cpu_isa_avx512_core_bf16;
    return (isa & wanted) == wanted;
}

bool cpu_runs_bf16(const struct op_desc *desc)
{
    enum bf16_support support = ops[desc->kind].bf16;
    if (support != BF16_NATIVE) return support == BF16_EVERYWHERE;
    if (desc->kind == OP_LINEAR && linear_keeps_rows_apart(desc)) return true;
    if (desc->kind == OP_CONV2D_BACKWARD_WEIGHTS && !cpu_is_plain(&desc->outputs[0])) return false;
    if ((desc->kind == OP_CONV2D || desc->kind == OP_CONV2D_BACKWARD_DATA) &&
        !cpu_is_plain(&desc->inputs[1]))
        return false;
    return kernels_have_bf16();
}

bool cpu_is_plain(const struct tensor_type *type)
{
    return type->layout == LAYOUT_PLAIN || type->dims[1] == 1 || type->dims[2] * type->dims[3] == 1;
}

bool cpu_same_order(const struct tensor_type *a, const struct tensor_type *b)
{
    return a->layout == b->layout || (cpu_is_plain(a) && cpu_is_plain(b));
}

void kernel_cpu_version(char *text, size_t size)
{
    const dnnl_version_t *version = dnnl_version();
    snprintf(text, size, "oneDNN %d.%d.%d", version->major, version->minor, version->patch);
}
