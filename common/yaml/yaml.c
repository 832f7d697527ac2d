/* Reading a document's nodes as typed values; see yaml.h. Pure functions over an immutable tree. */
#include "yaml/yaml.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/mem.h"
#include "base/text.h"

struct yamldoc_node *yamldoc_get(const struct yamldoc_node *mapping, const char *key)
{
    if (!mapping || mapping->kind != YAMLDOC_MAPPING) return NULL;
    for (int i = 0; i < mapping->item_count; i++)
        if (strcmp(mapping->items[i]->key, key) == 0) return mapping->items[i];
    return NULL;
}

bool yamldoc_is_null(const struct yamldoc_node *node)
{
    if (node->kind != YAMLDOC_SCALAR || node->quoted) return false;
    const char *text = node->text;
    return !*text || strcmp(text, "~") == 0 || strcmp(text, "null") == 0;
}

char *yamldoc_excerpt(const char *text, char out[static 72])
{
    size_t length = strnlen(text, 61);
    bool cut = length > 60;
    if (cut)
        for (length = 60; length > 0 && ((unsigned char)text[length] & 0xC0) == 0x80;) length--;
    for (size_t i = 0; i < length; i++)
        out[i] = (unsigned char)text[i] < 0x20 || text[i] == 0x7F ? ' ' : text[i];
    memcpy(out + length, cut ? "..." : "", cut ? 4 : 1);
    return out;
}

static bool is_noncharacter(uint32_t c)
{
    return (c & 0xFFFE) == 0xFFFE || (c >= 0xFDD0 && c <= 0xFDEF);
}

void yamldoc_print_quoted(struct buf *out, const char *text)
{
    buf_add_char(out, '"');
    for (uint32_t c; *text != '\0';) {
        int length = utf8_decode(text, &c);
        if (length > 0 && (utf8_is_control(c) || is_noncharacter(c)))
            buf_printf(out, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
        else if (*text == '"' || *text == '\\') buf_printf(out, "\\%c", *text);
        else buf_add(out, text, length > 0 ? (size_t)length : 1);
        text += length > 0 ? length : 1;
    }
    buf_add_char(out, '"');
}

void yamldoc_print_text(struct buf *out, const char *text)
{
    static const char *const values[] = {"null", "true", "false"};
    bool plain = isalpha((unsigned char)text[0]) || text[0] == '/' || text[0] == '_';
    for (const char *c = text; *c != '\0' && plain; c++)
        plain = isalnum((unsigned char)*c) || strchr("/._-+", *c) != NULL ||
                (*c == ':' && c[1] != '\0');
    for (size_t i = 0; i < COUNT_OF(values); i++) plain = plain && strcmp(text, values[i]) != 0;
    if (plain) buf_add_text(out, text);
    else yamldoc_print_quoted(out, text);
}

static void add_path(const struct yamldoc_node *node, struct buf *path)
{
    if (!node->parent) return;
    add_path(node->parent, path);
    if (node->index >= 0) {
        buf_printf(path, "[%d]", node->index);
        return;
    }
    if (path->length) buf_add_char(path, '.');
    char key[72];
    buf_add_text(path, yamldoc_excerpt(node->key, key));
}

char *yamldoc_path(const struct yamldoc_node *node)
{
    struct buf path = {0};
    add_path(node, &path);
    return buf_take(&path);
}

status_t yamldoc_place(status_t status, const struct yamldoc_node *node)
{
    if (status == NULL) return NULL;
    if (node->line == 0) return status_wrap(status, "%s", node->file);
    status_with(status, (struct status_details){.line = node->line});
    return status_wrap(status, "%s:%d", node->file, node->line);
}

status_t yamldoc_wrap(status_t status, const struct yamldoc_node *node)
{
    if (status == NULL) return NULL;
    if (node->parent) {
        AUTO_FREE char *path = yamldoc_path(node);
        status = status_wrap(status, "key '%s'", path);
    }
    return yamldoc_place(status, node);
}

status_t yamldoc_error(const struct yamldoc_node *node, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    status_t status = status_new_v(STATUS_INVALID_ARGUMENT, format, args);
    va_end(args);
    return yamldoc_place(status, node);
}

status_t yamldoc_key_error(const struct yamldoc_node *node, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    status_t status = status_new_v(STATUS_INVALID_ARGUMENT, format, args);
    va_end(args);
    return yamldoc_wrap(status, node);
}

status_t yamldoc_expected(const struct yamldoc_node *node, const char *what)
{
    char found[72];
    status_t status;
    if (yamldoc_is_null(node))
        status = status_new(STATUS_INVALID_ARGUMENT, "expected %s, found nothing", what);
    else if (node->kind == YAMLDOC_SCALAR)
        status = status_new(STATUS_INVALID_ARGUMENT, "expected %s, found %s'%s'", what,
                            node->quoted ? "the text " : "", yamldoc_excerpt(node->text, found));
    else
        status = status_new(STATUS_INVALID_ARGUMENT, "expected %s, found %s", what,
                            node->kind == YAMLDOC_SEQUENCE ? "a list" : "a mapping");
    return yamldoc_wrap(status, node);
}

status_t yamldoc_expect_mapping(const struct yamldoc_node *node, const char *what)
{
    if (node->kind == YAMLDOC_MAPPING) return NULL;
    return yamldoc_expected(node, what ? what : "a mapping");
}

status_t yamldoc_expect_sequence(const struct yamldoc_node *node, const char *what)
{
    if (node->kind == YAMLDOC_SEQUENCE) return NULL;
    return yamldoc_expected(node, what ? what : "a list");
}

/* Suggests the nearest name or, if nothing is near, lists the names. */
static void add_suggestion(struct buf *text, const char *word, const char *const *words,
                           size_t count, const char *lead)
{
    const char *nearest = text_nearest(word, words, count);
    if (nearest) {
        buf_printf(text, "; did you mean '%s'?", nearest);
        return;
    }
    for (size_t i = 0; i < count; i++) buf_printf(text, "%s%s", i ? ", " : lead, words[i]);
}

status_t yamldoc_check_keys(const struct yamldoc_node *mapping, const char *const *keys,
                            size_t count)
{
    TRY(yamldoc_expect_mapping(mapping, NULL));
    for (int i = 0; i < mapping->item_count; i++) {
        const struct yamldoc_node *item = mapping->items[i];
        bool known = false;
        for (size_t k = 0; k < count && !known; k++) known = strcmp(item->key, keys[k]) == 0;
        if (known) continue;
        AUTO(buf_deinit) struct buf hint = {0};
        add_suggestion(&hint, item->key, keys, count, "; the keys here are ");
        AUTO_FREE char *path = yamldoc_path(item);
        status_t status =
            status_new(STATUS_INVALID_ARGUMENT, "unknown key '%s'%s", path, buf_text(&hint));
        if (item->line == 0) return status_wrap(status, "%s", item->file);
        status_with(status, (struct status_details){.line = item->key_line});
        return status_wrap(status, "%s:%d", item->file, item->key_line);
    }
    return NULL;
}

status_t yamldoc_require(const struct yamldoc_node *mapping, const char *key,
                         struct yamldoc_node **node)
{
    TRY(yamldoc_expect_mapping(mapping, NULL));
    struct yamldoc_node *found = yamldoc_get(mapping, key);
    if (found && !yamldoc_is_null(found)) {
        *node = found;
        return NULL;
    }
    if (found) return yamldoc_key_error(found, "a value is missing");
    AUTO_FREE char *path = yamldoc_path(mapping);
    return yamldoc_error(mapping, "key '%s%s%s' is missing", path, *path ? "." : "", key);
}

static void describe_i64_range(int64_t minimum, int64_t maximum, char text[static 96])
{
    if (minimum == INT64_MIN && maximum == INT64_MAX) snprintf(text, 96, "an integer");
    else if (maximum == INT64_MAX && minimum == 1) snprintf(text, 96, "a positive integer");
    else if (maximum == INT64_MAX)
        snprintf(text, 96, "an integer of at least %lld", (long long)minimum);
    else if (minimum == INT64_MIN)
        snprintf(text, 96, "an integer of at most %lld", (long long)maximum);
    else snprintf(text, 96, "an integer from %lld to %lld", (long long)minimum, (long long)maximum);
}

status_t yamldoc_read_i64(const struct yamldoc_node *node, int64_t minimum, int64_t maximum,
                          int64_t *value)
{
    if (!node) return NULL;
    int64_t parsed;
    if (node->kind == YAMLDOC_SCALAR && !node->quoted && text_parse_i64(node->text, &parsed) &&
        parsed >= minimum && parsed <= maximum) {
        *value = parsed;
        return NULL;
    }
    char range[96];
    describe_i64_range(minimum, maximum, range);
    return yamldoc_expected(node, range);
}

static void describe_f64_range(double minimum, double maximum, char text[static 96])
{
    bool low = minimum > -INFINITY, high = maximum < INFINITY;
    if (!low && !high) snprintf(text, 96, "a number");
    else if (!high) snprintf(text, 96, "a number of at least %g", minimum);
    else if (!low) snprintf(text, 96, "a number of at most %g", maximum);
    else snprintf(text, 96, "a number from %g to %g", minimum, maximum);
}

status_t yamldoc_read_f64(const struct yamldoc_node *node, double minimum, double maximum,
                          double *value)
{
    if (!node) return NULL;
    double parsed;
    if (node->kind == YAMLDOC_SCALAR && !node->quoted && text_parse_f64(node->text, &parsed) &&
        parsed >= minimum && parsed <= maximum) {
        *value = parsed;
        return NULL;
    }
    char range[96];
    describe_f64_range(minimum, maximum, range);
    return yamldoc_expected(node, range);
}

status_t yamldoc_read_bool(const struct yamldoc_node *node, bool *value)
{
    if (!node) return NULL;
    if (node->kind == YAMLDOC_SCALAR && !node->quoted) {
        if (strcmp(node->text, "true") == 0) {
            *value = true;
            return NULL;
        }
        if (strcmp(node->text, "false") == 0) {
            *value = false;
            return NULL;
        }
    }
    return yamldoc_expected(node, "true or false");
}

status_t yamldoc_read_text(const struct yamldoc_node *node, const char *what, const char **value)
{
    if (!node) return NULL;
    if (node->kind != YAMLDOC_SCALAR || yamldoc_is_null(node) || !*node->text)
        return yamldoc_expected(node, what ? what : "a text");
    *value = node->text;
    return NULL;
}

status_t yamldoc_read_choice(const struct yamldoc_node *node, const char *const *words,
                             size_t count, int *index)
{
    if (!node) return NULL;
    if (node->kind == YAMLDOC_SCALAR)
        for (size_t i = 0; i < count; i++)
            if (strcmp(node->text, words[i]) == 0) {
                *index = (int)i;
                return NULL;
            }
    AUTO(buf_deinit) struct buf what = {0};
    for (size_t i = 0; i < count; i++)
        buf_printf(&what, "%s'%s'", i == 0 ? "" : i + 1 < count ? ", " : " or ", words[i]);
    return yamldoc_expected(node, buf_text(&what));
}
