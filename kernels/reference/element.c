/* Reference ops on single elements, addressed by their index in plain order. */
#include <math.h>

#include "kernels/bfloat16.h"
#include "kernels/philox.h"
#include "kernels/reference/reference.h"

status_t reference_relu(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct tensor_type *x_type = &kernel->desc.inputs[0], *y_type = &kernel->desc.outputs[0];
    const float *x = call->inputs[0];
    float *y = call->outputs[0];
    int64_t count = tensor_element_count(x_type);
    for (int64_t i = 0; i < count; i++) {
        float value = x[reference_offset(x_type, i)];
        reference_put(kernel, 0, &y[reference_offset(y_type, i)], value <= 0 ? 0 : value);
    }
    return NULL;
}

status_t reference_relu_backward(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct tensor_type *types = kernel->desc.inputs, *dx_type = &kernel->desc.outputs[0];
    const float *dy = call->inputs[0], *y = call->inputs[1];
    float *dx = call->outputs[0];
    int64_t count = tensor_element_count(dx_type);
    for (int64_t i = 0; i < count; i++) {
        float gradient = dy[reference_offset(&types[0], i)];
        bool off = y[reference_offset(&types[1], i)] <= 0;
        reference_put(kernel, 0, &dx[reference_offset(dx_type, i)], off ? 0 : gradient);
    }
    return NULL;
}

/* The word of an element as a fraction of 24 bits. */
static double fraction_of(const struct kernel *kernel, const struct kernel_call *call,
                          uint64_t index)
{
    uint32_t key[2] = {(uint32_t)call->seed, (uint32_t)(call->seed >> 32)}, words[4];
    uint32_t counter[4] = {(uint32_t)(index / 4), kernel->desc.attrs.dropout.stream,
                           (uint32_t)call->step, call->rank};
    philox_block(counter, key, words);
    return (words[index % 4] >> 8) * 0x1p-24;
}

static status_t draw_normal(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct tensor_type *type = &kernel->desc.outputs[0];
    float *y = call->outputs[0];
    for (int64_t i = 0; i < tensor_element_count(type); i++) {
        uint64_t index = kernel_first_element(call) + (uint64_t)i, first = index - index % 16;
        uint64_t pair = first + index % 8;
        double radius = sqrt(-2 * log(1 - fraction_of(kernel, call, pair)));
        double angle = 2 * M_PI * fraction_of(kernel, call, pair + 8);
        reference_put(kernel, 0, &y[reference_offset(type, i)],
                      radius * (index == pair ? cos(angle) : sin(angle)));
    }
    return NULL;
}

status_t reference_dropout(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    const float *x = call->inputs[0];
    float *y = call->outputs[0];
    if (desc->attrs.dropout.normal) return draw_normal(kernel, call);
    double p = desc->attrs.dropout.p;
    float scale = (float)(1 / (1 - p));
    uint32_t key[2] = {(uint32_t)call->seed, (uint32_t)(call->seed >> 32)};
    int64_t count = tensor_element_count(&desc->inputs[0]);
    for (int64_t i = 0; i < count; i++) {
        uint64_t index = kernel_first_element(call) + (uint64_t)i;
        uint32_t counter[4] = {(uint32_t)(index / 4), desc->attrs.dropout.stream,
                               (uint32_t)call->step, call->rank};
        uint32_t words[4];
        philox_block(counter, key, words);
        float value = x[reference_offset(&desc->inputs[0], i)];
        bool kept = words[index % 4] * 0x1p-32 >= p;
        reference_put(kernel, 0, &y[reference_offset(&desc->outputs[0], i)],
                      kept ? value * scale : 0);
    }
    return NULL;
}

status_t reference_dropout_backward(const struct kernel *kernel, const struct kernel_call *call)
{
    return reference_dropout(kernel, call);
}

status_t reference_reshape(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct tensor_type *x_type = &kernel->desc.inputs[0], *y_type = &kernel->desc.outputs[0];
    const float *x = call->inputs[0];
    float *y = call->outputs[0];
    int64_t count = tensor_element_count(x_type);
    for (int64_t i = 0; i < count; i++)
        reference_put(kernel, 0, &y[reference_offset(y_type, i)], x[reference_offset(x_type, i)]);
    return NULL;
}

status_t reference_add(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct tensor_type *types = kernel->desc.inputs, *y_type = &kernel->desc.outputs[0];
    const float *a = call->inputs[0], *b = call->inputs[1];
    float *y = call->outputs[0];
    int64_t count = tensor_element_count(y_type), period = tensor_element_count(&types[1]);
    for (int64_t i = 0; i < count; i++) {
        float sum = a[reference_offset(&types[0], i)] + b[reference_offset(&types[1], i % period)];
        reference_put(kernel, 0, &y[reference_offset(y_type, i)], sum);
    }
    return NULL;
}

status_t reference_cast(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct tensor_type *x_type = &kernel->desc.inputs[0], *y_type = &kernel->desc.outputs[0];
    int64_t count = tensor_element_count(x_type);
    for (int64_t i = 0; i < count; i++) {
        int64_t from = reference_offset(x_type, i), to = reference_offset(y_type, i);
        float value = x_type->dtype == DTYPE_BF16
                          ? bfloat16_to_f32(((const uint16_t *)call->inputs[0])[from])
                          : ((const float *)call->inputs[0])[from];
        if (y_type->dtype == DTYPE_BF16)
            ((uint16_t *)call->outputs[0])[to] = bfloat16_from_f32(value);
        else reference_put(kernel, 0, &((float *)call->outputs[0])[to], value);
    }
    return NULL;
}
