/* A model after it was read: look-ups and the end of its life; see model.h. */
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

#include "model/program.h"

void program_free(struct model_program *program)
{
    if (!program) return;
    for (int i = 0; i < program->call_count; i++) free(program->calls[i].name);
    free(program->calls);
    free(program->file_name);
    free(program);
}

void model_free(struct model *model)
{
    if (!model) return;
    for (int i = 0; i < model->module_count; i++) {
        struct module *module = &model->modules[i];
        free(module->path);
        free(module->name);
        free(module->type);
        free(module->print);
        free(module->children);
        free(module->parameters);
    }
    for (int i = 0; i < model->parameter_count; i++) free(model->parameters[i].name);
    free(model->modules);
    free(model->parameters);
    program_free(model->program);
    free(model);
}

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
        if (model->parameters[i].tied_to < 0)
            sum += tensor_element_count(&model->parameters[i].type);
    return sum;
}
