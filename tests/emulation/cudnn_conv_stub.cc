/*
 * cuDNN's convolutions for tests: sums in double, element by element, over the stub of the runtime.
 * Of the offered algorithms one has other bits in every run, one needs too much scratch memory, and
 * two are suitable: with tensor cores, and without. The stub refuses an algorithm that runs with
 * another math type than it was offered for, or without its scratch memory.
 */
#ifdef FSDPD_HAVE_CUDNN

#include "cuda_stub.h"

#include <string.h>

#include <cudnn.h>

#include "base/array.h"

namespace
{

struct tensor {
    cudnnDataType_t type;
    int dims[4];

    size_t at(int a, int b, int c, int d) const
    {
        return (((size_t)a * dims[1] + b) * dims[2] + c) * dims[3] + d;
    }
};

struct convolution {
    int pad[2], stride[2], dilation[2], groups = 1;
    cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};

struct offer {
    cudnnStatus_t status;
    cudnnDeterminism_t determinism;
    cudnnMathType_t math;
    size_t memory;
};

const offer offers[] = {
    {CUDNN_STATUS_SUCCESS, CUDNN_NON_DETERMINISTIC, CUDNN_TENSOR_OP_MATH, 0},
    {CUDNN_STATUS_NOT_SUPPORTED, CUDNN_DETERMINISTIC, CUDNN_TENSOR_OP_MATH, 0},
    {CUDNN_STATUS_SUCCESS, CUDNN_DETERMINISTIC, CUDNN_TENSOR_OP_MATH, (size_t)1 << 40},
    {CUDNN_STATUS_SUCCESS, CUDNN_DETERMINISTIC, CUDNN_TENSOR_OP_MATH, 2048},
    {CUDNN_STATUS_SUCCESS, CUDNN_DETERMINISTIC, CUDNN_FMA_MATH, 512},
};
enum { OFFERS = COUNT_OF(offers) };

template <typename T> cudnnStatus_t rank(int most, int *count, T *results)
{
    for (*count = 0; *count < OFFERS && *count < most; ++*count) {
        T &result = results[*count];
        memset((void *)&result, 0, sizeof result);
        result.algo = (decltype(result.algo))*count;
        result.status = offers[*count].status;
        result.determinism = offers[*count].determinism;
        result.mathType = offers[*count].math;
        result.memory = offers[*count].memory;
    }
    return CUDNN_STATUS_SUCCESS;
}

float get(const tensor &t, const void *memory, size_t i)
{
    if (t.type == CUDNN_DATA_FLOAT) return ((const float *)memory)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)memory)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

void put(const tensor &t, void *memory, size_t i, double sum, float beta)
{
    float value = (float)(beta != 0 ? sum + beta * (double)get(t, memory, i) : sum);
    if (t.type == CUDNN_DATA_FLOAT) {
        ((float *)memory)[i] = value;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    ((uint16_t *)memory)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Every product of a convolution: visit(sample, output channel, row, column; weight's input
 * channel, row and column; input's channel, row and column). */
template <typename F>
void each(const tensor &x, const tensor &w, const tensor &y, const convolution &c, F visit)
{
    int outputs = w.dims[0] / c.groups;
    for (int n = 0; n < y.dims[0]; n++)
        for (int o = 0; o < y.dims[1]; o++)
            for (int i = 0; i < y.dims[2]; i++)
                for (int j = 0; j < y.dims[3]; j++)
                    for (int k = 0; k < w.dims[1]; k++)
                        for (int r = 0; r < w.dims[2]; r++)
                            for (int s = 0; s < w.dims[3]; s++) {
                                int row = i * c.stride[0] - c.pad[0] + r * c.dilation[0];
                                int column = j * c.stride[1] - c.pad[1] + s * c.dilation[1];
                                if (row < 0 || row >= x.dims[2] || column < 0 ||
                                    column >= x.dims[3])
                                    continue;
                                int channel = o / outputs * w.dims[1] + k;
                                visit(y.at(n, o, i, j), w.at(o, k, r, s),
                                      x.at(n, channel, row, column));
                            }
}

size_t size_of(const tensor &t)
{
    return (size_t)t.dims[0] * t.dims[1] * t.dims[2] * t.dims[3];
}

enum role { OUTPUT, WEIGHT, INPUT };

/* Computes one of the three tensors from the other two. */
cudnnStatus_t start(const char *name, cudnnHandle_t handle, role made, int algorithm,
                    const void *x_desc, const void *x, const void *w_desc, const void *w,
                    const void *y_desc, const void *y, const void *conv_desc, void *workspace,
                    size_t workspace_bytes, const void *alpha, const void *beta)
{
    void *stream = *(void **)handle; /* like the first member of cudnn_stub.cc's */
    stub_count_launch("(cudnn)");
    int error = stub_note(name, stream);
    if (error != 0) return (cudnnStatus_t)error;
    const convolution c = *(const convolution *)conv_desc;
    if (algorithm < 0 || algorithm >= OFFERS || offers[algorithm].math != c.math ||
        workspace_bytes < offers[algorithm].memory || !stub_is_of_device(workspace) ||
        *(const float *)alpha != 1)
        return CUDNN_STATUS_BAD_PARAM;
    const tensor a = *(const tensor *)x_desc, b = *(const tensor *)w_desc;
    const tensor d = *(const tensor *)y_desc;
    float factor = *(const float *)beta;
    auto work = [=] {
        memset(workspace, 0xff, offers[algorithm].memory);
        const tensor &result = made == OUTPUT ? d : made == WEIGHT ? b : a;
        double *sums = new double[size_of(result)]();
        each(a, b, d, c, [&](size_t of_y, size_t of_w, size_t of_x) {
            if (made == OUTPUT) sums[of_y] += (double)get(a, x, of_x) * get(b, w, of_w);
            else if (made == WEIGHT) sums[of_w] += (double)get(a, x, of_x) * get(d, y, of_y);
            else sums[of_x] += (double)get(d, y, of_y) * get(b, w, of_w);
        });
        void *memory = (void *)(made == OUTPUT ? y : made == WEIGHT ? w : x);
        for (size_t i = 0; i < size_of(result); i++) {
            if (stub_is_wrong() && i % 2 == 1) sums[i] *= 0.5;
            put(result, memory, i, sums[i], factor);
        }
        delete[] sums;
        return 0;
    };
    error = stub_enqueue(stream, [=] { return work; }, nullptr);
    return error == 0 ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

} // namespace

extern "C" {

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *made)
{
    *made = (cudnnTensorDescriptor_t) new tensor;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t which)
{
    delete (tensor *)which;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t which, cudnnTensorFormat_t,
                                         cudnnDataType_t type, int n, int c, int h, int w)
{
    *(tensor *)which = {type, {n, c, h, w}};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *made)
{
    *made = (cudnnFilterDescriptor_t) new tensor;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t which)
{
    delete (tensor *)which;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t which, cudnnDataType_t type,
                                         cudnnTensorFormat_t, int k, int c, int h, int w)
{
    *(tensor *)which = {type, {k, c, h, w}};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *made)
{
    *made = (cudnnConvolutionDescriptor_t) new convolution;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t which)
{
    delete (convolution *)which;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t which, int pad_h,
                                              int pad_w, int u, int v, int dilation_h,
                                              int dilation_w, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute)
{
    convolution *c = (convolution *)which;
    if (mode != CUDNN_CROSS_CORRELATION || compute != CUDNN_DATA_FLOAT)
        return CUDNN_STATUS_BAD_PARAM;
    c->pad[0] = pad_h, c->pad[1] = pad_w;
    c->stride[0] = u, c->stride[1] = v;
    c->dilation[0] = dilation_h, c->dilation[1] = dilation_w;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t which, int count)
{
    ((convolution *)which)->groups = count;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t which, cudnnMathType_t math)
{
    ((convolution *)which)->math = math;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, const cudnnTensorDescriptor_t,
                                                     const cudnnFilterDescriptor_t,
                                                     const cudnnConvolutionDescriptor_t,
                                                     const cudnnTensorDescriptor_t, const int most,
                                                     int *count,
                                                     cudnnConvolutionFwdAlgoPerf_t *results)
{
    return rank(most, count, results);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t, const cudnnFilterDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnConvolutionDescriptor_t, const cudnnTensorDescriptor_t, const int most, int *count,
    cudnnConvolutionBwdDataAlgoPerf_t *results)
{
    return rank(most, count, results);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnConvolutionDescriptor_t, const cudnnFilterDescriptor_t, const int most, int *count,
    cudnnConvolutionBwdFilterAlgoPerf_t *results)
{
    return rank(most, count, results);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha,
                                      const cudnnTensorDescriptor_t x_desc, const void *x,
                                      const cudnnFilterDescriptor_t w_desc, const void *w,
                                      const cudnnConvolutionDescriptor_t conv,
                                      cudnnConvolutionFwdAlgo_t algorithm, void *workspace,
                                      size_t bytes, const void *beta,
                                      const cudnnTensorDescriptor_t y_desc, void *y)
{
    return start("cudnnConvolutionForward", handle, OUTPUT, (int)algorithm, x_desc, x, w_desc, w,
                 y_desc, y, conv, workspace, bytes, alpha, beta);
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha,
                                           const cudnnFilterDescriptor_t w_desc, const void *w,
                                           const cudnnTensorDescriptor_t dy_desc, const void *dy,
                                           const cudnnConvolutionDescriptor_t conv,
                                           cudnnConvolutionBwdDataAlgo_t algorithm, void *workspace,
                                           size_t bytes, const void *beta,
                                           const cudnnTensorDescriptor_t dx_desc, void *dx)
{
    return start("cudnnConvolutionBackwardData", handle, INPUT, (int)algorithm, dx_desc, dx, w_desc,
                 w, dy_desc, dy, conv, workspace, bytes, alpha, beta);
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha,
                                             const cudnnTensorDescriptor_t x_desc, const void *x,
                                             const cudnnTensorDescriptor_t dy_desc, const void *dy,
                                             const cudnnConvolutionDescriptor_t conv,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm,
                                             void *workspace, size_t bytes, const void *beta,
                                             const cudnnFilterDescriptor_t dw_desc, void *dw)
{
    return start("cudnnConvolutionBackwardFilter", handle, WEIGHT, (int)algorithm, x_desc, x,
                 dw_desc, dw, dy_desc, dy, conv, workspace, bytes, alpha, beta);
}

} /* extern "C" */

#endif
