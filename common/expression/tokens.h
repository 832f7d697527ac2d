/* The words of the model file's language, one at a time; used by expression.c only. */
#ifndef FSDPD_EXPRESSION_TOKENS_H
#define FSDPD_EXPRESSION_TOKENS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum token_kind {
    TOKEN_END,
    TOKEN_NAME,
    TOKEN_INTEGER,
    TOKEN_REAL,
    TOKEN_TEXT,  /* the bytes between the quotes */
    TOKEN_POINT, /* one of ( ) [ ] , . = : + - * / % < > and the pairs // += == != <= >= */
};

/* Pairs as one letter each. */
enum token_pair {
    PAIR_FLOOR = 'f',    /* // */
    PAIR_ADD = 'a',      /* += */
    PAIR_EQUAL = 'e',    /* == */
    PAIR_DIFFER = 'd',   /* != */
    PAIR_AT_MOST = 'm',  /* <= */
    PAIR_AT_LEAST = 'l', /* >= */
};

struct token {
    enum token_kind kind;
    const char *start; /* into the text */
    size_t length;
    char point; /* of TOKEN_POINT: its character; of a pair one of enum token_pair */
    int64_t integer;
    double real;
};

/* Reads the token at *cursor and moves *cursor behind it. `text` is the whole, for messages. */
status_t token_next(const char *text, const char **cursor, struct token *token) FSDPD_MUST_USE;

#endif
