/* Frees a model and its program; see model.h and program.h. */
#include <stdlib.h>

#include "model/model.h"
#include "model/program.h"

void program_free(struct model_program *program)
{
    if (!program) return;
    for (int i = 0; i < program->call_count; i++) free(program->calls[i].name);
    free(program->calls);
    for (int i = 0; i < MODEL_MAX_TERMS; i++) free(program->loss_weights[i]);
    for (int i = 0; i < program->factor_count; i++) free((float *)program->factors[i].values);
    free(program->factors);
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
    for (int i = 0; i < model->input_count; i++) free(model->inputs[i].name);
    free(model->modules);
    free(model->parameters);
    program_free(model->program);
    free(model);
}
