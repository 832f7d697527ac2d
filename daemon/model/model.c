/* Look-ups in a model; see model.h. Pure functions; any thread. */
#include "model/model.h"

#include <string.h>

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

int64_t model_parameter_elements(const struct model *model)
{
    int64_t sum = 0;
    for (int i = 0; i < model->parameter_count; i++)
        if (model->parameters[i].tied_to < 0 && !model->parameters[i].reference)
            sum += tensor_element_count(&model->parameters[i].type);
    return sum;
}
