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

static void check(const struct hf_family *family, const char *json)
{
    struct hf_model made;
    struct model *model;
    status_t status = hf_config_to_model(family, json, strlen(json), "config.json", &made);
    if (status != NULL) {
        fuzz_expect_user_error(status);
        return;
    }
    status = model_parse(made.text, strlen(made.text), "model.hf", &model);
    if (status == NULL) model_free(model);
    else fuzz_expect_user_error(status);
    hf_export_name(family, &made, "lm_head.weight");
    hf_model_deinit(&made);
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
    const char *last = configurations[COUNT_OF(configurations) - 1];
    status = hf_family_choose(family, last, strlen(last), "config.json");
    if (status == NULL) check(family, last);
    else fuzz_expect_user_error(status);
    hf_parameter_is_new(family, "classifier.weight");
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        enum hf_tensor kind;
        free(hf_parameter_name(family, names[i], &kind));
    }
    hf_family_free(family);
    return 0;
}
