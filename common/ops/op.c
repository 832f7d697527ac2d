/*
 * The table of ops and the one place that checks an op's operands against each other. Model files
 * are hostile until they passed here, so no product of sizes is formed before its factors are
 * bounded. Pure functions; any thread.
 */
#include "ops/op.h"

#include <stdio.h>
#include <string.h>

static const struct op_info infos[OP_KIND_COUNT] = {
    [OP_CONV2D] = {.name = "conv2d",
                   .input_count = 3,
                   .output_count = 1,
                   .optional_inputs = 1u << 2,
                   .channels_last = true,
                   .input_names = {"input", "weight", "bias"},
                   .output_names = {"output"}},
    [OP_CONV2D_BACKWARD_DATA] = {.name = "conv2d_backward_data",
                                 .input_count = 2,
                                 .output_count = 1,
                                 .channels_last = true,
                                 .input_names = {"output's gradient", "weight"},
                                 .output_names = {"input's gradient"}},
    [OP_CONV2D_BACKWARD_WEIGHTS] = {.name = "conv2d_backward_weights",
                                    .input_count = 2,
                                    .output_count = 2,
                                    .optional_outputs = 1u << 1,
                                    .channels_last = true,
                                    .input_names = {"input", "output's gradient"},
                                    .output_names = {"weight's gradient", "bias's gradient"}},
    [OP_LINEAR] = {.name = "linear",
                   .input_count = 3,
                   .output_count = 1,
                   .optional_inputs = 1u << 2,
                   .input_names = {"input", "weight", "bias"},
                   .output_names = {"output"}},
    [OP_LINEAR_BACKWARD_DATA] = {.name = "linear_backward_data",
                                 .input_count = 2,
                                 .output_count = 1,
                                 .input_names = {"output's gradient", "weight"},
                                 .output_names = {"input's gradient"}},
    [OP_LINEAR_BACKWARD_WEIGHTS] = {.name = "linear_backward_weights",
                                    .input_count = 2,
                                    .output_count = 2,
                                    .optional_outputs = 1u << 1,
                                    .input_names = {"input", "output's gradient"},
                                    .output_names = {"weight's gradient", "bias's gradient"}},
    [OP_RELU] = {.name = "relu",
                 .input_count = 1,
                 .output_count = 1,
                 .channels_last = true,
                 .element_wise = true,
                 .input_names = {"input"},
                 .output_names = {"output"}},
    [OP_RELU_BACKWARD] = {.name = "relu_backward",
                          .input_count = 2,
                          .output_count = 1,
                          .channels_last = true,
                          .element_wise = true,
                          .input_names = {"output's gradient", "output"},
                          .output_names = {"input's gradient"}},
    [OP_MAX_POOL2D] = {.name = "max_pool2d",
                       .input_count = 1,
                       .output_count = 2,
                       .optional_outputs = 1u << 1,
                       .channels_last = true,
                       .input_names = {"input"},
                       .output_names = {"output", "indices"}},
    [OP_MAX_POOL2D_BACKWARD] = {.name = "max_pool2d_backward",
                                .input_count = 2,
                                .output_count = 1,
                                .channels_last = true,
                                .input_names = {"output's gradient", "indices"},
                                .output_names = {"input's gradient"}},
    [OP_DROPOUT] = {.name = "dropout",
                    .input_count = 1,
                    .output_count = 1,
                    .channels_last = true,
                    .element_wise = true,
                    .input_names = {"input"},
                    .output_names = {"output"}},
    [OP_DROPOUT_BACKWARD] = {.name = "dropout_backward",
                             .input_count = 1,
                             .output_count = 1,
                             .channels_last = true,
                             .element_wise = true,
                             .input_names = {"output's gradient"},
                             .output_names = {"input's gradient"}},
    [OP_RESHAPE] = {.name = "reshape",
                    .input_count = 1,
                    .output_count = 1,
                    .channels_last = true,
                    .input_names = {"input"},
                    .output_names = {"output"}},
    [OP_ADD] = {.name = "add",
                .input_count = 2,
                .output_count = 1,
                .channels_last = true,
                .element_wise = true,
                .input_names = {"first input", "second input"},
                .output_names = {"output"}},
    [OP_LOG_SOFTMAX] = {.name = "log_softmax",
                        .input_count = 1,
                        .output_count = 1,
                        .input_names = {"input"},
                        .output_names = {"output"}},
    [OP_LOG_SOFTMAX_BACKWARD] = {.name = "log_softmax_backward",
                                 .input_count = 2,
                                 .output_count = 1,
                                 .input_names = {"output's gradient", "output"},
                                 .output_names = {"input's gradient"}},
    [OP_NLL_LOSS] = {.name = "nll_loss",
                     .input_count = 2,
                     .output_count = 1,
                     .input_names = {"input", "target"},
                     .output_names = {"loss"}},
    [OP_NLL_LOSS_BACKWARD] = {.name = "nll_loss_backward",
                              .input_count = 1,
                              .output_count = 1,
                              .input_names = {"target"},
                              .output_names = {"input's gradient"}},
    [OP_CROSS_ENTROPY] = {.name = "cross_entropy",
                          .input_count = 2,
                          .output_count = 2,
                          .input_names = {"input", "target"},
                          .output_names = {"loss", "log-probabilities"}},
    [OP_CROSS_ENTROPY_BACKWARD] = {.name = "cross_entropy_backward",
                                   .input_count = 2,
                                   .output_count = 1,
                                   .input_names = {"log-probabilities", "target"},
                                   .output_names = {"input's gradient"}},
    [OP_COUNT_CORRECT] = {.name = "count_correct",
                          .input_count = 2,
                          .output_count = 1,
                          .input_names = {"input", "target"},
                          .output_names = {"count"}},
    [OP_CAST] = {.name = "cast",
                 .input_count = 1,
                 .output_count = 1,
                 .channels_last = true,
                 .input_names = {"input"},
                 .output_names = {"output"}},
};

const struct op_info *op_info_get(enum op_kind kind)
{
    return &infos[kind];
}

int64_t op_window_output(int64_t size, int64_t kernel, int64_t stride, int64_t padding,
                         int64_t dilation)
{
    int64_t limit = TENSOR_MAX_ELEMENTS;
    if (size < 1 || kernel < 1 || stride < 1 || padding < 0 || dilation < 1) return 0;
    if (size > limit || kernel > limit || padding > limit) return 0;
    int64_t padded = size + 2 * padding;
    /* The window spans dilation * (kernel - 1) + 1 rows. */
    if (kernel > 1 && dilation > (padded - 1) / (kernel - 1)) return 0;
    return (padded - 1 - dilation * (kernel - 1)) / stride + 1;
}

/* What an operand must be. */

static enum dtype input_dtype(enum op_kind kind, int index)
{
    switch (kind) {
    case OP_MAX_POOL2D_BACKWARD: return index == 1 ? DTYPE_U8 : DTYPE_F32;
    case OP_NLL_LOSS:
    case OP_CROSS_ENTROPY:
    case OP_CROSS_ENTROPY_BACKWARD:
    case OP_COUNT_CORRECT: return index == 1 ? DTYPE_I32 : DTYPE_F32;
    case OP_NLL_LOSS_BACKWARD: return DTYPE_I32;
    default: return DTYPE_F32;
    }
}

static enum dtype output_dtype(enum op_kind kind, int index)
{
    return kind == OP_MAX_POOL2D && index == 1 ? DTYPE_U8 : DTYPE_F32;
}

static bool is_weights_gradient(enum op_kind kind)
{
    return kind == OP_CONV2D_BACKWARD_WEIGHTS || kind == OP_LINEAR_BACKWARD_WEIGHTS;
}

/* What an operand must be that is f32 where nothing is bf16. */
static enum dtype real_dtype(const struct op_desc *desc, bool output,
                             const struct tensor_type *found)
{
    bool known = desc->input_present[0] && desc->inputs[0].dtype == DTYPE_BF16;
    if (desc->kind == OP_CAST)
        return found->dtype == DTYPE_BF16 && (!output || !known) ? DTYPE_BF16 : DTYPE_F32;
    if (!known || desc->kind > OP_ADD || (output && is_weights_gradient(desc->kind)))
        return DTYPE_F32;
    return DTYPE_BF16;
}

static status_t check_type(const struct op_info *info, const char *operand,
                           const struct tensor_type *type, enum dtype expected)
{
    if (type->dim_count < 0 || type->dim_count > TENSOR_MAX_DIMS)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %s has %d dimensions, at most %d can be",
                          info->name, operand, type->dim_count, TENSOR_MAX_DIMS);
    char shape[128];
    if (tensor_element_count(type) < 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: %s %s: every dimension must be positive and all together at most "
                          "2^40 elements",
                          info->name, operand, tensor_format_shape(type, shape));
    if (type->dtype != expected) {
        bool known = (unsigned)type->dtype <= DTYPE_BF16;
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %s %s is of type %s, expected %s",
                          info->name, operand, tensor_format_shape(type, shape),
                          known ? dtype_name(type->dtype) : "unknown", dtype_name(expected));
    }
    return STATUS_OKAY;
}

static status_t check_presence(const struct op_info *info, const char *operand, bool present,
                               bool optional)
{
    if (present || optional) return STATUS_OKAY;
    return status_new(STATUS_INVALID_ARGUMENT, "%s: %s is missing", info->name, operand);
}

static status_t check_operands(const struct op_desc *desc, const struct op_info *info)
{
    if (desc->input_count != info->input_count || desc->output_count != info->output_count)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: has %d inputs and %d outputs, expected %d and %d", info->name,
                          desc->input_count, desc->output_count, info->input_count,
                          info->output_count);
    for (int i = 0; i < info->input_count; i++) {
        const char *operand = info->input_names[i];
        TRY(check_presence(info, operand, desc->input_present[i], info->optional_inputs >> i & 1));
        if (!desc->input_present[i]) continue;
        enum dtype dtype = input_dtype(desc->kind, i);
        if (dtype == DTYPE_F32) dtype = real_dtype(desc, false, &desc->inputs[i]);
        TRY(check_type(info, operand, &desc->inputs[i], dtype));
    }
    for (int i = 0; i < info->output_count; i++) {
        const char *operand = info->output_names[i];
        TRY(check_presence(info, operand, desc->output_present[i],
                           info->optional_outputs >> i & 1));
        if (!desc->output_present[i]) continue;
        enum dtype dtype = output_dtype(desc->kind, i);
        if (dtype == DTYPE_F32) dtype = real_dtype(desc, true, &desc->outputs[i]);
        TRY(check_type(info, operand, &desc->outputs[i], dtype));
        if (desc->accumulate[i] && dtype != DTYPE_F32)
            return status_new(STATUS_INVALID_ARGUMENT, "%s: %s cannot be accumulated", info->name,
                              operand);
    }
    return STATUS_OKAY;
}

static status_t check_rank(const struct op_info *info, const char *operand,
                           const struct tensor_type *type, int dim_count)
{
    if (type->dim_count == dim_count) return STATUS_OKAY;
    char shape[128];
    return status_new(STATUS_INVALID_ARGUMENT, "%s: %s %s must have %d dimensions", info->name,
                      operand, tensor_format_shape(type, shape), dim_count);
}

/* `source` is the operand that says what `operand` must be. */
static status_t check_shape(const struct op_info *info, const char *operand,
                            const struct tensor_type *found, const struct tensor_type *expected,
                            const char *source_name, const struct tensor_type *source)
{
    if (tensor_same_shape(found, expected)) return STATUS_OKAY;
    char found_text[128], expected_text[128], source_text[128];
    return status_new(STATUS_INVALID_ARGUMENT, "%s: %s is %s, but with %s %s it must be %s",
                      info->name, operand, tensor_format_shape(found, found_text), source_name,
                      tensor_format_shape(source, source_text),
                      tensor_format_shape(expected, expected_text));
}

static status_t check_attribute(const struct op_info *info, const char *name,
                                const int64_t values[2], int64_t least)
{
    for (int i = 0; i < 2; i++)
        if (values[i] < least || values[i] > INT32_MAX)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "%s: %s (%lld, %lld) must be between %lld and %d", info->name, name,
                              (long long)values[0], (long long)values[1], (long long)least,
                              INT32_MAX);
    return STATUS_OKAY;
}

static status_t check_activation(const struct op_info *info, enum op_activation activation,
                                 bool forward)
{
    if (activation == ACTIVATION_NONE || (forward && activation == ACTIVATION_RELU))
        return STATUS_OKAY;
    return status_new(STATUS_INVALID_ARGUMENT, "%s: activation %d is not possible here", info->name,
                      (int)activation);
}

/* An operand by its role, whichever op it belongs to. */
struct operand {
    const char *name;
    const struct tensor_type *type; /* NULL: absent */
};

static struct operand input_of(const struct op_desc *desc, int index)
{
    return (struct operand){infos[desc->kind].input_names[index],
                            desc->input_present[index] ? &desc->inputs[index] : NULL};
}

static struct operand output_of(const struct op_desc *desc, int index)
{
    return (struct operand){infos[desc->kind].output_names[index],
                            desc->output_present[index] ? &desc->outputs[index] : NULL};
}

/* The four tensors of a convolution or linear layer, or their gradients: same shapes. */
struct layer {
    struct operand x, weight, bias, y;
};

static struct layer layer_of(const struct op_desc *desc)
{
    switch (desc->kind) {
    case OP_CONV2D_BACKWARD_DATA:
    case OP_LINEAR_BACKWARD_DATA:
        return (struct layer){.x = output_of(desc, 0),
                              .weight = input_of(desc, 1),
                              .bias = {"bias", NULL},
                              .y = input_of(desc, 0)};
    case OP_CONV2D_BACKWARD_WEIGHTS:
    case OP_LINEAR_BACKWARD_WEIGHTS:
        return (struct layer){.x = input_of(desc, 0),
                              .weight = output_of(desc, 0),
                              .bias = output_of(desc, 1),
                              .y = input_of(desc, 1)};
    default:
        return (struct layer){.x = input_of(desc, 0),
                              .weight = input_of(desc, 1),
                              .bias = input_of(desc, 2),
                              .y = output_of(desc, 0)};
    }
}

static status_t check_bias(const struct op_info *info, const struct layer *layer)
{
    if (layer->bias.type == NULL) return STATUS_OKAY;
    struct tensor_type expected = tensor_type_make(DTYPE_F32, 1, layer->weight.type->dims);
    return check_shape(info, layer->bias.name, layer->bias.type, &expected, layer->weight.name,
                       layer->weight.type);
}

static status_t check_window(const struct op_info *info, const struct operand *x,
                             const int64_t kernel[2], const int64_t stride[2],
                             const int64_t padding[2], const int64_t dilation[2], int64_t output[2])
{
    for (int i = 0; i < 2; i++) {
        output[i] =
            op_window_output(x->type->dims[2 + i], kernel[i], stride[i], padding[i], dilation[i]);
        if (output[i] >= 1) continue;
        char shape[128];
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: the kernel (%lld, %lld) with dilation (%lld, %lld) is larger than "
                          "%s %s with padding (%lld, %lld)",
                          info->name, (long long)kernel[0], (long long)kernel[1],
                          (long long)dilation[0], (long long)dilation[1], x->name,
                          tensor_format_shape(x->type, shape), (long long)padding[0],
                          (long long)padding[1]);
    }
    return STATUS_OKAY;
}

static status_t check_conv(const struct op_desc *desc, const struct op_info *info)
{
    struct layer layer = layer_of(desc);
    TRY(check_attribute(info, "stride", desc->attrs.conv.stride, 1));
    TRY(check_attribute(info, "padding", desc->attrs.conv.padding, 0));
    TRY(check_attribute(info, "dilation", desc->attrs.conv.dilation, 1));
    TRY(check_activation(info, desc->attrs.conv.activation, desc->kind == OP_CONV2D));
    TRY(check_rank(info, layer.x.name, layer.x.type, 4));
    TRY(check_rank(info, layer.weight.name, layer.weight.type, 4));
    TRY(check_rank(info, layer.y.name, layer.y.type, 4));
    const int64_t *x = layer.x.type->dims, *weight = layer.weight.type->dims;
    int64_t groups = desc->attrs.conv.groups;
    if (groups < 1 || x[1] % groups != 0 || weight[0] % groups != 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: %lld groups do not divide %lld input and %lld output channels",
                          info->name, (long long)groups, (long long)x[1], (long long)weight[0]);
    struct tensor_type expected =
        tensor_type_make(DTYPE_F32, 4, (int64_t[]){weight[0], x[1] / groups, weight[2], weight[3]});
    TRY(check_shape(info, layer.weight.name, layer.weight.type, &expected, layer.x.name,
                    layer.x.type));
    TRY(check_bias(info, &layer));
    int64_t output[2];
    TRY(check_window(info, &layer.x, weight + 2, desc->attrs.conv.stride, desc->attrs.conv.padding,
                     desc->attrs.conv.dilation, output));
    expected = tensor_type_make(DTYPE_F32, 4, (int64_t[]){x[0], weight[0], output[0], output[1]});
    return check_shape(info, layer.y.name, layer.y.type, &expected, layer.x.name, layer.x.type);
}

static status_t check_linear(const struct op_desc *desc, const struct op_info *info)
{
    struct layer layer = layer_of(desc);
    TRY(check_activation(info, desc->attrs.linear.activation, desc->kind == OP_LINEAR));
    TRY(check_rank(info, layer.weight.name, layer.weight.type, 2));
    const struct tensor_type *x = layer.x.type;
    char shape[128];
    if (x->dim_count < 1)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %s %s must have a last dimension",
                          info->name, layer.x.name, tensor_format_shape(x, shape));
    const int64_t *weight = layer.weight.type->dims;
    struct tensor_type expected =
        tensor_type_make(DTYPE_F32, 2, (int64_t[]){weight[0], x->dims[x->dim_count - 1]});
    TRY(check_shape(info, layer.weight.name, layer.weight.type, &expected, layer.x.name, x));
    TRY(check_bias(info, &layer));
    expected = *x;
    expected.dims[x->dim_count - 1] = weight[0];
    return check_shape(info, layer.y.name, layer.y.type, &expected, layer.x.name, x);
}

static status_t check_pool(const struct op_desc *desc, const struct op_info *info)
{
    bool forward = desc->kind == OP_MAX_POOL2D;
    struct operand x = forward ? input_of(desc, 0) : output_of(desc, 0);
    struct operand y = forward ? output_of(desc, 0) : input_of(desc, 0);
    struct operand indices = forward ? output_of(desc, 1) : input_of(desc, 1);
    const int64_t *kernel = desc->attrs.pool.kernel, *padding = desc->attrs.pool.padding;
    TRY(check_attribute(info, "kernel", kernel, 1));
    TRY(check_attribute(info, "stride", desc->attrs.pool.stride, 1));
    TRY(check_attribute(info, "padding", padding, 0));
    if (kernel[0] > 255 || kernel[1] > 255 || kernel[0] * kernel[1] > 255)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: the kernel (%lld, %lld) covers more than 255 elements", info->name,
                          (long long)kernel[0], (long long)kernel[1]);
    /* So that every window holds at least one element. */
    if (padding[0] > kernel[0] / 2 || padding[1] > kernel[1] / 2)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: padding (%lld, %lld) is more than half of the kernel (%lld, %lld)",
                          info->name, (long long)padding[0], (long long)padding[1],
                          (long long)kernel[0], (long long)kernel[1]);
    TRY(check_rank(info, x.name, x.type, 4));
    int64_t output[2];
    TRY(check_window(info, &x, kernel, desc->attrs.pool.stride, padding, (int64_t[]){1, 1},
                     output));
    struct tensor_type expected =
        tensor_type_make(DTYPE_F32, 4,
                         (int64_t[]){x.type->dims[0], x.type->dims[1], output[0], output[1]});
    TRY(check_shape(info, y.name, y.type, &expected, x.name, x.type));
    if (indices.type == NULL) return STATUS_OKAY;
    return check_shape(info, indices.name, indices.type, &expected, x.name, x.type);
}

static status_t check_dropout(const struct op_desc *desc, const struct op_info *info)
{
    double p = desc->attrs.dropout.p;
    if (!(p >= 0 && p < 1))
        return status_new(STATUS_INVALID_ARGUMENT, "%s: p is %g, expected 0 <= p < 1", info->name,
                          p);
    /* The generator counts blocks of four elements in 32 bits. */
    char shape[128];
    if (tensor_element_count(&desc->inputs[0]) > (int64_t)1 << 34)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: input %s has more than 2^34 elements",
                          info->name, tensor_format_shape(&desc->inputs[0], shape));
    return STATUS_OKAY;
}

/* All operands have the shape of input 0. */
static status_t check_same_shapes(const struct op_desc *desc, const struct op_info *info)
{
    struct operand first = input_of(desc, 0);
    for (int i = 1; i < info->input_count; i++)
        TRY(check_shape(info, info->input_names[i], &desc->inputs[i], first.type, first.name,
                        first.type));
    return check_shape(info, info->output_names[0], &desc->outputs[0], first.type, first.name,
                       first.type);
}

static status_t check_reshape(const struct op_desc *desc, const struct op_info *info)
{
    const struct tensor_type *x = &desc->inputs[0], *y = &desc->outputs[0];
    if (tensor_element_count(x) == tensor_element_count(y)) return STATUS_OKAY;
    char x_text[128], y_text[128];
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s: input %s has %lld elements, but output %s has %lld", info->name,
                      tensor_format_shape(x, x_text), (long long)tensor_element_count(x),
                      tensor_format_shape(y, y_text), (long long)tensor_element_count(y));
}

/* A score per row and class, a target per row; `single` is the loss or count, if there is one. */
static status_t check_rows(const struct op_desc *desc, const struct op_info *info,
                           struct operand scores, struct operand target, struct operand single)
{
    enum op_reduction reduction = desc->attrs.loss.reduction;
    if (desc->kind != OP_COUNT_CORRECT && reduction != REDUCTION_SUM && reduction != REDUCTION_MEAN)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: reduction %d is unknown", info->name,
                          (int)reduction);
    TRY(check_rank(info, scores.name, scores.type, 2));
    if (scores.type->dims[1] > INT32_MAX) {
        char shape[128];
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %s %s has more than 2^31 - 1 classes",
                          info->name, scores.name, tensor_format_shape(scores.type, shape));
    }
    struct tensor_type expected = tensor_type_make(DTYPE_I32, 1, scores.type->dims);
    TRY(check_shape(info, target.name, target.type, &expected, scores.name, scores.type));
    if (single.type == NULL) return STATUS_OKAY;
    expected = tensor_type_make(DTYPE_F32, 1, (int64_t[]){1});
    return check_shape(info, single.name, single.type, &expected, scores.name, scores.type);
}

status_t op_desc_check(const struct op_desc *desc)
{
    if ((unsigned)desc->kind >= OP_KIND_COUNT)
        return status_new(STATUS_INVALID_ARGUMENT, "op kind %d is unknown", (int)desc->kind);
    const struct op_info *info = op_info_get(desc->kind);
    struct operand none = {NULL, NULL};
    TRY(check_operands(desc, info));
    switch (desc->kind) {
    case OP_CONV2D:
    case OP_CONV2D_BACKWARD_DATA:
    case OP_CONV2D_BACKWARD_WEIGHTS: return check_conv(desc, info);
    case OP_LINEAR:
    case OP_LINEAR_BACKWARD_DATA:
    case OP_LINEAR_BACKWARD_WEIGHTS: return check_linear(desc, info);
    case OP_MAX_POOL2D:
    case OP_MAX_POOL2D_BACKWARD: return check_pool(desc, info);
    case OP_DROPOUT:
    case OP_DROPOUT_BACKWARD: TRY(check_dropout(desc, info)); return check_same_shapes(desc, info);
    case OP_RELU:
    case OP_RELU_BACKWARD:
    case OP_CAST:
    case OP_ADD: return check_same_shapes(desc, info);
    case OP_RESHAPE: return check_reshape(desc, info);
    case OP_LOG_SOFTMAX:
    case OP_LOG_SOFTMAX_BACKWARD:
        TRY(check_rank(info, info->input_names[0], &desc->inputs[0], 2));
        return check_same_shapes(desc, info);
    case OP_NLL_LOSS:
    case OP_COUNT_CORRECT:
        return check_rows(desc, info, input_of(desc, 0), input_of(desc, 1), output_of(desc, 0));
    case OP_NLL_LOSS_BACKWARD:
        return check_rows(desc, info, output_of(desc, 0), input_of(desc, 0), none);
    case OP_CROSS_ENTROPY:
        TRY(check_rows(desc, info, input_of(desc, 0), input_of(desc, 1), output_of(desc, 0)));
        return check_shape(info, info->output_names[1], &desc->outputs[1], &desc->inputs[0],
                           info->input_names[0], &desc->inputs[0]);
    case OP_CROSS_ENTROPY_BACKWARD:
        TRY(check_rows(desc, info, input_of(desc, 0), input_of(desc, 1), none));
        return check_shape(info, info->output_names[0], &desc->outputs[0], &desc->inputs[0],
                           info->input_names[0], &desc->inputs[0]);
    case OP_KIND_COUNT: break;
    }
    return STATUS_OKAY;
}

double op_desc_flops(const struct op_desc *desc)
{
    if (desc->kind > OP_LINEAR_BACKWARD_WEIGHTS) return 0;
    /* Every element of the output (or its gradient) meets every weight of its channel once. */
    struct layer layer = layer_of(desc);
    double per_output = 2;
    for (int i = 1; i < layer.weight.type->dim_count; i++)
        per_output *= (double)layer.weight.type->dims[i];
    return per_output * (double)tensor_element_count(layer.y.type);
}

uint64_t op_desc_bytes(const struct op_desc *desc)
{
    uint64_t bytes = 0;
    for (int i = 0; i < desc->input_count; i++)
        if (desc->input_present[i]) bytes += tensor_bytes(&desc->inputs[i]);
    for (int i = 0; i < desc->output_count; i++)
        if (desc->output_present[i]) bytes += tensor_bytes(&desc->outputs[i]);
    return bytes;
}
