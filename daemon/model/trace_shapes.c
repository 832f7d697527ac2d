/* Functions on shapes and masks that have a form of their own in the language; see trace.h. */
#include <string.h>

#include "base/array.h"
#include "model/layers_internal.h"
#include "model/trace.h"

/* "cat([a, b, c], dim=1)" as cat(cat(a, b), c). */
status_t trace_cat(struct scope *scope, const struct layer_type *function,
                   const struct expression *call, int *value)
{
    enum { PARTS_MAX = 16 };
    const char *const names[] = {"tensors", "dim"};
    const struct expression *slots[2];
    TRY(scope_wrap(scope, arguments_place(call, "cat", names, COUNT_OF(names), slots)));
    const struct expression *parts = slots[0];
    if (!parts || (parts->kind != EXPRESSION_LIST && parts->kind != EXPRESSION_TUPLE) ||
        parts->item_count < 2 || parts->item_count > PARTS_MAX || !slots[1])
        return scope_error(scope,
                           "cat(): expected 2 to %d tensors and a dimension, as in "
                           "cat([x, y], dim=1)",
                           PARTS_MAX);
    struct environment environment = scope_environment(scope);
    struct constant dim;
    TRY(scope_wrap(scope, constant_evaluate(slots[1], &environment, &dim)));
    if (dim.kind != CONSTANT_INTEGER || dim.integer < -TENSOR_MAX_DIMS ||
        dim.integer >= TENSOR_MAX_DIMS)
        return scope_error(scope, "cat(): argument 'dim': expected a dimension");
    TRY(trace_evaluate(scope, parts->items[0], value));
    for (int i = 1; i < parts->item_count; i++) {
        struct program_call made = {.layer = {.kind = OP_CONCAT, .dim = (int)dim.integer},
                                    .inputs = {*value, -1, -1, -1, -1},
                                    .weight = -1,
                                    .bias = -1,
                                    .module = scope->module,
                                    .line = scope->line};
        TRY(trace_evaluate(scope, parts->items[i], &made.inputs[1]));
        TRY(trace_function(scope, function, &made, value));
    }
    return NULL;
}

/* Nearest neighbours: each row and column, dimensions 2 and 3, as often as the factor says. */
status_t trace_interpolate(struct scope *scope, const struct layer_type *function,
                           const struct expression *call, int *value)
{
    struct environment environment = scope_environment(scope);
    struct bound bound;
    TRY(scope_wrap(scope, arguments_bind(call, &function->signature, &environment, &bound)));
    TRY(trace_evaluate(scope, bound.tensors[0], value));
    for (int dim = 2; dim <= 3; dim++) {
        struct program_call made = {.layer = {.kind = OP_MEAN_BACKWARD,
                                              .attrs.mean.sum = true,
                                              .dim = dim + 1,
                                              .length = bound_integer(&bound, "scale_factor"),
                                              .function = "interpolate"},
                                    .inputs = {*value, -1, -1, -1, -1},
                                    .weight = -1,
                                    .bias = -1,
                                    .module = scope->module,
                                    .line = scope->line};
        TRY(trace_function(scope, function, &made, value));
        made.layer = (struct layer){.kind = OP_RESHAPE,
                                    .start_dim = dim,
                                    .end_dim = dim + 1,
                                    .sizes = {BOUND_INFERRED},
                                    .size_count = 1,
                                    .function = "flatten"};
        made.inputs[0] = *value;
        TRY(trace_function(scope, layer_find_function("flatten"), &made, value));
    }
    return NULL;
}

/* An end of a range, or a place; *given is false for None. */
static status_t place_of(struct scope *scope, const struct expression *end, int64_t *place,
                         bool *given)
{
    struct environment environment = scope_environment(scope);
    struct constant found;
    char text[64];
    TRY(scope_wrap(scope, constant_evaluate(end, &environment, &found)));
    *given = found.kind != CONSTANT_NONE;
    if (*given) *place = found.integer;
    if (!*given || found.kind == CONSTANT_INTEGER) return NULL;
    return scope_error(scope, "expected an integer in [ ], found %s",
                       constant_format(&found, text));
}

/* One part of "x[:, 0, 1:, None]": dimension *dim of *value, and then the next one. */
static status_t take_part(struct scope *scope, const struct expression *part, int *dim, int *value)
{
    struct program_call made = {.layer = {.kind = OP_SLICE, .dim = *dim},
                                .inputs = {*value, -1, -1, -1, -1},
                                .weight = -1,
                                .bias = -1,
                                .module = scope->module,
                                .line = scope->line};
    const char *name = "narrow";
    bool range = part->kind == EXPRESSION_SLICE, starts, stops = false;
    TRY(place_of(scope, range ? part->items[0] : part, &made.layer.start, &starts));
    if (range) {
        TRY(place_of(scope, part->items[1], &made.layer.stop, &stops));
        if (!stops) made.layer.stop = INT64_MAX;
        made.layer.has_stop = true;
        (*dim)++;
        if (!starts && !stops) return NULL;
    } else if (!starts) { /* None: a new dimension */
        name = "unsqueeze";
        made.layer = (struct layer){.kind = OP_RESHAPE,
                                    .start_dim = *dim,
                                    .end_dim = *dim - 1,
                                    .sizes = {1},
                                    .size_count = 1,
                                    .function = name};
        (*dim)++;
    }
    return trace_function(scope, layer_find_function(name), &made, value);
}

static status_t trace_slices(struct scope *scope, const struct expression *whole, int *value)
{
    const struct expression *parts = whole->items[1], *first = parts;
    if (parts->kind == EXPRESSION_TUPLE && parts->item_count > 0) first = parts->items[0];
    bool all = first->kind == EXPRESSION_SLICE && first->items[0]->kind == EXPRESSION_NONE &&
               first->items[1]->kind == EXPRESSION_NONE;
    int dim = 1;
    if (!all)
        return scope_error(scope, "the batch is dimension 0 and stays whole, as in x[:, 0] or "
                                  "x[:, 1:-1]; one of several tensors has a place in [ ] only "
                                  "behind chunk(x, 2, dim=1)");
    TRY(trace_evaluate(scope, whole->items[0], value));
    for (int i = 1; i < parts->item_count; i++) TRY(take_part(scope, parts->items[i], &dim, value));
    return NULL;
}

/* Evaluates "chunk(x, 3, dim=1)[0]", a call with one argument more, or "x[:, 0]". */
status_t trace_part(struct scope *scope, const struct expression *part, int *value)
{
    enum { ARGUMENTS = 3 };
    const struct expression *call = part->items[0];
    if (call->kind != EXPRESSION_CALL || strcmp(skip_python_prefix(call->text), "chunk") != 0 ||
        call->item_count > ARGUMENTS || part->items[1]->kind == EXPRESSION_TUPLE)
        return trace_slices(scope, part, value);
    struct expression *items[ARGUMENTS + 1];
    char *keywords[ARGUMENTS + 1], index[] = "index";
    for (int i = 0; i < call->item_count; i++) {
        items[i] = call->items[i];
        keywords[i] = call->keywords[i];
    }
    items[call->item_count] = part->items[1];
    keywords[call->item_count] = index;
    struct expression whole = {.kind = EXPRESSION_CALL,
                               .text = call->text,
                               .items = items,
                               .keywords = keywords,
                               .item_count = call->item_count + 1};
    return trace_call(scope, layer_find_function("chunk"), &whole, value);
}

/* 1 where x is above `number`, or at least that; with `down` below it, or at most that. */
static status_t compare(struct scope *scope, enum op_function kind, bool down, double number, int x,
                        int *value)
{
    const struct layer layer = {.kind = OP_FUNCTION,
                                .attrs.function = {down ? -number : number, kind}};
    if (down) TRY(trace_scale(scope, -1, 0, x, &x));
    return trace_layer(scope, &layer, "compare", (int[]){x, -1}, value);
}

status_t trace_compare(struct scope *scope, const struct expression *comparison, int *value)
{
    bool first = trace_is_number(scope, comparison->items[0]);
    bool down = (comparison->sign == '<' || comparison->sign == 'm') != first;
    double number;
    int x, inputs[2];
    if (first == trace_is_number(scope, comparison->items[1]) || comparison->sign == 'i')
        return scope_error(scope, "a tensor is compared with a number; of two tensors compare the "
                                  "difference, as in a - b > 0");
    TRY(trace_number(scope, comparison->items[!first], &number));
    TRY(trace_evaluate(scope, comparison->items[first], &x));
    if (comparison->sign == '<' || comparison->sign == '>')
        return compare(scope, FUNCTION_ABOVE, down, number, x, value);
    if (comparison->sign == 'm' || comparison->sign == 'l')
        return compare(scope, FUNCTION_AT_LEAST, down, number, x, value);
    TRY(compare(scope, FUNCTION_AT_LEAST, false, number, x, &inputs[0]));
    TRY(compare(scope, FUNCTION_AT_LEAST, true, number, x, &inputs[1]));
    TRY(trace_layer(scope, &(struct layer){.kind = OP_MUL}, "both", inputs, value));
    return comparison->sign == 'e' ? NULL : trace_scale(scope, -1, 1, *value, value);
}

/* A tensor where the mask is 1, or a number; *part is -1 for 0. */
static status_t take_masked(struct scope *scope, const struct expression *from, int mask, int *part)
{
    double number;
    *part = -1;
    if (trace_is_number(scope, from)) {
        TRY(trace_number(scope, from, &number));
        return number == 0 ? NULL : trace_scale(scope, number, 0, mask, part);
    }
    int inputs[] = {-1, mask};
    TRY(trace_evaluate(scope, from, &inputs[0]));
    return trace_layer(scope, &(struct layer){.kind = OP_RELU_BACKWARD}, "where", inputs, part);
}

/* What is not chosen is 0, whatever it was, so that the sum is what is chosen. */
status_t trace_where(struct scope *scope, const struct layer_type *function,
                     const struct expression *call, int *value)
{
    static const char *const all[][3] = {{"condition", "input", "other"},
                                         {"input", "mask", "value"}};
    const char *name = function->signature.name;
    bool fills = strcmp(name, "masked_fill") == 0;
    const char *const *names = all[fills];
    const struct expression *slots[3];
    int mask, parts[2];
    TRY(scope_wrap(scope, arguments_place(call, name, names, COUNT_OF(slots), slots)));
    if (!slots[0] || !slots[1] || !slots[2])
        return scope_error(scope, "%s() takes %s, %s and %s", name, names[0], names[1], names[2]);
    TRY(trace_evaluate(scope, slots[fills], &mask));
    if (mask == 0 || !scope->reader->model->program->calls[mask - 1].mask)
        return scope_error(scope, "%s(): argument '%s': expected a comparison such as x > 0", name,
                           names[fills]);
    TRY(take_masked(scope, slots[1 + fills], mask, &parts[0]));
    TRY(trace_scale(scope, -1, 1, mask, &mask));
    TRY(take_masked(scope, slots[fills ? 0 : 2], mask, &parts[1]));
    if (parts[0] >= 0 && parts[1] >= 0)
        return trace_layer(scope, &(struct layer){.kind = OP_ADD}, "chosen", parts, value);
    *value = parts[parts[0] < 0];
    return *value >= 0 ? NULL : trace_scale(scope, 0, 0, mask, value);
}

/* The mean of what is not below the largest; that comparison has no gradient. */
status_t trace_amax(struct scope *scope, const struct layer_type *function,
                    const struct expression *call, int *value)
{
    int most, mask, below[2], parts[2];
    TRY(trace_call(scope, function, call, &most));
    const struct program_call made = scope->reader->model->program->calls[most - 1];
    const struct layer alone = {.kind = OP_RESHAPE,
                                .start_dim = made.layer.dim,
                                .end_dim = made.layer.dim - 1,
                                .sizes = {1},
                                .size_count = 1,
                                .function = "unsqueeze"};
    const struct layer sum = {.kind = OP_MEAN, .dim = made.layer.dim, .attrs.mean.sum = true};
    TRY(trace_layer(scope, &alone, "unsqueeze", (int[]){most, -1}, &below[0]));
    TRY(trace_scale(scope, -1, 0, made.inputs[0], &below[1]));
    TRY(trace_layer(scope, &(struct layer){.kind = OP_ADD}, "add", below, &mask));
    TRY(compare(scope, FUNCTION_ABOVE, false, 0, mask, &mask)); /* not of infinity less itself */
    TRY(trace_scale(scope, -1, 1, mask, &mask));
    TRY(trace_layer(scope, &(struct layer){.kind = OP_RELU_BACKWARD}, "where",
                    (int[]){made.inputs[0], mask}, &parts[0]));
    TRY(trace_layer(scope, &sum, "sum", (int[]){parts[0], -1}, &parts[0]));
    TRY(trace_layer(scope, &sum, "sum", (int[]){mask, -1}, &parts[1]));
    return trace_layer(scope, &(struct layer){.kind = OP_DIV}, "div", parts, value);
}

/* The part of a sample's row that an input is, in its shape. */
status_t trace_input(struct scope *scope, const struct model_input *input, int *value)
{
    const struct tensor_type *type = &input->type;
    struct layer part = {.kind = OP_SLICE,
                         .dim = 1,
                         .start = input->start,
                         .length = tensor_element_count(type)};
    struct layer shape = {.kind = OP_RESHAPE,
                          .start_dim = 1,
                          .end_dim = 1,
                          .size_count = type->dim_count,
                          .function = "unflatten"};
    memcpy(shape.sizes, type->dims, (size_t)type->dim_count * sizeof *type->dims);
    if (type->dtype == DTYPE_I32) {
        part.kind = OP_TOKENS;
        part.attrs.tokens.start = input->start;
        part.attrs.tokens.count = (int32_t)scope->reader->model->vocabulary;
    }
    struct program_call call = {.layer = part,
                                .inputs = {0, -1, -1, -1, -1},
                                .weight = -1,
                                .bias = -1,
                                .line = scope->line};
    TRY(trace_name(scope, "input", input->name, 0, &call.name));
    TRY(trace_emit(scope, &call, value));
    if (type->dim_count == 1) return NULL;
    AUTO_FREE char *shaped = mem_printf("%s.shape", input->name);
    call.layer = shape;
    call.inputs[0] = *value;
    TRY(trace_name(scope, "input", shaped, 0, &call.name));
    return trace_emit(scope, &call, value);
}
