/*
 * Family files: what is accepted makes model files of configurations, or refuses them; names of
 * tensors go through it. Any file may be like another one.
 */
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "fuzz.h"
#include "hf/hf.h"
#include "hf/like.h"
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

static void check_like(const uint8_t *data, size_t size)
{
    static const char other[] = "name: o\nmodel_type: gpt2\narchitecture: H\nconfig:\n"
                                "  a: {type: size}\n  b: {type: size}\nmodel: |\n  name: H\n"
                                "  blocks:\n    B(a):\n      forward:\n        - output = x\n";
    AUTO_FREE char *text = mem_strndup((const char *)data, size);
    AUTO(family_text_deinit) struct family_text base = {0}, merged = {0};
    struct yamldoc *document;
    struct hf_family *family;
    status_t status = yamldoc_parse(text, size, "family.yaml", &document);
    if (status != NULL) {
        fuzz_expect_user_error(status);
        return;
    }
    family_text_read(&base, other, "other.yaml");
    family_text_read(&merged, text, "family.yaml");
    status = family_text_inherit(&merged, document->root, &base);
    yamldoc_free(document);
    char *whole = status == NULL ? family_text_write(&merged) : NULL;
    if (status == NULL) status = hf_family_parse(whole, strlen(whole), "merged.yaml", &family);
    if (status == NULL) hf_family_free(family);
    else fuzz_expect_user_error(status);
    free(whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"lm_head.weight", "h.0.attn.bias", "LayerNorm.gamma", ""};
    struct hf_family *family;
    if (size > 0 && memchr(data, 0, size) == NULL) check_like(data, size);
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
