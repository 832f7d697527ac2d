/*
 * Turns the YAML tree into definitions. Every constructor, forward line and block head is parsed
 * here, once, however often a block is built. Later stages resolve the names.
 */
#include "base/array.h"
#include "model/reader.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* "<file>:<line>: <what>: <message>". */
static status_t wrap_at(const struct reader *reader, const struct yamldoc_node *node,
                        status_t status)
{
    if (!status) return NULL;
    AUTO_FREE char *path = yamldoc_path(node);
    status = status_wrap(status, "%s", path);
    return reader_wrap(reader, node->line, status);
}

static status_t read_modules(struct reader *reader, struct definition *definition,
                             const struct yamldoc_node *modules)
{
    TRY(yamldoc_expect_mapping(modules, "a mapping from names to constructors"));
    for (int i = 0; i < modules->item_count; i++) {
        const struct yamldoc_node *node = modules->items[i];
        char found[72];
        /* BERT's attention modules have a module "self"; no other reserved name is allowed. */
        if (!name_is_valid(node->key) && strcmp(node->key, "self") != 0)
            return reader_error(reader, node->key_line,
                                "'%s' cannot be the name of a module: expected letters, digits and "
                                "_, no digit first, at most %d, and no word of the language",
                                yamldoc_excerpt(node->key, found), EXPRESSION_MAX_NAME);
        const char *text = NULL;
        TRY(yamldoc_read_text(node, "a constructor such as Conv2d(1, 32, 3)", &text));
        struct definition_module made = {.name = node->key, .line = node->line};
        TRY(wrap_at(reader, node, expression_parse(text, &made.constructor)));
        MEM_GROW(definition->modules, definition->module_count, definition->module_capacity);
        definition->modules[definition->module_count++] = made;
    }
    return NULL;
}

static void set_lines(struct statement *statement, int line)
{
    statement->line = line;
    for (int i = 0; i < statement->body_count; i++) set_lines(statement->body[i], line);
}

static status_t read_statement(struct reader *reader, const struct yamldoc_node *node,
                               struct statement **out);

/* The body of "for layer in layers:": one line, or a list of them. */
static status_t read_body(struct reader *reader, const struct yamldoc_node *node,
                          struct statement *loop)
{
    int count = node->kind == YAMLDOC_SEQUENCE ? node->item_count : 1;
    for (int i = 0; i < count; i++) {
        struct statement *inner = NULL;
        const struct yamldoc_node *item = node->kind == YAMLDOC_SEQUENCE ? node->items[i] : node;
        TRY(read_statement(reader, item, &inner));
        MEM_GROW(loop->body, loop->body_count, loop->body_capacity);
        loop->body[loop->body_count++] = inner;
    }
    return NULL;
}

/* YAML reads "for layer in layers: x = layer(x)" as a mapping with one key. */
static status_t read_loop(struct reader *reader, const struct yamldoc_node *node,
                          struct statement **out)
{
    if (node->item_count != 1 || strncmp(node->items[0]->key, "for ", 4) != 0)
        return yamldoc_expected(node, "NAME = ... or for NAME in NAME: ...");
    const struct yamldoc_node *body = node->items[0];
    struct statement *loop = NULL;
    TRY(reader_wrap(reader, body->key_line, statement_parse(body->key, true, &loop)));
    loop->line = body->key_line;
    status_t status = yamldoc_is_null(body)
                          ? reader_error(reader, body->key_line, "the loop has no body")
                          : read_body(reader, body, loop);
    if (status) {
        statement_free(loop);
        return status;
    }
    *out = loop;
    return NULL;
}

static status_t read_statement(struct reader *reader, const struct yamldoc_node *node,
                               struct statement **out)
{
    if (node->kind == YAMLDOC_MAPPING) return read_loop(reader, node, out);
    const char *text = NULL;
    TRY(yamldoc_read_text(node, "NAME = ... or for NAME in NAME: ...", &text));
    struct statement *statement = NULL;
    TRY(reader_wrap(reader, node->line, statement_parse(text, false, &statement)));
    set_lines(statement, node->line);
    *out = statement;
    return NULL;
}

static status_t read_forward(struct reader *reader, struct definition *definition,
                             const struct yamldoc_node *forward)
{
    TRY(yamldoc_expect_sequence(forward, "a list of lines"));
    for (int i = 0; i < forward->item_count; i++) {
        struct statement *statement = NULL;
        TRY(read_statement(reader, forward->items[i], &statement));
        MEM_GROW(definition->forward, definition->forward_count, definition->forward_capacity);
        definition->forward[definition->forward_count++] = statement;
    }
    return NULL;
}

/* A block's "inputs: [x, mask]". */
static status_t read_inputs(struct reader *reader, struct definition *definition,
                            const struct yamldoc_node *inputs)
{
    if (!inputs) return NULL;
    TRY(yamldoc_expect_sequence(inputs, "a list of names such as [x, mask]"));
    if (inputs->item_count < 1 || inputs->item_count > MODEL_MAX_BLOCK_INPUTS)
        return yamldoc_key_error(inputs, "expected 1 to %d names, found %d", MODEL_MAX_BLOCK_INPUTS,
                                 inputs->item_count);
    free(definition->inputs[0]);
    definition->input_count = 0;
    for (int i = 0; i < inputs->item_count; i++) {
        const char *name = NULL;
        char found[72];
        TRY(yamldoc_read_text(inputs->items[i], "a name", &name));
        bool taken = strcmp(name, "output") == 0;
        for (int k = 0; k < definition->argument_count; k++)
            taken |= strcmp(definition->arguments[k], name) == 0;
        for (int k = 0; k < definition->input_count; k++)
            taken |= strcmp(definition->inputs[k], name) == 0;
        if (taken || !name_is_valid(name))
            return reader_error(reader, inputs->items[i]->line, "an input cannot be called '%s'%s",
                                yamldoc_excerpt(name, found),
                                taken ? ": it means something else" : "");
        definition->inputs[definition->input_count++] = mem_strdup(name);
    }
    return NULL;
}

static status_t read_parts(struct reader *reader, struct definition *definition,
                           const struct yamldoc_node *mapping)
{
    struct yamldoc_node *modules = NULL, *forward = NULL;
    TRY(yamldoc_require(mapping, "modules", &modules));
    TRY(yamldoc_require(mapping, "forward", &forward));
    TRY(read_modules(reader, definition, modules));
    return read_forward(reader, definition, forward);
}

static status_t add_block_argument(const struct reader *reader, struct definition *definition,
                                   const char *name, const struct expression *standard)
{
    char found[72];
    if (definition->argument_count == MODEL_MAX_BLOCK_ARGUMENTS)
        return status_new(STATUS_INVALID_ARGUMENT, "more than %d arguments",
                          MODEL_MAX_BLOCK_ARGUMENTS);
    if (!name_is_valid(name) || strcmp(name, "x") == 0 || strcmp(name, "output") == 0)
        return status_new(STATUS_INVALID_ARGUMENT, "an argument cannot be called '%s'",
                          yamldoc_excerpt(name, found));
    for (int i = 0; i < definition->argument_count; i++)
        if (strcmp(definition->arguments[i], name) == 0)
            return status_new(STATUS_INVALID_ARGUMENT, "argument '%s' is named twice", name);
    struct constant value = {.kind = CONSTANT_NONE};
    if (standard) TRY(constant_evaluate(standard, &reader->environment, &value));
    int index = definition->argument_count++;
    definition->arguments[index] = mem_strdup(name);
    definition->required[index] = !standard;
    definition->standards[index] = value;
    return NULL;
}

/* "Residual(channels, p=0.1)", or only "Residual". */
static status_t read_head(const struct reader *reader, struct definition *definition,
                          const char *text)
{
    TRY(expression_parse(text, &definition->signature));
    const struct expression *head = definition->signature;
    bool call = head->kind == EXPRESSION_CALL;
    if ((!call && head->kind != EXPRESSION_NAME) || !name_is_valid(head->text))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "expected a block's name and arguments such as Block(channels, p=0.1)");
    if (layer_find_module(head->text) || strcmp(head->text, "Sequential") == 0 ||
        strcmp(head->text, "Parameter") == 0 || strcmp(head->text, "ModuleList") == 0)
        return status_new(STATUS_INVALID_ARGUMENT, "'%s' is a module of the library already",
                          head->text);
    definition->name = mem_strdup(head->text);
    for (int i = 0; call && i < head->item_count; i++) {
        const struct expression *item = head->items[i];
        const char *keyword = head->keywords[i];
        if (!keyword && item->kind != EXPRESSION_NAME)
            return status_new(STATUS_INVALID_ARGUMENT, "expected the name of an argument");
        TRY(add_block_argument(reader, definition, keyword ? keyword : item->text,
                               keyword ? item : NULL));
    }
    return NULL;
}

static struct definition *add_definition(struct reader *reader, int line)
{
    MEM_GROW(reader->definitions, reader->definition_count, reader->definition_capacity);
    struct definition *definition = &reader->definitions[reader->definition_count++];
    *definition = (struct definition){.line = line, .input_count = 1};
    definition->inputs[0] = mem_strdup("x");
    return definition;
}

static status_t read_block(struct reader *reader, const struct yamldoc_node *node)
{
    static const char *const keys[] = {"inputs", "modules", "forward"};
    char found[72];
    struct definition *definition = add_definition(reader, node->key_line);
    status_t status = read_head(reader, definition, node->key);
    if (status)
        return reader_wrap(reader, node->key_line,
                           status_wrap(status, "block '%s'", yamldoc_excerpt(node->key, found)));
    for (int i = 1; i + 1 < reader->definition_count; i++)
        if (strcmp(reader->definitions[i].name, definition->name) == 0)
            return reader_error(reader, node->key_line,
                                "block '%s' is defined twice; the first is on line %d",
                                definition->name, reader->definitions[i].line);
    TRY(yamldoc_check_keys(node, keys, COUNT_OF(keys)));
    TRY(read_inputs(reader, definition, yamldoc_get(node, "inputs")));
    return read_parts(reader, definition, node);
}

status_t definitions_read(struct reader *reader, const struct yamldoc_node *root)
{
    const char *name = NULL;
    struct yamldoc_node *node = NULL;
    TRY(yamldoc_require(root, "name", &node));
    TRY(yamldoc_read_text(node, "the model's name", &name));
    if (!name_is_valid(name)) return yamldoc_expected(node, "a name of letters, digits and _");
    struct definition *main = add_definition(reader, root->line);
    main->name = mem_strdup(name);
    for (int i = 0; i < reader->model->input_count; i++) {
        if (i == 0) free(main->inputs[0]);
        main->inputs[i] = mem_strdup(reader->model->inputs[i].name);
        main->input_count = i + 1;
    }
    TRY(read_parts(reader, main, root));

    const struct yamldoc_node *blocks = yamldoc_get(root, "blocks");
    if (!blocks) return NULL;
    TRY(yamldoc_expect_mapping(blocks, "a mapping from heads such as Block(channels) to blocks"));
    if (blocks->item_count > 1000)
        return yamldoc_key_error(blocks, "more than 1000 blocks are defined");
    for (int i = 0; i < blocks->item_count; i++) TRY(read_block(reader, blocks->items[i]));
    return NULL;
}

void definition_deinit(struct definition *definition)
{
    for (int i = 0; i < definition->argument_count; i++) free(definition->arguments[i]);
    for (int i = 0; i < definition->input_count; i++) free(definition->inputs[i]);
    for (int i = 0; i < definition->module_count; i++)
        expression_free(definition->modules[i].constructor);
    for (int i = 0; i < definition->forward_count; i++) statement_free(definition->forward[i]);
    free(definition->modules);
    free(definition->forward);
    free(definition->name);
    expression_free(definition->signature);
}

const struct definition *definition_find(const struct reader *reader, const char *name)
{
    for (int i = 1; i < reader->definition_count; i++)
        if (strcmp(reader->definitions[i].name, name) == 0) return &reader->definitions[i];
    return NULL;
}
