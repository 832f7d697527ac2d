/* Reference linear layers: x (rows, in), weight (out, in), y (rows, out). */
#include "kernels/reference/reference.h"

static int64_t rows_of(const struct tensor_type *type)
{
    return tensor_element_count(type) / type->dims[type->dim_count - 1];
}

status_t reference_linear(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    int64_t rows = rows_of(&desc->inputs[0]);
    int64_t out = desc->inputs[1].dims[0], in = desc->inputs[1].dims[1];
    const float *x = call->inputs[0], *weight = call->inputs[1], *bias = call->inputs[2];
    float *y = call->outputs[0];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < out; o++) {
            double sum = desc->input_present[2] ? bias[o] : 0;
            for (int64_t i = 0; i < in; i++) sum += (double)x[r * in + i] * weight[o * in + i];
            if (desc->attrs.linear.activation == ACTIVATION_RELU && sum <= 0) sum = 0;
            reference_put(kernel, 0, &y[r * out + o], sum);
        }
    return STATUS_OKAY;
}

status_t reference_linear_backward_data(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    int64_t rows = rows_of(&desc->inputs[0]);
    int64_t out = desc->inputs[1].dims[0], in = desc->inputs[1].dims[1];
    const float *dy = call->inputs[0], *weight = call->inputs[1];
    float *dx = call->outputs[0];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < in; i++) {
            double sum = 0;
            for (int64_t o = 0; o < out; o++) sum += (double)dy[r * out + o] * weight[o * in + i];
            reference_put(kernel, 0, &dx[r * in + i], sum);
        }
    return STATUS_OKAY;
}

status_t reference_linear_backward_weights(const struct kernel *kernel,
                                           const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    int64_t rows = rows_of(&desc->inputs[0]);
    int64_t out = desc->outputs[0].dims[0], in = desc->outputs[0].dims[1];
    const float *x = call->inputs[0], *dy = call->inputs[1];
    float *dweight = call->outputs[0], *dbias = call->outputs[1];
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++) {
            double sum = 0;
            for (int64_t r = 0; r < rows; r++) sum += (double)dy[r * out + o] * x[r * in + i];
            reference_put(kernel, 0, &dweight[o * in + i], sum);
        }
    if (!desc->output_present[1]) return STATUS_OKAY;
    for (int64_t o = 0; o < out; o++) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++) sum += dy[r * out + o];
        reference_put(kernel, 1, &dbias[o], sum);
    }
    return STATUS_OKAY;
}
