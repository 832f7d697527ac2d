/* Adds a teacher to a model; see teach.h. Pure; any thread. */
#include "model/teach.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/program.h"
#include "model/reader.h"

static const struct program_call *loss_of(const struct model *model)
{
    return &model->program->calls[model->program->call_count - 1];
}

static status_t check(const struct model *model, const struct model *teacher)
{
    const struct model *both[] = {model, teacher};
    for (int i = 0; i < 2; i++) {
        enum op_kind loss = loss_of(both[i])->layer.kind;
        if ((loss == OP_CROSS_ENTROPY || loss == OP_NLL_LOSS) && both[i]->program->terms == 1 &&
            loss_of(both[i])->layer.attrs.loss.weights.values == NULL)
            continue;
        return status_new(STATUS_INVALID_ARGUMENT,
                          "model.teacher: %s must be a cross_entropy of classes or tokens, without "
                          "weights",
                          i == 0 ? "the loss of the model" : "the teacher's loss");
    }
    if (teacher->target != model->target || teacher->class_count != model->class_count)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "model.teacher: it tells %lld classes or tokens apart, the model %lld",
                          (long long)teacher->class_count, (long long)model->class_count);
    bool same = model->tokens ? teacher->tokens && teacher->vocabulary >= model->vocabulary &&
                                    teacher->context >= model->context
                              : tensor_same_shape(&teacher->input, &model->input);
    if (!same)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "model.teacher: its input is not that of the model");
    for (int i = 0; i < model->modules[0].child_count; i++)
        if (strcmp(model->modules[model->modules[0].children[i]].name, "teacher") == 0)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "model.teacher: the model has a module 'teacher' of its own");
    for (int i = 0; i < teacher->program->call_count; i++)
        if (teacher->program->calls[i].layer.kind == OP_BATCH_NORM)
            return status_new(STATUS_UNIMPLEMENTED,
                              "model.teacher: it has a batch norm, whose statistics would be those "
                              "of training");
    if (model->program->call_count + teacher->program->call_count + 5 > MODEL_MAX_CALLS ||
        model->module_count + teacher->module_count > MODEL_MAX_MODULES)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "model.teacher makes the model larger than %d calls or %d modules",
                          MODEL_MAX_CALLS, MODEL_MAX_MODULES);
    return NULL;
}

static char *named(const char *name)
{
    return *name != '\0' ? mem_printf("teacher.%s", name) : mem_strdup("teacher");
}

static int *moved(const int *numbers, int count, int by)
{
    int *made = mem_alloc_array((size_t)count + 1, sizeof *made);
    for (int i = 0; i < count; i++) made[i] = numbers[i] + by;
    return made;
}

static void add_modules(struct model *model, const struct model *teacher)
{
    int modules = model->module_count, parameters = model->parameter_count;
    struct module *root = model->modules =
        mem_resize_array(model->modules, (size_t)(modules + teacher->module_count), sizeof *root);
    root->children =
        mem_resize_array(root->children, (size_t)root->child_count + 1, sizeof *root->children);
    root->children[root->child_count++] = modules;
    for (int m = 0; m < teacher->module_count; m++) {
        const struct module *from = &teacher->modules[m];
        struct module *made = &model->modules[model->module_count++];
        *made = *from;
        made->path = named(from->path);
        made->name = mem_strdup(m > 0 ? from->name : "teacher");
        made->type = mem_strdup(from->type);
        made->print = from->print != NULL ? mem_strdup(from->print) : NULL;
        made->parent = m > 0 ? from->parent + modules : 0;
        made->children = moved(from->children, from->child_count, modules);
        made->parameters = moved(from->parameters, from->parameter_count, parameters);
    }
    model->parameters =
        mem_resize_array(model->parameters, (size_t)(parameters + teacher->parameter_count),
                         sizeof *model->parameters);
    for (int p = 0; p < teacher->parameter_count; p++) {
        struct parameter *made = &model->parameters[model->parameter_count++];
        *made = teacher->parameters[p];
        made->name = named(made->name);
        made->module += modules;
        made->trainable = false;
        made->reference = true;
        made->of = -1;
        if (made->tied_to >= 0) made->tied_to += parameters;
    }
}

/* Appends a call that only the teacher's term needs; returns its value. */
static int add_call(struct model_program *program, struct program_call call)
{
    call.other = true;
    program->calls[program->call_count++] = call;
    return program->call_count;
}

static int count_streams(const struct model_program *program)
{
    int count = 0;
    for (int i = 0; i < program->call_count; i++) {
        enum op_kind kind = program->calls[i].layer.kind;
        count += kind == OP_DROPOUT || kind == OP_ATTENTION;
    }
    return count;
}

/* The values of the teacher's calls begin behind those of the model's, and so do its draws. Returns
 * that of its output. */
static int add_calls(struct model *model, const struct model *teacher, int modules, int parameters)
{
    struct model_program *program = model->program;
    const struct model_program *from = teacher->program;
    int values = program->call_count, streams = count_streams(program);
    for (int i = 0; i + 1 < from->call_count; i++) {
        struct program_call call = from->calls[i];
        call.name = named(call.name);
        call.module += modules;
        if (call.weight >= 0) call.weight += parameters;
        if (call.bias >= 0) call.bias += parameters;
        for (int k = 0; k < LAYER_MAX_TENSORS; k++)
            if (call.inputs[k] > 0) call.inputs[k] += values;
        if (call.layer.kind == OP_DROPOUT) {
            call.layer.attrs.dropout.p = 0;
            call.layer.attrs.dropout.stream += streams;
        }
        if (call.layer.kind == OP_ATTENTION) call.layer.attrs.attention.p = 0;
        add_call(program, call);
    }
    int scores = loss_of(teacher)->inputs[0];
    return scores > 0 ? scores + values : 0;
}

/* The logarithms of probabilities at the temperature. */
static int add_log_softmax(struct model_program *program, const struct program_call *loss,
                           int scores, double temperature, const char *whose)
{
    struct program_call call = *loss;
    call.inputs[0] = scores;
    call.inputs[1] = -1;
    call.layer = (struct layer){.kind = OP_SCALE, .attrs.scale = {1 / temperature, 0}};
    call.name = mem_printf("%s.%s.scale", loss->name, whose);
    call.inputs[0] = add_call(program, call);
    call.layer = (struct layer){.kind = OP_LOG_SOFTMAX, .dim = -1};
    call.name = mem_printf("%s.%s", loss->name, whose);
    return add_call(program, call);
}

status_t model_teach(struct model *model, const struct model *teacher,
                     const struct model_teaching *teaching, int *first)
{
    TRY(check(model, teacher));
    struct model_program *program = model->program;
    int modules = model->module_count, parameters = *first = model->parameter_count;
    program->call_capacity = program->call_count + teacher->program->call_count + 5;
    program->calls =
        mem_resize_array(program->calls, (size_t)program->call_capacity, sizeof *program->calls);
    struct program_call loss = program->calls[--program->call_count];
    add_modules(model, teacher);
    int scores = add_calls(model, teacher, modules, parameters);
    double T = teaching->temperature;
    struct program_call divergence = loss;
    divergence.inputs[0] = add_log_softmax(program, &loss, loss.inputs[0], T, "student");
    divergence.inputs[1] = add_log_softmax(program, &loss, scores, T, "teacher");
    divergence.name = mem_printf("%s.divergence", loss.name);
    divergence.layer = (struct layer){.kind = OP_ELEMENT_LOSS, .whole_rows = true};
    divergence.layer.attrs.element_loss.reduction = loss.layer.attrs.loss.reduction;
    divergence.layer.attrs.element_loss.difference = DIFFERENCE_DIVERGENCE;
    divergence.layer.attrs.element_loss.weight = 1;
    divergence.layer.attrs.element_loss.share = teaching->share * T * T;
    add_call(program, divergence);
    double share = loss.layer.attrs.loss.share == 0 ? 1 : loss.layer.attrs.loss.share;
    loss.layer.attrs.loss.share = share * (1 - teaching->share);
    program->calls[program->call_count++] = loss;
    program->terms = 2;
    return NULL;
}
