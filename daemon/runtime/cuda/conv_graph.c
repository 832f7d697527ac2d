/* See conv_graph.h. */
#include "runtime/cuda/conv_graph.h"

bool conv_widens(const struct op_desc *desc)
{
    return desc->kind == OP_CONV2D_BACKWARD_WEIGHTS && desc->inputs[0].dtype == DTYPE_BF16;
}

bool conv_graph_adds_bias(const struct op_desc *desc)
{
    return desc->kind == OP_CONV2D && desc->input_present[2] && desc->inputs[0].dtype == DTYPE_BF16;
}

int64_t conv_samples_of(const struct op_desc *desc, int64_t copies_bytes)
{
    bool weights = desc->kind == OP_CONV2D_BACKWARD_WEIGHTS;
    const struct tensor_type *x = &desc->inputs[0];
    const struct tensor_type *y = weights ? &desc->inputs[1] : &desc->outputs[0];
    int64_t all = x->dims[0], size = weights || x->dtype == DTYPE_F32 ? 4 : 2;
    int64_t x_bytes = tensor_element_count(x) / all * size;
    int64_t y_bytes = tensor_element_count(y) / all * size;
    int64_t found = all;
    for (int64_t count = all; count > 0; count--) {
        bool may_begin =
            count == all || conv_widens(desc) ||
            (count * x_bytes % DNN_ALIGNMENT == 0 && count * y_bytes % DNN_ALIGNMENT == 0);
        if (all % count != 0 || !may_begin) continue;
        found = count;
        if (count * (x_bytes + y_bytes) <= copies_bytes) break;
    }
    return found;
}

static cudnnDataType_t type_of(const struct tensor_type *type)
{
    return type->dtype == DTYPE_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
}

/* Dims and strides, in the tensor's layout; n is its first dimension or a part of it. */
static struct dnn_shape shape_of(const struct tensor_type *type, int64_t n)
{
    int64_t c = type->dims[1], h = type->dims[2], w = type->dims[3];
    if (type->layout == LAYOUT_CHANNELS_LAST)
        return (struct dnn_shape){{n, c, h, w}, {c * h * w, 1, w * c, c}};
    return (struct dnn_shape){{n, c, h, w}, {c * h * w, h * w, w, 1}};
}

static struct dnn_shape weight_shape(const struct tensor_type *type)
{
    return shape_of(type, type->dims[0]);
}

static struct dnn_window window_of(const struct op_desc *desc)
{
    struct dnn_window window;
    for (int i = 0; i < 2; i++) {
        window.padding[i] = desc->attrs.conv.padding[i];
        window.stride[i] = desc->attrs.conv.stride[i];
        window.dilation[i] = desc->attrs.conv.dilation[i];
    }
    return window;
}

static void forward(struct dnn_graph *graph, const struct op_desc *desc, int64_t samples, bool add)
{
    const cudnnDataType_t type = type_of(&desc->inputs[0]), full = CUDNN_DATA_FLOAT;
    struct dnn_shape x = shape_of(&desc->inputs[0], samples), w = weight_shape(&desc->inputs[1]);
    struct dnn_shape y = shape_of(&desc->outputs[0], samples);
    struct dnn_window window = window_of(desc);
    bool biased = conv_graph_adds_bias(desc);
    dnn_tensor result = dnn_operand(graph, CONV_Y, type, &y);
    dnn_tensor product = biased ? dnn_inside(graph, full, &y) : result;
    dnn_convolution(graph, DNN_CONVOLUTION, &window, add, dnn_operand(graph, CONV_X, type, &x),
                    dnn_operand(graph, CONV_WEIGHT, type, &w), product);
    if (!biased) return;
    int64_t channels = y.dims[1];
    struct dnn_shape bias = {{1, channels, 1, 1}, {channels, 1, 1, 1}};
    if (desc->outputs[0].layout == LAYOUT_CHANNELS_LAST)
        bias.strides[2] = bias.strides[3] = channels;
    dnn_pointwise(graph, CUDNN_POINTWISE_ADD, full, product,
                  dnn_operand(graph, CONV_BIAS, type, &bias), NULL, result);
}

/* Of x, or of the weight. */
static void gradient(struct dnn_graph *graph, const struct op_desc *desc, int64_t samples, bool add)
{
    bool data = desc->kind == OP_CONV2D_BACKWARD_DATA;
    const cudnnDataType_t type = data ? type_of(&desc->inputs[0]) : CUDNN_DATA_FLOAT;
    struct dnn_shape x = shape_of(data ? &desc->outputs[0] : &desc->inputs[0], samples);
    struct dnn_shape w = weight_shape(data ? &desc->inputs[1] : &desc->outputs[0]);
    struct dnn_shape y = shape_of(&desc->inputs[data ? 0 : 1], samples);
    struct dnn_window window = window_of(desc);
    dnn_convolution(graph, data ? DNN_CONVOLUTION_DATA : DNN_CONVOLUTION_WEIGHTS, &window, add,
                    dnn_operand(graph, CONV_X, type, &x), dnn_operand(graph, CONV_WEIGHT, type, &w),
                    dnn_operand(graph, CONV_Y, type, &y));
}

void conv_graph(struct dnn_graph *graph, const struct op_desc *desc, int64_t samples, bool add)
{
    if (desc->kind == OP_CONV2D) forward(graph, desc, samples, add);
    else gradient(graph, desc, samples, add);
}
