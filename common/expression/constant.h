/*
 * Values of constant expressions: numbers, booleans, texts, None, pairs and lists, and what Python
 * makes of them with arithmetic, comparisons, "and", "or", "not", "a if b else c", subscripts and
 * the functions sqrt, log, min, max, int and len. Pure.
 */
#ifndef FSDPD_EXPRESSION_CONSTANT_H
#define FSDPD_EXPRESSION_CONSTANT_H

#include "expression/expression.h"

enum constant_kind {
    CONSTANT_NONE,
    CONSTANT_BOOLEAN, /* in `integer` */
    CONSTANT_INTEGER,
    CONSTANT_REAL,
    CONSTANT_TEXT,
    CONSTANT_PAIR, /* integer, second */
    CONSTANT_LIST, /* `integer` items */
};

struct constant {
    enum constant_kind kind;
    int64_t integer, second;
    double real;
    const char *text;             /* borrowed from the expression it was read from */
    const struct constant *items; /* borrowed from the environment */
};

/* Names and their values; those of `outer` are seen behind them. */
struct environment {
    const char *const *names;
    const struct constant *values;
    int count;
    const struct environment *outer; /* NULL: none */
};

/* NULL if it has no such name. */
const struct constant *environment_find(const struct environment *environment, const char *name);

status_t constant_evaluate(const struct expression *expression,
                           const struct environment *environment,
                           struct constant *constant) FSDPD_MUST_USE;

/* The same; a value other than True and False is an error. */
status_t constant_evaluate_condition(const struct expression *expression,
                                     const struct environment *environment,
                                     bool *value) FSDPD_MUST_USE;

/* Whether constants have a function of this name. */
bool constant_is_function(const char *name);

/* As Python prints it: "3", "(2, 2)", "0.25", "True"; `text` holds at least 64 bytes; returns it.
 */
char *constant_format(const struct constant *constant, char text[static 64]);

#endif
