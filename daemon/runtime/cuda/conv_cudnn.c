/*
 * Convolutions by cuDNN (conv_graph.h). Only engines that give the same bits in every run and sum
 * in f32 are used, and on f32 none that rounds it to tf32, unless the device may. ReLU, a bias on
 * f32 and the gradient of a bias are passes of our kernels.
 *
 * To bound scratch memory, a large batch is computed in parts, one after the other. The gradient of
 * a weight widens each part of bf16 into the workspace, and adds the parts in their order.
 */
#include "runtime/cuda/conv_graph.h"

#include "base/switches.h"

enum { COPY_ALIGN = 256 };

/* x or y of a convolution, or its gradient: a part of it is an operand of a run. */
struct conv_tensor {
    size_t sample_bytes;
    struct cuda_op cast; /* of a weight's gradient, from bf16: to f32 */
    uint64_t copied;     /* to this place in the workspace */
};

struct graph_conv {
    struct dnn_op base;
    int64_t samples; /* of a run */
    struct conv_tensor x, y;
    uint64_t scratch; /* where the engine's begins in the workspace */
};

/* ---- running ---- */

/* Where the samples from `first` on of a tensor at `whole` are for a run: widened, or in place. */
static status_t place(const struct graph_conv *conv, const struct conv_tensor *tensor,
                      struct cuda_lane *lane, const struct kernel_call *call, const void *whole,
                      int64_t first, void **at)
{
    *at = (char *)whole + (size_t)first * tensor->sample_bytes;
    if (!conv_widens(&conv->base.base.op.desc)) return NULL;
    struct kernel_call widen = {.inputs = {*at},
                                .outputs = {(char *)call->workspace + tensor->copied}};
    struct cuda_launch launch = cuda_launch_of(lane);
    *at = widen.outputs[0];
    return cuda_status((cudaError_t)tensor->cast.run(&tensor->cast, &widen, &launch),
                       "widening an operand of a convolution");
}

/* `x`, `weight` and `y` are the operands in those places, or their gradients. */
static status_t run_parts(const struct graph_conv *conv, struct cuda_lane *lane,
                          const struct kernel_call *call, const void *x, const void *weight,
                          const void *y)
{
    static const int64_t ids[] = {CONV_X, CONV_WEIGHT, CONV_Y, CONV_BIAS};
    const struct op_desc *desc = &conv->base.base.op.desc;
    int count = conv_graph_adds_bias(desc) ? 4 : 3;
    void *addresses[] = {NULL, (void *)weight, NULL, (void *)call->inputs[2]};
    for (int64_t first = 0; first < desc->inputs[0].dims[0]; first += conv->samples) {
        TRY(place(conv, &conv->x, lane, call, x, first, &addresses[0]));
        TRY(place(conv, &conv->y, lane, call, y, first, &addresses[2]));
        TRY(dnn_op_run(&conv->base, lane, count, ids, addresses,
                       (char *)call->workspace + conv->scratch));
    }
    return NULL;
}

static status_t run_forward(struct cuda_prepared *prepared, struct cuda_lane *lane,
                            const struct kernel_call *call)
{
    const struct op_desc *desc = &prepared->op.desc;
    const struct tensor_type *y = &desc->outputs[0];
    struct cuda_launch launch = cuda_launch_of(lane);
    int error = 0;
    TRY(run_parts((struct graph_conv *)prepared, lane, call, call->inputs[0], call->inputs[1],
                  call->outputs[0]));
    if (desc->input_present[2] && !conv_graph_adds_bias(desc))
        error = cuda_add_channel_bias(&launch, y->dtype, call->outputs[0], call->inputs[2],
                                      y->dims[0], y->dims[1], y->dims[2] * y->dims[3]);
    if (error == 0 && desc->attrs.conv.activation == ACTIVATION_RELU)
        error = cuda_relu_in_place(&launch, y->dtype, call->outputs[0], tensor_element_count(y));
    return cuda_status((cudaError_t)error, "the bias or the activation of a convolution");
}

static status_t run_data(struct cuda_prepared *prepared, struct cuda_lane *lane,
                         const struct kernel_call *call)
{
    return run_parts((struct graph_conv *)prepared, lane, call, call->outputs[0], call->inputs[1],
                     call->inputs[0]);
}

static status_t run_weights(struct cuda_prepared *prepared, struct cuda_lane *lane,
                            const struct kernel_call *call)
{
    struct graph_conv *conv = (struct graph_conv *)prepared;
    const struct op_desc *desc = &prepared->op.desc;
    const struct tensor_type *dy = &desc->inputs[1];
    if (conv->samples < dy->dims[0] && !desc->accumulate[0])
        TRY_CUDA(
            cudaMemsetAsync(call->outputs[0], 0, tensor_bytes(&desc->outputs[0]), lane->stream));
    TRY(run_parts(conv, lane, call, call->inputs[0], call->outputs[0], call->inputs[1]));
    if (!desc->output_present[1]) return NULL;
    struct cuda_launch launch = cuda_launch_of(lane);
    int error = cuda_channel_sum(&launch, dy->dtype, call->inputs[1], dy->dims[0], dy->dims[1],
                                 dy->dims[2] * dy->dims[3], call->outputs[1], desc->accumulate[1]);
    return cuda_status((cudaError_t)error, "the gradient of a bias");
}

/* ---- preparing ---- */

static int64_t samples_of(const struct op_desc *desc)
{
    const long long bytes = switch_number("FSDPD_CUDA_CONV_COPIES");
    return conv_samples_of(desc, bytes > 0 ? bytes : CONV_COPIES_BYTES);
}

/* A weight's gradient has the copies in the workspace, before the engine's scratch memory. */
static status_t prepare_tensor(struct graph_conv *conv, struct conv_tensor *tensor,
                               const struct tensor_type *type)
{
    struct op_desc cast = {.kind = OP_CAST, .input_count = 1, .output_count = 1};
    cast.input_present[0] = cast.output_present[0] = true;
    cast.inputs[0] = cast.outputs[0] = *type;
    cast.inputs[0].dims[0] = cast.outputs[0].dims[0] = conv->samples;
    cast.outputs[0].dtype = DTYPE_F32;
    tensor->sample_bytes = (size_t)(tensor_bytes(&cast.inputs[0]) / (uint64_t)conv->samples);
    if (!conv_widens(&conv->base.base.op.desc)) return NULL;
    tensor->copied = conv->scratch;
    conv->scratch += (tensor_bytes(&cast.outputs[0]) + COPY_ALIGN - 1) / COPY_ALIGN * COPY_ALIGN;
    return cuda_op_prepare(&cast, &tensor->cast);
}

static const char *refuses(const struct op_desc *desc)
{
    return desc->kind == OP_CONV2D && desc->accumulate[0] ? "it adds to existing values" : NULL;
}

static int64_t make_graph(struct dnn_graph *graph, const struct op_desc *desc)
{
    const int64_t samples = samples_of(desc);
    bool parts = samples < desc->inputs[0].dims[0] && desc->kind == OP_CONV2D_BACKWARD_WEIGHTS;
    conv_graph(graph, desc, samples, desc->accumulate[0] || parts);
    return CONV_MOST_WORKSPACE;
}

static status_t prepare(struct dnn_op *op)
{
    struct graph_conv *conv = (struct graph_conv *)op;
    const struct op_desc *desc = &op->base.op.desc;
    bool weights = desc->kind == OP_CONV2D_BACKWARD_WEIGHTS;
    bool data = desc->kind == OP_CONV2D_BACKWARD_DATA;
    conv->samples = samples_of(desc);
    op->base.run = weights ? run_weights : data ? run_data : run_forward;
    TRY(prepare_tensor(conv, &conv->x, data ? &desc->outputs[0] : &desc->inputs[0]));
    TRY(prepare_tensor(conv, &conv->y,
                       weights ? &desc->inputs[1]
                       : data  ? &desc->inputs[0]
                               : &desc->outputs[0]));
    op->base.workspace_bytes = conv->scratch + (uint64_t)op->planned->plan.workspace_bytes;
    return NULL;
}

const struct dnn_kind dnn_conv = {.variable = "FSDPD_CUDA_CONV",
                                  .refuses = refuses,
                                  .make_graph = make_graph,
                                  .bytes = sizeof(struct graph_conv),
                                  .prepare = prepare};
