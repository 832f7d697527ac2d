/*
 * From libyaml's events to the tree of yaml.h, and changes to a tree from the command line.
 * YAMLDOC_MAX_DEPTH bounds the recursion, and events are requested from libyaml one at a time, so
 * refusing a hostile text never costs more than its length.
 */
#include "yaml/yaml.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/mem.h"

struct builder {
    yaml_parser_t parser;
    struct yamldoc *document;
    const char *file; /* owned by the document */
    const char *text;
    size_t length;
    bool from_file; /* lines mean something */
};

static struct yamldoc_node *node_new(enum yamldoc_kind kind)
{
    struct yamldoc_node *node = mem_alloc(sizeof *node);
    node->kind = kind;
    node->index = -1;
    return node;
}

static void node_free(struct yamldoc_node *node)
{
    if (!node) return;
    for (int i = 0; i < node->item_count; i++) node_free(node->items[i]);
    free(node->items);
    free(node->key);
    free(node->text);
    free(node);
}

static void node_append(struct yamldoc_node *parent, struct yamldoc_node *item)
{
    MEM_GROW(parent->items, parent->item_count, parent->item_capacity);
    item->parent = parent;
    if (parent->kind == YAMLDOC_SEQUENCE) item->index = parent->item_count;
    parent->items[parent->item_count++] = item;
}

static const char *document_add_file(struct yamldoc *document, const char *file)
{
    MEM_GROW(document->files, document->file_count, document->file_capacity);
    return document->files[document->file_count++] = mem_strdup(file);
}

static status_t place_error(const struct builder *builder, size_t line, const char *format, ...)
    FSDPD_PRINTF(3, 4);

/* `line` counts from 0, as libyaml's marks do. */
static status_t place_error(const struct builder *builder, size_t line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    status_t status = status_new_v(STATUS_INVALID_ARGUMENT, format, args);
    va_end(args);
    if (!builder->from_file) return status_wrap(status, "%s", builder->file);
    status_with(status, (struct status_details){.line = (int)line + 1});
    return status_wrap(status, "%s:%zu", builder->file, line + 1);
}

/* libyaml's error, in one line. */
static status_t parser_error(const struct builder *builder)
{
    const yaml_parser_t *parser = &builder->parser;
    const char *problem = parser->problem ? parser->problem : "cannot be read";
    size_t line = parser->problem_mark.line;
    if (parser->error == YAML_READER_ERROR) { /* has an offset in bytes instead of a mark */
        line = 0;
        size_t end = parser->problem_offset;
        if (end > builder->length) end = builder->length;
        for (size_t i = 0; i < end; i++) line += builder->text[i] == '\n';
    }
    if (parser->context)
        return place_error(builder, line, "not valid YAML: %s, %s", parser->context, problem);
    return place_error(builder, line, "not valid YAML: %s", problem);
}

static status_t next_event(struct builder *builder, yaml_event_t *event)
{
    if (!yaml_parser_parse(&builder->parser, event)) return parser_error(builder);
    return NULL;
}

static status_t check_event(const struct builder *builder, const yaml_event_t *event)
{
    size_t line = event->start_mark.line;
    const yaml_char_t *anchor = NULL, *tag = NULL;
    char name[72];
    switch (event->type) {
    case YAML_ALIAS_EVENT:
        return place_error(builder, line, "aliases (*%s) are not supported here",
                           yamldoc_excerpt((const char *)event->data.alias.anchor, name));
    case YAML_SCALAR_EVENT:
        anchor = event->data.scalar.anchor;
        tag = event->data.scalar.tag;
        if (memchr(event->data.scalar.value, 0, event->data.scalar.length))
            return place_error(builder, line, "a text may not contain the character NUL");
        break;
    case YAML_SEQUENCE_START_EVENT:
        anchor = event->data.sequence_start.anchor;
        tag = event->data.sequence_start.tag;
        break;
    case YAML_MAPPING_START_EVENT:
        anchor = event->data.mapping_start.anchor;
        tag = event->data.mapping_start.tag;
        break;
    default: break;
    }
    if (anchor)
        return place_error(builder, line, "anchors (&%s) are not supported here",
                           yamldoc_excerpt((const char *)anchor, name));
    if (tag)
        return place_error(builder, line, "tags (%s) are not supported here",
                           yamldoc_excerpt((const char *)tag, name));
    return NULL;
}

static int compare_keys(const void *left, const void *right)
{
    const struct yamldoc_node *a = *(struct yamldoc_node *const *)left;
    const struct yamldoc_node *b = *(struct yamldoc_node *const *)right;
    int order = strcmp(a->key, b->key);
    if (order) return order;
    return (a->key_line > b->key_line) - (a->key_line < b->key_line);
}

/* Sorts, to find duplicates in O(n log n) even among the keys of a hostile file. */
static status_t check_duplicates(const struct builder *builder, const struct yamldoc_node *mapping)
{
    size_t count = (size_t)mapping->item_count;
    if (count < 2) return NULL;
    AUTO_FREE struct yamldoc_node **sorted = mem_dup(mapping->items, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare_keys);
    status_t status = NULL;
    char key[72];
    for (size_t i = 1; i < count && !status; i++)
        if (strcmp(sorted[i - 1]->key, sorted[i]->key) == 0)
            status = place_error(builder, (size_t)sorted[i]->key_line - 1,
                                 "key '%s' is given twice; the first is on line %d",
                                 yamldoc_excerpt(sorted[i]->key, key), sorted[i - 1]->key_line);
    return status;
}

static status_t build_node(struct builder *builder, const yaml_event_t *event, int depth,
                           struct yamldoc_node **out);

static status_t build_sequence(struct builder *builder, struct yamldoc_node *sequence, int depth)
{
    for (;;) {
        yaml_event_t event;
        TRY(next_event(builder, &event));
        if (event.type == YAML_SEQUENCE_END_EVENT) {
            yaml_event_delete(&event);
            return NULL;
        }
        struct yamldoc_node *item = NULL;
        status_t status = build_node(builder, &event, depth + 1, &item);
        yaml_event_delete(&event);
        if (status) return status;
        node_append(sequence, item);
    }
}

static status_t build_key(const struct builder *builder, const yaml_event_t *event, char **key,
                          int *line)
{
    TRY(check_event(builder, event));
    if (event->type != YAML_SCALAR_EVENT)
        return place_error(builder, event->start_mark.line, "a key must be a plain word, not %s",
                           event->type == YAML_MAPPING_START_EVENT ? "a mapping" : "a list");
    *key = mem_strdup((const char *)event->data.scalar.value);
    *line = (int)event->start_mark.line + 1;
    return NULL;
}

static status_t build_mapping(struct builder *builder, struct yamldoc_node *mapping, int depth)
{
    for (;;) {
        yaml_event_t event;
        TRY(next_event(builder, &event));
        if (event.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&event);
            return check_duplicates(builder, mapping);
        }
        char *key = NULL;
        int line = 0;
        status_t status = build_key(builder, &event, &key, &line);
        yaml_event_delete(&event);
        if (status) return status;

        status = next_event(builder, &event);
        struct yamldoc_node *item = NULL;
        if (!status) {
            status = build_node(builder, &event, depth + 1, &item);
            yaml_event_delete(&event);
        }
        if (status) {
            free(key);
            return status;
        }
        item->key = key;
        item->key_line = line;
        node_append(mapping, item);
    }
}

static status_t build_node(struct builder *builder, const yaml_event_t *event, int depth,
                           struct yamldoc_node **out)
{
    TRY(check_event(builder, event));
    size_t line = event->start_mark.line;
    if (depth > YAMLDOC_MAX_DEPTH)
        return place_error(builder, line, "nested deeper than %d levels", YAMLDOC_MAX_DEPTH);
    if (builder->document->node_count >= YAMLDOC_MAX_NODES)
        return place_error(builder, line, "more than %d values", YAMLDOC_MAX_NODES);
    builder->document->node_count++;

    struct yamldoc_node *node = NULL;
    status_t status = NULL;
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        node = node_new(YAMLDOC_SCALAR);
        node->text = mem_strdup((const char *)event->data.scalar.value);
        node->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
        break;
    case YAML_SEQUENCE_START_EVENT:
        node = node_new(YAMLDOC_SEQUENCE);
        status = build_sequence(builder, node, depth);
        break;
    case YAML_MAPPING_START_EVENT:
        node = node_new(YAMLDOC_MAPPING);
        status = build_mapping(builder, node, depth);
        break;
    default: return place_error(builder, line, "not valid YAML: a value was expected");
    }
    if (status) {
        node_free(node);
        return status;
    }
    node->file = builder->file;
    node->line = builder->from_file ? (int)line + 1 : 0;
    node->column = builder->from_file ? (int)event->start_mark.column + 1 : 0;
    *out = node;
    return NULL;
}

/* Reads events up to the end of the stream: exactly one document. */
static status_t build_stream(struct builder *builder, struct yamldoc_node **root)
{
    status_t status = NULL;
    for (bool done = false; !done && !status;) {
        yaml_event_t event;
        TRY(next_event(builder, &event));
        switch (event.type) {
        case YAML_STREAM_END_EVENT: done = true; break;
        case YAML_STREAM_START_EVENT:
        case YAML_DOCUMENT_END_EVENT: break;
        case YAML_DOCUMENT_START_EVENT:
            if (*root)
                status = place_error(builder, event.start_mark.line,
                                     "a second document; only one is supported");
            break;
        default: status = build_node(builder, &event, 1, root);
        }
        yaml_event_delete(&event);
    }
    return status;
}

static status_t build_document(struct builder *builder, struct yamldoc_node **root)
{
    if (builder->length > YAMLDOC_MAX_BYTES)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %zu bytes; at most %d are supported",
                          builder->file, builder->length, YAMLDOC_MAX_BYTES);
    if (!yaml_parser_initialize(&builder->parser))
        return status_new(STATUS_RESOURCE_EXHAUSTED, "%s: no memory", builder->file);
    yaml_parser_set_encoding(&builder->parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&builder->parser, (const unsigned char *)builder->text,
                                 builder->length);
    struct yamldoc_node *built = NULL;
    status_t status = build_stream(builder, &built);
    yaml_parser_delete(&builder->parser);
    if (status) {
        node_free(built);
        return status;
    }
    *root = built;
    return NULL;
}

status_t yamldoc_parse(const char *text, size_t length, const char *file, struct yamldoc **document)
{
    static const char byte_order_mark[] = "\xef\xbb\xbf"; /* some editors begin files with it */
    enum { MARK = sizeof byte_order_mark - 1 };
    if (length >= MARK && memcmp(text, byte_order_mark, MARK) == 0) {
        text += MARK;
        length -= MARK;
    }
    struct yamldoc *made = mem_alloc(sizeof *made);
    struct builder builder = {.document = made, .text = text, .length = length, .from_file = true};
    builder.file = document_add_file(made, file);
    status_t status = build_document(&builder, &made->root);
    if (!status && !made->root) status = place_error(&builder, 0, "the file is empty");
    if (status) {
        yamldoc_free(made);
        return status;
    }
    *document = made;
    return NULL;
}

void yamldoc_free(struct yamldoc *document)
{
    if (!document) return;
    node_free(document->root);
    for (int i = 0; i < document->file_count; i++) free(document->files[i]);
    free(document->files);
    free(document);
}

void yamldoc_reroot(struct yamldoc *document, struct yamldoc_node *node)
{
    struct yamldoc_node *parent = node->parent;
    for (int i = 0; parent && i < parent->item_count; i++)
        if (parent->items[i] == node) parent->items[i] = NULL; /* node_free accepts it */
    if (parent) node_free(document->root);
    free(node->key);
    node->key = NULL;
    node->parent = NULL;
    node->index = -1;
    document->root = node;
}

/* The child of `mapping` under `key`, created as an empty mapping if `make`; takes no ownership. */
static struct yamldoc_node *step_into(struct yamldoc *document, struct yamldoc_node *mapping,
                                      const char *key, const char *origin)
{
    struct yamldoc_node *next = yamldoc_get(mapping, key);
    if (next && !yamldoc_is_null(next)) return next;
    if (!next) {
        next = node_new(YAMLDOC_MAPPING);
        next->key = mem_strdup(key);
        next->file = origin;
        document->node_count++;
        node_append(mapping, next);
    }
    next->kind = YAMLDOC_MAPPING; /* "train:" with nothing after it counts as missing */
    return next;
}

static void put_value(struct yamldoc_node *mapping, const char *key, struct yamldoc_node *value)
{
    value->key = mem_strdup(key);
    for (int i = 0; i < mapping->item_count; i++) {
        if (strcmp(mapping->items[i]->key, key) != 0) continue;
        value->parent = mapping;
        node_free(mapping->items[i]);
        mapping->items[i] = value;
        return;
    }
    node_append(mapping, value);
}

/* Walks `path` (modified in place), then stores `value` there; takes ownership only on success. */
static status_t set_at_path(struct yamldoc *document, char *path, struct yamldoc_node *value,
                            const char *origin)
{
    struct yamldoc_node *mapping = document->root;
    char *key = path;
    for (int depth = 1;; depth++) {
        char *dot = strchr(key, '.');
        if (dot) *dot = 0;
        if (!*key)
            return status_new(STATUS_INVALID_ARGUMENT, "%s: a key is empty; expected KEY.KEY=VALUE",
                              origin);
        if (depth >= YAMLDOC_MAX_DEPTH)
            return status_new(STATUS_INVALID_ARGUMENT, "%s: nested deeper than %d levels", origin,
                              YAMLDOC_MAX_DEPTH);
        if (mapping->kind != YAMLDOC_MAPPING) {
            AUTO_FREE char *where = yamldoc_path(mapping);
            const char *quote = *where ? "'" : "";
            return status_new(STATUS_INVALID_ARGUMENT,
                              "%s: %s%s%s is not a mapping; it has no key '%s'", origin, quote,
                              *where ? where : "the document", quote, key);
        }
        if (!dot) break;
        mapping = step_into(document, mapping, key, origin);
        key = dot + 1;
    }
    put_value(mapping, key, value);
    return NULL;
}

status_t yamldoc_set(struct yamldoc *document, const char *path, const char *value,
                     const char *origin)
{
    struct builder builder = {.document = document, .text = value, .length = strlen(value)};
    builder.file = document_add_file(document, origin);
    struct yamldoc_node *node = NULL;
    TRY(build_document(&builder, &node));
    if (!node) { /* nothing after the '=': null */
        node = node_new(YAMLDOC_SCALAR);
        node->text = mem_strdup("");
        node->file = builder.file;
    }
    AUTO_FREE char *copy = mem_strdup(path);
    status_t status = set_at_path(document, copy, node, builder.file);
    if (status) node_free(node);
    return status;
}
