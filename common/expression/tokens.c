/* See tokens.h. Pure: reads the text, allocates nothing but errors. */
#include "expression/tokens.h"

#include <ctype.h>
#include <string.h>

#include "base/array.h"
#include "base/text.h"

static bool is_name_start(char c)
{
    return isalpha((unsigned char)c) || c == '_';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static size_t number_length(const char *start)
{
    const char *at = start;
    while (is_digit(*at) || *at == '.') at++;
    if (*at == 'e' || *at == 'E') {
        at++;
        if (*at == '+' || *at == '-') at++;
        while (is_digit(*at)) at++;
    }
    while (is_name_start(*at) || is_digit(*at)) at++; /* "3x" is one bad word, not two */
    return (size_t)(at - start);
}

static status_t read_number(const char *text, struct token *token)
{
    char word[64];
    token->length = number_length(token->start);
    int column = (int)(token->start - text) + 1;
    if (token->length >= sizeof word)
        return status_new(STATUS_INVALID_ARGUMENT, "the number at column %d is too long", column);
    memcpy(word, token->start, token->length);
    word[token->length] = 0;
    if (text_parse_i64(word, &token->integer)) {
        token->kind = TOKEN_INTEGER;
        return NULL;
    }
    token->kind = TOKEN_REAL;
    bool whole = strspn(word, "0123456789") == token->length;
    if (!whole && text_parse_f64(word, &token->real)) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "'%s' at column %d is not a %snumber", word, column,
                      whole ? "64-bit " : "");
}

static status_t read_text(const char *text, struct token *token)
{
    char quote = token->start[0];
    const char *end = token->start + 1;
    while (*end && *end != quote && *end != '\\') end++;
    int column = (int)(token->start - text) + 1;
    if (*end == '\\')
        return status_new(STATUS_INVALID_ARGUMENT,
                          "backslashes are not supported in the text at column %d", column);
    if (*end != quote)
        return status_new(STATUS_INVALID_ARGUMENT, "the text at column %d has no closing %c",
                          column, quote);
    token->kind = TOKEN_TEXT;
    token->start++;
    token->length = (size_t)(end - token->start);
    return NULL;
}

static status_t read_point(const char *text, struct token *token)
{
    static const struct {
        char text[3];
        char point;
    } pairs[] = {{"//", PAIR_FLOOR},  {"+=", PAIR_ADD},     {"==", PAIR_EQUAL},
                 {"!=", PAIR_DIFFER}, {"<=", PAIR_AT_MOST}, {">=", PAIR_AT_LEAST}};
    char c = token->start[0];
    token->kind = TOKEN_POINT;
    token->length = 1;
    token->point = c;
    for (size_t i = 0; i < COUNT_OF(pairs); i++) {
        if (strncmp(token->start, pairs[i].text, 2) != 0) continue;
        token->point = pairs[i].point;
        token->length = 2;
    }
    if (token->length == 1 && !strchr("()[],.=:+-*/%<>", c)) {
        int column = (int)(token->start - text) + 1;
        if (c > ' ' && c < 0x7f)
            return status_new(STATUS_INVALID_ARGUMENT, "unexpected '%c' at column %d", c, column);
        return status_new(STATUS_INVALID_ARGUMENT, "unexpected character at column %d", column);
    }
    return NULL;
}

status_t token_next(const char *text, const char **cursor, struct token *token)
{
    const char *at = *cursor;
    while (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r') at++;
    struct token next = {.kind = TOKEN_END, .start = at};
    size_t behind = 0; /* bytes after the token that belong to it */
    if (is_name_start(*at)) {
        next.kind = TOKEN_NAME;
        while (is_name_start(at[next.length]) || is_digit(at[next.length])) next.length++;
    } else if (is_digit(*at) || (*at == '.' && is_digit(at[1]))) {
        TRY(read_number(text, &next));
    } else if (*at == '"' || *at == '\'') {
        TRY(read_text(text, &next));
        behind = 1;
    } else if (*at) {
        TRY(read_point(text, &next));
    }
    *token = next;
    *cursor = next.start + next.length + behind;
    return NULL;
}
