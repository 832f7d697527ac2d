/*
 * Family files: what is accepted makes model files of configurations, or refuses them; names of
 * tensors go through it.
 */
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "fuzz.h"
#include "hf/hf.h"
#include "model/model.h"

static const char *const configurations[] = {
    "{\"model_type\": \"gpt2\"}",
    "{\"model_type\": \"gpt2\", \"architectures\": [\"H\"], \"n_embd\": 6, \"n_head\": 3, "
    "\"n_layer\": 2, \"vocab_size\": 9,"
    " \"n_positions\": 8, \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2},"
    " \"kinds\": [\"a\", \"b\"], \"flag\": true}",
};

static void check(struct hf_family *family, const char *json)
{
    char *text = NULL;
    struct model *model;
    status_t status = hf_config_to_model(family, json, strlen(json), "config.json", &text);
    if (status != NULL) {
        fuzz_expect_user_error(status);
        return;
    }
    status = model_parse(text, strlen(text), "model.hf", &model);
    if (status == NULL) model_free(model);
    else fuzz_expect_user_error(status);
    hf_export_name(family, "lm_head.weight");
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"lm_head.weight", "h.0.attn.bias", "LayerNorm.gamma", ""};
    struct hf_family *family;
    char *text = mem_dup(data, size);
    status_t status = hf_family_parse(text, size, "family.yaml", &family);
    free(text);
    if (status != NULL) {
        fuzz_expect_user_error(status);
        return 0;
    }
    for (size_t i = 0; i < COUNT_OF(configurations); i++) check(family, configurations[i]);
    hf_parameter_is_new(family, "classifier.weight");
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        enum hf_tensor kind;
        free(hf_parameter_name(family, names[i], &kind));
    }
    hf_family_free(family);
    return 0;
}
