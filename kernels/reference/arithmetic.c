/* Reference products, quotients and arithmetic with constants; tensors in plain order. The last
 * operand of two tensors may repeat, where it has only the last dimensions of the first. */
#include "kernels/reference/reference.h"

status_t reference_mul(const struct kernel *kernel, const struct kernel_call *call)
{
    const float *a = call->inputs[0], *b = call->inputs[1];
    float *y = call->outputs[0];
    int64_t count = tensor_element_count(&kernel->desc.inputs[0]);
    int64_t period = tensor_element_count(&kernel->desc.inputs[1]);
    for (int64_t i = 0; i < count; i++)
        reference_put(kernel, 0, &y[i], (double)a[i] * b[i % period]);
    return NULL;
}

status_t reference_div(const struct kernel *kernel, const struct kernel_call *call)
{
    const float *a = call->inputs[0], *b = call->inputs[1];
    float *y = call->outputs[0];
    int64_t count = tensor_element_count(&kernel->desc.inputs[0]);
    int64_t period = tensor_element_count(&kernel->desc.inputs[1]);
    for (int64_t i = 0; i < count; i++)
        reference_put(kernel, 0, &y[i], (double)a[i] / b[i % period]);
    return NULL;
}

status_t reference_div_backward(const struct kernel *kernel, const struct kernel_call *call)
{
    const float *dy = call->inputs[0], *y = call->inputs[1], *b = call->inputs[2];
    float *db = call->outputs[0];
    int64_t count = tensor_element_count(&kernel->desc.inputs[0]);
    int64_t period = tensor_element_count(&kernel->desc.inputs[2]);
    for (int64_t i = 0; i < count; i++)
        reference_put(kernel, 0, &db[i], -(double)dy[i] * y[i] / b[i % period]);
    return NULL;
}

status_t reference_scale(const struct kernel *kernel, const struct kernel_call *call)
{
    const float *x = call->inputs[0];
    float *y = call->outputs[0];
    float factor = (float)kernel->desc.attrs.scale.factor;
    float offset = (float)kernel->desc.attrs.scale.offset;
    int64_t count = tensor_element_count(&kernel->desc.inputs[0]);
    for (int64_t i = 0; i < count; i++)
        reference_put(kernel, 0, &y[i], (double)x[i] * factor + offset);
    return NULL;
}

status_t reference_reciprocal(const struct kernel *kernel, const struct kernel_call *call)
{
    const float *x = call->inputs[0];
    float *y = call->outputs[0];
    float factor = (float)kernel->desc.attrs.scale.factor;
    int64_t count = tensor_element_count(&kernel->desc.inputs[0]);
    for (int64_t i = 0; i < count; i++) reference_put(kernel, 0, &y[i], (double)factor / x[i]);
    return NULL;
}
