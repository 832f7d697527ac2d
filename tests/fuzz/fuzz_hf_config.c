/*
 * config.json: what is accepted becomes a model file that parses and whose graph can be made, or is
 * refused for a limit; what is exported from it says the same model.
 */
#include <string.h>

#include "base/mem.h"
#include "../unit/family_files.h"
#include "fuzz.h"
#include "hf/hf.h"
#include "model/graph.h"
#include "model/model.h"

enum { MODULES_MAX = 200 }; /* larger ones are only parsed */

static void check_model(const struct hf_family *family, const char *text)
{
    struct model *model;
    status_t status = model_parse(text, strlen(text), "model.hf", &model);
    if (status != NULL) {
        /* the limits of model files, which the sizes may pass; never their syntax or names */
        FUZZ_CHECK(strstr(status_message(status), "unknown") == NULL, "%s", status_message(status));
        fuzz_expect_user_error(status);
        return;
    }
    if (model->module_count <= MODULES_MAX) {
        const struct graph_options options = {.batch_size = 1, .time = 2, .train = true};
        struct graph *graph;
        status = graph_build(model, &options, &graph);
        if (status == NULL) graph_free(graph);
        else fuzz_expect_user_error(status);
    }
    for (int i = 0; i < model->parameter_count; i++) {
        const char *name = model->parameters[i].name;
        const char *exported = hf_export_name(family, name);
        FUZZ_CHECK((exported == NULL) == (model->parameters[i].tied_to >= 0), "%s", name);
        if (exported == NULL) continue;
        enum hf_tensor kind;
        char *again = hf_parameter_name(family, exported, &kind);
        bool read = kind == HF_TENSOR_PARAMETER || kind == HF_TENSOR_COPY;
        FUZZ_CHECK(read && strcmp(again, name) == 0, "%s", name);
        free(again);
    }
    model_free(model);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *model = NULL, *again = NULL, *json = mem_dup(data, size);
    struct hf_family *family = NULL;
    status_t status = family_for(json, size, "config.json", &family);
    if (status == NULL) status = hf_config_to_model(family, json, size, "config.json", &model);
    if (status != NULL) {
        fuzz_expect_user_error(status);
        free(json);
        return 0;
    }
    check_model(family, model);
    struct buf out = {0};
    status = hf_config_export(family, json, size, "bfloat16", &out);
    FUZZ_CHECK(status == NULL, "%s", status_message(status));
    /* written with indents it may have become larger than what may be read */
    if (out.length <= HF_CONFIG_MAX) {
        status = hf_config_to_model(family, out.data, out.length, "config.json", &again);
        FUZZ_CHECK(status == NULL, "%s", status_message(status));
        FUZZ_CHECK(strcmp(model, again) == 0, "%s\n%s", model, again);
        free(again);
    }
    buf_deinit(&out);
    free(model);
    free(json);
    return 0;
}
