/* The CPU library: which function prepares each op. */
#include "kernels/cpu/cpu.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>

#include "kernels/kernels.h"

static cpu_prepare_function *const functions[OP_KIND_COUNT] = {
    [OP_CONV2D] = cpu_prepare_conv,
    [OP_CONV2D_BACKWARD_DATA] = cpu_prepare_conv,
    [OP_CONV2D_BACKWARD_WEIGHTS] = cpu_prepare_conv,
    [OP_LINEAR] = cpu_prepare_linear,
    [OP_LINEAR_BACKWARD_DATA] = cpu_prepare_linear,
    [OP_LINEAR_BACKWARD_WEIGHTS] = cpu_prepare_linear,
    [OP_RELU] = cpu_prepare_element,
    [OP_RELU_BACKWARD] = cpu_prepare_element,
    [OP_MAX_POOL2D] = cpu_prepare_pool,
    [OP_MAX_POOL2D_BACKWARD] = cpu_prepare_pool,
    [OP_DROPOUT] = cpu_prepare_dropout,
    [OP_DROPOUT_BACKWARD] = cpu_prepare_dropout,
    [OP_RESHAPE] = cpu_prepare_reshape,
    [OP_ADD] = cpu_prepare_element,
    [OP_LOG_SOFTMAX] = cpu_prepare_loss,
    [OP_LOG_SOFTMAX_BACKWARD] = cpu_prepare_loss,
    [OP_NLL_LOSS] = cpu_prepare_loss,
    [OP_NLL_LOSS_BACKWARD] = cpu_prepare_loss,
    [OP_CROSS_ENTROPY] = cpu_prepare_loss,
    [OP_CROSS_ENTROPY_BACKWARD] = cpu_prepare_loss,
    [OP_AVG_POOL2D] = cpu_prepare_avg_pool,
    [OP_AVG_POOL2D_BACKWARD] = cpu_prepare_avg_pool,
    [OP_GROUP_NORM] = cpu_prepare_group_norm,
    [OP_GROUP_NORM_BACKWARD] = cpu_prepare_group_norm,
    [OP_BATCH_NORM] = cpu_prepare_batch_norm,
    [OP_BATCH_NORM_BACKWARD] = cpu_prepare_batch_norm,
    [OP_BATCH_NORM_RUNNING] = cpu_prepare_batch_norm,
    [OP_BATCH_MOMENTS] = cpu_prepare_batch_norm,
    [OP_BATCH_NORM_SUMS] = cpu_prepare_batch_norm,
    [OP_TRANSPOSE] = cpu_prepare_shape,
    [OP_SLICE] = cpu_prepare_slice,
    [OP_SLICE_BACKWARD] = cpu_prepare_slice,
    [OP_CONCAT] = cpu_prepare_shape,
    [OP_MEAN] = cpu_prepare_shape,
    [OP_MEAN_BACKWARD] = cpu_prepare_shape,
    [OP_CONTRASTIVE_LOSS] = cpu_prepare_contrast,
    [OP_CONTRASTIVE_LOSS_BACKWARD] = cpu_prepare_contrast,
    [OP_CONTRASTIVE_LOSS_BACKWARD_OTHERS] = cpu_prepare_contrast,
    [OP_TALLY] = cpu_prepare_tally,
    [OP_ELEMENT_LOSS] = cpu_prepare_element_loss,
    [OP_ELEMENT_LOSS_BACKWARD] = cpu_prepare_element_loss,
    [OP_COUNT_CORRECT] = cpu_prepare_loss,
    [OP_CAST] = cpu_prepare_cast,
    [OP_ROPE] = cpu_prepare_rope,
    [OP_ROPE_BACKWARD] = cpu_prepare_rope,
    [OP_ATTENTION] = cpu_prepare_attention,
    [OP_ATTENTION_BACKWARD] = cpu_prepare_attention,
    [OP_SUM_LEADING] = cpu_prepare_sum_leading,
    [OP_MUL] = cpu_prepare_element,
    [OP_GELU] = cpu_prepare_element,
    [OP_GELU_BACKWARD] = cpu_prepare_element,
    [OP_TANH] = cpu_prepare_element,
    [OP_TANH_BACKWARD] = cpu_prepare_element,
    [OP_SILU] = cpu_prepare_element,
    [OP_SILU_BACKWARD] = cpu_prepare_element,
    [OP_SILU_MUL] = cpu_prepare_element,
    [OP_SILU_MUL_BACKWARD] = cpu_prepare_element,
    [OP_GELU_MUL] = cpu_prepare_element,
    [OP_GELU_MUL_BACKWARD] = cpu_prepare_element,
    [OP_SOFTMAX] = cpu_prepare_softmax,
    [OP_SOFTMAX_BACKWARD] = cpu_prepare_softmax,
    [OP_EMBEDDING] = cpu_prepare_embedding,
    [OP_EMBEDDING_BACKWARD] = cpu_prepare_embedding,
    [OP_LAYER_NORM] = cpu_prepare_norm,
    [OP_LAYER_NORM_BACKWARD] = cpu_prepare_norm,
    [OP_RMS_NORM] = cpu_prepare_norm,
    [OP_RMS_NORM_BACKWARD] = cpu_prepare_norm,
    [OP_LINEAR_CROSS_ENTROPY] = cpu_prepare_head,
    [OP_LINEAR_CROSS_ENTROPY_BACKWARD] = cpu_prepare_head,
    [OP_SCALE] = cpu_prepare_element,
    [OP_RECIPROCAL] = cpu_prepare_element,
    [OP_DIV] = cpu_prepare_element,
    [OP_DIV_BACKWARD] = cpu_prepare_element,
    [OP_SIGMOID] = cpu_prepare_element,
    [OP_SIGMOID_BACKWARD] = cpu_prepare_element,
    [OP_SQUARED_RELU] = cpu_prepare_element,
    [OP_SQUARED_RELU_BACKWARD] = cpu_prepare_element,
};

status_t cpu_prepare(struct kernel *kernel)
{
    cpu_prepare_function *prepare = functions[kernel->desc.kind];
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
    switch (desc->kind) {
    case OP_CONV2D:
    case OP_CONV2D_BACKWARD_DATA: return kernels_have_bf16() && cpu_is_plain(&desc->inputs[1]);
    case OP_CONV2D_BACKWARD_WEIGHTS: return kernels_have_bf16() && cpu_is_plain(&desc->outputs[0]);
    case OP_LINEAR:
    case OP_LINEAR_BACKWARD_DATA:
    case OP_LINEAR_BACKWARD_WEIGHTS:
    case OP_LINEAR_CROSS_ENTROPY:
    case OP_LINEAR_CROSS_ENTROPY_BACKWARD: return kernels_have_bf16();
    case OP_TRANSPOSE:
    case OP_SLICE:
    case OP_SLICE_BACKWARD:
    case OP_CONCAT:
    case OP_ADD:
    case OP_SUM_LEADING:
    case OP_MUL:
    case OP_GELU:
    case OP_GELU_BACKWARD:
    case OP_TANH:
    case OP_TANH_BACKWARD:
    case OP_SCALE:
    case OP_RECIPROCAL:
    case OP_DIV:
    case OP_DIV_BACKWARD:
    case OP_SIGMOID:
    case OP_SIGMOID_BACKWARD:
    case OP_SQUARED_RELU:
    case OP_SQUARED_RELU_BACKWARD:
    case OP_SILU:
    case OP_SILU_BACKWARD:
    case OP_SILU_MUL:
    case OP_SILU_MUL_BACKWARD:
    case OP_GELU_MUL:
    case OP_GELU_MUL_BACKWARD:
    case OP_EMBEDDING:
    case OP_EMBEDDING_BACKWARD:
    case OP_LAYER_NORM:
    case OP_LAYER_NORM_BACKWARD:
    case OP_RMS_NORM:
    case OP_RMS_NORM_BACKWARD:
    case OP_ATTENTION:
    case OP_ATTENTION_BACKWARD: return true;
    default: return false;
    }
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
