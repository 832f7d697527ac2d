/* Configurations of small models, for tests of config.json. Everything is static. */
#ifndef FSDPD_TESTS_TINY_CONFIGS_H
#define FSDPD_TESTS_TINY_CONFIGS_H

#include <check.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "family_files.h"
#include "hf/hf.h"

static const char gpt2_tiny[] =
    "{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\", \"n_embd\": 24,"
    " \"n_layer\": 2, \"n_head\": 3, \"n_positions\": 32, \"vocab_size\": 97,"
    " \"bos_token_id\": 96, \"task_specific_params\": {\"text-generation\": {\"do_sample\": "
    "true}}}";

static const char llama_tiny[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 32,"
    " \"intermediate_size\": 88, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
    " \"num_key_value_heads\": 2, \"max_position_embeddings\": 64, \"vocab_size\": 97,"
    " \"rms_norm_eps\": 1e-05, \"rope_theta\": 500000.0, \"torch_dtype\": \"bfloat16\","
    " \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0,"
    " \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 16}}";

static const char vit_tiny[] =
    "{\"model_type\": \"vit\", \"hidden_size\": 24, \"num_hidden_layers\": 2, "
    "\"num_attention_heads\": 3, \"intermediate_size\": 39, \"image_size\": 14, \"patch_size\": 4, "
    "\"num_channels\": 1, \"id2label\": {\"0\": \"a\", \"1\": \"b\", \"2\": \"c\"}}";

static const char bert_tiny[] =
    "{\"architectures\": [\"BertForMaskedLM\"], \"model_type\": \"bert\", \"hidden_size\": 24,"
    " \"intermediate_size\": 96, \"num_hidden_layers\": 2, \"num_attention_heads\": 3,"
    " \"max_position_embeddings\": 32, \"vocab_size\": 97, \"type_vocab_size\": 2,"
    " \"pad_token_id\": 0}";

/* The configuration with `changes`, an object of keys; null removes a key. */
static char *changed(const char *config, const char *changes)
{
    json_t *root = json_loads(config, 0, NULL), *patch = json_loads(changes, 0, NULL);
    ck_assert_msg(root != NULL && patch != NULL, "%s", changes);
    json_object_update(root, patch);
    char *text = json_dumps(root, 0);
    json_decref(root);
    json_decref(patch);
    return text;
}

static status_t to_model(const char *json, size_t length, char **model)
{
    struct hf_family *family = NULL;
    TRY(family_for(json, length, "config.json", &family));
    return hf_config_to_model(family, json, length, "config.json", model);
}

static char *model_text(const char *config, const char *changes)
{
    char *json = changed(config, changes);
    char *model = NULL;
    status_t status = to_model(json, strlen(json), &model);
    ck_assert_msg(status == NULL, "%s: %s", changes, status_message(status));
    free(json);
    return model;
}

#endif
