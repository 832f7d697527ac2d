/*
 * What layers of sequences have, print and do: embeddings, norms, attention, positions. Signatures
 * are in the tables of layers.c. Pure.
 */
#include "model/layers_sequence.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* --- Parameters --- */

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

/* --- As PyTorch, or transformers for its own module, prints them --- */

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

void gelu_print(const struct bound *bound, struct buf *text)
{
    print_argument(bound, "approximate", text);
}

void silu_print(const struct bound *bound, struct buf *text)
{
    if (bound_boolean(bound, "inplace")) print_argument(bound, "inplace", text);
}

void softmax_print(const struct bound *bound, struct buf *text)
{
    print_argument(bound, "dim", text);
}

/* --- What a call does --- */

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
    /* key and value stand second and third in the signature */
    if (!bound->tensors[1] != !bound->tensors[2])
        return status_new(STATUS_INVALID_ARGUMENT,
                          "attention(): needs key and value, or neither if query holds all three "
                          "side by side");
    if (kv_heads > heads || heads % kv_heads)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "attention(): num_kv_heads=%lld does not divide num_heads=%lld",
                          (long long)kv_heads, (long long)heads);
    layer->attrs.attention.heads = heads;
    layer->attrs.attention.kv_heads = kv_heads;
    layer->attrs.attention.causal = bound_boolean(bound, "is_causal");
    layer->attrs.attention.p = bound_real(bound, "dropout_p");
    layer->attrs.attention.scale = bound_none(bound, "scale") ? 0 : bound_real(bound, "scale");
    return NULL;
}

status_t make_rope(const struct bound *bound, struct layer *layer)
{
    bool scaled = !bound_none(bound, "scaling");
    bool llama3 = scaled && strcmp(bound_get(bound, "scaling")->text, "llama3") == 0;
    if (scaled == bound_none(bound, "factor"))
        return status_new(STATUS_INVALID_ARGUMENT, "rope(): %s",
                          scaled ? "scaling needs a factor" : "a factor needs a scaling");
    if (llama3 == bound_none(bound, "original_context"))
        return status_new(STATUS_INVALID_ARGUMENT, "rope(): %s",
                          llama3 ? "scaling=\"llama3\" needs original_context"
                                 : "original_context needs scaling=\"llama3\"");
    if (bound_integer(bound, "head_dim") % 2)
        return status_new(STATUS_INVALID_ARGUMENT, "rope(): head_dim=%lld is odd",
                          (long long)bound_integer(bound, "head_dim"));
    layer->attrs.rope.head_dim = bound_integer(bound, "head_dim");
    layer->attrs.rope.theta = bound_real(bound, "theta");
    layer->attrs.rope.scaling = llama3   ? ROPE_SCALING_LLAMA3
                                : scaled ? ROPE_SCALING_LINEAR
                                         : ROPE_SCALING_NONE;
    if (scaled) layer->attrs.rope.factor = bound_real(bound, "factor");
    if (!llama3) return NULL;
    double low = bound_real(bound, "low_freq_factor"), high = bound_real(bound, "high_freq_factor");
    if (!(high > low))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "rope(): high_freq_factor=%g must be above low_freq_factor=%g", high,
                          low);
    layer->attrs.rope.low_freq_factor = low;
    layer->attrs.rope.high_freq_factor = high;
    layer->attrs.rope.original_context = bound_integer(bound, "original_context");
    return NULL;
}

/* Of positions(); zeros() leaves both at 0. */
status_t make_positions(const struct bound *bound, struct layer *layer)
{
    (void)bound;
    layer->attrs.arange.step = 1;
    return NULL;
}

status_t make_padding_mask(const struct bound *bound, struct layer *layer)
{
    layer->attrs.padding_mask.id = (int32_t)bound_integer(bound, "id");
    return NULL;
}

status_t make_cross_entropy(const struct bound *bound, struct layer *layer)
{
    if (bound_integer(bound, "ignore_index") >= 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s(): ignore_index=%lld: only negative ones are supported; every "
                          "negative target is ignored",
                          bound->signature->name, (long long)bound_integer(bound, "ignore_index"));
    bool sum = strcmp(bound_get(bound, "reduction")->text, "sum") == 0;
    layer->attrs.loss.reduction = sum ? REDUCTION_SUM : REDUCTION_MEAN;
    return NULL;
}
