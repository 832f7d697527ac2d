/*
 * Runs the forward sections symbolically: every line is evaluated as often as it would run, and
 * each arithmetic call is appended to the program. MODEL_MAX_STEPS and MODEL_MAX_RECURSION bound
 * the work, whatever the file contains.
 */
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/mem.h"
#include "base/text.h"
#include "model/factors.h"
#include "model/layers_internal.h"
#include "model/trace.h"

/* "<file>:<line>: " and, inside a block, "in layers.0: ". */
status_t scope_wrap(const struct scope *scope, status_t status)
{
    if (!status) return NULL;
    const char *path = scope->reader->model->modules[scope->module].path;
    if (*path) status = status_wrap(status, "in %s", path);
    return reader_wrap(scope->reader, scope->line, status);
}

status_t scope_error(const struct scope *scope, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    status_t status = status_new_v(STATUS_INVALID_ARGUMENT, format, args);
    va_end(args);
    return scope_wrap(scope, status);
}

struct environment scope_environment(const struct scope *scope)
{
    const struct module_state *state = &scope->reader->states[scope->module];
    const struct definition *definition = state->definition;
    return (struct environment){.names = (const char *const *)definition->arguments,
                                .values = state->arguments,
                                .count = definition->argument_count,
                                .outer = &scope->reader->environment};
}

static struct variable *find_variable(const struct scope *scope, const char *name, size_t length)
{
    for (int i = 0; i < scope->variable_count; i++) {
        const char *candidate = scope->variables[i].name;
        if (strncmp(candidate, name, length) == 0 && !candidate[length])
            return &scope->variables[i];
    }
    return NULL;
}

static status_t assign(struct scope *scope, const char *name, int value, int module)
{
    struct variable *variable = find_variable(scope, name, strlen(name));
    if (!variable) {
        if (scope->variable_count >= MODEL_MAX_VARIABLES)
            return scope_error(scope, "more than %d names", MODEL_MAX_VARIABLES);
        MEM_GROW(scope->variables, scope->variable_count, scope->variable_capacity);
        variable = &scope->variables[scope->variable_count++];
    }
    *variable = (struct variable){.name = name, .value = value, .module = module};
    return NULL;
}

static int compare_names(const void *left, const void *right, void *modules)
{
    const struct module *all = modules;
    return strcmp(all[*(const int *)left].name, all[*(const int *)right].name);
}

/* The children of `module`, sorted by name on first use: models may have thousands. */
static const int *sorted_children(struct reader *reader, int module)
{
    struct module_state *state = &reader->states[module];
    const struct module *parent = &reader->model->modules[module];
    size_t count = (size_t)parent->child_count;
    if (!state->sorted_children && count > 0) {
        state->sorted_children = mem_dup(parent->children, count * sizeof *parent->children);
        qsort_r(state->sorted_children, count, sizeof *state->sorted_children, compare_names,
                reader->model->modules);
    }
    return state->sorted_children;
}

/* The child whose name is the first `length` characters of `name`, or -1. */
static int find_child(struct reader *reader, int module, const char *name, size_t length)
{
    const struct module *modules = reader->model->modules;
    const int *sorted = sorted_children(reader, module);
    int low = 0, high = modules[module].child_count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        const char *candidate = modules[sorted[middle]].name;
        int order = strncmp(candidate, name, length);
        if (order == 0 && candidate[length]) order = 1;
        if (order == 0) return sorted[middle];
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return -1;
}

/*
 * Resolves "conv1", "layers.0.conv" or a loop's variable to a module; *module is -1 if the first
 * part names none. It is an error if a later part is missing.
 */
static status_t resolve_module(const struct scope *scope, const char *path, int *module)
{
    const struct model *model = scope->reader->model;
    size_t length = strcspn(path, ".");
    const struct variable *variable = find_variable(scope, path, length);
    int found = variable && variable->module >= 0
                    ? variable->module
                    : find_child(scope->reader, scope->module, path, length);
    while (found >= 0 && path[length]) {
        path += length + 1;
        length = strcspn(path, ".");
        int next = find_child(scope->reader, found, path, length);
        if (next < 0) {
            char excerpt[72];
            return scope_error(scope, "module '%s' (%s) has no module '%s'",
                               model->modules[found].path, model->modules[found].type,
                               yamldoc_excerpt(path, excerpt));
        }
        found = next;
    }
    *module = found;
    return NULL;
}

static status_t run_definition(struct reader *reader, int module, int depth, const int *inputs,
                               int *value);

/* The number of tensors that the module is called with. */
static int input_count(const struct scope *scope, int module)
{
    const struct module_state *state = &scope->reader->states[module];
    return state->role == ROLE_BLOCK ? state->definition->input_count : 1;
}

static status_t wrong_input_count(const struct scope *scope, int module)
{
    const struct module *called = &scope->reader->model->modules[module];
    int count = input_count(scope, module);
    if (count == 1)
        return scope_error(scope, "module '%s' takes one argument, a tensor", called->path);
    AUTO(buf_deinit) struct buf names = {0};
    const struct definition *definition = scope->reader->states[module].definition;
    for (int i = 0; i < count; i++)
        buf_printf(&names, "%s%s", i ? ", " : "", definition->inputs[i]);
    return scope_error(scope, "module '%s' (%s) takes %d tensors: %s", called->path, called->type,
                       count, buf_text(&names));
}

static status_t call_module(struct scope *scope, int module, const int *inputs, int *value)
{
    const struct module *called = &scope->reader->model->modules[module];
    switch (scope->reader->states[module].role) {
    case ROLE_LEAF: return trace_leaf(scope, module, inputs[0], value);
    case ROLE_BLOCK: return run_definition(scope->reader, module, scope->depth, inputs, value);
    case ROLE_LIST:
        return scope_error(scope,
                           "'%s' is a ModuleList, which cannot be called; write: for layer in %s: "
                           "x = layer(x)",
                           called->path, called->name);
    case ROLE_SEQUENTIAL: break;
    }
    int input = inputs[0];
    for (int i = 0; i < called->child_count; i++) {
        if (input_count(scope, called->children[i]) != 1)
            return wrong_input_count(scope, called->children[i]);
        TRY(call_module(scope, called->children[i], &input, &input));
    }
    *value = input;
    return NULL;
}

/* Evaluates "layer(x, mask)", also with Python's keyword arguments. */
static status_t evaluate_module_call(struct scope *scope, int module, const struct expression *call,
                                     int *value)
{
    const struct module_state *state = &scope->reader->states[module];
    const char *one[] = {"x"};
    bool block = state->role == ROLE_BLOCK;
    if (state->role == ROLE_LEAF && state->layer.kind == OP_ATTENTION)
        return trace_multihead(scope, module, call, value);
    int count = input_count(scope, module), inputs[MODEL_MAX_BLOCK_INPUTS];
    const char *const *names = block ? (const char *const *)state->definition->inputs : one;
    const struct expression *slots[MODEL_MAX_BLOCK_INPUTS];
    if (call->item_count != count || (!block && call->keywords[0]))
        return wrong_input_count(scope, module);
    TRY(scope_wrap(scope, arguments_place(call, call->text, names, count, slots)));
    for (int i = 0; i < count; i++) TRY(trace_evaluate(scope, slots[i], &inputs[i]));
    return call_module(scope, module, inputs, value);
}

/* The number of earlier calls of a function in the forward lines of a block. */
static int use_of_function(struct module_state *state, enum op_kind kind)
{
    if (!state->function_uses)
        state->function_uses = mem_alloc_array(OP_KIND_COUNT, sizeof *state->function_uses);
    return state->function_uses[kind]++;
}

/* Names and appends the call of a function. */
status_t trace_function(struct scope *scope, const struct layer_type *function,
                        struct program_call *made, int *value)
{
    struct module_state *state = &scope->reader->states[scope->module];
    TRY(trace_name(scope, scope->reader->model->modules[scope->module].path,
                   function->signature.name, use_of_function(state, function->kind), &made->name));
    return trace_emit(scope, made, value);
}

status_t trace_call(struct scope *scope, const struct layer_type *function,
                    const struct expression *call, int *value)
{
    struct environment environment = scope_environment(scope);
    struct bound bound;
    struct program_call made = {.inputs = {-1, -1, -1, -1, -1},
                                .weight = -1,
                                .bias = -1,
                                .module = scope->module,
                                .line = scope->line};
    TRY(scope_wrap(scope, arguments_bind(call, &function->signature, &environment, &bound)));
    TRY(scope_wrap(scope, layer_make(function, &bound, &made.layer)));
    if (function->kind == OP_ROPE)
        TRY(scope_wrap(scope, factors_set(&bound, &environment, scope->reader->model->program,
                                          &made.layer)));
    int tensors = 0;
    for (int i = 0; i < function->signature.count; i++) {
        if (!argument_is_tensor(&function->signature.arguments[i])) continue;
        int slot = tensors++;
        if (bound.tensors[i]) TRY(trace_evaluate(scope, bound.tensors[i], &made.inputs[slot]));
    }
    return trace_function(scope, function, &made, value);
}

static status_t unknown_function(const struct scope *scope, const char *name)
{
    const struct model *model = scope->reader->model;
    const struct module *module = &model->modules[scope->module];
    AUTO_FREE const char **others = mem_alloc_array((size_t)module->child_count, sizeof *others);
    for (int i = 0; i < module->child_count; i++)
        others[i] = model->modules[module->children[i]].name;
    AUTO_FREE char *hint = layer_suggest_function(name, others, (size_t)module->child_count);
    char excerpt[72];
    return scope_error(scope, "unknown function or module '%s'%s", yamldoc_excerpt(name, excerpt),
                       hint);
}

static status_t evaluate_call(struct scope *scope, const struct expression *call, int *value)
{
    const char *name = skip_python_prefix(call->text);
    int module;
    TRY(resolve_module(scope, name, &module));
    if (module >= 0) return evaluate_module_call(scope, module, call, value);
    const struct layer_type *function = layer_find_function(name);
    if (!function) return unknown_function(scope, name);
    if (function->kind == OP_CONCAT) return trace_cat(scope, function, call, value);
    if (function->kind == OP_MEAN_BACKWARD) return trace_interpolate(scope, function, call, value);
    if (function->kind == OP_RELU_BACKWARD) return trace_where(scope, function, call, value);
    if (strcmp(name, "amax") == 0) return trace_amax(scope, function, call, value);
    if (strcmp(name, "chunk") == 0)
        return scope_error(scope, "chunk() gives several tensors; take one of them, as in "
                                  "chunk(x, 2, dim=1)[0]");
    if (layer_is_loss(function->kind))
        return scope_error(scope, "%s() belongs under the key 'loss'", name);
    return trace_call(scope, function, call, value);
}

/* The parameter of the block itself with that name, or -1. */
static int find_own_parameter(const struct scope *scope, const char *name)
{
    const struct model *model = scope->reader->model;
    const struct module *module = &model->modules[scope->module];
    size_t prefix = *module->path ? strlen(module->path) + 1 : 0;
    for (int i = 0; i < module->parameter_count; i++)
        if (strcmp(model->parameters[module->parameters[i]].name + prefix, name) == 0)
            return module->parameters[i];
    return -1;
}

static status_t read_parameter(struct scope *scope, int parameter, int *value)
{
    struct program_call call = {.layer = {.kind = OP_RESHAPE},
                                .inputs = {-1, -1, -1, -1, -1},
                                .weight = parameter,
                                .bias = -1,
                                .module = scope->module,
                                .reads = true,
                                .line = scope->line};
    const char *name = scope->reader->model->parameters[parameter].name;
    TRY(reader_count_name(scope->reader, scope->line, strlen(name)));
    call.name = mem_strdup(name);
    return trace_emit(scope, &call, value);
}

static status_t evaluate_name(struct scope *scope, const char *name, int *value)
{
    const struct variable *variable = find_variable(scope, name, strlen(name));
    if (variable && variable->module < 0) {
        *value = variable->value;
        return NULL;
    }
    int parameter = find_own_parameter(scope, skip_python_prefix(name));
    if (parameter >= 0) return read_parameter(scope, parameter, value);
    int module;
    TRY(resolve_module(scope, skip_python_prefix(name), &module));
    if (module >= 0)
        return scope_error(scope, "'%s' is a module, not a tensor; call it: %s(x)", name, name);
    struct environment environment = scope_environment(scope);
    environment.outer = NULL;
    bool own = environment_find(&environment, name) != NULL;
    if (own || environment_find(&scope->reader->environment, name) != NULL)
        return scope_error(scope, "'%s' is an argument of the %s, not a tensor", name,
                           own ? "block" : "model");
    AUTO_FREE const char **names = mem_alloc_array((size_t)scope->variable_count, sizeof *names);
    for (int i = 0; i < scope->variable_count; i++) names[i] = scope->variables[i].name;
    const char *nearest = text_nearest(name, names, (size_t)scope->variable_count);
    char excerpt[72];
    return scope_error(scope, "unknown name '%s'%s%s%s", yamldoc_excerpt(name, excerpt),
                       nearest ? "; did you mean '" : "", nearest ? nearest : "",
                       nearest ? "'?" : "");
}

static status_t unsupported_sign(const struct scope *scope, char sign)
{
    return scope_error(scope, "tensors can be combined with + - * /; '%s' is not supported",
                       sign == 'f' ? "//" : (const char[]){sign, 0});
}

bool trace_is_number(const struct scope *scope, const struct expression *expression)
{
    if (expression->kind == EXPRESSION_INTEGER || expression->kind == EXPRESSION_REAL) return true;
    if (expression->kind == EXPRESSION_NAME) {
        struct environment environment = scope_environment(scope);
        size_t length = strcspn(expression->text, ".");
        if (find_variable(scope, expression->text, length)) return false;
        AUTO_FREE char *name = mem_strndup(expression->text, length);
        return environment_find(&environment, name) != NULL;
    }
    if (expression->kind == EXPRESSION_CALL && !constant_is_function(expression->text))
        return false;
    for (int i = 0; i < expression->item_count; i++)
        if (expression->kind != EXPRESSION_CHOICE || i != 1)
            if (!trace_is_number(scope, expression->items[i])) return false;
    return expression->item_count > 0;
}

status_t trace_layer(struct scope *scope, const struct layer *layer, const char *name,
                     const int *inputs, int *value)
{
    struct module_state *state = &scope->reader->states[scope->module];
    struct program_call call = {.layer = *layer,
                                .inputs = {inputs[0], inputs[1], -1, -1, -1},
                                .weight = -1,
                                .bias = -1,
                                .module = scope->module,
                                .line = scope->line};
    TRY(trace_name(scope, scope->reader->model->modules[scope->module].path, name,
                   use_of_function(state, layer->kind), &call.name));
    return trace_emit(scope, &call, value);
}

status_t trace_scale(struct scope *scope, double factor, double offset, int x, int *value)
{
    const struct layer layer = {.kind = OP_SCALE, .attrs.scale = {factor, offset}};
    return trace_layer(scope, &layer, "scale", (int[]){x, -1}, value);
}

status_t trace_number(struct scope *scope, const struct expression *expression, double *number)
{
    struct environment environment = scope_environment(scope);
    struct constant constant;
    TRY(scope_wrap(scope, constant_evaluate(expression, &environment, &constant)));
    char found[64];
    if (constant.kind != CONSTANT_INTEGER && constant.kind != CONSTANT_REAL)
        return scope_error(scope, "expected a tensor or a number, found %s",
                           constant_format(&constant, found));
    *number = constant.kind == CONSTANT_INTEGER ? (double)constant.integer : constant.real;
    return NULL;
}

/* "2 * x", "x - 1", "1 / x". */
static status_t evaluate_with_number(struct scope *scope, const struct expression *binary,
                                     bool number_first, int *value)
{
    double c;
    int x;
    TRY(trace_number(scope, binary->items[number_first ? 0 : 1], &c));
    TRY(trace_evaluate(scope, binary->items[number_first ? 1 : 0], &x));
    const struct layer over = {.kind = OP_RECIPROCAL, .attrs.scale = {c, 0}};
    switch (binary->sign) {
    case '+': return trace_scale(scope, 1, c, x, value);
    case '-': return trace_scale(scope, number_first ? -1 : 1, number_first ? c : -c, x, value);
    case '*': return trace_scale(scope, c, 0, x, value);
    case '/':
        if (number_first) return trace_layer(scope, &over, "reciprocal", (int[]){x, -1}, value);
        if (c == 0) return scope_error(scope, "division by zero");
        return trace_scale(scope, 1 / c, 0, x, value);
    default: return unsupported_sign(scope, binary->sign);
    }
}

static status_t evaluate_binary(struct scope *scope, const struct expression *binary, int *value)
{
    bool first = trace_is_number(scope, binary->items[0]),
         second = trace_is_number(scope, binary->items[1]);
    if (first && second) return scope_error(scope, "expected a tensor, found a constant");
    if (first || second) return evaluate_with_number(scope, binary, first, value);
    struct layer add = {.kind = OP_ADD}, mul = {.kind = OP_MUL}, div = {.kind = OP_DIV};
    int inputs[2];
    if (strchr("+-*/", binary->sign) == NULL) return unsupported_sign(scope, binary->sign);
    for (int i = 0; i < 2; i++) TRY(trace_evaluate(scope, binary->items[i], &inputs[i]));
    switch (binary->sign) {
    case '*': return trace_layer(scope, &mul, "mul", inputs, value);
    case '/': return trace_layer(scope, &div, "div", inputs, value);
    case '-': TRY(trace_scale(scope, -1, 0, inputs[1], &inputs[1])); break;
    default: break;
    }
    return trace_layer(scope, &add, "add", inputs, value);
}

/* Evaluates "norm(x) if normed else x"; the branch not taken is not evaluated. */
static status_t evaluate_choice(struct scope *scope, const struct expression *choice, int *value)
{
    struct environment environment = scope_environment(scope);
    bool first = false;
    TRY(scope_wrap(scope, constant_evaluate_condition(choice->items[1], &environment, &first)));
    return trace_evaluate(scope, choice->items[first ? 0 : 2], value);
}

static status_t evaluate_kind(struct scope *scope, const struct expression *expression, int *value)
{
    switch (expression->kind) {
    case EXPRESSION_NAME: return evaluate_name(scope, expression->text, value);
    case EXPRESSION_CALL: return evaluate_call(scope, expression, value);
    case EXPRESSION_BINARY: return evaluate_binary(scope, expression, value);
    case EXPRESSION_CHOICE: return evaluate_choice(scope, expression, value);
    case EXPRESSION_INDEX: return trace_part(scope, expression, value);
    case EXPRESSION_COMPARE: return trace_compare(scope, expression, value);
    case EXPRESSION_NEGATE:
        if (trace_is_number(scope, expression))
            return scope_error(scope, "expected a tensor, found a constant");
        TRY(trace_evaluate(scope, expression->items[0], value));
        return trace_scale(scope, -1, 0, *value, value);
    default: return scope_error(scope, "expected a tensor, found a constant");
    }
}

status_t trace_evaluate(struct scope *scope, const struct expression *expression, int *value)
{
    if (++scope->reader->steps > MODEL_MAX_STEPS)
        return scope_error(scope, "the forward pass takes more than %d steps", MODEL_MAX_STEPS);
    if (scope->depth >= MODEL_MAX_RECURSION)
        return scope_error(scope, "calls are nested deeper than %d levels", MODEL_MAX_RECURSION);
    scope->depth++;
    status_t status = evaluate_kind(scope, expression, value);
    scope->depth--;
    return status;
}

static status_t run_statements(struct scope *scope, struct statement *const *statements, int count);

static status_t run_loop(struct scope *scope, const struct statement *loop)
{
    const struct model *model = scope->reader->model;
    const char *name = skip_python_prefix(loop->list);
    int list;
    TRY(resolve_module(scope, name, &list));
    enum module_role role = list < 0 ? ROLE_LEAF : scope->reader->states[list].role;
    if (role != ROLE_LIST && role != ROLE_SEQUENTIAL)
        return scope_error(scope, "'%s' is not a list of modules", name);
    for (int i = 0; i < model->modules[list].child_count; i++) {
        if (++scope->reader->steps > MODEL_MAX_STEPS)
            return scope_error(scope, "the forward pass takes more than %d steps", MODEL_MAX_STEPS);
        TRY(assign(scope, loop->target, -1, model->modules[list].children[i]));
        TRY(run_statements(scope, loop->body, loop->body_count));
    }
    return NULL;
}

static status_t run_statements(struct scope *scope, struct statement *const *statements, int count)
{
    for (int i = 0; i < count; i++) {
        scope->line = statements[i]->line;
        if (statements[i]->loop) {
            TRY(run_loop(scope, statements[i]));
            continue;
        }
        int value;
        TRY(trace_evaluate(scope, statements[i]->value, &value));
        TRY(assign(scope, statements[i]->target, value, -1));
    }
    return NULL;
}

static status_t run_scope(struct scope *scope, const struct definition *definition,
                          const int *inputs, int *value)
{
    for (int i = 0; i < definition->input_count; i++)
        TRY(assign(scope, definition->inputs[i], inputs[i], -1));
    TRY(run_statements(scope, definition->forward, definition->forward_count));
    const struct variable *output = find_variable(scope, "output", strlen("output"));
    scope->line = definition->line;
    if (!output || output->module >= 0)
        return scope_error(scope, "the forward lines of %s never set 'output'", definition->name);
    *value = output->value;
    return NULL;
}

static status_t run_definition(struct reader *reader, int module, int depth, const int *inputs,
                               int *value)
{
    const struct definition *definition = reader->states[module].definition;
    struct scope scope = {.reader = reader,
                          .module = module,
                          .line = definition->line,
                          .depth = depth};
    status_t status = run_scope(&scope, definition, inputs, value);
    free(scope.variables);
    return status;
}

/* Only a model of pairs has the loss that compares them, and no other one. */
static status_t check_pairs(const struct scope *scope, const struct layer_type *function)
{
    const struct model *model = scope->reader->model;
    bool pairs = model->target == TARGET_PAIR, named = model->input_count > 0;
    bool compares = function->kind == OP_CONTRASTIVE_LOSS,
         towers = function->make == make_clip_loss;
    if (compares ? pairs && towers == named : !pairs) return NULL;
    const char *why = "has no targets in a model with 'texts'; expected "
                      "multiple_negatives_ranking_loss(output) or triplet_margin_loss(output)";
    if (named)
        why = "has no targets; expected 'classes', 'targets' or clip_loss(image_features, "
              "text_features, logit_scale)";
    if (compares) why = "needs 'texts: 2'";
    if (towers)
        why = "needs several inputs, as in input: {image: [3, 32, 32], text: tokens}, and neither "
              "'classes' nor 'targets'";
    return scope_error(scope, "%s() %s", function->signature.name, why);
}

/* The targets as a value, for expressions over them. */
static status_t read_target(struct scope *scope, int *value)
{
    struct program_call call = {.layer = {.kind = OP_RESHAPE},
                                .inputs = {-1, -1, -1, -1, -1},
                                .weight = -1,
                                .bias = -1,
                                .target = true,
                                .line = scope->line,
                                .name = mem_strdup("target")};
    TRY(trace_emit(scope, &call, value));
    return assign(scope, "target", *value, -1);
}

/* What a loss compares with: the word target (-1), or, for a loss of every element, an expression
 * over values, or of numbers as targets, which say what counts, over these alone. */
static status_t loss_target(struct scope *scope, const struct layer_type *function,
                            const struct expression *target, int *value)
{
    const char *word = target->kind == EXPRESSION_NAME ? target->text : "";
    bool elements = function->kind == OP_ELEMENT_LOSS;
    bool own = scope->reader->model->targets.dim_count > 0;
    if (strcmp(word, "target") != 0 && elements) {
        if (own) TRY(read_target(scope, value));
        TRY(trace_evaluate(scope, target, value));
        if (!own || (*value > 0 && scope->reader->model->program->calls[*value - 1].data))
            return NULL;
        return scope_error(scope, "%s(): with 'targets' it compares with target or parts of it",
                           function->signature.name);
    }
    if (strcmp(word, "target") != 0)
        return scope_error(scope, "%s(): argument 'target' must be target",
                           function->signature.name);
    if (elements == own) return NULL;
    return scope_error(scope, "%s() needs %s", function->signature.name,
                       own ? "'classes' instead of 'targets'" : "'targets' instead of 'classes'");
}

/* A loss may depend on the model's arguments: the alternative that is chosen. */
static status_t choose_loss(const struct scope *scope, const struct expression **loss)
{
    while ((*loss)->kind == EXPRESSION_CHOICE) {
        bool first = false;
        TRY(scope_wrap(scope, constant_evaluate_condition((*loss)->items[1],
                                                          &scope->reader->environment, &first)));
        *loss = (*loss)->items[first ? 0 : 2];
    }
    return NULL;
}

static status_t refuse_loss(const struct scope *scope, const struct expression *loss)
{
    bool call = loss->kind == EXPRESSION_CALL;
    AUTO_FREE char *hint = layer_suggest_loss(call ? skip_python_prefix(loss->text) : "");
    char found[72];
    if (call)
        return scope_error(scope, "unknown loss '%s'%s", yamldoc_excerpt(loss->text, found), hint);
    return scope_error(scope, "the loss must be a call such as cross_entropy(output, target)%s",
                       hint);
}

/* A term of the loss, and its factor. */
struct loss_term {
    const struct expression *call;
    double share;
};

/* The terms of "cross_entropy(a, target) + 0.5 * mse_loss(b, x)". */
static status_t find_terms(struct scope *scope, const struct expression *loss, double share,
                           struct loss_term *terms, int *count)
{
    TRY(choose_loss(scope, &loss));
    bool binary = loss->kind == EXPRESSION_BINARY;
    if (binary && loss->sign == '+') {
        TRY(find_terms(scope, loss->items[0], share, terms, count));
        return find_terms(scope, loss->items[1], share, terms, count);
    }
    for (int i = 0; i < 2 && binary; i++) {
        double factor = 1;
        bool divides = loss->sign == '/' && i == 1;
        if ((loss->sign != '*' && !divides) || !trace_is_number(scope, loss->items[i])) continue;
        TRY(trace_number(scope, loss->items[i], &factor));
        return find_terms(scope, loss->items[1 - i], divides ? share / factor : share * factor,
                          terms, count);
    }
    if (!(share > 0 && share <= FLT_MAX))
        return scope_error(scope, "the factor of a term of the loss is %g, expected more than 0",
                           share);
    if (*count == MODEL_MAX_TERMS)
        return scope_error(scope, "the loss has more than %d terms", MODEL_MAX_TERMS);
    terms[(*count)++] = (struct loss_term){loss, share};
    return NULL;
}

/* The terms of a sum are divided by the same targets. */
static status_t check_term(const struct scope *scope, const struct layer_type *function,
                           const struct layer *layer, const struct layer *first)
{
    const char *name = function->signature.name;
    if (layer->kind == OP_CONTRASTIVE_LOSS)
        return scope_error(scope, "%s() cannot be one of several terms", name);
    if (layer->kind != OP_ELEMENT_LOSS && layer->attrs.loss.weights.values != NULL)
        return scope_error(scope, "%s(): one of several terms has no weights of classes", name);
    if (layer->attrs.loss.reduction == first->attrs.loss.reduction) return NULL;
    return scope_error(scope, "%s(): all terms of the loss have the same reduction", name);
}

static status_t read_term(struct scope *scope, const struct loss_term *term, float **weights,
                          struct program_call *call, const struct layer_type **type,
                          struct bound *bound)
{
    const struct expression *loss = term->call;
    const struct layer_type *function =
        loss->kind == EXPRESSION_CALL ? layer_find_function(skip_python_prefix(loss->text)) : NULL;
    if (!function || !layer_is_loss(function->kind)) return refuse_loss(scope, loss);
    const struct environment *environment = &scope->reader->environment;
    *call = (struct program_call){.inputs = {-1, -1, -1, -1, -1},
                                  .weight = -1,
                                  .bias = -1,
                                  .line = scope->line};
    TRY(scope_wrap(scope, arguments_bind(loss, &function->signature, environment, bound)));
    TRY(check_pairs(scope, function));
    TRY(scope_wrap(scope, layer_make(function, bound, &call->layer)));
    if (term->share != 1) call->layer.attrs.loss.share = term->share;
    TRY(scope_wrap(scope, layer_set_weights(bound, environment, &call->layer, weights)));
    *type = function;
    return NULL;
}

/* Of clip_loss: the other features, and the scale, which may be trained, in f32. */
static status_t run_features(struct scope *scope, const struct bound *bound,
                             struct program_call *call)
{
    struct model_program *program = scope->reader->model->program;
    const struct expression *scale = bound->tensors[2];
    TRY(trace_evaluate(scope, bound->tensors[1], &call->inputs[1]));
    if (trace_is_number(scope, scale)) {
        double *factor = &call->layer.attrs.contrast.factor;
        TRY(trace_number(scope, scale, factor));
        if ((float)*factor > 0 && *factor <= FLT_MAX) return NULL;
        return scope_error(scope, "clip_loss(): logit_scale is %g, expected more than 0%s", *factor,
                           *factor > 0 ? " and a number of float32" : "");
    }
    int first = program->call_count;
    TRY(trace_evaluate(scope, scale, &call->inputs[2]));
    for (int i = first; i < program->call_count; i++) program->calls[i].exact = true;
    return NULL;
}

/* Appends a term, whose input is a value already. */
static status_t run_term(struct scope *scope, const struct layer_type *function,
                         const struct bound *bound, struct program_call *call)
{
    const struct layer logarithm = {.kind = OP_FUNCTION, .attrs.function.kind = FUNCTION_LOG};
    if (call->layer.both) TRY(run_features(scope, bound, call));
    if (function->kind != OP_CONTRASTIVE_LOSS)
        TRY(loss_target(scope, function, bound->tensors[1], &call->inputs[1]));
    if (call->layer.probabilities && call->inputs[1] < 0) TRY(read_target(scope, &call->inputs[1]));
    if (call->layer.probabilities)
        TRY(trace_layer(scope, &logarithm, "log", (int[]){call->inputs[1], -1}, &call->inputs[1]));
    int value;
    return trace_function(scope, function, call, &value);
}

/* Runs the loss, for instance cross_entropy(output, target). Its inputs may be any expressions over
 * the values of the model's forward lines. The last call is its first term, whose input comes
 * before the other terms: so what makes that input stands before all that only others need. */
static status_t run_loss(struct scope *scope, const struct expression *loss)
{
    struct model_program *program = scope->reader->model->program;
    struct loss_term terms[MODEL_MAX_TERMS];
    struct program_call calls[MODEL_MAX_TERMS];
    const struct layer_type *types[MODEL_MAX_TERMS];
    struct bound bounds[MODEL_MAX_TERMS];
    TRY(find_terms(scope, loss, 1, terms, &program->terms));
    for (int i = 0; i < program->terms; i++) {
        TRY(read_term(scope, &terms[i], &program->loss_weights[i], &calls[i], &types[i],
                      &bounds[i]));
        if (program->terms > 1) TRY(check_term(scope, types[i], &calls[i].layer, &calls[0].layer));
    }
    TRY(trace_evaluate(scope, bounds[0].tensors[0], &calls[0].inputs[0]));
    int others = program->call_count;
    for (int i = 1; i < program->terms; i++) {
        TRY(trace_evaluate(scope, bounds[i].tensors[0], &calls[i].inputs[0]));
        TRY(run_term(scope, types[i], &bounds[i], &calls[i]));
    }
    TRY(run_term(scope, types[0], &bounds[0], &calls[0]));
    for (int i = others; i + 1 < program->call_count; i++) program->calls[i].other = true;
    return NULL;
}

status_t model_trace(struct reader *reader)
{
    const struct definition *definition = reader->states[0].definition;
    const struct model *model = reader->model;
    struct scope scope = {.reader = reader, .line = definition->line};
    int inputs[MODEL_MAX_BLOCK_INPUTS] = {0}, output;
    status_t status = NULL;
    for (int i = 0; i < model->input_count && !status; i++)
        status = trace_input(&scope, &model->inputs[i], &inputs[i]);
    if (!status) status = run_scope(&scope, definition, inputs, &output);
    scope.line = reader->loss->line;
    bool named = model->input_count > 0; /* a line may have made another value of the name */
    for (int i = 0; i < definition->input_count && !status && !named; i++)
        status = assign(&scope, definition->inputs[i], inputs[i], -1);
    if (!status) status = run_loss(&scope, reader->loss->value);
    free(scope.variables);
    return status;
}
