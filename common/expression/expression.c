/*
 * Recursive descent over tokens:
 *
 *   statement  = NAME ("=" | "+=") value | "for" NAME "in" path [":" statement]
 *   value      = either ["if" either "else" value]
 *   either     = both ("or" both)*
 *   both       = negation ("and" negation)*
 *   negation   = "not" negation | comparison
 *   comparison = sum [("==" | "!=" | "<" | "<=" | ">" | ">=" | "in") sum]
 *   sum        = product (("+" | "-") product)*
 *   product    = unary (("*" | "/" | "//" | "%") unary)*
 *   unary      = "-" unary | primary
 *   primary    = number | text | "True" | "False" | "None" | path ["(" arguments ")"]
 *              | path ["(" arguments ")"] ("[" part ("," part)* "]")*
 *              | "(" value ["," value]* [","] ")"
 *              | "[" [value ("," value)* [","]] "]" | "[" value "for" NAME "in" value "]"
 *   part       = value | [value] ":" [value]
 *   path       = NAME ("." NAME | "[" INTEGER "]")*
 *   arguments  = [NAME "="] value ("," [NAME "="] value)* [","]
 */
#include "expression/expression.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/mem.h"
#include "expression/tokens.h"
#include "yaml/yaml.h"

struct parser {
    const char *text, *cursor;
    struct token token; /* the next one */
    int depth;
};

void expression_free(struct expression *expression)
{
    if (!expression) return;
    for (int i = 0; i < expression->item_count; i++) {
        expression_free(expression->items[i]);
        if (expression->keywords) free(expression->keywords[i]);
    }
    free(expression->items);
    free(expression->keywords);
    free(expression->text);
    free(expression);
}

void statement_free(struct statement *statement)
{
    if (!statement) return;
    for (int i = 0; i < statement->body_count; i++) statement_free(statement->body[i]);
    free(statement->body);
    free(statement->target);
    free(statement->list);
    expression_free(statement->value);
    free(statement);
}

static bool is_word_of_language(const char *name)
{
    static const char *const words[] = {"for",  "in",   "if",    "else", "and", "or", "not",
                                        "None", "True", "False", "self", "nn",  "F",  "torch"};
    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (strcmp(name, words[i]) == 0) return true;
    return false;
}

bool name_is_valid(const char *name)
{
    size_t length = strlen(name);
    if (length == 0 || length > EXPRESSION_MAX_NAME || isdigit((unsigned char)name[0]))
        return false;
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)name[i]) && name[i] != '_') return false;
    return !is_word_of_language(name);
}

static struct expression *expression_new(enum expression_kind kind)
{
    struct expression *expression = mem_alloc(sizeof *expression);
    expression->kind = kind;
    return expression;
}

static void add_item(struct expression *parent, struct expression *item)
{
    MEM_GROW(parent->items, parent->item_count, parent->item_capacity);
    parent->items[parent->item_count++] = item;
}

static status_t advance(struct parser *parser)
{
    return token_next(parser->text, &parser->cursor, &parser->token);
}

static status_t unexpected(const struct parser *parser, const char *expected)
{
    char excerpt[72], found[72];
    const struct token *token = &parser->token;
    yamldoc_excerpt(parser->text, excerpt);
    if (token->kind == TOKEN_END)
        return status_new(STATUS_INVALID_ARGUMENT, "expected %s at the end of '%s'", expected,
                          excerpt);
    AUTO_FREE char *word = mem_strndup(token->start, token->length);
    return status_new(STATUS_INVALID_ARGUMENT, "expected %s, found '%s' at column %d of '%s'",
                      expected, yamldoc_excerpt(word, found),
                      (int)(token->start - parser->text) + 1, excerpt);
}

static bool at_point(const struct parser *parser, char point)
{
    return parser->token.kind == TOKEN_POINT && parser->token.point == point;
}

static bool at_word(const struct parser *parser, const char *word)
{
    return parser->token.kind == TOKEN_NAME && parser->token.length == strlen(word) &&
           memcmp(parser->token.start, word, parser->token.length) == 0;
}

static status_t expect_point(struct parser *parser, char point, const char *expected)
{
    if (!at_point(parser, point)) return unexpected(parser, expected);
    return advance(parser);
}

static status_t check_name(const struct parser *parser)
{
    if (parser->token.length <= EXPRESSION_MAX_NAME) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "the name at column %d is longer than %d letters",
                      (int)(parser->token.start - parser->text) + 1, EXPRESSION_MAX_NAME);
}

/* A name that is assigned to. */
static status_t parse_name(struct parser *parser, const char *expected, char **name)
{
    if (parser->token.kind != TOKEN_NAME) return unexpected(parser, expected);
    TRY(check_name(parser));
    char *copy = mem_strndup(parser->token.start, parser->token.length);
    status_t status = is_word_of_language(copy) ? unexpected(parser, expected) : advance(parser);
    if (status) {
        free(copy);
        return status;
    }
    *name = copy;
    return NULL;
}

/* "[0": the number of a list's module; any other subscript is of a constant. */
static bool at_number_in_brackets(const struct parser *parser)
{
    const char *cursor = parser->cursor;
    while (at_point(parser, '[') && *cursor == ' ') cursor++;
    return at_point(parser, '[') && isdigit((unsigned char)*cursor);
}

static status_t parse_path_rest(struct parser *parser, struct buf *path)
{
    while (at_point(parser, '.') || at_number_in_brackets(parser)) {
        bool index = at_point(parser, '[');
        TRY(advance(parser));
        if (!index && parser->token.kind != TOKEN_NAME)
            return unexpected(parser, "a name after '.'");
        TRY(check_name(parser));
        buf_add_char(path, '.');
        buf_add(path, parser->token.start, parser->token.length);
        TRY(advance(parser));
        if (index) TRY(expect_point(parser, ']', "']'"));
    }
    return NULL;
}

static status_t parse_path(struct parser *parser, char **path)
{
    struct buf text = {0};
    TRY(check_name(parser));
    buf_add(&text, parser->token.start, parser->token.length);
    status_t status = advance(parser);
    if (!status) status = parse_path_rest(parser, &text);
    if (status) {
        buf_deinit(&text);
        return status;
    }
    *path = buf_take(&text);
    return NULL;
}

static status_t parse_value(struct parser *parser, struct expression **out);

/* The rest of "name=value" in a call: *keyword is set if a name and '=' were there. */
static status_t parse_keyword(struct parser *parser, char **keyword)
{
    if (parser->token.kind != TOKEN_NAME) return NULL;
    const char *cursor = parser->cursor;
    struct token next;
    TRY(token_next(parser->text, &cursor, &next));
    if (next.kind != TOKEN_POINT || next.point != '=') return NULL;
    TRY(check_name(parser));
    char *name = mem_strndup(parser->token.start, parser->token.length);
    parser->cursor = cursor;
    status_t status = advance(parser);
    if (status) {
        free(name);
        return status;
    }
    *keyword = name;
    return NULL;
}

static status_t parse_argument(struct parser *parser, struct expression *call)
{
    char *keyword = NULL;
    struct expression *value = NULL;
    TRY(parse_keyword(parser, &keyword));
    status_t status = parse_value(parser, &value);
    if (status) {
        free(keyword);
        return status;
    }
    if (!keyword && call->item_count > 0 && call->keywords[call->item_count - 1]) {
        expression_free(value);
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s(): a positional argument follows a keyword argument", call->text);
    }
    add_item(call, value);
    call->keywords =
        mem_resize_array(call->keywords, (size_t)call->item_count, sizeof *call->keywords);
    call->keywords[call->item_count - 1] = keyword;
    return NULL;
}

static status_t parse_arguments(struct parser *parser, struct expression *call)
{
    TRY(advance(parser)); /* "(" */
    while (!at_point(parser, ')')) {
        TRY(parse_argument(parser, call));
        if (at_point(parser, ')')) break;
        TRY(expect_point(parser, ',', "',' or ')'"));
    }
    return advance(parser);
}

static status_t parse_parentheses(struct parser *parser, struct expression **out)
{
    TRY(advance(parser));
    struct expression *tuple = expression_new(EXPRESSION_TUPLE);
    bool comma = false;
    status_t status = NULL;
    while (!status) {
        struct expression *item = NULL;
        status = parse_value(parser, &item);
        if (status) break;
        add_item(tuple, item);
        if (at_point(parser, ')')) break;
        comma = true;
        status = expect_point(parser, ',', "',' or ')'");
        if (!status && at_point(parser, ')')) break;
    }
    if (!status) status = advance(parser);
    if (status) {
        expression_free(tuple);
        return status;
    }
    if (!comma) { /* only grouping */
        *out = tuple->items[0];
        tuple->item_count = 0;
        expression_free(tuple);
        return NULL;
    }
    *out = tuple;
    return NULL;
}

static bool at_operator_word(const struct parser *parser)
{
    static const char *const words[] = {"for", "in", "if", "else", "and", "or", "not"};
    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (at_word(parser, words[i])) return true;
    return false;
}

/* An end of a slice; None if there is none. */
static status_t parse_end(struct parser *parser, bool none, struct expression *slice)
{
    struct expression *end = NULL;
    if (none) end = expression_new(EXPRESSION_NONE);
    else TRY(parse_value(parser, &end));
    add_item(slice, end);
    return NULL;
}

/* "0", "1:-1", ":" */
static status_t parse_part(struct parser *parser, struct expression *parts)
{
    struct expression *slice = expression_new(EXPRESSION_SLICE);
    status_t status = parse_end(parser, at_point(parser, ':'), slice);
    if (!status && at_point(parser, ':')) {
        add_item(parts, slice);
        TRY(advance(parser));
        return parse_end(parser, at_point(parser, ',') || at_point(parser, ']'), slice);
    }
    if (!status) add_item(parts, slice->items[0]);
    if (!status) slice->item_count = 0;
    expression_free(slice);
    return status;
}

/* "[index]" behind the list in *expression, which becomes the element; several parts are a tuple.
 */
static status_t parse_subscript(struct parser *parser, struct expression **expression)
{
    struct expression *element = expression_new(EXPRESSION_INDEX);
    struct expression *parts = expression_new(EXPRESSION_TUPLE);
    add_item(element, *expression);
    add_item(element, parts);
    *expression = element;
    do {
        TRY(advance(parser));
        TRY(parse_part(parser, parts));
    } while (at_point(parser, ','));
    if (parts->item_count == 1 && parts->items[0]->kind != EXPRESSION_SLICE) {
        element->items[1] = parts->items[0];
        parts->item_count = 0;
        expression_free(parts);
    }
    TRY(expect_point(parser, ']', "']'"));
    if (!at_point(parser, '.') && !at_point(parser, '(')) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "only constants have computed places in a list; a module's is a number, as "
                      "in layers[0]");
}

static status_t parse_named(struct parser *parser, struct expression **out)
{
    struct expression *made = expression_new(EXPRESSION_NAME);
    status_t status;
    if (at_word(parser, "True") || at_word(parser, "False")) {
        made->kind = EXPRESSION_BOOLEAN;
        made->integer = at_word(parser, "True");
        status = advance(parser);
    } else if (at_word(parser, "None")) {
        made->kind = EXPRESSION_NONE;
        status = advance(parser);
    } else if (at_operator_word(parser)) {
        status = unexpected(parser, "a value");
    } else {
        status = parse_path(parser, &made->text);
        if (!status && at_point(parser, '(')) {
            made->kind = EXPRESSION_CALL;
            status = parse_arguments(parser, made);
        }
        for (int i = 0; i < EXPRESSION_MAX_DEPTH && !status && at_point(parser, '['); i++)
            status = parse_subscript(parser, &made);
    }
    if (status) {
        expression_free(made);
        return status;
    }
    *out = made;
    return NULL;
}

/* The rest of "[value for NAME in values]", from "for" on; *list has the value. */
static status_t parse_each(struct parser *parser, struct expression *list)
{
    struct expression *values = NULL;
    list->kind = EXPRESSION_EACH;
    TRY(advance(parser));
    TRY(parse_name(parser, "a name after 'for'", &list->text));
    if (!at_word(parser, "in")) return unexpected(parser, "'in'");
    TRY(advance(parser));
    TRY(parse_value(parser, &values));
    add_item(list, values);
    return expect_point(parser, ']', "']'");
}

static status_t parse_items(struct parser *parser, struct expression *list)
{
    TRY(advance(parser)); /* "[" */
    while (!at_point(parser, ']')) {
        struct expression *item = NULL;
        TRY(parse_value(parser, &item));
        add_item(list, item);
        if (at_word(parser, "for") && list->item_count == 1) return parse_each(parser, list);
        if (at_point(parser, ']')) break;
        TRY(expect_point(parser, ',', "',' or ']'"));
    }
    return advance(parser);
}

static status_t parse_list(struct parser *parser, struct expression **out)
{
    struct expression *list = expression_new(EXPRESSION_LIST);
    status_t status = parse_items(parser, list);
    if (status) {
        expression_free(list);
        return status;
    }
    *out = list;
    return NULL;
}

static status_t parse_primary(struct parser *parser, struct expression **out)
{
    struct expression *made;
    const struct token token = parser->token;
    switch (token.kind) {
    case TOKEN_NAME: return parse_named(parser, out);
    case TOKEN_INTEGER:
    case TOKEN_REAL:
    case TOKEN_TEXT:
        TRY(advance(parser));
        made = expression_new(token.kind == TOKEN_INTEGER ? EXPRESSION_INTEGER
                              : token.kind == TOKEN_REAL  ? EXPRESSION_REAL
                                                          : EXPRESSION_TEXT);
        made->integer = token.integer;
        made->real = token.real;
        if (token.kind == TOKEN_TEXT) made->text = mem_strndup(token.start, token.length);
        *out = made;
        return NULL;
    default:
        if (at_point(parser, '(')) return parse_parentheses(parser, out);
        if (at_point(parser, '[')) return parse_list(parser, out);
        return unexpected(parser, "a value");
    }
}

static status_t go_deeper(struct parser *parser)
{
    if (parser->depth >= EXPRESSION_MAX_DEPTH)
        return status_new(STATUS_INVALID_ARGUMENT, "nested deeper than %d levels",
                          EXPRESSION_MAX_DEPTH);
    parser->depth++;
    return NULL;
}

static status_t parse_unary(struct parser *parser, struct expression **out)
{
    TRY(go_deeper(parser));
    status_t status;
    if (at_point(parser, '-')) {
        struct expression *operand = NULL;
        status = advance(parser);
        if (!status) status = parse_unary(parser, &operand);
        if (!status) {
            *out = expression_new(EXPRESSION_NEGATE);
            add_item(*out, operand);
        }
    } else {
        status = parse_primary(parser, out);
    }
    parser->depth--;
    return status;
}

static struct expression *make_pair(enum expression_kind kind, char sign, struct expression *left,
                                    struct expression *right)
{
    struct expression *pair = expression_new(kind);
    pair->sign = sign;
    add_item(pair, left);
    add_item(pair, right);
    return pair;
}

/* The operators of one strength. */
struct strength {
    enum expression_kind kind;
    const char *points; /* or NULL: */
    const char *word;
    status_t (*parse)(struct parser *parser, struct expression **out); /* what is stronger */
};

static bool at_strength(const struct parser *parser, const struct strength *strength)
{
    if (strength->points == NULL) return at_word(parser, strength->word);
    return parser->token.kind == TOKEN_POINT && strchr(strength->points, parser->token.point);
}

/*
 * Operators of one strength, left to right. A chain makes a tree as deep as it is long, so its
 * length counts as depth: the walkers of trees rely on that bound.
 */
static status_t parse_chain(struct parser *parser, const struct strength *strength,
                            struct expression **out)
{
    struct expression *left = NULL;
    TRY(strength->parse(parser, &left));
    int length = 0;
    while (at_strength(parser, strength)) {
        struct expression *right = NULL;
        char sign = parser->token.point;
        status_t status = ++length >= EXPRESSION_MAX_DEPTH
                              ? status_new(STATUS_INVALID_ARGUMENT,
                                           "more than %d operators in a row", EXPRESSION_MAX_DEPTH)
                              : advance(parser);
        if (!status) status = strength->parse(parser, &right);
        if (status) {
            expression_free(left);
            return status;
        }
        left = make_pair(strength->kind, sign, left, right);
    }
    *out = left;
    return NULL;
}

static status_t parse_product(struct parser *parser, struct expression **out)
{
    static const struct strength products = {EXPRESSION_BINARY, "*/f%", NULL, parse_unary};
    return parse_chain(parser, &products, out);
}

static status_t parse_sum(struct parser *parser, struct expression **out)
{
    static const struct strength sums = {EXPRESSION_BINARY, "+-", NULL, parse_product};
    return parse_chain(parser, &sums, out);
}

static status_t parse_comparison(struct parser *parser, struct expression **out)
{
    struct expression *left = NULL, *right = NULL;
    TRY(parse_sum(parser, &left));
    static const char signs[] = {'<', '>', PAIR_EQUAL, PAIR_DIFFER, PAIR_AT_MOST, PAIR_AT_LEAST, 0};
    char sign = at_word(parser, "in") ? 'i' : parser->token.point;
    if (sign != 'i' && (parser->token.kind != TOKEN_POINT || !strchr(signs, sign))) {
        *out = left;
        return NULL;
    }
    status_t status = advance(parser);
    if (!status) status = parse_sum(parser, &right);
    if (status) {
        expression_free(left);
        return status;
    }
    *out = make_pair(EXPRESSION_COMPARE, sign, left, right);
    return NULL;
}

static status_t parse_negation(struct parser *parser, struct expression **out)
{
    struct expression *operand = NULL;
    if (!at_word(parser, "not")) return parse_comparison(parser, out);
    TRY(go_deeper(parser));
    TRY(advance(parser));
    TRY(parse_negation(parser, &operand));
    parser->depth--;
    *out = expression_new(EXPRESSION_NOT);
    add_item(*out, operand);
    return NULL;
}

static status_t parse_both(struct parser *parser, struct expression **out)
{
    static const struct strength ands = {EXPRESSION_AND, NULL, "and", parse_negation};
    return parse_chain(parser, &ands, out);
}

static status_t parse_either(struct parser *parser, struct expression **out)
{
    static const struct strength ors = {EXPRESSION_OR, NULL, "or", parse_both};
    return parse_chain(parser, &ors, out);
}

/* "condition else value", behind "value if"; both are added. */
static status_t parse_condition(struct parser *parser, struct expression *choice)
{
    struct expression *part = NULL;
    TRY(advance(parser));
    TRY(parse_either(parser, &part));
    add_item(choice, part);
    if (!at_word(parser, "else")) return unexpected(parser, "'else'");
    TRY(advance(parser));
    TRY(go_deeper(parser));
    TRY(parse_value(parser, &part));
    parser->depth--;
    add_item(choice, part);
    return NULL;
}

static status_t parse_value(struct parser *parser, struct expression **out)
{
    struct expression *value = NULL;
    TRY(parse_either(parser, &value));
    if (!at_word(parser, "if")) {
        *out = value;
        return NULL;
    }
    struct expression *choice = expression_new(EXPRESSION_CHOICE);
    add_item(choice, value);
    status_t status = parse_condition(parser, choice);
    if (status) {
        expression_free(choice);
        return status;
    }
    *out = choice;
    return NULL;
}

static status_t parser_init(struct parser *parser, const char *text)
{
    if (strnlen(text, EXPRESSION_MAX_LENGTH + 1) > EXPRESSION_MAX_LENGTH)
        return status_new(STATUS_INVALID_ARGUMENT, "longer than %d bytes", EXPRESSION_MAX_LENGTH);
    *parser = (struct parser){.text = text, .cursor = text};
    return advance(parser);
}

static status_t expect_end(const struct parser *parser)
{
    if (parser->token.kind == TOKEN_END) return NULL;
    return unexpected(parser, "the end of the line");
}

status_t expression_parse(const char *text, struct expression **expression)
{
    struct parser parser;
    struct expression *made = NULL;
    TRY(parser_init(&parser, text));
    TRY(parse_value(&parser, &made));
    status_t status = expect_end(&parser);
    if (status) {
        expression_free(made);
        return status;
    }
    *expression = made;
    return NULL;
}

static status_t parse_statement(struct parser *parser, bool header, struct statement *statement);

static status_t parse_loop(struct parser *parser, bool header, struct statement *statement)
{
    statement->loop = true;
    TRY(advance(parser));
    TRY(parse_name(parser, "a name after 'for'", &statement->target));
    if (!at_word(parser, "in")) return unexpected(parser, "'in'");
    TRY(advance(parser));
    if (parser->token.kind != TOKEN_NAME)
        return unexpected(parser, "the name of a list of modules");
    TRY(parse_path(parser, &statement->list));
    if (header) return expect_end(parser);

    TRY(expect_point(parser, ':', "':'"));
    struct statement *inner = mem_alloc(sizeof *inner);
    MEM_GROW(statement->body, statement->body_count, statement->body_capacity);
    statement->body[statement->body_count++] = inner;
    if (++parser->depth > EXPRESSION_MAX_DEPTH)
        return status_new(STATUS_INVALID_ARGUMENT, "nested deeper than %d levels",
                          EXPRESSION_MAX_DEPTH);
    return parse_statement(parser, false, inner);
}

static status_t parse_statement(struct parser *parser, bool header, struct statement *statement)
{
    if (at_word(parser, "for")) return parse_loop(parser, header, statement);
    if (header) return unexpected(parser, "for NAME in NAME");
    TRY(parse_name(parser, "NAME = ...", &statement->target));
    bool add = at_point(parser, 'a');
    if (!add && !at_point(parser, '=')) return unexpected(parser, "'='");
    TRY(advance(parser));
    TRY(parse_value(parser, &statement->value));
    if (add) { /* x += y is x = x + y */
        struct expression *target = expression_new(EXPRESSION_NAME);
        target->text = mem_strdup(statement->target);
        statement->value = make_pair(EXPRESSION_BINARY, '+', target, statement->value);
    }
    return expect_end(parser);
}

status_t statement_parse(const char *text, bool header, struct statement **statement)
{
    struct parser parser;
    TRY(parser_init(&parser, text));
    struct statement *made = mem_alloc(sizeof *made);
    status_t status = parse_statement(&parser, header, made);
    if (status) {
        statement_free(made);
        return status;
    }
    *statement = made;
    return NULL;
}
