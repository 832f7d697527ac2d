/* Binding of calls to signatures; see arguments.h. Pure. */
#include "model/arguments.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "yaml/yaml.h"

static int find_name(const char *const *names, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

static status_t unknown_keyword(const char *call, const char *keyword, const char *const *names,
                                int count)
{
    char found[72];
    const char *nearest = text_nearest(keyword, names, (size_t)count);
    return status_new(STATUS_INVALID_ARGUMENT, "%s() has no argument '%s'%s%s%s", call,
                      yamldoc_excerpt(keyword, found), nearest ? "; did you mean '" : "",
                      nearest ? nearest : "", nearest ? "'?" : "");
}

status_t arguments_place(const struct expression *call, const char *name, const char *const *names,
                         int count, const struct expression **slots)
{
    for (int i = 0; i < count; i++) slots[i] = NULL;
    for (int i = 0; i < call->item_count; i++) {
        int slot = i;
        if (call->keywords[i]) {
            slot = find_name(names, count, call->keywords[i]);
            if (slot < 0) return unknown_keyword(name, call->keywords[i], names, count);
        }
        if (slot >= count)
            return status_new(STATUS_INVALID_ARGUMENT, "%s() takes %s%d argument%s, found %d", name,
                              count ? "at most " : "", count, count == 1 ? "" : "s",
                              call->item_count);
        if (slots[slot])
            return status_new(STATUS_INVALID_ARGUMENT, "%s(): argument '%s' is given twice", name,
                              names[slot]);
        slots[slot] = call->items[i];
    }
    return NULL;
}

static bool is_integer_in(const struct constant *value, int64_t minimum)
{
    return value->kind == CONSTANT_INTEGER && value->integer >= minimum &&
           value->integer <= INT32_MAX;
}

static bool is_pair_in(const struct constant *value, int64_t minimum)
{
    if (value->kind == CONSTANT_INTEGER) return is_integer_in(value, minimum);
    return value->kind == CONSTANT_PAIR && value->integer >= minimum && value->second >= minimum &&
           value->integer <= INT32_MAX && value->second <= INT32_MAX;
}

static bool is_probability(const struct constant *value)
{
    if (value->kind == CONSTANT_INTEGER) return value->integer == 0;
    return value->kind == CONSTANT_REAL && value->real >= 0 && value->real < 1;
}

static bool is_word(const struct constant *value, const char *first, const char *second)
{
    return value->kind == CONSTANT_TEXT &&
           (strcmp(value->text, first) == 0 || strcmp(value->text, second) == 0);
}

static bool is_at_least(const struct constant *value, double minimum)
{
    if (value->kind == CONSTANT_INTEGER) return (double)value->integer >= minimum;
    return value->kind == CONSTANT_REAL && value->real >= minimum && isfinite(value->real);
}

static bool is_positive(const struct constant *value)
{
    return is_at_least(value, 0) &&
           !(value->kind == CONSTANT_INTEGER ? value->integer == 0 : value->real == 0);
}

static const char *check_value(enum argument_kind kind, const struct constant *value)
{
    bool none = value->kind == CONSTANT_NONE;
    switch (kind) {
    case ARGUMENT_TENSOR:
    case ARGUMENT_OPTIONAL_TENSOR:
    case ARGUMENT_NUMBERS: return NULL;
    case ARGUMENT_SIZE: return is_integer_in(value, 1) ? NULL : "a positive integer below 2^31";
    case ARGUMENT_INTEGER: return is_integer_in(value, INT32_MIN) ? NULL : "an integer";
    case ARGUMENT_WINDOW:
        return is_pair_in(value, 1) ? NULL : "a positive integer or a pair of them";
    case ARGUMENT_STRIDE:
        if (none) return NULL;
        return is_pair_in(value, 1) ? NULL : "a positive integer, a pair of them, or None";
    case ARGUMENT_PADDING:
        return is_pair_in(value, 0) ? NULL : "an integer of at least 0 or a pair of them";
    case ARGUMENT_PROBABILITY: return is_probability(value) ? NULL : "a number from 0 to below 1";
    case ARGUMENT_BOOLEAN: return value->kind == CONSTANT_BOOLEAN ? NULL : "True or False";
    case ARGUMENT_REDUCTION: return is_word(value, "sum", "mean") ? NULL : "\"sum\" or \"mean\"";
    case ARGUMENT_DIVIDED:
        return is_word(value, "sum", "mean") || is_word(value, "batchmean", "batchmean")
                   ? NULL
                   : "\"batchmean\", \"sum\" or \"mean\"";
    case ARGUMENT_APPROXIMATE:
        return is_word(value, "none", "tanh") ? NULL : "\"none\" or \"tanh\"";
    case ARGUMENT_SCALING:
        return none || is_word(value, "linear", "llama3") || is_word(value, "yarn", "longrope")
                   ? NULL
                   : "\"linear\", \"llama3\", \"yarn\", \"longrope\" or None";
    case ARGUMENT_POSITIVE: return is_positive(value) ? NULL : "a number above 0";
    case ARGUMENT_MAYBE_POSITIVE:
        return none || is_positive(value) ? NULL : "a number above 0, or None";
    case ARGUMENT_REAL: return is_at_least(value, -DBL_MAX) ? NULL : "a number";
    case ARGUMENT_EPSILON: return is_at_least(value, 0) ? NULL : "a number of at least 0";
    case ARGUMENT_MAYBE_EPSILON:
        return none || is_at_least(value, 0) ? NULL : "a number of at least 0, or None";
    case ARGUMENT_MAYBE_SIZE:
        return none || is_integer_in(value, 1) ? NULL : "a positive integer below 2^31, or None";
    case ARGUMENT_MAYBE_INDEX:
        return none || is_integer_in(value, INT32_MIN) ? NULL : "an integer, or None";
    case ARGUMENT_SHAPE: return NULL; /* see bind_shape */
    }
    return NULL;
}

/* "x.shape[0]", which expressions read as this name, or "x.size(0)". */
static bool is_batch(const struct expression *expression)
{
    const char *dot = expression->text != NULL ? strchr(expression->text, '.') : NULL;
    if (dot == NULL) return false;
    if (expression->kind == EXPRESSION_NAME) return strcmp(dot, ".shape.0") == 0;
    return expression->kind == EXPRESSION_CALL && strcmp(dot, ".size") == 0 &&
           expression->item_count == 1 && expression->keywords[0] == NULL &&
           expression->items[0]->kind == EXPRESSION_INTEGER && expression->items[0]->integer == 0;
}

/* One size of a shape. */
static status_t bind_size(const struct constant *value, struct bound *bound)
{
    char found[64];
    bool inferred = value->kind == CONSTANT_INTEGER && value->integer == BOUND_INFERRED;
    for (int i = 0; i < bound->shape_count && inferred; i++)
        if (bound->shape[i] == BOUND_INFERRED)
            return status_new(STATUS_INVALID_ARGUMENT, "only one size can be -1");
    if (!inferred && !is_integer_in(value, 1))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "expected a positive integer below 2^31 or -1, found %s",
                          constant_format(value, found));
    bound->shape[bound->shape_count++] = value->integer;
    return NULL;
}

static status_t bind_shape(const struct expression *given, const struct environment *environment,
                           struct bound *bound)
{
    bool written = given->kind == EXPRESSION_TUPLE || given->kind == EXPRESSION_LIST;
    struct constant whole = {.kind = CONSTANT_LIST, .integer = given->item_count}, pair[2], size;
    if (!written) TRY(constant_evaluate(given, environment, &whole));
    if (whole.kind == CONSTANT_PAIR) {
        for (int i = 0; i < 2; i++) pair[i].kind = CONSTANT_INTEGER;
        pair[0].integer = whole.integer;
        pair[1].integer = whole.second;
        whole = (struct constant){.kind = CONSTANT_LIST, .integer = 2, .items = pair};
    }
    if (whole.kind != CONSTANT_LIST || whole.integer < 1 || whole.integer > BOUND_SHAPE_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "expected 1 to %d sizes, as in (2, 3)",
                          BOUND_SHAPE_MAX);
    for (int i = 0; i < (int)whole.integer; i++) {
        if (written && i == 0 && is_batch(given->items[i])) {
            bound->shape[bound->shape_count++] = BOUND_BATCH;
            continue;
        }
        if (written) TRY(constant_evaluate(given->items[i], environment, &size));
        TRY(bind_size(written ? &size : &whole.items[i], bound));
    }
    return NULL;
}

static status_t bind_argument(const struct argument *argument, const char *call,
                              const struct expression *given, const struct environment *environment,
                              struct constant *value)
{
    status_t status = constant_evaluate(given, environment, value);
    if (status) return status_wrap(status, "%s(): argument '%s'", call, argument->name);
    const char *expected = check_value(argument->kind, value);
    if (!expected) return NULL;
    char found[64], excerpt[72];
    constant_format(value, found);
    return status_new(STATUS_INVALID_ARGUMENT, "%s(): argument '%s': expected %s, found %s", call,
                      argument->name, expected, yamldoc_excerpt(found, excerpt));
}

status_t arguments_bind(const struct expression *call, const struct signature *signature,
                        const struct environment *environment, struct bound *bound)
{
    const char *names[ARGUMENTS_MAX];
    const struct expression *slots[ARGUMENTS_MAX];
    for (int i = 0; i < signature->count; i++) names[i] = signature->arguments[i].name;
    TRY(arguments_place(call, signature->name, names, signature->count, slots));

    struct bound made = {.signature = signature};
    for (int i = 0; i < signature->count; i++) {
        const struct argument *argument = &signature->arguments[i];
        if (!slots[i] && argument->required)
            return status_new(STATUS_INVALID_ARGUMENT, "%s(): argument '%s' is missing",
                              signature->name, argument->name);
        bool none = slots[i] && slots[i]->kind == EXPRESSION_NONE &&
                    argument->kind == ARGUMENT_OPTIONAL_TENSOR;
        if (argument_is_tensor(argument) || argument->kind == ARGUMENT_NUMBERS)
            made.tensors[i] = none ? NULL : slots[i];
        else if (argument->kind == ARGUMENT_SHAPE)
            TRY(status_wrap(bind_shape(slots[i], environment, &made), "%s(): argument '%s'",
                            signature->name, argument->name));
        else if (!slots[i]) made.values[i] = argument->standard;
        else TRY(bind_argument(argument, signature->name, slots[i], environment, &made.values[i]));
    }
    *bound = made;
    return NULL;
}

bool argument_is_tensor(const struct argument *argument)
{
    return argument->kind == ARGUMENT_TENSOR || argument->kind == ARGUMENT_OPTIONAL_TENSOR;
}

const struct constant *bound_get(const struct bound *bound, const char *name)
{
    for (int i = 0; i < bound->signature->count; i++)
        if (strcmp(bound->signature->arguments[i].name, name) == 0) return &bound->values[i];
    abort(); /* the caller's table is wrong */
}

int64_t bound_integer(const struct bound *bound, const char *name)
{
    return bound_get(bound, name)->integer;
}

double bound_real(const struct bound *bound, const char *name)
{
    const struct constant *value = bound_get(bound, name);
    return value->kind == CONSTANT_INTEGER ? (double)value->integer : value->real;
}

bool bound_none(const struct bound *bound, const char *name)
{
    return bound_get(bound, name)->kind == CONSTANT_NONE;
}

bool bound_boolean(const struct bound *bound, const char *name)
{
    return bound_get(bound, name)->integer != 0;
}

void bound_pair(const struct bound *bound, const char *name, int64_t pair[2])
{
    const struct constant *value = bound_get(bound, name);
    pair[0] = value->integer;
    pair[1] = value->kind == CONSTANT_PAIR ? value->second : value->integer;
}
