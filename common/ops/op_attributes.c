/* The attributes of ops, as rows, and the functions driven by these rows; see op_attributes.h. */
#include "ops/op_attributes.h"

#include <string.h>

#include "base/array.h"

#define FIELD(arm, member, its_type)                                                               \
    .offset = offsetof(union op_attrs, arm.member), .type = ATTRIBUTE_##its_type

static bool always(const union op_attrs *attrs)
{
    (void)attrs;
    return true;
}

static const char *const activations[] = {
    [ACTIVATION_NONE] = NULL, [ACTIVATION_RELU] = "relu", [ACTIVATION_GELU_TANH] = "gelu_tanh"};
static const char *const reductions[] = {[REDUCTION_SUM] = "sum", [REDUCTION_MEAN] = "mean"};
static const char *const scalings[] = {[ROPE_SCALING_NONE] = NULL,
                                       [ROPE_SCALING_LINEAR] = "linear",
                                       [ROPE_SCALING_LLAMA3] = "llama3",
                                       [ROPE_SCALING_YARN] = "yarn",
                                       [ROPE_SCALING_LONGROPE] = "longrope"};
static const char *const differences[] = {
    [DIFFERENCE_SQUARED] = "squared", [DIFFERENCE_ABSOLUTE] = "absolute",
    [DIFFERENCE_HUBER] = "huber",     [DIFFERENCE_BINARY_CROSS_ENTROPY] = "binary_cross_entropy",
    [DIFFERENCE_FOCAL] = "focal",     [DIFFERENCE_DIVERGENCE] = "divergence"};

static const char *const preferences[] = {
    [PREFERENCE_SIGMOID] = "sigmoid", [PREFERENCE_IPO] = "ipo", [PREFERENCE_HINGE] = "hinge"};
static const char *const functions[] = {[FUNCTION_LEAKY_RELU] = "leaky_relu",
                                        [FUNCTION_ELU] = "elu",
                                        [FUNCTION_RELU6] = "relu6",
                                        [FUNCTION_HARDSWISH] = "hardswish",
                                        [FUNCTION_HARDSIGMOID] = "hardsigmoid",
                                        [FUNCTION_EXP] = "exp",
                                        [FUNCTION_LOG] = "log",
                                        [FUNCTION_SQRT] = "sqrt",
                                        [FUNCTION_POW] = "pow",
                                        [FUNCTION_ABS] = "abs",
                                        [FUNCTION_ABOVE] = "above",
                                        [FUNCTION_AT_LEAST] = "at_least"};
static const char *const recurrences[] = {[RECURRENCE_LSTM] = "lstm", [RECURRENCE_GRU] = "gru"};
static const char *const tallies[] = {[TALLY_CLASSES] = "classes",
                                      [TALLY_LABELS] = "labels",
                                      [TALLY_NUMBERS] = "numbers",
                                      [TALLY_ROWS] = "rows"};

#define CHOICE(arm, member, texts)                                                                 \
    .offset = offsetof(union op_attrs, arm.member), .type = ATTRIBUTE_CHOICE, .choices = texts,    \
    .choice_count = COUNT_OF(texts)

const struct op_attribute op_conv_attributes[] = {
    {"stride", FIELD(conv, stride, I64), .pair = true, .usual = 1},
    {"padding", FIELD(conv, padding, I64), .pair = true},
    {"dilation", FIELD(conv, dilation, I64), .pair = true, .usual = 1},
    {"groups", FIELD(conv, groups, I64), .usual = 1},
    {"activation", CHOICE(conv, activation, activations)},
    {0},
};

const struct op_attribute op_linear_attributes[] = {
    {"transposed", FIELD(linear, transposed, FLAG), .print = " transposed"},
    {"rows_apart", FIELD(linear, rows_apart, FLAG), .print = " rows apart"},
    {"activation", CHOICE(linear, activation, activations)},
    {0},
};

const struct op_attribute op_pool_attributes[] = {
    {"kernel", FIELD(pool, kernel, I64), .pair = true, .usual = -1},
    {"stride", FIELD(pool, stride, I64), .pair = true, .usual = -1},
    {"padding", FIELD(pool, padding, I64), .pair = true},
    {0},
};

static bool has_window(const union op_attrs *attrs)
{
    return !attrs->avg_pool.adaptive;
}

const struct op_attribute op_avg_pool_attributes[] = {
    {"kernel", FIELD(avg_pool, kernel, I64), .pair = true, .shown = has_window},
    {"stride", FIELD(avg_pool, stride, I64), .pair = true, .shown = has_window},
    {"padding", FIELD(avg_pool, padding, I64), .pair = true},
    {"adaptive", FIELD(avg_pool, adaptive, FLAG), .print = " adaptive"},
    {"count_include_pad", FIELD(avg_pool, count_include_pad, FLAG), .print = " with padding"},
    {0},
};

const struct op_attribute op_recurrent_attributes[] = {
    {"kind", CHOICE(recurrent, kind, recurrences), .shown = always},
    {"reverse", FIELD(recurrent, reverse, FLAG), .print = " reverse"},
    {0},
};

const struct op_attribute op_group_norm_attributes[] = {
    {"groups", FIELD(group_norm, groups, I64), .shown = always},
    {"eps", FIELD(group_norm, eps, REAL), .shown = always},
    {0},
};

const struct op_attribute op_batch_norm_attributes[] = {
    {"eps", FIELD(batch_norm, eps, REAL), .shown = always},
    {"momentum", FIELD(batch_norm, momentum, REAL), .shown = always},
    {"sync", FIELD(batch_norm, sync, FLAG)},
    {0},
};

const struct op_attribute op_dropout_attributes[] = {
    {"p", FIELD(dropout, p, REAL), .shown = always},
    {"stream", FIELD(dropout, stream, U32), .shown = always},
    {"normal", FIELD(dropout, normal, FLAG), .print = " normal"},
    {0},
};

const struct op_attribute op_loss_attributes[] = {
    {"reduction", CHOICE(loss, reduction, reductions), .shown = always},
    {"label_smoothing", FIELD(loss, label_smoothing, REAL)},
    {"weights", FIELD(loss, weights, WEIGHTS)},
    {"gamma", FIELD(loss, gamma, REAL)},
    {"share", FIELD(loss, share, REAL)},
    {0},
};

static bool is_focal(const union op_attrs *attrs)
{
    return attrs->element_loss.difference == DIFFERENCE_FOCAL;
}

static bool has_delta(const union op_attrs *attrs)
{
    return attrs->element_loss.difference == DIFFERENCE_HUBER || is_focal(attrs);
}

const struct op_attribute op_element_loss_attributes[] = {
    {"reduction", CHOICE(element_loss, reduction, reductions), .shown = always},
    {"difference", CHOICE(element_loss, difference, differences), .shown = always},
    {"delta", FIELD(element_loss, delta, REAL), .shown = has_delta},
    {"alpha", FIELD(element_loss, alpha, REAL), .shown = is_focal},
    {"weight", FIELD(element_loss, weight, REAL), .usual = 1},
    {"positive", FIELD(element_loss, positive, WEIGHTS)},
    {"computed", FIELD(element_loss, computed, FLAG), .print = " computed"},
    {"share", FIELD(element_loss, share, REAL)},
    {0},
};

const struct op_attribute op_contrast_attributes[] = {
    {"reduction", CHOICE(contrast, reduction, reductions), .shown = always},
    {"factor", FIELD(contrast, factor, REAL), .shown = always},
    {"share", FIELD(contrast, share, REAL)},
    {0},
};

const struct op_attribute op_preference_attributes[] = {
    {"reduction", CHOICE(preference, reduction, reductions), .shown = always},
    {"kind", CHOICE(preference, kind, preferences), .shown = always},
    {"beta", FIELD(preference, beta, REAL), .shown = always},
    {"label_smoothing", FIELD(preference, label_smoothing, REAL)},
    {"share", FIELD(preference, share, REAL)},
    {0},
};

const struct op_attribute op_tally_attributes[] = {
    {"kind", CHOICE(tally, kind, tallies), .shown = always},
    {"ranks", FIELD(tally, ranks, I64), .usual = 1},
    {0},
};

const struct op_attribute op_transpose_attributes[] = {
    {"dims", FIELD(transpose, dims, I64), .pair = true, .usual = -1},
    {0},
};

const struct op_attribute op_slice_attributes[] = {
    {"dim", FIELD(slice, dim, I64), .shown = always},
    {"start", FIELD(slice, start, I64), .print = " from ", .shown = always},
    {0},
};

const struct op_attribute op_concat_attributes[] = {
    {"dim", FIELD(concat, dim, I64), .shown = always},
    {0},
};

const struct op_attribute op_mean_attributes[] = {
    {"dim", FIELD(mean, dim, I64), .shown = always},
    {"last", FIELD(mean, last, FLAG), .print = " last"},
    {"sum", FIELD(mean, sum, FLAG), .print = " sum"},
    {0},
};

static bool has_parameter(const union op_attrs *attrs)
{
    enum op_function kind = attrs->function.kind;
    return kind == FUNCTION_LEAKY_RELU || kind == FUNCTION_ELU || kind == FUNCTION_POW ||
           kind == FUNCTION_ABOVE || kind == FUNCTION_AT_LEAST;
}

const struct op_attribute op_function_attributes[] = {
    {"kind", CHOICE(function, kind, functions), .shown = always},
    {"parameter", FIELD(function, parameter, REAL), .print = " ", .shown = has_parameter},
    {0},
};

const struct op_attribute op_matmul_attributes[] = {
    {"first", FIELD(matmul, first, FLAG), .print = " first transposed"},
    {"second", FIELD(matmul, second, FLAG), .print = " second transposed"},
    {0},
};

const struct op_attribute op_gelu_attributes[] = {
    {"tanh", FIELD(gelu, tanh, FLAG), .print = " tanh"},
    {0},
};

const struct op_attribute op_scale_attributes[] = {
    {"factor", FIELD(scale, factor, REAL), .shown = always},
    {"offset", FIELD(scale, offset, REAL)},
    {0},
};

const struct op_attribute op_embedding_attributes[] = {
    {"padding_index", FIELD(embedding, padding_index, I64), .usual = -1, .print = " padding="},
    {0},
};

const struct op_attribute op_arange_attributes[] = {
    {"start", FIELD(arange, start, I32), .print = " from ", .shown = always},
    {"step", FIELD(arange, step, I32), .print = " by ", .shown = always},
    {0},
};

const struct op_attribute op_padding_mask_attributes[] = {
    {"id", FIELD(padding_mask, id, I32), .shown = always},
    {0},
};

const struct op_attribute op_tokens_attributes[] = {
    {"start", FIELD(tokens, start, I64), .print = " from ", .shown = always},
    {"count", FIELD(tokens, count, I32), .print = " below ", .shown = always},
    {0},
};

const struct op_attribute op_buckets_attributes[] = {
    {"count", FIELD(buckets, count, I32), .shown = always},
    {"max_distance", FIELD(buckets, max_distance, I32), .shown = always},
    {0},
};

const struct op_attribute op_norm_attributes[] = {
    {"eps", FIELD(norm, eps, REAL), .shown = always},
    {"one_plus", FIELD(norm, one_plus, FLAG), .print = " 1+weight"},
    {"rounded", FIELD(norm, rounded, FLAG), .print = " rounded"},
    {0},
};

static bool rope_is_scaled(const union op_attrs *attrs)
{
    return attrs->rope.scaling != ROPE_SCALING_NONE;
}

static bool rope_is_llama3(const union op_attrs *attrs)
{
    return attrs->rope.scaling == ROPE_SCALING_LLAMA3;
}

static bool rope_is_yarn(const union op_attrs *attrs)
{
    return attrs->rope.scaling == ROPE_SCALING_YARN;
}

static bool rope_has_context(const union op_attrs *attrs)
{
    return attrs->rope.scaling >= ROPE_SCALING_LLAMA3;
}

static bool rope_has_magnitude(const union op_attrs *attrs)
{
    return attrs->rope.scaling >= ROPE_SCALING_YARN;
}

const struct op_attribute op_rope_attributes[] = {
    {"head_dim", FIELD(rope, head_dim, I64), .shown = always},
    {"rotary_dim", FIELD(rope, rotary_dim, I64)},
    {"interleaved", FIELD(rope, interleaved, FLAG), .print = " interleaved"},
    {"theta", FIELD(rope, theta, REAL), .shown = always},
    {"scaling", CHOICE(rope, scaling, scalings)},
    {"factor", FIELD(rope, factor, REAL), .shown = rope_is_scaled},
    {"low_freq_factor", FIELD(rope, low_freq_factor, REAL),
     .print = " low=", .shown = rope_is_llama3},
    {"high_freq_factor", FIELD(rope, high_freq_factor, REAL),
     .print = " high=", .shown = rope_is_llama3},
    {"original_context", FIELD(rope, original_context, I64),
     .print = " context=", .shown = rope_has_context},
    {"beta_fast", FIELD(rope, beta_fast, REAL), .print = " fast=", .shown = rope_is_yarn},
    {"beta_slow", FIELD(rope, beta_slow, REAL), .print = " slow=", .shown = rope_is_yarn},
    {"magnitude", FIELD(rope, magnitude, REAL), .shown = rope_has_magnitude},
    {"short", FIELD(rope, short_factors, WEIGHTS)},
    {"long", FIELD(rope, long_factors, WEIGHTS)},
    {"positions", FIELD(rope, positions, I64)},
    {0},
};

static bool kv_heads_differ(const union op_attrs *attrs)
{
    return attrs->attention.kv_heads != attrs->attention.heads;
}

static bool attention_has_dropout(const union op_attrs *attrs)
{
    return attrs->attention.p > 0;
}

const struct op_attribute op_attention_attributes[] = {
    {"heads", FIELD(attention, heads, I64), .shown = always},
    {"kv_heads", FIELD(attention, kv_heads, I64), .shown = kv_heads_differ},
    {"causal", FIELD(attention, causal, FLAG), .print = " causal"},
    {"window", FIELD(attention, window, I64)},
    {"softcap", FIELD(attention, softcap, REAL)},
    {"alibi", FIELD(attention, alibi, REAL)},
    {"rounded", FIELD(attention, rounded, FLAG), .print = " rounded"},
    {"scale", FIELD(attention, scale, REAL)},
    {"p", FIELD(attention, p, REAL)},
    {"stream", FIELD(attention, stream, U32), .shown = attention_has_dropout},
    {0},
};

/* A value of any type; integers of attributes are exact as doubles. */
union value {
    int64_t integer;
    double real;
};

static const struct op_weights *weights_of(const struct op_attribute *attribute,
                                           const union op_attrs *attrs)
{
    return (const void *)((const char *)attrs + attribute->offset);
}

static union value read_value(const struct op_attribute *attribute, const union op_attrs *attrs,
                              int64_t index)
{
    const char *at = (const char *)attrs + attribute->offset;
    switch (attribute->type) {
    case ATTRIBUTE_I64: return (union value){.integer = ((const int64_t *)(const void *)at)[index]};
    case ATTRIBUTE_I32: return (union value){.integer = *(const int32_t *)(const void *)at};
    case ATTRIBUTE_U32: return (union value){.integer = *(const uint32_t *)(const void *)at};
    case ATTRIBUTE_REAL: return (union value){.real = *(const double *)(const void *)at};
    case ATTRIBUTE_FLAG: return (union value){.integer = *(const bool *)(const void *)at};
    case ATTRIBUTE_CHOICE: return (union value){.integer = *(const unsigned *)(const void *)at};
    case ATTRIBUTE_WEIGHTS:
        return (union value){.real = op_weight(weights_of(attribute, attrs), index)};
    }
    return (union value){0};
}

int64_t op_attribute_count(const struct op_attribute *attribute, const union op_attrs *attrs)
{
    if (attribute->type == ATTRIBUTE_WEIGHTS) return weights_of(attribute, attrs)->count;
    return attribute->pair ? 2 : 1;
}

uint64_t op_attribute_bits(const struct op_attribute *attribute, const union op_attrs *attrs,
                           int64_t index)
{
    union value value = read_value(attribute, attrs, index);
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static bool is_shown(const struct op_attribute *attribute, const union op_attrs *attrs)
{
    if (attribute->shown != NULL) return attribute->shown(attrs);
    if (attribute->type == ATTRIBUTE_WEIGHTS) return op_attribute_count(attribute, attrs) > 0;
    for (int i = 0; i <= attribute->pair; i++) {
        union value value = read_value(attribute, attrs, i);
        bool real = attribute->type == ATTRIBUTE_REAL;
        if ((real ? value.real : (double)value.integer) != attribute->usual) return true;
    }
    return false;
}

/* " weights=[1, 2.5, 1, ... of 10]" */
static void print_weights(const struct op_attribute *attribute, const union op_attrs *attrs,
                          struct buf *text)
{
    enum { SHOWN = 4 };
    int64_t count = op_attribute_count(attribute, attrs);
    buf_printf(text, " %s=[", attribute->name);
    for (int64_t i = 0; i < count && i < SHOWN; i++)
        buf_printf(text, "%s%g", i > 0 ? ", " : "", read_value(attribute, attrs, i).real);
    if (count > SHOWN) buf_printf(text, ", ... of %lld", (long long)count);
    buf_add_text(text, "]");
}

static void print_value(const struct op_attribute *attribute, const union op_attrs *attrs,
                        struct buf *text)
{
    if (attribute->type == ATTRIBUTE_WEIGHTS) {
        print_weights(attribute, attrs, text);
        return;
    }
    union value value = read_value(attribute, attrs, 0);
    if (attribute->type == ATTRIBUTE_CHOICE) {
        bool known = value.integer < attribute->choice_count;
        buf_printf(text, " %s", known ? attribute->choices[value.integer] : "unknown");
        return;
    }
    if (attribute->print != NULL) buf_add_text(text, attribute->print);
    else buf_printf(text, " %s=", attribute->name);
    if (attribute->type == ATTRIBUTE_REAL) buf_printf(text, "%g", value.real);
    else if (attribute->type != ATTRIBUTE_FLAG) buf_printf(text, "%lld", (long long)value.integer);
    if (attribute->pair)
        buf_printf(text, "x%lld", (long long)read_value(attribute, attrs, 1).integer);
}

void op_attributes_print(enum op_kind kind, const union op_attrs *attrs, struct buf *text)
{
    const struct op_attribute *attribute = op_info_get(kind)->attributes;
    for (; attribute != NULL && attribute->name != NULL; attribute++)
        if (is_shown(attribute, attrs)) print_value(attribute, attrs, text);
}

status_t op_attributes_check(enum op_kind kind, const union op_attrs *attrs)
{
    const struct op_info *info = op_info_get(kind);
    const struct op_attribute *attribute = info->attributes;
    for (; attribute != NULL && attribute->name != NULL; attribute++) {
        if (attribute->type != ATTRIBUTE_CHOICE) continue;
        int64_t value = read_value(attribute, attrs, 0).integer;
        if (value >= attribute->choice_count)
            return status_new(STATUS_INVALID_ARGUMENT, "%s: %s %d is unknown", info->name,
                              attribute->name, (int)value);
    }
    return NULL;
}
