/* Look-ups in a model; see model.h. Pure functions; any thread. */
#include "model/model.h"

#include <string.h>

#include "model/layers.h"

int model_find_module(const struct model *model, const char *path)
{
    for (int i = 0; i < model->module_count; i++)
        if (strcmp(model->modules[i].path, path) == 0) return i;
    return -1;
}

int model_find_parameter(const struct model *model, const char *name)
{
    for (int i = 0; i < model->parameter_count; i++)
        if (strcmp(model->parameters[i].name, name) == 0) return i;
    return -1;
}

static bool ends_in(const char *text, const char *end)
{
    size_t length = strlen(text), part = strlen(end);
    return length >= part && strcmp(text + length - part, end) == 0;
}

bool model_usually_decays(const struct model *model, int parameter)
{
    const struct parameter *it = &model->parameters[parameter];
    const struct layer_type *type = layer_find_module(model->modules[it->module].type);
    if (ends_in(it->name, ".bias") || ends_in(it->name, "_bias") || strcmp(it->name, "bias") == 0)
        return false;
    if (type == NULL) return true;
    return type->kind != OP_EMBEDDING && type->kind != OP_LAYER_NORM && type->kind != OP_RMS_NORM &&
           type->kind != OP_GROUP_NORM && type->kind != OP_BATCH_NORM;
}

int64_t model_parameter_elements(const struct model *model)
{
    int64_t sum = 0;
    for (int i = 0; i < model->parameter_count; i++)
        if (model->parameters[i].tied_to < 0)
            sum += tensor_element_count(&model->parameters[i].type);
    return sum;
}
