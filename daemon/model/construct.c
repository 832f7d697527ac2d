/*
 * Builds the module tree as PyTorch's constructors would: depth first, in registration order. So
 * modules, parameters and draws from the generator have PyTorch's numbers. The recursion is bounded
 * by MODEL_MAX_DEPTH.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "model/reader.h"

/* A constructor's context: the parent of the module it makes, and the names it can use. */
struct site {
    int parent;
    const char *name;
    int line;
    int depth;
    const struct environment *environment;
};

static status_t construct(struct reader *reader, const struct site *site,
                          const struct expression *constructor);

static status_t site_error(const struct reader *reader, const struct site *site, status_t status)
{
    if (!status) return NULL;
    const char *parent = reader->model->modules[site->parent].path;
    status = status_wrap(status, "module %s%s%s", parent, *parent ? "." : "", site->name);
    return reader_wrap(reader, site->line, status);
}

static char *join_path(const char *parent, const char *name)
{
    return *parent ? mem_printf("%s.%s", parent, name) : mem_strdup(name);
}

/* Adds an empty module; *index receives its number. `name` and `type` are copied. */
static status_t add_module(struct reader *reader, const struct site *site, const char *type,
                           enum module_role role, int *index)
{
    struct model *model = reader->model;
    if (model->module_count >= MODEL_MAX_MODULES)
        return reader_error(reader, site->line, "more than %d modules", MODEL_MAX_MODULES);
    if (site->depth > MODEL_MAX_DEPTH)
        return reader_error(reader, site->line, "modules are nested deeper than %d levels",
                            MODEL_MAX_DEPTH);
    struct module made = {.parent = site->parent, .print = NULL};
    const char *parent = site->parent < 0 ? "" : model->modules[site->parent].path;
    TRY(reader_count_name(reader, site->line, strlen(parent) + strlen(site->name)));
    made.path = join_path(parent, site->name);
    made.name = mem_strdup(site->name);
    made.type = mem_strdup(type);
    made.print = mem_strdup("");
    MEM_GROW(model->modules, model->module_count, reader->module_capacity);
    if (reader->state_capacity < reader->module_capacity) {
        reader->state_capacity = reader->module_capacity;
        reader->states = mem_resize_array(reader->states, (size_t)reader->state_capacity,
                                          sizeof *reader->states);
    }
    *index = model->module_count++;
    model->modules[*index] = made;
    reader->states[*index] = (struct module_state){.role = role};
    if (site->parent < 0) return NULL;

    struct module *above = &model->modules[site->parent];
    int count = above->child_count++;
    if ((count & (count - 1)) == 0) /* capacity is the next power of two */
        above->children = mem_resize_array(above->children, count ? (size_t)count * 2 : 1,
                                           sizeof *above->children);
    above->children[count] = *index;
    return NULL;
}

static status_t add_parameter(struct reader *reader, const struct site *site, int module,
                              const struct layer_parameter *from)
{
    struct model *model = reader->model;
    struct module *owner = &model->modules[module];
    if (tensor_element_count(&from->type) < 0) {
        char shape[128];
        return site_error(reader, site,
                          status_new(STATUS_INVALID_ARGUMENT,
                                     "%s %s would have more than 2^40 elements", from->name,
                                     tensor_format_shape(&from->type, shape)));
    }
    TRY(reader_count_name(reader, site->line, strlen(owner->path) + strlen(from->name)));
    MEM_GROW(model->parameters, model->parameter_count, reader->parameter_capacity);
    int index = model->parameter_count++;
    model->parameters[index] = (struct parameter){
        .name = join_path(owner->path, from->name),
        .module = module,
        .type = from->type,
        .buffer = from->buffer,
        .trainable = from->buffer == MODEL_BUFFER_NONE,
        .tied_to = -1,
        .init = from->init,
        .bound = from->bound,
        .has_zero_row = from->has_zero_row,
        .zero_row = from->zero_row,
        .init_order = index + from->drawn,
    };
    owner->parameters = mem_resize_array(owner->parameters, (size_t)owner->parameter_count + 1,
                                         sizeof *owner->parameters);
    owner->parameters[owner->parameter_count++] = index;
    return NULL;
}

static status_t construct_leaf(struct reader *reader, const struct site *site,
                               const struct expression *call, const struct layer_type *type)
{
    struct bound bound;
    struct layer layer;
    TRY(site_error(reader, site,
                   arguments_bind(call, &type->signature, site->environment, &bound)));
    TRY(site_error(reader, site, layer_make(type, &bound, &layer)));
    int index;
    TRY(add_module(reader, site, type->signature.name, ROLE_LEAF, &index));
    reader->states[index].layer = layer;
    struct buf print = {0};
    type->print(&bound, &print);
    free(reader->model->modules[index].print);
    reader->model->modules[index].print = buf_take(&print);
    if (!type->parameters) return NULL;
    struct layer_parameter parameters[LAYER_MAX_PARAMETERS];
    int count = type->parameters(&bound, parameters);
    for (int i = 0; i < count; i++) TRY(add_parameter(reader, site, index, &parameters[i]));
    return NULL;
}

static bool is_parameter(const struct expression *constructor)
{
    return constructor->kind == EXPRESSION_CALL &&
           strcmp(skip_python_prefix(constructor->text), "Parameter") == 0;
}

/* Builds "Parameter(1, 4, width)", a parameter of the block itself. */
static status_t construct_parameter(struct reader *reader, const struct site *site,
                                    const struct expression *call)
{
    int64_t dims[TENSOR_MAX_DIMS] = {0};
    if (call->item_count < 1 || call->item_count > TENSOR_MAX_DIMS)
        return site_error(reader, site,
                          status_new(STATUS_INVALID_ARGUMENT, "Parameter() takes 1 to %d sizes",
                                     TENSOR_MAX_DIMS));
    for (int i = 0; i < call->item_count; i++) {
        struct constant size;
        char found[64];
        TRY(site_error(reader, site, constant_evaluate(call->items[i], site->environment, &size)));
        if (call->keywords[i] || size.kind != CONSTANT_INTEGER || size.integer < 1 ||
            size.integer > INT32_MAX)
            return site_error(reader, site,
                              status_new(STATUS_INVALID_ARGUMENT,
                                         "Parameter(): expected a positive integer below 2^31, "
                                         "found %s",
                                         constant_format(&size, found)));
        dims[i] = size.integer;
    }
    struct layer_parameter made = {.name = site->name,
                                   .type = tensor_type_make(DTYPE_F32, call->item_count, dims),
                                   .init = INIT_ZEROS};
    return add_parameter(reader, site, site->parent, &made);
}

/* The constructor that a choice chooses. */
static status_t chosen(const struct reader *reader, const struct site *site,
                       const struct expression **constructor)
{
    while ((*constructor)->kind == EXPRESSION_CHOICE) {
        bool first = false;
        TRY(site_error(reader, site,
                       constant_evaluate_condition((*constructor)->items[1], site->environment,
                                                   &first)));
        *constructor = (*constructor)->items[first ? 0 : 2];
    }
    return NULL;
}

/* Builds the modules of a definition as children of `module`; its own parameters come first, as in
 * PyTorch's state_dict. */
static status_t construct_parts(struct reader *reader, struct definition *definition, int module,
                                int depth, const struct environment *environment)
{
    for (int i = 0; i < 2 * definition->module_count; i++) {
        bool own = i < definition->module_count;
        const struct definition_module *part = &definition->modules[i % definition->module_count];
        const struct expression *constructor = part->constructor;
        struct site site = {.parent = module,
                            .name = part->name,
                            .line = part->line,
                            .depth = depth + 1,
                            .environment = environment};
        TRY(chosen(reader, &site, &constructor));
        if (is_parameter(constructor) != own) continue;
        if (own) TRY(construct_parameter(reader, &site, constructor));
        else TRY(construct(reader, &site, constructor));
    }
    return NULL;
}

static status_t bind_block(const struct expression *call, const struct definition *definition,
                           const struct environment *environment, struct constant *values)
{
    const struct expression *slots[MODEL_MAX_BLOCK_ARGUMENTS];
    int count = definition->argument_count;
    TRY(arguments_place(call, definition->name, (const char *const *)definition->arguments, count,
                        slots));
    for (int i = 0; i < count; i++) {
        values[i] = definition->standards[i];
        if (slots[i])
            TRY(status_wrap(constant_evaluate(slots[i], environment, &values[i]),
                            "%s(): argument '%s'", definition->name, definition->arguments[i]));
        else if (definition->required[i])
            return status_new(STATUS_INVALID_ARGUMENT, "%s(): argument '%s' is missing",
                              definition->name, definition->arguments[i]);
    }
    return NULL;
}

static status_t construct_block(struct reader *reader, const struct site *site,
                                const struct expression *call, struct definition *definition)
{
    if (definition->open)
        return site_error(reader, site,
                          status_new(STATUS_INVALID_ARGUMENT, "block '%s' would contain itself",
                                     definition->name));
    struct constant values[MODEL_MAX_BLOCK_ARGUMENTS];
    TRY(site_error(reader, site, bind_block(call, definition, site->environment, values)));
    int index;
    TRY(add_module(reader, site, definition->name, ROLE_BLOCK, &index));
    struct module_state *state = &reader->states[index];
    size_t count = (size_t)definition->argument_count;
    state->definition = definition;
    state->arguments = mem_dup(values, count * sizeof *values);
    struct environment environment = {.names = (const char *const *)definition->arguments,
                                      .values = state->arguments,
                                      .count = definition->argument_count,
                                      .outer = &reader->environment};
    definition->open = true;
    status_t status = construct_parts(reader, definition, index, site->depth, &environment);
    definition->open = false;
    return status;
}

static bool is_repetition(const struct expression *expression)
{
    return expression->kind == EXPRESSION_BINARY && expression->sign == '*' &&
           expression->items[1]->kind == EXPRESSION_CALL;
}

static status_t construct_child(struct reader *reader, const struct site *site, int parent,
                                const struct expression *constructor)
{
    char name[16];
    snprintf(name, sizeof name, "%d", reader->model->modules[parent].child_count);
    struct site inner = {.parent = parent,
                         .name = name,
                         .line = site->line,
                         .depth = site->depth + 1,
                         .environment = site->environment};
    return construct(reader, &inner, constructor);
}

/* Builds "6 * Block(128)" as six children of `parent`. */
static status_t construct_copies(struct reader *reader, const struct site *site, int parent,
                                 const struct expression *repetition)
{
    struct constant count;
    TRY(site_error(reader, site,
                   constant_evaluate(repetition->items[0], site->environment, &count)));
    if (count.kind != CONSTANT_INTEGER || count.integer < 1 || count.integer > MODEL_MAX_MODULES) {
        char found[64];
        return site_error(reader, site,
                          status_new(STATUS_INVALID_ARGUMENT,
                                     "expected an integer from 1 to %d before '*', found %s",
                                     MODEL_MAX_MODULES, constant_format(&count, found)));
    }
    for (int64_t i = 0; i < count.integer; i++)
        TRY(construct_child(reader, site, parent, repetition->items[1]));
    return NULL;
}

static status_t site_refuse(const struct reader *reader, const struct site *site, const char *text)
{
    return site_error(reader, site, status_new(STATUS_INVALID_ARGUMENT, "%s", text));
}

/* The values of "[... for NAME in values]": a list, or "range(N)", for which *list stays NULL. */
static status_t each_of(const struct site *site, const struct expression *values,
                        const struct constant **list, int64_t *count)
{
    struct constant value;
    bool range = values->kind == EXPRESSION_CALL && strcmp(values->text, "range") == 0 &&
                 values->item_count == 1 && !values->keywords[0];
    TRY(constant_evaluate(range ? values->items[0] : values, site->environment, &value));
    if (value.kind != (range ? CONSTANT_INTEGER : CONSTANT_LIST))
        return status_new(STATUS_INVALID_ARGUMENT, "expected range(N) or a list behind 'in'");
    if (value.integer < 0 || value.integer > MODEL_MAX_MODULES)
        return status_new(STATUS_INVALID_ARGUMENT, "expected 0 to %d modules, found %lld",
                          MODEL_MAX_MODULES, (long long)value.integer);
    *list = value.items;
    *count = value.integer;
    return NULL;
}

/* Builds "[Block(i) for i in range(6)]" as children of `parent`. */
static status_t construct_each(struct reader *reader, const struct site *site, int parent,
                               const struct expression *each)
{
    const struct constant *list = NULL;
    const char *name = each->text;
    int64_t count = 0;
    TRY(site_error(reader, site, each_of(site, each->items[1], &list, &count)));
    for (int64_t i = 0; i < count; i++) {
        struct constant value = {.kind = CONSTANT_INTEGER, .integer = i};
        if (list != NULL) value = list[i];
        const struct environment environment = {.names = &name,
                                                .values = &value,
                                                .count = 1,
                                                .outer = site->environment};
        struct site inner = *site;
        inner.environment = &environment;
        TRY(construct_child(reader, &inner, parent, each->items[0]));
    }
    return NULL;
}

static status_t construct_choice(struct reader *reader, const struct site *site,
                                 const struct expression *choice)
{
    bool first = false;
    TRY(site_error(reader, site,
                   constant_evaluate_condition(choice->items[1], site->environment, &first)));
    return construct(reader, site, choice->items[first ? 0 : 2]);
}

/* Builds "ACT2FN[hidden_act]": a module by its name in transformers' configurations. */
static status_t construct_activation(struct reader *reader, const struct site *site,
                                     const struct expression *element)
{
    static const struct {
        const char *name, *module;
    } known[] = {
        {"gelu", "GELU()"},
        {"gelu_python", "GELU()"},
        {"gelu_new", "GELU(approximate='tanh')"},
        {"gelu_pytorch_tanh", "GELU(approximate='tanh')"},
        {"relu", "ReLU()"},
        {"silu", "SiLU()"},
        {"swish", "SiLU()"},
        {"tanh", "Tanh()"},
        {"sigmoid", "Sigmoid()"},
        {"relu2", "ReLUSquaredActivation()"},
        {"quick_gelu", "QuickGELUActivation()"}, /* a block, which the file must have */
    };
    struct constant value;
    char found[64];
    TRY(site_error(reader, site, constant_evaluate(element->items[1], site->environment, &value)));
    const char *module = NULL;
    for (size_t i = 0; i < COUNT_OF(known) && value.kind == CONSTANT_TEXT; i++)
        if (strcmp(known[i].name, value.text) == 0) module = known[i].module;
    if (!module)
        return site_error(reader, site,
                          status_new(STATUS_INVALID_ARGUMENT, "ACT2FN has no activation %s",
                                     constant_format(&value, found)));
    struct expression *constructor = NULL;
    TRY(expression_parse(module, &constructor));
    status_t status = construct(reader, site, constructor);
    expression_free(constructor);
    return status;
}

static status_t construct_container(struct reader *reader, const struct site *site,
                                    const struct expression *call, const char *type,
                                    enum module_role role)
{
    int index;
    TRY(add_module(reader, site, type, role, &index));
    for (int i = 0; i < call->item_count; i++) {
        if (call->keywords[i])
            return site_error(reader, site,
                              status_new(STATUS_INVALID_ARGUMENT, "%s() has no argument '%s'", type,
                                         call->keywords[i]));
        if (is_repetition(call->items[i]))
            TRY(construct_copies(reader, site, index, call->items[i]));
        else if (call->items[i]->kind == EXPRESSION_EACH)
            TRY(construct_each(reader, site, index, call->items[i]));
        else TRY(construct_child(reader, site, index, call->items[i]));
    }
    return NULL;
}

static status_t unknown_module(const struct reader *reader, const struct site *site,
                               const char *name)
{
    size_t count = 2 + (size_t)reader->definition_count - 1;
    AUTO_FREE const char **others = mem_alloc_array(count, sizeof *others);
    others[0] = "Sequential";
    others[1] = "ModuleList";
    for (int i = 1; i < reader->definition_count; i++) others[i + 1] = reader->definitions[i].name;
    AUTO_FREE char *hint = layer_suggest_module(name, others, count);
    char found[72];
    status_t status = status_new(STATUS_INVALID_ARGUMENT, "unknown module '%s'%s",
                                 yamldoc_excerpt(name, found), hint);
    return site_error(reader, site, status);
}

static status_t construct(struct reader *reader, const struct site *site,
                          const struct expression *constructor)
{
    if (is_repetition(constructor)) {
        int index;
        TRY(add_module(reader, site, "ModuleList", ROLE_LIST, &index));
        return construct_copies(reader, site, index, constructor);
    }
    if (constructor->kind == EXPRESSION_EACH) {
        int index;
        TRY(add_module(reader, site, "ModuleList", ROLE_LIST, &index));
        return construct_each(reader, site, index, constructor);
    }
    if (constructor->kind == EXPRESSION_CHOICE) return construct_choice(reader, site, constructor);
    if (constructor->kind == EXPRESSION_NONE) return NULL; /* no module */
    if (constructor->kind == EXPRESSION_INDEX && constructor->items[0]->kind == EXPRESSION_NAME &&
        strcmp(constructor->items[0]->text, "ACT2FN") == 0)
        return construct_activation(reader, site, constructor);
    if (constructor->kind != EXPRESSION_CALL)
        return site_refuse(reader, site, "expected a constructor such as Conv2d(1, 32, 3)");
    const char *name = skip_python_prefix(constructor->text);
    if (is_parameter(constructor))
        return site_refuse(reader, site,
                           "a Parameter belongs to a block or the model, not to a "
                           "list of modules");
    if (strcmp(name, "Sequential") == 0)
        return construct_container(reader, site, constructor, name, ROLE_SEQUENTIAL);
    if (strcmp(name, "ModuleList") == 0)
        return construct_container(reader, site, constructor, name, ROLE_LIST);
    const struct layer_type *type = layer_find_module(name);
    if (type) return construct_leaf(reader, site, constructor, type);
    const struct definition *block = definition_find(reader, name);
    if (!block) return unknown_module(reader, site, name);
    return construct_block(reader, site, constructor,
                           &reader->definitions[block - reader->definitions]);
}

status_t model_construct(struct reader *reader)
{
    struct definition *main = &reader->definitions[0];
    struct site root = {.parent = -1, .name = "", .line = main->line};
    int index;
    TRY(add_module(reader, &root, main->name, ROLE_BLOCK, &index));
    reader->states[index].definition = main;
    return construct_parts(reader, main, index, 0, &reader->environment);
}
