/* BertForMaskedLM as a model file. */
#include <string.h>

#include "hf/config.h"

struct bert {
    int64_t vocabulary, context, types, width, inner, layers, heads;
    int64_t padding;
    double eps, range, dropout, attention_dropout;
    bool tied;
    const char *activation;
};

static void read_bert(struct config *config, struct bert *bert)
{
    *bert = (struct bert){
        .vocabulary = config_size(config, "vocab_size", 30522),
        .context = config_size(config, "max_position_embeddings", 512),
        .types = config_size(config, "type_vocab_size", 2),
        .width = config_size(config, "hidden_size", 768),
        .inner = config_size(config, "intermediate_size", 3072),
        .layers = config_size(config, "num_hidden_layers", 12),
        .heads = config_size(config, "num_attention_heads", 12),
        .eps = config_number(config, "layer_norm_eps", 0, 1, 1e-12),
        .range = config_number(config, "initializer_range", 0, 1000, 0.02),
        .dropout = config_probability(config, "hidden_dropout_prob", 0.1),
        .attention_dropout = config_probability(config, "attention_probs_dropout_prob", 0.1),
        .tied = config_boolean(config, "tie_word_embeddings", true),
        .activation = config_activation(config, "hidden_act", "gelu"),
    };
    bert->padding = config_integer(config, "pad_token_id", 0, bert->vocabulary - 1, 0);
    if (bert->width % bert->heads != 0)
        config_refuse(config, STATUS_INVALID_ARGUMENT, "num_attention_heads",
                      "expected a divisor of hidden_size (%lld), found %lld",
                      (long long)bert->width, (long long)bert->heads);
    const char *positions = config_text(config, "position_embedding_type", "absolute");
    if (strcmp(positions, "absolute") != 0)
        config_refuse(config, STATUS_UNIMPLEMENTED, "position_embedding_type",
                      "'%.60s' is not supported; absolute is", positions);
}

static void write_embeddings(const struct bert *bert, const char *norm, const char *dropout,
                             struct buf *out)
{
    long long width = (long long)bert->width;
    buf_printf(out,
               "  BertEmbeddings:\n"
               "    modules:\n"
               "      word_embeddings: Embedding(%lld, %lld, padding_idx=%lld)\n"
               "      position_embeddings: Embedding(%lld, %lld)\n"
               "      token_type_embeddings: Embedding(%lld, %lld)\n"
               "      LayerNorm: %s\n"
               "      dropout: %s\n",
               (long long)bert->vocabulary, width, (long long)bert->padding,
               (long long)bert->context, width, (long long)bert->types, width, norm, dropout);
    buf_add_text(out, "    forward:\n"
                      "      - y = word_embeddings(x) + token_type_embeddings(zeros(x))\n"
                      "      - y = y + position_embeddings(positions(x))\n"
                      "      - output = dropout(LayerNorm(y))\n\n");
}

static void write_attention(const struct bert *bert, const char *norm, const char *dropout,
                            struct buf *out)
{
    long long width = (long long)bert->width;
    char p[32];
    buf_printf(out,
               "  BertSelfAttention:\n"
               "    inputs: [x, mask]\n"
               "    modules:\n"
               "      query: Linear(%lld, %lld)\n"
               "      key: Linear(%lld, %lld)\n"
               "      value: Linear(%lld, %lld)\n"
               "    forward:\n"
               "      - output = attention(query(x), key(x), value(x), num_heads=%lld, mask=mask, "
               "dropout_p=%s)\n\n",
               width, width, width, width, width, width, (long long)bert->heads,
               config_format(bert->attention_dropout, p));
    buf_printf(out,
               "  BertSelfOutput:\n"
               "    inputs: [x, residual]\n"
               "    modules:\n"
               "      dense: Linear(%lld, %lld)\n"
               "      LayerNorm: %s\n"
               "      dropout: %s\n"
               "    forward:\n"
               "      - output = LayerNorm(dropout(dense(x)) + residual)\n\n",
               width, width, norm, dropout);
    buf_add_text(out, "  BertAttention:\n"
                      "    inputs: [x, mask]\n"
                      "    modules:\n"
                      "      self: BertSelfAttention()\n"
                      "      output: BertSelfOutput()\n"
                      "    forward:\n"
                      "      - output = output(self(x, mask), x)\n\n");
}

static void write_layer(const struct bert *bert, const char *norm, const char *dropout,
                        struct buf *out)
{
    long long width = (long long)bert->width, inner = (long long)bert->inner;
    buf_printf(out,
               "  BertIntermediate:\n"
               "    modules:\n"
               "      dense: Linear(%lld, %lld)\n"
               "      intermediate_act_fn: %s\n"
               "    forward:\n"
               "      - output = intermediate_act_fn(dense(x))\n\n"
               "  BertOutput:\n"
               "    inputs: [x, residual]\n"
               "    modules:\n"
               "      dense: Linear(%lld, %lld)\n"
               "      LayerNorm: %s\n"
               "      dropout: %s\n"
               "    forward:\n"
               "      - output = LayerNorm(dropout(dense(x)) + residual)\n\n",
               width, inner, bert->activation, inner, width, norm, dropout);
    buf_printf(out,
               "  BertLayer:\n"
               "    inputs: [x, mask]\n"
               "    modules:\n"
               "      attention: BertAttention()\n"
               "      intermediate: BertIntermediate()\n"
               "      output: BertOutput()\n"
               "    forward:\n"
               "      - y = attention(x, mask)\n"
               "      - output = output(intermediate(y), y)\n\n"
               "  BertEncoder:\n"
               "    inputs: [x, mask]\n"
               "    modules:\n"
               "      layer: %lld * BertLayer()\n"
               "    forward:\n"
               "      - for block in layer: x = block(x, mask)\n"
               "      - output = x\n\n",
               (long long)bert->layers);
}

static void write_model(const struct bert *bert, const char *norm, struct buf *out)
{
    long long width = (long long)bert->width;
    buf_printf(out,
               "  BertModel:\n"
               "    modules:\n"
               "      embeddings: BertEmbeddings()\n"
               "      encoder: BertEncoder()\n"
               "    forward:\n"
               "      - output = encoder(embeddings(x), padding_mask(x, %lld))\n\n",
               (long long)bert->padding);
    buf_printf(out,
               "  BertPredictionHeadTransform:\n"
               "    modules:\n"
               "      dense: Linear(%lld, %lld)\n"
               "      transform_act_fn: %s\n"
               "      LayerNorm: %s\n"
               "    forward:\n"
               "      - output = LayerNorm(transform_act_fn(dense(x)))\n\n",
               width, width, bert->activation, norm);
    buf_printf(out,
               "  BertLMPredictionHead:\n"
               "    modules:\n"
               "      transform: BertPredictionHeadTransform()\n"
               "      decoder: Linear(%lld, %lld)\n"
               "    forward:\n"
               "      - output = decoder(transform(x))\n\n"
               "  BertOnlyMLMHead:\n"
               "    modules:\n"
               "      predictions: BertLMPredictionHead()\n"
               "    forward:\n"
               "      - output = predictions(x)\n\n",
               width, (long long)bert->vocabulary);
}

void bert_write(struct config *config, struct buf *out, bool *tied)
{
    struct bert bert;
    read_bert(config, &bert);
    *tied = bert.tied;
    char norm[80], dropout[48], number[32];
    snprintf(norm, sizeof norm, "LayerNorm(%lld, eps=%s)", (long long)bert.width,
             config_format(bert.eps, number));
    snprintf(dropout, sizeof dropout, "Dropout(%s)", config_format(bert.dropout, number));
    buf_printf(out,
               "name: BertForMaskedLM\n"
               "input: tokens\n"
               "vocabulary: %lld\n"
               "context: %lld\n\n"
               "blocks:\n",
               (long long)bert.vocabulary, (long long)bert.context);
    write_embeddings(&bert, norm, dropout, out);
    write_attention(&bert, norm, dropout, out);
    write_layer(&bert, norm, dropout, out);
    write_model(&bert, norm, out);
    buf_add_text(out, "modules:\n"
                      "  bert: BertModel()\n"
                      "  cls: BertOnlyMLMHead()\n\n"
                      "forward:\n"
                      "  - output = cls(bert(x))\n\n"
                      "loss: cross_entropy(output, target)\n");
    if (bert.tied)
        buf_add_text(out, "\ntie: {cls.predictions.decoder.weight: "
                          "bert.embeddings.word_embeddings.weight}\n");
    buf_printf(out,
               "\ninit:\n"
               "  - {match: \"*.bias\", zeros: true}\n"
               "  - {match: \"*.LayerNorm.weight\", ones: true}\n"
               "  - {match: \"*\", normal: %s}\n",
               config_format(bert.range, number));
}
