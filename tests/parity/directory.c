/* See directory.h. */
#include "directory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../unit/family_files.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/weights.h"

static status_t read_values(const struct weights_source *source, const struct model *model,
                            bool names, float **parameters)
{
    struct weights *weights = NULL;
    TRY(weights_open(source, model, &weights));
    status_t status = NULL;
    if (weights == NULL) return status_new(STATUS_NOT_FOUND, "%s has no weights", source->dir);
    if (weights_note(weights) != NULL) fprintf(stderr, "note: %s\n", weights_note(weights));
    for (int p = 0; p < model->parameter_count && status == NULL; p++) {
        const struct parameter *parameter = &model->parameters[p];
        if (parameter->tied_to >= 0) continue;
        size_t count = (size_t)tensor_element_count(&parameter->type);
        parameters[p] = mem_alloc_array(count, sizeof *parameters[p]);
        status = weights_read(weights, p, 0, count, parameters[p]);
        if (parameter->buffer != MODEL_BUFFER_NONE || !parameter->trainable) continue;
        if (names) fprintf(stderr, "%s\n", hf_export_name(source->family, parameter->name));
    }
    weights_free(weights);
    return status;
}

/* Tensors that are tied and differ stay two, as in daemon/worker/job_model.c; *text changes then.
 */
static status_t untie(const struct weights_source *source, const struct buf *json, const char *file,
                      struct hf_family *family, char **text)
{
    struct model *model = NULL;
    struct weights *weights = NULL;
    int parameter = -1;
    char *changed = NULL;
    status_t status = model_parse(*text, strlen(*text), "model.hf", &model);
    if (status == NULL) status = weights_open(source, model, &weights);
    if (status == NULL && weights != NULL) status = weights_find_untied(weights, model, &parameter);
    if (parameter >= 0)
        status = hf_config_untied(family, json->data, json->length, file,
                                  model->parameters[parameter].name, &changed);
    weights_free(weights);
    model_free(model);
    if (changed == NULL || status != NULL) return status;
    fprintf(stderr, "note: not tied\n");
    free(*text);
    *text = NULL;
    status = hf_config_to_model(family, changed, strlen(changed), file, text);
    free(changed);
    return status;
}

status_t directory_read(const char *path, bool names, char **text, struct model **model,
                        float ***parameters)
{
    struct buf json = {0};
    struct hf_family *family = NULL;
    struct weights_source source = {.dir = path, .root = path};
    char *file = file_path_join(path, "config.json");
    *text = NULL;
    status_t status = file_read(file, HF_CONFIG_MAX, &json);
    if (status == NULL) status = family_for(json.data, json.length, file, &family);
    if (status == NULL) status = hf_config_to_model(family, json.data, json.length, file, text);
    source.family = family;
    if (status == NULL) status = untie(&source, &json, file, family, text);
    if (status == NULL) status = model_parse(*text, strlen(*text), "model.hf", model);
    if (status == NULL) {
        *parameters = mem_alloc_array((size_t)(*model)->parameter_count + 1, sizeof **parameters);
        status = read_values(&source, *model, names, *parameters);
    }
    buf_deinit(&json);
    free(file);
    return status;
}
