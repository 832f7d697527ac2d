/* GPT2LMHeadModel as a model file. */
#include <math.h>

#include "hf/config.h"

struct gpt2 {
    int64_t vocabulary, context, width, layers, heads, inner;
    double embedding_dropout, attention_dropout, residual_dropout;
    double eps, range;
    bool scaled, tied;
    const char *activation;
};

/* The older name of a key, or the one that all of transformers' configurations have. */
static int64_t either(struct config *config, const char *key, const char *other, int64_t fallback)
{
    return config_size(config, config_has(config, key) ? key : other, fallback);
}

static void read_gpt2(struct config *config, struct gpt2 *gpt2)
{
    int64_t width = either(config, "n_embd", "hidden_size", 768);
    *gpt2 = (struct gpt2){
        .vocabulary = config_size(config, "vocab_size", 50257),
        .context = either(config, "n_positions", "max_position_embeddings", 1024),
        .width = width,
        .layers = either(config, "n_layer", "num_hidden_layers", 12),
        .heads = either(config, "n_head", "num_attention_heads", 12),
        .inner = config_size(config, "n_inner", 4 * width),
        .embedding_dropout = config_probability(config, "embd_pdrop", 0.1),
        .attention_dropout = config_probability(config, "attn_pdrop", 0.1),
        .residual_dropout = config_probability(config, "resid_pdrop", 0.1),
        .eps = config_number(config, "layer_norm_epsilon", 0, 1, 1e-5),
        .range = config_number(config, "initializer_range", 0, 1000, 0.02),
        .scaled = config_boolean(config, "scale_attn_weights", true),
        .tied = config_boolean(config, "tie_word_embeddings", true),
        .activation = config_activation(config, "activation_function", "gelu_new"),
    };
    config_refuse_true(config, "scale_attn_by_inverse_layer_idx");
    config_refuse_true(config, "reorder_and_upcast_attn");
    if (gpt2->width % gpt2->heads != 0)
        config_refuse(config, STATUS_INVALID_ARGUMENT, "n_head",
                      "expected a divisor of n_embd (%lld), found %lld", (long long)gpt2->width,
                      (long long)gpt2->heads);
}

static void write_attention(const struct gpt2 *gpt2, struct buf *out)
{
    char p[32];
    buf_printf(out,
               "  GPT2Attention:\n"
               "    modules:\n"
               "      c_attn: Conv1D(%lld, %lld)\n"
               "      c_proj: Conv1D(%lld, %lld)\n"
               "      resid_dropout: Dropout(%s)\n"
               "    forward:\n",
               (long long)(3 * gpt2->width), (long long)gpt2->width, (long long)gpt2->width,
               (long long)gpt2->width, config_format(gpt2->residual_dropout, p));
    buf_printf(out,
               "      - x = attention(c_attn(x), num_heads=%lld, is_causal=True, dropout_p=%s%s)\n"
               "      - output = resid_dropout(c_proj(x))\n\n",
               (long long)gpt2->heads, config_format(gpt2->attention_dropout, p),
               gpt2->scaled ? "" : ", scale=1.0");
}

static void write_mlp(const struct gpt2 *gpt2, struct buf *out)
{
    char p[32];
    buf_printf(out,
               "  GPT2MLP:\n"
               "    modules:\n"
               "      c_fc: Conv1D(%lld, %lld)\n"
               "      c_proj: Conv1D(%lld, %lld)\n"
               "      act: %s\n"
               "      dropout: Dropout(%s)\n"
               "    forward:\n"
               "      - output = dropout(c_proj(act(c_fc(x))))\n\n",
               (long long)gpt2->inner, (long long)gpt2->width, (long long)gpt2->width,
               (long long)gpt2->inner, gpt2->activation, config_format(gpt2->residual_dropout, p));
}

static void write_block(const struct gpt2 *gpt2, struct buf *out)
{
    char eps[32];
    config_format(gpt2->eps, eps);
    buf_printf(out,
               "  GPT2Block:\n"
               "    modules:\n"
               "      ln_1: LayerNorm(%lld, eps=%s)\n"
               "      attn: GPT2Attention()\n"
               "      ln_2: LayerNorm(%lld, eps=%s)\n"
               "      mlp: GPT2MLP()\n"
               "    forward:\n"
               "      - x += attn(ln_1(x))\n"
               "      - x += mlp(ln_2(x))\n"
               "      - output = x\n\n",
               (long long)gpt2->width, eps, (long long)gpt2->width, eps);
}

static void write_model(const struct gpt2 *gpt2, struct buf *out)
{
    char p[32], eps[32];
    buf_printf(out,
               "  GPT2Model:\n"
               "    modules:\n"
               "      wte: Embedding(%lld, %lld)\n"
               "      wpe: Embedding(%lld, %lld)\n"
               "      drop: Dropout(%s)\n"
               "      h: %lld * GPT2Block()\n"
               "      ln_f: LayerNorm(%lld, eps=%s)\n",
               (long long)gpt2->vocabulary, (long long)gpt2->width, (long long)gpt2->context,
               (long long)gpt2->width, config_format(gpt2->embedding_dropout, p),
               (long long)gpt2->layers, (long long)gpt2->width, config_format(gpt2->eps, eps));
    buf_add_text(out, "    forward:\n"
                      "      - y = drop(wte(x) + wpe(positions(x)))\n"
                      "      - for block in h: y = block(y)\n"
                      "      - output = ln_f(y)\n\n");
}

void gpt2_write(struct config *config, struct buf *out, bool *tied)
{
    struct gpt2 gpt2;
    read_gpt2(config, &gpt2);
    *tied = gpt2.tied;
    buf_printf(out,
               "name: GPT2LMHeadModel\n"
               "input: tokens\n"
               "vocabulary: %lld\n"
               "context: %lld\n\n"
               "blocks:\n",
               (long long)gpt2.vocabulary, (long long)gpt2.context);
    write_attention(&gpt2, out);
    write_mlp(&gpt2, out);
    write_block(&gpt2, out);
    write_model(&gpt2, out);
    buf_printf(out,
               "modules:\n"
               "  transformer: GPT2Model()\n"
               "  lm_head: Linear(%lld, %lld, bias=False)\n\n"
               "forward:\n"
               "  - output = lm_head(transformer(x))\n\n"
               "loss: cross_entropy(output, target)\n",
               (long long)gpt2.width, (long long)gpt2.vocabulary);
    if (gpt2.tied) buf_add_text(out, "\ntie: {lm_head.weight: transformer.wte.weight}\n");
    char range[32], residual[32];
    buf_printf(out,
               "\ninit:\n"
               "  - {match: \"*.bias\", zeros: true}\n"
               "  - {match: \"*.ln_*.weight\", ones: true}\n"
               "  - {match: \"*.c_proj.weight\", normal: %s}\n"
               "  - {match: \"*\", normal: %s}\n",
               config_format(gpt2.range / sqrt(2 * (double)gpt2.layers), residual),
               config_format(gpt2.range, range));
}
