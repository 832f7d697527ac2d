/* Reference pooling. An index is the maximum's position in its window, padding included. */
#include <math.h>

#include "kernels/reference/reference.h"

status_t reference_max_pool2d(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    const struct tensor_type *x_type = &desc->inputs[0], *y_type = &desc->outputs[0];
    struct strides xs = reference_strides(x_type), ys = reference_strides(y_type);
    struct strides is = reference_strides(&desc->outputs[1]);
    const int64_t *size = desc->attrs.pool.kernel, *stride = desc->attrs.pool.stride;
    const int64_t *padding = desc->attrs.pool.padding;
    const float *x = call->inputs[0];
    float *y = call->outputs[0];
    uint8_t *indices = desc->output_present[1] ? call->outputs[1] : NULL;
    for (int64_t n = 0; n < y_type->dims[0]; n++)
        for (int64_t c = 0; c < y_type->dims[1]; c++)
            for (int64_t oh = 0; oh < y_type->dims[2]; oh++)
                for (int64_t ow = 0; ow < y_type->dims[3]; ow++) {
                    float best = -INFINITY;
                    int64_t winner = -1;
                    for (int64_t k = 0; k < size[0] * size[1]; k++) {
                        int64_t ih = oh * stride[0] - padding[0] + k / size[1];
                        int64_t iw = ow * stride[1] - padding[1] + k % size[1];
                        if (ih < 0 || ih >= x_type->dims[2] || iw < 0 || iw >= x_type->dims[3])
                            continue;
                        float value = x[n * xs.n + c * xs.c + ih * xs.h + iw * xs.w];
                        if (winner < 0 || value > best || isnan(value)) {
                            best = value;
                            winner = k;
                        }
                    }
                    reference_put(kernel, 0, &y[n * ys.n + c * ys.c + oh * ys.h + ow * ys.w], best);
                    if (indices != NULL)
                        indices[n * is.n + c * is.c + oh * is.h + ow * is.w] = (uint8_t)winner;
                }
    return NULL;
}

status_t reference_max_pool2d_backward(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    const struct tensor_type *x_type = &desc->outputs[0], *y_type = &desc->inputs[0];
    struct strides xs = reference_strides(x_type), ys = reference_strides(y_type);
    struct strides is = reference_strides(&desc->inputs[1]);
    const int64_t *size = desc->attrs.pool.kernel, *stride = desc->attrs.pool.stride;
    const int64_t *padding = desc->attrs.pool.padding;
    const float *dy = call->inputs[0];
    const uint8_t *indices = call->inputs[1];
    float *dx = call->outputs[0];
    int64_t count = tensor_element_count(x_type);
    if (!desc->accumulate[0])
        for (int64_t i = 0; i < count; i++) dx[i] = 0;
    for (int64_t n = 0; n < y_type->dims[0]; n++)
        for (int64_t c = 0; c < y_type->dims[1]; c++)
            for (int64_t oh = 0; oh < y_type->dims[2]; oh++)
                for (int64_t ow = 0; ow < y_type->dims[3]; ow++) {
                    int64_t k = indices[n * is.n + c * is.c + oh * is.h + ow * is.w];
                    int64_t ih = oh * stride[0] - padding[0] + k / size[1];
                    int64_t iw = ow * stride[1] - padding[1] + k % size[1];
                    dx[n * xs.n + c * xs.c + ih * xs.h + iw * xs.w] +=
                        dy[n * ys.n + c * ys.c + oh * ys.h + ow * ys.w];
                }
    return NULL;
}

/* The value of an average, or its part of a gradient, added to every element that it is made of. */
static status_t run_average(const struct kernel *kernel, const struct kernel_call *call,
                            const struct tensor_type *x_type, const struct tensor_type *y_type,
                            bool forward)
{
    const union op_attrs *attrs = &kernel->desc.attrs;
    int64_t width = x_type->dims[3], planes = x_type->dims[0] * x_type->dims[1];
    int64_t outputs = y_type->dims[2] * y_type->dims[3];
    const float *from = call->inputs[0];
    float *to = call->outputs[0];
    for (int64_t i = 0; i < planes * outputs; i++) {
        struct op_span h = op_average_span(attrs, 0, i / y_type->dims[3] % y_type->dims[2],
                                           x_type->dims[2], y_type->dims[2]);
        struct op_span w = op_average_span(attrs, 1, i % y_type->dims[3], width, y_type->dims[3]);
        int64_t plane = i / outputs * x_type->dims[2] * width;
        double sum = 0, divisor = (double)(h.divisor * w.divisor);
        for (int64_t y = h.begin; y < h.end; y++)
            for (int64_t x = w.begin; x < w.end; x++) {
                int64_t place = reference_offset(x_type, plane + y * width + x);
                if (forward) sum += from[place];
                else to[place] += (float)(from[reference_offset(y_type, i)] / divisor);
            }
        if (forward) reference_put(kernel, 0, &to[reference_offset(y_type, i)], sum / divisor);
    }
    return NULL;
}

status_t reference_avg_pool2d(const struct kernel *kernel, const struct kernel_call *call)
{
    return run_average(kernel, call, &kernel->desc.inputs[0], &kernel->desc.outputs[0], true);
}

status_t reference_avg_pool2d_backward(const struct kernel *kernel, const struct kernel_call *call)
{
    float *dx = call->outputs[0];
    int64_t count = tensor_element_count(&kernel->desc.outputs[0]);
    for (int64_t i = 0; i < count && !kernel->desc.accumulate[0]; i++) dx[i] = 0;
    return run_average(kernel, call, &kernel->desc.outputs[0], &kernel->desc.inputs[0], false);
}
