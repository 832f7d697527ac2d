/*
 * Convolutions on f32 by cuDNN's older interface, whose math type keeps f32 from being rounded to
 * tf32: the first algorithm in its own ranking that is deterministic and whose scratch memory is
 * bounded. Biases and activations are separate passes of ours. On bf16: conv_bfloat16.c.
 */
#include "runtime/cuda/device_cuda.h"

#ifdef FSDPD_HAVE_CUDNN

#include <cudnn.h>
#include <stdlib.h>

#include "base/mem.h"
#include "runtime/cuda/dnn_graph.h"

/* Limit for an algorithm's scratch memory. */
#define MOST_WORKSPACE ((size_t)256 << 20)
enum { ALGORITHMS = 16 };

struct cudnn_conv {
    struct cuda_prepared base;
    cudnnHandle_t dnn;
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t weight;
    cudnnConvolutionDescriptor_t conv;
    bool exact; /* f32 is not to be rounded to tf32 */
    int algorithm;
    size_t scratch;
};

static status_t describe_tensor(cudnnTensorDescriptor_t *tensor, const struct tensor_type *type)
{
    TRY_DNN(cudnnCreateTensorDescriptor, tensor);
    TRY_DNN(cudnnSetTensor4dDescriptor, *tensor, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT,
            (int)type->dims[0], (int)type->dims[1], (int)type->dims[2], (int)type->dims[3]);
    return NULL;
}

static status_t describe(struct cudnn_conv *conv, bool tf32, const struct tensor_type *x,
                         const struct tensor_type *weight, const struct tensor_type *y)
{
    const struct op_desc *desc = &conv->base.op.desc;
    const int64_t *padding = desc->attrs.conv.padding, *stride = desc->attrs.conv.stride;
    const int64_t *dilation = desc->attrs.conv.dilation;
    TRY(describe_tensor(&conv->x, x));
    TRY(describe_tensor(&conv->y, y));
    TRY_DNN(cudnnCreateFilterDescriptor, &conv->weight);
    TRY_DNN(cudnnSetFilter4dDescriptor, conv->weight, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW,
            (int)weight->dims[0], (int)weight->dims[1], (int)weight->dims[2], (int)weight->dims[3]);
    TRY_DNN(cudnnCreateConvolutionDescriptor, &conv->conv);
    TRY_DNN(cudnnSetConvolution2dDescriptor, conv->conv, (int)padding[0], (int)padding[1],
            (int)stride[0], (int)stride[1], (int)dilation[0], (int)dilation[1],
            CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
    TRY_DNN(cudnnSetConvolutionGroupCount, conv->conv, (int)desc->attrs.conv.groups);
    conv->exact = !tf32;
    TRY_DNN(cudnnSetConvolutionMathType, conv->conv,
            conv->exact ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH);
    return NULL;
}

/* An algorithm and its scratch memory belong to a math type, which the descriptor must have when it
 * runs. If f32 must stay f32, exclude algorithms that need tensor cores. */
static bool may_use(const struct cudnn_conv *conv, cudnnMathType_t math)
{
    return !conv->exact ||
           (math != CUDNN_TENSOR_OP_MATH && math != CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION);
}

static status_t use_math(struct cudnn_conv *conv, cudnnMathType_t math)
{
    TRY_DNN(cudnnSetConvolutionMathType, conv->conv, conv->exact ? CUDNN_FMA_MATH : math);
    return NULL;
}

/* The three kinds have their own structs of the same members. */
#define PICK(results, count)                                                                       \
    do {                                                                                           \
        for (int i_ = 0; i_ < (count); i_++) {                                                     \
            if ((results)[i_].status != CUDNN_STATUS_SUCCESS ||                                    \
                (results)[i_].determinism != CUDNN_DETERMINISTIC ||                                \
                (results)[i_].memory > MOST_WORKSPACE || !may_use(conv, (results)[i_].mathType))   \
                continue;                                                                          \
            conv->algorithm = (int)(results)[i_].algo;                                             \
            conv->scratch = (results)[i_].memory;                                                  \
            return use_math(conv, (results)[i_].mathType);                                         \
        }                                                                                          \
    } while (0)

static status_t choose(struct cudnn_conv *conv)
{
    int count = 0;
    if (conv->base.op.desc.kind == OP_CONV2D) {
        cudnnConvolutionFwdAlgoPerf_t results[ALGORITHMS];
        TRY_DNN(cudnnGetConvolutionForwardAlgorithm_v7, conv->dnn, conv->x, conv->weight,
                conv->conv, conv->y, ALGORITHMS, &count, results);
        PICK(results, count);
    } else if (conv->base.op.desc.kind == OP_CONV2D_BACKWARD_DATA) {
        cudnnConvolutionBwdDataAlgoPerf_t results[ALGORITHMS];
        TRY_DNN(cudnnGetConvolutionBackwardDataAlgorithm_v7, conv->dnn, conv->weight, conv->y,
                conv->conv, conv->x, ALGORITHMS, &count, results);
        PICK(results, count);
    } else {
        cudnnConvolutionBwdFilterAlgoPerf_t results[ALGORITHMS];
        TRY_DNN(cudnnGetConvolutionBackwardFilterAlgorithm_v7, conv->dnn, conv->x, conv->y,
                conv->conv, conv->weight, ALGORITHMS, &count, results);
        PICK(results, count);
    }
    return status_new(STATUS_UNIMPLEMENTED, "cuDNN has no deterministic algorithm");
}

static status_t run(struct cuda_prepared *prepared, struct cuda_lane *lane,
                    const struct kernel_call *call)
{
    struct cudnn_conv *conv = (struct cudnn_conv *)prepared;
    const struct op_desc *desc = &prepared->op.desc;
    const float one = 1, beta = desc->accumulate[0] ? 1 : 0;
    const void *a = call->inputs[0], *b = call->inputs[1];
    TRY_DNN(cudnnSetStream, conv->dnn, lane->stream);
    struct cuda_launch launch = cuda_launch_of(lane);
    int error = 0;
    if (desc->kind == OP_CONV2D) {
        const struct tensor_type *y = &desc->outputs[0];
        TRY_DNN(cudnnConvolutionForward, conv->dnn, &one, conv->x, a, conv->weight, b, conv->conv,
                (cudnnConvolutionFwdAlgo_t)conv->algorithm, call->workspace, conv->scratch, &beta,
                conv->y, call->outputs[0]);
        if (desc->input_present[2])
            error = cuda_add_channel_bias(&launch, y->dtype, call->outputs[0], call->inputs[2],
                                          y->dims[0], y->dims[1], y->dims[2] * y->dims[3]);
        if (error == 0 && desc->attrs.conv.activation == ACTIVATION_RELU)
            error =
                cuda_relu_in_place(&launch, y->dtype, call->outputs[0], tensor_element_count(y));
    } else if (desc->kind == OP_CONV2D_BACKWARD_DATA) {
        TRY_DNN(cudnnConvolutionBackwardData, conv->dnn, &one, conv->weight, b, conv->y, a,
                conv->conv, (cudnnConvolutionBwdDataAlgo_t)conv->algorithm, call->workspace,
                conv->scratch, &beta, conv->x, call->outputs[0]);
    } else {
        const struct tensor_type *dy = &desc->inputs[1];
        TRY_DNN(cudnnConvolutionBackwardFilter, conv->dnn, &one, conv->x, a, conv->y, b, conv->conv,
                (cudnnConvolutionBwdFilterAlgo_t)conv->algorithm, call->workspace, conv->scratch,
                &beta, conv->weight, call->outputs[0]);
        if (desc->output_present[1])
            error =
                cuda_channel_sum(&launch, dy->dtype, b, dy->dims[0], dy->dims[1],
                                 dy->dims[2] * dy->dims[3], call->outputs[1], desc->accumulate[1]);
    }
    return cuda_status((cudaError_t)error, "a kernel of a convolution");
}

static void release(struct cuda_prepared *prepared)
{
    struct cudnn_conv *conv = (struct cudnn_conv *)prepared;
    if (conv->x != NULL) cudnnDestroyTensorDescriptor(conv->x);
    if (conv->y != NULL) cudnnDestroyTensorDescriptor(conv->y);
    if (conv->weight != NULL) cudnnDestroyFilterDescriptor(conv->weight);
    if (conv->conv != NULL) cudnnDestroyConvolutionDescriptor(conv->conv);
}

static status_t prepare(struct cudnn_conv *conv, struct cuda_device *device)
{
    const struct op_desc *desc = &conv->base.op.desc;
    bool activates = desc->attrs.conv.activation != ACTIVATION_NONE;
    if (desc->kind == OP_CONV2D && desc->accumulate[0] && (activates || desc->input_present[2]))
        return status_new(STATUS_UNIMPLEMENTED, "it adds to existing values");
    TRY(cuda_dnn_open(device));
    conv->dnn = device->dnn;
    if (desc->kind == OP_CONV2D)
        TRY(describe(conv, device->tf32, &desc->inputs[0], &desc->inputs[1], &desc->outputs[0]));
    else if (desc->kind == OP_CONV2D_BACKWARD_DATA)
        TRY(describe(conv, device->tf32, &desc->outputs[0], &desc->inputs[1], &desc->inputs[0]));
    else TRY(describe(conv, device->tf32, &desc->inputs[0], &desc->outputs[0], &desc->inputs[1]));
    TRY(choose(conv));
    conv->base.workspace_bytes = conv->scratch;
    return NULL;
}

status_t cuda_conv_prepare(struct cuda_device *device, const struct op_desc *desc,
                           struct cuda_prepared **prepared)
{
    struct cudnn_conv *conv = mem_alloc(sizeof *conv);
    conv->base.op.desc = *desc;
    conv->base.run = run;
    conv->base.release = release;
    status_t status = prepare(conv, device);
    if (status != NULL) {
        release(&conv->base);
        free(conv);
        return status;
    }
    *prepared = &conv->base;
    return NULL;
}

#else

status_t cuda_conv_prepare(struct cuda_device *device, const struct op_desc *desc,
                           struct cuda_prepared **prepared)
{
    (void)device, (void)desc, (void)prepared;
    return status_new(STATUS_UNIMPLEMENTED, "this backend was built without cuDNN");
}

#endif
