/*
 * The little language of model files: constructors ("Conv2d(1, 32, 3, padding=1)"), expressions
 * over tensors ("relu(conv1(x)) + y") or constants ("4 * width if wide else width") and statements
 * ("x = relu(x)", "x += y", "for layer in layers"). A subset of Python's grammar. Here is only
 * syntax: constant.h evaluates constants; what other names mean is for the rooms that read them.
 *
 * Texts may be hostile: at most EXPRESSION_MAX_LENGTH bytes, EXPRESSION_MAX_DEPTH deep.
 */
#ifndef FSDPD_EXPRESSION_EXPRESSION_H
#define FSDPD_EXPRESSION_EXPRESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { EXPRESSION_MAX_LENGTH = 4096, EXPRESSION_MAX_DEPTH = 32, EXPRESSION_MAX_NAME = 64 };

enum expression_kind {
    EXPRESSION_NAME, /* text: "x", "block.conv", "layers.0" (written layers[0]) */
    EXPRESSION_INTEGER,
    EXPRESSION_REAL,
    EXPRESSION_TEXT,
    EXPRESSION_BOOLEAN, /* in `integer` */
    EXPRESSION_NONE,
    EXPRESSION_TUPLE,   /* items */
    EXPRESSION_CALL,    /* text: the name called; items: arguments; keywords */
    EXPRESSION_BINARY,  /* items: left, right; sign */
    EXPRESSION_NEGATE,  /* items: one */
    EXPRESSION_COMPARE, /* items: left, right; sign */
    EXPRESSION_AND,     /* items: left, right */
    EXPRESSION_OR,      /* items: left, right */
    EXPRESSION_NOT,     /* items: one */
    EXPRESSION_CHOICE,  /* items: value, condition, other value */
    EXPRESSION_INDEX,   /* items: list, index */
    EXPRESSION_LIST,    /* items */
    EXPRESSION_SLICE,   /* "1:-1" within brackets: items: begin, end; NONE where there is none */
    EXPRESSION_EACH,    /* "[value for NAME in range(count)]": text: NAME; items: value, range */
};

struct expression {
    enum expression_kind kind;
    /* '+', '-', '*', '/', '%' or 'f' for floor division; of a comparison '<', '>', 'i' for "in" or
     * a pair of tokens.h */
    char sign;
    char *text; /* NULL unless named above */
    int64_t integer;
    double real;
    struct expression **items;
    char **keywords; /* of a call, by item: NULL for a positional argument */
    int item_count, item_capacity;
};

/* "target = value", or "for target in list": then the body follows. */
struct statement {
    bool loop;
    int line; /* set by the caller */
    char *target;
    struct expression *value; /* of an assignment */
    char *list;               /* of a loop: the name of the list of modules */
    struct statement **body;
    int body_count, body_capacity;
};

/*
 * Reads all of `text` as one expression. Errors are INVALID_ARGUMENT without a place: "expected
 * ')', found 'x' at column 12 of 'relu(conv1 x)'".
 */
status_t expression_parse(const char *text, struct expression **expression) FSDPD_MUST_USE;
void expression_free(struct expression *expression); /* accepts NULL */

/*
 * Reads an assignment or a loop. `header` is for a loop whose body stands elsewhere: then the text
 * must be "for NAME in NAME" and the body stays empty; otherwise a loop has ": statement" after it.
 */
status_t statement_parse(const char *text, bool header,
                         struct statement **statement) FSDPD_MUST_USE;
void statement_free(struct statement *statement); /* accepts NULL */

/* Letters, digits and _, not a digit first, at most EXPRESSION_MAX_NAME long, no word of the
 * language. */
bool name_is_valid(const char *name);

#endif
