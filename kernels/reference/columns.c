/* Reference ops on some of a tensor's columns; tensors in plain order. */
#include "kernels/reference/reference.h"

status_t reference_narrow(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    int64_t whole = kernel_columns(&desc->inputs[0]), part = kernel_columns(&desc->outputs[0]);
    int64_t rows = kernel_rows(&desc->inputs[0]), start = desc->attrs.narrow.start;
    const float *x = call->inputs[0];
    float *y = call->outputs[0];
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < part; i++)
            reference_put(kernel, 0, &y[row * part + i], x[row * whole + start + i]);
    return NULL;
}

status_t reference_narrow_backward(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    int64_t whole = kernel_columns(&desc->outputs[0]), part = kernel_columns(&desc->inputs[0]);
    int64_t rows = kernel_rows(&desc->outputs[0]), start = desc->attrs.narrow.start;
    const float *dy = call->inputs[0], *other = desc->input_present[1] ? call->inputs[1] : NULL;
    float *dx = call->outputs[0];
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < whole; i++) {
            double value = other != NULL ? other[row * whole + i] : 0;
            if (i >= start && i < start + part) value += dy[row * part + i - start];
            reference_put(kernel, 0, &dx[row * whole + i], value);
        }
    return NULL;
}
