/* Values of constant expressions; see arguments.h. Pure. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "model/arguments.h"
#include "yaml/yaml.h"

static status_t evaluate_name(const char *name, const struct environment *environment,
                              struct constant *constant)
{
    for (int i = 0; i < environment->count; i++)
        if (strcmp(environment->names[i], name) == 0) {
            *constant = environment->values[i];
            return NULL;
        }
    char found[72];
    const char *nearest = text_nearest(name, environment->names, (size_t)environment->count);
    return status_new(STATUS_INVALID_ARGUMENT, "unknown name '%s'%s%s%s",
                      yamldoc_excerpt(name, found), nearest ? "; did you mean '" : "",
                      nearest ? nearest : "", nearest ? "'?" : "");
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
    else if (b == 0) return status_new(STATUS_INVALID_ARGUMENT, "division by zero");
    else if (a == INT64_MIN && b == -1) overflow = true;
    else *result = a / b - (a % b != 0 && (a < 0) != (b < 0)); /* floor, as in Python */
    if (overflow) return status_new(STATUS_INVALID_ARGUMENT, "an integer passes 64 bits");
    return NULL;
}

static status_t combine_reals(char sign, double a, double b, double *result)
{
    if ((sign == '/' || sign == 'f') && b == 0)
        return status_new(STATUS_INVALID_ARGUMENT, "division by zero");
    double value = sign == '+'   ? a + b
                   : sign == '-' ? a - b
                   : sign == '*' ? a * b
                   : sign == '/' ? a / b
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
    case EXPRESSION_CALL: break;
    }
    char found[72];
    return status_new(STATUS_INVALID_ARGUMENT, "expected a constant, found the call '%s()'",
                      yamldoc_excerpt(expression->text, found));
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
    case CONSTANT_PAIR:
        snprintf(text, 64, "(%lld, %lld)", (long long)constant->integer,
                 (long long)constant->second);
        break;
    }
    return text;
}
