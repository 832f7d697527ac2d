/*
 * Convolution by the formula, for builds without cuDNN and cases that it rejects: correct,
 * deterministic, and slow. One thread per element of y or dx, one block per element of dweight.
 */
#include "kernels/cuda/ops.h"
#include "kernels/cuda/window.h"

namespace fsdpd {

template <typename T> struct convolution {
    struct window w;
    const T *x, *weight, *bias, *dy; /* those of the op's operands that it has */
    T *y, *dx;
    float *dweight;
    bool relu, add;
    int64_t count; /* number of elements of the result */
};

template <typename T> __global__ void __launch_bounds__(BLOCK) conv_kernel(const convolution<T> c)
{
    const window &w = c.w;
    int64_t in = w.channels / w.groups, out = w.out_channels / w.groups;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < c.count;
         i += (int64_t)gridDim.x * BLOCK) {
        int64_t ow = i % w.out_width, oh = i / w.out_width % w.out_height;
        int64_t oc = i / (w.out_width * w.out_height) % w.out_channels;
        int64_t n = i / (w.out_width * w.out_height * w.out_channels);
        const T *x = c.x + (n * w.channels + oc / out * in) * w.height * w.width;
        const T *weight = c.weight + oc * in * w.kernel[0] * w.kernel[1];
        float sum = c.bias != nullptr ? to_float(c.bias[oc]) : 0;
        for (int64_t ic = 0; ic < in; ic++)
            for (int kh = 0; kh < w.kernel[0]; kh++)
                for (int kw = 0; kw < w.kernel[1]; kw++, weight++) {
                    int64_t ih = oh * w.stride[0] - w.padding[0] + kh * w.dilation[0];
                    int64_t iw = ow * w.stride[1] - w.padding[1] + kw * w.dilation[1];
                    if (ih < 0 || ih >= w.height || iw < 0 || iw >= w.width) continue;
                    float value = to_float(x[(ic * w.height + ih) * w.width + iw]);
                    sum = fmaf(value, to_float(*weight), sum);
                }
        if (c.relu && sum <= 0) sum = 0;
        put(&c.y[i], sum, c.add);
    }
}

template <typename T>
__global__ void __launch_bounds__(BLOCK) conv_data_kernel(const convolution<T> c)
{
    const window &w = c.w;
    int64_t in = w.channels / w.groups, out = w.out_channels / w.groups;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < c.count;
         i += (int64_t)gridDim.x * BLOCK) {
        int64_t iw = i % w.width, ih = i / w.width % w.height;
        int64_t ic = i / (w.width * w.height) % w.channels;
        int64_t n = i / (w.width * w.height * w.channels), first = ic / in * out;
        float sum = 0;
        for (int64_t oc = first; oc < first + out; oc++)
            for (int kh = 0; kh < w.kernel[0]; kh++) {
                int64_t h = ih + w.padding[0] - kh * w.dilation[0], oh = h / w.stride[0];
                if (h < 0 || h % w.stride[0] != 0 || oh >= w.out_height) continue;
                for (int kw = 0; kw < w.kernel[1]; kw++) {
                    int64_t v = iw + w.padding[1] - kw * w.dilation[1], ow = v / w.stride[1];
                    if (v < 0 || v % w.stride[1] != 0 || ow >= w.out_width) continue;
                    int64_t y = ((n * w.out_channels + oc) * w.out_height + oh) * w.out_width + ow;
                    int64_t k = ((oc * in + ic % in) * w.kernel[0] + kh) * w.kernel[1] + kw;
                    sum = fmaf(to_float(c.dy[y]), to_float(c.weight[k]), sum);
                }
            }
        put(&c.dx[i], sum, c.add);
    }
}

/* blockIdx.x: element of the weight's gradient. */
template <typename T>
__global__ void __launch_bounds__(BLOCK) conv_weights_kernel(const convolution<T> c)
{
    SHARED(float, scratch, BLOCK / WARP);
    const window &w = c.w;
    int64_t in = w.channels / w.groups, out = w.out_channels / w.groups, k = blockIdx.x;
    int64_t kw = k % w.kernel[1], kh = k / w.kernel[1] % w.kernel[0];
    int64_t ic = k / (w.kernel[0] * w.kernel[1]) % in, oc = k / (w.kernel[0] * w.kernel[1] * in);
    int64_t area = w.out_height * w.out_width;
    float sum = 0;
    for (int64_t i = threadIdx.x; i < w.n * area; i += BLOCK) {
        int64_t n = i / area, oh = i % area / w.out_width, ow = i % w.out_width;
        int64_t ih = oh * w.stride[0] - w.padding[0] + kh * w.dilation[0];
        int64_t iw = ow * w.stride[1] - w.padding[1] + kw * w.dilation[1];
        if (ih < 0 || ih >= w.height || iw < 0 || iw >= w.width) continue;
        int64_t x = ((n * w.channels + oc / out * in + ic) * w.height + ih) * w.width + iw;
        sum = fmaf(to_float(c.dy[(n * w.out_channels + oc) * area + i % area]), to_float(c.x[x]),
                   sum);
    }
    sum = group_sum<BLOCK>(sum, scratch);
    if (threadIdx.x == 0) put(&c.dweight[k], sum, c.add);
}

template <typename T>
static int run_conv(const struct op_desc *desc, const struct kernel_call *call,
                    const struct cuda_launch *launch)
{
    bool data = desc->kind == OP_CONV2D_BACKWARD_DATA;
    bool weights = desc->kind == OP_CONV2D_BACKWARD_WEIGHTS;
    const struct tensor_type *in = desc->inputs, *out = desc->outputs;
    const struct tensor_type *weight = weights ? &out[0] : &in[1];
    convolution<T> c = {};
    c.w = window_of(data ? &out[0] : &in[0],
                    weights ? &in[1]
                    : data  ? &in[0]
                            : &out[0],
                    weight->dims + 2, desc->attrs.conv.stride, desc->attrs.conv.padding);
    for (int i = 0; i < 2; i++) c.w.dilation[i] = (int)desc->attrs.conv.dilation[i];
    c.w.groups = (int)desc->attrs.conv.groups;
    c.add = desc->accumulate[0];
    c.count = count_of(&out[0]);
    if (data) {
        c.dy = input_of<T>(call, 0), c.weight = input_of<T>(call, 1), c.dx = output_of<T>(call, 0);
        return start(launch, conv_data_kernel<T>, grid_of(launch, c.count), BLOCK, c);
    }
    c.x = input_of<T>(call, 0);
    if (weights) {
        c.dy = input_of<T>(call, 1), c.dweight = output_of<float>(call, 0);
        TRY_LAUNCH(start(launch, conv_weights_kernel<T>, dim3((unsigned)c.count), BLOCK, c));
        if (!desc->output_present[1]) return 0;
        return cuda_channel_sum(launch, in[1].dtype, call->inputs[1], c.w.n, c.w.out_channels,
                                c.w.out_height * c.w.out_width, output_of<float>(call, 1),
                                desc->accumulate[1]);
    }
    c.weight = input_of<T>(call, 1), c.y = output_of<T>(call, 0);
    c.bias = desc->input_present[2] ? input_of<T>(call, 2) : nullptr;
    c.relu = desc->attrs.conv.activation == ACTIVATION_RELU;
    return start(launch, conv_kernel<T>, grid_of(launch, c.count), BLOCK, c);
}

RUN_BY_TYPE(cuda_run_conv, run_conv, 0)

} // namespace fsdpd
