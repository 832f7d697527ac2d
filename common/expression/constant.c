/* See constant.h. Recursion is bounded by the depth that expression_parse allows. */
#include "expression/constant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "base/text.h"
#include "expression/tokens.h"
#include "yaml/yaml.h"

static status_t refuse(const char *message)
{
    return status_new(STATUS_INVALID_ARGUMENT, "%s", message);
}

const struct constant *environment_find(const struct environment *environment, const char *name)
{
    for (; environment != NULL; environment = environment->outer)
        for (int i = 0; i < environment->count; i++)
            if (strcmp(environment->names[i], name) == 0) return &environment->values[i];
    return NULL;
}

static status_t unknown_name(const char *name, const struct environment *environment)
{
    size_t count = 0, at = 0;
    for (const struct environment *e = environment; e != NULL; e = e->outer)
        count += (size_t)e->count;
    AUTO_FREE const char **names = mem_alloc_array(count + 1, sizeof *names);
    for (const struct environment *e = environment; e != NULL; e = e->outer)
        for (int i = 0; i < e->count; i++) names[at++] = e->names[i];
    char found[72];
    const char *nearest = text_nearest(name, names, count);
    return status_new(STATUS_INVALID_ARGUMENT, "unknown name '%s'%s%s%s",
                      yamldoc_excerpt(name, found), nearest ? "; did you mean '" : "",
                      nearest ? nearest : "", nearest ? "'?" : "");
}

static status_t list_item(const struct constant *list, int64_t index, struct constant *constant)
{
    if (list->kind != CONSTANT_LIST) return refuse("only a list has elements");
    if (index < -list->integer || index >= list->integer)
        return status_new(STATUS_INVALID_ARGUMENT, "a list of %lld has no element %lld",
                          (long long)list->integer, (long long)index);
    *constant = list->items[index < 0 ? index + list->integer : index];
    return NULL;
}

/* "width", or "sizes.0", as sizes[0] is read. */
static status_t evaluate_name(const char *name, const struct environment *environment,
                              struct constant *constant)
{
    const struct constant *found = environment_find(environment, name);
    if (found != NULL) {
        *constant = *found;
        return NULL;
    }
    const char *dot = strrchr(name, '.');
    int64_t index;
    if (dot == NULL || !text_parse_i64(dot + 1, &index)) return unknown_name(name, environment);
    AUTO_FREE char *list = mem_strndup(name, (size_t)(dot - name));
    found = environment_find(environment, list);
    return found != NULL ? list_item(found, index, constant) : unknown_name(list, environment);
}

static status_t evaluate_index(const struct expression *element,
                               const struct environment *environment, struct constant *constant)
{
    struct constant list, index;
    TRY(constant_evaluate(element->items[0], environment, &list));
    TRY(constant_evaluate(element->items[1], environment, &index));
    if (index.kind != CONSTANT_INTEGER) return refuse("the number of an element is an integer");
    return list_item(&list, index.integer, constant);
}

static status_t evaluate_pair(const struct expression *tuple, const struct environment *environment,
                              struct constant *constant)
{
    if (tuple->item_count == 1) /* normalized_shape=(768,) */
        return constant_evaluate(tuple->items[0], environment, constant);
    if (tuple->item_count != 2)
        return status_new(STATUS_INVALID_ARGUMENT, "expected a pair of integers, found %d values",
                          tuple->item_count);
    struct constant parts[2];
    for (int i = 0; i < 2; i++) {
        TRY(constant_evaluate(tuple->items[i], environment, &parts[i]));
        if (parts[i].kind != CONSTANT_INTEGER)
            return status_new(STATUS_INVALID_ARGUMENT, "a pair must consist of integers");
    }
    *constant = (struct constant){.kind = CONSTANT_PAIR,
                                  .integer = parts[0].integer,
                                  .second = parts[1].integer};
    return NULL;
}

static bool is_number(const struct constant *constant)
{
    return constant->kind == CONSTANT_INTEGER || constant->kind == CONSTANT_REAL;
}

static double as_real(const struct constant *constant)
{
    return constant->kind == CONSTANT_INTEGER ? (double)constant->integer : constant->real;
}

static status_t combine_integers(char sign, int64_t a, int64_t b, int64_t *result)
{
    bool overflow = false;
    if (sign == '+') overflow = __builtin_add_overflow(a, b, result);
    else if (sign == '-') overflow = __builtin_sub_overflow(a, b, result);
    else if (sign == '*') overflow = __builtin_mul_overflow(a, b, result);
    else if (b == 0) return refuse("division by zero");
    else if (a == INT64_MIN && b == -1) overflow = true;
    else if (sign == '%') *result = a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
    else *result = a / b - (a % b != 0 && (a < 0) != (b < 0)); /* floor, as in Python */
    if (overflow) return status_new(STATUS_INVALID_ARGUMENT, "an integer passes 64 bits");
    return NULL;
}

static status_t combine_reals(char sign, double a, double b, double *result)
{
    if (strchr("/f%", sign) && b == 0) return refuse("division by zero");
    double value = sign == '+'   ? a + b
                   : sign == '-' ? a - b
                   : sign == '*' ? a * b
                   : sign == '/' ? a / b
                   : sign == '%' ? a - b * floor(a / b)
                                 : floor(a / b);
    if (!isfinite(value)) return status_new(STATUS_INVALID_ARGUMENT, "a number is too large");
    *result = value;
    return NULL;
}

static status_t evaluate_binary(const struct expression *binary,
                                const struct environment *environment, struct constant *constant)
{
    struct constant left, right;
    TRY(constant_evaluate(binary->items[0], environment, &left));
    TRY(constant_evaluate(binary->items[1], environment, &right));
    if (!is_number(&left) || !is_number(&right))
        return status_new(STATUS_INVALID_ARGUMENT, "arithmetic needs numbers on both sides");
    struct constant result = {.kind = CONSTANT_INTEGER};
    if (left.kind == CONSTANT_INTEGER && right.kind == CONSTANT_INTEGER && binary->sign != '/') {
        TRY(combine_integers(binary->sign, left.integer, right.integer, &result.integer));
    } else {
        result.kind = CONSTANT_REAL;
        TRY(combine_reals(binary->sign, as_real(&left), as_real(&right), &result.real));
    }
    *constant = result;
    return NULL;
}

static status_t evaluate_negate(const struct expression *negate,
                                const struct environment *environment, struct constant *constant)
{
    struct constant operand;
    TRY(constant_evaluate(negate->items[0], environment, &operand));
    if (!is_number(&operand))
        return status_new(STATUS_INVALID_ARGUMENT, "a minus sign needs a number");
    if (operand.kind == CONSTANT_INTEGER)
        TRY(combine_integers('-', 0, operand.integer, &operand.integer));
    operand.real = -operand.real;
    *constant = operand;
    return NULL;
}

static bool are_equal(const struct constant *a, const struct constant *b)
{
    if (is_number(a) && is_number(b)) return as_real(a) == as_real(b);
    if (a->kind != b->kind) return false;
    switch (a->kind) {
    case CONSTANT_NONE: return true;
    case CONSTANT_BOOLEAN: return a->integer == b->integer;
    case CONSTANT_TEXT: return strcmp(a->text, b->text) == 0;
    case CONSTANT_PAIR: return a->integer == b->integer && a->second == b->second;
    case CONSTANT_INTEGER:
    case CONSTANT_REAL:
    case CONSTANT_LIST: break; /* numbers were compared above */
    }
    bool equal = a->integer == b->integer;
    for (int64_t i = 0; i < a->integer && equal; i++) equal = are_equal(&a->items[i], &b->items[i]);
    return equal;
}

static status_t is_among(const struct constant *value, const struct constant *list, bool *among)
{
    if (list->kind != CONSTANT_LIST) return refuse("'in' needs a list behind it");
    *among = false;
    for (int64_t i = 0; i < list->integer; i++) *among |= are_equal(value, &list->items[i]);
    return NULL;
}

static status_t compare(char sign, const struct constant *a, const struct constant *b, bool *result)
{
    if (sign == 'i') return is_among(a, b, result);
    if (sign == PAIR_EQUAL || sign == PAIR_DIFFER) {
        *result = are_equal(a, b) == (sign == PAIR_EQUAL);
        return NULL;
    }
    if (!is_number(a) || !is_number(b)) return refuse("only numbers are less or more");
    double left = as_real(a), right = as_real(b);
    *result = sign == '<'            ? left < right
              : sign == '>'          ? left > right
              : sign == PAIR_AT_MOST ? left <= right
                                     : left >= right;
    return NULL;
}

/* "x in [1, 2]": a list that stands in the expression has no other use than this. */
static status_t compare_with_list(const struct expression *comparison,
                                  const struct environment *environment, bool *result)
{
    struct constant value, item;
    const struct expression *list = comparison->items[1];
    TRY(constant_evaluate(comparison->items[0], environment, &value));
    *result = false;
    for (int i = 0; i < list->item_count; i++) {
        TRY(constant_evaluate(list->items[i], environment, &item));
        *result |= are_equal(&value, &item);
    }
    return NULL;
}

static status_t evaluate_comparison(const struct expression *comparison,
                                    const struct environment *environment, bool *result)
{
    struct constant left, right;
    if (comparison->sign == 'i' && comparison->items[1]->kind == EXPRESSION_LIST)
        return compare_with_list(comparison, environment, result);
    TRY(constant_evaluate(comparison->items[0], environment, &left));
    TRY(constant_evaluate(comparison->items[1], environment, &right));
    return compare(comparison->sign, &left, &right, result);
}

/* As in Python, what decides already keeps the rest from being looked at. */
static status_t evaluate_logic(const struct expression *expression,
                               const struct environment *environment, struct constant *constant)
{
    bool value = false;
    if (expression->kind == EXPRESSION_COMPARE) {
        TRY(evaluate_comparison(expression, environment, &value));
    } else {
        TRY(constant_evaluate_condition(expression->items[0], environment, &value));
        if (expression->kind == EXPRESSION_NOT) value = !value;
        else if (value == (expression->kind == EXPRESSION_AND))
            TRY(constant_evaluate_condition(expression->items[1], environment, &value));
    }
    *constant = (struct constant){.kind = CONSTANT_BOOLEAN, .integer = value};
    return NULL;
}

status_t constant_evaluate_condition(const struct expression *expression,
                                     const struct environment *environment, bool *value)
{
    struct constant constant;
    TRY(constant_evaluate(expression, environment, &constant));
    char found[64];
    if (constant.kind != CONSTANT_BOOLEAN)
        return status_new(STATUS_INVALID_ARGUMENT, "a condition is True or False, found %s",
                          constant_format(&constant, found));
    *value = constant.integer != 0;
    return NULL;
}

static status_t evaluate_choice(const struct expression *choice,
                                const struct environment *environment, struct constant *constant)
{
    bool first = false;
    TRY(constant_evaluate_condition(choice->items[1], environment, &first));
    return constant_evaluate(choice->items[first ? 0 : 2], environment, constant);
}

/* sqrt(x), log(x), exp(x), min(a, b), max(a, b), int(x), len(list) */
static const struct {
    const char *name;
    int arguments;
} functions[] = {{"sqrt", 1}, {"log", 1}, {"exp", 1}, {"min", 2},
                 {"max", 2},  {"int", 1}, {"len", 1}};

/* COUNT_OF(functions) if there is none. */
static size_t find_function(const char *name)
{
    size_t function = 0;
    while (function < COUNT_OF(functions) && strcmp(functions[function].name, name) != 0)
        function++;
    return function;
}

bool constant_is_function(const char *name)
{
    return find_function(name) < COUNT_OF(functions);
}

static status_t evaluate_call(const struct expression *call, const struct environment *environment,
                              struct constant *constant)
{
    size_t function = find_function(call->text);
    char found[72];
    if (function == COUNT_OF(functions))
        return status_new(STATUS_INVALID_ARGUMENT, "expected a constant, found the call '%s()'",
                          yamldoc_excerpt(call->text, found));
    const char *name = functions[function].name;
    struct constant values[2];
    if (call->item_count != functions[function].arguments || call->keywords[0] != NULL ||
        call->keywords[call->item_count - 1] != NULL)
        return status_new(STATUS_INVALID_ARGUMENT, "%s() takes %d value%s", name,
                          functions[function].arguments,
                          functions[function].arguments == 1 ? "" : "s");
    for (int i = 0; i < call->item_count; i++) {
        TRY(constant_evaluate(call->items[i], environment, &values[i]));
        if (strcmp(name, "len") != 0 ? !is_number(&values[i]) : values[i].kind != CONSTANT_LIST)
            return status_new(STATUS_INVALID_ARGUMENT, "%s() takes %s", name,
                              strcmp(name, "len") != 0 ? "numbers" : "a list");
    }
    double x = as_real(&values[0]);
    *constant = values[0];
    if (strcmp(name, "min") == 0 || strcmp(name, "max") == 0) {
        double y = as_real(&values[1]);
        if (strcmp(name, "min") == 0 ? y < x : y > x) *constant = values[1];
    } else if (strcmp(name, "sqrt") == 0) {
        if (x < 0) return refuse("sqrt() of a number below 0");
        *constant = (struct constant){.kind = CONSTANT_REAL, .real = sqrt(x)};
    } else if (strcmp(name, "log") == 0) {
        if (x <= 0) return refuse("log() of a number that is not above 0");
        *constant = (struct constant){.kind = CONSTANT_REAL, .real = log(x)};
    } else if (strcmp(name, "exp") == 0) {
        if (x > 700) return refuse("exp() of a number above 700");
        *constant = (struct constant){.kind = CONSTANT_REAL, .real = exp(x)};
    } else if (strcmp(name, "len") == 0) {
        *constant = (struct constant){.kind = CONSTANT_INTEGER, .integer = values[0].integer};
    } else if (values[0].kind == CONSTANT_REAL) {
        if (fabs(x) >= 0x1p62) return refuse("an integer passes 64 bits");
        *constant = (struct constant){.kind = CONSTANT_INTEGER, .integer = (int64_t)x};
    }
    return NULL;
}

status_t constant_evaluate(const struct expression *expression,
                           const struct environment *environment, struct constant *constant)
{
    switch (expression->kind) {
    case EXPRESSION_NAME: return evaluate_name(expression->text, environment, constant);
    case EXPRESSION_INTEGER:
        *constant = (struct constant){.kind = CONSTANT_INTEGER, .integer = expression->integer};
        return NULL;
    case EXPRESSION_REAL:
        *constant = (struct constant){.kind = CONSTANT_REAL, .real = expression->real};
        return NULL;
    case EXPRESSION_TEXT:
        *constant = (struct constant){.kind = CONSTANT_TEXT, .text = expression->text};
        return NULL;
    case EXPRESSION_BOOLEAN:
        *constant = (struct constant){.kind = CONSTANT_BOOLEAN, .integer = expression->integer};
        return NULL;
    case EXPRESSION_NONE: *constant = (struct constant){.kind = CONSTANT_NONE}; return NULL;
    case EXPRESSION_TUPLE: return evaluate_pair(expression, environment, constant);
    case EXPRESSION_BINARY: return evaluate_binary(expression, environment, constant);
    case EXPRESSION_NEGATE: return evaluate_negate(expression, environment, constant);
    case EXPRESSION_COMPARE:
    case EXPRESSION_AND:
    case EXPRESSION_OR:
    case EXPRESSION_NOT: return evaluate_logic(expression, environment, constant);
    case EXPRESSION_CHOICE: return evaluate_choice(expression, environment, constant);
    case EXPRESSION_INDEX: return evaluate_index(expression, environment, constant);
    case EXPRESSION_CALL: return evaluate_call(expression, environment, constant);
    case EXPRESSION_LIST:
    case EXPRESSION_SLICE:
    case EXPRESSION_EACH: break;
    }
    return refuse("a list cannot stand here");
}

/* The shortest decimal that reads back as the same double, in Python's form. */
static void format_real(double real, char text[static 64])
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, 64, "%.*g", digits, real);
        if (strtod(text, NULL) == real) break;
    }
    if (!strpbrk(text, ".en")) strcat(text, ".0");
}

char *constant_format(const struct constant *constant, char text[static 64])
{
    switch (constant->kind) {
    case CONSTANT_NONE: strcpy(text, "None"); break;
    case CONSTANT_BOOLEAN: strcpy(text, constant->integer ? "True" : "False"); break;
    case CONSTANT_INTEGER: snprintf(text, 64, "%lld", (long long)constant->integer); break;
    case CONSTANT_REAL: format_real(constant->real, text); break;
    case CONSTANT_TEXT: snprintf(text, 64, "'%.40s'", constant->text); break;
    case CONSTANT_LIST: strcpy(text, "a list"); break;
    case CONSTANT_PAIR:
        snprintf(text, 64, "(%lld, %lld)", (long long)constant->integer,
                 (long long)constant->second);
        break;
    }
    return text;
}
