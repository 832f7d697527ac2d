/* Checks of layers over images and rows: convolution, linear, pooling, dropout and losses. */
#include <string.h>

#include "ops/op_check.h"

#include <float.h>

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

static status_t check_attribute(const struct op_info *info, const char *name,
                                const int64_t values[2], int64_t least)
{
    for (int i = 0; i < 2; i++)
        if (values[i] < least || values[i] > INT32_MAX)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "%s: %s (%lld, %lld) must be between %lld and %d", info->name, name,
                              (long long)values[0], (long long)values[1], (long long)least,
                              INT32_MAX);
    return NULL;
}

static status_t check_activation(const struct op_info *info, enum op_activation activation,
                                 bool possible)
{
    if (activation == ACTIVATION_NONE || possible) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "%s: activation %d is not possible here", info->name,
                      (int)activation);
}

/* The four tensors of a convolution or linear layer, or their gradients: same shapes. */
struct checked_layer {
    struct operand x, weight, bias, y;
};

static struct checked_layer layer_of(const struct op_desc *desc)
{
    switch (desc->kind) {
    case OP_CONV2D_BACKWARD_DATA:
    case OP_LINEAR_BACKWARD_DATA:
        return (struct checked_layer){.x = op_check_output(desc, 0),
                                      .weight = op_check_input(desc, 1),
                                      .bias = {"bias", NULL},
                                      .y = op_check_input(desc, 0)};
    case OP_CONV2D_BACKWARD_WEIGHTS:
    case OP_LINEAR_BACKWARD_WEIGHTS:
        return (struct checked_layer){.x = op_check_input(desc, 0),
                                      .weight = op_check_output(desc, 0),
                                      .bias = op_check_output(desc, 1),
                                      .y = op_check_input(desc, 1)};
    default:
        return (struct checked_layer){.x = op_check_input(desc, 0),
                                      .weight = op_check_input(desc, 1),
                                      .bias = op_check_input(desc, 2),
                                      .y = op_check_output(desc, 0)};
    }
}

static status_t check_bias(const struct op_info *info, const struct checked_layer *layer,
                           int64_t out)
{
    if (layer->bias.type == NULL) return NULL;
    struct tensor_type expected = tensor_type_make(DTYPE_F32, 1, &out);
    return op_check_shape(info, layer->bias.name, layer->bias.type, &expected, layer->weight.name,
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
    return NULL;
}

status_t op_check_conv(const struct op_desc *desc, const struct op_info *info)
{
    struct checked_layer layer = layer_of(desc);
    TRY(check_attribute(info, "stride", desc->attrs.conv.stride, 1));
    TRY(check_attribute(info, "padding", desc->attrs.conv.padding, 0));
    TRY(check_attribute(info, "dilation", desc->attrs.conv.dilation, 1));
    enum op_activation activation = desc->attrs.conv.activation;
    TRY(check_activation(info, activation,
                         desc->kind == OP_CONV2D && activation == ACTIVATION_RELU));
    TRY(op_check_rank(info, layer.x.name, layer.x.type, 4));
    TRY(op_check_rank(info, layer.weight.name, layer.weight.type, 4));
    TRY(op_check_rank(info, layer.y.name, layer.y.type, 4));
    const int64_t *x = layer.x.type->dims, *weight = layer.weight.type->dims;
    int64_t groups = desc->attrs.conv.groups;
    if (groups < 1 || x[1] % groups != 0 || weight[0] % groups != 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: %lld groups do not divide %lld input and %lld output channels",
                          info->name, (long long)groups, (long long)x[1], (long long)weight[0]);
    struct tensor_type expected =
        tensor_type_make(DTYPE_F32, 4, (int64_t[]){weight[0], x[1] / groups, weight[2], weight[3]});
    TRY(op_check_shape(info, layer.weight.name, layer.weight.type, &expected, layer.x.name,
                       layer.x.type));
    TRY(check_bias(info, &layer, weight[0]));
    int64_t output[2];
    TRY(check_window(info, &layer.x, weight + 2, desc->attrs.conv.stride, desc->attrs.conv.padding,
                     desc->attrs.conv.dilation, output));
    expected = tensor_type_make(DTYPE_F32, 4, (int64_t[]){x[0], weight[0], output[0], output[1]});
    return op_check_shape(info, layer.y.name, layer.y.type, &expected, layer.x.name, layer.x.type);
}

/* GELU's operand, with the shape of the layer's output, or of its input. */
static status_t check_preactivation(const struct op_desc *desc, const struct op_info *info,
                                    const struct checked_layer *layer)
{
    bool forward = desc->kind == OP_LINEAR, data = desc->kind == OP_LINEAR_BACKWARD_DATA;
    enum op_activation activation = desc->attrs.linear.activation;
    bool gelu = activation == ACTIVATION_GELU_TANH;
    TRY(check_activation(info, activation,
                         (forward && (gelu || activation == ACTIVATION_RELU)) || (data && gelu)));
    struct operand before = forward ? op_check_output(desc, 1)
                            : data  ? op_check_input(desc, 2)
                                    : (struct operand){0};
    if (gelu && (desc->accumulate[0] || desc->accumulate[1]))
        return status_new(STATUS_INVALID_ARGUMENT, "%s: with gelu nothing is added to", info->name);
    if (before.type == NULL ? data && gelu : !gelu)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %s", info->name,
                          gelu ? "gelu's preactivation is missing"
                               : "a preactivation without gelu");
    const struct operand *made = forward ? &layer->y : &layer->x;
    if (before.type == NULL) return NULL;
    return op_check_shape(info, before.name, before.type, made->type, made->name, made->type);
}

status_t op_check_linear(const struct op_desc *desc, const struct op_info *info)
{
    struct checked_layer layer = layer_of(desc);
    TRY(check_preactivation(desc, info, &layer));
    TRY(op_check_rank(info, layer.weight.name, layer.weight.type, 2));
    const struct tensor_type *x = layer.x.type;
    char shape[128];
    if (x->dim_count < 1)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %s %s must have a last dimension",
                          info->name, layer.x.name, tensor_format_shape(x, shape));
    bool transposed = desc->attrs.linear.transposed;
    int64_t in = x->dims[x->dim_count - 1], out = layer.weight.type->dims[transposed];
    struct tensor_type expected =
        tensor_type_make(DTYPE_F32, 2, transposed ? (int64_t[]){in, out} : (int64_t[]){out, in});
    TRY(op_check_shape(info, layer.weight.name, layer.weight.type, &expected, layer.x.name, x));
    TRY(check_bias(info, &layer, out));
    expected = *x;
    expected.dims[x->dim_count - 1] = out;
    return op_check_shape(info, layer.y.name, layer.y.type, &expected, layer.x.name, x);
}

status_t op_check_pool(const struct op_desc *desc, const struct op_info *info)
{
    bool forward = desc->kind == OP_MAX_POOL2D;
    struct operand x = forward ? op_check_input(desc, 0) : op_check_output(desc, 0);
    struct operand y = forward ? op_check_output(desc, 0) : op_check_input(desc, 0);
    struct operand indices = forward ? op_check_output(desc, 1) : op_check_input(desc, 1);
    const int64_t *kernel = desc->attrs.pool.kernel, *padding = desc->attrs.pool.padding;
    TRY(check_attribute(info, "kernel", kernel, 1));
    TRY(check_attribute(info, "stride", desc->attrs.pool.stride, 1));
    TRY(check_attribute(info, "padding", padding, 0));
    if (kernel[0] > 255 || kernel[1] > 255 || kernel[0] * kernel[1] > 255)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: the kernel (%lld, %lld) covers more than 255 elements", info->name,
                          (long long)kernel[0], (long long)kernel[1]);
    /* Every window must hold at least one element. */
    if (padding[0] > kernel[0] / 2 || padding[1] > kernel[1] / 2)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: padding (%lld, %lld) is more than half of the kernel (%lld, %lld)",
                          info->name, (long long)padding[0], (long long)padding[1],
                          (long long)kernel[0], (long long)kernel[1]);
    TRY(op_check_rank(info, x.name, x.type, 4));
    int64_t output[2];
    TRY(check_window(info, &x, kernel, desc->attrs.pool.stride, padding, (int64_t[]){1, 1},
                     output));
    struct tensor_type expected =
        tensor_type_make(DTYPE_F32, 4,
                         (int64_t[]){x.type->dims[0], x.type->dims[1], output[0], output[1]});
    TRY(op_check_shape(info, y.name, y.type, &expected, x.name, x.type));
    if (indices.type == NULL) return NULL;
    return op_check_shape(info, indices.name, indices.type, &expected, x.name, x.type);
}

status_t op_check_avg_pool(const struct op_desc *desc, const struct op_info *info)
{
    bool forward = desc->kind == OP_AVG_POOL2D;
    struct operand x = forward ? op_check_input(desc, 0) : op_check_output(desc, 0);
    struct operand y = forward ? op_check_output(desc, 0) : op_check_input(desc, 0);
    const int64_t *kernel = desc->attrs.avg_pool.kernel, *padding = desc->attrs.avg_pool.padding;
    TRY(op_check_rank(info, x.name, x.type, 4));
    TRY(op_check_rank(info, y.name, y.type, 4));
    struct tensor_type expected = *x.type;
    if (desc->attrs.avg_pool.adaptive) {
        expected.dims[2] = y.type->dims[2];
        expected.dims[3] = y.type->dims[3];
        return op_check_shape(info, y.name, y.type, &expected, x.name, x.type);
    }
    TRY(check_attribute(info, "kernel", kernel, 1));
    TRY(check_attribute(info, "stride", desc->attrs.avg_pool.stride, 1));
    TRY(check_attribute(info, "padding", padding, 0));
    if (padding[0] > kernel[0] / 2 || padding[1] > kernel[1] / 2)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: padding (%lld, %lld) is more than half of the kernel (%lld, %lld)",
                          info->name, (long long)padding[0], (long long)padding[1],
                          (long long)kernel[0], (long long)kernel[1]);
    TRY(check_window(info, &x, kernel, desc->attrs.avg_pool.stride, padding, (int64_t[]){1, 1},
                     expected.dims + 2));
    return op_check_shape(info, y.name, y.type, &expected, x.name, x.type);
}

status_t op_check_group_norm(const struct op_desc *desc, const struct op_info *info)
{
    bool forward = desc->kind == OP_GROUP_NORM;
    struct operand x = op_check_input(desc, forward ? 0 : 1);
    int64_t groups = desc->attrs.group_norm.groups;
    char shape[128];
    if (x.type->dim_count < 2 || groups < 1 || x.type->dims[1] % groups != 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: %lld groups do not divide the channels of %s", info->name,
                          (long long)groups, tensor_format_shape(x.type, shape));
    if (!(desc->attrs.group_norm.eps >= 0))
        return status_new(STATUS_INVALID_ARGUMENT, "%s: eps is %g, expected at least 0", info->name,
                          desc->attrs.group_norm.eps);
    struct tensor_type channel = tensor_type_make(DTYPE_F32, 1, x.type->dims + 1);
    struct tensor_type statistic =
        tensor_type_make(DTYPE_F32, 2, (int64_t[]){x.type->dims[0], groups});
    const struct tensor_type *inputs[] = {x.type, forward ? &channel : x.type, &channel, &statistic,
                                          &statistic};
    const struct tensor_type *outputs[] = {x.type, forward ? &statistic : &channel,
                                           forward ? &statistic : &channel};
    for (int i = 0; i < info->input_count; i++)
        if (desc->input_present[i])
            TRY(op_check_shape(info, info->inputs[i].name, &desc->inputs[i], inputs[i], x.name,
                               x.type));
    for (int i = 0; i < info->output_count; i++)
        if (desc->output_present[i])
            TRY(op_check_shape(info, info->outputs[i].name, &desc->outputs[i], outputs[i], x.name,
                               x.type));
    return NULL;
}

/* What an operand of a norm over the batch `x` must be. */
static struct tensor_type batch_operand(const struct op_info *info, const char *name,
                                        enum operand_type type, const struct tensor_type *x,
                                        const struct tensor_type *found)
{
    bool totals = strcmp(name, "moments") == 0 || strcmp(name, "sums") == 0;
    if (type == OPERAND_REAL) return *x;
    if (type == OPERAND_I32) return tensor_type_make(DTYPE_I32, 1, x->dims);
    if (totals) { /* this rank's, or of any number of ranks */
        bool own = info->attributes == NULL;
        int64_t dims[] = {found->dims[0], 1 + 2 * x->dims[1]};
        return tensor_type_make(DTYPE_F32, own ? 1 : 2, own ? dims + 1 : dims);
    }
    if (strcmp(name, "count of batches") == 0)
        return tensor_type_make(DTYPE_F32, 1, (int64_t[]){2});
    return tensor_type_make(DTYPE_F32, 1, x->dims + 1);
}

status_t op_check_batch_norm(const struct op_desc *desc, const struct op_info *info)
{
    bool second = desc->kind == OP_BATCH_NORM_BACKWARD || desc->kind == OP_BATCH_NORM_SUMS;
    struct operand x = op_check_input(desc, second ? 1 : 0);
    double eps = desc->attrs.batch_norm.eps, momentum = desc->attrs.batch_norm.momentum;
    char shape[128];
    if (x.type->dim_count < 2)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %s %s has no channels", info->name, x.name,
                          tensor_format_shape(x.type, shape));
    if (info->attributes != NULL && (!(eps >= 0) || !(momentum >= 0 && momentum <= 1)))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: eps is %g and momentum %g, expected at least 0, and 0 to 1",
                          info->name, eps, momentum);
    for (int i = 0; i < info->input_count; i++) {
        if (!desc->input_present[i]) continue;
        struct tensor_type wanted = batch_operand(info, info->inputs[i].name, info->inputs[i].type,
                                                  x.type, &desc->inputs[i]);
        TRY(op_check_shape(info, info->inputs[i].name, &desc->inputs[i], &wanted, x.name, x.type));
    }
    for (int i = 0; i < info->output_count; i++) {
        if (!desc->output_present[i]) continue;
        struct tensor_type wanted = batch_operand(info, info->outputs[i].name,
                                                  info->outputs[i].type, x.type, &desc->outputs[i]);
        TRY(op_check_shape(info, info->outputs[i].name, &desc->outputs[i], &wanted, x.name,
                           x.type));
    }
    return NULL;
}

status_t op_check_gather_ranks(const struct op_desc *desc, const struct op_info *info)
{
    struct operand x = op_check_input(desc, 0);
    struct tensor_type all = *x.type;
    if (x.type->dim_count >= TENSOR_MAX_DIMS)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: input has too many dimensions", info->name);
    all.dims[0] = desc->outputs[0].dim_count > 0 ? desc->outputs[0].dims[0] : 1;
    for (int i = 0; i < x.type->dim_count; i++) all.dims[i + 1] = x.type->dims[i];
    all.dim_count++;
    return op_check_shape(info, info->outputs[0].name, &desc->outputs[0], &all, x.name, x.type);
}

status_t op_check_dropout(const struct op_desc *desc, const struct op_info *info)
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
    return op_check_same_shapes(desc, info);
}

/* At least one row, which is a dimension of its own. */
static status_t check_has_classes(const struct op_info *info, struct operand scores)
{
    char shape[128];
    if (scores.type->dim_count >= 2) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "%s: %s %s must have rows and classes", info->name,
                      scores.name, tensor_format_shape(scores.type, shape));
}

/* A score per row and class, a target per row; `single` is the loss or count, if any. */
static status_t check_rows(const struct op_info *info, struct operand scores, struct operand target,
                           struct operand single)
{
    TRY(check_has_classes(info, scores));
    struct tensor_type expected = *scores.type;
    int64_t classes = expected.dims[--expected.dim_count];
    expected.dtype = DTYPE_I32;
    if (classes > INT32_MAX) {
        char shape[128];
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %s %s has more than 2^31 - 1 classes",
                          info->name, scores.name, tensor_format_shape(scores.type, shape));
    }
    TRY(op_check_shape(info, target.name, target.type, &expected, scores.name, scores.type));
    if (single.type == NULL) return NULL;
    expected = tensor_type_make(DTYPE_F32, 1, (int64_t[]){1});
    return op_check_shape(info, single.name, single.type, &expected, scores.name, scores.type);
}

/* `count`: one for each class or column. */
static status_t check_weights(const struct op_info *info, const struct op_weights *weights,
                              int64_t count, bool possible)
{
    if (weights->values == NULL && weights->count == 0) return NULL;
    if (weights->values == NULL || !possible || weights->count != count || count > OP_MAX_WEIGHTS)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: %lld weights, expected %s%lld, of at most %d", info->name,
                          (long long)weights->count, possible ? "" : "none instead of ",
                          (long long)count, OP_MAX_WEIGHTS);
    bool any = false;
    for (int64_t i = 0; i < count; i++) {
        float value = weights->values[i];
        any = any || value > 0;
        if (!(value >= 0) || value > FLT_MAX)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "%s: weight %lld is %g, expected a number of at least 0", info->name,
                              (long long)i, (double)value);
    }
    if (any) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "%s: all weights are 0", info->name);
}

static status_t check_label_smoothing(const struct op_desc *desc, const struct op_info *info)
{
    double smoothing = desc->attrs.loss.label_smoothing, gamma = desc->attrs.loss.gamma;
    bool can = desc->kind == OP_CROSS_ENTROPY || desc->kind == OP_CROSS_ENTROPY_BACKWARD;
    if (!(can && smoothing == 0 ? gamma >= 0 && gamma <= FLT_MAX : gamma == 0))
        return status_new(STATUS_INVALID_ARGUMENT, "%s: gamma is %g, expected %s", info->name,
                          gamma, can && smoothing == 0 ? "at least 0" : "0");
    if (can ? smoothing >= 0 && smoothing < 1 : smoothing == 0) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "%s: label_smoothing is %g, expected %s", info->name,
                      smoothing, can ? "0 <= label_smoothing < 1" : "0");
}

/* A share is above 0, or 0. */
static status_t check_share(const struct op_desc *desc, const struct op_info *info)
{
    double share = desc->attrs.loss.share;
    if (share >= 0 && share <= FLT_MAX) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "%s: share is %g, expected more than 0", info->name,
                      share);
}

status_t op_check_element_loss(const struct op_desc *desc, const struct op_info *info)
{
    const struct tensor_type *x = &desc->inputs[0];
    const char *name = info->inputs[0].name;
    char shape[128];
    if (x->dim_count < 1)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %s %s must have rows", info->name, name,
                          tensor_format_shape(x, shape));
    double delta = desc->attrs.element_loss.delta, weight = desc->attrs.element_loss.weight;
    if (desc->attrs.element_loss.difference == DIFFERENCE_HUBER && !(delta > 0))
        return status_new(STATUS_INVALID_ARGUMENT, "%s: delta is %g, expected more than 0",
                          info->name, delta);
    TRY(check_share(desc, info));
    double alpha = desc->attrs.element_loss.alpha;
    if (desc->attrs.element_loss.difference == DIFFERENCE_FOCAL &&
        !(delta >= 0 && delta <= FLT_MAX && alpha <= 1 && alpha >= -FLT_MAX))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: gamma is %g and alpha %g, expected at least 0 and at most 1",
                          info->name, delta, alpha);
    if (!(weight > 0))
        return status_new(STATUS_INVALID_ARGUMENT, "%s: weight is %g, expected more than 0",
                          info->name, weight);
    TRY(check_weights(info, &desc->attrs.element_loss.positive, x->dims[x->dim_count - 1],
                      desc->attrs.element_loss.difference == DIFFERENCE_BINARY_CROSS_ENTROPY));
    TRY(op_check_shape(info, info->inputs[1].name, &desc->inputs[1], x, name, x));
    int dims = desc->input_present[2] ? desc->inputs[2].dim_count : 0;
    if (dims > x->dim_count)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %s has %d dimensions, %s %d", info->name,
                          info->inputs[2].name, dims, name, x->dim_count);
    struct tensor_type rows = tensor_type_make(DTYPE_I32, dims, x->dims);
    if (desc->input_present[2])
        TRY(op_check_shape(info, info->inputs[2].name, &desc->inputs[2], &rows, name, x));
    struct tensor_type one = tensor_type_make(DTYPE_F32, 1, (int64_t[]){1});
    return op_check_shape(info, info->outputs[0].name, &desc->outputs[0],
                          desc->kind == OP_ELEMENT_LOSS ? &one : x, name, x);
}

status_t op_check_tally(const struct op_desc *desc, const struct op_info *info)
{
    struct operand none = {NULL, NULL}, x = op_check_input(desc, 0);
    bool classes = desc->attrs.tally.kind == TALLY_CLASSES;
    bool rows = desc->attrs.tally.kind == TALLY_ROWS;
    for (int i = 1; i < 3; i++)
        if (desc->input_present[i] != (!rows && classes == (i == 1)))
            return status_new(STATUS_INVALID_ARGUMENT, "%s: %s %s", info->name,
                              info->inputs[i].name,
                              desc->input_present[i] ? "is not expected" : "is missing");
    if (!rows) TRY(check_has_classes(info, x));
    if (classes) TRY(check_rows(info, x, op_check_input(desc, 1), none));
    else if (!rows)
        TRY(op_check_shape(info, info->inputs[2].name, &desc->inputs[2], x.type, x.name, x.type));
    int64_t ranks = desc->attrs.tally.ranks;
    bool apart = rows || desc->attrs.tally.kind == TALLY_NUMBERS;
    if (ranks < 1 || ranks > INT32_MAX || (ranks > 1 && !apart))
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %lld ranks are not possible", info->name,
                          (long long)ranks);
    int64_t columns = rows ? tensor_element_count(x.type) : x.type->dims[x.type->dim_count - 1];
    int64_t dims[] = {op_tally_rows(&desc->attrs), columns};
    struct tensor_type sums = tensor_type_make(DTYPE_F32, 2, dims);
    return op_check_shape(info, info->outputs[0].name, &desc->outputs[0], &sums, x.name, x.type);
}

status_t op_check_loss(const struct op_desc *desc, const struct op_info *info)
{
    struct operand none = {NULL, NULL};
    if (info->attributes != NULL) {
        const struct tensor_type *scores =
            desc->kind == OP_NLL_LOSS_BACKWARD ? &desc->outputs[0] : &desc->inputs[0];
        TRY(check_label_smoothing(desc, info));
        TRY(check_share(desc, info));
        TRY(check_weights(info, &desc->attrs.loss.weights,
                          scores->dim_count > 0 ? scores->dims[scores->dim_count - 1] : 0, true));
    }
    switch (desc->kind) {
    case OP_NLL_LOSS:
    case OP_COUNT_CORRECT:
        return check_rows(info, op_check_input(desc, 0), op_check_input(desc, 1),
                          op_check_output(desc, 0));
    case OP_NLL_LOSS_BACKWARD:
        return check_rows(info, op_check_output(desc, 0), op_check_input(desc, 0), none);
    case OP_CROSS_ENTROPY:
        TRY(check_rows(info, op_check_input(desc, 0), op_check_input(desc, 1),
                       op_check_output(desc, 0)));
        return op_check_shape(info, info->outputs[1].name, &desc->outputs[1], &desc->inputs[0],
                              info->inputs[0].name, &desc->inputs[0]);
    case OP_CROSS_ENTROPY_BACKWARD:
        TRY(check_rows(info, op_check_input(desc, 0), op_check_input(desc, 1), none));
        return op_check_shape(info, info->outputs[0].name, &desc->outputs[0], &desc->inputs[0],
                              info->inputs[0].name, &desc->inputs[0]);
    default: /* log_softmax and its gradient */
        TRY(check_has_classes(info, op_check_input(desc, 0)));
        return op_check_same_shapes(desc, info);
    }
}
