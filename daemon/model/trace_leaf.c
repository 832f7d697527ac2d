/* Appends calls to the program; see trace.h. A module may be several calls. */
#include "model/trace.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "model/arguments.h"

/* Makes a name that is unique among the model's calls. */
status_t trace_name(const struct scope *scope, const char *path, const char *function, int uses,
                    char **name)
{
    TRY(reader_count_name(scope->reader, scope->line, strlen(path) + strlen(function) + 12));
    const char *dot = *path && *function ? "." : "";
    *name = uses ? mem_printf("%s%s%s_%d", path, dot, function, uses)
                 : mem_printf("%s%s%s", path, dot, function);
    return NULL;
}

/* Whether a call's result lacks the batch: see program_call. */
static bool lacks_batch(const struct model *model, const struct program_call *call)
{
    if (call->reads) {
        const struct tensor_type *type = &model->parameters[call->weight].type;
        return type->dim_count > 1 && type->dims[0] == 1;
    }
    bool lacks = !call->target;
    for (int i = 0; i < LAYER_MAX_TENSORS; i++) {
        int input = call->inputs[i];
        if (input >= 0) lacks &= input > 0 && model->program->calls[input - 1].without_batch;
    }
    return lacks;
}

/* Whether a call's result is made of parameters alone. */
static bool is_parametric(const struct model_program *program, const struct program_call *call)
{
    bool all = !call->target;
    for (int i = 0; i < LAYER_MAX_TENSORS && !call->reads; i++) {
        int input = call->inputs[i];
        if (input >= 0) all &= input > 0 && program->calls[input - 1].parametric;
    }
    return all;
}

/* Whether a call's result is a mask: a comparison, the opposite or the product of masks, or one in
 * another shape. */
static bool is_mask(const struct model_program *program, const struct program_call *call)
{
    const struct layer *layer = &call->layer;
    bool all = call->inputs[0] > 0 && !call->reads;
    for (int i = 0; i < 2 && all; i++)
        all = call->inputs[i] != 0 &&
              (call->inputs[i] < 0 || program->calls[call->inputs[i] - 1].mask);
    switch (layer->kind) {
    case OP_FUNCTION: return layer->attrs.function.kind >= FUNCTION_ABOVE;
    case OP_SCALE: return all && layer->attrs.scale.factor == -1 && layer->attrs.scale.offset == 1;
    case OP_MUL:
    case OP_RESHAPE:
    case OP_TRANSPOSE:
    case OP_SLICE:
    case OP_CONCAT: return all;
    default: return false;
    }
}

/* Whether a call's result is made of the targets alone, and is NaN where they are: a comparison
 * with NaN is a number, as a draw is, with which a missing target would count. */
static bool is_data(const struct model_program *program, const struct program_call *call)
{
    const struct layer *layer = &call->layer;
    bool compares = layer->kind == OP_FUNCTION && layer->attrs.function.kind >= FUNCTION_ABOVE;
    bool draws = layer->kind == OP_DROPOUT && layer->attrs.dropout.normal;
    bool all = call->weight < 0 && call->inputs[0] > 0 && !compares && !draws;
    for (int i = 0; i < LAYER_MAX_TENSORS && all; i++)
        all = call->inputs[i] < 0 ||
              (call->inputs[i] > 0 && program->calls[call->inputs[i] - 1].data);
    return all || call->target;
}

static status_t append(struct scope *scope, const struct program_call *call, int *value)
{
    struct model_program *program = scope->reader->model->program;
    if (program->call_count >= MODEL_MAX_CALLS) {
        free(call->name);
        return scope_error(scope, "the forward pass makes more than %d calls", MODEL_MAX_CALLS);
    }
    MEM_GROW(program->calls, program->call_count, program->call_capacity);
    struct program_call *made = &program->calls[program->call_count++];
    *made = *call;
    made->without_batch = lacks_batch(scope->reader->model, call);
    made->parametric = is_parametric(program, call);
    made->mask = is_mask(program, call);
    made->data = is_data(program, call);
    if (made->layer.kind == OP_DROPOUT)
        made->layer.attrs.dropout.stream = scope->reader->dropouts++;
    if (made->layer.kind == OP_ATTENTION)
        made->layer.attrs.attention.stream = scope->reader->dropouts++;
    if (made->layer.kind == OP_PADDING_MASK)
        scope->reader->model->padding = made->layer.attrs.padding_mask.id;
    *value = program->call_count;
    return NULL;
}

/* Appends a reshape of `input` around `call`. */
static status_t append_reshape(struct scope *scope, const struct program_call *call,
                               const struct layer *reshape, int input, int *value)
{
    struct program_call made = {.layer = *reshape,
                                .inputs = {input, -1, -1, -1, -1},
                                .weight = -1,
                                .bias = -1,
                                .module = call->module,
                                .leaf = call->leaf,
                                .line = call->line};
    TRY(trace_name(scope, call->name, reshape->function, 0, &made.name));
    return append(scope, &made, value);
}

/* A line of pixels is an image of one row. */
static status_t append_line(struct scope *scope, struct program_call *call, int *value)
{
    const struct layer to_image = {.kind = OP_RESHAPE,
                                   .start_dim = 2,
                                   .end_dim = 2,
                                   .sizes = {1, BOUND_INFERRED},
                                   .size_count = 2,
                                   .function = "unflatten"};
    const struct layer to_line = {.kind = OP_RESHAPE,
                                  .start_dim = 2,
                                  .end_dim = 3,
                                  .sizes = {BOUND_INFERRED},
                                  .size_count = 1,
                                  .function = "flatten"};
    status_t status = append_reshape(scope, call, &to_image, call->inputs[0], &call->inputs[0]);
    if (status) {
        free(call->name);
        return status;
    }
    TRY(append(scope, call, value));
    return append_reshape(scope, call, &to_line, *value, value);
}

status_t trace_emit(struct scope *scope, const struct program_call *call, int *value)
{
    struct program_call made = *call;
    bool norm = call->layer.kind == OP_BATCH_NORM; /* takes lines as they are */
    if (!call->layer.line || norm) return append(scope, &made, value);
    return append_line(scope, &made, value);
}

/* One op of a module that is several: named "lstm.WHAT_l0_reverse". */
static status_t append_stacked(struct scope *scope, const struct program_call *call,
                               const char *what, int stack, bool reverse, int *value)
{
    const struct module *leaf = &scope->reader->model->modules[call->module];
    struct program_call made = *call;
    AUTO_FREE char *name = mem_printf("%s_l%d%s", what, stack, reverse ? "_reverse" : "");
    TRY(trace_name(scope, leaf->path, name, scope->reader->states[call->module].uses, &made.name));
    return append(scope, &made, value);
}

/* A layer of LSTM or GRU in one direction; `parameters` are its two weights and perhaps biases. */
static status_t append_direction(struct scope *scope, const struct program_call *call,
                                 const int *parameters, bool bias, int stack, bool reverse,
                                 int *value)
{
    struct program_call made = *call;
    made.layer = (struct layer){.kind = OP_LINEAR};
    made.weight = parameters[0];
    if (bias) made.bias = parameters[2];
    TRY(append_stacked(scope, &made, "input", stack, reverse, &made.inputs[0]));
    made.layer = (struct layer){.kind = OP_RECURRENT, .attrs = call->layer.attrs};
    made.layer.attrs.recurrent.reverse = reverse;
    made.weight = parameters[1];
    if (bias) made.bias = parameters[3];
    return append_stacked(scope, &made, "hidden", stack, reverse, value);
}

static status_t call_recurrent(struct scope *scope, const struct program_call *call, int *value)
{
    const struct module *leaf = &scope->reader->model->modules[call->module];
    const struct layer *layer = &call->layer;
    int directions = layer->both ? 2 : 1,
        each = leaf->parameter_count / (layer->stack * directions);
    struct program_call made = *call;
    for (int l = 0; l < layer->stack; l++) {
        const int *parameters = leaf->parameters + l * directions * each;
        int found[2];
        for (int d = 0; d < directions; d++)
            TRY(append_direction(scope, &made, parameters + d * each, each == 4, l, d == 1,
                                 &found[d]));
        *value = found[0];
        struct program_call joined = made;
        if (layer->both) {
            joined.layer = (struct layer){.kind = OP_CONCAT, .dim = -1};
            joined.inputs[0] = found[0];
            joined.inputs[1] = found[1];
            TRY(append_stacked(scope, &joined, "both", l, false, value));
            joined.inputs[1] = -1;
        }
        joined.layer = (struct layer){.kind = OP_DROPOUT, .attrs.dropout.p = layer->p};
        joined.inputs[0] = *value;
        if (layer->p > 0 && l + 1 < layer->stack)
            TRY(append_stacked(scope, &joined, "dropout", l, false, value));
        made.inputs[0] = *value;
    }
    scope->reader->states[call->module].uses++;
    return NULL;
}

/* The projection of `input`, part number `part` of three, side by side in *projected: -1 before the
 * first of this input. */
static status_t append_part(struct scope *scope, const struct program_call *call, int input,
                            int part, int *projected, int *value)
{
    const struct model *model = scope->reader->model;
    const struct module *leaf = &model->modules[call->module];
    int64_t width = model->parameters[leaf->parameters[0]].type.dims[1];
    struct program_call made = *call;
    if (*projected < 0) {
        made.layer = (struct layer){.kind = OP_LINEAR};
        made.inputs[0] = input;
        made.weight = leaf->parameters[0];
        if (leaf->parameter_count > 2) made.bias = leaf->parameters[1];
        TRY(append_stacked(scope, &made, "in_proj", part, false, projected));
        made.weight = made.bias = -1;
    }
    made.layer =
        (struct layer){.kind = OP_SLICE, .dim = -1, .start = part * width, .length = width};
    made.inputs[0] = *projected;
    return append_stacked(scope, &made, "part", part, false, value);
}

/* Calls in_proj, attention and out_proj; inputs: query, key, value and mask, or -1. A projection
 * of one input by all of in_proj is taken as it is; of others, the parts that are needed. */
static status_t call_multihead(struct scope *scope, struct program_call *call, const int *inputs,
                               int *value)
{
    const struct module *leaf = &scope->reader->model->modules[call->module];
    bool bias = leaf->parameter_count > 2, same = inputs[0] == inputs[1] && inputs[0] == inputs[2];
    struct program_call attention = *call;
    int projected[3] = {-1, -1, -1};
    for (int i = 0; i < 3; i++) {
        int of = i;
        for (int k = i - 1; k >= 0; k--)
            if (inputs[k] == inputs[i]) of = k;
        TRY(append_part(scope, call, inputs[i], i, &projected[of], &attention.inputs[i]));
    }
    if (same) {
        attention.inputs[0] = projected[0];
        attention.inputs[1] = attention.inputs[2] = -1;
    }
    attention.inputs[3] = inputs[3];
    TRY(append_stacked(scope, &attention, "attention", 0, false, value));
    struct program_call out = *call;
    out.layer = (struct layer){.kind = OP_LINEAR};
    out.inputs[0] = *value;
    out.weight = leaf->parameters[bias ? 2 : 1];
    if (bias) out.bias = leaf->parameters[3];
    TRY(append_stacked(scope, &out, "out_proj", 0, false, value));
    scope->reader->states[call->module].uses++;
    return NULL;
}

static status_t read_flag(struct scope *scope, const struct expression *given, bool *flag)
{
    struct environment environment = scope_environment(scope);
    if (given == NULL) return NULL;
    return scope_wrap(scope, constant_evaluate_condition(given, &environment, flag));
}

status_t trace_multihead(struct scope *scope, int module, const struct expression *call, int *value)
{
    enum { TENSORS = 4 };
    static const char *const names[] = {"query", "key",       "value",
                                        "mask",  "is_causal", "need_weights"};
    const struct expression *slots[COUNT_OF(names)];
    int inputs[TENSORS] = {-1, -1, -1, -1};
    bool causal = false, weights = false;
    TRY(scope_wrap(scope, arguments_place(call, call->text, names, COUNT_OF(names), slots)));
    for (int i = 0; i < TENSORS; i++)
        if (slots[i] != NULL) TRY(trace_evaluate(scope, slots[i], &inputs[i]));
    if (inputs[0] < 0 || inputs[1] < 0 || inputs[2] < 0)
        return scope_error(scope, "module '%s' takes query, key and value, as in %s(x, x, x)",
                           scope->reader->model->modules[module].path, call->text);
    TRY(read_flag(scope, slots[4], &causal));
    TRY(read_flag(scope, slots[5], &weights));
    if (weights)
        return scope_error(scope, "module '%s' gives no weights: need_weights=False",
                           scope->reader->model->modules[module].path);
    struct program_call made = {.layer = scope->reader->states[module].layer,
                                .inputs = {-1, -1, -1, -1, -1},
                                .weight = -1,
                                .bias = -1,
                                .module = module,
                                .leaf = true,
                                .line = scope->line};
    made.layer.attrs.attention.causal = causal;
    return call_multihead(scope, &made, inputs, value);
}

status_t trace_leaf(struct scope *scope, int module, int input, int *value)
{
    const struct module *leaf = &scope->reader->model->modules[module];
    struct module_state *state = &scope->reader->states[module];
    struct program_call call = {
        .layer = state->layer,
        .inputs = {input, -1, -1, -1, -1},
        .weight = -1,
        .bias = -1,
        .module = module,
        .leaf = true,
        .line = scope->line,
    };
    int buffers = 0;
    if (call.layer.kind == OP_RECURRENT) return call_recurrent(scope, &call, value);
    if (call.layer.kind == OP_ATTENTION)
        return scope_error(scope, "module '%s' takes query, key and value, not one tensor",
                           leaf->path);
    for (int i = 0; i < leaf->parameter_count; i++) {
        int parameter = leaf->parameters[i];
        if (scope->reader->model->parameters[parameter].buffer != MODEL_BUFFER_NONE)
            call.buffers[buffers++] = parameter;
        else *(i == 0 ? &call.weight : &call.bias) = parameter;
    }
    TRY(trace_name(scope, leaf->path, "", state->uses++, &call.name));
    return trace_emit(scope, &call, value);
}
