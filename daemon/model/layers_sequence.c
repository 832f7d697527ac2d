/*
 * Layers for sequences, with their registration and printing: embeddings, norms, attention,
 * positions. The tables of layers.c have their signatures. Pure.
 */
#include "model/layers_internal.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- Parameters ---- */

int embedding_parameters(const struct bound *bound,
                         struct layer_parameter parameters[LAYER_MAX_PARAMETERS])
{
    int64_t dims[2] = {bound_integer(bound, "num_embeddings"),
                       bound_integer(bound, "embedding_dim")};
    int64_t padding = bound_integer(bound, "padding_idx");
    parameters[0] = (struct layer_parameter){.name = "weight",
                                             .type = tensor_type_make(DTYPE_F32, 2, dims),
                                             .init = INIT_NORMAL,
                                             .bound = 1,
                                             .has_zero_row = !bound_none(bound, "padding_idx"),
                                             .zero_row = padding < 0 ? padding + dims[0] : padding};
    return 1;
}

int conv1d_parameters(const struct bound *bound,
                      struct layer_parameter parameters[LAYER_MAX_PARAMETERS])
{
    int64_t nf = bound_integer(bound, "nf"), nx = bound_integer(bound, "nx");
    parameters[0] =
        (struct layer_parameter){.name = "weight",
                                 .type = tensor_type_make(DTYPE_F32, 2, (int64_t[]){nx, nf}),
                                 .init = INIT_NORMAL,
                                 .bound = 0.02};
    parameters[1] = (struct layer_parameter){.name = "bias",
                                             .type = tensor_type_make(DTYPE_F32, 1, &nf),
                                             .init = INIT_ZEROS};
    return 2;
}

static int norm_parameters(const struct bound *bound, bool bias,
                           struct layer_parameter parameters[LAYER_MAX_PARAMETERS])
{
    if (!bound_boolean(bound, "elementwise_affine")) return 0;
    int64_t size = bound_integer(bound, "normalized_shape");
    struct tensor_type type = tensor_type_make(DTYPE_F32, 1, &size);
    parameters[0] = (struct layer_parameter){.name = "weight", .type = type, .init = INIT_ONES};
    parameters[1] = (struct layer_parameter){.name = "bias", .type = type, .init = INIT_ZEROS};
    return bias ? 2 : 1;
}

int layer_norm_parameters(const struct bound *bound,
                          struct layer_parameter parameters[LAYER_MAX_PARAMETERS])
{
    return norm_parameters(bound, bound_boolean(bound, "bias"), parameters);
}

int rms_norm_parameters(const struct bound *bound,
                        struct layer_parameter parameters[LAYER_MAX_PARAMETERS])
{
    return norm_parameters(bound, false, parameters);
}

int gemma_norm_parameters(const struct bound *bound,
                          struct layer_parameter parameters[LAYER_MAX_PARAMETERS])
{
    int64_t size = bound_integer(bound, "dim");
    struct tensor_type type = tensor_type_make(DTYPE_F32, 1, &size);
    parameters[0] = (struct layer_parameter){.name = "weight", .type = type, .init = INIT_ZEROS};
    return 1;
}

/* ---- Printing, as PyTorch, or transformers for its own modules, does ---- */

void embedding_print(const struct bound *bound, struct buf *text)
{
    buf_printf(text, "%lld, %lld", (long long)bound_integer(bound, "num_embeddings"),
               (long long)bound_integer(bound, "embedding_dim"));
    if (!bound_none(bound, "padding_idx")) print_argument(bound, "padding_idx", text);
}

void conv1d_print(const struct bound *bound, struct buf *text)
{
    print_argument(bound, "nf", text);
    print_argument(bound, "nx", text);
}

void norm_print(const struct bound *bound, struct buf *text)
{
    buf_printf(text, "(%lld,)", (long long)bound_integer(bound, "normalized_shape"));
    print_argument(bound, "eps", text);
    print_argument(bound, "elementwise_affine", text);
}

void gemma_norm_print(const struct bound *bound, struct buf *text)
{
    buf_printf(text, "(%lld,)", (long long)bound_integer(bound, "dim"));
    print_argument(bound, "eps", text);
}

/* Prints as PyTorch 2 does; PyTorch 1 has no `bias`. */
void layer_norm_print(const struct bound *bound, struct buf *text)
{
    norm_print(bound, text);
    bool bias = bound_boolean(bound, "elementwise_affine") && bound_boolean(bound, "bias");
    buf_printf(text, ", bias=%s", bias ? "True" : "False");
}

void gelu_print(const struct bound *bound, struct buf *text)
{
    print_argument(bound, "approximate", text);
}

void nothing_print(const struct bound *bound, struct buf *text)
{
    (void)bound, (void)text;
}

void silu_print(const struct bound *bound, struct buf *text)
{
    if (bound_boolean(bound, "inplace")) print_argument(bound, "inplace", text);
}

void softmax_print(const struct bound *bound, struct buf *text)
{
    print_argument(bound, "dim", text);
}

/* ---- Layers of calls ---- */

status_t make_embedding(const struct bound *bound, struct layer *layer)
{
    int64_t rows = bound_integer(bound, "num_embeddings");
    int64_t padding = bound_integer(bound, "padding_idx");
    layer->attrs.embedding.padding_index = -1;
    if (bound_none(bound, "padding_idx")) return NULL;
    if (padding >= rows || padding < -rows)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "Embedding(): padding_idx=%lld is not a row of num_embeddings=%lld",
                          (long long)padding, (long long)rows);
    layer->attrs.embedding.padding_index = padding < 0 ? padding + rows : padding;
    return NULL;
}

status_t make_conv1d(const struct bound *bound, struct layer *layer)
{
    (void)bound;
    layer->attrs.linear.transposed = true;
    return NULL;
}

status_t make_layer_norm(const struct bound *bound, struct layer *layer)
{
    layer->attrs.norm.eps = bound_real(bound, "eps");
    return NULL;
}

status_t make_rms_norm(const struct bound *bound, struct layer *layer)
{
    bool none = bound_none(bound, "eps"); /* PyTorch's: the type's epsilon */
    layer->attrs.norm.eps = none ? (double)FLT_EPSILON : bound_real(bound, "eps");
    return NULL;
}

status_t make_gemma_norm(const struct bound *bound, struct layer *layer)
{
    layer->attrs.norm.eps = bound_real(bound, "eps");
    layer->attrs.norm.one_plus = true;
    return NULL;
}

status_t make_gelu(const struct bound *bound, struct layer *layer)
{
    layer->attrs.gelu.tanh = strcmp(bound_get(bound, "approximate")->text, "tanh") == 0;
    return NULL;
}

status_t make_dim(const struct bound *bound, struct layer *layer)
{
    layer->dim = (int)bound_integer(bound, "dim");
    return NULL;
}

status_t make_attention(const struct bound *bound, struct layer *layer)
{
    int64_t heads = bound_integer(bound, "num_heads");
    int64_t kv_heads =
        bound_none(bound, "num_kv_heads") ? heads : bound_integer(bound, "num_kv_heads");
    /* the signature has key and value second and third */
    if (!bound->tensors[1] != !bound->tensors[2])
        return status_new(STATUS_INVALID_ARGUMENT,
                          "attention(): needs key and value, or neither if query holds all three "
                          "side by side");
    if (kv_heads > heads || heads % kv_heads)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "attention(): num_kv_heads=%lld does not divide num_heads=%lld",
                          (long long)kv_heads, (long long)heads);
    if (!bound_none(bound, "window"))
        layer->attrs.attention.window = bound_integer(bound, "window");
    if (!bound_none(bound, "softcap"))
        layer->attrs.attention.softcap = bound_real(bound, "softcap");
    if (!bound_none(bound, "alibi")) layer->attrs.attention.alibi = bound_real(bound, "alibi");
    layer->attrs.attention.rounded = bound_boolean(bound, "alibi_rounded");
    layer->attrs.attention.heads = heads;
    layer->attrs.attention.kv_heads = kv_heads;
    layer->attrs.attention.causal = bound_boolean(bound, "is_causal");
    layer->attrs.attention.p = bound_real(bound, "dropout_p");
    layer->attrs.attention.scale = bound_none(bound, "scale") ? 0 : bound_real(bound, "scale");
    return NULL;
}

/* The factor that both papers recommend, unless the call has one; 0 of scalings without. */
static double rope_magnitude(const struct bound *bound, enum rope_scaling scaling, double factor)
{
    if (scaling < ROPE_SCALING_YARN) return 0;
    if (!bound_none(bound, "attention_factor")) return bound_real(bound, "attention_factor");
    if (factor <= 1) return 1;
    if (scaling == ROPE_SCALING_YARN) return 0.1 * log(factor) + 1;
    return sqrt(1 + log(factor) / log((double)bound_integer(bound, "original_context")));
}

static status_t make_rope_scaling(const struct bound *bound, struct layer *layer)
{
    static const char *const names[] = {"linear", "llama3", "yarn", "longrope"};
    const char *name = bound_get(bound, "scaling")->text;
    int which = 0;
    while (strcmp(names[which], name) != 0) which++;
    enum rope_scaling scaling = ROPE_SCALING_LINEAR + (enum rope_scaling)which;
    bool context = scaling != ROPE_SCALING_LINEAR;
    if (context == bound_none(bound, "original_context"))
        return status_new(STATUS_INVALID_ARGUMENT, "rope(): scaling=\"%s\" %s original_context",
                          name, context ? "needs" : "has no");
    double factor = bound_real(bound, "factor");
    layer->attrs.rope.scaling = scaling;
    layer->attrs.rope.factor = factor;
    if (context) layer->attrs.rope.original_context = bound_integer(bound, "original_context");
    if (scaling == ROPE_SCALING_LLAMA3) {
        double low = bound_real(bound, "low_freq_factor");
        double high = bound_real(bound, "high_freq_factor");
        if (!(high > low))
            return status_new(STATUS_INVALID_ARGUMENT,
                              "rope(): high_freq_factor=%g must be above low_freq_factor=%g", high,
                              low);
        layer->attrs.rope.low_freq_factor = low;
        layer->attrs.rope.high_freq_factor = high;
    }
    layer->attrs.rope.magnitude = rope_magnitude(bound, scaling, factor);
    if (scaling == ROPE_SCALING_YARN) {
        layer->attrs.rope.beta_fast = bound_real(bound, "beta_fast");
        layer->attrs.rope.beta_slow = bound_real(bound, "beta_slow");
    }
    return NULL;
}

status_t make_rope(const struct bound *bound, struct layer *layer)
{
    bool scaled = !bound_none(bound, "scaling"), partial = !bound_none(bound, "rotary_dim");
    int64_t head_dim = bound_integer(bound, "head_dim"),
            rotary = bound_integer(bound, "rotary_dim");
    if (scaled == bound_none(bound, "factor"))
        return status_new(STATUS_INVALID_ARGUMENT, "rope(): %s",
                          scaled ? "scaling needs a factor" : "a factor needs a scaling");
    if (!scaled && !bound_none(bound, "original_context"))
        return status_new(STATUS_INVALID_ARGUMENT, "rope(): original_context needs a scaling");
    if (head_dim % 2)
        return status_new(STATUS_INVALID_ARGUMENT, "rope(): head_dim=%lld is odd",
                          (long long)head_dim);
    if (partial && (rotary % 2 || rotary > head_dim))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "rope(): rotary_dim=%lld is not an even number up to head_dim=%lld",
                          (long long)rotary, (long long)head_dim);
    layer->attrs.rope.head_dim = head_dim;
    layer->attrs.rope.rotary_dim = partial && rotary < head_dim ? rotary : 0;
    layer->attrs.rope.interleaved = bound_boolean(bound, "interleaved");
    layer->attrs.rope.theta = bound_real(bound, "theta");
    return scaled ? make_rope_scaling(bound, layer) : NULL;
}

/* For positions(); zeros() leaves both at 0. */
status_t make_positions(const struct bound *bound, struct layer *layer)
{
    int64_t start = bound_integer(bound, "start");
    if (start < 0)
        return status_new(STATUS_INVALID_ARGUMENT, "positions(): start=%lld is below 0",
                          (long long)start);
    layer->attrs.arange.start = (int32_t)start;
    layer->attrs.arange.step = 1;
    return NULL;
}

status_t make_distance_buckets(const struct bound *bound, struct layer *layer)
{
    int64_t count = bound_integer(bound, "num_buckets"), far = bound_integer(bound, "max_distance");
    if (count < 4 || count % 2)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "distance_buckets(): num_buckets=%lld is not an even number from 4 on",
                          (long long)count);
    if (far <= count / 4)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "distance_buckets(): max_distance=%lld must be above num_buckets / 4, "
                          "%lld",
                          (long long)far, (long long)(count / 4));
    layer->attrs.buckets.count = (int32_t)count;
    layer->attrs.buckets.max_distance = (int32_t)far;
    return NULL;
}

status_t make_padding_mask(const struct bound *bound, struct layer *layer)
{
    layer->attrs.padding_mask.id = (int32_t)bound_integer(bound, "id");
    return NULL;
}
