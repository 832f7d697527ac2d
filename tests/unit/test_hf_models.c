/*
 * config.json as a model file, for two kinds of families. Those with ALiBi: what makes it, and what
 * is refused. Parts of larger models, as the language model of a checkpoint that also sees images:
 * keys inside an object, names in files of both layouts, what is passed over, and what a pull
 * writes.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "family_files.h"
#include "graph_dump.h"
#include "hf/hf.h"
#include "model/model.h"
#include "tests/testing.h"

#define SIZES                                                                                      \
    "\"vocab_size\": 97, \"hidden_size\": 32, \"intermediate_size\": 40, \"num_hidden_layers\": 2, " \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 64"

static const char gemma3[] =
    "{\"model_type\": \"gemma3\", \"architectures\": [\"Gemma3ForConditionalGeneration\"], "
    "\"mm_tokens_per_image\": 4, \"vision_config\": {\"hidden_size\": 8}, \"text_config\": {"
    "\"model_type\": \"gemma3_text\", \"head_dim\": 8, \"rope_scaling\": {\"factor\": 8.0, "
    "\"rope_type\": \"linear\"}, " SIZES "}}";
static const char mistral3[] =
    "{\"model_type\": \"mistral3\", \"image_token_index\": 10, \"vision_config\": {}, "
    "\"tie_word_embeddings\": false, \"text_config\": {\"model_type\": \"mistral\", "
    "\"sliding_window\": null, " SIZES "}}";
static const char qwen2_5_vl[] = "{\"model_type\": \"qwen2_5_vl\", \"vision_config\": {}, "
                                 "\"rope_scaling\": {\"type\": \"mrope\", \"mrope_section\": [2, 1, "
                                 "1]}, \"rope_theta\": 7.5, " SIZES "}";
static const char qwen3_vl[] =
    "{\"model_type\": \"qwen3_vl\", \"tie_word_embeddings\": true, \"vision_config\": {}, "
    "\"text_config\": {\"model_type\": \"qwen3_vl_text\", \"head_dim\": 8, \"rope_theta\": 7.5, "
    "\"rope_scaling\": {\"rope_type\": \"default\", \"mrope_interleaved\": true, "
    "\"mrope_section\": [2, 1, 1]}, " SIZES "}}";

#define BLOOM                                                                                      \
    "{\"model_type\": \"bloom\", \"hidden_size\": 24, \"n_head\": 3, \"seq_length\": 64, "              \
    "\"vocab_size\": 97}"
#define MPT(attention)                                                                             \
    "{\"model_type\": \"mpt\", \"d_model\": 24, \"n_heads\": 3, \"n_layers\": 2, \"max_seq_len\": 64, "  \
    "\"vocab_size\": 97, \"attn_config\": {" attention "}}"
#define FALCON(more) "{\"model_type\": \"falcon\", " SIZES ", " more "}"

static void assert_okay(status_t status)
{
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

static status_t to_model(const char *json, struct hf_family **family, char **text)
{
    TRY(family_for(json, strlen(json), "config.json", family));
    return hf_config_to_model(*family, json, strlen(json), "config.json", text);
}

static const struct {
    const char *config, *there, *not_there; /* in its arithmetic and its parameters */
} options[] = {
    {BLOOM, "heads=3 causal alibi=8 (", "=8 rounded"},
    {MPT("\"softmax_scale\": 0.5, \"attn_pdrop\": 0.25"), "heads=3 causal alibi=8 scale=0.5 p=0.25",
     "bias"},
    {FALCON("\"alibi\": false"), "heads=4 kv_heads=1 causal (", "alibi"},
    {FALCON("\"alibi\": true, \"multi_query\": false, \"num_kv_heads\": 4, \"parallel_attn\": false"),
     "heads=4 causal alibi=8 rounded (", "theta"},
    {FALCON("\"new_decoder_architecture\": true, \"num_kv_heads\": 2"), "ln_mlp",
     "input_layernorm"},
};

LOOP_TEST(option, 0, COUNT_OF(options))
{
    struct hf_family *family;
    struct model *model = NULL;
    struct graph *graph = NULL;
    char *text = NULL;
    assert_okay(to_model(options[_i].config, &family, &text));
    assert_okay(model_parse(text, strlen(text), "model.hf", &model));
    free(text);
    const struct graph_options how = {.batch_size = 2, .time = 10, .train = true, .dropout = true};
    assert_okay(graph_build(model, &how, &graph));
    text = graph_dump(graph);
    ck_assert_msg(strstr(text, options[_i].there) != NULL, "%.4000s", text);
    ck_assert_msg(strstr(text, options[_i].not_there) == NULL, "%.300s", strstr(text, options[_i].not_there));
    graph_free(graph);
    model_free(model);
    free(text);
}

/* Its parameter of this name is tied to another one, or is there, and nothing is noted. */
static void expect_parameter(const char *json, const char *name, bool tied)
{
    struct hf_family *family;
    struct model *model = NULL;
    char *text = NULL;
    assert_okay(to_model(json, &family, &text));
    ck_assert_ptr_null(hf_family_item(family, HF_FAMILY_NOTES, 0));
    assert_okay(model_parse(text, strlen(text), "model.hf", &model));
    int i = 0;
    while (i < model->parameter_count && strcmp(model->parameters[i].name, name) != 0) i++;
    ck_assert_msg(i < model->parameter_count, "no %s", name);
    ck_assert_int_eq(model->parameters[i].tied_to >= 0, tied);
    ck_assert_int_eq(model->class_count, 97);
    ck_assert_int_eq(model->context, 64);
    model_free(model);
    free(text);
}

TEST(keys_are_those_of_the_text)
{
    expect_parameter(gemma3, "language_model.lm_head.weight", true);
    expect_parameter(gemma3, "language_model.model.layers.1.self_attn.q_norm.weight", false);
    expect_parameter(mistral3, "language_model.lm_head.weight", false);
    expect_parameter(qwen2_5_vl, "model.layers.1.self_attn.q_proj.bias", false);
    expect_parameter(qwen3_vl, "lm_head.weight", true);
    expect_parameter(qwen3_vl, "model.language_model.layers.0.self_attn.k_norm.weight", false);
}

static const struct {
    const char *config, *from, *to, *message;
} mistakes[] = {
    {gemma3, "gemma3_text", "gemma3n_text",
     "config.json: text_config.model_type: 'gemma3n_text' is not supported; gemma3_text is"},
    {gemma3, "\"hidden_size\": 32", "\"hidden_size\": \"a\"",
     "config.json: text_config.hidden_size: expected an integer"},
    {gemma3, "linear", "yarn", "config.json: text_config.rope_scaling.rope_type: 'yarn'"},
    {gemma3, "\"text_config\"", "\"texts\"", "config.json: model_type: 'gemma3' is not supported"},
    {mistral3, "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": 1",
     "config.json: tie_word_embeddings: expected true or false, found 1"},
    {mistral3, "\"image_token_index\": 10", "\"quantization_config\": {\"bits\": 4}",
     "config.json: quantization_config: quantized weights"},
    {MPT("\"x\": 0"), "\"x\": 0", "\"clip_qkv\": -6.0", "config.json: attn_config.clip_qkv: "},
    {FALCON("\"x\": 0"), "\"x\": 0", "\"multi_query\": false, \"num_kv_heads\": 2",
     "config.json: num_kv_heads: expected num_attention_heads (4), found 2"},
    {FALCON("\"x\": 0"), "\"x\": 0", "\"num_ln_in_parallel_attn\": 2",
     "num_ln_in_parallel_attn: expected 2 with new_decoder_architecture only, found 2"},
    {qwen2_5_vl, "\"mrope\"", "\"yarn\"", "rope_scaling.type: 'yarn' is not supported"},
};

LOOP_TEST(mistake, 0, COUNT_OF(mistakes))
{
    const char *at = strstr(mistakes[_i].config, mistakes[_i].from);
    AUTO_FREE char *json = mem_printf("%.*s%s%s", (int)(at - mistakes[_i].config),
                                      mistakes[_i].config, mistakes[_i].to,
                                      at + strlen(mistakes[_i].from));
    struct hf_family *family;
    char *text = NULL;
    status_t status = to_model(json, &family, &text);
    ck_assert_msg(status != NULL && strstr(status_message(status), mistakes[_i].message) != NULL,
                  "%s", status != NULL ? status_message(status) : text);
    status_free(status);
    free(text);
}

static const struct {
    const char *family, *name, *parameter;
    enum hf_tensor kind;
} names[] = {
    {"gemma3", "language_model.model.norm.weight", "language_model.model.norm.weight",
     HF_TENSOR_PARAMETER},
    {"gemma3", "model.language_model.norm.weight", "language_model.model.norm.weight",
     HF_TENSOR_PARAMETER},
    {"gemma3", "lm_head.weight", "language_model.lm_head.weight", HF_TENSOR_PARAMETER},
    {"gemma3", "vision_tower.vision_model.post_layernorm.bias", NULL, HF_TENSOR_OTHER_HEAD},
    {"gemma3", "model.multi_modal_projector.mm_input_projection_weight", NULL,
     HF_TENSOR_OTHER_HEAD},
    {"qwen2_5_vl", "model.language_model.norm.weight", "model.norm.weight", HF_TENSOR_PARAMETER},
    {"qwen2_5_vl", "visual.merger.ln_q.weight", NULL, HF_TENSOR_OTHER_HEAD},
    {"qwen3_vl", "model.language_model.norm.weight", "model.language_model.norm.weight",
     HF_TENSOR_PARAMETER},
    {"qwen3_vl", "model.visual.merger.norm.weight", NULL, HF_TENSOR_OTHER_HEAD},
};

LOOP_TEST(name, 0, COUNT_OF(names))
{
    enum hf_tensor kind;
    char *parameter = hf_parameter_name(family_file(names[_i].family), names[_i].name, &kind);
    ck_assert_pstr_eq(parameter, names[_i].parameter);
    ck_assert_int_eq(kind, names[_i].kind);
    free(parameter);
}

/* The whole configuration goes back, with both spellings of the text's positions. */
TEST(export)
{
    struct hf_family *family;
    struct buf out = {0};
    char *text = NULL;
    assert_okay(to_model(gemma3, &family, &text));
    ck_assert_str_eq(hf_family_inside(family), "text_config");
    ck_assert_ptr_null(hf_family_inside(family_file("gemma3_text")));
    assert_okay(hf_config_export(family, gemma3, strlen(gemma3), "float32", &out));
    json_t *root = json_loads(buf_text(&out), 0, NULL), *inside = json_object_get(root, "text_config");
    ck_assert_int_eq(json_integer_value(json_object_get(
                         json_object_get(root, "vision_config"), "hidden_size")),
                     8);
    ck_assert_str_eq(json_string_value(json_object_get(root, "model_type")), "gemma3");
    ck_assert_str_eq(json_string_value(json_object_get(inside, "model_type")), "gemma3_text");
    ck_assert_str_eq(
        json_string_value(json_array_get(json_object_get(root, "architectures"), 0)),
        "Gemma3ForConditionalGeneration");
    ck_assert_ptr_null(json_object_get(root, "rope_scaling"));
    ck_assert_ptr_nonnull(json_object_get(inside, "rope_scaling"));
    json_decref(root);
    buf_deinit(&out);
    free(text);
}
