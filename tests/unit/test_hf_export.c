/*
 * config.json as it is exported, and the names of tensors: those of published files as the model's
 * parameters, and those under which parameters are exported.
 */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/buf.h"
#include "tests/testing.h"
#include "tiny_configs.h"

TEST(export)
{
    struct buf out = {0};
    const char *json = "{\"model_type\": \"gpt2\", \"layer_norm_epsilon\": 1e-05, \"x\": [0.1],"
                       " \"architectures\": [\"GPT2Model\"]}";
    ck_assert_ptr_null(hf_config_export(family_file("gpt2"), json, strlen(json), "bfloat16", &out));
    ck_assert_str_eq(buf_text(&out), "{\n  \"model_type\": \"gpt2\",\n"
                                     "  \"layer_norm_epsilon\": 1e-5,\n  \"x\": [\n    0.1\n  ],\n"
                                     "  \"architectures\": [\n    \"GPT2LMHeadModel\"\n  ],\n"
                                     "  \"torch_dtype\": \"bfloat16\"\n}\n");
    buf_clear(&out);
    json = "{\"model_type\": \"llama\", \"dtype\": \"float16\", \"torch_dtype\": \"float16\","
           " \"rms_norm_eps\": 1.0000000000000003e-05}";
    ck_assert_ptr_null(hf_config_export(family_file("llama"), json, strlen(json), "float32", &out));
    ck_assert_str_eq(buf_text(&out), "{\n  \"model_type\": \"llama\",\n  \"dtype\": \"float32\",\n"
                                     "  \"rms_norm_eps\": 1.0000000000000003e-5,\n"
                                     "  \"architectures\": [\n    \"LlamaForCausalLM\"\n  ]\n}\n");
    buf_deinit(&out);
}

/* Both versions of transformers find the theta and the scaling that count; a second export says the
 * same. */
TEST(exported_positions_have_both_spellings)
{
    struct buf out = {0}, again = {0};
    char *json = changed(llama_tiny, "{\"rope_parameters\": {\"rope_theta\": 7.0}}"), *model = NULL;
    ck_assert_ptr_null(to_model(json, strlen(json), &model));
    const struct hf_family *llama = family_file("llama");
    ck_assert_ptr_null(hf_config_export(llama, json, strlen(json), "float32", &out));
    ck_assert_ptr_null(hf_config_export(llama, out.data, out.length, "float32", &again));
    ck_assert_str_eq(buf_text(&out), buf_text(&again));
    json_t *root = json_loads(buf_text(&out), 0, NULL);
    json_t *newer = json_object_get(root, "rope_parameters");
    json_t *older = json_object_get(root, "rope_scaling");
    ck_assert_double_eq(json_number_value(json_object_get(root, "rope_theta")), 500000);
    ck_assert_double_eq(json_number_value(json_object_get(newer, "rope_theta")), 500000);
    ck_assert_double_eq(json_number_value(json_object_get(newer, "factor")), 8);
    ck_assert_double_eq(json_number_value(json_object_get(older, "factor")), 8);
    ck_assert_str_eq(json_string_value(json_object_get(older, "rope_type")), "llama3");
    ck_assert_ptr_null(json_object_get(older, "rope_theta"));
    json_decref(root);
    buf_deinit(&out);
    buf_deinit(&again);
    free(model);
    free(json);
}

/* What Python reads as a number and nothing here needs is kept, and is the same when exported. */
TEST(numbers_of_python_are_kept)
{
    static const char json[] =
        "{\"model_type\": \"gpt2\", \"a\": Infinity, \"b\": [-Infinity, NaN, 1e999], \"c\": "
        "123456789012345678901234567890, \"d\": \"NaN \\\"Infinity\", \"n_embd\": 24, \"n_head\": "
        "3}";
    char *model = NULL;
    struct buf out = {0};
    status_t status = to_model(json, strlen(json), &model);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_ptr_null(hf_config_export(family_file("gpt2"), json, strlen(json), "float32", &out));
    ck_assert_msg(strstr(buf_text(&out), "\"a\": Infinity,") != NULL, "%s", buf_text(&out));
    ck_assert_ptr_nonnull(strstr(buf_text(&out), "-Infinity,\n    NaN,\n    1e999\n"));
    ck_assert_ptr_nonnull(strstr(buf_text(&out), "\"c\": 123456789012345678901234567890,"));
    ck_assert_ptr_nonnull(strstr(buf_text(&out), "\"d\": \"NaN \\\"Infinity\""));
    buf_deinit(&out);
    free(model);
    static const char needed[] = "{\"model_type\": \"gpt2\", \"n_embd\": Infinity}";
    status = to_model(needed, strlen(needed), &model);
    ck_assert_ptr_nonnull(strstr(status_message(status), "n_embd: expected an integer"));
    ck_assert_ptr_nonnull(strstr(status_message(status), "found Infinity"));
    status_free(status);
}

static const struct {
    const char *family, *name, *parameter;
    enum hf_tensor kind;
} names[] = {
    {"gpt2", "wte.weight", "transformer.wte.weight", HF_TENSOR_PARAMETER},
    {"gpt2", "h.11.attn.c_attn.bias", "transformer.h.11.attn.c_attn.bias", HF_TENSOR_PARAMETER},
    {"gpt2", "transformer.h.0.ln_1.weight", "transformer.h.0.ln_1.weight", HF_TENSOR_PARAMETER},
    {"gpt2", "lm_head.weight", "lm_head.weight", HF_TENSOR_PARAMETER},
    {"gpt2", "something", "something", HF_TENSOR_PARAMETER},
    {"gpt2", "h.0.attn.bias", NULL, HF_TENSOR_BUFFER},
    {"gpt2", "transformer.h.0.attn.masked_bias", NULL, HF_TENSOR_BUFFER},
    {"gpt2", "score.weight", NULL, HF_TENSOR_OTHER_HEAD},
    {"llama", "embed_tokens.weight", "model.embed_tokens.weight", HF_TENSOR_PARAMETER},
    {"llama", "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight",
     HF_TENSOR_PARAMETER},
    {"llama", "model.layers.0.self_attn.rotary_emb.inv_freq", NULL, HF_TENSOR_BUFFER},
    {"bert", "embeddings.LayerNorm.gamma", "bert.embeddings.LayerNorm.weight", HF_TENSOR_PARAMETER},
    {"bert", "bert.encoder.layer.0.output.LayerNorm.beta",
     "bert.encoder.layer.0.output.LayerNorm.bias", HF_TENSOR_PARAMETER},
    {"bert", "cls.predictions.bias", "cls.predictions.decoder.bias", HF_TENSOR_COPY},
    {"bert", "cls.predictions.decoder.bias", "cls.predictions.decoder.bias", HF_TENSOR_PARAMETER},
    {"bert", "cls.predictions.decoder.weight", "cls.predictions.decoder.weight",
     HF_TENSOR_PARAMETER},
    {"bert", "bert.embeddings.position_ids", NULL, HF_TENSOR_BUFFER},
    {"bert", "bert.pooler.dense.weight", NULL, HF_TENSOR_OTHER_HEAD},
    {"bert", "cls.seq_relationship.bias", NULL, HF_TENSOR_OTHER_HEAD},
};

LOOP_TEST(name, 0, COUNT_OF(names))
{
    enum hf_tensor kind;
    char *parameter = hf_parameter_name(family_file(names[_i].family), names[_i].name, &kind);
    ck_assert_pstr_eq(parameter, names[_i].parameter);
    ck_assert_int_eq(kind, names[_i].kind);
    free(parameter);
}

TEST(export_names)
{
    static const char tied[] = "{\"tie_word_embeddings\": true}";
    const struct hf_family *gpt2 = family_file("gpt2"), *bert = family_file("bert");
    free(model_text(gpt2_tiny, tied));
    ck_assert_ptr_null(hf_export_name(gpt2, "lm_head.weight"));
    ck_assert_str_eq(hf_export_name(gpt2, "transformer.wte.weight"), "transformer.wte.weight");
    free(model_text(gpt2_tiny, "{\"tie_word_embeddings\": false}"));
    ck_assert_str_eq(hf_export_name(gpt2, "lm_head.weight"), "lm_head.weight");
    free(model_text(llama_tiny, tied));
    ck_assert_ptr_null(hf_export_name(family_file("llama"), "lm_head.weight"));
    free(model_text(bert_tiny, tied));
    ck_assert_ptr_null(hf_export_name(bert, "cls.predictions.decoder.weight"));
    ck_assert_str_eq(hf_export_name(bert, "cls.predictions.decoder.bias"), "cls.predictions.bias");
}
