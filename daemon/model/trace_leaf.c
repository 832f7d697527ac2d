/* Appends calls to the program; see trace.h. A module may be several calls. */
#include "model/trace.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

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
    bool lacks = true;
    for (int i = 0; i < LAYER_MAX_TENSORS; i++) {
        int input = call->inputs[i];
        if (input >= 0) lacks &= input > 0 && model->program->calls[input - 1].without_batch;
    }
    return lacks;
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
    for (int i = 0; i < leaf->parameter_count; i++) {
        int parameter = leaf->parameters[i];
        if (scope->reader->model->parameters[parameter].buffer != MODEL_BUFFER_NONE)
            call.buffers[buffers++] = parameter;
        else *(i == 0 ? &call.weight : &call.bias) = parameter;
    }
    TRY(trace_name(scope, leaf->path, "", state->uses++, &call.name));
    return trace_emit(scope, &call, value);
}
