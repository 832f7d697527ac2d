/*
 * See layers.h. Two constant tables and the small functions they name; the functions for sequences
 * are in layers_sequence.c. Pure.
 */
#include "model/layers.h"

#include "model/layers_image.h"
#include "model/layers_loss.h"
#include "model/layers_sequence.h"
#include "model/layers_shape.h"

#include <math.h>
#include <stdlib.h>
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
static double weight_bound(int64_t fan_in)
{
    double a = sqrt(5.0);
    double gain = sqrt(2.0 / (1 + a * a));
    return sqrt(3.0) * (gain / sqrt((double)fan_in));
}

static int weight_and_bias(const struct tensor_type *weight, bool bias,
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

static void conv2d_print(const struct bound *bound, struct buf *text)
{
    buf_printf(text, "%lld, %lld", (long long)bound_integer(bound, "in_channels"),
               (long long)bound_integer(bound, "out_channels"));
    print_pair(bound, "kernel_size", text);
    print_pair(bound, "stride", text);
    if (!pair_is(bound, "padding", 0)) print_pair(bound, "padding", text);
    if (!pair_is(bound, "dilation", 1)) print_pair(bound, "dilation", text);
    if (bound_integer(bound, "groups") != 1) print_argument(bound, "groups", text);
    if (!bound_boolean(bound, "bias")) print_argument(bound, "bias", text);
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

static status_t make_conv2d(const struct bound *bound, struct layer *layer)
{
    int64_t groups = bound_integer(bound, "groups");
    int64_t in = bound_integer(bound, "in_channels"), out = bound_integer(bound, "out_channels");
    if (in % groups || out % groups)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "Conv2d(): groups=%lld does not divide %lld input and %lld output "
                          "channels",
                          (long long)groups, (long long)in, (long long)out);
    bound_pair(bound, "stride", layer->attrs.conv.stride);
    bound_pair(bound, "padding", layer->attrs.conv.padding);
    bound_pair(bound, "dilation", layer->attrs.conv.dilation);
    layer->attrs.conv.groups = groups;
    return NULL;
}

static status_t make_max_pool2d(const struct bound *bound, struct layer *layer)
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

static const struct layer_type modules[] = {
    {.signature = {"Conv2d",
                   8,
                   {REQUIRED("in_channels", SIZE), REQUIRED("out_channels", SIZE),
                    REQUIRED("kernel_size", WINDOW), INTEGER("stride", WINDOW, 1),
                    INTEGER("padding", PADDING, 0), INTEGER("dilation", WINDOW, 1),
                    INTEGER("groups", SIZE, 1), BOOLEAN("bias", true)}},
     .kind = OP_CONV2D,
     .make = make_conv2d,
     .print = conv2d_print,
     .parameters = conv2d_parameters},
    {.signature = {"Linear",
                   3,
                   {REQUIRED("in_features", SIZE), REQUIRED("out_features", SIZE),
                    BOOLEAN("bias", true)}},
     .kind = OP_LINEAR,
     .print = linear_print,
     .parameters = linear_parameters},
    {.signature = {"Dropout", 2, {REAL("p", PROBABILITY, 0.5), BOOLEAN("inplace", false)}},
     .kind = OP_DROPOUT,
     .make = make_dropout,
     .print = dropout_print},
    {.signature = {"ReLU", 1, {BOOLEAN("inplace", false)}}, .kind = OP_RELU, .print = relu_print},
    {.signature = {"MaxPool2d",
                   6,
                   {REQUIRED("kernel_size", WINDOW), NONE("stride", STRIDE),
                    INTEGER("padding", PADDING, 0), INTEGER("dilation", WINDOW, 1),
                    BOOLEAN("return_indices", false), BOOLEAN("ceil_mode", false)}},
     .kind = OP_MAX_POOL2D,
     .make = make_max_pool2d,
     .print = max_pool2d_print},
    {.signature = {"AvgPool2d",
                   5,
                   {REQUIRED("kernel_size", WINDOW), NONE("stride", STRIDE),
                    INTEGER("padding", PADDING, 0), BOOLEAN("ceil_mode", false),
                    BOOLEAN("count_include_pad", true)}},
     .kind = OP_AVG_POOL2D,
     .make = make_avg_pool2d,
     .print = avg_pool2d_print},
    {.signature = {"AdaptiveAvgPool2d", 1, {REQUIRED("output_size", WINDOW)}},
     .kind = OP_AVG_POOL2D,
     .make = make_adaptive_avg_pool2d,
     .print = adaptive_avg_pool2d_print},
    {.signature = {"GroupNorm",
                   4,
                   {REQUIRED("num_groups", SIZE), REQUIRED("num_channels", SIZE),
                    REAL("eps", EPSILON, 1e-5), BOOLEAN("affine", true)}},
     .kind = OP_GROUP_NORM,
     .make = make_group_norm,
     .print = group_norm_print,
     .parameters = group_norm_parameters},
    {.signature = {"BatchNorm2d",
                   5,
                   {REQUIRED("num_features", SIZE), REAL("eps", EPSILON, 1e-5),
                    REAL("momentum", EPSILON, 0.1), BOOLEAN("affine", true),
                    BOOLEAN("track_running_stats", true)}},
     .kind = OP_BATCH_NORM,
     .make = make_batch_norm,
     .print = batch_norm_print,
     .parameters = batch_norm_parameters},
    {.signature = {"SyncBatchNorm",
                   5,
                   {REQUIRED("num_features", SIZE), REAL("eps", EPSILON, 1e-5),
                    REAL("momentum", EPSILON, 0.1), BOOLEAN("affine", true),
                    BOOLEAN("track_running_stats", true)}},
     .kind = OP_BATCH_NORM,
     .make = make_sync_batch_norm,
     .print = batch_norm_print,
     .parameters = batch_norm_parameters},
    {.signature = {"Flatten",
                   2,
                   {INTEGER("start_dim", INTEGER, 1), INTEGER("end_dim", INTEGER, -1)}},
     .kind = OP_RESHAPE,
     .make = make_flatten,
     .print = flatten_print},
    {.signature = {"LogSoftmax", 1, {REQUIRED("dim", INTEGER)}},
     .kind = OP_LOG_SOFTMAX,
     .make = make_dim,
     .print = softmax_print},
    {.signature = {"Embedding",
                   3,
                   {REQUIRED("num_embeddings", SIZE), REQUIRED("embedding_dim", SIZE),
                    NONE("padding_idx", MAYBE_INDEX)}},
     .kind = OP_EMBEDDING,
     .make = make_embedding,
     .print = embedding_print,
     .parameters = embedding_parameters},
    {.signature = {"Conv1D", 2, {REQUIRED("nf", SIZE), REQUIRED("nx", SIZE)}},
     .kind = OP_LINEAR,
     .make = make_conv1d,
     .print = conv1d_print,
     .parameters = conv1d_parameters},
    {.signature = {"LayerNorm",
                   4,
                   {REQUIRED("normalized_shape", SIZE), REAL("eps", EPSILON, 1e-5),
                    BOOLEAN("elementwise_affine", true), BOOLEAN("bias", true)}},
     .kind = OP_LAYER_NORM,
     .make = make_layer_norm,
     .print = layer_norm_print,
     .parameters = layer_norm_parameters},
    {.signature = {"RMSNorm",
                   3,
                   {REQUIRED("normalized_shape", SIZE), NONE("eps", MAYBE_EPSILON),
                    BOOLEAN("elementwise_affine", true)}},
     .kind = OP_RMS_NORM,
     .make = make_rms_norm,
     .print = norm_print,
     .parameters = rms_norm_parameters},
    {.signature = {"GemmaRMSNorm", 2, {REQUIRED("dim", SIZE), REAL("eps", EPSILON, 1e-6)}},
     .kind = OP_RMS_NORM,
     .make = make_gemma_norm,
     .print = gemma_norm_print,
     .parameters = gemma_norm_parameters},
    {.signature = {"GELU", 1, {WORD("approximate", APPROXIMATE, "none")}},
     .kind = OP_GELU,
     .make = make_gelu,
     .print = gelu_print},
    {.signature = {"SiLU", 1, {BOOLEAN("inplace", false)}}, .kind = OP_SILU, .print = silu_print},
    {.signature = {"Tanh"}, .kind = OP_TANH, .print = nothing_print},
    {.signature = {"Sigmoid"}, .kind = OP_SIGMOID, .print = nothing_print},
    {.signature = {"ReLUSquaredActivation"}, .kind = OP_SQUARED_RELU, .print = nothing_print},
    {.signature = {"Softmax", 1, {REQUIRED("dim", INTEGER)}},
     .kind = OP_SOFTMAX,
     .make = make_dim,
     .print = softmax_print},
};

static const struct layer_type functions[] = {
    {.signature = {"relu", 2, {TENSOR("input"), BOOLEAN("inplace", false)}}, .kind = OP_RELU},
    {.signature = {"max_pool2d",
                   7,
                   {TENSOR("input"), REQUIRED("kernel_size", WINDOW), NONE("stride", STRIDE),
                    INTEGER("padding", PADDING, 0), INTEGER("dilation", WINDOW, 1),
                    BOOLEAN("ceil_mode", false), BOOLEAN("return_indices", false)}},
     .kind = OP_MAX_POOL2D,
     .make = make_max_pool2d},
    {.signature = {"dropout",
                   3,
                   {TENSOR("input"), REAL("p", PROBABILITY, 0.5), BOOLEAN("inplace", false)}},
     .kind = OP_DROPOUT,
     .make = make_dropout},
    {.signature = {"flatten",
                   3,
                   {TENSOR("input"), INTEGER("start_dim", INTEGER, 0),
                    INTEGER("end_dim", INTEGER, -1)}},
     .kind = OP_RESHAPE,
     .make = make_flatten},
    {.signature = {"unflatten",
                   3,
                   {TENSOR("input"), REQUIRED("dim", INTEGER), REQUIRED("sizes", SHAPE)}},
     .kind = OP_RESHAPE,
     .make = make_unflatten},
    {.signature = {"reshape", 2, {TENSOR("input"), REQUIRED("shape", SHAPE)}},
     .kind = OP_RESHAPE,
     .make = make_reshape},
    {.signature = {"log_softmax", 2, {TENSOR("input"), REQUIRED("dim", INTEGER)}},
     .kind = OP_LOG_SOFTMAX,
     .make = make_dim},
    {.signature = {"add", 2, {TENSOR("input"), TENSOR("other")}}, .kind = OP_ADD},
    {.signature = {"mul", 2, {TENSOR("input"), TENSOR("other")}}, .kind = OP_MUL},
    {.signature = {"gelu", 2, {TENSOR("input"), WORD("approximate", APPROXIMATE, "none")}},
     .kind = OP_GELU,
     .make = make_gelu},
    {.signature = {"silu", 2, {TENSOR("input"), BOOLEAN("inplace", false)}}, .kind = OP_SILU},
    {.signature = {"div", 2, {TENSOR("input"), TENSOR("other")}}, .kind = OP_DIV},
    {.signature = {"tanh", 1, {TENSOR("input")}}, .kind = OP_TANH},
    {.signature = {"sigmoid", 1, {TENSOR("input")}}, .kind = OP_SIGMOID},
    {.signature = {"softmax", 2, {TENSOR("input"), REQUIRED("dim", INTEGER)}},
     .kind = OP_SOFTMAX,
     .make = make_dim},
    {.signature = {"attention",
                   12,
                   {TENSOR("query"), OPTIONAL_TENSOR("key"), OPTIONAL_TENSOR("value"),
                    OPTIONAL_TENSOR("mask"), REAL("dropout_p", PROBABILITY, 0),
                    BOOLEAN("is_causal", false), NONE("scale", MAYBE_POSITIVE),
                    REQUIRED("num_heads", SIZE), NONE("num_kv_heads", MAYBE_SIZE),
                    NONE("window", MAYBE_SIZE), NONE("softcap", MAYBE_POSITIVE),
                    OPTIONAL_TENSOR("bias")}},
     .kind = OP_ATTENTION,
     .make = make_attention},
    {.signature = {"rope",
                   14,
                   {TENSOR("input"), REQUIRED("head_dim", SIZE), REAL("theta", POSITIVE, 10000),
                    NONE("scaling", SCALING), NONE("factor", MAYBE_POSITIVE),
                    REAL("low_freq_factor", POSITIVE, 1), REAL("high_freq_factor", POSITIVE, 4),
                    NONE("original_context", MAYBE_SIZE), NONE("rotary_dim", MAYBE_SIZE),
                    REAL("beta_fast", POSITIVE, 32), REAL("beta_slow", POSITIVE, 1),
                    NONE("attention_factor", MAYBE_POSITIVE), NONE("short_factor", NUMBERS),
                    NONE("long_factor", NUMBERS)}},
     .kind = OP_ROPE,
     .make = make_rope},
    {.signature = {"positions", 2, {TENSOR("input"), INTEGER("start", INTEGER, 0)}},
     .kind = OP_ARANGE,
     .make = make_positions},
    {.signature = {"zeros", 1, {TENSOR("input")}}, .kind = OP_ARANGE},
    {.signature = {"token_positions", 2, {TENSOR("input"), REQUIRED("id", INTEGER)}},
     .kind = OP_TOKEN_POSITIONS,
     .make = make_padding_mask},
    {.signature = {"distance_buckets",
                   3,
                   {TENSOR("input"), INTEGER("num_buckets", SIZE, 32),
                    INTEGER("max_distance", SIZE, 128)}},
     .kind = OP_DISTANCE_BUCKETS,
     .make = make_distance_buckets},
    {.signature = {"padding_mask", 2, {TENSOR("input"), REQUIRED("id", INTEGER)}},
     .kind = OP_PADDING_MASK,
     .make = make_padding_mask},
    {.signature = {"avg_pool2d",
                   6,
                   {TENSOR("input"), REQUIRED("kernel_size", WINDOW), NONE("stride", STRIDE),
                    INTEGER("padding", PADDING, 0), BOOLEAN("ceil_mode", false),
                    BOOLEAN("count_include_pad", true)}},
     .kind = OP_AVG_POOL2D,
     .make = make_avg_pool2d},
    {.signature = {"adaptive_avg_pool2d", 2, {TENSOR("input"), REQUIRED("output_size", WINDOW)}},
     .kind = OP_AVG_POOL2D,
     .make = make_adaptive_avg_pool2d},
    {.signature = {"transpose",
                   3,
                   {TENSOR("input"), REQUIRED("dim0", INTEGER), REQUIRED("dim1", INTEGER)}},
     .kind = OP_TRANSPOSE,
     .make = make_transpose},
    {.signature = {"narrow",
                   4,
                   {TENSOR("input"), REQUIRED("dim", INTEGER), REQUIRED("start", INTEGER),
                    REQUIRED("length", SIZE)}},
     .kind = OP_SLICE,
     .make = make_narrow},
    {.signature = {"select",
                   3,
                   {TENSOR("input"), REQUIRED("dim", INTEGER), REQUIRED("index", INTEGER)}},
     .kind = OP_SLICE,
     .make = make_select},
    {.signature = {"chunk", /* the index stands behind the call */
                   4,
                   {TENSOR("input"), REQUIRED("chunks", SIZE), REQUIRED("dim", INTEGER),
                    REQUIRED("index", INTEGER)}},
     .kind = OP_SLICE,
     .make = make_chunk},
    {.signature = {"cat", 0, {{0}}}, .kind = OP_CONCAT}, /* of a list: see evaluate_cat */
    {.signature = {"mean", 3, {TENSOR("input"), REQUIRED("dim", INTEGER), OPTIONAL_TENSOR("mask")}},
     .kind = OP_MEAN,
     .make = make_dim},
    {.signature = {"last", 3, {TENSOR("input"), REQUIRED("dim", INTEGER), TENSOR("mask")}},
     .kind = OP_MEAN,
     .make = make_last},
    {.signature = {"nll_loss",
                   5,
                   {TENSOR("input"), TENSOR("target"), WORD("reduction", REDUCTION, "mean"),
                    INTEGER("ignore_index", INTEGER, -100), OPTIONAL_TENSOR("weight")}},
     .kind = OP_NLL_LOSS,
     .make = make_cross_entropy},
    {.signature = {"cross_entropy",
                   6,
                   {TENSOR("input"), TENSOR("target"), WORD("reduction", REDUCTION, "mean"),
                    INTEGER("ignore_index", INTEGER, -100), REAL("label_smoothing", PROBABILITY, 0),
                    OPTIONAL_TENSOR("weight")}},
     .kind = OP_CROSS_ENTROPY,
     .make = make_smooth_cross_entropy},
    {.signature = {"mse_loss",
                   3,
                   {TENSOR("input"), TENSOR("target"), WORD("reduction", REDUCTION, "mean")}},
     .kind = OP_ELEMENT_LOSS,
     .make = make_mse_loss},
    {.signature = {"l1_loss",
                   3,
                   {TENSOR("input"), TENSOR("target"), WORD("reduction", REDUCTION, "mean")}},
     .kind = OP_ELEMENT_LOSS,
     .make = make_l1_loss},
    {.signature = {"huber_loss",
                   4,
                   {TENSOR("input"), TENSOR("target"), WORD("reduction", REDUCTION, "mean"),
                    REAL("delta", POSITIVE, 1)}},
     .kind = OP_ELEMENT_LOSS,
     .make = make_huber_loss},
    {.signature = {"binary_cross_entropy_with_logits",
                   4,
                   {TENSOR("input"), TENSOR("target"), WORD("reduction", REDUCTION, "mean"),
                    OPTIONAL_TENSOR("pos_weight")}},
     .kind = OP_ELEMENT_LOSS,
     .make = make_binary_cross_entropy},
    {.signature = {"multiple_negatives_ranking_loss",
                   2,
                   {TENSOR("input"), REAL("scale", POSITIVE, 20)}},
     .kind = OP_CONTRASTIVE_LOSS,
     .make = make_contrastive_loss},
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

static char *suggest(const char *what, const struct layer_type *types, size_t type_count,
                     const char *name, const char *const *others, size_t other_count)
{
    AUTO_FREE const char **names = mem_alloc_array(type_count + other_count, sizeof *names);
    for (size_t i = 0; i < type_count; i++) names[i] = types[i].signature.name;
    for (size_t i = 0; i < other_count; i++) names[type_count + i] = others[i];
    const char *nearest = text_nearest(name, names, type_count + other_count);
    struct buf hint = {0};
    if (nearest) buf_printf(&hint, "; did you mean '%s'?", nearest);
    else buf_printf(&hint, "; the %s are ", what);
    for (size_t i = 0; i < type_count + other_count && !nearest; i++)
        buf_printf(&hint, "%s%s", i ? ", " : "", names[i]);
    return buf_take(&hint);
}

char *layer_suggest_module(const char *name, const char *const *others, size_t count)
{
    return suggest("modules", modules, COUNT_OF(modules), name, others, count);
}

char *layer_suggest_function(const char *name, const char *const *others, size_t count)
{
    return suggest("functions and modules", functions, COUNT_OF(functions), name, others, count);
}

status_t layer_make(const struct layer_type *type, const struct bound *bound, struct layer *layer)
{
    struct layer made = {.kind = type->kind};
    if (type->make) TRY(type->make(bound, &made));
    *layer = made;
    return NULL;
}
