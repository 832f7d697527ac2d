/*
 * Reads fsdpd.yaml into values; see option_table.h. A key may be written in sections or with dots
 * (`limits: {watchers: 10}` or `limits.watchers: 10`). A key without a value counts as absent, so
 * that users can create a file by uncommenting keys.
 */
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "notify_option.h"
#include "option_table.h"
#include "yaml/yaml.h"

struct reading {
    struct options *options;
    bool taken[OPTION_ROWS_MAX]; /* has a value from a source of higher precedence */
    bool seen[OPTION_ROWS_MAX];  /* by this file */
    struct buf mistakes;         /* one line each */
    int mistake_count;
};

enum { MISTAKES_MAX = 20 };

static void mistake(struct reading *reading, status_t status)
{
    if (status == NULL) return;
    if (reading->mistake_count++ < MISTAKES_MAX)
        buf_printf(&reading->mistakes, "%s%s", reading->mistake_count > 1 ? "\n" : "",
                   status_message(status));
    status_free(status);
}

static bool is_section(const char *path)
{
    size_t length = strlen(path);
    for (int i = 0; i < option_row_count; i++) {
        const char *key = option_rows[i].key;
        if (key != NULL && strncmp(key, path, length) == 0 && key[length] == '.') return true;
    }
    return false;
}

static status_t unknown_key(const struct yamldoc_node *node, const char *path)
{
    const char *keys[OPTION_ROWS_MAX] = {0};
    size_t count = 0;
    for (int i = 0; i < option_row_count; i++)
        if (option_rows[i].key != NULL) keys[count++] = option_rows[i].key;
    const char *near = text_nearest(path, keys, count);
    /* A key of a section, written without the section. */
    for (size_t i = 0; near == NULL && i < count; i++) {
        const char *dot = strchr(keys[i], '.');
        if (dot != NULL && strcmp(dot + 1, path) == 0) near = keys[i];
    }
    if (near != NULL)
        return status_new(STATUS_INVALID_ARGUMENT, "%s:%d: %s: unknown key; did you mean %s?",
                          node->file, node->key_line, path, near);
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s:%d: %s: unknown key; fsdpd config dump lists all", node->file,
                      node->key_line, path);
}

static status_t read_notify(struct reading *reading, const struct option_row *row,
                            const struct yamldoc_node *node)
{
    AUTO_FREE char *place = mem_printf("%s:%d", node->file, node->line);
    AUTO(buf_deinit) struct buf text = {0};
    int index = (int)(row - option_rows);
    TRY(notify_option_check_node(node));
    notify_option_print(node, &text);
    if (!reading->taken[index])
        option_value_add(&reading->options->values[index], SOURCE_FILE, place, place,
                         buf_text(&text));
    return NULL;
}

/* Reads a single value of a key. */
static status_t read_text(struct reading *reading, const struct option_row *row,
                          const struct yamldoc_node *node, const char *path)
{
    AUTO_FREE char *place = mem_printf("%s:%d", node->file, node->line);
    AUTO_FREE char *where = mem_printf("%s: %s", place, path);
    status_t status = NULL;
    const char *text = node->text;
    if (node->kind != YAMLDOC_SCALAR)
        status = status_new(STATUS_INVALID_ARGUMENT, "expected %s, found a %s",
                            row->list ? "a list of texts" : "one value",
                            node->kind == YAMLDOC_MAPPING ? "mapping" : "list");
    else if (option_is_number(row) && node->quoted)
        status = status_new(STATUS_INVALID_ARGUMENT, "expected a value without quotes, found '%s'",
                            text);
    else if (row->kind == OPTION_PATH && text[0] != '/' && text[0] != '~')
        status = status_new(STATUS_INVALID_ARGUMENT,
                            "expected an absolute path or one from ~/, found '%.80s'", text);
    else status = option_check(row, text);
    int index = (int)(row - option_rows);
    if (status == NULL && !reading->taken[index])
        option_value_add(&reading->options->values[index], SOURCE_FILE, where, place, text);
    status = status_wrap(status, "%s", where);
    return status;
}

static void read_key(struct reading *reading, const struct yamldoc_node *node, const char *path)
{
    const struct option_row *row = option_find_key(path, reading->options->role);
    if (row == NULL) {
        mistake(reading, unknown_key(node, path));
        return;
    }
    int index = (int)(row - option_rows);
    if (reading->seen[index]) {
        mistake(reading, status_new(STATUS_INVALID_ARGUMENT, "%s:%d: %s: is set twice", node->file,
                                    node->key_line, path));
        return;
    }
    reading->seen[index] = true;
    if (yamldoc_is_null(node)) return;
    if (row->kind == OPTION_NOTIFY) {
        mistake(reading, read_notify(reading, row, node));
        return;
    }
    if (row->list && node->kind == YAMLDOC_SEQUENCE) {
        if (node->item_count == 0 && !reading->taken[index]) {
            AUTO_FREE char *place = mem_printf("%s:%d", node->file, node->line);
            option_value_add(&reading->options->values[index], SOURCE_FILE, place, place, NULL);
        }
        for (int i = 0; i < node->item_count; i++)
            mistake(reading, read_text(reading, row, node->items[i], path));
        return;
    }
    mistake(reading, read_text(reading, row, node, path));
}

static void read_mapping(struct reading *reading, const struct yamldoc_node *mapping,
                         const char *prefix)
{
    for (int i = 0; i < mapping->item_count; i++) {
        const struct yamldoc_node *node = mapping->items[i];
        AUTO_FREE char *path = mem_printf("%s%s%s", prefix, prefix[0] ? "." : "", node->key);
        if (!is_section(path)) read_key(reading, node, path);
        else if (node->kind == YAMLDOC_MAPPING) read_mapping(reading, node, path);
        else if (!yamldoc_is_null(node))
            mistake(reading,
                    status_new(STATUS_INVALID_ARGUMENT, "%s:%d: %s: expected a mapping of keys",
                               node->file, node->line, path));
    }
}

status_t config_file_parse(struct options *options, const char *text, size_t length,
                           const char *name)
{
    struct yamldoc *document = NULL;
    size_t blank =
        0; /* a file of comments alone is not a YAML document, but a valid configuration */
    while (blank < length) {
        size_t line = strcspn(text + blank, "\n");
        size_t first = strspn(text + blank, " \t\r");
        if (first < line && text[blank + first] != '#') break;
        blank += line + (blank + line < length);
    }
    if (blank >= length) return NULL;
    TRY(yamldoc_parse(text, length, name, &document));
    struct reading reading = {.options = options};
    for (int i = 0; i < option_row_count; i++)
        reading.taken[i] = options->values[i].source != SOURCE_DEFAULT;
    if (document->root->kind == YAMLDOC_MAPPING) read_mapping(&reading, document->root, "");
    else if (!yamldoc_is_null(document->root))
        mistake(&reading, yamldoc_error(document->root, "expected a mapping of keys, as "
                                                        "docs/configuration.md has it"));
    yamldoc_free(document);
    if (reading.mistake_count > MISTAKES_MAX)
        buf_printf(&reading.mistakes, "\n%s: and %d more mistakes", name,
                   reading.mistake_count - MISTAKES_MAX);
    status_t status = reading.mistake_count > 0
                          ? status_new(STATUS_INVALID_ARGUMENT, "%s", buf_text(&reading.mistakes))
                          : NULL;
    buf_deinit(&reading.mistakes);
    return status;
}

status_t config_file_read(struct options *options, const char *path)
{
    AUTO(buf_deinit) struct buf text = {0};
    TRY(file_read_regular(path, YAMLDOC_MAX_BYTES, &text));
    return config_file_parse(options, buf_text(&text), text.length, path);
}
