/*
 * See layers.h. Two constant tables and the small functions they name; the functions for sequences
 * are in layers_sequence.c. Pure.
 */
#include "model/layers.h"

#include "model/layers_internal.h"

#include <math.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "base/text.h"

#define TENSOR(argument)                                                                           \
    {                                                                                              \
        argument, ARGUMENT_TENSOR, .required = true                                                \
    }
#define OPTIONAL_TENSOR(argument)                                                                  \
    {                                                                                              \
        argument, ARGUMENT_OPTIONAL_TENSOR, .required = false                                      \
    }
#define REQUIRED(argument, type)                                                                   \
    {                                                                                              \
        argument, ARGUMENT_##type, .required = true                                                \
    }
#define INTEGER(argument, type, value)                                                             \
    {                                                                                              \
        argument, ARGUMENT_##type, .standard = {.kind = CONSTANT_INTEGER, .integer = (value) }     \
    }
#define REAL(argument, type, value)                                                                \
    {                                                                                              \
        argument, ARGUMENT_##type, .standard = {.kind = CONSTANT_REAL, .real = (value) }           \
    }
#define BOOLEAN(argument, value)                                                                   \
    {                                                                                              \
        argument, ARGUMENT_BOOLEAN, .standard = {.kind = CONSTANT_BOOLEAN, .integer = (value) }    \
    }
#define WORD(argument, type, value)                                                                \
    {                                                                                              \
        argument, ARGUMENT_##type, .standard = {.kind = CONSTANT_TEXT, .text = (value) }           \
    }
#define NONE(argument, type)                                                                       \
    {                                                                                              \
        argument, ARGUMENT_##type, .standard = {.kind = CONSTANT_NONE }                            \
    }

/*
 * The bounds of PyTorch's reset_parameters, computed in its order of double operations, so that the
 * doubles are identical (He et al., "Delving deep into rectifiers", ICCV 2015, with a = sqrt(5)).
 */
double weight_bound(int64_t fan_in)
{
    double a = sqrt(5.0);
    double gain = sqrt(2.0 / (1 + a * a));
    return sqrt(3.0) * (gain / sqrt((double)fan_in));
}

int weight_and_bias(const struct tensor_type *weight, bool bias,
                    struct layer_parameter parameters[LAYER_MAX_PARAMETERS])
{
    /* Products that may be too large come out as -1 here; construct.c rejects them. */
    int64_t fan_in = tensor_element_count(weight) / weight->dims[0];
    parameters[0] = (struct layer_parameter){.name = "weight",
                                             .type = *weight,
                                             .init = INIT_UNIFORM,
                                             .bound = weight_bound(fan_in)};
    if (!bias) return 1;
    parameters[1] = (struct layer_parameter){.name = "bias",
                                             .type = tensor_type_make(DTYPE_F32, 1, weight->dims),
                                             .init = INIT_UNIFORM,
                                             .bound = 1 / sqrt((double)fan_in)};
    return 2;
}

static int conv2d_parameters(const struct bound *bound,
                             struct layer_parameter parameters[LAYER_MAX_PARAMETERS])
{
    int64_t kernel[2];
    bound_pair(bound, "kernel_size", kernel);
    int64_t dims[4] = {bound_integer(bound, "out_channels"),
                       bound_integer(bound, "in_channels") / bound_integer(bound, "groups"),
                       kernel[0], kernel[1]};
    struct tensor_type weight = tensor_type_make(DTYPE_F32, 4, dims);
    return weight_and_bias(&weight, bound_boolean(bound, "bias"), parameters);
}

/* (in, out / groups, kernel): the convolution whose gradient it is reads what this one makes. Its
 * fan-in is that convolution's, as in PyTorch. */
static int conv_transpose2d_parameters(const struct bound *bound,
                                       struct layer_parameter parameters[LAYER_MAX_PARAMETERS])
{
    int64_t kernel[2], out = bound_integer(bound, "out_channels");
    bound_pair(bound, "kernel_size", kernel);
    int64_t dims[4] = {bound_integer(bound, "in_channels"), out / bound_integer(bound, "groups"),
                       kernel[0], kernel[1]};
    struct tensor_type weight = tensor_type_make(DTYPE_F32, 4, dims);
    int count = weight_and_bias(&weight, bound_boolean(bound, "bias"), parameters);
    if (count > 1) parameters[1].type = tensor_type_make(DTYPE_F32, 1, &out);
    return count;
}

static int linear_parameters(const struct bound *bound,
                             struct layer_parameter parameters[LAYER_MAX_PARAMETERS])
{
    int64_t dims[2] = {bound_integer(bound, "out_features"), bound_integer(bound, "in_features")};
    struct tensor_type weight = tensor_type_make(DTYPE_F32, 2, dims);
    return weight_and_bias(&weight, bound_boolean(bound, "bias"), parameters);
}

void print_argument(const struct bound *bound, const char *name, struct buf *text)
{
    char value[64];
    buf_printf(text, "%s%s=%s", text->length ? ", " : "", name,
               constant_format(bound_get(bound, name), value));
}

static void print_pair(const struct bound *bound, const char *name, struct buf *text)
{
    int64_t pair[2];
    bound_pair(bound, name, pair);
    buf_printf(text, ", %s=(%lld, %lld)", name, (long long)pair[0], (long long)pair[1]);
}

static bool pair_is(const struct bound *bound, const char *name, int64_t value)
{
    int64_t pair[2];
    bound_pair(bound, name, pair);
    return pair[0] == value && pair[1] == value;
}

static void print_conv(const struct bound *bound, bool transposed, struct buf *text)
{
    buf_printf(text, "%lld, %lld", (long long)bound_integer(bound, "in_channels"),
               (long long)bound_integer(bound, "out_channels"));
    print_pair(bound, "kernel_size", text);
    print_pair(bound, "stride", text);
    if (!pair_is(bound, "padding", 0)) print_pair(bound, "padding", text);
    if (!pair_is(bound, "dilation", 1)) print_pair(bound, "dilation", text);
    if (transposed && !pair_is(bound, "output_padding", 0))
        print_pair(bound, "output_padding", text);
    if (bound_integer(bound, "groups") != 1) print_argument(bound, "groups", text);
    if (!bound_boolean(bound, "bias")) print_argument(bound, "bias", text);
}

static void conv2d_print(const struct bound *bound, struct buf *text)
{
    print_conv(bound, false, text);
}

static void conv_transpose2d_print(const struct bound *bound, struct buf *text)
{
    print_conv(bound, true, text);
}

static void linear_print(const struct bound *bound, struct buf *text)
{
    print_argument(bound, "in_features", text);
    print_argument(bound, "out_features", text);
    print_argument(bound, "bias", text);
}

static void dropout_print(const struct bound *bound, struct buf *text)
{
    print_argument(bound, "p", text);
    print_argument(bound, "inplace", text);
}

static void relu_print(const struct bound *bound, struct buf *text)
{
    if (bound_boolean(bound, "inplace")) print_argument(bound, "inplace", text);
}

static void max_pool2d_print(const struct bound *bound, struct buf *text)
{
    print_argument(bound, "kernel_size", text);
    bool none = bound_get(bound, "stride")->kind == CONSTANT_NONE;
    char value[64];
    buf_printf(text, ", stride=%s",
               constant_format(bound_get(bound, none ? "kernel_size" : "stride"), value));
    print_argument(bound, "padding", text);
    print_argument(bound, "dilation", text);
    print_argument(bound, "ceil_mode", text);
}

static void flatten_print(const struct bound *bound, struct buf *text)
{
    print_argument(bound, "start_dim", text);
    print_argument(bound, "end_dim", text);
}

status_t make_conv2d(const struct bound *bound, struct layer *layer)
{
    int64_t groups = bound_integer(bound, "groups");
    int64_t in = bound_integer(bound, "in_channels"), out = bound_integer(bound, "out_channels");
    if (in % groups || out % groups)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s(): groups=%lld does not divide %lld input and %lld output "
                          "channels",
                          bound->signature->name, (long long)groups, (long long)in, (long long)out);
    bound_pair(bound, "stride", layer->attrs.conv.stride);
    bound_pair(bound, "padding", layer->attrs.conv.padding);
    bound_pair(bound, "dilation", layer->attrs.conv.dilation);
    layer->attrs.conv.groups = groups;
    return NULL;
}

static status_t make_conv_transpose2d(const struct bound *bound, struct layer *layer)
{
    TRY(make_conv2d(bound, layer));
    bound_pair(bound, "output_padding", layer->sizes);
    for (int i = 0; i < 2; i++)
        if (layer->sizes[i] >= layer->attrs.conv.stride[i])
            return status_new(STATUS_INVALID_ARGUMENT,
                              "ConvTranspose2d(): output_padding=%lld must be below stride=%lld",
                              (long long)layer->sizes[i], (long long)layer->attrs.conv.stride[i]);
    return NULL;
}

status_t make_max_pool2d(const struct bound *bound, struct layer *layer)
{
    const char *name = bound->signature->name;
    if (!pair_is(bound, "dilation", 1))
        return status_new(STATUS_INVALID_ARGUMENT, "%s(): only dilation=1 is supported", name);
    if (bound_boolean(bound, "ceil_mode") || bound_boolean(bound, "return_indices"))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s(): ceil_mode and return_indices are not supported", name);
    bool none = bound_get(bound, "stride")->kind == CONSTANT_NONE;
    bound_pair(bound, "kernel_size", layer->attrs.pool.kernel);
    bound_pair(bound, none ? "kernel_size" : "stride", layer->attrs.pool.stride);
    bound_pair(bound, "padding", layer->attrs.pool.padding);
    return NULL;
}

static status_t make_dropout(const struct bound *bound, struct layer *layer)
{
    layer->attrs.dropout.p = bound_real(bound, "p");
    return NULL;
}

static status_t make_normal(const struct bound *bound, struct layer *layer)
{
    (void)bound;
    layer->attrs.dropout.normal = true;
    return NULL;
}

/* Its arguments, counted by the compiler. */
#define TAKES(...)                                                                                 \
    .signature.arguments = {__VA_ARGS__},                                                          \
    .signature.count = (int)COUNT_OF(((struct argument[]){__VA_ARGS__}))
#define LAYER(its_name, KIND, ...)                                                                 \
    {                                                                                              \
        .signature.name = its_name, .kind = OP_##KIND, __VA_ARGS__                                 \
    }

static const struct layer_type modules[] = {
    LAYER("Conv2d", CONV2D, .make = make_conv2d, .print = conv2d_print,
          .parameters = conv2d_parameters,
          TAKES(REQUIRED("in_channels", SIZE), REQUIRED("out_channels", SIZE),
                REQUIRED("kernel_size", WINDOW), INTEGER("stride", WINDOW, 1),
                INTEGER("padding", PADDING, 0), INTEGER("dilation", WINDOW, 1),
                INTEGER("groups", SIZE, 1), BOOLEAN("bias", true))),
    LAYER("Conv1d", CONV2D, .make = make_conv_line, .print = conv_line_print,
          .parameters = conv_line_parameters,
          TAKES(REQUIRED("in_channels", SIZE), REQUIRED("out_channels", SIZE),
                REQUIRED("kernel_size", SIZE), INTEGER("stride", SIZE, 1),
                INTEGER("padding", PADDING, 0), INTEGER("dilation", SIZE, 1),
                INTEGER("groups", SIZE, 1), BOOLEAN("bias", true))),
    LAYER("ConvTranspose2d", CONV2D_BACKWARD_DATA, .make = make_conv_transpose2d,
          .print = conv_transpose2d_print, .parameters = conv_transpose2d_parameters,
          TAKES(REQUIRED("in_channels", SIZE), REQUIRED("out_channels", SIZE),
                REQUIRED("kernel_size", WINDOW), INTEGER("stride", WINDOW, 1),
                INTEGER("padding", PADDING, 0), INTEGER("output_padding", PADDING, 0),
                INTEGER("groups", SIZE, 1), BOOLEAN("bias", true), INTEGER("dilation", WINDOW, 1))),
    LAYER("Linear", LINEAR, .print = linear_print, .parameters = linear_parameters,
          TAKES(REQUIRED("in_features", SIZE), REQUIRED("out_features", SIZE),
                BOOLEAN("bias", true))),
    LAYER("Dropout", DROPOUT, .make = make_dropout, .print = dropout_print,
          TAKES(REAL("p", PROBABILITY, 0.5), BOOLEAN("inplace", false))),
    LAYER("ReLU", RELU, .print = relu_print, TAKES(BOOLEAN("inplace", false))),
    LAYER("MaxPool2d", MAX_POOL2D, .make = make_max_pool2d, .print = max_pool2d_print,
          TAKES(REQUIRED("kernel_size", WINDOW), NONE("stride", STRIDE),
                INTEGER("padding", PADDING, 0), INTEGER("dilation", WINDOW, 1),
                BOOLEAN("return_indices", false), BOOLEAN("ceil_mode", false))),
    LAYER("AvgPool2d", AVG_POOL2D, .make = make_avg_pool2d, .print = avg_pool2d_print,
          TAKES(REQUIRED("kernel_size", WINDOW), NONE("stride", STRIDE),
                INTEGER("padding", PADDING, 0), BOOLEAN("ceil_mode", false),
                BOOLEAN("count_include_pad", true))),
    LAYER("AdaptiveAvgPool2d", AVG_POOL2D, .make = make_adaptive_avg_pool2d,
          .print = adaptive_avg_pool2d_print, TAKES(REQUIRED("output_size", WINDOW))),
    LAYER("MaxPool1d", MAX_POOL2D, .make = make_max_pool_line, .print = max_pool2d_print,
          TAKES(REQUIRED("kernel_size", SIZE), NONE("stride", MAYBE_SIZE),
                INTEGER("padding", PADDING, 0), INTEGER("dilation", SIZE, 1),
                BOOLEAN("return_indices", false), BOOLEAN("ceil_mode", false))),
    LAYER("AvgPool1d", AVG_POOL2D, .make = make_avg_pool_line, .print = avg_pool_line_print,
          TAKES(REQUIRED("kernel_size", SIZE), NONE("stride", MAYBE_SIZE),
                INTEGER("padding", PADDING, 0), BOOLEAN("ceil_mode", false),
                BOOLEAN("count_include_pad", true))),
    LAYER("AdaptiveAvgPool1d", AVG_POOL2D, .make = make_adaptive_avg_pool_line,
          .print = adaptive_avg_pool2d_print, TAKES(REQUIRED("output_size", SIZE))),
    LAYER("GroupNorm", GROUP_NORM, .make = make_group_norm, .print = group_norm_print,
          .parameters = group_norm_parameters,
          TAKES(REQUIRED("num_groups", SIZE), REQUIRED("num_channels", SIZE),
                REAL("eps", EPSILON, 1e-5), BOOLEAN("affine", true))),
    LAYER("BatchNorm2d", BATCH_NORM, .make = make_batch_norm, .print = batch_norm_print,
          .parameters = batch_norm_parameters,
          TAKES(REQUIRED("num_features", SIZE), REAL("eps", EPSILON, 1e-5),
                REAL("momentum", EPSILON, 0.1), BOOLEAN("affine", true),
                BOOLEAN("track_running_stats", true))),
    LAYER("BatchNorm1d", BATCH_NORM, .make = make_batch_norm_line, .print = batch_norm_print,
          .parameters = batch_norm_parameters,
          TAKES(REQUIRED("num_features", SIZE), REAL("eps", EPSILON, 1e-5),
                REAL("momentum", EPSILON, 0.1), BOOLEAN("affine", true),
                BOOLEAN("track_running_stats", true))),
    LAYER("SyncBatchNorm", BATCH_NORM, .make = make_sync_batch_norm, .print = batch_norm_print,
          .parameters = batch_norm_parameters,
          TAKES(REQUIRED("num_features", SIZE), REAL("eps", EPSILON, 1e-5),
                REAL("momentum", EPSILON, 0.1), BOOLEAN("affine", true),
                BOOLEAN("track_running_stats", true))),
    LAYER("Flatten", RESHAPE, .make = make_flatten, .print = flatten_print,
          TAKES(INTEGER("start_dim", INTEGER, 1), INTEGER("end_dim", INTEGER, -1))),
    LAYER("LogSoftmax", LOG_SOFTMAX, .make = make_dim, .print = softmax_print,
          TAKES(REQUIRED("dim", INTEGER))),
    LAYER("Embedding", EMBEDDING, .make = make_embedding, .print = embedding_print,
          .parameters = embedding_parameters,
          TAKES(REQUIRED("num_embeddings", SIZE), REQUIRED("embedding_dim", SIZE),
                NONE("padding_idx", MAYBE_INDEX))),
    LAYER("Conv1D", LINEAR, .make = make_conv1d, .print = conv1d_print,
          .parameters = conv1d_parameters, TAKES(REQUIRED("nf", SIZE), REQUIRED("nx", SIZE))),
    LAYER("LSTM", RECURRENT, .make = make_lstm, .print = recurrent_print,
          .parameters = recurrent_parameters,
          TAKES(REQUIRED("input_size", SIZE), REQUIRED("hidden_size", SIZE),
                INTEGER("num_layers", SIZE, 1), BOOLEAN("bias", true),
                BOOLEAN("batch_first", false), REAL("dropout", PROBABILITY, 0),
                BOOLEAN("bidirectional", false))),
    LAYER("GRU", RECURRENT, .make = make_gru, .print = recurrent_print,
          .parameters = recurrent_parameters,
          TAKES(REQUIRED("input_size", SIZE), REQUIRED("hidden_size", SIZE),
                INTEGER("num_layers", SIZE, 1), BOOLEAN("bias", true),
                BOOLEAN("batch_first", false), REAL("dropout", PROBABILITY, 0),
                BOOLEAN("bidirectional", false))),
    LAYER("MultiheadAttention", ATTENTION, .make = make_multihead, .print = multihead_print,
          .parameters = multihead_parameters,
          TAKES(REQUIRED("embed_dim", SIZE), REQUIRED("num_heads", SIZE),
                REAL("dropout", PROBABILITY, 0), BOOLEAN("bias", true),
                BOOLEAN("batch_first", false))),
    LAYER("LayerNorm", LAYER_NORM, .make = make_layer_norm, .print = layer_norm_print,
          .parameters = layer_norm_parameters,
          TAKES(REQUIRED("normalized_shape", SIZE), REAL("eps", EPSILON, 1e-5),
                BOOLEAN("elementwise_affine", true), BOOLEAN("bias", true))),
    LAYER("RMSNorm", RMS_NORM, .make = make_rms_norm, .print = norm_print,
          .parameters = rms_norm_parameters,
          TAKES(REQUIRED("normalized_shape", SIZE), NONE("eps", MAYBE_EPSILON),
                BOOLEAN("elementwise_affine", true))),
    LAYER("GemmaRMSNorm", RMS_NORM, .make = make_gemma_norm, .print = gemma_norm_print,
          .parameters = gemma_norm_parameters,
          TAKES(REQUIRED("dim", SIZE), REAL("eps", EPSILON, 1e-6))),
    LAYER("GELU", GELU, .make = make_gelu, .print = gelu_print,
          TAKES(WORD("approximate", APPROXIMATE, "none"))),
    LAYER("SiLU", SILU, .print = silu_print, TAKES(BOOLEAN("inplace", false))),
    LAYER("Tanh", TANH, .print = nothing_print),
    LAYER("Sigmoid", SIGMOID, .print = nothing_print),
    LAYER("ReLUSquaredActivation", SQUARED_RELU, .print = nothing_print),
    LAYER("LeakyReLU", FUNCTION, .make = make_leaky_relu, .print = leaky_relu_print,
          TAKES(REAL("negative_slope", REAL, 0.01), BOOLEAN("inplace", false))),
    LAYER("ELU", FUNCTION, .make = make_elu, .print = elu_print,
          TAKES(REAL("alpha", REAL, 1), BOOLEAN("inplace", false))),
    LAYER("ReLU6", FUNCTION, .make = make_relu6, .print = silu_print,
          TAKES(BOOLEAN("inplace", false))),
    LAYER("Hardswish", FUNCTION, .make = make_hardswish, .print = nothing_print,
          TAKES(BOOLEAN("inplace", false))),
    LAYER("Hardsigmoid", FUNCTION, .make = make_hardsigmoid, .print = nothing_print,
          TAKES(BOOLEAN("inplace", false))),
    /* does_nothing of graph_build.c leaves it out */
    LAYER("Identity", SCALE, .make = make_identity, .print = nothing_print),
    LAYER("Softmax", SOFTMAX, .make = make_dim, .print = softmax_print,
          TAKES(REQUIRED("dim", INTEGER))),
};

static const struct layer_type functions[] = {
    LAYER("relu", RELU, TAKES(TENSOR("input"), BOOLEAN("inplace", false))),
    LAYER("max_pool2d", MAX_POOL2D, .make = make_max_pool2d,
          TAKES(TENSOR("input"), REQUIRED("kernel_size", WINDOW), NONE("stride", STRIDE),
                INTEGER("padding", PADDING, 0), INTEGER("dilation", WINDOW, 1),
                BOOLEAN("ceil_mode", false), BOOLEAN("return_indices", false))),
    LAYER("max_pool1d", MAX_POOL2D, .make = make_max_pool_line,
          TAKES(TENSOR("input"), REQUIRED("kernel_size", SIZE), NONE("stride", MAYBE_SIZE),
                INTEGER("padding", PADDING, 0), INTEGER("dilation", SIZE, 1),
                BOOLEAN("ceil_mode", false), BOOLEAN("return_indices", false))),
    LAYER("avg_pool1d", AVG_POOL2D, .make = make_avg_pool_line,
          TAKES(TENSOR("input"), REQUIRED("kernel_size", SIZE), NONE("stride", MAYBE_SIZE),
                INTEGER("padding", PADDING, 0), BOOLEAN("ceil_mode", false),
                BOOLEAN("count_include_pad", true))),
    LAYER("adaptive_avg_pool1d", AVG_POOL2D, .make = make_adaptive_avg_pool_line,
          TAKES(TENSOR("input"), REQUIRED("output_size", SIZE))),
    LAYER("dropout", DROPOUT, .make = make_dropout,
          TAKES(TENSOR("input"), REAL("p", PROBABILITY, 0.5), BOOLEAN("inplace", false))),
    LAYER("randn_like", DROPOUT, .make = make_normal, TAKES(TENSOR("input"))),
    LAYER("flatten", RESHAPE, .make = make_flatten,
          TAKES(TENSOR("input"), INTEGER("start_dim", INTEGER, 0),
                INTEGER("end_dim", INTEGER, -1))),
    LAYER("unflatten", RESHAPE, .make = make_unflatten,
          TAKES(TENSOR("input"), REQUIRED("dim", INTEGER), REQUIRED("sizes", SHAPE))),
    LAYER("unsqueeze", RESHAPE, .make = make_unsqueeze,
          TAKES(TENSOR("input"), REQUIRED("dim", INTEGER))),
    LAYER("reshape", RESHAPE, .make = make_reshape,
          TAKES(TENSOR("input"), REQUIRED("shape", SHAPE))),
    LAYER("log_softmax", LOG_SOFTMAX, .make = make_dim,
          TAKES(TENSOR("input"), REQUIRED("dim", INTEGER))),
    LAYER("add", ADD, TAKES(TENSOR("input"), TENSOR("other"))),
    LAYER("mul", MUL, TAKES(TENSOR("input"), TENSOR("other"))),
    LAYER("gelu", GELU, .make = make_gelu,
          TAKES(TENSOR("input"), WORD("approximate", APPROXIMATE, "none"))),
    LAYER("silu", SILU, TAKES(TENSOR("input"), BOOLEAN("inplace", false))),
    LAYER("div", DIV, TAKES(TENSOR("input"), TENSOR("other"))),
    LAYER("leaky_relu", FUNCTION, .make = make_leaky_relu,
          TAKES(TENSOR("input"), REAL("negative_slope", REAL, 0.01), BOOLEAN("inplace", false))),
    LAYER("elu", FUNCTION, .make = make_elu,
          TAKES(TENSOR("input"), REAL("alpha", REAL, 1), BOOLEAN("inplace", false))),
    LAYER("relu6", FUNCTION, .make = make_relu6, TAKES(TENSOR("input"), BOOLEAN("inplace", false))),
    LAYER("hardswish", FUNCTION, .make = make_hardswish,
          TAKES(TENSOR("input"), BOOLEAN("inplace", false))),
    LAYER("hardsigmoid", FUNCTION, .make = make_hardsigmoid,
          TAKES(TENSOR("input"), BOOLEAN("inplace", false))),
    LAYER("exp", FUNCTION, .make = make_exp, TAKES(TENSOR("input"))),
    LAYER("log", FUNCTION, .make = make_log, TAKES(TENSOR("input"))),
    LAYER("sqrt", FUNCTION, .make = make_sqrt, TAKES(TENSOR("input"))),
    LAYER("abs", FUNCTION, .make = make_abs, TAKES(TENSOR("input"))),
    LAYER("pow", FUNCTION, .make = make_pow, TAKES(TENSOR("input"), REQUIRED("exponent", REAL))),
    LAYER("matmul", MATMUL, TAKES(TENSOR("input"), TENSOR("other"))),
    LAYER("sum", MEAN, .make = make_sum, TAKES(TENSOR("input"), REQUIRED("dim", INTEGER))),
    LAYER("max", MEAN, .make = make_max, TAKES(TENSOR("input"), REQUIRED("dim", INTEGER))),
    /* divides its gradient: see trace_amax */
    LAYER("amax", MEAN, .make = make_max, TAKES(TENSOR("input"), REQUIRED("dim", INTEGER))),
    /* of numbers, too: see trace_where */
    LAYER("where", RELU_BACKWARD),
    LAYER("masked_fill", RELU_BACKWARD),
    /* of dimensions 2 and 3: see evaluate_interpolate */
    LAYER("interpolate", MEAN_BACKWARD, TAKES(TENSOR("input"), REQUIRED("scale_factor", SIZE))),
    LAYER("tanh", TANH, TAKES(TENSOR("input"))),
    LAYER("sigmoid", SIGMOID, TAKES(TENSOR("input"))),
    LAYER("softmax", SOFTMAX, .make = make_dim, TAKES(TENSOR("input"), REQUIRED("dim", INTEGER))),
    LAYER("attention", ATTENTION, .make = make_attention,
          TAKES(TENSOR("query"), OPTIONAL_TENSOR("key"), OPTIONAL_TENSOR("value"),
                OPTIONAL_TENSOR("mask"), REAL("dropout_p", PROBABILITY, 0),
                BOOLEAN("is_causal", false), NONE("scale", MAYBE_POSITIVE),
                REQUIRED("num_heads", SIZE), NONE("num_kv_heads", MAYBE_SIZE),
                NONE("window", MAYBE_SIZE), NONE("softcap", MAYBE_POSITIVE),
                OPTIONAL_TENSOR("bias"), NONE("alibi", MAYBE_POSITIVE),
                BOOLEAN("alibi_rounded", false))),
    LAYER("rope", ROPE, .make = make_rope,
          TAKES(TENSOR("input"), REQUIRED("head_dim", SIZE), REAL("theta", POSITIVE, 10000),
                NONE("scaling", SCALING), NONE("factor", MAYBE_POSITIVE),
                REAL("low_freq_factor", POSITIVE, 1), REAL("high_freq_factor", POSITIVE, 4),
                NONE("original_context", MAYBE_SIZE), NONE("rotary_dim", MAYBE_SIZE),
                REAL("beta_fast", POSITIVE, 32), REAL("beta_slow", POSITIVE, 1),
                NONE("attention_factor", MAYBE_POSITIVE), NONE("short_factor", NUMBERS),
                NONE("long_factor", NUMBERS), BOOLEAN("interleaved", false))),
    LAYER("positions", ARANGE, .make = make_positions,
          TAKES(TENSOR("input"), INTEGER("start", INTEGER, 0))),
    LAYER("zeros", ARANGE, TAKES(TENSOR("input"))),
    LAYER("token_positions", TOKEN_POSITIONS, .make = make_padding_mask,
          TAKES(TENSOR("input"), REQUIRED("id", INTEGER))),
    LAYER("distance_buckets", DISTANCE_BUCKETS, .make = make_distance_buckets,
          TAKES(TENSOR("input"), INTEGER("num_buckets", SIZE, 32),
                INTEGER("max_distance", SIZE, 128))),
    LAYER("padding_mask", PADDING_MASK, .make = make_padding_mask,
          TAKES(TENSOR("input"), REQUIRED("id", INTEGER))),
    LAYER("avg_pool2d", AVG_POOL2D, .make = make_avg_pool2d,
          TAKES(TENSOR("input"), REQUIRED("kernel_size", WINDOW), NONE("stride", STRIDE),
                INTEGER("padding", PADDING, 0), BOOLEAN("ceil_mode", false),
                BOOLEAN("count_include_pad", true))),
    LAYER("adaptive_avg_pool2d", AVG_POOL2D, .make = make_adaptive_avg_pool2d,
          TAKES(TENSOR("input"), REQUIRED("output_size", WINDOW))),
    LAYER("transpose", TRANSPOSE, .make = make_transpose,
          TAKES(TENSOR("input"), REQUIRED("dim0", INTEGER), REQUIRED("dim1", INTEGER))),
    LAYER("narrow", SLICE, .make = make_narrow,
          TAKES(TENSOR("input"), REQUIRED("dim", INTEGER), REQUIRED("start", INTEGER),
                REQUIRED("length", SIZE))),
    LAYER("select", SLICE, .make = make_select,
          TAKES(TENSOR("input"), REQUIRED("dim", INTEGER), REQUIRED("index", INTEGER))),
    /* the index stands behind the call */
    LAYER("chunk", SLICE, .make = make_chunk,
          TAKES(TENSOR("input"), REQUIRED("chunks", SIZE), REQUIRED("dim", INTEGER),
                REQUIRED("index", INTEGER))),
    /* of a list: see evaluate_cat */
    LAYER("cat", CONCAT),
    LAYER("mean", MEAN, .make = make_dim,
          TAKES(TENSOR("input"), REQUIRED("dim", INTEGER), OPTIONAL_TENSOR("mask"))),
    LAYER("last", MEAN, .make = make_last,
          TAKES(TENSOR("input"), REQUIRED("dim", INTEGER), TENSOR("mask"))),
    LAYER("nll_loss", NLL_LOSS, .make = make_cross_entropy,
          TAKES(TENSOR("input"), TENSOR("target"), WORD("reduction", REDUCTION, "mean"),
                INTEGER("ignore_index", INTEGER, -100), OPTIONAL_TENSOR("weight"))),
    LAYER("cross_entropy", CROSS_ENTROPY, .make = make_smooth_cross_entropy,
          TAKES(TENSOR("input"), TENSOR("target"), WORD("reduction", REDUCTION, "mean"),
                INTEGER("ignore_index", INTEGER, -100), REAL("label_smoothing", PROBABILITY, 0),
                OPTIONAL_TENSOR("weight"))),
    LAYER("mse_loss", ELEMENT_LOSS, .make = make_mse_loss,
          TAKES(TENSOR("input"), TENSOR("target"), WORD("reduction", REDUCTION, "mean"))),
    LAYER("l1_loss", ELEMENT_LOSS, .make = make_l1_loss,
          TAKES(TENSOR("input"), TENSOR("target"), WORD("reduction", REDUCTION, "mean"))),
    LAYER("huber_loss", ELEMENT_LOSS, .make = make_huber_loss,
          TAKES(TENSOR("input"), TENSOR("target"), WORD("reduction", REDUCTION, "mean"),
                REAL("delta", POSITIVE, 1))),
    LAYER("smooth_l1_loss", ELEMENT_LOSS, .make = make_smooth_l1_loss,
          TAKES(TENSOR("input"), TENSOR("target"), WORD("reduction", REDUCTION, "mean"),
                REAL("beta", POSITIVE, 1))),
    LAYER("binary_cross_entropy_with_logits", ELEMENT_LOSS, .make = make_binary_cross_entropy,
          TAKES(TENSOR("input"), TENSOR("target"), WORD("reduction", REDUCTION, "mean"),
                OPTIONAL_TENSOR("pos_weight"))),
    LAYER("kl_div", ELEMENT_LOSS, .make = make_divergence,
          TAKES(TENSOR("input"), TENSOR("target"), WORD("reduction", DIVIDED, "mean"),
                BOOLEAN("log_target", false))),
    LAYER("focal_loss", CROSS_ENTROPY, .make = make_focal_loss,
          TAKES(TENSOR("input"), TENSOR("target"), REAL("gamma", EPSILON, 2),
                WORD("reduction", REDUCTION, "mean"), INTEGER("ignore_index", INTEGER, -100),
                OPTIONAL_TENSOR("weight"))),
    LAYER("sigmoid_focal_loss", ELEMENT_LOSS, .make = make_sigmoid_focal_loss,
          TAKES(TENSOR("inputs"), TENSOR("targets"), REAL("alpha", REAL, 0.25),
                REAL("gamma", EPSILON, 2), WORD("reduction", REDUCTION, "mean"))),
    LAYER("triplet_margin_loss", CONTRASTIVE_LOSS, .make = make_triplet_loss,
          TAKES(TENSOR("input"), REAL("margin", POSITIVE, 1), REAL("p", REAL, 2),
                REAL("eps", EPSILON, 1e-6), BOOLEAN("swap", false),
                WORD("reduction", REDUCTION, "mean"))),
    LAYER("multiple_negatives_ranking_loss", CONTRASTIVE_LOSS, .make = make_contrastive_loss,
          TAKES(TENSOR("input"), REAL("scale", POSITIVE, 20))),
    LAYER("clip_loss", CONTRASTIVE_LOSS, .make = make_clip_loss,
          TAKES(TENSOR("image_features"), TENSOR("text_features"), TENSOR("logit_scale"))),
};

static const struct layer_type *find(const struct layer_type *types, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(types[i].signature.name, name) == 0) return &types[i];
    return NULL;
}

const struct layer_type *layer_find_module(const char *name)
{
    return find(modules, COUNT_OF(modules), name);
}

const struct layer_type *layer_find_function(const char *name)
{
    return find(functions, COUNT_OF(functions), name);
}

static char *add_hint(const char *what, const char *nearest, const char *const *names, size_t count)
{
    struct buf hint = {0};
    if (nearest) buf_printf(&hint, "; did you mean '%s'?", nearest);
    else buf_printf(&hint, "; the %s are ", what);
    for (size_t i = 0; i < count && !nearest; i++)
        buf_printf(&hint, "%s%s", i ? ", " : "", names[i]);
    return buf_take(&hint);
}

static char *suggest(const char *what, const struct layer_type *types, size_t type_count,
                     const char *name, const char *const *others, size_t other_count)
{
    AUTO_FREE const char **names = mem_alloc_array(type_count + other_count, sizeof *names);
    for (size_t i = 0; i < type_count; i++) names[i] = types[i].signature.name;
    for (size_t i = 0; i < other_count; i++) names[type_count + i] = others[i];
    const char *nearest = text_nearest(name, names, type_count + other_count);
    return add_hint(what, nearest, names, type_count + other_count);
}

char *layer_suggest_module(const char *name, const char *const *others, size_t count)
{
    return suggest("modules", modules, COUNT_OF(modules), name, others, count);
}

char *layer_suggest_function(const char *name, const char *const *others, size_t count)
{
    return suggest("functions and modules", functions, COUNT_OF(functions), name, others, count);
}

/* The name without "_loss", which makes any two losses similar. Caller frees. */
static char *stem_of(const char *loss)
{
    static const char end[] = "_loss";
    size_t length = strlen(loss), cut = sizeof end - 1;
    bool ends = length > cut && strcmp(loss + length - cut, end) == 0;
    return mem_strndup(loss, ends ? length - cut : length);
}

char *layer_suggest_loss(const char *name)
{
    const char *losses[COUNT_OF(functions)], *nearest = NULL;
    char *stems[COUNT_OF(functions)];
    size_t count = 0;
    for (size_t i = 0; i < COUNT_OF(functions); i++) {
        if (!layer_is_loss(functions[i].kind)) continue;
        stems[count] = stem_of(functions[i].signature.name);
        losses[count++] = functions[i].signature.name;
    }
    AUTO_FREE char *stem = stem_of(name);
    const char *found = text_nearest(stem, (const char *const *)stems, count);
    for (size_t i = 0; i < count; i++) {
        if (stems[i] == found) nearest = losses[i];
        free(stems[i]);
    }
    return add_hint("losses", nearest, losses, count);
}

status_t layer_make(const struct layer_type *type, const struct bound *bound, struct layer *layer)
{
    struct layer made = {.kind = type->kind};
    if (type->make) TRY(type->make(bound, &made));
    *layer = made;
    return NULL;
}
