/* Reference convolutions: each output, or gradient, is the sum of all its terms. */
#include "kernels/reference/reference.h"

/* One loop over all (output, weight, input) triples serves the forward pass and both gradients. */
struct conv {
    int64_t batch, groups, in, out; /* channels per group */
    int64_t height, width, kernel_height, kernel_width, out_height, out_width;
    const int64_t *stride, *padding, *dilation;
    struct strides x, weight, y;
};

static struct conv conv_of(const struct op_desc *desc, const struct tensor_type *x,
                           const struct tensor_type *weight, const struct tensor_type *y)
{
    int64_t groups = desc->attrs.conv.groups;
    return (struct conv){.batch = x->dims[0],
                         .groups = groups,
                         .in = x->dims[1] / groups,
                         .out = y->dims[1] / groups,
                         .height = x->dims[2],
                         .width = x->dims[3],
                         .kernel_height = weight->dims[2],
                         .kernel_width = weight->dims[3],
                         .out_height = y->dims[2],
                         .out_width = y->dims[3],
                         .stride = desc->attrs.conv.stride,
                         .padding = desc->attrs.conv.padding,
                         .dilation = desc->attrs.conv.dilation,
                         .x = reference_strides(x),
                         .weight = reference_strides(weight),
                         .y = reference_strides(y)};
}

status_t reference_conv2d(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    struct conv v = conv_of(desc, &desc->inputs[0], &desc->inputs[1], &desc->outputs[0]);
    const float *x = call->inputs[0], *weight = call->inputs[1], *bias = call->inputs[2];
    float *y = call->outputs[0];
    for (int64_t n = 0; n < v.batch; n++)
        for (int64_t co = 0; co < v.out * v.groups; co++)
            for (int64_t oh = 0; oh < v.out_height; oh++)
                for (int64_t ow = 0; ow < v.out_width; ow++) {
                    double sum = desc->input_present[2] ? bias[co] : 0;
                    for (int64_t ci = 0; ci < v.in; ci++)
                        for (int64_t kh = 0; kh < v.kernel_height; kh++)
                            for (int64_t kw = 0; kw < v.kernel_width; kw++) {
                                int64_t ih = oh * v.stride[0] - v.padding[0] + kh * v.dilation[0];
                                int64_t iw = ow * v.stride[1] - v.padding[1] + kw * v.dilation[1];
                                if (ih < 0 || ih >= v.height || iw < 0 || iw >= v.width) continue;
                                int64_t c = co / v.out * v.in + ci;
                                sum += (double)x[n * v.x.n + c * v.x.c + ih * v.x.h + iw * v.x.w] *
                                       weight[co * v.weight.n + ci * v.weight.c + kh * v.weight.h +
                                              kw * v.weight.w];
                            }
                    if (desc->attrs.conv.activation == ACTIVATION_RELU && sum <= 0) sum = 0;
                    reference_put(kernel, 0, &y[n * v.y.n + co * v.y.c + oh * v.y.h + ow * v.y.w],
                                  sum);
                }
    return NULL;
}

/* The output row or column that uses input position `i` at kernel position `k`, or -1. */
static int64_t output_position(int64_t i, int64_t k, int64_t stride, int64_t padding,
                               int64_t dilation, int64_t outputs)
{
    int64_t position = i + padding - k * dilation;
    if (position < 0 || position % stride != 0 || position / stride >= outputs) return -1;
    return position / stride;
}

status_t reference_conv2d_backward_data(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    struct conv v = conv_of(desc, &desc->outputs[0], &desc->inputs[1], &desc->inputs[0]);
    const float *dy = call->inputs[0], *weight = call->inputs[1];
    float *dx = call->outputs[0];
    for (int64_t n = 0; n < v.batch; n++)
        for (int64_t c = 0; c < v.in * v.groups; c++)
            for (int64_t ih = 0; ih < v.height; ih++)
                for (int64_t iw = 0; iw < v.width; iw++) {
                    double sum = 0;
                    for (int64_t o = 0; o < v.out; o++)
                        for (int64_t kh = 0; kh < v.kernel_height; kh++)
                            for (int64_t kw = 0; kw < v.kernel_width; kw++) {
                                int64_t oh = output_position(ih, kh, v.stride[0], v.padding[0],
                                                             v.dilation[0], v.out_height);
                                int64_t ow = output_position(iw, kw, v.stride[1], v.padding[1],
                                                             v.dilation[1], v.out_width);
                                if (oh < 0 || ow < 0) continue;
                                int64_t co = c / v.in * v.out + o;
                                sum +=
                                    (double)dy[n * v.y.n + co * v.y.c + oh * v.y.h + ow * v.y.w] *
                                    weight[co * v.weight.n + c % v.in * v.weight.c +
                                           kh * v.weight.h + kw * v.weight.w];
                            }
                    reference_put(kernel, 0, &dx[n * v.x.n + c * v.x.c + ih * v.x.h + iw * v.x.w],
                                  sum);
                }
    return NULL;
}

static double weight_gradient(const struct conv *v, const float *x, const float *dy, int64_t co,
                              int64_t ci, int64_t kh, int64_t kw)
{
    int64_t c = co / v->out * v->in + ci;
    double sum = 0;
    for (int64_t n = 0; n < v->batch; n++)
        for (int64_t oh = 0; oh < v->out_height; oh++)
            for (int64_t ow = 0; ow < v->out_width; ow++) {
                int64_t ih = oh * v->stride[0] - v->padding[0] + kh * v->dilation[0];
                int64_t iw = ow * v->stride[1] - v->padding[1] + kw * v->dilation[1];
                if (ih < 0 || ih >= v->height || iw < 0 || iw >= v->width) continue;
                sum += (double)x[n * v->x.n + c * v->x.c + ih * v->x.h + iw * v->x.w] *
                       dy[n * v->y.n + co * v->y.c + oh * v->y.h + ow * v->y.w];
            }
    return sum;
}

status_t reference_conv2d_backward_weights(const struct kernel *kernel,
                                           const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    struct conv v = conv_of(desc, &desc->inputs[0], &desc->outputs[0], &desc->inputs[1]);
    const float *x = call->inputs[0], *dy = call->inputs[1];
    float *dweight = call->outputs[0], *dbias = call->outputs[1];
    for (int64_t co = 0; co < v.out * v.groups; co++)
        for (int64_t ci = 0; ci < v.in; ci++)
            for (int64_t kh = 0; kh < v.kernel_height; kh++)
                for (int64_t kw = 0; kw < v.kernel_width; kw++)
                    reference_put(kernel, 0,
                                  &dweight[co * v.weight.n + ci * v.weight.c + kh * v.weight.h +
                                           kw * v.weight.w],
                                  weight_gradient(&v, x, dy, co, ci, kh, kw));
    if (!desc->output_present[1]) return NULL;
    for (int64_t co = 0; co < v.out * v.groups; co++) {
        double sum = 0;
        for (int64_t n = 0; n < v.batch; n++)
            for (int64_t oh = 0; oh < v.out_height; oh++)
                for (int64_t ow = 0; ow < v.out_width; ow++)
                    sum += dy[n * v.y.n + co * v.y.c + oh * v.y.h + ow * v.y.w];
        reference_put(kernel, 1, &dbias[co], sum);
    }
    return NULL;
}
