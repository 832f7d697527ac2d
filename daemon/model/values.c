/*
 * The key `args`: the model's arguments. Also numbers elsewhere in the file that are expressions
 * over them.
 */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "model/reader.h"

enum { MAX_LIST = 4096 };

static struct constant constant_of_text(const char *text, bool quoted)
{
    struct constant value = {.kind = CONSTANT_TEXT, .text = text};
    if (quoted) return value;
    bool yes = strcmp(text, "true") == 0 || strcmp(text, "True") == 0;
    if (text_parse_i64(text, &value.integer)) value.kind = CONSTANT_INTEGER;
    else if (text_parse_f64(text, &value.real)) value.kind = CONSTANT_REAL;
    else if (yes || strcmp(text, "false") == 0 || strcmp(text, "False") == 0)
        value = (struct constant){.kind = CONSTANT_BOOLEAN, .integer = yes};
    else if (!*text || strcmp(text, "~") == 0 || strcmp(text, "null") == 0 ||
             strcmp(text, "None") == 0)
        value.kind = CONSTANT_NONE;
    return value;
}

static status_t read_value(struct reader *reader, const struct yamldoc_node *node,
                           struct constant *value)
{
    static const char what[] = "a number, a text, true, false, null, or a list of them";
    if (node->kind == YAMLDOC_SCALAR) {
        *value = constant_of_text(node->text, node->quoted);
        return NULL;
    }
    TRY(yamldoc_expect_sequence(node, what));
    if (node->item_count > MAX_LIST)
        return yamldoc_key_error(node, "more than %d elements", MAX_LIST);
    struct constant *items = mem_alloc_array((size_t)node->item_count + 1, sizeof *items);
    MEM_GROW(reader->lists, reader->list_count, reader->list_capacity);
    reader->lists[reader->list_count++] = items;
    for (int i = 0; i < node->item_count; i++) {
        if (node->items[i]->kind != YAMLDOC_SCALAR) return yamldoc_expected(node->items[i], what);
        items[i] = constant_of_text(node->items[i]->text, node->items[i]->quoted);
    }
    *value = (struct constant){.kind = CONSTANT_LIST, .integer = node->item_count, .items = items};
    return NULL;
}

static status_t add_argument(struct reader *reader, const struct yamldoc_node *node)
{
    char found[72];
    if (!name_is_valid(node->key) || strcmp(node->key, "x") == 0 ||
        strcmp(node->key, "output") == 0 || strcmp(node->key, "target") == 0)
        return reader_error(reader, node->key_line, "an argument cannot be called '%s'",
                            yamldoc_excerpt(node->key, found));
    struct environment *all = &reader->environment;
    reader->argument_names[all->count] = node->key;
    TRY(read_value(reader, node, &reader->argument_values[all->count]));
    all->count++;
    return NULL;
}

/* Whether a value may replace the file's: of its type, or an integer where a number is. An argument
 * that is null in the file takes anything. */
static bool may_replace(const struct constant *old, const struct constant *value)
{
    bool integer = old->kind == CONSTANT_REAL && value->kind == CONSTANT_INTEGER;
    return old->kind == value->kind || old->kind == CONSTANT_NONE || integer;
}

static status_t refuse_value(const struct model_argument *argument, const struct constant *old)
{
    static const char *const expected[] = {[CONSTANT_INTEGER] = "an integer",
                                           [CONSTANT_REAL] = "a number",
                                           [CONSTANT_BOOLEAN] = "true or false"};
    char usual[64], found[72];
    return status_new(STATUS_INVALID_ARGUMENT, "args.%s: expected %s, as the file's %s, found '%s'",
                      argument->name, expected[old->kind], constant_format(old, usual),
                      yamldoc_excerpt(argument->value, found));
}

static status_t override_one(struct reader *reader, const struct model_argument *argument)
{
    struct environment *all = &reader->environment;
    for (int i = 0; i < all->count; i++) {
        if (strcmp(reader->argument_names[i], argument->name) != 0) continue;
        struct constant value = constant_of_text(argument->value, false), old;
        old = reader->argument_values[i];
        if (old.kind == CONSTANT_TEXT) value = constant_of_text(argument->value, true);
        else if (old.kind == CONSTANT_LIST)
            return status_new(STATUS_INVALID_ARGUMENT, "args.%s: a list cannot be set here",
                              argument->name);
        if (!may_replace(&old, &value)) return refuse_value(argument, &old);
        reader->argument_values[i] = value;
        return NULL;
    }
    char found[72];
    const char *nearest = text_nearest(argument->name, reader->argument_names, (size_t)all->count);
    return status_new(STATUS_INVALID_ARGUMENT, "the model has no argument '%s'%s%s%s",
                      yamldoc_excerpt(argument->name, found), nearest ? "; did you mean '" : "",
                      nearest ? nearest : "", nearest ? "'?" : "");
}

status_t arguments_read(struct reader *reader, const struct yamldoc_node *args,
                        const struct model_argument *set, int set_count)
{
    int count = args != NULL ? args->item_count : 0;
    if (args != NULL) TRY(yamldoc_expect_mapping(args, "a mapping from names to values"));
    if (count > MODEL_MAX_ARGUMENTS)
        return yamldoc_key_error(args, "more than %d arguments", MODEL_MAX_ARGUMENTS);
    for (int i = 0; i < count; i++) TRY(add_argument(reader, args->items[i]));
    for (int i = 0; i < set_count; i++)
        TRY(status_wrap(override_one(reader, &set[i]), "%s", reader->file));
    return NULL;
}

/* Whether a plain scalar may be an expression; otherwise it is read as one of YAML's own
 * numbers. */
static bool is_expression(const struct reader *reader, const struct yamldoc_node *node)
{
    int64_t integer;
    double real;
    return node != NULL && node->kind == YAMLDOC_SCALAR && reader->environment.count > 0 &&
           !yamldoc_is_null(node) && !text_parse_i64(node->text, &integer) &&
           !text_parse_f64(node->text, &real);
}

status_t reader_evaluate(const struct reader *reader, const struct yamldoc_node *node,
                         const char *text, struct constant *value)
{
    struct expression *expression = NULL;
    status_t status = expression_parse(text, &expression);
    if (!status) status = constant_evaluate(expression, &reader->environment, value);
    if (!status && value->kind == CONSTANT_TEXT) /* borrowed from text that is freed below */
        status = status_new(STATUS_INVALID_ARGUMENT, "a text cannot stand here");
    expression_free(expression);
    return yamldoc_wrap(status, node);
}

status_t reader_read_size(const struct reader *reader, const struct yamldoc_node *node,
                          int64_t *size)
{
    struct constant value;
    char found[64];
    if (!is_expression(reader, node)) return yamldoc_read_i64(node, 1, INT32_MAX, size);
    TRY(reader_evaluate(reader, node, node->text, &value));
    if (value.kind != CONSTANT_INTEGER || value.integer < 1 || value.integer > INT32_MAX)
        return yamldoc_key_error(node, "expected an integer from 1 to %d, found %s", INT32_MAX,
                                 constant_format(&value, found));
    *size = value.integer;
    return NULL;
}

status_t reader_read_real(const struct reader *reader, const struct yamldoc_node *node, double low,
                          double high, double *real)
{
    struct constant value;
    char found[64];
    if (!is_expression(reader, node)) return yamldoc_read_f64(node, low, high, real);
    TRY(reader_evaluate(reader, node, node->text, &value));
    double number = value.kind == CONSTANT_INTEGER ? (double)value.integer
                    : value.kind == CONSTANT_REAL  ? value.real
                                                   : NAN;
    if (!(number >= low && number <= high))
        return yamldoc_key_error(node, "expected a number from %g to %g, found %s", low, high,
                                 constant_format(&value, found));
    *real = number;
    return NULL;
}

status_t reader_read_flag(const struct reader *reader, const struct yamldoc_node *node, bool *flag)
{
    struct constant value;
    char found[64];
    bool word = strcmp(node->text ? node->text : "", "true") == 0 ||
                strcmp(node->text ? node->text : "", "false") == 0;
    if (word || !is_expression(reader, node)) return yamldoc_read_bool(node, flag);
    TRY(reader_evaluate(reader, node, node->text, &value));
    if (value.kind != CONSTANT_BOOLEAN)
        return yamldoc_key_error(node, "expected True or False, found %s",
                                 constant_format(&value, found));
    *flag = value.integer != 0;
    return NULL;
}

status_t reader_is_none(const struct reader *reader, const struct yamldoc_node *node, bool *none)
{
    struct constant value = {.kind = CONSTANT_NONE};
    *none = yamldoc_is_null(node);
    if (*none || !is_expression(reader, node)) return NULL;
    TRY(reader_evaluate(reader, node, node->text, &value));
    *none = value.kind == CONSTANT_NONE;
    return NULL;
}
