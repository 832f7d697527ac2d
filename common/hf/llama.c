/* LlamaForCausalLM as a model file. */
#include <string.h>

#include "hf/config.h"

struct llama {
    int64_t vocabulary, context, width, inner, layers, heads, kv_heads, head_dim;
    int64_t padding; /* -1: none */
    double eps, range, attention_dropout;
    bool tied, attention_bias, mlp_bias;
    const char *activation;
    char rope[256]; /* the arguments of rope() */
};

static void read_llama3(struct config *rope, double factor, double theta, struct llama *llama)
{
    static const char *const needed[] = {"low_freq_factor", "high_freq_factor",
                                         "original_max_position_embeddings"};
    for (int i = 0; i < 3; i++)
        if (!config_has(rope, needed[i]))
            config_refuse(rope, STATUS_INVALID_ARGUMENT, needed[i],
                          "is missing; the rope type llama3 needs it");
    double low = config_number(rope, needed[0], 1e-6, 1e6, 1);
    double high = config_number(rope, needed[1], 1e-6, 1e6, 4);
    int64_t original = config_size(rope, needed[2], 8192);
    if (high <= low)
        config_refuse(rope, STATUS_INVALID_ARGUMENT, "high_freq_factor",
                      "expected more than low_freq_factor (%g), found %g", low, high);
    char texts[4][32];
    snprintf(llama->rope, sizeof llama->rope,
             "theta=%s, scaling='llama3', factor=%s, low_freq_factor=%s, high_freq_factor=%s, "
             "original_context=%lld",
             config_format(theta, texts[0]), config_format(factor, texts[1]),
             config_format(low, texts[2]), config_format(high, texts[3]), (long long)original);
}

/* Newer configurations have all of it in rope_parameters, older ones theta beside rope_scaling. */
static void read_rope(struct config *config, struct llama *llama)
{
    struct config rope = config_inside(config, "rope_parameters", "rope_parameters.");
    if (rope.root == NULL) rope = config_inside(config, "rope_scaling", "rope_scaling.");
    const char *key = config_has(&rope, "rope_type") ? "rope_type" : "type";
    const char *type = config_text(&rope, key, "default");
    double theta = config_number(config, "rope_theta", 1, 1e12, 10000);
    theta = config_number(&rope, "rope_theta", 1, 1e12, theta);
    char text[32], scale[32];
    snprintf(llama->rope, sizeof llama->rope, "theta=%s", config_format(theta, text));
    if (strcmp(type, "default") == 0) return;
    bool linear = strcmp(type, "linear") == 0;
    if (!linear && strcmp(type, "llama3") != 0) {
        config_refuse(&rope, STATUS_UNIMPLEMENTED, key,
                      "the rope type '%.60s' is not supported; default, linear and llama3 are",
                      type);
        return;
    }
    if (!config_has(&rope, "factor"))
        config_refuse(&rope, STATUS_INVALID_ARGUMENT, "factor",
                      "is missing; the rope type %s needs it", type);
    double factor = config_number(&rope, "factor", 1, 1e6, 1);
    if (linear)
        snprintf(llama->rope, sizeof llama->rope, "theta=%s, scaling='linear', factor=%s", text,
                 config_format(factor, scale));
    else read_llama3(&rope, factor, theta, llama);
}

static void read_heads(struct config *config, struct llama *llama)
{
    llama->heads = config_size(config, "num_attention_heads", 32);
    llama->kv_heads = config_size(config, "num_key_value_heads", llama->heads);
    if (llama->heads % llama->kv_heads != 0)
        config_refuse(config, STATUS_INVALID_ARGUMENT, "num_key_value_heads",
                      "expected a divisor of num_attention_heads (%lld), found %lld",
                      (long long)llama->heads, (long long)llama->kv_heads);
    if (!config_has(config, "head_dim") && llama->width % llama->heads != 0)
        config_refuse(config, STATUS_INVALID_ARGUMENT, "num_attention_heads",
                      "expected a divisor of hidden_size (%lld), found %lld",
                      (long long)llama->width, (long long)llama->heads);
    llama->head_dim = config_size(config, "head_dim", llama->width / llama->heads);
    if (llama->head_dim % 2 != 0)
        config_refuse(config, STATUS_INVALID_ARGUMENT, "head_dim",
                      "expected an even number, found %lld", (long long)llama->head_dim);
}

static void read_llama(struct config *config, struct llama *llama)
{
    *llama = (struct llama){
        .vocabulary = config_size(config, "vocab_size", 32000),
        .context = config_size(config, "max_position_embeddings", 2048),
        .width = config_size(config, "hidden_size", 4096),
        .inner = config_size(config, "intermediate_size", 11008),
        .layers = config_size(config, "num_hidden_layers", 32),
        .eps = config_number(config, "rms_norm_eps", 0, 1, 1e-6),
        .range = config_number(config, "initializer_range", 0, 1000, 0.02),
        .attention_dropout = config_probability(config, "attention_dropout", 0),
        .tied = config_boolean(config, "tie_word_embeddings", false),
        .attention_bias = config_boolean(config, "attention_bias", false),
        .mlp_bias = config_boolean(config, "mlp_bias", false),
        .activation = config_activation(config, "hidden_act", "silu"),
    };
    llama->padding =
        config_integer(config, "pad_token_id", -llama->vocabulary, llama->vocabulary - 1, -1);
    if (config_has(config, "pad_token_id") && llama->padding < 0)
        llama->padding += llama->vocabulary; /* as in Python */
    read_heads(config, llama);
    read_rope(config, llama);
    if (config_number(config, "partial_rotary_factor", 0, 1, 1) != 1)
        config_refuse(config, STATUS_UNIMPLEMENTED, "partial_rotary_factor",
                      "a value other than 1 is not supported");
    if (config_integer(config, "pretraining_tp", 0, INT32_MAX, 1) > 1)
        config_refuse(config, STATUS_UNIMPLEMENTED, "pretraining_tp",
                      "a value above 1 is not supported");
    if (config_has(config, "sliding_window"))
        config_refuse(config, STATUS_UNIMPLEMENTED, "sliding_window", "is not supported");
}

static void write_linear(struct buf *out, const char *name, int64_t from, int64_t to, bool bias)
{
    buf_printf(out, "      %s: Linear(%lld, %lld%s)\n", name, (long long)from, (long long)to,
               bias ? "" : ", bias=False");
}

static void write_attention(const struct llama *llama, struct buf *out)
{
    int64_t q = llama->heads * llama->head_dim, kv = llama->kv_heads * llama->head_dim;
    bool bias = llama->attention_bias;
    buf_add_text(out, "  LlamaAttention:\n    modules:\n");
    write_linear(out, "q_proj", llama->width, q, bias);
    write_linear(out, "k_proj", llama->width, kv, bias);
    write_linear(out, "v_proj", llama->width, kv, bias);
    write_linear(out, "o_proj", q, llama->width, bias);
    buf_printf(out,
               "    forward:\n"
               "      - q = rope(q_proj(x), head_dim=%lld, %s)\n"
               "      - k = rope(k_proj(x), head_dim=%lld, %s)\n",
               (long long)llama->head_dim, llama->rope, (long long)llama->head_dim, llama->rope);
    buf_printf(out, "      - y = attention(q, k, v_proj(x), num_heads=%lld, num_kv_heads=%lld, ",
               (long long)llama->heads, (long long)llama->kv_heads);
    char p[32];
    buf_add_text(out, "is_causal=True");
    if (llama->attention_dropout > 0)
        buf_printf(out, ", dropout_p=%s", config_format(llama->attention_dropout, p));
    buf_add_text(out, ")\n      - output = o_proj(y)\n\n");
}

static void write_mlp(const struct llama *llama, struct buf *out)
{
    buf_add_text(out, "  LlamaMLP:\n    modules:\n");
    write_linear(out, "gate_proj", llama->width, llama->inner, llama->mlp_bias);
    write_linear(out, "up_proj", llama->width, llama->inner, llama->mlp_bias);
    write_linear(out, "down_proj", llama->inner, llama->width, llama->mlp_bias);
    buf_printf(out,
               "      act_fn: %s\n"
               "    forward:\n"
               "      - output = down_proj(act_fn(gate_proj(x)) * up_proj(x))\n\n",
               llama->activation);
}

static void write_layer(const struct llama *llama, struct buf *out)
{
    char eps[32];
    config_format(llama->eps, eps);
    buf_printf(out,
               "  LlamaDecoderLayer:\n"
               "    modules:\n"
               "      self_attn: LlamaAttention()\n"
               "      mlp: LlamaMLP()\n"
               "      input_layernorm: RMSNorm(%lld, eps=%s)\n"
               "      post_attention_layernorm: RMSNorm(%lld, eps=%s)\n"
               "    forward:\n"
               "      - x += self_attn(input_layernorm(x))\n"
               "      - x += mlp(post_attention_layernorm(x))\n"
               "      - output = x\n\n",
               (long long)llama->width, eps, (long long)llama->width, eps);
}

static void write_model(const struct llama *llama, struct buf *out)
{
    char eps[32];
    buf_printf(out, "  LlamaModel:\n    modules:\n      embed_tokens: Embedding(%lld, %lld",
               (long long)llama->vocabulary, (long long)llama->width);
    if (llama->padding >= 0) buf_printf(out, ", padding_idx=%lld", (long long)llama->padding);
    buf_printf(out,
               ")\n"
               "      layers: %lld * LlamaDecoderLayer()\n"
               "      norm: RMSNorm(%lld, eps=%s)\n"
               "    forward:\n"
               "      - y = embed_tokens(x)\n"
               "      - for layer in layers: y = layer(y)\n"
               "      - output = norm(y)\n\n",
               (long long)llama->layers, (long long)llama->width, config_format(llama->eps, eps));
}

void llama_write(struct config *config, struct buf *out, bool *tied)
{
    struct llama llama;
    read_llama(config, &llama);
    *tied = llama.tied;
    buf_printf(out,
               "name: LlamaForCausalLM\n"
               "input: tokens\n"
               "vocabulary: %lld\n"
               "context: %lld\n\n"
               "blocks:\n",
               (long long)llama.vocabulary, (long long)llama.context);
    write_attention(&llama, out);
    write_mlp(&llama, out);
    write_layer(&llama, out);
    write_model(&llama, out);
    buf_printf(out,
               "modules:\n"
               "  model: LlamaModel()\n"
               "  lm_head: Linear(%lld, %lld, bias=False)\n\n"
               "forward:\n"
               "  - output = lm_head(model(x))\n\n"
               "loss: cross_entropy(output, target)\n",
               (long long)llama.width, (long long)llama.vocabulary);
    if (llama.tied) buf_add_text(out, "\ntie: {lm_head.weight: model.embed_tokens.weight}\n");
    char range[32];
    bool bias = llama.attention_bias || llama.mlp_bias;
    buf_printf(out,
               "\ninit:\n"
               "%s"
               "  - {match: \"*norm.weight\", ones: true}\n"
               "  - {match: \"*\", normal: %s}\n",
               bias ? "  - {match: \"*.bias\", zeros: true}\n" : "",
               config_format(llama.range, range));
}
